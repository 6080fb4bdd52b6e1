//! The picture of `top`.
//!
//! Pure: a state and a size go in, exactly so many lines come out, none longer than the size.

use super::state::{Over, Panel, State};
use crate::cli::figures::{count, latency, share, span, sparkline};
use crate::cli::ink::{Cell, Line, Tone, table};
use crate::cli::seen::text;
use crate::cli::tables;

/// Columns and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// Characters of a client's hash, as logs show it.
const SHORT: usize = 8;
/// Columns before and after a picture of the last minute.
const BESIDE_PICTURE: usize = 38;

/// See the file's head.
pub(super) fn frame(state: &State, size: Size) -> Vec<Line> {
    let mut lines = vec![head(state, size.columns), store(state)];
    lines.extend(traffic(state, size.columns));
    let last = last(state);
    // What is left under the head, without the last line.
    let room = size.rows.saturating_sub(lines.len() + 1);
    match state.over {
        Over::Help => lines.extend(help()),
        Over::Nothing | Over::Confirm(..) => lines.extend(panels(state, room)),
    }
    lines.truncate(size.rows.saturating_sub(1));
    lines.resize(size.rows.saturating_sub(1), Line::default());
    lines.push(last);
    lines.truncate(size.rows);
    let whole = |line: Line| match line.chosen {
        true => line.to(size.columns).fit(size.columns),
        false => line.fit(size.columns),
    };
    lines.into_iter().map(whole).collect()
}

/// With what stands at the right edge.
fn edges(left: Line, right: &str, columns: usize) -> Line {
    let space = columns.saturating_sub(right.chars().count());
    match left.width() < space {
        true => left.to(space).and(Tone::Faint, right),
        false => left,
    }
}

fn head(state: &State, columns: usize) -> Line {
    let (seen, status) = (&state.seen, &state.seen.status);
    let line = Line::default()
        .and(
            Tone::Strong,
            format!("tidegate {}", text(&status["version"])),
        )
        .and(Tone::Plain, "  ");
    let line = match (&state.trouble, seen.reasons.is_empty()) {
        (Some(trouble), _) => line.and(Tone::Bad, format!("no answer: {trouble}")),
        (None, true) => line.and(Tone::Good, "ready"),
        (None, false) => line.and(Tone::Bad, format!("not ready: {}", seen.reasons.join(", "))),
    };
    let file = text(&status["config"]["file"]);
    match status["started_at"].as_f64() {
        Some(at) => edges(
            line,
            &format!("{file}  up {}", span(seen.now() - at)),
            columns,
        ),
        None => line,
    }
}

fn store(state: &State) -> Line {
    let store = &state.seen.status["store"];
    let line = Line::default()
        .and(Tone::Faint, "store     ")
        .and(Tone::Plain, text(&store["kind"]));
    if store["up"].as_bool() == Some(false) {
        let away = store["since"]
            .as_f64()
            .map_or(0.0, |at| state.seen.now() - at);
        let does = match store["on_error"].as_str() {
            Some("allow") => "everything is allowed",
            Some("deny") => "everything is denied",
            _ => "counting in this process",
        };
        return line.and(Tone::Warn, format!("  AWAY for {}: {does}", span(away)));
    }
    match store["round_trip_seconds"].as_f64() {
        Some(seconds) => line.and(Tone::Plain, format!("  {}", latency(seconds))),
        None => line,
    }
}

fn traffic(state: &State, columns: usize) -> [Line; 3] {
    let traffic = &state.seen.traffic;
    let width = columns.saturating_sub(BESIDE_PICTURE).min(60);
    let row = |name: &str, tone, values: &[u64], now: f64| {
        let most = values.iter().copied().max().unwrap_or(0);
        Line::default()
            .and(Tone::Faint, format!("{name:<10}"))
            .and(tone, sparkline(values, width))
            .and(Tone::Plain, format!(" {:>8}/s", count(now as u64)))
            .and(Tone::Faint, format!("  peak {}", count(most)))
    };
    let requests = (&traffic.requests, traffic.requests_per_second);
    let denials = (&traffic.denials, traffic.denials_per_second);
    [
        row("requests", Tone::Good, requests.0, requests.1),
        row("denials", Tone::Bad, denials.0, denials.1),
        Line::default(),
    ]
}

