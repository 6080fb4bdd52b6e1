//! `tidegate tap`: denials as they happen, a line each.

mod events;

use std::io::Write;
use std::time::Duration;

use clap::Args;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use super::admin_client::{AdminArgs, AdminClient, Failed, runtime};
use super::colour;
use super::figures::{count, span, time};
use super::ink::{Line, Tone};
use super::run::say;
use super::seen::{list, text};
use super::trouble::Trouble;
use events::{Event, Events};

/// How long it waits before it connects again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A stream says at least that it is quiet in this time; one that does not is dead.
const SILENCE: Duration = Duration::from_secs(45);

#[derive(Debug, Args)]
pub(super) struct TapArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Only what was denied indeed, and not what a shadow limit would have denied.
    #[arg(long)]
    denied: bool,
    /// Only on this route.
    #[arg(long, value_name = "ROUTE")]
    route: Option<String>,
    /// Only by this limit.
    #[arg(long, value_name = "LIMIT")]
    limit: Option<String>,
    /// Only of this client: a hash as logs, `top` and this command show it.
    #[arg(long, value_name = "HASH", allow_hyphen_values = true)]
    key: Option<String>,
    /// What is known of the denial of one request, by the id that its answer and the access log
    /// have; nothing is followed.
    #[arg(long, value_name = "ID")]
    request: Option<String>,
    /// Lines of JSON instead of text.
    #[arg(long)]
    json: bool,
    /// End after so many.
    #[arg(short, value_name = "N")]
    number: Option<u64>,
}

/// Returns the exit code.
pub(super) fn tap(args: &TapArgs) -> u8 {
    match follow(args) {
        Ok(()) => 0,
        Err(trouble) => trouble.say(),
    }
}

fn follow(args: &TapArgs) -> Result<(), Trouble> {
    let client = AdminClient::of(&args.admin)?;
    if args.request.is_some() {
        return look_up(args, &client);
    }
    runtime()?.block_on(async {
        let mut tap = Tap {
            args,
            colour: colour(&std::io::stdout()),
            told: 0,
            dropped: 0,
        };
        let ended = tokio::select! {
            ended = tap.run(&client) => ended,
            _ = tokio::signal::ctrl_c() => Ok(()),
        };
        if tap.dropped > 0 {
            let (told, dropped) = (count(tap.told), count(tap.dropped));
            say(&format!("{told} shown, {dropped} dropped"));
        }
        ended
    })
}

/// Shows the denials of one request.
fn look_up(args: &TapArgs, client: &AdminClient) -> Result<(), Trouble> {
    let path = path(args, "/api/v1/denials");
    let found = runtime()?.block_on(client.get(&path));
    let found = found.map_err(|failed| client.trouble(&failed))?;
    let denials: Vec<&Value> = list(&found["denials"]).collect();
    if denials.is_empty() {
        let request = args.request.as_deref().unwrap_or_default();
        let trouble = Trouble::failed(format!("no denial of request `{request}` is known"));
        return Err(trouble
            .help("the proxy knows the last 2000; the access log has every one, with the key"));
    }
    let colour = colour(&std::io::stdout());
    for denial in denials {
        let text = match args.json {
            true => denial.to_string(),
            false => line(denial).render(colour),
        };
        // Nobody to tell where standard output is closed.
        let _ = writeln!(std::io::stdout(), "{text}");
    }
    Ok(())
}

struct Tap<'t> {
    args: &'t TapArgs,
    colour: bool,
    told: u64,
    dropped: u64,
}

/// Why a stream ended.
enum End {
    /// Enough was seen, or nobody reads any more.
    Done,
    Broken(String),
}

