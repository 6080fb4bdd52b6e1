//! `tidegate tap`: shows denials as they happen, one on each line.

use std::time::Duration;

use clap::Args;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use super::admin_client::{AdminArgs, AdminClient, AdminFailure, percent_encoded, runtime};
use super::display::{StyledLine, Tone, count, short_hash, span, time};
use super::output::{CommandError, print, print_error, print_next, use_colour};
use super::proxy_snapshot::read_or_default;
use crate::admin::denials::DenialReport;

/// Pauses before it connects again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The proxy sends something at least this often; a stream that is silent for longer is dead.
const SILENCE: Duration = Duration::from_secs(45);
/// Bytes of one line of a stream, at most; the rest of a longer one is dropped.
const MAX_LINE: usize = 1 << 20;

#[derive(Debug, Args)]
pub(super) struct TapArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Only real denials, without those of shadow limits.
    #[arg(long)]
    denied: bool,
    /// Only denials on this route.
    #[arg(long, value_name = "ROUTE")]
    route: Option<String>,
    /// Only denials by this limit.
    #[arg(long, value_name = "LIMIT")]
    limit: Option<String>,
    /// Only denials of this client: a hash from logs, `top` or this command.
    #[arg(long, value_name = "HASH", allow_hyphen_values = true)]
    key: Option<String>,
    /// Print the denial of one request and end. The response and an access log of JSON have its id.
    #[arg(long, value_name = "ID")]
    request: Option<String>,
    /// Print lines of JSON instead of text.
    #[arg(long)]
    json: bool,
    /// End after N denials.
    #[arg(short, value_name = "N")]
    number: Option<u64>,
}

pub(super) fn tap(args: &TapArgs) -> Result<u8, CommandError> {
    let client = AdminClient::new(&args.admin)?;
    let mut tap = DenialTap {
        args,
        client: &client,
        colour: use_colour(&std::io::stdout()),
        shown: 0,
        dropped: 0,
    };
    if let Some(request) = &args.request {
        tap.look_up(request)?;
        return Ok(0);
    }
    tap.warn_of_names();
    let ended = runtime()?.block_on(async {
        tokio::select! {
            ended = tap.follow() => ended,
            _ = tokio::signal::ctrl_c() => Ok(()),
        }
    });
    if tap.dropped > 0 {
        let (shown, dropped) = (count(tap.shown), count(tap.dropped));
        print_error(&format!("{shown} shown, {dropped} dropped"));
    }
    ended.map(|()| 0)
}

struct DenialTap<'t> {
    args: &'t TapArgs,
    client: &'t AdminClient,
    colour: bool,
    shown: u64,
    dropped: u64,
}

