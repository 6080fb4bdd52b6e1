//! What `top` knows and what its user has chosen; and what keys do to that.
//!
//! Pure.

use serde_json::Value;

use crate::cli::seen::{Limit, Seen, list, text};

/// What has the user's attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Panel {
    #[default]
    Limits,
    Clients,
}

/// What limits are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Denials,
    Requests,
    Headroom,
    Name,
}

impl Sort {
    pub(super) fn word(self) -> &'static str {
        match self {
            Sort::Denials => "denials",
            Sort::Requests => "requests",
            Sort::Headroom => "headroom",
            Sort::Name => "name",
        }
    }

    fn next(self) -> Sort {
        match self {
            Sort::Denials => Sort::Requests,
            Sort::Requests => Sort::Headroom,
            Sort::Headroom => Sort::Name,
            Sort::Name => Sort::Denials,
        }
    }
}

/// One client of a limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Client {
    pub(super) id: String,
    /// Who it is, where the configuration lets that be told.
    pub(super) key: Option<String>,
    pub(super) requests: u64,
    pub(super) denied: u64,
    pub(super) share: f64,
}

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Up,
    Down,
    Left,
    Right,
    Tab,
    Enter,
    Escape,
    /// Ctrl-C, and the end of the input.
    Interrupt,
}

/// What a key asks for, beyond another picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Quit,
    /// The clients of another limit are shown.
    Clients,
    /// This limit's client is to begin anew.
    Reset(String, String),
}

/// What stands over the picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Over {
    #[default]
    Nothing,
    Help,
    /// Whether this limit's client should begin anew.
    Confirm(String, String),
}

/// See the file's head.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) seen: Seen,
    /// Why nothing newer is known.
    pub(super) trouble: Option<String>,
    pub(super) clients: Vec<Client>,
    /// Whose clients those are; a limit's name.
    pub(super) clients_of: Option<String>,
    pub(super) panel: Panel,
    pub(super) sort: Sort,
    /// A limit's name; without one, the first that is shown.
    limit: Option<String>,
    /// A client's id; without one, the first that is shown.
    client: Option<String>,
    pub(super) over: Over,
    /// What came of what was asked for last.
    pub(super) note: Option<String>,
}

impl State {
    /// The limits in the order that was asked for.
    pub(super) fn limits(&self) -> Vec<&Limit> {
        let mut limits: Vec<&Limit> = self.seen.limits.iter().collect();
        let downward = |one: f64, other: f64| other.total_cmp(&one);
        limits.sort_by(|one, other| match self.sort {
            Sort::Denials => downward(one.denied_per_second, other.denied_per_second)
                .then(other.denied.cmp(&one.denied)),
            Sort::Requests => downward(
                one.allowed_per_second + one.denied_per_second,
                other.allowed_per_second + other.denied_per_second,
            ),
            Sort::Headroom => {
                let left = |limit: &Limit| limit.headroom.unwrap_or(2.0);
                left(one).total_cmp(&left(other))
            }
            Sort::Name => one.name.cmp(&other.name),
        });
        limits
    }

    /// Where the chosen limit stands among them.
    pub(super) fn limit_at(&self, limits: &[&Limit]) -> usize {
        let mut found = limits.iter();
        let found = found.position(|limit| Some(&limit.name) == self.limit.as_ref());
        found.unwrap_or(0)
    }

    /// The chosen limit's name.
    pub(super) fn limit(&self) -> Option<String> {
        let limits = self.limits();
        limits
            .get(self.limit_at(&limits))
            .map(|limit| limit.name.clone())
    }

    /// Where the chosen client stands.
    pub(super) fn client_at(&self) -> usize {
        let mut found = self.clients.iter();
        let found = found.position(|client| Some(&client.id) == self.client.as_ref());
        found.unwrap_or(0)
    }

    /// What `GET /api/v1/limits/NAME/clients` told.
    pub(super) fn take_clients(&mut self, limit: String, told: &Value) {
        let clients = list(&told["clients"]).map(|one| Client {
            id: text(&one["id"]),
            key: one["key"].as_str().map(str::to_owned),
            requests: one["requests"].as_u64().unwrap_or(0),
            denied: one["denied"].as_u64().unwrap_or(0),
            share: one["share"].as_f64().unwrap_or(0.0),
        });
        self.clients = clients.collect();
        self.clients_of = Some(limit);
    }

    /// What a key does.
    pub(super) fn press(&mut self, key: Key) -> Option<Wish> {
        self.note = None;
        if key == Key::Interrupt {
            return Some(Wish::Quit);
        }
        match std::mem::take(&mut self.over) {
            Over::Nothing => self.act(key),
            // Any key leads back.
            Over::Help => None,
            Over::Confirm(limit, id) => match key {
                Key::Char('y' | 'Y') => Some(Wish::Reset(limit, id)),
                _ => {
                    self.note = Some("nothing was reset".to_owned());
                    None
                }
            },
        }
    }

    fn act(&mut self, key: Key) -> Option<Wish> {
        match key {
            Key::Char('q' | 'Q') => return Some(Wish::Quit),
            Key::Char('?' | 'h') => self.over = Over::Help,
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('r') => self.ask_to_reset(),
            Key::Up | Key::Char('k') => return self.go(-1),
            Key::Down | Key::Char('j') => return self.go(1),
            Key::Tab => {
                self.panel = match self.panel {
                    Panel::Limits => Panel::Clients,
                    Panel::Clients => Panel::Limits,
                };
            }
            Key::Enter | Key::Right => self.panel = Panel::Clients,
            Key::Left | Key::Escape => self.panel = Panel::Limits,
            Key::Char(_) | Key::Interrupt => {}
        }
        None
    }