impl Tap<'_> {
    async fn run(&mut self, client: &AdminClient) -> Result<(), Trouble> {
        let path = path(self.args, "/api/v1/denials/stream");
        let mut body = open(client, &path)
            .await
            .map_err(|failed| client.trouble(&failed))?;
        let url = client.url();
        say(&format!("tidegate: following {url}; Ctrl-C ends it"));
        loop {
            let mut why = match self.read(&mut body).await {
                End::Done => return Ok(()),
                End::Broken(why) => why,
            };
            let mut pause = FIRST_PAUSE;
            body = loop {
                let wait = pause.as_secs_f64();
                say(&format!("tidegate: {why}; trying again in {wait} s"));
                tokio::time::sleep(pause).await;
                pause = LONGEST_PAUSE.min(pause * 2);
                match open(client, &path).await {
                    Ok(body) => break body,
                    Err(failed @ Failed::Refused(401 | 403 | 404, _)) => {
                        return Err(client.trouble(&failed));
                    }
                    Err(failed) => why = failed.words(),
                }
            };
            say("tidegate: following again; what was denied meanwhile is not shown");
        }
    }

    async fn read(&mut self, body: &mut Incoming) -> End {
        let mut events = Events::default();
        loop {
            let frame = match tokio::time::timeout(SILENCE, body.frame()).await {
                Err(_) => return End::Broken("the proxy has fallen silent".to_owned()),
                Ok(None) => return End::Broken("the proxy ended the stream".to_owned()),
                Ok(Some(Err(error))) => return End::Broken(format!("the stream broke: {error}")),
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(bytes) = frame.into_data() else {
                continue;
            };
            for event in events.take(&bytes) {
                if !self.tell(&event) {
                    return End::Done;
                }
            }
        }
    }

    /// Whether more is wanted.
    fn tell(&mut self, event: &Event) -> bool {
        if event.kind == "dropped" {
            let many = event.data["dropped"].as_u64().unwrap_or(0);
            self.dropped += many;
            say(&format!(
                "tidegate: {} not shown: too many at once ({} in all)",
                count(many),
                count(self.dropped)
            ));
            return true;
        }
        let denial = &event.data;
        if self.args.denied && denial["shadow"] == Value::Bool(true) {
            return true;
        }
        let line = match self.args.json {
            true => denial.to_string(),
            false => line(denial).render(self.colour),
        };
        self.told += 1;
        let written = writeln!(std::io::stdout(), "{line}");
        let written = written.and_then(|()| std::io::stdout().flush());
        written.is_ok() && self.args.number.is_none_or(|most| self.told < most)
    }
}

async fn open(client: &AdminClient, path: &str) -> Result<Incoming, Failed> {
    Ok(client.open(path).await?.into_body())
}

/// What is asked for, with the filters that the proxy applies.
fn path(args: &TapArgs, place: &str) -> String {
    let named = [
        ("limit", &args.limit),
        ("route", &args.route),
        ("key", &args.key),
        ("request_id", &args.request),
    ];
    let words = named
        .iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", encoded(value.as_ref()?))));
    let mut words: Vec<String> = words.collect();
    if args.denied {
        words.push("shadow=false".to_owned());
    }
    match words.is_empty() {
        true => place.to_owned(),
        false => format!("{place}?{}", words.join("&")),
    }
}

/// For a query (RFC 3986, section 2.1).
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// One denial for people.
fn line(denial: &Value) -> Line {
    let word = |name: &str| text(&denial[name]);
    let wait = match denial["retry_after"].as_f64() {
        Some(seconds) => format!("retry in {}", span(seconds)),
        None => "no retry".to_owned(),
    };
    let id: String = word("id").chars().take(8).collect();
    let line = Line::default()
        .and(Tone::Faint, time(denial["at"].as_f64().unwrap_or(0.0)))
        .and(Tone::Plain, "  ")
        .and(Tone::Warn, word("limit"))
        .and(
            Tone::Plain,
            format!("  {} {}  ", word("method"), word("path")),
        )
        .and(Tone::Plain, format!("{}  ", word("client")))
        .and(Tone::Plain, format!("key {id}  "))
        .and(Tone::Faint, wait);
    let line = match denial["request_id"].as_str() {
        Some(request) => line.and(Tone::Faint, format!("  request {request}")),
        None => line,
    };
    match denial["shadow"] == Value::Bool(true) {
        true => line.and(Tone::Faint, "  (shadow: let through)"),
        false => line,
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
        assert_eq!(line(&denial).render(false), expected);
        denial["shadow"] = true.into();
        assert!(
            line(&denial)
                .render(false)
                .ends_with("  (shadow: let through)")
        );
        assert!(line(&Value::Null).render(false).starts_with("00:00:00"));
    }

    #[test]
    fn filters_are_told_to_the_proxy() {
        assert_eq!(encoded("GET /a b&c=é"), "GET%20%2Fa%20b%26c%3D%C3%A9");
    }
}
