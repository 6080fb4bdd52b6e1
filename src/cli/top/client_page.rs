//! The page of one client in `top`: its use of each limit, its last quarter of an hour, its
//! override and block, and its last denials. Pure.

use super::order::{ClientOfLimit, ClientOrder, OrderKind};
use crate::admin::client_history::ClientInterval;
use crate::admin::clients::{ClientLimitReport, ClientStateReport, FoundClients};
use crate::admin::denials::DenialReport;
use crate::admin::operator_store::{RecordReport, WindowUsage};
use crate::cli::admin_client::percent_encoded;
use crate::cli::display::{
    StyledLine, Tone, count, rate, rates, share, short_hash, span, sparkline, time, units, used_of,
};

/// Denials that are shown.
const MAX_DENIALS: usize = 5;
/// The characters of a key that stay as they are in a path.
const KEPT_IN_PATH: &str = "=:&";

/// The name by which a client is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClientName {
    /// The word of a search: a key, a hash, an address or the id of a request.
    Word(String),
    Id(String),
}

impl ClientName {
    /// The path of the API.
    pub(super) fn path(&self) -> String {
        let (key, by) = match self {
            ClientName::Word(word) => (percent_encoded(word, KEPT_IN_PATH), ""),
            ClientName::Id(id) => (percent_encoded(id, ""), "?by=id"),
        };
        format!("/api/v1/clients/{key}{by}")
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ClientPage {
    pub(super) name: ClientName,
    pub(super) client: ClientStateReport,
    pub(super) denials: Vec<DenialReport>,
    /// The name of the selected limit; by default, the first one.
    selected: Option<String>,
}

impl ClientPage {
    pub(super) fn new(name: ClientName, client: ClientStateReport) -> ClientPage {
        ClientPage {
            name,
            client,
            denials: Vec::new(),
            selected: None,
        }
    }

    /// Takes a newer report. Keeps the old one if the client is not in it.
    pub(super) fn update(&mut self, found: FoundClients) {
        let mut clients = found.clients.into_iter();
        if let Some(client) = clients.find(|client| client.id == self.client.id) {
            self.client = client;
        }
    }

    fn row(&self) -> usize {
        let selected = self.selected.as_ref();
        let mut limits = self.client.limits.iter();
        let row = limits.position(|one| Some(&one.limit) == selected);
        row.unwrap_or(0)
    }

    pub(super) fn move_selection(&mut self, by: isize) {
        let limits = &self.client.limits;
        let next = self.row().saturating_add_signed(by);
        let next = next.min(limits.len().saturating_sub(1));
        self.selected = limits.get(next).map(|one| one.limit.clone());
    }

    /// A change of the client, for the selected limit. Without limits only a block is possible.
    pub(super) fn order(&self, kind: OrderKind) -> Result<ClientOrder, &'static str> {
        let limit = self.client.limits.get(self.row());
        let is_for_all = matches!(kind, OrderKind::Block | OrderKind::Unblock);
        if kind == OrderKind::Unblock && self.client.block.is_none() {
            return Err("the client is not blocked");
        }
        let has_override = limit.is_some_and(|one| one.r#override.is_some());
        if kind == OrderKind::RemoveOverride && !has_override {
            return Err("the client has no override in this limit");
        }
        if limit.is_none() && !is_for_all {
            return Err("no limit counts this client");
        }
        let of = ClientOfLimit {
            limit: limit.map_or_else(String::new, |one| one.limit.clone()),
            client: self.client.id.clone(),
        };
        Ok(ClientOrder::new(kind, of))
    }

    /// Draws the page. `now` is the time of the proxy.
    pub(super) fn lines(&self, now: f64, columns: usize) -> Vec<StyledLine> {
        let client = &self.client;
        let mut title = StyledLine::new(Tone::Strong, format!("client {}", client.id));
        if !client.key.is_empty() {
            title = title.with(Tone::Faint, format!("  by {}", client.key));
        }
        let mut lines = vec![title];
        if let Some(block) = &client.block {
            let word = match &block.ban {
                Some(_) => "banned",
                None => "blocked",
            };
            let text = format!("{word} {}", terms(block, now));
            lines.push(StyledLine::new(Tone::Bad, text));
        }
        lines.push(StyledLine::default());
        if client.limits.is_empty() {
            lines.push(StyledLine::new(
                Tone::Faint,
                "no limit counts this client now",
            ));
        }
        for (row, limit) in client.limits.iter().enumerate() {
            let mut part = limit_lines(limit, now, columns);
            if let Some(first) = part.first_mut() {
                first.selected = row == self.row();
            }
            lines.extend(part);
        }
        lines.push(StyledLine::default());
        lines.push(StyledLine::new(Tone::Faint, "LAST DENIALS"));
        lines.extend(self.denials.iter().take(MAX_DENIALS).map(denial_line));
        if self.denials.is_empty() {
            lines.push(StyledLine::new(
                Tone::Plain,
                "none that the proxy remembers",
            ));
        }
        lines
    }
}

/// `for 2 h, ticket 4711, by ann@desk`
fn terms(record: &RecordReport, now: f64) -> String {
    let time = match record.until {
        Some(until) => format!("for {}", span(until - now)),
        None => "until removed".to_owned(),
    };
    let author = format!("by {}", record.by);
    let parts = [(&record.reason, &record.reason), (&record.by, &author)];
    let parts = parts.into_iter().filter(|(given, _)| !given.is_empty());
    parts.fold(time, |text, (_, part)| format!("{text}, {part}"))
}

fn limit_lines(limit: &ClientLimitReport, now: f64, columns: usize) -> Vec<StyledLine> {
    let counts = &limit.counts;
    let head = StyledLine::new(Tone::Strong, &limit.limit);
    let head = head.plain(format!("  {}", rates(&limit.rates, counts)));
    let mut lines = vec![match &*limit.mode {
        "shadow" => head.with(Tone::Warn, "  shadow"),
        _ => head,
    }];
    if let Some(record) = &limit.r#override {
        let texts = record.rates.as_deref().unwrap_or_default();
        let texts: Vec<String> = texts.split(", ").map(str::to_owned).collect();
        let text = format!(
            "  override {} {}",
            rates(&texts, counts),
            terms(record, now)
        );
        lines.push(StyledLine::new(Tone::Warn, text));
    }
    lines.extend(limit.windows.iter().map(|one| window_line(one, counts)));
    lines.extend(timeline_lines(limit, columns));
    lines
}

fn window_line(window: &WindowUsage, counts: &str) -> StyledLine {
    let of = window
        .of
        .as_ref()
        .map_or(String::new(), |of| format!("{of} "));
    let all = window.used.saturating_add(window.remaining);
    let line = StyledLine::new(Tone::Faint, format!("  {of}{}", rate(&window.rate, counts)))
        .plain(format!("  used {}", used_of(window.used, all, counts)))
        .plain(format!(", {} left", units(window.remaining, counts)));
    let line = match window.retry_seconds {
        Some(seconds) if seconds > 0.0 => {
            let wait = format!(", next in {}", span(seconds.ceil()));
            line.with(Tone::Warn, wait)
        }
        _ => line,
    };
    match &window.resets_at {
        Some(end) => line.with(Tone::Faint, format!(", resets at {end}")),
        None => line,
    }
}

/// The last quarter of an hour: the share of the limit that was used, and denials.
fn timeline_lines(limit: &ClientLimitReport, columns: usize) -> Vec<StyledLine> {
    let timeline = &limit.timeline;
    let width = columns.saturating_sub(12).min(timeline.len());
    let name = |name: &str| StyledLine::new(Tone::Faint, format!("  {name:<8}"));
    let most = |best: Option<ClientInterval>, one: &ClientInterval| match best {
        Some(best) if best.used >= one.used => Some(best),
        _ => Some(*one),
    };
    let busy = timeline.iter().filter(|one| one.requests > 0);
    let Some(fullest) = busy.fold(None, most) else {
        return vec![name("15 min").plain("no request that this proxy remembers")];
    };
    // A full bar is the whole limit, not the fullest interval.
    let bars = timeline.iter().map(|one| (one.used * 1000.0) as u64);
    let bars: Vec<u64> = [1000].into_iter().chain(bars).collect();
    let used: String = sparkline(&bars, bars.len()).chars().skip(1).collect();
    let hidden = timeline.len() - width;
    let used: String = used.chars().skip(hidden).collect();
    let denied: Vec<u64> = timeline.iter().map(|one| one.denied).collect();
    let sum = |of: fn(&ClientInterval) -> u64| count(timeline.iter().map(of).sum());
    let most = used_of(fullest.used_units, fullest.units, &limit.counts);
    vec![
        name("15 min").with(Tone::Good, used),
        name("denied").with(Tone::Bad, sparkline(&denied, width)),
        name("").with(
            Tone::Faint,
            format!(
                "{} requests, {} denied; at most {}: {most}",
                sum(|one| one.requests),
                sum(|one| one.denied),
                share(fullest.used),
            ),
        ),
    ]
}

fn denial_line(denial: &DenialReport) -> StyledLine {
    let line = StyledLine::new(Tone::Faint, time(denial.at)).plain(format!(
        "  {}  {} {}",
        denial.limit, denial.method, denial.path
    ));
    let line = match &denial.door {
        Some(door) => line.plain(format!("  asked by {door}, {}", denial.route)),
        None => line,
    };
    match (denial.shadow, denial.retry_after) {
        (true, _) => line.with(Tone::Warn, "  shadow"),
        (false, Some(wait)) => line.plain(format!("  retry in {}", span(wait as f64))),
        (false, None) => line,
    }
}

/// Several clients that a search found: each limit has its own key.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ClientChoice {
    pub(super) word: String,
    pub(super) clients: Vec<ClientStateReport>,
    row: usize,
}

