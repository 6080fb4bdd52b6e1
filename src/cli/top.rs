//! `tidegate top`: the running proxy, once a second, on a terminal.
//!
//! ```text
//! order           a change of one client: its questions, its request and its command
//! client_page     one client: its usage, its last minutes and its denials
//! promotion_page  the patches that enforce a limit
//! state           the last snapshot, the selection, and what keys change
//! frame           the picture of that state
//! terminal        draws pictures and reads keys
//! ```

mod bans;
mod client_page;
mod frame;
mod order;
mod promotion_page;
mod state;
mod terminal;

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::admin_client::{AdminArgs, AdminClient, percent_encoded, runtime};
use super::display::{StyledLine, render_lines};
use super::output::{CommandError, print, print_next, use_colour};
use super::proxy_snapshot::{ProxySnapshot, read_or_default};
use crate::admin::clients::FoundClients;
use crate::admin::denials::DenialList;
use crate::admin::limits::ClientsReport;
use crate::admin::operator_store::RecordReport;
use client_page::{ClientChoice, ClientName, ClientPage};
use frame::{ScreenSize, frame, table_columns};
use order::ClientOrder;
use promotion_page::PromotionPage;
use state::{PressedKey, TopAction, TopState, View};
use terminal::Terminal;

const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Clients of a limit, at most.
const MAX_CLIENTS: usize = 50;

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Print one picture as text and end, as without a terminal.
    #[arg(long)]
    once: bool,
    /// Print a line of JSON each second.
    #[arg(long)]
    json: bool,
}

pub(super) fn top(args: &TopArgs) -> Result<u8, CommandError> {
    let client = AdminClient::new(&args.admin)?;
    runtime()?.block_on(async {
        // If the address is wrong, the command fails, instead of showing an empty picture.
        let snapshot = ProxySnapshot::fetch(&client).await;
        let mut state = TopState::default();
        state.admin.clone_from(&client.authority);
        state.snapshot = snapshot.map_err(|failure| client.error(&failure))?;
        if args.json {
            print_json(&client, state, args.once).await?;
            return Ok(0);
        }
        fetch_clients(&client, &mut state).await;
        if args.once || !terminal::is_interactive() {
            let colour = use_colour(&std::io::stdout());
            print(render_lines(&whole_picture(&state), colour))?;
            return Ok(0);
        }
        let shown = show(&client, state).await;
        shown.map_err(|error| CommandError::failed(format!("the terminal: {error}")))?;
        Ok(0)
    })
}

/// A picture with room for all rows, without the line that lists the keys.
fn whole_picture(state: &TopState) -> Vec<StyledLine> {
    let snapshot = &state.snapshot;
    let servers: usize = snapshot.upstreams.iter().map(|one| one.servers.len()).sum();
    let rows = snapshot.limits.len() + state.clients.len() + servers;
    let columns = match std::io::stdout().is_terminal() {
        true => terminal::size().columns,
        false => table_columns(state),
    };
    let size = ScreenSize {
        columns: columns.max(80),
        rows: rows + bans::lines(&state.bans, 0.0).len() + 12,
    };
    let mut lines = frame(state, size);
    lines.pop();
    while lines.last().is_some_and(|line| line.width() == 0) {
        lines.pop();
    }
    for line in &mut lines {
        line.selected = false;
    }
    lines
}

/// Ticks, the first of which is one interval from now.
async fn refresh_ticks() -> Interval {
    let mut ticks = interval(REFRESH_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    ticks
}

/// Prints a line on each tick until standard output is closed.
async fn print_json(
    client: &AdminClient,
    mut state: TopState,
    once: bool,
) -> Result<(), CommandError> {
    let mut ticks = refresh_ticks().await;
    loop {
        let line = match &state.failure {
            None => state.snapshot.json.clone(),
            Some(failure) => json!({ "error": failure }),
        };
        if !print_next(format!("{line}\n"))? || once {
            return Ok(());
        }
        ticks.tick().await;
        refresh(client, &mut state).await;
    }
}

/// Shows pictures until the user quits.
async fn show(client: &AdminClient, mut state: TopState) -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut resized = signal(SignalKind::window_change())?;
    let terminal = Terminal::enter(use_colour(&std::io::stdout()))?;
    let mut keys = terminal::read_keys()?;
    let mut ticks = refresh_ticks().await;
    loop {
        terminal.draw(&frame(&state, terminal::size()))?;
        let action = tokio::select! {
            key = keys.recv() => press_all(&mut state, key, &mut keys),
            _ = ticks.tick() => {
                refresh(client, &mut state).await;
                Some(TopAction::FetchClients)
            }
            _ = resized.recv() => None,
            _ = interrupt.recv() => Some(TopAction::Quit),
            _ = terminate.recv() => Some(TopAction::Quit),
            _ = hangup.recv() => Some(TopAction::Quit),
        };
        match action {
            None => {}
            Some(TopAction::Quit) => return Ok(()),
            Some(TopAction::Copy(text)) => {
                terminal.copy(&text)?;
                state.note = Some("sent to the clipboard of the terminal".to_owned());
            }
            Some(action) => follow(client, &mut state, action).await,
        }
    }
}

