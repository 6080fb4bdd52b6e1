//! A report for a terminal of eighty columns.

use std::fmt::Write as _;

use super::figures::{counted, grouped, percent};
use super::logs::printable;
use super::meter::Scale;
use super::report::{ClientStats, LimitReport, Report, WaitReport};
use crate::limit::Role;
use crate::telemetry::stamp;

/// Clients that the report lists for each limit.
const CLIENTS: usize = 5;
const COLUMNS: usize = 80;
/// Columns of the clients that a rate hits, and of them together with the rate.
const CLIENTS_WIDTH: usize = 24;
const RATE_END: usize = 34;

#[derive(Clone, Copy, Debug)]
pub struct Paint(pub bool);

impl Paint {
    fn with(self, code: &str, text: &str) -> String {
        match self.0 {
            true => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            false => text.to_owned(),
        }
    }

    fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    fn count(self, count: u64, text: &str) -> String {
        if count > 0 {
            self.with("31", text)
        } else {
            text.to_owned()
        }
    }
}

pub fn report(report: &Report, paint: Paint) -> String {
    let mut out = String::new();
    head(&mut out, report, paint);
    for limit in &report.limits {
        out.push('\n');
        one_limit(&mut out, limit, paint);
    }
    if report.limits.is_empty() {
        out.push_str("\nNo route has a limit: nothing would be denied.\n");
    }
    if !report.notes.is_empty() {
        out.push('\n');
    }
    for note in &report.notes {
        wrapped(&mut out, "note: ", &printable(note), paint);
    }
    out
}

fn head(out: &mut String, report: &Report, paint: Paint) {
    for log in &report.logs {
        let format = log
            .format
            .map_or("nothing readable", |format| format.word());
        let line = format!(
            "{}: {}, {format}",
            printable(&log.name),
            counted(log.lines, "line")
        );
        let _ = writeln!(out, "{line}");
    }
    if let Some((first, last)) = report.times {
        let span = span(last.saturating_sub(first) / 1_000_000);
        let _ = writeln!(out, "{} to {} UTC ({span})", when(first), when(last));
    }
    let requests = counted(report.requests, "request");
    let denied = report.denied.own;
    let share = percent(denied, report.requests);
    let verdict = format!("{} would be denied ({share})", grouped(denied));
    let _ = writeln!(
        out,
        "{}: {}",
        paint.bold(&requests),
        paint.count(denied, &verdict)
    );
    for (kind, count) in &report.outside {
        let _ = writeln!(out, "  {} {}", grouped(*count), kind.words());
    }
    bans(out, report, paint);
    unread(out, report, paint);
}

fn bans(out: &mut String, report: &Report, paint: Paint) {
    let Some(bans) = &report.bans else {
        return;
    };
    let line = format!(
        "  {} of {}; {} denied by a ban",
        counted(bans.begun, "ban"),
        counted(bans.keys, "key"),
        grouped(bans.denied)
    );
    let _ = writeln!(out, "{}", paint.count(bans.begun, &line));
    for one in bans.worst.iter().take(CLIENTS) {
        let line = format!(
            "    {}: {} by {}, {} denied",
            cut(&printable(&one.key), 40),
            counted(one.bans, "ban"),
            one.limit,
            grouped(one.denied)
        );
        let _ = writeln!(out, "{line}");
    }
}

fn unread(out: &mut String, report: &Report, paint: Paint) {
    let total = report.unread_lines();
    if total == 0 {
        return;
    }
    let line = format!("{} could not be read", counted(total, "line"));
    let _ = writeln!(out, "{}", paint.with("33", &line));
    for (fault, count) in &report.unread {
        let _ = writeln!(out, "  {} {}", grouped(*count), fault.sentence());
        let examples = report.logs.iter().flat_map(|log| {
            let of_kind = log.examples.iter().filter(|one| one.fault == *fault);
            of_kind.map(move |one| (&log.name, one))
        });
        for (name, example) in examples.take(2) {
            let text = format!("    {}:{}: {}", printable(name), example.line, example.text);
            let _ = writeln!(out, "{}", paint.dim(&cut(&printable(&text), COLUMNS)));
        }
    }
}