impl DenialTap<'_> {
    fn look_up(&self, request: &str) -> Result<(), CommandError> {
        let path = self.path("/api/v1/denials");
        let found = self.client.wait(self.client.get(&path))?;
        let denials = found["denials"].as_array().into_iter().flatten();
        let denials: String = denials.map(|denial| self.render(denial) + "\n").collect();
        if denials.is_empty() {
            let message = format!("no denial of request `{request}` is known");
            return Err(CommandError::failed(message).help(
                "the proxy knows the last 2000; the access log has every one, with the key",
            ));
        }
        print(denials)?;
        Ok(())
    }

    /// Warns of a limit or a route that the proxy has not: it would never deny.
    fn warn_of_names(&self) {
        let (limit, route) = (self.args.limit.as_deref(), self.args.route.as_deref());
        if limit.or(route).is_none() {
            return;
        }
        let Ok(config) = self.client.config(&self.args.admin.config) else {
            return;
        };
        let limits = config.limits.iter().map(|limit| &*limit.name);
        let rules = config.descriptors.rules().iter().map(|rule| &*rule.name);
        let routes = config.routes.iter().map(|route| &*route.name).chain(rules);
        // A candidate has the name of its limit and a mark.
        let base = limit.map(|name| name.split('~').next().unwrap_or(name));
        for (what, name, known) in [
            ("limit", base, limits.collect::<Vec<_>>()),
            ("route", route, routes.collect()),
        ] {
            if let Some(name) = name.filter(|name| !known.contains(name)) {
                print_error(&format!("warning: the proxy has no {what} `{name}`"));
            }
        }
    }

    async fn follow(&mut self) -> Result<(), CommandError> {
        let client = self.client;
        let path = self.path("/api/v1/denials/stream");
        let body = client.open(&path).await;
        let mut body = body.map_err(|failure| client.error(&failure))?;
        let url = client.url();
        print_error(&format!("tidegate: following {url}; Ctrl-C ends it"));
        loop {
            let Some(mut why) = self.read(&mut body).await? else {
                return Ok(());
            };
            let mut pause = FIRST_PAUSE;
            body = loop {
                let wait = pause.as_secs_f64();
                print_error(&format!("tidegate: {why}; trying again in {wait} s"));
                tokio::time::sleep(pause).await;
                pause = LONGEST_PAUSE.min(pause * 2);
                match client.open(&path).await {
                    Ok(body) => break body,
                    Err(failure @ AdminFailure::Refused(401 | 403 | 404, _)) => {
                        return Err(client.error(&failure));
                    }
                    Err(failure) => why = failure.to_string(),
                }
            };
            print_error("tidegate: following again; what was denied meanwhile is not shown");
        }
    }

    /// Shows events until the stream ends, and returns why it ended. `None` after enough lines, and
    /// if standard output is closed.
    async fn read(&mut self, body: &mut Incoming) -> Result<Option<String>, CommandError> {
        let mut events = EventReader::default();
        loop {
            let frame = match tokio::time::timeout(SILENCE, body.frame()).await {
                Err(_) => return Ok(Some("the proxy sends nothing any more".to_owned())),
                Ok(None) => return Ok(Some("the proxy ended the stream".to_owned())),
                Ok(Some(Err(error))) => return Ok(Some(format!("the stream broke: {error}"))),
                Ok(Some(Ok(frame))) => frame,
            };
            let bytes = frame.into_data().unwrap_or_default();
            for event in events.read(&bytes) {
                if !self.show(&event)? {
                    return Ok(None);
                }
            }
        }
    }

    /// Shows an event. Returns whether to go on.
    fn show(&mut self, event: &SseEvent) -> Result<bool, CommandError> {
        let denial = &event.data;
        if event.kind == "dropped" {
            let many = denial["dropped"].as_u64().unwrap_or(0);
            self.dropped += many;
            print_error(&format!(
                "tidegate: {} not shown: too many at once ({} in all)",
                count(many),
                count(self.dropped)
            ));
            return Ok(true);
        }
        if self.args.denied && denial["shadow"] == true {
            return Ok(true);
        }
        self.shown += 1;
        let is_open = print_next(self.render(denial) + "\n")?;
        Ok(is_open && self.args.number.is_none_or(|most| self.shown < most))
    }

    fn render(&self, denial: &Value) -> String {
        match self.args.json {
            true => denial.to_string(),
            false => denial_line(&read_or_default(denial)).render(self.colour),
        }
    }

    /// Adds the filters, which the proxy applies.
    fn path(&self, endpoint: &str) -> String {
        let args = self.args;
        let filters = [
            ("limit", args.limit.as_deref()),
            ("route", args.route.as_deref()),
            ("key", args.key.as_deref()),
            ("request_id", args.request.as_deref()),
            ("shadow", args.denied.then_some("false")),
        ];
        let filters = filters.iter().filter_map(|(name, value)| {
            let value = percent_encoded((*value)?, "");
            Some(format!("{name}={value}"))
        });
        let filters: Vec<String> = filters.collect();
        match filters.is_empty() {
            true => endpoint.to_owned(),
            false => format!("{endpoint}?{}", filters.join("&")),
        }
    }
}

