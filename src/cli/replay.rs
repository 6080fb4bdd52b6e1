//! `tidegate replay`: what these limits would have done to the requests of an access log.

use std::io::{IsTerminal, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use super::output::{CommandError, print, print_error, print_warnings, use_colour};
use super::{DID_NOT_WORK, WRONG_USE};
use crate::clock;
use crate::config::diagnostic::Diagnostics;
use crate::config::{self, Config};
use crate::limit::key::HashSecret;
use crate::replay::engine::Engine;
use crate::replay::entry::LineFormat;
use crate::replay::export;
use crate::replay::figures::counted;
use crate::replay::json::{HeaderFrom, MemberMapping, TokenFrom};
use crate::replay::logs::{LogOptions, Logs};
use crate::replay::patch::RatePatch;
use crate::replay::print::{Paint, report as render_report};
use crate::replay::report::{Report, ReportOptions};
use crate::replay::text::request_line;
use crate::replay::tokens::CallField;

/// The exit code of `--suggest` if the configuration has the suggested rates already.
const NOTHING_TO_CHANGE: u8 = 3;
/// Requests between two reads of the clock.
const REQUESTS_PER_TICK: u64 = 16_384;
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// Columns of the progress bar.
const BAR_WIDTH: usize = 24;

/// `tidegate replay`
#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// Access logs, plain or gzip; `-` is standard input.
    #[arg(value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// The configuration with the limits to try.
    #[arg(short, long, value_name = "FILE", default_value = "proxy.toml")]
    config: PathBuf,
    /// Try this one limit instead of a configuration, for example 100/min.
    #[arg(long, value_name = "RATE", conflicts_with = "config")]
    limit: Option<String>,
    /// The key that this limit counts by.
    #[arg(long, value_name = "KEY", requires = "limit")]
    key: Option<String>,
    /// The format of all lines; without it, the command detects the format of each line.
    #[arg(long, value_enum)]
    format: Option<ReplayFormat>,
    /// A member of JSON lines that is a header of the request, for example x-api-key=consumer.
    #[arg(long, value_name = "HEADER=MEMBER")]
    header_from: Vec<String>,
    /// A member of JSON lines that has tokens of a call, for example input=tokens.prompt. WHAT is
    /// model, input, cached, cache_write, output, total, maximum, body_bytes or reserved.
    #[arg(long, value_name = "WHAT=MEMBER")]
    usage_from: Vec<String>,
    /// The method and path of JSON lines without them, for example "POST /v1/chat/completions".
    #[arg(long, value_name = "LINE")]
    request: Option<String>,
    /// The host of requests, for logs without hosts.
    #[arg(long, value_name = "NAME", default_value = "")]
    host: String,
    /// Find the smallest rates that hit at most this share of clients [default: 1%], and print a
    /// patch of the configuration with them.
    #[arg(long, value_name = "SHARE", num_args = 0..=1, default_missing_value = "1%")]
    suggest: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write a page with plots, which needs no other file.
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
enum ReplayFormat {
    /// Common log format.
    Common,
    /// Combined log format, with or without more behind it.
    Combined,
    /// One JSON object for each line: nginx, Traefik, Caddy, tidegate.
    Json,
    /// The short lines that tidegate writes for people.
    TidegateText,
}

pub(super) fn replay(mut args: ReplayArgs) -> Result<u8, CommandError> {
    let error = |code, message| CommandError {
        code,
        text: format!("tidegate replay: {message}"),
    };
    let suggest = take_suggest(&mut args).map_err(|message| error(WRONG_USE, message))?;
    let forms = forms(&args).map_err(|message| error(WRONG_USE, message))?;
    let config = print_warnings(match &args.limit {
        Some(rate) => config::from_limit("tidegate replay", rate, args.key.as_deref()),
        None => config::load(&args.config).map_err(|found| with_limit_advice(found, &args.config)),
    })?;
    let replayed = Replayed::new(&args, config, forms, suggest);
    let replayed = replayed.map_err(|message| error(DID_NOT_WORK, message))?;
    replayed.print(&args, suggest.is_some())
}

/// A user without a file may want to try one limit on a log.
fn with_limit_advice(mut found: Diagnostics, file: &Path) -> Diagnostics {
    if let Some(first) = found.list.first_mut().filter(|_| !file.exists())
        && let Some(help) = &mut first.help
    {
        help.push_str(". To try one limit without a file: `tidegate replay --limit 100/min LOG`");
    }
    found
}

/// The share of `--suggest`. `--suggest access.log` names a log and means 1 %.
fn take_suggest(args: &mut ReplayArgs) -> Result<Option<f64>, String> {
    let Some(text) = args.suggest.as_ref() else {
        return Ok(None);
    };
    let share = parse_share(text);
    if share.is_none() {
        let log = PathBuf::from(text);
        if text != "-" && !log.exists() {
            return Err(format!(
                "`--suggest` takes a share such as 0.5%, at most 100%; there is no log `{text}`"
            ));
        }
        args.logs.push(log);
    }
    Ok(Some(share.unwrap_or(0.01)))
}

fn forms(args: &ReplayArgs) -> Result<LogOptions, String> {
    if args.logs.is_empty() {
        return Err("name a log; `-` is standard input".to_owned());
    }
    Ok(LogOptions {
        format: args.format.map(|format| match format {
            ReplayFormat::Common => LineFormat::Common,
            ReplayFormat::Combined => LineFormat::Combined,
            ReplayFormat::Json => LineFormat::Json,
            ReplayFormat::TidegateText => LineFormat::OwnText,
        }),
        mapping: mapping(args)?,
    })
}

fn mapping(args: &ReplayArgs) -> Result<MemberMapping, String> {
    let header_from = |text: &String| {
        let split = text.split_once('=');
        let (header, member) =
            split.ok_or_else(|| format!("`--header-from {text}`: write HEADER=MEMBER"))?;
        Ok::<_, String>(HeaderFrom {
            header: header.to_owned(),
            member: member.to_owned(),
        })
    };
    if let Some(request) = &args.request {
        request_line(request.as_bytes())
            .map_err(|_| format!("`--request {request}`: write a method and a path"))?;
    }
    Ok(MemberMapping {
        headers: (args.header_from.iter().map(header_from)).collect::<Result<_, _>>()?,
        tokens: (args.usage_from.iter())
            .map(|text| usage_from(text))
            .collect::<Result<_, _>>()?,
        request: args.request.clone(),
    })
}

fn usage_from(text: &str) -> Result<TokenFrom, String> {
    let words = CallField::WORDS.map(|(word, _)| word).join(", ");
    let wrong = || format!("`--usage-from {text}`: write WHAT=MEMBER, with WHAT one of {words}");
    let (word, member) = text.split_once('=').ok_or_else(wrong)?;
    Ok(TokenFrom {
        field: CallField::parse(word).ok_or_else(wrong)?,
        member: member.to_owned(),
    })
}

/// Reads `1%`, `0.1 %` or `0.01`.
fn parse_share(text: &str) -> Option<f64> {
    let text = text.trim();
    let (number, whole) = match text.strip_suffix('%') {
        Some(number) => (number.trim_end(), 100.0),
        None => (text, 1.0),
    };
    let share = number.parse::<f64>().ok()? / whole;
    (0.0..=1.0).contains(&share).then_some(share)
}

struct Replayed {
    engine: Engine,
    report: Report,
}

impl Replayed {
    fn new(
        args: &ReplayArgs,
        config: Config,
        forms: LogOptions,
        suggest: Option<f64>,
    ) -> Result<Replayed, String> {
        let wanted = ReportOptions {
            suggest,
            hash_keys: args.hash_keys.then(|| hash_secret(&config)).transpose()?,
        };
        let mut engine = Engine::new(config, &args.host, args.max_keys);
        let mut logs = Logs::open(&args.logs, &forms)
            .map_err(|(path, error)| format!("cannot read `{}`: {error}", path.display()))?;
        let mut progress = ReplayProgress::new(&args.logs, &logs);
        logs.each(|entry| {
            engine.take(entry);
            progress.update(engine.counts.totals.requests);
        });
        engine.finish();
        progress.clear();
        let report = Report::new(&engine, logs.summaries, &wanted);
        if let Some(path) = &args.html {
            std::fs::write(path, export::page(&report))
                .map_err(|error| format!("cannot write `{}`: {error}", path.display()))?;
        }
        Ok(Replayed { engine, report })
    }

    /// Prints the report. If it goes to standard error, a patch goes to standard output.
    fn print(&self, args: &ReplayArgs, suggests: bool) -> Result<u8, CommandError> {
        let Replayed { report, .. } = self;
        let with_patch = suggests && !args.json && args.limit.is_none();
        if args.json {
            print(format!("{}\n", export::json(report)))?;
        } else if with_patch {
            print_error(render_report(report, Paint(use_colour(&std::io::stderr()))).trim_end());
        } else {
            print(render_report(report, Paint(use_colour(&std::io::stdout()))))?;
        }
        let nothing = report.requests == 0;
        if nothing {
            print_error(
                "tidegate replay: no line could be read; name the format of the lines with \
                 `--format`: common, combined, json or tidegate-text",
            );
        }
        if nothing || report.logs.iter().any(|log| log.error.is_some()) {
            return Ok(DID_NOT_WORK);
        }
        match with_patch {
            true => self.print_patch(&args.config),
            false => Ok(0),
        }
    }

    fn print_patch(&self, file: &Path) -> Result<u8, CommandError> {
        let name = name_in_patch(file);
        let patch = RatePatch::new(&self.engine, &self.report, &name.to_string_lossy());
        for note in &patch.notes {
            print_error(&format!("note: {note}"));
        }
        let shown = file.display();
        if patch.diff.is_empty() {
            print_error(&format!("tidegate replay: nothing to change in {shown}"));
            return Ok(NOTHING_TO_CHANGE);
        }
        config::load_text(file, &patch.text)?;
        let changed = counted(patch.changed as u64, "rate");
        print_error(&format!(
            "tidegate replay: the patch changes {changed} of {shown}"
        ));
        print(patch.diff)?;
        Ok(0)
    }
}

/// The path from this folder if the file is below it, else the name of the file. `git apply` takes
/// the paths of a patch from its own folder, where another file may have the same name.
fn name_in_patch(file: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    let below: PathBuf = file
        .strip_prefix(&here)
        .unwrap_or(file)
        .components()
        .collect();
    let below = below.strip_prefix(".").unwrap_or(&below);
    match below
        .components()
        .all(|part| matches!(part, Component::Normal(_)))
    {
        true => below.to_owned(),
        false => file.file_name().unwrap_or_default().into(),
    }
}

/// Returns the configured secret that keys are hashed with, so that hashes are those of the logs.
/// Without one, returns a random secret.
fn hash_secret(config: &Config) -> Result<HashSecret, String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
    let configured = config.store.hash_key.as_ref().map(|secret| secret.0);
    Ok(HashSecret::from_bytes(configured.unwrap_or(bytes)))
}

