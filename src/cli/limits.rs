//! `tidegate limits`: shows, resets, overrides and blocks single clients, on every proxy within a
//! second.
//!
//! With a shared store, the command itself opens Redis with the proxies' configuration. Redis and
//! its log of changes get only hashes of client keys. With the embedded store, and with `--admin`,
//! the command asks the proxy's admin: only that process has the counts, and the secret that keys
//! are hashed with.

mod backend;
mod print;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::admin_client::{AdminArgs, AdminClient};
use super::display::short_hash;
use super::output::{self, CommandError};
use crate::admin::operator_store::{
    ChangeDone, ChangeFailure, ChangeOrder, ClientChange, KeyUsage, RecordReport, WindowUsage,
};
use crate::config::{self, Config, StoreKind};
use crate::limit::key::{KeyHashPrefix, SHOWN};
use crate::limit::rate::parse_duration;
use crate::limit::{Limit, Rule};
use crate::store::overrides::{self, ChangeKind, MAX_RECORDS, RecordTerms, clean};
use backend::{ProxyProcess, SharedStore};
use print::{ChangeReport, KeyReport, ListReport, ResetReport, key_text, timestamp, until_text};

/// The longest `--for`: ten years.
const LONGEST_US: u128 = 10 * 366 * 86_400_000_000;

/// Long options that look like a hash.
const OPTIONS: [&str; 4] = ["--config", "--remove", "--token-file", "--version"];

#[derive(Debug, Args)]
pub(super) struct LimitsArgs {
    /// The configuration that the proxies run.
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "proxy.toml",
        global = true
    )]
    config: PathBuf,
    /// Ask the running proxy with this admin, in place of the file: `127.0.0.1:9180`.
    #[arg(long, value_name = "ADDRESS", global = true)]
    admin: Option<String>,
    /// A file with the admin's token, if the command cannot find the proxy's own.
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// Print one line of JSON instead of text.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: LimitsSubcommand,
}

#[derive(Debug, Subcommand)]
enum LimitsSubcommand {
    /// List the limits, and every override and block in force.
    Ls {
        /// Also list the last 1000 changes, newest first.
        #[arg(long)]
        audit: bool,
    },
    /// Show the usage of one client.
    Show(KeyArgs),
    /// Set the counts of one client to zero.
    Reset(KeyArgs),
    /// Give one client another rate.
    #[command(
        override_usage = "tidegate limits override LIMIT KEY... RATE [--for 24h]\n       \
                                tidegate limits override LIMIT KEY... --remove"
    )]
    Override(OverrideArgs),
    /// Deny every request of one client.
    Block(BlockArgs),
    /// End the block or the ban of one client.
    Unblock(UnblockArgs),
}

#[derive(Debug, Args)]
struct KeyArgs {
    /// The limit's name.
    limit: String,
    /// The client: `PART=VALUE` for each part of the limit's key, or a plain value. Also a hash
    /// from logs, `top` or `tap`, `tag=HASH`, or the id of a denied request.
    #[arg(required = true)]
    key: Vec<String>,
}

#[derive(Debug, Args)]
struct OverrideArgs {
    /// The limit's name.
    limit: String,
    /// The client, as in `show`; then the rate: `50/min`, `10/s,1000/h`, `unlimited`, or a plain
    /// number for a limit with `concurrent`.
    #[arg(required = true, value_name = "KEY... RATE")]
    words: Vec<String>,
    #[command(flatten)]
    terms: TermsArgs,
}

#[derive(Debug, Args)]
struct BlockArgs {
    /// The client: an address or an API key (plain, or `ip=..`, `api_key=..`), or any key of a
    /// limit (`PART=VALUE`..). Also a hash from logs, `top` or `tap`, `tag=HASH`, or the id of a
    /// denied request.
    #[arg(required = true)]
    key: Vec<String>,
    #[command(flatten)]
    terms: TermsArgs,
}