fn denial_line(denial: &DenialReport) -> StyledLine {
    let wait = match denial.retry_after {
        Some(seconds) => format!("retry in {}", span(seconds as f64)),
        None => "no retry".to_owned(),
    };
    let client = denial.client.as_deref().unwrap_or_default();
    let (method, path, id) = (&denial.method, &denial.path, short_hash(&denial.id));
    let request = match denial.request_id.as_str() {
        "" => String::new(),
        request => format!("  request {request}"),
    };
    let asked = match &denial.door {
        Some(door) => format!("  asked by {door}, {}", denial.route),
        None => String::new(),
    };
    let line = StyledLine::new(Tone::Faint, time(denial.at))
        .plain("  ")
        .with(Tone::Warn, &denial.limit)
        .plain(format!("  {method} {path}  {client}  key {id}  "))
        .with(Tone::Faint, wait)
        .with(Tone::Faint, request)
        .with(Tone::Faint, asked);
    match denial.shadow {
        true => line.with(Tone::Faint, "  (shadow: let through)"),
        false => line,
    }
}

/// A server-sent event whose data is JSON.
#[derive(Clone, Debug, PartialEq)]
struct SseEvent {
    kind: String,
    data: Value,
}

/// Parses server-sent events, as far as the admin uses them (HTML, section 9.2.6).
#[derive(Debug, Default)]
struct EventReader {
    /// The last line, which has not ended.
    line: Vec<u8>,
    kind: String,
    data: String,
}

impl EventReader {
    /// Returns the events that end in these bytes.
    fn read(&mut self, bytes: &[u8]) -> Vec<SseEvent> {
        let mut events = Vec::new();
        for &byte in bytes {
            if byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                let line = line.strip_suffix(b"\r").unwrap_or(&line);
                events.extend(self.read_line(&String::from_utf8_lossy(line)));
            } else if self.line.len() < MAX_LINE {
                self.line.push(byte);
            }
        }
        events
    }

    fn read_line(&mut self, line: &str) -> Option<SseEvent> {
        if line.is_empty() {
            let mut kind = std::mem::take(&mut self.kind);
            let data = std::mem::take(&mut self.data);
            let data = serde_json::from_str(&data).ok()?;
            if kind.is_empty() {
                kind.push_str("message");
            }
            return Some(SseEvent { kind, data });
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => value.clone_into(&mut self.kind),
            "data" => {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            // A comment, or a field that the admin does not use.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_denial_is_a_line_whatever_its_path_holds() {
        let mut denial = json!({ "at": 1_795_000_000.5, "limit": "login", "route": "login",
            "method": "POST", "path": "/login\r\n\u{1b}[2Jx", "client": "203.0.113.0/24",
            "id": "CFc46O0KAAAAAAAAAAAAAA", "retry_after": 65, "request_id": "153681b2d24693d5",
            "shadow": false });
        let expected = "11:06:40  login  POST /login\u{fffd}\u{fffd}\u{fffd}[2Jx  203.0.113.0/24  \
                        key CFc46O0K  retry in 1 min 5 s  request 153681b2d24693d5";
        let line = |denial: &Value| denial_line(&read_or_default(denial)).render(false);
        assert_eq!(line(&denial), expected);
        denial["shadow"] = true.into();
        assert!(line(&denial).ends_with("  (shadow: let through)"));
        assert!(line(&Value::Null).starts_with("00:00:00"));
    }

    #[test]
    fn events_are_the_same_in_whatever_pieces_they_come() {
        let text = [
            ": following\n\ndata: {\"limit\":\"a\"}\n\n",
            "event: dropped\r\ndata: {\"dropped\":\r\ndata: 3}\r\n\r\n",
            "id: 4\ndata: nonsense\n\ndata:{}\n\ndata: {\"cut\":",
        ]
        .concat();
        let expected = [
            ("message", json!({ "limit": "a" })),
            ("dropped", json!({ "dropped": 3 })),
            ("message", json!({})),
        ];
        let expected = expected.map(|(kind, data)| SseEvent {
            kind: kind.to_owned(),
            data,
        });
        for size in 1..text.len() {
            let mut events = EventReader::default();
            let pieces = text.as_bytes().chunks(size);
            let found: Vec<SseEvent> = pieces.flat_map(|piece| events.read(piece)).collect();
            assert_eq!(found, expected, "{size}");
        }
    }
}
