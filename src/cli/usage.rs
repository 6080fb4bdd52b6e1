//! `tidegate usage`: what each client used, by day, for invoices.
//!
//! With a shared store the command reads Redis with the proxies' configuration. With the embedded
//! store it asks the proxy's admin: only that process has the ledger.

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use super::DID_NOT_WORK;
use super::admin_client::{AdminArgs, AdminClient, percent_encoded};
use super::check::store_failure;
use super::display::{self, StyledSpan, render_lines, replace_controls};
use super::output::{self, CommandError};
use crate::admin::billing::{BilledRow, BilledUsage, UsageFailure, UsageQuery, UsageTexts};
use crate::clock;
use crate::config::{Config, StoreKind};
use crate::ledger::LedgerSettings;
use crate::store::redis::ledger_client::{LedgerReader, MissingHash, UnreadableValue};

/// Rows of a report, at most.
const MAX_ROWS: usize = 1_000_000;
/// Millionths of a unit of the currency.
const MILLIONTHS: u64 = 1_000_000;

#[derive(Debug, Args)]
pub(super) struct UsageArgs {
    /// The configuration that the proxies run.
    #[arg(short, long, value_name = "FILE", default_value = "proxy.toml")]
    config: PathBuf,
    /// The first day, for example 2026-11-01. The default is the first of the month of `--to`.
    #[arg(long, value_name = "DAY")]
    from: Option<String>,
    /// The last day, included. The default is today in the zone of the ledger.
    #[arg(long, value_name = "DAY")]
    to: Option<String>,
    /// What a line is for: `client`, `day` or `month`, or two of them with a comma.
    #[arg(long, value_name = "WORDS", default_value = "client,day")]
    by: String,
    /// Print CSV, for spreadsheets and invoices. Money is in units of the currency.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print one line of JSON instead of text. Money is in millionths of the currency.
    #[arg(long)]
    json: bool,
}

pub(super) fn usage(args: &UsageArgs) -> Result<u8, CommandError> {
    let config = output::load(&args.config)?;
    let Some(settings) = &config.ledger else {
        let file = args.config.display();
        return Err(CommandError::failed(format!("{file} has no `[ledger]`"))
            .help("write `[ledger]` at its end; the proxies add usage up from then on"));
    };
    let (usage, code) = read(args, &config, settings)?;
    output::print(match (args.csv, args.json) {
        (true, _) => csv(&usage),
        (_, true) => json(&usage)?,
        _ => text(&usage),
    })?;
    Ok(code)
}

/// Returns the sums and the exit code, which is not 0 if a part of the ledger could not be read.
fn read(
    args: &UsageArgs,
    config: &Config,
    settings: &LedgerSettings,
) -> Result<(BilledUsage, u8), CommandError> {
    let texts = UsageTexts {
        from: args.from.as_deref(),
        to: args.to.as_deref(),
        by: Some(&args.by),
    };
    let query = UsageQuery::read(texts, settings, clock::unix_us());
    let query = query.map_err(CommandError::wrong_use)?;
    let StoreKind::Redis(server) = &config.store.kind else {
        return Ok((ask_proxy(args, config)?, 0));
    };
    let failed = |failure: UsageFailure| match failure {
        UsageFailure::Store(why) => store_failure(why, config, &args.config),
        UsageFailure::TooManyRows(_) => CommandError::failed(failure.to_string()),
    };
    let reader = LedgerReader::new(&config.store, server);
    let mut reader = reader.map_err(|error| failed(UsageFailure::Store(error)))?;
    let query = query.with_rows(MAX_ROWS);
    let answer = query.answer(settings, |date| reader.read(date));
    for UnreadableValue { hash, field } in reader.unreadable() {
        let field = replace_controls(field);
        output::print_error(&format!(
            "warning: the field `{field}` of `{hash}` in Redis is no integer; no sum has it"
        ));
    }
    let usage = answer.map_err(failed)?;
    for line in missing_lines(reader.missing()) {
        output::print_error(&line);
    }
    let code = if reader.missing().is_empty() {
        0
    } else {
        DID_NOT_WORK
    };
    Ok((usage, code))
}