/// The progress of a replay: one line on a terminal, and nothing elsewhere.
struct ReplayProgress {
    /// The last redraw; none if standard error is not a terminal.
    drawn: Option<Instant>,
    started: Instant,
    /// Bytes read.
    read: Arc<AtomicU64>,
    /// Bytes of all logs; 0 if unknown.
    total: u64,
    is_visible: bool,
}

impl ReplayProgress {
    fn new(paths: &[PathBuf], logs: &Logs) -> ReplayProgress {
        let length = |path: &PathBuf| match path.as_path() == Path::new("-") {
            true => None,
            false => std::fs::metadata(path).ok().map(|file| file.len()),
        };
        let now = clock::now();
        ReplayProgress {
            drawn: std::io::stderr().is_terminal().then_some(now),
            started: now,
            read: Arc::clone(&logs.read),
            total: paths.iter().map(length).sum::<Option<u64>>().unwrap_or(0),
            is_visible: false,
        }
    }

    /// Redraws the line from time to time.
    fn update(&mut self, requests: u64) {
        if let Some(drawn) = self.drawn
            && requests.is_multiple_of(REQUESTS_PER_TICK)
            && drawn.elapsed() >= REDRAW_INTERVAL
        {
            let now = clock::now();
            self.drawn = Some(now);
            self.draw(requests, now);
        }
    }

    fn draw(&mut self, requests: u64, now: Instant) {
        let seconds = now.duration_since(self.started).as_secs_f64().max(1e-3);
        let mut line = String::from("\r");
        if self.total > 0 {
            let read = self.read.load(Ordering::Relaxed);
            let share = (read as f64 / self.total as f64).min(1.0);
            let full = (share * BAR_WIDTH as f64) as usize;
            let left = seconds / share.max(1e-6) - seconds;
            line.push_str(&"█".repeat(full));
            line.push_str(&"░".repeat(BAR_WIDTH - full));
            let percent = share * 100.0;
            line.push_str(&format!(" {percent:3.0} %  {left:.0} s left  "));
        }
        let millions = requests as f64 / 1e6;
        let speed = millions / seconds;
        line.push_str(&format!("{millions:.1}M requests, {speed:.2}M/s\u{1b}[K"));
        let _ = std::io::stderr().write_all(line.as_bytes());
        self.is_visible = true;
    }

    fn clear(&mut self) {
        if self.is_visible {
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
        }
    }
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
            assert_eq!(parse_share(text), expected, "{text}");
        }
    }
}
