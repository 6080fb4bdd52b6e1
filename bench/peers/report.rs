//! The tables that are printed, and those of docs/performance.md and docs/performance/figures.md.

use super::findings::Findings;
use super::goals::{self, Figure};
use super::measure::{IDLE, Sample};
use super::peer::{ALL as PEERS, Peer};
use super::scenario::{ALL as SCENARIOS, Load, Scenario};
use crate::numbers::Spread;
use crate::page::table;

/// Everything, as it is read at a glance.
pub fn glance(findings: &Findings) -> String {
    let parts = [
        about(findings),
        heading("CPU per request, us (+ that of Redis): medians"),
        cost(findings),
        heading("Answers at 2000 requests/s over 64 connections, and resident memory: medians"),
        answers(findings),
        heading("What is to be reached"),
        goals(findings),
        faults(findings),
    ];
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("\n")
}

/// A table for each scenario, with the least and the most of all rounds.
pub fn details(findings: &Findings) -> String {
    let scenario = |scenario: &Scenario| {
        let rows: Vec<Vec<String>> = scenario
            .peers()
            .iter()
            .filter_map(|peer| detail(findings, *scenario, *peer))
            .collect();
        let head = [
            scenario.title(),
            "CPU us: min",
            "median",
            "max",
            "Redis: min",
            "median",
            "max",
            "requests/s",
            "core busy",
            "others, at most",
        ];
        (!rows.is_empty()).then(|| table(&head, &rows))
    };
    let tables: Vec<String> = SCENARIOS.iter().filter_map(scenario).collect();
    tables.join("\n")
}

fn heading(text: &str) -> String {
    format!("{text}\n")
}

fn about(findings: &Findings) -> String {
    let versions = findings.versions.iter();
    let versions: Vec<String> = versions
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    let mut text = format!(
        "Measured on {}.\nVersions: {}.\n{} in {:.0} minutes. Other programs used up to {:.0} % of \
         a core\nduring a measurement that counts.\n",
        findings.machine,
        versions.join(", "),
        match findings.rounds {
            1 => "One round".to_owned(),
            rounds => format!("{rounds} interleaved rounds"),
        },
        findings.took_s / 60.0,
        findings.foreign() * 100.0
    );
    if !findings.missing.is_empty() {
        text += &format!(
            "Not installed, so not measured: {}.\n",
            findings.missing.join(", ")
        );
    }
    text
}

/// Whether there is anything of this row.
fn is_there(findings: &Findings, peer: Peer) -> bool {
    let samples = findings.samples.keys().any(|(_, found)| *found == peer);
    samples || findings.memory.contains_key(&peer)
}

fn there(findings: &Findings) -> impl Iterator<Item = Peer> {
    PEERS.into_iter().filter(|peer| is_there(findings, *peer))
}

fn cost(findings: &Findings) -> String {
    let closed = |scenario: &Scenario| {
        let measured = findings.samples.keys().any(|(found, _)| found == scenario);
        let counts = matches!(scenario.load(), Load::Closed(_) | Load::Multiplexed(..));
        counts && measured
    };
    let scenarios: Vec<Scenario> = SCENARIOS.into_iter().filter(closed).collect();
    if scenarios.is_empty() {
        return String::new();
    }
    let mut head = vec!["", "what the row is"];
    head.extend(scenarios.iter().map(|scenario| scenario.title()));
    let row = |peer: Peer| {
        let mut row = vec![named(peer), peer.what().to_owned()];
        let costs = scenarios.iter();
        row.extend(costs.map(|scenario| median_cost(findings, *scenario, peer)));
        row
    };
    table(&head, &there(findings).map(row).collect::<Vec<_>>())
}

/// CPU of the proxy, and of Redis where it is needed, us; empty if it was not measured.
fn median_cost(findings: &Findings, scenario: Scenario, peer: Peer) -> String {
    let median = |figure: Figure| {
        let spread = findings.spread(scenario, peer, |sample| figure.of(sample));
        spread.map(|spread| spread.median)
    };
    match (median(Figure::Proxy), median(Figure::Redis)) {
        (Some(proxy), Some(redis)) if peer.needs_redis() => format!("{proxy:.1} + {redis:.1}"),
        (Some(proxy), _) => format!("{proxy:.1}"),
        (None, _) => String::new(),
    }
}