#[derive(Debug, Args)]
struct UnblockArgs {
    /// The client, as in `block`.
    #[arg(required = true)]
    key: Vec<String>,
    /// The reason, which `ls --audit` shows.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

#[derive(Debug, Args)]
struct TermsArgs {
    /// How long it lasts: `30min`, `24h`, `7d`; without it, until `--remove`.
    #[arg(long = "for", value_name = "TIME", conflicts_with = "remove")]
    lasts: Option<String>,
    /// The reason, which `ls` shows.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Remove it.
    #[arg(long)]
    remove: bool,
}

/// Says why a change for a limit, or a block, was not made.
fn change_error(failure: ChangeFailure, limit: Option<&Arc<Limit>>) -> CommandError {
    match (failure, limit) {
        (ChangeFailure::Store(error), _) => error.into(),
        (ChangeFailure::NothingToRemove, Some(limit)) => {
            CommandError::failed(format!("that key has no override in `{}`", limit.name))
        }
        (ChangeFailure::NothingToRemove, None) => CommandError::failed("that key is not blocked"),
        (ChangeFailure::TooManyRecords, _) => CommandError::failed(format!(
            "there are {MAX_RECORDS} overrides and blocks already, as many as there may be"
        ))
        .help("remove some, or write a limit or a `[[bypass]]` for the whole group"),
    }
}

/// The place of the counts: Redis, or the memory of a running proxy.
trait CountsBackend {
    fn overrides(&mut self) -> Result<Vec<RecordReport>, CommandError>;

    /// The last changes, newest first.
    fn changes(&mut self) -> Result<Vec<RecordReport>, CommandError>;

    fn show(&mut self, limit: &Arc<Limit>, words: &[String]) -> Result<KeyUsage, CommandError>;

    fn change(
        &mut self,
        words: &[String],
        order: ChangeOrder<'_>,
    ) -> Result<ChangeDone, CommandError>;
}

pub(super) fn limits(args: &LimitsArgs) -> Result<u8, CommandError> {
    let admin = AdminArgs {
        config: args.config.clone(),
        admin: args.admin.clone(),
        token_file: args.token_file.clone(),
    };
    let config = match args.admin {
        Some(_) => AdminClient::new(&admin)?.config(&args.config)?,
        None => output::load(&args.config)?,
    };
    let command = LimitsCommand {
        config: &config,
        admin: &admin,
        json: args.json,
    };
    output::print(match &args.command {
        LimitsSubcommand::Ls { audit } => command.list(*audit),
        LimitsSubcommand::Show(args) => command.show(args),
        LimitsSubcommand::Reset(args) => command.reset(args),
        LimitsSubcommand::Override(args) => command.set_override(args),
        LimitsSubcommand::Block(args) => command.block(&args.key, &args.terms),
        LimitsSubcommand::Unblock(args) => {
            let terms = TermsArgs {
                lasts: None,
                note: args.note.clone(),
                remove: true,
            };
            command.block(&args.key, &terms)
        }
    }?)?;
    Ok(0)
}

/// The configuration and the options of every subcommand.
struct LimitsCommand<'c> {
    config: &'c Config,
    admin: &'c AdminArgs,
    json: bool,
}

