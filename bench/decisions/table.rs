//! The figures as Markdown tables, and their place in the documentation.

use std::fmt::Write as _;

use super::contender::Wait;
use super::cost::Cost;
use super::honesty::Waits;
use super::{Findings, Own, Plan, Way};

const BEGIN: &str = "<!-- figures: begin, written by `make bench-decisions` -->\n";
const END: &str = "<!-- figures: end -->\n";

/// All tables, below the machine that they were measured on.
pub fn tables(machine: &str, plan: &Plan, all: &[Findings], own: &Own) -> String {
    let parts = [
        format!("Measured on {machine}."),
        exactness(all),
        cost(all),
        ways(&own.ways),
        bytes(plan, all, own),
        honesty(all),
    ];
    parts.join("\n\n") + "\n"
}

/// The page with its figures replaced.
pub fn page_with(page: &str, figures: &str) -> String {
    let (before, rest) = page.split_once(BEGIN).expect("where the figures begin");
    let (_, after) = rest.split_once(END).expect("where the figures end");
    format!("{before}{BEGIN}\n{figures}\n{END}{after}")
}

fn table(head: &[String], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut text = format!(
        "| {} |\n|---|{}",
        head.join(" | "),
        "--:|".repeat(head.len() - 1)
    );
    for row in rows {
        write!(text, "\n| {} |", row.join(" | ")).expect("a text grows");
    }
    text
}

fn head(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn exactness(all: &[Findings]) -> String {
    let head = head(&[
        "% of the limit",
        "fullest window, 8 clients at once",
        "fullest window, burst at a boundary",
        "300 requests in one instant",
        "what a client at twice the limit gets",
    ]);
    let rows = all.iter().map(|found| {
        let exactness = found.exactness;
        let at_once = exactness
            .at_once
            .map_or("-".to_owned(), |p| format!("{p:.0}"));
        let rest = [exactness.boundary, exactness.instant, exactness.persistent];
        let mut row = vec![found.contender.name().to_owned(), at_once];
        row.extend(rest.map(|percent| format!("{percent:.0}")));
        row
    });
    table(&head, rows)
}

fn us(cost: Cost) -> [String; 2] {
    [cost.script_us, cost.process_us].map(|us| format!("{us:.1}"))
}

fn cost(all: &[Findings]) -> String {
    let head = head(&[
        "us of Redis's CPU per decision",
        "allowed: commands",
        "allowed: process",
        "denied: commands",
        "denied: process",
    ]);
    let rows = all.iter().map(|found| {
        let mut row = vec![found.contender.name().to_owned()];
        row.extend(us(found.allowed));
        row.extend(us(found.denied));
        row
    });
    table(&head, rows)
}

fn ways(ways: &[Way]) -> String {
    let head = head(&[
        "`log`, commands / process, us",
        "1 limit, allowed",
        "1 limit, denied",
        "4 limits, allowed",
        "4 limits, denied",
    ]);
    let rows = ways.iter().map(|way| {
        let mut row = vec![way.name.to_owned()];
        for (allowed, denied) in way.costs {
            row.extend([us(allowed).join(" / "), us(denied).join(" / ")]);
        }
        row
    });
    table(&head, rows)
}

fn bytes(plan: &Plan, all: &[Findings], own: &Own) -> String {
    let mut head = head(&["bytes of a key at a full window"]);
    head.extend(plan.limits.iter().map(|units| format!("limit {units}")));
    let row = |name: &str, bytes: &[f64]| {
        let mut row = vec![name.to_owned()];
        row.extend(bytes.iter().map(|bytes| format!("{bytes:.0}")));
        row
    };
    let rows = all
        .iter()
        .map(|found| row(found.contender.name(), &found.bytes));
    let day = row("tidegate `log`, window of a day", &own.day_bytes);
    table(&head, rows.chain([day]))
}

fn honesty(all: &[Findings]) -> String {
    let head = head(&[
        "waits that are named",
        "honest, cost 1",
        "honest, costs 1 to 5",
        "too early by, at worst",
        "to a cost above the limit",
    ]);
    let rows = all.iter().map(|found| {
        let honesty = found.honesty;
        let worst = [honesty.ones, honesty.mixed]
            .into_iter()
            .flatten()
            .map(|waits| waits.worst_us)
            .max();
        vec![
            found.contender.name().to_owned(),
            share(honesty.ones),
            share(honesty.mixed),
            worst.map_or("-".to_owned(), seconds),
            match (honesty.above, found.contender.wait_unit_us()) {
                (_, None) => "-".to_owned(),
                (Wait::Us(us), _) => seconds(us),
                (_, _) => "never".to_owned(),
            },
        ]
    });
    table(&head, rows)
}

fn share(waits: Option<Waits>) -> String {
    waits.map_or("none named".to_owned(), |waits| {
        let percent = waits.honest as f64 * 100.0 / waits.denials as f64;
        format!("{percent:.1} %")
    })
}

fn seconds(us: u64) -> String {
    if us == 0 {
        return "0".to_owned();
    }
    format!("{:.1} s", us as f64 / 1e6)
}