/// Handles all keys that have arrived: a key that is held down fetches clients only once.
fn press_all(
    state: &mut TopState,
    key: Option<PressedKey>,
    keys: &mut UnboundedReceiver<PressedKey>,
) -> Option<TopAction> {
    let mut action = state.press(key.unwrap_or(PressedKey::Interrupt));
    while matches!(action, None | Some(TopAction::FetchClients)) {
        let Ok(key) = keys.try_recv() else { break };
        action = state.press(key).or(action);
    }
    action
}

/// Sends the requests that an action needs, and shows the answers.
async fn follow(client: &AdminClient, state: &mut TopState, action: TopAction) {
    match action {
        TopAction::FetchClients => fetch(client, state).await,
        TopAction::OpenClient(name) => open_client(client, state, name).await,
        TopAction::OpenPromotion(limit) => open_promotion(client, state, limit).await,
        TopAction::Change(order) => {
            state.note = Some(change(client, &order).await);
            fetch(client, state).await;
        }
        TopAction::Quit | TopAction::Copy(_) => {}
    }
}

/// Fetches the clients that the view shows.
async fn fetch(client: &AdminClient, state: &mut TopState) {
    match &mut state.view {
        View::Client(page) => fetch_page(client, page).await,
        View::Overview => fetch_clients(client, state).await,
        View::Choice(_) | View::Promotion(_) => {}
    }
}

/// Fetches a client again. The page keeps what a failed request would replace.
async fn fetch_page(client: &AdminClient, page: &mut ClientPage) {
    if let Ok(answer) = client.get(&page.name.path()).await {
        page.update(read_or_default(&answer));
    }
    let id = percent_encoded(&page.client.id, "");
    if let Ok(answer) = client.get(&format!("/api/v1/denials?key={id}")).await {
        page.denials = read_or_default::<DenialList>(&answer).denials;
    }
}

async fn open_client(client: &AdminClient, state: &mut TopState, name: ClientName) {
    let mut found = match client.get(&name.path()).await {
        Ok(answer) => read_or_default::<FoundClients>(&answer).clients,
        Err(failure) => {
            state.note = Some(failure.to_string());
            return;
        }
    };
    match (found.len(), name) {
        (0, _) => state.note = Some("no such client is known".to_owned()),
        (2.., ClientName::Word(word)) => {
            state.view = View::Choice(ClientChoice::new(word, found));
        }
        (_, name) => {
            let mut page = ClientPage::new(name, found.swap_remove(0));
            fetch_page(client, &mut page).await;
            state.view = View::Client(Box::new(page));
        }
    }
}

async fn open_promotion(client: &AdminClient, state: &mut TopState, limit: String) {
    let path = format!("/api/v1/limits/{}/promotions", percent_encoded(&limit, ""));
    match client.get(&path).await {
        Ok(answer) => {
            let page = PromotionPage::new(limit, read_or_default(&answer));
            state.view = View::Promotion(page);
        }
        Err(failure) => state.note = Some(failure.to_string()),
    }
}

async fn refresh(client: &AdminClient, state: &mut TopState) {
    match ProxySnapshot::fetch(client).await {
        Ok(snapshot) => (state.snapshot, state.failure) = (snapshot, None),
        Err(failure) => state.failure = Some(failure.to_string()),
    }
}

async fn fetch_bans(client: &AdminClient, state: &mut TopState) {
    if state.snapshot.status.store.banned.unwrap_or(0) == 0 {
        return state.bans.clear();
    }
    if let Ok(mut answer) = client.get("/api/v1/overrides").await {
        let records = answer["overrides"].take();
        state.bans = bans::of_records(read_or_default::<Vec<RecordReport>>(&records));
    }
}

async fn fetch_clients(client: &AdminClient, state: &mut TopState) {
    fetch_bans(client, state).await;
    let Some(limit) = state.selected_limit() else {
        (state.clients, state.clients_of) = (Vec::new(), None);
        return;
    };
    let path = format!("/api/v1/limits/{limit}/clients?top={MAX_CLIENTS}");
    // A proxy that does not report clients has none to show.
    let answer = client.get(&path).await.unwrap_or(Value::Null);
    state.clients = read_or_default::<ClientsReport>(&answer).clients;
    state.clients_of = Some(limit);
}

async fn change(client: &AdminClient, order: &ClientOrder) -> String {
    match client.post(&order.path(), &order.body()).await {
        Ok(_) => order.done(),
        Err(failure) => format!("not done: {failure}"),
    }
}
