//! `tidegate replay`: what these limits would have done to the requests of an access log.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::run::{accept, say};
use super::{DID_NOT_WORK, WRONG_USE};
use crate::config::{self, Config};
use crate::limit::key::HashSecret;
use crate::replay::engine::Engine;
use crate::replay::entry::LineFormat;
use crate::replay::export;
use crate::replay::json_entry::HeaderFrom;
use crate::replay::key_spaces::Prefixes;
use crate::replay::logs::{LogOptions, Logs};
use crate::replay::print::{self, Paint};
use crate::replay::report::{Report, ReportOptions};
use crate::replay::text::WantedFields;

mod progress;

/// `tidegate replay`
#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// Access logs, plain or gzip; `-` is standard input.
    #[arg(value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// The configuration whose limits to try.
    #[arg(short, long, value_name = "FILE", default_value = "proxy.toml")]
    config: PathBuf,
    /// Try this one limit instead of a configuration, for example 100/min.
    #[arg(long, value_name = "RATE", conflicts_with = "config")]
    limit: Option<String>,
    /// What that limit tells clients apart by.
    #[arg(long, value_name = "KEY", requires = "limit")]
    key: Option<String>,
    /// The format of all lines; without it each line's own is found.
    #[arg(long, value_enum)]
    format: Option<FormatWord>,
    /// A member of JSON lines that is a header of the request, for example x-api-key=consumer.
    #[arg(long, value_name = "HEADER=MEMBER")]
    header_from: Vec<String>,
    /// The host of requests whose log does not say it.
    #[arg(long, value_name = "NAME", default_value = "")]
    host: String,
    /// Find the smallest rates that hit at most this share of clients [default: 1%].
    #[arg(long, value_name = "SHARE", num_args = 0..=1, default_missing_value = "1%")]
    suggest: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write one page with plots; nothing else is needed to look at it.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show clients by a hash.
    #[arg(long)]
    hash_keys: bool,
    /// Keys of each rate that are kept in memory.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    max_keys: usize,
}

/// How `--format` names formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormatWord {
    /// Common log format.
    Common,
    /// Combined log format, with or without more behind it.
    Combined,
    /// One JSON object for each line: nginx, Traefik, Caddy, tidegate.
    Json,
    /// The short lines that tidegate writes for people.
    TidegateText,
}

/// Replays. Returns the exit code.
pub(super) fn replay(mut args: ReplayArgs) -> u8 {
    let wanted = match wanted(&mut args) {
        Ok(wanted) => wanted,
        Err(wrong) => {
            say(&format!("tidegate replay: {wrong}"));
            return WRONG_USE;
        }
    };
    let loaded = match &args.limit {
        Some(rate) => config::from_limit("tidegate replay", rate, args.key.as_deref()),
        None => config::load(&args.config),
    };
    match accept(loaded) {
        Ok(config) => match run(&args, config, wanted) {
            Ok(code) => code,
            Err(error) => {
                say(&format!("tidegate replay: {error}"));
                DID_NOT_WORK
            }
        },
        Err(code) => code,
    }
}

/// What is asked, besides the logs.
struct Asked {
    forms: LogOptions,
    suggest: Option<f64>,
}

/// What the arguments mean, or what is wrong with them.
fn wanted(args: &mut ReplayArgs) -> Result<Asked, String> {
    let mut suggest = None;
    if let Some(text) = &args.suggest {
        suggest = share(text);
        if suggest.is_none() {
            // `--suggest access.log`
            args.logs.push(text.into());
            suggest = Some(0.01);
        }
    }
    if args.logs.is_empty() {
        return Err("name a log; `-` is standard input".to_owned());
    }
    let header_from = |text: &String| {
        let (header, member) = text
            .split_once('=')
            .ok_or_else(|| format!("`--header-from {text}`: write HEADER=MEMBER"))?;
        Ok::<_, String>(HeaderFrom {
            header: header.to_owned(),
            member: member.to_owned(),
        })
    };
    let headers = args.header_from.iter().map(header_from);
    Ok(Asked {
        forms: LogOptions {
            format: args.format.map(|word| match word {
                FormatWord::Common => LineFormat::Common,
                FormatWord::Combined => LineFormat::Combined,
                FormatWord::Json => LineFormat::Json,
                FormatWord::TidegateText => LineFormat::OwnText,
            }),
            headers: headers.collect::<Result<_, _>>()?,
            wanted: WantedFields::ALL,
        },
        suggest,
    })
}

/// `1%`, `0.1 %`, `0.01`
fn share(text: &str) -> Option<f64> {
    let text = text.trim();
    let (number, whole) = match text.strip_suffix('%') {
        Some(number) => (number.trim_end(), 100.0),
        None => (text, 1.0),
    };
    let share: f64 = number.parse().ok()?;
    let share = share / whole;
    (0.0..=1.0).contains(&share).then_some(share)
}

fn run(args: &ReplayArgs, config: Config, asked: Asked) -> Result<u8, String> {
    let hash_key = match args.hash_keys {
        true => Some(secret(&config)?),
        false => None,
    };
    let options = ReportOptions {
        suggest: asked.suggest,
        hash_keys: hash_key,
        prefixes: Prefixes {
            ipv4: config.client_ip.ipv4_prefix,
            ipv6: config.client_ip.ipv6_prefix,
        },
    };
    let mut engine = Engine::new(config, &args.host, args.max_keys);
    let forms = LogOptions {
        wanted: engine.plan.wanted_fields(),
        ..asked.forms
    };
    let mut logs = Logs::open(&args.logs, &forms)
        .map_err(|(path, error)| format!("cannot read `{}`: {error}", path.display()))?;
    let mut progress = progress::Progress::new(&args.logs, &logs);
    logs.each(|line| {
        let taken = engine.take_line(line);
        progress.tick(engine.counts.totals.requests);
        taken
    });
    progress.end();
    let failed = logs.summaries.iter().any(|log| log.error.is_some());
    let report = Report::new(&engine, logs.summaries, &options);
    if let Some(path) = &args.html {
        std::fs::write(path, export::page(&report))
            .map_err(|error| format!("cannot write `{}`: {error}", path.display()))?;
    }
    let out = std::io::stdout();
    let text = match args.json {
        true => format!("{}\n", export::json(&report)),
        false => print::report(&report, Paint(super::colour(&out))),
    };
    // Nobody to tell where standard output is closed.
    let _ = out.lock().write_all(text.as_bytes());
    let nothing = report.requests == 0;
    if nothing {
        say("tidegate replay: no line could be read");
    }
    Ok(if failed || nothing { DID_NOT_WORK } else { 0 })
}

/// What keys are hashed with: the configuration's own secret, so that hashes are those of the logs
/// where they can be; else one of this report.
fn secret(config: &Config) -> Result<HashSecret, String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
    Ok(HashSecret::from_bytes(
        config.store.hash_key.unwrap_or(bytes),
    ))
}

/// Whether a bar would be seen.
fn has_terminal() -> bool {
    std::io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percents_or_parts() {
        for (text, expected) in [
            ("1%", Some(0.01)),
            ("0.1 %", Some(0.001)),
            ("0.05", Some(0.05)),
            ("0", Some(0.0)),
            ("access.log", None),
            ("101%", None),
            ("-1%", None),
            ("NaN", None),
        ] {
            assert_eq!(share(text), expected, "{text}");
        }
    }
}