/// The table of docs/performance.md: the same work of the three proxies in a row.
pub fn summary(findings: &Findings) -> String {
    let lines: [(&str, Scenario, &[Peer]); 4] = [
        (
            "no limit",
            Scenario::Many,
            &[Peer::Tidegate, Peer::Nginx, Peer::Haproxy],
        ),
        (
            "limit in the process",
            Scenario::Many,
            &[Peer::TidegateEmbedded, Peer::NginxLimit, Peer::HaproxyTable],
        ),
        (
            "limit in Redis, proxy + Redis",
            Scenario::Many,
            &[Peer::TidegateRedis, Peer::NginxLua],
        ),
        (
            "denied by a limit in the process",
            Scenario::Rejected,
            &[Peer::TidegateEmbedded, Peer::NginxLimit, Peer::HaproxyTable],
        ),
    ];
    let row = |(work, scenario, peers): (&str, Scenario, &[Peer])| {
        let mut row = vec![work.to_owned()];
        row.extend(
            peers
                .iter()
                .map(|peer| median_cost(findings, scenario, *peer)),
        );
        row.resize(4, String::new());
        row
    };
    format!(
        "CPU time per request at 64 connections, us, medians. Measured on {}.\n\n{}",
        findings.machine,
        table(&["", "tidegate", "nginx", "HAProxy"], &lines.map(row))
    )
}

fn named(peer: Peer) -> String {
    match peer.is_ours() {
        true => format!("**{}**", peer.name()),
        false => peer.name().to_owned(),
    }
}

fn answers(findings: &Findings) -> String {
    let head = [
        "",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "MiB idle",
        "1,000 clients",
        "10,000 clients",
    ];
    let row = |peer: Peer| {
        let mut row = vec![named(peer)];
        for share in 0..3 {
            let wait = |sample: &Sample| sample.waits_us.map_or(f64::NAN, |waits| waits[share]);
            let spread = findings.spread(Scenario::Steady, peer, wait);
            row.push(spread.map_or(String::new(), |spread| format!("{:.0}", spread.median)));
        }
        for connections in IDLE {
            let mib = findings.resident_mib(peer, connections);
            row.push(mib.map_or(String::new(), |mib| format!("{mib:.0}")));
        }
        row
    };
    let rows: Vec<Vec<String>> = there(findings)
        .map(row)
        .filter(|row| row[1..].iter().any(|cell| !cell.is_empty()))
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => table(&head, &rows),
    }
}

fn goals(findings: &Findings) -> String {
    let head = ["ratio", "goal", "bar", "min", "median", "max", ""];
    let row = |goal: &goals::Goal| {
        let reached = goal.reached(findings)?;
        let two = |ratio: f64| format!("{ratio:.2}");
        Some(vec![
            goal.job.to_owned(),
            two(goal.goal),
            two(goal.bar),
            two(reached.min),
            two(reached.median),
            two(reached.max),
            goal.verdict(reached.median).to_owned(),
        ])
    };
    let rows: Vec<Vec<String>> = goals::ALL.iter().filter_map(row).collect();
    match rows.is_empty() {
        true => String::new(),
        false => table(&head, &rows),
    }
}

fn faults(findings: &Findings) -> String {
    if findings.faults.is_empty() {
        return String::new();
    }
    format!(
        "Went wrong, and is not in the tables:\n- {}\n",
        findings.faults.join("\n- ")
    )
}

fn detail(findings: &Findings, scenario: Scenario, peer: Peer) -> Option<Vec<String>> {
    let of = |figure: fn(&Sample) -> f64| findings.spread(scenario, peer, figure);
    let three = |spread: Option<Spread>| match spread {
        Some(spread) => [spread.min, spread.median, spread.max].map(|us| format!("{us:.1}")),
        None => Default::default(),
    };
    let proxy = of(|sample| sample.proxy_us)?;
    let redis = match peer.needs_redis() {
        true => of(|sample| sample.redis_us),
        false => None,
    };
    let mut row = vec![peer.name().to_owned()];
    row.extend(three(Some(proxy)));
    row.extend(three(redis));
    row.push(format!("{:.0}", of(|sample| sample.per_second)?.median));
    for (share, most) in [
        (of(|sample| sample.busy)?, false),
        (of(|sample| sample.foreign)?, true),
    ] {
        let share = if most { share.max } else { share.median };
        row.push(format!("{:.0} %", share * 100.0));
    }
    Some(row)
}

/// The tables of docs/performance/figures.md.
pub fn page(findings: &Findings) -> String {
    let parts = [
        about(findings),
        "CPU per request of each proxy, us (+ that of Redis), medians:\n".to_owned(),
        cost(findings),
        "Answers at 2000 requests/s over 64 connections, and resident memory, medians:\n"
            .to_owned(),
        answers(findings),
        "Ratios, each within one round:\n".to_owned(),
        goals(findings),
        faults(findings),
        "<details><summary>All rounds: least, middle and most</summary>\n".to_owned(),
        details(findings),
        "</details>\n".to_owned(),
    ];
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("\n")
}