/// The tables, each with what it needs as far as there is room.
fn panels(state: &State, room: usize) -> Vec<Line> {
    let all = state.limits();
    let limits = chosen(
        tables::limits(all.iter().copied()),
        state.limit_at(&all),
        state.panel == Panel::Limits,
    );
    let clients = chosen(
        clients(state),
        state.client_at(),
        state.panel == Panel::Clients,
    );
    let servers = tables::servers(&state.seen.servers, state.seen.now());
    let [for_limits, for_clients, for_servers] = shares(
        [limits.len(), clients.len(), servers.len()],
        room.saturating_sub(2),
    );
    let mut lines = window(limits, state.limit_at(&all), for_limits);
    lines.push(Line::default());
    lines.extend(window(clients, state.client_at(), for_clients));
    lines.push(Line::default());
    lines.extend(window(servers, 0, for_servers));
    lines
}

/// So many lines for each: what it wants, or a fair part of what there is.
fn shares(wanted: [usize; 3], room: usize) -> [usize; 3] {
    let mut given = [0; 3];
    let mut left = room;
    while left > 0 {
        let mut hungry: Vec<usize> = (0..3).filter(|one| given[*one] < wanted[*one]).collect();
        // Whoever has least is next; of equals the first.
        hungry.sort_by_key(|one| given[*one]);
        let Some(next) = hungry.first() else { break };
        given[*next] += 1;
        left -= 1;
    }
    given
}

/// Marks the row that keys act on.
fn chosen(mut lines: Vec<Line>, at: usize, here: bool) -> Vec<Line> {
    if let Some(line) = lines.get_mut(at + 1).filter(|_| here) {
        line.chosen = true;
    }
    lines
}

/// The head, and so many rows that the one at `at` is among them.
fn window(lines: Vec<Line>, at: usize, rows: usize) -> Vec<Line> {
    let body = rows.saturating_sub(1);
    let skipped = (at + 1).saturating_sub(body);
    let mut lines = lines.into_iter();
    let head = lines.next();
    let body = lines.skip(skipped).take(body);
    head.into_iter().chain(body).take(rows).collect()
}

fn clients(state: &State) -> Vec<Line> {
    let of = state.clients_of.clone().unwrap_or_default();
    let row = |client: &super::state::Client| -> Vec<Cell> {
        let plain = |text: String| (Tone::Plain, text);
        let id: String = client.id.chars().take(SHORT).collect();
        let denied = match client.denied {
            0 => plain("0".to_owned()),
            many => (Tone::Warn, count(many)),
        };
        vec![
            plain(
                client
                    .key
                    .as_ref()
                    .map_or(id.clone(), |key| format!("{id} {key}")),
            ),
            plain(count(client.requests)),
            denied,
            plain(share(client.share)),
        ]
    };
    let name = match of.as_str() {
        "" => "CLIENT".to_owned(),
        of => format!("CLIENT OF {of}"),
    };
    let rows: Vec<Vec<Cell>> = state.clients.iter().map(row).collect();
    table(&[&name, ">REQUESTS", ">DENIED", ">SHARE"], &rows)
}

fn last(state: &State) -> Line {
    if let Over::Confirm(limit, id) = &state.over {
        let id: String = id.chars().take(SHORT).collect();
        let question = format!("reset {id} in {limit}: forget what is counted for it? y/n");
        return Line::default().and(Tone::Warn, question);
    }
    if let Some(note) = &state.note {
        return Line::default().and(Tone::Strong, note);
    }
    let keys = format!(
        "q quit  arrows, tab choose  s sort: {}  enter clients  r reset  ? help",
        state.sort.word()
    );
    Line::default().and(Tone::Faint, keys)
}