    fn ask_to_reset(&mut self) {
        let client = self.clients.get(self.client_at());
        match (self.panel, client, &self.clients_of) {
            (Panel::Clients, Some(client), Some(limit)) => {
                self.over = Over::Confirm(limit.clone(), client.id.clone());
            }
            _ => self.note = Some("choose a client first: enter, then arrows".to_owned()),
        }
    }

    fn go(&mut self, by: isize) -> Option<Wish> {
        let step =
            |at: usize, many: usize| at.saturating_add_signed(by).min(many.saturating_sub(1));
        match self.panel {
            Panel::Limits => {
                let limits = self.limits();
                let next = step(self.limit_at(&limits), limits.len());
                self.limit = limits.get(next).map(|limit| limit.name.clone());
                self.client = None;
                Some(Wish::Clients)
            }
            Panel::Clients => {
                let next = step(self.client_at(), self.clients.len());
                self.client = self.clients.get(next).map(|client| client.id.clone());
                None
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// Three limits, and two clients of the one that denies most.
    pub(in crate::cli::top) fn state() -> State {
        let now = 1_795_000_000.0;
        let limit = |name: &str, allowed: u64, denied: u64, headroom: Value| {
            json!({ "name": name, "rates": ["100/min"], "key": "api_key or ip",
                "mode": "enforced", "totals": { "denied": denied * 100 },
                "per_second": { "allowed": allowed, "denied": denied }, "headroom": headroom })
        };
        let seconds: Vec<Value> = (0..60)
            .map(|at| json!({ "requests": at * 25, "denied": if at > 50 { at } else { 0 } }))
            .collect();
        let status = json!({ "version": "0.1.0", "now": now, "started_at": now - 11_520.0,
            "config": { "file": "proxy.toml" },
            "store": { "kind": "redis", "up": true, "round_trip_seconds": 0.0004 } });
        let raw = [
            json!({ "ready": true }),
            json!({ "limits": [
                limit("api", 900, 0, json!(0.5)),
                limit("login", 3, 20, json!(0.0)),
                limit("search", 40, 0, json!(0.2)),
            ]}),
            json!({ "upstreams": [{ "name": "api", "servers": [
                { "server": "http://10.0.0.1:3000", "up": true, "in_flight": 3, "idle": 12,
                  "latency_seconds": 0.0123, "requests": 99_000, "failures": 0 },
                { "server": "http://10.0.0.2:3000", "up": false, "failures": 5 },
            ]}]}),
            json!({ "rates": { "requests": 963, "denials": 20 }, "second": seconds }),
        ];
        let mut state = State {
            seen: Seen::of(status, raw),
            ..State::default()
        };
        let clients = json!({ "clients": [
            { "id": "CFc46O0KAAAAAAAAAAAAAA", "key": null, "requests": 1200, "denied": 900,
              "share": 0.75 },
            { "id": "_GmL0vhuAAAAAAAAAAAAAA", "key": "203.0.113.9", "requests": 40, "denied": 0,
              "share": 0.025 },
        ]});
        state.take_clients("login".to_owned(), &clients);
        state
    }

    #[test]
    fn a_choice_stays_with_its_limit_when_the_order_changes() {
        let mut state = state();
        assert_eq!(state.limit().as_deref(), Some("login"));
        assert_eq!(state.press(Key::Down), Some(Wish::Clients));
        assert_eq!(state.limit().as_deref(), Some("api"));
        for order in [
            ["api", "search", "login"],
            ["login", "search", "api"],
            ["api", "login", "search"],
        ] {
            assert_eq!(state.press(Key::Char('s')), None);
            let names: Vec<&str> = state.limits().iter().map(|one| one.name.as_str()).collect();
            assert_eq!(names, order);
            assert_eq!(state.limit().as_deref(), Some("api"));
        }
        for _ in 0..9 {
            state.press(Key::Down);
        }
        assert_eq!(state.limit().as_deref(), Some("search"));
        for _ in 0..9 {
            state.press(Key::Char('k'));
        }
        assert_eq!(state.limit().as_deref(), Some("api"));
    }

    #[test]
    fn a_client_is_reset_when_that_was_confirmed_and_not_else() {
        let mut state = state();
        state.press(Key::Char('r'));
        assert_eq!(state.over, Over::Nothing);
        assert!(state.note.is_some());
        state.press(Key::Enter);
        state.press(Key::Down);
        state.press(Key::Char('r'));
        assert_eq!(state.press(Key::Char('n')), None);
        state.press(Key::Char('r'));
        let wish = state.press(Key::Char('y'));
        let reset = Wish::Reset("login".to_owned(), "_GmL0vhuAAAAAAAAAAAAAA".to_owned());
        assert_eq!(wish, Some(reset));
        assert_eq!(state.press(Key::Char('q')), Some(Wish::Quit));
        state.press(Key::Char('?'));
        // What is asked for from the help is nothing but the way back; to leave always works.
        assert_eq!(state.press(Key::Char('q')), None);
        state.press(Key::Char('?'));
        assert_eq!(state.press(Key::Interrupt), Some(Wish::Quit));
    }

    #[test]
    fn nothing_to_choose_from_is_no_harm() {
        let mut state = State::default();
        for key in [
            Key::Down,
            Key::Enter,
            Key::Down,
            Key::Char('r'),
            Key::Tab,
            Key::Up,
        ] {
            state.press(key);
        }
        assert_eq!((state.limit(), state.client_at()), (None, 0));
    }
}
