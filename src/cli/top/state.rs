//! The state of `top`: the last snapshot, what the user selected, and how keys change that. Pure.

use super::client_page::{ClientChoice, ClientName, ClientPage};
use super::order::{ClientOfLimit, ClientOrder, OrderKind};
use super::promotion_page::PromotionPage;
use crate::admin::limits::{ClientReport, LimitState};
use crate::admin::operator_store::RecordReport;
use crate::cli::proxy_snapshot::{ProxySnapshot, denials};

/// Characters of a search.
const MAX_WORD: usize = 300;

/// The table that arrow keys move in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Panel {
    #[default]
    Limits,
    Clients,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Denials,
    Requests,
    Headroom,
    Name,
}

impl Sort {
    const ALL: [Sort; 4] = [Sort::Denials, Sort::Requests, Sort::Headroom, Sort::Name];

    pub(super) fn word(self) -> &'static str {
        ["denials", "requests", "headroom", "name"][self as usize]
    }

    fn next(self) -> Sort {
        Sort::ALL[(self as usize + 1) % Sort::ALL.len()]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PressedKey {
    Char(char),
    Up,
    Down,
    Left,
    Right,
    Tab,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C, and the end of the input.
    Interrupt,
}

/// A request of the user, besides a redraw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TopAction {
    Quit,
    /// Fetch the clients of another limit, or the client whose page is shown.
    FetchClients,
    OpenClient(ClientName),
    /// Fetch the patches that enforce this limit.
    OpenPromotion(String),
    Change(ClientOrder),
    /// Send a text to the clipboard of the terminal.
    Copy(String),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum View {
    #[default]
    Overview,
    Client(Box<ClientPage>),
    Choice(ClientChoice),
    Promotion(PromotionPage),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Overlay {
    #[default]
    Nothing,
    Help,
    /// The word that names a client, as far as it is typed.
    Search(String),
    /// Its questions, and at last whether to do it.
    Ask(ClientOrder),
}

#[derive(Clone, Debug, Default)]
pub(super) struct TopState {
    /// The address of the admin.
    pub(super) admin: String,
    pub(super) snapshot: ProxySnapshot,
    /// Why there is no newer snapshot.
    pub(super) failure: Option<String>,
    pub(super) clients: Vec<ClientReport>,
    /// The limit of those clients.
    pub(super) clients_of: Option<String>,
    /// The banned clients.
    pub(super) bans: Vec<RecordReport>,
    pub(super) panel: Panel,
    pub(super) sort: Sort,
    /// The name of the selected limit; by default, the first row.
    selected_limit: Option<String>,
    /// The id of the selected client; by default, the first row.
    selected_client: Option<String>,
    pub(super) view: View,
    pub(super) overlay: Overlay,
    pub(super) note: Option<String>,
}

impl TopState {
    pub(super) fn sorted_limits(&self) -> Vec<&LimitState> {
        let mut limits: Vec<&LimitState> = self.snapshot.limits.iter().collect();
        let denied = |limit: &LimitState| (limit.per_second.denied, denials(limit));
        let requests = |limit: &LimitState| limit.per_second.allowed + limit.per_second.denied;
        limits.sort_by(|one, other| match self.sort {
            Sort::Denials => denied(other).cmp(&denied(one)),
            Sort::Requests => requests(other).cmp(&requests(one)),
            Sort::Headroom => {
                let left = |limit: &LimitState| limit.headroom.unwrap_or(2.0);
                left(one).total_cmp(&left(other))
            }
            Sort::Name => one.name.cmp(&other.name),
        });
        limits
    }

    pub(super) fn limit_row(&self, limits: &[&LimitState]) -> usize {
        let selected = self.selected_limit.as_ref();
        let row = limits
            .iter()
            .position(|limit| Some(&limit.name) == selected);
        row.unwrap_or(0)
    }

    pub(super) fn selected_limit(&self) -> Option<String> {
        let limits = self.sorted_limits();
        let limit = limits.get(self.limit_row(&limits))?;
        Some(limit.name.clone())
    }

    pub(super) fn client_row(&self) -> usize {
        let selected = self.selected_client.as_ref();
        let mut clients = self.clients.iter();
        let row = clients.position(|client| Some(&client.id) == selected);
        row.unwrap_or(0)
    }

    pub(super) fn press(&mut self, key: PressedKey) -> Option<TopAction> {
        self.note = None;
        if key == PressedKey::Interrupt {
            return Some(TopAction::Quit);
        }
        match std::mem::take(&mut self.overlay) {
            Overlay::Nothing => self.act(key),
            // Any key closes it.
            Overlay::Help => None,
            Overlay::Search(word) => self.search(word, key),
            Overlay::Ask(order) => self.answer(order, key),
        }
    }

    fn search(&mut self, mut word: String, key: PressedKey) -> Option<TopAction> {
        match key {
            PressedKey::Escape => return None,
            PressedKey::Enter if !word.trim().is_empty() => {
                let word = ClientName::Word(word.trim().to_owned());
                return Some(TopAction::OpenClient(word));
            }
            PressedKey::Char(character) if word.len() < MAX_WORD => word.push(character),
            PressedKey::Backspace => drop(word.pop()),
            _ => {}
        }
        self.overlay = Overlay::Search(word);
        None
    }

    fn answer(&mut self, mut order: ClientOrder, key: PressedKey) -> Option<TopAction> {
        let is_complete = order.is_complete();
        match key {
            PressedKey::Char('y' | 'Y') if is_complete => return Some(TopAction::Change(order)),
            PressedKey::Char('c') if is_complete => {
                let command = self.command(&order);
                self.overlay = Overlay::Ask(order);
                return Some(TopAction::Copy(command));
            }
            _ if is_complete || key == PressedKey::Escape => {
                self.note = Some(order.cancelled().to_owned());
            }
            _ => {
                match key {
                    PressedKey::Char(character) => order.push(character),
                    PressedKey::Backspace => order.pop(),
                    PressedKey::Enter => order.answer(),
                    _ => {}
                }
                self.overlay = Overlay::Ask(order);
            }
        }
        None
    }

    /// The command that does the same as an order.
    pub(super) fn command(&self, order: &ClientOrder) -> String {
        let config = &self.snapshot.status.config;
        let admin = Some(&*self.admin).filter(|_| !config.names_admin);
        order.command(config.file.as_deref(), admin)
    }

    fn act(&mut self, key: PressedKey) -> Option<TopAction> {
        match (key, &mut self.view) {
            (PressedKey::Char('q' | 'Q'), _) => return Some(TopAction::Quit),
            (PressedKey::Char('?' | 'h'), _) => self.overlay = Overlay::Help,
            (PressedKey::Char('/'), _) => self.overlay = Overlay::Search(String::new()),
            (PressedKey::Char(letter), View::Overview | View::Client(_))
                if order_kind(letter).is_some() =>
            {
                if let Some(kind) = order_kind(letter) {
                    self.confirm_order(kind);
                }
            }
            (_, View::Overview) => return self.act_in_overview(key),
            (PressedKey::Escape | PressedKey::Left, _) => {
                self.view = View::Overview;
                return Some(TopAction::FetchClients);
            }
            (PressedKey::Up | PressedKey::Char('k'), view) => view.move_selection(-1),
            (PressedKey::Down | PressedKey::Char('j'), view) => view.move_selection(1),
            (PressedKey::Enter | PressedKey::Right, View::Choice(choice)) => {
                let client = choice.selected()?.clone();
                let name = ClientName::Word(choice.word.clone());
                self.view = View::Client(Box::new(ClientPage::new(name, client)));
                return Some(TopAction::FetchClients);
            }
            (PressedKey::Tab, View::Promotion(page)) => page.show_next(),
            (PressedKey::Char('c'), View::Promotion(page)) => {
                return page.patch().map(|patch| TopAction::Copy(patch.to_owned()));
            }
            _ => {}
        }
        None
    }

    fn act_in_overview(&mut self, key: PressedKey) -> Option<TopAction> {
        match key {
            PressedKey::Char('s') => self.sort = self.sort.next(),
            PressedKey::Char('p') => return self.promote(),
            PressedKey::Up | PressedKey::Char('k') => return self.move_selection(-1),
            PressedKey::Down | PressedKey::Char('j') => return self.move_selection(1),
            PressedKey::Tab => {
                self.panel = match self.panel {
                    Panel::Limits => Panel::Clients,
                    Panel::Clients => Panel::Limits,
                };
            }
            PressedKey::Enter | PressedKey::Right if self.panel == Panel::Clients => {
                let client = self.clients.get(self.client_row())?;
                return Some(TopAction::OpenClient(ClientName::Id(client.id.clone())));
            }
            PressedKey::Enter | PressedKey::Right => self.panel = Panel::Clients,
            PressedKey::Left | PressedKey::Escape => self.panel = Panel::Limits,
            PressedKey::Char(_) | PressedKey::Backspace | PressedKey::Interrupt => {}
        }
        None
    }

    /// Opens the patches of the selected limit.
    fn promote(&mut self) -> Option<TopAction> {
        let limits = self.sorted_limits();
        let limit = limits.get(self.limit_row(&limits))?;
        if limit.mode == "shadow" || limit.candidate.is_some() {
            return Some(TopAction::OpenPromotion(limit.name.clone()));
        }
        self.note = Some(format!("{} is enforced, and has no candidate", limit.name));
        None
    }

    fn confirm_order(&mut self, kind: OrderKind) {
        let order = match &self.view {
            View::Client(page) => page.order(kind),
            _ => self.order_of_selected(kind),
        };
        match order {
            Ok(order) => self.overlay = Overlay::Ask(order),
            Err(why) => self.note = Some(why.to_owned()),
        }
    }

    fn order_of_selected(&self, kind: OrderKind) -> Result<ClientOrder, &'static str> {
        let client = self.clients.get(self.client_row());
        match (self.panel, client, &self.clients_of) {
            (Panel::Clients, Some(client), Some(limit)) => {
                let of = ClientOfLimit {
                    limit: limit.clone(),
                    client: client.id.clone(),
                };
                Ok(ClientOrder::new(kind, of))
            }
            _ => Err("select a client first: enter, then arrows"),
        }
    }

    fn move_selection(&mut self, by: isize) -> Option<TopAction> {
        let step = |row: usize, rows: usize| {
            let next = row.saturating_add_signed(by);
            next.min(rows.saturating_sub(1))
        };
        match self.panel {
            Panel::Limits => {
                let limits = self.sorted_limits();
                let next = step(self.limit_row(&limits), limits.len());
                self.selected_limit = limits.get(next).map(|limit| limit.name.clone());
                self.selected_client = None;
                Some(TopAction::FetchClients)
            }
            Panel::Clients => {
                let next = step(self.client_row(), self.clients.len());
                self.selected_client = self.clients.get(next).map(|client| client.id.clone());
                None
            }
        }
    }
}

impl View {
    fn move_selection(&mut self, by: isize) {
        match self {
            View::Overview => {}
            View::Client(page) => page.move_selection(by),
            View::Choice(choice) => choice.move_selection(by),
            View::Promotion(page) => page.scroll_by(by),
        }
    }
}

/// The change of a client that a key begins.
fn order_kind(letter: char) -> Option<OrderKind> {
    Some(match letter {
        'r' => OrderKind::Reset,
        'o' => OrderKind::Override,
        'x' => OrderKind::RemoveOverride,
        'b' => OrderKind::Block,
        'u' => OrderKind::Unblock,
        _ => return None,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::admin::limits::ClientsReport;
    use crate::cli::proxy_snapshot::read_or_default;

    /// Three limits, and two clients of the one that denies most.
    pub(in crate::cli::top) fn state() -> TopState {
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
        let mut state = TopState {
            snapshot: ProxySnapshot::new(status, raw),
            ..TopState::default()
        };
        let clients = json!({ "clients": [
            { "id": "CFc46O0KAAAAAAAAAAAAAA", "key": null, "requests": 1200, "denied": 900,
              "used": 5, "units": 100, "share": 0.75 },
            { "id": "_GmL0vhuAAAAAAAAAAAAAA", "key": "203.0.113.9", "requests": 40, "denied": 0,
              "share": 0.025 },
        ]});
        state.clients = read_or_default::<ClientsReport>(&clients).clients;
        state.clients_of = Some("login".to_owned());
        state
    }

    #[test]
    fn a_choice_stays_with_its_limit_when_the_order_changes() {
        let mut state = state();
        assert_eq!(state.selected_limit().as_deref(), Some("login"));
        assert_eq!(state.press(PressedKey::Down), Some(TopAction::FetchClients));
        assert_eq!(state.selected_limit().as_deref(), Some("api"));
        for order in [
            ["api", "search", "login"],
            ["login", "search", "api"],
            ["api", "login", "search"],
        ] {
            assert_eq!(state.press(PressedKey::Char('s')), None);
            let names: Vec<&str> = state
                .sorted_limits()
                .iter()
                .map(|one| one.name.as_str())
                .collect();
            assert_eq!(names, order);
            assert_eq!(state.selected_limit().as_deref(), Some("api"));
        }
        for _ in 0..9 {
            state.press(PressedKey::Down);
        }
        assert_eq!(state.selected_limit().as_deref(), Some("search"));
        for _ in 0..9 {
            state.press(PressedKey::Char('k'));
        }
        assert_eq!(state.selected_limit().as_deref(), Some("api"));
    }

    #[test]
    fn a_client_is_reset_when_that_was_confirmed_and_not_else() {
        let mut state = state();
        state.press(PressedKey::Char('r'));
        assert_eq!(state.overlay, Overlay::Nothing);
        assert!(state.note.is_some());
        state.press(PressedKey::Enter);
        state.press(PressedKey::Down);
        state.press(PressedKey::Char('r'));
        assert_eq!(state.press(PressedKey::Char('n')), None);
        state.press(PressedKey::Char('r'));
        let wish = state.press(PressedKey::Char('y'));
        let of = ClientOfLimit {
            limit: "login".to_owned(),
            client: "_GmL0vhuAAAAAAAAAAAAAA".to_owned(),
        };
        let reset = ClientOrder::new(OrderKind::Reset, of);
        assert_eq!(wish, Some(TopAction::Change(reset)));
        // While it asks, letters are text; escape ends it.
        state.press(PressedKey::Char('b'));
        assert_eq!(state.press(PressedKey::Char('q')), None);
        assert!(matches!(state.overlay, Overlay::Ask(_)));
        state.press(PressedKey::Escape);
        assert_eq!(state.overlay, Overlay::Nothing);
        assert_eq!(state.press(PressedKey::Char('q')), Some(TopAction::Quit));
        state.press(PressedKey::Char('?'));
        // A key closes the help and does nothing else, except Ctrl-C.
        assert_eq!(state.press(PressedKey::Char('q')), None);
        state.press(PressedKey::Char('?'));
        assert_eq!(state.press(PressedKey::Interrupt), Some(TopAction::Quit));
    }

    #[test]
    fn nothing_to_choose_from_is_no_harm() {
        let mut state = TopState::default();
        for key in [
            PressedKey::Down,
            PressedKey::Enter,
            PressedKey::Down,
            PressedKey::Char('r'),
            PressedKey::Tab,
            PressedKey::Up,
        ] {
            state.press(key);
        }
        assert_eq!((state.selected_limit(), state.client_row()), (None, 0));
    }
}