fn help() -> Vec<Line> {
    let keys = [
        ("q, Ctrl-C", "quit"),
        ("up, down (k, j)", "choose a limit, or a client"),
        ("tab", "from limits to clients, and back"),
        ("enter, right", "to the clients of the chosen limit"),
        ("escape, left", "back to the limits"),
        ("s", "sort limits by denials, requests, headroom or name"),
        (
            "r",
            "forget what is counted for the chosen client, when confirmed with y",
        ),
        ("?", "this"),
    ];
    let line = |(key, what): (&str, &str)| {
        Line::default()
            .and(Tone::Strong, format!("{key:<18}"))
            .and(Tone::Plain, what)
    };
    let mut lines: Vec<Line> = keys.into_iter().map(line).collect();
    lines.push(Line::default());
    lines.push(Line::of(
        "HEADROOM is what the fullest client of a limit has left of it.",
    ));
    lines.push(Line::of(
        "SHARE is a client's part of all that the limit was asked for.",
    ));
    lines.push(Line::of(
        "Clients are shown by the hash of their key, as in the logs.",
    ));
    lines.push(Line::default());
    lines.push(Line::default().and(Tone::Faint, "any key: back"));
    lines
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::state;
    use super::super::state::{Key, State};
    use super::*;
    use crate::cli::ink;

    const USUAL: Size = Size {
        columns: 80,
        rows: 24,
    };

    fn drawn(state: &State) -> String {
        ink::text(&frame(state, USUAL), false)
    }

    #[test]
    fn a_picture_of_a_busy_proxy() {
        assert_eq!(drawn(&state()), include_str!("frame.txt"));
    }

    #[test]
    fn it_fits_every_terminal() {
        let mut states = vec![State::default(), state(), state(), state()];
        states[2].press(Key::Char('?'));
        states[3].press(Key::Enter);
        states[3].press(Key::Char('r'));
        for state in &states {
            for columns in [0, 1, 7, 20, 33, 79, 80, 300] {
                for rows in [0, 1, 2, 5, 6, 7, 10, 24, 100] {
                    let lines = frame(state, Size { columns, rows });
                    assert_eq!(lines.len(), rows);
                    assert!(lines.iter().all(|line| line.width() <= columns));
                }
            }
        }
    }

    #[test]
    fn what_is_wrong_is_seen_at_once() {
        let mut away = state();
        away.seen.status["store"] = serde_json::json!({ "kind": "redis", "up": false,
            "since": away.seen.now() - 12.0, "on_error": "local" });
        assert!(
            drawn(&away).contains("store     redis  AWAY for 12 s: counting in this process\n")
        );
        away.trouble = Some("connection refused".to_owned());
        assert!(drawn(&away).starts_with("tidegate 0.1.0  no answer: connection refused"));
        let mut asked = state();
        asked.press(Key::Enter);
        asked.press(Key::Char('r'));
        let question = "reset CFc46O0K in login: forget what is counted for it? y/n\n";
        assert!(drawn(&asked).ends_with(question));
    }

    #[test]
    fn the_chosen_row_is_always_among_those_shown() {
        let lines: Vec<Line> = (0..50).map(|row| Line::of(row.to_string())).collect();
        for at in 0..49 {
            for rows in 2..12 {
                let shown = window(lines.clone(), at, rows);
                assert!(
                    shown.len() == rows && shown.contains(&lines[at + 1]),
                    "{at} {rows}"
                );
            }
        }
        assert_eq!(shares([4, 20, 3], 15), [4, 8, 3]);
        assert_eq!(shares([4, 20, 3], 2), [1, 1, 0]);
        assert_eq!(shares([1, 1, 1], 30), [1, 1, 1]);
    }
}