impl ClientChoice {
    pub(super) fn new(word: String, clients: Vec<ClientStateReport>) -> ClientChoice {
        ClientChoice {
            word,
            clients,
            row: 0,
        }
    }

    pub(super) fn move_selection(&mut self, by: isize) {
        let next = self.row.saturating_add_signed(by);
        self.row = next.min(self.clients.len().saturating_sub(1));
    }

    pub(super) fn selected(&self) -> Option<&ClientStateReport> {
        self.clients.get(self.row)
    }

    pub(super) fn lines(&self) -> Vec<StyledLine> {
        let title = format!("{} is a client of several keys", self.word);
        let mut lines = vec![StyledLine::new(Tone::Strong, title), StyledLine::default()];
        for (row, client) in self.clients.iter().enumerate() {
            let limits: Vec<&str> = client.limits.iter().map(|one| &*one.limit).collect();
            let id = short_hash(&client.id);
            let text = format!("{id}  by {}  limits: {}", client.key, limits.join(", "));
            let mut line = StyledLine::new(Tone::Plain, text);
            line.selected = row == self.row;
            lines.push(line);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::display::render_lines;
    use crate::cli::top::state::tests::state;
    use crate::cli::top::state::{Overlay, PressedKey, TopAction, TopState, View};

    const ID: &str = "CFc46O0KAAAAAAAAAAAAAA";

    fn press(state: &mut TopState, text: &str) -> Option<TopAction> {
        let keys = text.chars().map(PressedKey::Char);
        keys.map(|key| state.press(key)).last().flatten()
    }

    /// A client with a budget of tokens, an override of another limit, and a block.
    fn page() -> ClientPage {
        let timeline: Vec<_> = (0..60)
            .map(|at| match at {
                58 => json!({ "at": 870, "requests": 3, "denied": 1, "used": 0.8125,
                    "used_units": 81_250, "units": 100_000 }),
                _ => json!({ "at": at * 15, "requests": 0 }),
            })
            .collect();
        let client = json!({
            "id": ID, "key": "api_key",
            "block": { "what": "block", "id": ID, "until": 4600.0, "reason": "ticket 4711",
                "by": "ann@desk" },
            "limits": [
                { "limit": "tokens", "rates": ["100000/min"], "mode": "enforced",
                  "counts": "tokens", "timeline": timeline, "windows": [
                    { "rate": "100000/min", "used": 81_250, "remaining": 18_750,
                      "retry": "after", "retry_seconds": 2.5 }] },
                { "limit": "spend", "rates": ["20000000/d"], "mode": "shadow",
                  "counts": "money", "windows": [
                    { "of": "override", "rate": "50000000/day in UTC", "used": 1_250_000,
                      "remaining": 48_750_000, "retry": "now", "retry_seconds": 0.0,
                      "resets_at": "1970-01-02T00:00:00Z" }],
                  "override": { "what": "override", "limit": "spend", "id": ID,
                    "rates": "50000000/d" } },
            ],
        });
        let mut page = ClientPage::new(ClientName::Id(ID.to_owned()), read(&client));
        let denial = json!({ "at": 895.0, "limit": "tokens", "method": "POST", "path": "/v1/chat",
            "retry_after": 3, "door": "rls", "route": "chat" });
        page.denials = vec![read(&denial)];
        page
    }

    fn read<T: serde::de::DeserializeOwned>(value: &serde_json::Value) -> T {
        serde_json::from_value(value.clone()).unwrap()
    }

    #[test]
    fn it_shows_units_by_name_and_the_last_minutes() {
        let bars = format!("{}▇ ", " ".repeat(58));
        let denied = format!("{}█ ", " ".repeat(58));
        let expected = format!(
            "client {ID}  by api_key\n\
             blocked for 1 h, ticket 4711, by ann@desk\n\
             \n\
             tokens  100,000 tokens/min\n  \
               100,000 tokens/min  used 81,250 of 100,000 tokens, 18,750 left, next in 3 s\n  \
               15 min  {}\n  \
               denied  {}\n          \
                       3 requests, 1 denied; at most 81 %: 81,250 of 100,000 tokens\n\
             spend  20.00 money/d  shadow\n  \
               override 50.00 money/d until removed\n  \
               override 50.00 money/day in UTC  used 1.25 of 50.00 money, 48.75 left, \
               resets at 1970-01-02T00:00:00Z\n  \
               15 min  no request that this proxy remembers\n\
             \n\
             LAST DENIALS\n\
             00:14:55  tokens  POST /v1/chat  asked by rls, chat  retry in 3 s\n",
            bars.trim_end(),
            denied.trim_end()
        );
        let lines = page().lines(1000.0, 80);
        assert_eq!(render_lines(&lines, false), expected);
        let selected: Vec<bool> = lines.iter().map(|line| line.selected).collect();
        assert!(selected[3] && selected.iter().filter(|one| **one).count() == 1);
    }

    #[test]
    fn keys_change_the_selected_limit_of_the_client() {
        let mut state = state();
        state.view = View::Client(Box::new(page()));
        assert_eq!(press(&mut state, "x"), None);
        let no_override = "the client has no override in this limit";
        assert_eq!(state.note.as_deref(), Some(no_override));
        press(&mut state, "jx");
        let Some(TopAction::Change(order)) = press(&mut state, "y") else {
            panic!("{state:?}");
        };
        assert_eq!(order.path(), "/api/v1/limits/spend/override");
        assert_eq!(order.body(), json!({ "id": ID, "remove": true }));
        // The command is copied, and the question stays.
        press(&mut state, "u");
        let command = format!("tidegate limits block tag={ID} --remove -c proxy.toml");
        assert_eq!(press(&mut state, "c"), Some(TopAction::Copy(command)));
        assert!(matches!(state.overlay, Overlay::Ask(_)));
        assert!(matches!(press(&mut state, "y"), Some(TopAction::Change(_))));
        assert_eq!(
            state.press(PressedKey::Escape),
            Some(TopAction::FetchClients)
        );
        assert_eq!(state.view, View::Overview);
    }

    #[test]
    fn a_search_takes_a_word_and_leads_to_one_of_several_clients() {
        let mut state = state();
        press(&mut state, "/ip=::1q");
        assert_eq!(state.overlay, Overlay::Search("ip=::1q".to_owned()));
        state.press(PressedKey::Backspace);
        let name = ClientName::Word("ip=::1".to_owned());
        assert_eq!(name.path(), "/api/v1/clients/ip=::1");
        assert_eq!(
            state.press(PressedKey::Enter),
            Some(TopAction::OpenClient(name.clone()))
        );
        let other = ClientStateReport {
            id: "_GmL0vhuAAAAAAAAAAAAAA".to_owned(),
            ..ClientStateReport::default()
        };
        let both = vec![page().client, other];
        state.view = View::Choice(ClientChoice::new("ip=::1".to_owned(), both));
        press(&mut state, "jj");
        state.press(PressedKey::Enter);
        let View::Client(page) = &mut state.view else {
            panic!("{state:?}");
        };
        assert_eq!(
            (&*page.client.id, &page.name),
            ("_GmL0vhuAAAAAAAAAAAAAA", &name)
        );
        // Without a limit it can be blocked, and nothing else.
        assert!(page.order(OrderKind::Reset).is_err() && page.order(OrderKind::Unblock).is_err());
        assert!(page.order(OrderKind::Block).is_ok());
        // An answer without the client changes nothing.
        page.update(FoundClients::default());
        assert_eq!(page.client.id, "_GmL0vhuAAAAAAAAAAAAAA");
        let by_id = ClientName::Id("a_b".to_owned()).path();
        assert_eq!(by_id, "/api/v1/clients/a_b?by=id");
    }
}