/// A line for each node that did not answer.
fn missing_lines(missing: &[MissingHash]) -> Vec<String> {
    let mut nodes: Vec<(&MissingHash, usize)> = Vec::new();
    for one in missing {
        match nodes.iter_mut().find(|(first, _)| first.node == one.node) {
            Some((_, count)) => *count += 1,
            None => nodes.push((one, 1)),
        }
    }
    let line = |(first, count): (&MissingHash, usize)| {
        let MissingHash { hash, node, error } = first;
        let node = node
            .as_ref()
            .map_or("no master".to_owned(), ToString::to_string);
        format!(
            "error: no sum has the {count} hashes of the ledger on {node} (first: `{hash}`): \
             {error}"
        )
    };
    nodes.into_iter().map(line).collect()
}

fn ask_proxy(args: &UsageArgs, config: &Config) -> Result<BilledUsage, CommandError> {
    if config.admin.is_none() {
        return Err(CommandError::failed(format!(
            "{} keeps the ledger in the proxy's own process, out of reach of this command",
            args.config.display()
        ))
        .help("write `admin = \"127.0.0.1:9180\"` at its top, or set `[store] url` to a Redis"));
    }
    let client = AdminClient::new(&AdminArgs {
        config: args.config.clone(),
        admin: None,
        token_file: None,
    })?;
    let given = [
        ("from", args.from.as_deref()),
        ("to", args.to.as_deref()),
        ("by", Some(args.by.as_str())),
    ];
    let pairs = given.iter().filter_map(|(name, text)| {
        let text = percent_encoded((*text)?, "");
        Some(format!("{name}={text}"))
    });
    let pairs: Vec<String> = pairs.collect();
    let path = format!("/api/v1/usage?{}", pairs.join("&"));
    let answer: Value = client.wait(client.get(&path))?;
    serde_json::from_value(answer)
        .map_err(|error| CommandError::failed(format!("the proxy's answer is none: {error}")))
}

fn json(usage: &BilledUsage) -> Result<String, CommandError> {
    let json = serde_json::to_string(usage);
    let json = json.map_err(|error| CommandError::failed(error.to_string()))?;
    Ok(json + "\n")
}

/// A table for people, with a line of the sums.
fn text(usage: &BilledUsage) -> String {
    let counts: Vec<String> = usage
        .counts
        .iter()
        .map(|count| format!(">{count}"))
        .collect();
    // Only then can a reader confuse two lines.
    let is_like_a_line = |row: &BilledRow| {
        row.kind.as_deref() == Some("client")
            && matches!(row.client.as_deref(), Some("unknown" | "other"))
    };
    let has_kind = usage.rows.iter().any(is_like_a_line);
    let columns = columns(usage, has_kind);
    let head = columns.into_iter().chain(counts.iter().map(String::as_str));
    let head: Vec<&str> = head.collect();
    let cells = |row| {
        let texts = periods(usage, row, has_kind);
        texts.chain(amounts(usage, row)).collect()
    };
    let mut rows: Vec<Vec<String>> = usage.rows.iter().map(cells).collect();
    let total = BilledRow {
        requests: usage.total.requests,
        tokens: usage.total.tokens,
        money: usage.total.money,
        ..BilledRow::default()
    };
    let mut sums = cells(&total);
    sums[0] = "total".to_owned();
    rows.push(sums);
    let spans = |row: Vec<String>| row.iter().map(StyledSpan::plain).collect();
    let lines = display::table(&head, rows.into_iter().map(spans).collect());
    let (from, to, zone) = (&usage.from, &usage.to, &usage.zone);
    format!("{from} to {to}, {zone}\n{}", render_lines(&lines, false))
}

/// RFC 4180, with a line of names.
fn csv(usage: &BilledUsage) -> String {
    let names = columns(usage, true).into_iter().map(str::to_owned);
    let names = names.chain(usage.counts.iter().cloned()).collect();
    let cells = |row| {
        let texts = periods(usage, row, true).map(|text| csv_text(&text));
        texts.chain(amounts(usage, row)).collect()
    };
    let lines = std::iter::once(names).chain(usage.rows.iter().map(cells));
    lines
        .map(|cells: Vec<String>| cells.join(",") + "\r\n")
        .collect()
}