impl LimitsCommand<'_> {
    fn backend(&self) -> Result<Box<dyn CountsBackend + '_>, CommandError> {
        let (config, file) = (self.config, &self.admin.config);
        match &config.store.kind {
            _ if self.admin.admin.is_some() => Ok(Box::new(ProxyProcess::at(config, self.admin)?)),
            StoreKind::Redis(server) => Ok(Box::new(SharedStore::open(config, file, server)?)),
            StoreKind::Memory if config.admin.is_some() => {
                Ok(Box::new(ProxyProcess::at(config, self.admin)?))
            }
            StoreKind::Memory => Err(CommandError::failed(format!(
                "{} keeps counts in the proxy's own process, out of reach of this command",
                file.display()
            ))
            .help(
                "write `admin = \"127.0.0.1:9180\"` at its top and restart the proxy, name the \
                 address of a demo with `--admin`, or set `[store] url` to a Redis",
            )),
        }
    }

    fn limit(&self, name: &str) -> Result<&Arc<Limit>, CommandError> {
        let limits = &self.config.limits;
        if let Some(limit) = limits.iter().find(|limit| *limit.name == *name) {
            return Ok(limit);
        }
        let place = match &self.admin.admin {
            Some(admin) => format!("the proxy at {admin}"),
            None => self.admin.config.display().to_string(),
        };
        let error = CommandError::wrong_use(format!("there is no limit `{name}` in {place}"));
        let near = limits
            .iter()
            .map(|limit| (strsim::osa_distance(name, &limit.name), &limit.name))
            .filter(|(distance, _)| *distance <= (name.len() / 3).max(1))
            .min_by_key(|(distance, _)| *distance);
        Err(match near {
            Some((_, near)) => error.help(format!("did you mean `{near}`?")),
            None => error.help("`tidegate limits ls` lists them"),
        })
    }

    /// The text for people, or the report as a line of JSON.
    fn render(&self, report: &impl Serialize, text: String) -> Result<String, CommandError> {
        if !self.json {
            return Ok(text);
        }
        let json = serde_json::to_string(report);
        let json = json.map_err(|error| CommandError::failed(error.to_string()))?;
        Ok(json + "\n")
    }

    fn list(&self, audit: bool) -> Result<String, CommandError> {
        let mut backend = self.backend()?;
        let overrides = backend.overrides()?;
        let changes = audit.then(|| backend.changes()).transpose()?;
        let report = ListReport::new(&self.config.limits, &overrides, changes.as_deref());
        self.render(&report, report.text())
    }

    fn show(&self, args: &KeyArgs) -> Result<String, CommandError> {
        // `top`, the dashboard and logs name a candidate so.
        let name = args.limit.strip_suffix("~candidate");
        let limit = self.limit(name.unwrap_or(&args.limit))?;
        let mut usage = self.backend()?.show(limit, &args.key)?;
        if name.is_some() {
            if limit.candidate.is_empty() {
                let limit = &limit.name;
                return Err(CommandError::wrong_use(format!(
                    "`{limit}` has no candidate"
                )));
            }
            let of = |window: &WindowUsage| window.of.as_deref() == Some("candidate");
            usage.windows.retain(of);
        }
        let report = KeyReport::new(&usage);
        self.render(&report, report.text())
    }

    fn reset(&self, args: &KeyArgs) -> Result<String, CommandError> {
        let limit = self.limit(&args.limit)?;
        let order = ChangeOrder {
            kind: ClientChange::Reset,
            limit: Some(limit),
            lasts_us: 0,
            terms: RecordTerms {
                by: user(),
                ..RecordTerms::default()
            },
        };
        let done = self.backend()?.change(&args.key, order)?;
        let (limit, key) = (&*limit.name, key_text(&done.id, &done.key));
        // The embedded store does not report how many counts there were.
        let deleted = done.deleted.unwrap_or(1);
        let text = match deleted {
            0 => format!("{limit}: nothing was counted for key {key}\n"),
            _ => format!("{limit}: key {key} starts at zero within a second\n"),
        };
        let report = ResetReport {
            limit,
            tag: &done.id,
            deleted,
        };
        self.render(&report, text)
    }

    fn set_override(&self, args: &OverrideArgs) -> Result<String, CommandError> {
        let limit = self.limit(&args.limit)?;
        let (mut words, mut rules) = (&args.words[..], Vec::new());
        if !args.terms.remove {
            let split = args.words.split_last().filter(|(_, key)| !key.is_empty());
            let (rate, key) = split.ok_or_else(|| {
                CommandError::wrong_use("after the key, the rate is missing")
                    .help("write for example `50/min` or `unlimited`, or `--remove`")
            })?;
            (words, rules) = (key, read_rules(rate, limit)?);
        }
        let terms = RecordTerms {
            unlimited: rules.is_empty() && !args.terms.remove,
            rules,
            ..RecordTerms::default()
        };
        let (name, rates) = (&limit.name, terms.rates().unwrap_or_default());
        let done = self.set_terms(&args.terms, Some(limit), words, terms)?;
        let key = key_text(&done.id, &done.key);
        self.changed(
            Some(limit),
            &done,
            match args.terms.remove {
                true => format!("{name}: key {key} has the limit's own rate again\n"),
                false => format!("{name}: key {key} has {rates} {}\n", until_text(done.until)),
            },
        )
    }

    fn block(&self, key: &[String], args: &TermsArgs) -> Result<String, CommandError> {
        let done = self.set_terms(args, None, key, RecordTerms::default())?;
        let key = key_text(&done.id, &done.key);
        self.changed(
            None,
            &done,
            match args.remove {
                true => format!("key {key} is not blocked; its denials and bans are forgotten\n"),
                false => format!("key {key} is blocked {}\n", until_text(done.until)),
            },
        )
    }

    fn set_terms(
        &self,
        args: &TermsArgs,
        limit: Option<&Arc<Limit>>,
        words: &[String],
        terms: RecordTerms,
    ) -> Result<ChangeDone, CommandError> {
        let terms = RecordTerms {
            kind: match args.remove {
                true => ChangeKind::Remove,
                false => ChangeKind::Set,
            },
            by: user(),
            note: clean(args.note.as_deref().unwrap_or_default()),
            ..terms
        };
        let lasts_us = lasts_us(args.lasts.as_deref())?;
        let order = ChangeOrder {
            kind: limit.map_or(ClientChange::Block, |_| ClientChange::Override),
            limit,
            lasts_us,
            terms,
        };
        self.backend()?.change(words, order)
    }

    fn changed(
        &self,
        limit: Option<&Arc<Limit>>,
        done: &ChangeDone,
        text: String,
    ) -> Result<String, CommandError> {
        let report = ChangeReport {
            limit: limit.map(|limit| &*limit.name),
            key: short_hash(&done.id),
            tag: &done.id,
            until: done.until.map(timestamp),
        };
        self.render(&report, text)
    }
}

