//! Draws `top`. Pure: returns exactly as many lines as the screen has rows, none wider than the
//! screen.

use super::bans;
use super::state::{Overlay, Panel, TopState, View};
use crate::admin::limits::ClientReport;
use crate::cli::display::{
    StyledLine, StyledSpan, Tone, count, latency, share, short_hash, sparkline, table, used_of,
};
use crate::cli::proxy_snapshot::{count_cell, limit_table, server_table};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScreenSize {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// Columns beside a sparkline: the name before it, the numbers after it.
const BESIDE_SPARKLINE: usize = 38;

pub(super) fn frame(state: &TopState, size: ScreenSize) -> Vec<StyledLine> {
    let bottom = bottom_lines(state, size);
    let body_rows = size.rows.saturating_sub(bottom.len());
    let mut lines = vec![head_line(state, size.columns), store_line(state)];
    match (&state.overlay, page_lines(state, size.columns)) {
        (Overlay::Help, _) => {
            lines.push(StyledLine::default());
            lines.extend(help_lines());
        }
        (_, Some(page)) => {
            lines.push(StyledLine::default());
            lines.extend(scroll_page(page, body_rows.saturating_sub(lines.len())));
        }
        (_, None) => {
            lines.extend(traffic_lines(state, size.columns));
            lines.extend(bans::lines(&state.bans, state.snapshot.status.now));
            lines.extend(panels(state, body_rows.saturating_sub(lines.len())));
        }
    }
    lines.resize(body_rows, StyledLine::default());
    lines.extend(bottom);
    lines.truncate(size.rows);
    let fit = |line: StyledLine| match line.selected {
        true => line.pad_to(size.columns).truncate_to(size.columns),
        false => line.truncate_to(size.columns),
    };
    lines.into_iter().map(fit).collect()
}

/// The columns that the overview needs to show its tables whole.
pub(super) fn table_columns(state: &TopState) -> usize {
    let bans = bans::lines(&state.bans, state.snapshot.status.now);
    let lines = panels(state, usize::MAX).into_iter().chain(bans);
    lines.map(|line| line.width()).max().unwrap_or(0)
}

/// The page that is shown in place of the overview.
fn page_lines(state: &TopState, columns: usize) -> Option<Vec<StyledLine>> {
    match &state.view {
        View::Overview => None,
        View::Client(page) => Some(page.lines(state.snapshot.status.now, columns)),
        View::Choice(choice) => Some(choice.lines()),
        View::Promotion(page) => Some(page.visible_lines()),
    }
}

/// As many lines of a page as fit. The selected one and those after it come before the others.
fn scroll_page(lines: Vec<StyledLine>, rows: usize) -> Vec<StyledLine> {
    let selected = lines.iter().position(|line| line.selected).unwrap_or(0);
    let most = lines.len().saturating_sub(rows);
    let skipped = match selected < rows / 2 {
        true => 0,
        false => selected.min(most),
    };
    lines.into_iter().skip(skipped).take(rows).collect()
}

fn head_line(state: &TopState, columns: usize) -> StyledLine {
    let (snapshot, status) = (&state.snapshot, &state.snapshot.status);
    let version = format!("tidegate {}", status.version);
    let line = StyledLine::new(Tone::Strong, version).plain("  ");
    let line = match (&state.failure, snapshot.reasons.join(", ").as_str()) {
        (Some(failure), _) => line.with(Tone::Bad, format!("no answer: {failure}")),
        (None, "") => line.with(Tone::Good, "ready"),
        (None, reasons) => line.with(Tone::Bad, format!("not ready: {reasons}")),
    };
    if status.started_at == 0.0 {
        return line;
    }
    let file = status.config.file.as_deref().unwrap_or_default();
    let right = format!("{file}  up {}", snapshot.since(status.started_at));
    let space = columns.saturating_sub(right.chars().count());
    match line.width() < space {
        true => line.pad_to(space).with(Tone::Faint, right),
        false => line,
    }
}

fn store_line(state: &TopState) -> StyledLine {
    let store = &state.snapshot.status.store;
    let line = StyledLine::new(Tone::Faint, "store     ").plain(&store.kind);
    if store.degraded {
        let away = state
            .snapshot
            .since(store.since.unwrap_or(state.snapshot.status.now));
        let consequence = state.snapshot.without_store();
        return line.with(Tone::Warn, format!("  AWAY for {away}: {consequence}"));
    }
    match store.round_trip_seconds {
        Some(seconds) => line.plain(format!("  {}", latency(seconds))),
        None => line,
    }
}

fn traffic_lines(state: &TopState, columns: usize) -> [StyledLine; 3] {
    let rates = &state.snapshot.traffic.rates;
    let width = columns.saturating_sub(BESIDE_SPARKLINE).min(60);
    let line = |name: &str, tone, values: &[u64], now: u64| {
        let most = values.iter().copied().max().unwrap_or(0);
        StyledLine::new(Tone::Faint, format!("{name:<10}"))
            .with(tone, sparkline(values, width))
            .plain(format!(" {:>8}/s", count(now)))
            .with(Tone::Faint, format!("  peak {}", count(most)))
    };
    let [requests, denials] = state.snapshot.seconds();
    [
        line("requests", Tone::Good, &requests, rates.requests),
        line("denials", Tone::Bad, &denials, rates.denials),
        StyledLine::default(),
    ]
}

/// The tables, each as long as it needs to be if there is room.
fn panels(state: &TopState, room: usize) -> Vec<StyledLine> {
    let all = state.sorted_limits();
    let (limit_row, client_row) = (state.limit_row(&all), state.client_row());
    let mut limits = limit_table(all.iter().copied());
    let mut clients = client_table(state);
    let servers = server_table(&state.snapshot);
    let (table, row) = match state.panel {
        Panel::Limits => (&mut limits, limit_row),
        Panel::Clients => (&mut clients, client_row),
    };
    if let Some(line) = table.get_mut(row + 1) {
        line.selected = true;
    }
    let wanted = [limits.len(), clients.len(), servers.len()];
    let [limit_room, client_room, server_room] = share_room(wanted, room.saturating_sub(2));
    let mut lines = scroll(limits, limit_row, limit_room);
    lines.push(StyledLine::default());
    lines.extend(scroll(clients, client_row, client_room));
    lines.push(StyledLine::default());
    lines.extend(scroll(servers, 0, server_room));
    lines
}

/// Gives each table the lines that it wants, or a fair share of the room.
fn share_room(wanted: [usize; 3], room: usize) -> [usize; 3] {
    let mut given = [0; 3];
    for _ in 0..room {
        // The table with the fewest lines is next; of equals, the first.
        let hungry = (0..3).filter(|one| given[*one] < wanted[*one]);
        let Some(next) = hungry.min_by_key(|one| given[*one]) else {
            break;
        };
        given[next] += 1;
    }
    given
}

/// The head of a table, and as many rows as fit, with the row `selected` among them.
fn scroll(lines: Vec<StyledLine>, selected: usize, rows: usize) -> Vec<StyledLine> {
    let body = rows.saturating_sub(1);
    let skipped = (selected + 1).saturating_sub(body);
    let mut lines = lines.into_iter();
    let head = lines.next();
    let body = lines.skip(skipped).take(body);
    head.into_iter().chain(body).take(rows).collect()
}

fn client_table(state: &TopState) -> Vec<StyledLine> {
    let mut limits = state.snapshot.limits.iter();
    let limit = limits.find(|limit| Some(&limit.name) == state.clients_of.as_ref());
    let counts = limit.map_or("", |limit| &*limit.counts);
    let row = |client: &ClientReport| {
        let id = short_hash(&client.id);
        let waiting = limit.into_iter().flat_map(|limit| &limit.waiting_clients);
        let waiting = waiting.filter(|one| one.id == client.id);
        let waiting: String = waiting
            .map(|one| format!(" ({} wait)", one.waiting))
            .collect();
        vec![
            StyledSpan::plain(match &client.key {
                Some(key) => format!("{id} {key}{waiting}"),
                None => format!("{id}{waiting}"),
            }),
            StyledSpan::plain(count(client.requests)),
            count_cell(Tone::Warn, client.denied),
            StyledSpan::plain(match client.units {
                0 => "-".to_owned(),
                units => used_of(client.used, units, counts),
            }),
            StyledSpan::plain(share(client.share)),
        ]
    };
    let name = match &state.clients_of {
        None => "CLIENT".to_owned(),
        Some(limit) => format!("CLIENT OF {limit}"),
    };
    let denied = match limit.is_some_and(|limit| limit.mode == "shadow") {
        true => ">WOULD DENY",
        false => ">DENIED",
    };
    let head = [&*name, ">REQUESTS", denied, ">USED", ">SHARE"];
    table(&head, state.clients.iter().map(row).collect())
}

/// The question, the note or the keys on the last line; above a question, the command that does the
/// same.
fn bottom_lines(state: &TopState, size: ScreenSize) -> Vec<StyledLine> {
    let mut lines = Vec::new();
    match &state.overlay {
        Overlay::Ask(order) => {
            let copies = if order.is_complete() {
                "; c copies it"
            } else {
                ""
            };
            let head = format!("the same as a command{copies}:");
            lines.push(StyledLine::new(Tone::Faint, head));
            lines.extend(wrapped(&state.command(order), size.columns));
            lines.push(StyledLine::new(Tone::Warn, order.prompt()));
        }
        Overlay::Search(word) => {
            let prompt = format!("find a client by key, hash, address or request id: {word}_");
            lines.push(StyledLine::new(Tone::Warn, prompt));
        }
        Overlay::Nothing | Overlay::Help => lines.push(match &state.note {
            Some(note) => StyledLine::new(Tone::Strong, note),
            None => StyledLine::new(Tone::Faint, key_line(state)),
        }),
    }
    // On a low screen, the question is what must stay.
    let hidden = lines.len().saturating_sub(size.rows);
    lines.split_off(hidden)
}

/// A text in lines of that width, without a change: the lines together are the text.
fn wrapped(text: &str, columns: usize) -> Vec<StyledLine> {
    let letters: Vec<char> = text.chars().collect();
    let lines = letters.chunks(columns.max(1));
    let line = |line: &[char]| StyledLine::new(Tone::Plain, line.iter().collect::<String>());
    lines.map(line).collect()
}

fn key_line(state: &TopState) -> String {
    match &state.view {
        View::Overview => format!(
            "q quit  tab choose  enter open  / find  s sort: {}  p promote  ? help",
            state.sort.word()
        ),
        View::Client(page) => {
            let block = match page.client.block {
                Some(_) => "u unblock",
                None => "b block",
            };
            format!("esc back  r reset  o override  x remove override  {block}  / find  ? help")
        }
        View::Choice(_) => "esc back  enter open  / find  ? help".to_owned(),
        View::Promotion(_) => "esc back  up, down scroll  c copy the patch  ? help".to_owned(),
    }
}

fn help_lines() -> Vec<StyledLine> {
    let keys = [
        ("q, Ctrl-C", "quit"),
        ("up, down (k, j)", "choose a limit, or a client"),
        ("tab", "from limits to clients, and back"),
        (
            "enter, right",
            "to the clients of a limit, and to the page of a client",
        ),
        ("escape, left", "back"),
        ("/", "find a client by key, hash, address or request id"),
        ("s", "sort limits by denials, requests, headroom or name"),
        (
            "p",
            "show the patch that enforces a shadow limit or a candidate",
        ),
        (
            "r",
            "set the counts of the chosen client to zero; asks for y",
        ),
        (
            "o, x",
            "give the chosen client another rate; remove that rate",
        ),
        ("b, u", "block the chosen client in all limits; unblock it"),
        ("c", "copy the command or the patch that is shown"),
        ("?", "this"),
    ];
    let texts = [
        "",
        "HEADROOM is the part of the limit that its fullest client has left.",
        "SHARE is a client's part of the limit's requests.",
        "Clients are shown by the hash of their key, as in the logs.",
        "",
    ];
    let keys = keys
        .iter()
        .map(|(key, what)| StyledLine::new(Tone::Strong, format!("{key:<18}")).plain(what));
    let texts = texts.iter().map(|text| StyledLine::new(Tone::Plain, text));
    let back = StyledLine::new(Tone::Faint, "any key: back");
    keys.chain(texts).chain([back]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::state;
    use super::super::state::{PressedKey, TopState};
    use super::*;
    use crate::cli::display::render_lines;

    const USUAL: ScreenSize = ScreenSize {
        columns: 80,
        rows: 24,
    };

    fn drawn(state: &TopState) -> String {
        render_lines(&frame(state, USUAL), false)
    }

    #[test]
    fn a_picture_of_a_busy_proxy() {
        assert_eq!(drawn(&state()), include_str!("frame.txt"));
    }

    #[test]
    fn a_pipe_gets_whole_tables() {
        let mut state = state();
        state.snapshot.limits[0].name = "a".repeat(90);
        let columns = table_columns(&state);
        let picture = render_lines(&frame(&state, ScreenSize { columns, rows: 24 }), false);
        assert!(columns > 90 && !picture.contains(".."), "{picture}");
    }

    #[test]
    fn it_fits_every_terminal() {
        let mut states = vec![TopState::default(), state(), state(), state()];
        states[2].press(PressedKey::Char('?'));
        states[3].press(PressedKey::Enter);
        states[3].press(PressedKey::Char('r'));
        for state in &states {
            for columns in [0, 1, 7, 20, 33, 79, 80, 300] {
                for rows in [0, 1, 2, 5, 6, 7, 10, 24, 100] {
                    let lines = frame(state, ScreenSize { columns, rows });
                    assert_eq!(lines.len(), rows);
                    assert!(lines.iter().all(|line| line.width() <= columns));
                }
            }
        }
    }

    #[test]
    fn what_is_wrong_is_seen_at_once() {
        let mut away = state();
        away.snapshot.status.store = crate::admin::status::StoreReport {
            kind: "redis".to_owned(),
            degraded: true,
            since: Some(away.snapshot.status.now - 12.0),
            on_error: "local".to_owned(),
            ..Default::default()
        };
        assert!(
            drawn(&away)
                .contains("store     redis  AWAY for 12 s: this process counts by itself\n")
        );
        away.failure = Some("connection refused".to_owned());
        assert!(drawn(&away).starts_with("tidegate 0.1.0  no answer: connection refused"));
        let mut asked = state();
        asked.press(PressedKey::Enter);
        asked.press(PressedKey::Char('r'));
        let question = "reset CFc46O0K in login: set its counts to zero? y/n\n";
        assert!(drawn(&asked).ends_with(question));
    }

    #[test]
    fn the_chosen_row_is_always_among_those_shown() {
        let lines: Vec<StyledLine> = (0..50)
            .map(|row| StyledLine::new(Tone::Plain, row.to_string()))
            .collect();
        for at in 0..49 {
            for rows in 2..12 {
                let shown = scroll(lines.clone(), at, rows);
                assert!(
                    shown.len() == rows && shown.contains(&lines[at + 1]),
                    "{at} {rows}"
                );
            }
        }
        assert_eq!(share_room([4, 20, 3], 15), [4, 8, 3]);
        assert_eq!(share_room([4, 20, 3], 2), [1, 1, 0]);
        assert_eq!(share_room([1, 1, 1], 30), [1, 1, 1]);
    }
}