/// A cell of CSV. A spreadsheet must not take a client's name for a formula.
fn csv_text(text: &str) -> String {
    let text = replace_controls(text);
    let text = match text.starts_with(['=', '+', '-', '@']) {
        true => format!("'{text}"),
        false => text,
    };
    match text.contains(['"', ',']) || text.trim() != text {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

/// The names of the columns that say what a row is for.
fn columns(usage: &BilledUsage, has_kind: bool) -> Vec<&str> {
    let by = usage.by.iter().flat_map(|column| match column.as_str() {
        "client" if has_kind => vec!["client", "kind"],
        column => vec![column],
    });
    by.collect()
}

/// The texts of a row in these columns.
fn periods(usage: &BilledUsage, row: &BilledRow, has_kind: bool) -> impl Iterator<Item = String> {
    let text = |column| match column {
        "client" => row.client.clone(),
        "kind" => row.kind.clone(),
        "day" => row.day.clone(),
        _ => row.month.clone(),
    };
    let columns = columns(usage, has_kind).into_iter();
    columns.map(move |column| text(column).unwrap_or_default())
}

fn amounts(usage: &BilledUsage, row: &BilledRow) -> impl Iterator<Item = String> {
    usage.counts.iter().map(|count| match count.as_str() {
        "requests" => row.requests.to_string(),
        "tokens" => row.tokens.to_string(),
        _ => money(row.money),
    })
}

/// Millionths as a decimal: `1.250000`.
fn money(millionths: i64) -> String {
    let sign = if millionths < 0 { "-" } else { "" };
    let all = millionths.unsigned_abs();
    format!("{sign}{}.{:06}", all / MILLIONTHS, all % MILLIONTHS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(client: &str) -> BilledUsage {
        let row = BilledRow {
            day: Some("2026-11-26".to_owned()),
            client: Some(client.to_owned()),
            kind: Some("client".to_owned()),
            requests: 12,
            money: 1_250_000,
            ..BilledRow::default()
        };
        BilledUsage {
            from: "2026-11-01".to_owned(),
            to: "2026-11-26".to_owned(),
            zone: "UTC".to_owned(),
            by: vec!["client".to_owned(), "day".to_owned()],
            counts: vec!["requests".to_owned(), "money".to_owned()],
            rows: vec![row],
            ..BilledUsage::default()
        }
    }

    #[test]
    fn a_line_of_csv_has_the_columns_that_were_asked_for() {
        let line = |client: &str| csv(&usage(client)).split("\r\n").nth(1).map(str::to_owned);
        assert_eq!(
            csv(&usage("a")).split("\r\n").next(),
            Some("client,kind,day,requests,money")
        );
        for (name, cell) in [
            ("acme", "acme"),
            ("a\",b", "\"a\"\",b\""),
            ("=1+1", "'=1+1"),
            ("@a,b", "\"'@a,b\""),
            ("a\r\n\u{1b}b", "a\u{fffd}\u{fffd}\u{fffd}b"),
        ] {
            let expected = format!("{cell},client,2026-11-26,12,1.250000");
            assert_eq!(line(name), Some(expected), "{name:?}");
        }
    }

    #[test]
    fn csv_tells_the_line_of_others_from_a_client_of_that_name() {
        let mut usage = usage("other");
        let mut others = BilledRow {
            kind: Some("other".to_owned()),
            ..usage.rows[0].clone()
        };
        others.requests = -3;
        usage.rows.push(others);
        let csv = csv(&usage);
        assert!(csv.contains("other,client,2026-11-26,12,"), "{csv}");
        assert!(csv.contains("other,other,2026-11-26,-3,"), "{csv}");
    }

    #[test]
    fn a_table_has_the_kind_only_if_a_client_has_the_name_of_a_line() {
        let second = |client| text(&usage(client)).lines().nth(1).map(str::to_owned);
        assert!(!second("acme").unwrap().contains("kind"));
        assert!(second("unknown").unwrap().contains("client   kind    day"));
    }

    #[test]
    fn money_is_a_decimal() {
        for (millionths, text) in [
            (0, "0.000000"),
            (-1, "-0.000001"),
            (12_000_001, "12.000001"),
        ] {
            assert_eq!(money(millionths), text);
        }
    }

    #[test]
    fn a_table_ends_with_the_sums() {
        let text = text(&usage("acme"));
        assert!(
            text.starts_with("2026-11-01 to 2026-11-26, UTC\n"),
            "{text}"
        );
        assert!(text.lines().last().unwrap().starts_with("total"), "{text}");
    }
}