/// The user that makes a change: `ann@desk`.
pub(super) fn user() -> String {
    let variables = ["SUDO_USER", "USER", "LOGNAME"];
    let mut names = variables
        .iter()
        .filter_map(|name| config::environment(name));
    let user = names.find(|name| !name.is_empty());
    let user = user.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string());
    let system = rustix::system::uname();
    format!("{user}@{}", system.nodename().to_string_lossy())
}

/// Marks hashes that begin with `-` with `tag=`, so that they are not taken for options. One of 64
/// hashes begins so.
pub(super) fn with_hashes(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    if words.get(1).is_none_or(|command| command != "limits") {
        return words;
    }
    for word in &mut words[2..] {
        let Some(text) = word.to_str() else { continue };
        let is_option = match text.strip_prefix("-c") {
            Some(file) => Path::new(file).exists(),
            None => OPTIONS.contains(&text),
        };
        let is_hash = KeyHashPrefix::parse(text).is_some_and(|one| one.text().len() >= SHOWN);
        if text.starts_with('-') && is_hash && !is_option {
            *word = format!("tag={text}").into();
        }
    }
    words
}

/// Reads the rates of an override; none for `unlimited`.
fn read_rules(text: &str, limit: &Limit) -> Result<Vec<Rule>, CommandError> {
    let rules = overrides::rules(text, limit);
    rules.map_err(|error| CommandError::wrong_use(error.message).maybe_help(error.help))
}

/// Reads `--for`, microseconds; 0 if there is none.
fn lasts_us(text: Option<&str>) -> Result<u64, CommandError> {
    let Some(text) = text else { return Ok(0) };
    let wrong = |why: &str| {
        CommandError::wrong_use(format!("`--for {text}`: {why}")).help(
            "write for example `30min`, `24h` or `7d`; without `--for` it lasts until `--remove`",
        )
    };
    let lasts = parse_duration(text).map_err(|error| wrong(&error.to_string()))?;
    match lasts.as_micros() {
        0 => Err(wrong("that has ended already")),
        us if us > LONGEST_US => Err(wrong("at most ten years have an end")),
        us => Ok(u64::try_from(us).unwrap_or(u64::MAX)),
    }
}
