//! `tidegate top`: the running proxy, once a second, on a terminal.
//!
//! ```text
//! state     what is known, what the user has chosen, and what keys do to that
//! frame     the picture of it
//! terminal  where it is shown, and where keys come from
//! ```

mod frame;
mod state;
mod terminal;

use std::io::Write;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::admin_client::{AdminArgs, AdminClient, Failed, runtime};
use super::seen::Seen;
use super::trouble::Trouble;
use super::{colour, ink};
use frame::{Size, frame};
use state::{Key, State, Wish};
use terminal::Terminal;

/// How often it looks.
const EVERY: Duration = Duration::from_secs(1);
/// Clients of a limit that are asked for.
const CLIENTS: usize = 50;

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Print one picture as text and end; so it does without a terminal too.
    #[arg(long)]
    once: bool,
    /// A line of JSON each second.
    #[arg(long)]
    json: bool,
}

/// Returns the exit code.
pub(super) fn top(args: &TopArgs) -> u8 {
    match show(args) {
        Ok(()) => 0,
        Err(trouble) => trouble.say(),
    }
}

fn show(args: &TopArgs) -> Result<(), Trouble> {
    let client = AdminClient::of(&args.admin)?;
    runtime()?.block_on(async {
        // Whoever names a wrong address is told so, and not shown an empty picture.
        let seen = Seen::look(&client).await;
        let mut state = State::default();
        state.seen = seen.map_err(|failed| client.trouble(&failed))?;
        if args.json {
            return stream(&client, state, args.once).await;
        }
        look_at_clients(&client, &mut state).await;
        if args.once || !terminal::is_there() {
            let out = std::io::stdout();
            let text = ink::text(&whole(&state), colour(&out));
            // Nobody to tell where standard output is closed.
            let _ = (&out).write_all(text.as_bytes());
            return Ok(());
        }
        let shown = live(&client, state).await;
        shown.map_err(|error| Trouble::failed(format!("the terminal: {error}")))
    })
}

/// A picture that has room for everything.
fn whole(state: &State) -> Vec<ink::Line> {
    let rows = state.seen.limits.len() + state.clients.len() + state.seen.servers.len();
    let size = Size {
        columns: terminal::size().columns.max(80),
        rows: rows + 12,
    };
    let mut lines = frame(state, size);
    // Which keys there are is of no use to whoever cannot press them.
    lines.pop();
    while lines.last().is_some_and(|line| line.width() == 0) {
        lines.pop();
    }
    for line in &mut lines {
        line.chosen = false;
    }
    lines
}

fn ticks() -> Interval {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Until nobody reads.
async fn stream(client: &AdminClient, mut state: State, once: bool) -> Result<(), Trouble> {
    let mut ticks = ticks();
    ticks.tick().await;
    loop {
        let line = match &state.trouble {
            None => state.seen.json(),
            Some(trouble) => json!({ "error": trouble }),
        };
        let written = writeln!(std::io::stdout(), "{line}");
        if written.and_then(|()| std::io::stdout().flush()).is_err() || once {
            return Ok(());
        }
        ticks.tick().await;
        look(client, &mut state).await;
    }
}

/// Until the user has seen enough.
async fn live(client: &AdminClient, mut state: State) -> std::io::Result<()> {
    let mut end = Ends::new()?;
    let mut resized = signal(SignalKind::window_change())?;
    let terminal = Terminal::take(colour(&std::io::stdout()))?;
    let mut keys = terminal::keys()?;
    let mut ticks = ticks();
    ticks.tick().await;
    loop {
        terminal.draw(&frame(&state, terminal::size()))?;
        let wish = tokio::select! {
            key = keys.recv() => press(&mut state, key, &mut keys),
            _ = ticks.tick() => {
                look(client, &mut state).await;
                look_at_clients(client, &mut state).await;
                None
            }
            _ = resized.recv() => None,
            () = end.came() => Some(Wish::Quit),
        };
        match wish {
            None => {}
            Some(Wish::Quit) => return Ok(()),
            Some(Wish::Clients) => look_at_clients(client, &mut state).await,
            Some(Wish::Reset(limit, id)) => {
                state.note = Some(reset(client, &limit, &id).await);
                look_at_clients(client, &mut state).await;
            }
        }
    }
}

/// All keys that have come, so that a held one does not ask for each step's clients.
fn press(state: &mut State, key: Option<Key>, keys: &mut UnboundedReceiver<Key>) -> Option<Wish> {
    let mut wish = state.press(key.unwrap_or(Key::Interrupt));
    while matches!(wish, None | Some(Wish::Clients)) {
        let Ok(key) = keys.try_recv() else { break };
        wish = state.press(key).or(wish);
    }
    wish
}

async fn look(client: &AdminClient, state: &mut State) {
    match Seen::look(client).await {
        Ok(seen) => (state.seen, state.trouble) = (seen, None),
        Err(failed) => state.trouble = Some(failed.words()),
    }
}

async fn look_at_clients(client: &AdminClient, state: &mut State) {
    let Some(limit) = state.limit() else {
        (state.clients, state.clients_of) = (Vec::new(), None);
        return;
    };
    let path = format!("/api/v1/limits/{limit}/clients?top={CLIENTS}");
    // A proxy that does not tell has none to show.
    let told = client.get(&path).await.unwrap_or(Value::Null);
    state.take_clients(limit, &told);
}

async fn reset(client: &AdminClient, limit: &str, id: &str) -> String {
    let path = format!("/api/v1/limits/{limit}/reset");
    match client.post(&path, &json!({ "id": id })).await {
        Ok(_) => format!("{} begins anew in {limit}", id.get(..8).unwrap_or(id)),
        Err(Failed::Refused(404, _)) => "this proxy cannot reset clients".to_owned(),
        Err(failed) => format!("not reset: {}", failed.words()),
    }
}

/// What ends a command from outside.
struct Ends([tokio::signal::unix::Signal; 3]);

impl Ends {
    fn new() -> std::io::Result<Ends> {
        Ok(Ends([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    async fn came(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