fn one_limit(out: &mut String, limit: &LimitReport, paint: Paint) {
    let tier = limit.tier.as_ref().map(|tier| format!(", tier {tier}"));
    let role = match limit.role {
        Role::Enforced => "",
        Role::Shadow => "  (shadow: denies nothing yet)",
        Role::Candidate => "  (candidate: denies nothing)",
    };
    let unit = limit.unit.map(|unit| format!(" {unit}"));
    let rate_and_key = format!(
        "{}{} by {}{}",
        limit.rate,
        unit.unwrap_or_default(),
        limit.key,
        tier.unwrap_or_default()
    );
    let _ = writeln!(
        out,
        "{}  {rate_and_key}{}",
        paint.bold(&limit.name),
        paint.dim(role)
    );
    if limit.requests == 0 {
        let _ = writeln!(out, "  no request asked it");
        return;
    }
    let asked = counted(limit.requests, "request");
    let _ = writeln!(
        out,
        "  asked by     {asked} of {}",
        counted(limit.clients, "client")
    );
    if let (Some(spent), Some(unit)) = (limit.spent, limit.unit) {
        let _ = writeln!(out, "  in the log   {} {unit}", grouped(spent));
    }
    for (scale, label) in [
        (Scale::Own, "would deny"),
        (Scale::Half, "  at half"),
        (Scale::Twice, "  at twice"),
    ] {
        let denied = limit.denied[scale];
        let requests = format!("{} ({})", grouped(denied), percent(denied, limit.requests));
        let hit = limit.clients_hit[scale];
        let clients = format!(
            "{} ({})",
            counted(hit, "client"),
            percent(hit, limit.clients)
        );
        let rate = if scale == Scale::Own {
            ""
        } else {
            &limit.rates[scale]
        };
        // A long rate takes the room of blanks before it.
        let width = CLIENTS_WIDTH.min(RATE_END.saturating_sub(rate.len()));
        let line = format!("  {label:<12} {requests:<21} hitting {clients:<width$} {rate}");
        let _ = writeln!(out, "{}", paint.count(denied, line.trim_end()));
    }
    if let Some(held) = &limit.waits {
        waits(out, held, limit.requests);
    }
    if let Some(minute) = limit.worst_minutes.first() {
        let at = when(minute.at_s * 1_000_000);
        let _ = writeln!(
            out,
            "  worst minute {} UTC: {} denied",
            &at[..16],
            grouped(minute.count.into())
        );
    }
    clients(out, limit, paint);
    suggestion(out, limit, paint);
}

/// The requests that the limit would hold, of all that asked it.
fn waits(out: &mut String, held: &WaitReport, asked: u64) {
    let (requests, share) = (held.requests, percent(held.requests, asked));
    let times = match requests {
        0 => String::new(),
        _ => format!(
            " for {:.0} ms on average, {:.0} ms at most",
            held.mean_ms, held.longest_ms
        ),
    };
    let _ = writeln!(out, "  would hold   {} ({share}){times}", grouped(requests));
}

fn clients(out: &mut String, limit: &LimitReport, paint: Paint) {
    let denied = limit.worst_clients.iter().any(|client| client.denied > 0);
    let label = if denied { "worst" } else { "busiest" };
    let shown: Vec<&ClientStats> = limit.worst_clients.iter().take(CLIENTS).collect();
    let width = shown
        .iter()
        .map(|one| one.key.chars().count())
        .max()
        .unwrap_or(0)
        .clamp(8, 34);
    for (index, client) in shown.into_iter().enumerate() {
        let label = if index == 0 { label } else { "" };
        let key = cut(&printable(&client.key), width);
        let mut line = format!("  {label:<12} {key:<width$}  ");
        if denied {
            let _ = write!(
                line,
                "{} of {} denied, ",
                grouped(client.denied),
                grouped(client.requests)
            );
        } else {
            let _ = write!(line, "{}, ", counted(client.requests, "request"));
        }
        if let Some(spent) = client.spent {
            let _ = write!(line, "{} in all, ", grouped(spent));
        }
        let _ = write!(line, "peak {}{}", grouped(client.peak), limit.per);
        let _ = writeln!(
            out,
            "{}",
            if client.denied > 0 {
                line
            } else {
                paint.dim(&line)
            }
        );
    }
}

fn suggestion(out: &mut String, limit: &LimitReport, paint: Paint) {
    let Some(found) = &limit.suggested else {
        return;
    };
    let setting = match limit.role {
        _ if limit.per == " at once" => format!("concurrent = {}", found.units),
        Role::Candidate => format!("candidate = \"{}\"", found.rate),
        Role::Enforced | Role::Shadow => format!("rate = \"{}\"", found.rate),
    };
    let of = format!(
        "{} of {}",
        grouped(found.clients_hit),
        counted(limit.clients, "client")
    );
    let line = format!("  suggested    {}", paint.with("32", &setting));
    let _ = writeln!(
        out,
        "{line}   hits {of} ({})",
        percent(found.clients_hit, limit.clients)
    );
}

/// `2026-11-20 22:37:06`
pub fn when(us: u64) -> String {
    stamp::rfc3339(us)[..19].replace('T', " ")
}

/// `3 days`, `2.5 hours`
pub fn span(seconds: u64) -> String {
    for (unit, length) in [("day", 86_400), ("hour", 3_600), ("minute", 60)] {
        if seconds >= 2 * length {
            return format!("{:.1} {unit}s", seconds as f64 / length as f64).replace(".0 ", " ");
        }
    }
    counted(seconds, "second")
}

/// Writes a text, broken between words.
fn wrapped(out: &mut String, label: &str, text: &str, paint: Paint) {
    let mut line = String::new();
    let indent = " ".repeat(label.len());
    let mut label = paint.bold(label);
    for word in text.split(' ') {
        if !line.is_empty() && indent.len() + line.chars().count() + word.chars().count() >= COLUMNS
        {
            let _ = writeln!(out, "{label}{line}");
            label.clone_from(&indent);
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(out, "{label}{line}");
}

fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(columns.saturating_sub(1)).collect();
    short.push('…');
    short
}
