//! `tidegate limits`: how single clients stand, and another rate, a fresh start or a closed door
//! for one of them, on every proxy within a second.
//!
//! It speaks to the Redis that the proxies share, with the same configuration as they: Redis and
//! its log of changes see the hash of a client's key only. Where counts are in a proxy's own memory
//! it asks that proxy's admin, which alone knows the secret that keys are hashed with.

mod json;
mod place;
mod print;
mod rate;
mod words;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};

use super::run;
use super::trouble::Trouble;
use crate::config::{self, Config, StoreKind};
use crate::key_selector::{
    KeySelectionErrorKind, KeySelector, SelectedKey, client_usage, hash_prefix, limit_checks,
    windows_of_key,
};
use crate::limit::key::key_hash_prefix::KeyHashPrefix;
use crate::limit::{KeyHash, Limit, LimitCheck};
use crate::store::overrides::{
    ChangeKind, ChangeOutcome, MAX_RECORDS, OverrideChange, OverrideList, RecordTerms, Subject,
    clean,
};
use crate::store::redis::OverrideClient;
use json::Json;
use place::{Asked, Place, Process};
use print::Shown;
pub(super) use words::with_hashes;

/// Characters of a request's id, at least; the proxy's own have 16.
const SHORTEST_ID: usize = 8;

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
    /// One line of JSON instead of text.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the limits, and every override and block in force.
    Ls {
        /// And the last 1000 changes, newest first.
        #[arg(long)]
        audit: bool,
    },
    /// Show how one client stands.
    Show(Target),
    /// Forget what is counted for one client.
    Reset(Target),
    /// Give one client another rate.
    #[command(
        override_usage = "tidegate limits override LIMIT KEY... RATE [--for 24h]\n       \
                                tidegate limits override LIMIT KEY... --remove"
    )]
    Override(OverrideArgs),
    /// Keep one client out, whatever it asks for.
    Block(BlockArgs),
}

#[derive(Debug, Args)]
struct Target {
    /// The limit's name.
    limit: String,
    /// Whose: `PART=VALUE` for each part of the limit's key, a plain value, a hash as logs, `top`
    /// and `tap` show it, `tag=HASH`, or the id of a request that was denied.
    #[arg(required = true)]
    key: Vec<String>,
}

#[derive(Debug, Args)]
struct OverrideArgs {
    /// The limit's name.
    limit: String,
    /// Whose, as in `show`; then the rate: `50/min`, `10/s,1000/h`, `unlimited`; a plain number
    /// for a cap on requests at once.
    #[arg(required = true, value_name = "KEY... RATE")]
    words: Vec<String>,
    #[command(flatten)]
    terms: Terms,
}

#[derive(Debug, Args)]
struct BlockArgs {
    /// SelectedKey: an address or an API key (plain, or `ip=..`, `api_key=..`), any key that a limit
    /// counts by (`PART=VALUE`..), a hash as logs, `top` and `tap` show it, `tag=HASH`, or the id
    /// of a request that was denied.
    #[arg(required = true)]
    key: Vec<String>,
    #[command(flatten)]
    terms: Terms,
}

#[derive(Debug, Args)]
struct Terms {
    /// How long it holds: `30min`, `24h`, `7d`; without it, until it is removed.
    #[arg(long = "for", value_name = "TIME", conflicts_with = "remove")]
    lasts: Option<String>,
    /// Why; kept with it and shown by `ls`.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Take it back.
    #[arg(long)]
    remove: bool,
}

/// Does what the command line says; returns the exit code.
pub(super) fn limits(args: &LimitsArgs) -> u8 {
    let config = match config::load(&args.config) {
        // Its warnings are `check`'s to print.
        Ok((config, _)) => config,
        Err(found) => return run::accept(Err(found)).err().unwrap_or_default(),
    };
    let order = Order {
        config: &config,
        file: args.config.display().to_string(),
        json: args.json,
    };
    let done = match &args.command {
        Command::Ls { audit } => order.list(*audit),
        Command::Show(target) => order.show(target),
        Command::Reset(target) => order.reset(target),
        Command::Override(args) => order.set_override(args),
        Command::Block(args) => order.block(args),
    };
    match done {
        Ok(text) => {
            // Nobody to tell where standard output is closed.
            let _ = write!(std::io::stdout(), "{text}");
            0
        }
        Err(trouble) => trouble.say(),
    }
}

/// What every command needs.
struct Order<'o> {
    config: &'o Config,
    file: String,
    json: bool,
}

impl Order<'_> {
    fn place(&self) -> Result<Place<'_>, Trouble> {
        match &self.config.store.kind {
            StoreKind::Redis(server) => {
                let client = OverrideClient::open(&self.config.store, server)?;
                Ok(Place::Redis(Box::new(client)))
            }
            StoreKind::Memory if self.config.admin.is_some() => {
                let process = Process::of(self.config, self.file.clone().into())?;
                Ok(Place::Process(Box::new(process)))
            }
            StoreKind::Memory => Err(Trouble::failed(format!(
                "{} keeps counts in the proxy's own process, out of reach of this command",
                self.file
            ))
            .help(
                "write `admin = \"127.0.0.1:9180\"` at its top, or set `[store] url` to a Redis",
            )),
        }
    }

    fn limit(&self, name: &str) -> Result<&Arc<Limit>, Trouble> {
        let limits = &self.config.limits;
        if let Some(limit) = limits.iter().find(|limit| *limit.name == *name) {
            return Ok(limit);
        }
        let trouble = Trouble::wrong(format!("there is no limit `{name}` in {}", self.file));
        let near = limits
            .iter()
            .map(|limit| (strsim::osa_distance(name, &limit.name), &limit.name));
        let near = near.filter(|(distance, _)| *distance <= (name.len() / 3).max(1));
        Err(match near.min_by_key(|(distance, _)| *distance) {
            Some((_, near)) => trouble.help(format!("did you mean `{near}`?")),
            None => trouble.help("`tidegate limits ls` lists them"),
        })
    }

    /// The key that the words name, and what is said of anyone.
    fn whom(
        &self,
        client: &mut OverrideClient,
        words: &[String],
        limit: Option<&Limit>,
    ) -> Result<(SelectedKey, OverrideList), Trouble> {
        let said = client.overrides()?;
        let mut words = words.to_vec();
        let (known, partly) = match hash_prefix(&words) {
            Some(prefix) => self.known(client, &prefix),
            None => (Vec::new(), false),
        };
        if known.is_empty()
            && let Some(tag) = self.denied(&words, limit)
        {
            words = vec![format!("tag={tag}")];
        }
        let words = &words[..];
        let key = client.hash_key();
        let eyes = KeySelector {
            client_ip: &self.config.client_ip,
            api_key: &self.config.api_key,
            hash_key: &key.key,
            records: &said.records,
            known: &known,
        };
        let whom = eyes.select(words, limit, &self.config.limits);
        let whom = whom.map_err(|unclear| match unclear.kind {
            KeySelectionErrorKind::Unknown if partly => Trouble::failed(unclear.message).help(
                "not every key of the store could be looked at in time, or this user may not \
                 (`+scan`): write the whole hash as `tag=HASH`, or the key as `PART=VALUE`",
            ),
            _ => Trouble::from(unclear),
        })?;
        Ok((whom, said))
    }

    /// Clients that Redis counts and whose hash begins so; and whether not all were looked at.
    fn known(&self, client: &mut OverrideClient, prefix: &KeyHashPrefix) -> (Vec<KeyHash>, bool) {
        let limits = self.config.limits.iter().map(AsRef::as_ref);
        let found = client.find_key_hashes(limits, prefix);
        (found.tags, found.partly)
    }

    /// The client whose request had this id, where the proxy of this file knows that it denied it.
    fn denied(&self, words: &[String], limit: Option<&Limit>) -> Option<KeyHash> {
        let [word] = words else {
            return None;
        };
        let id = word.strip_prefix("request=").unwrap_or(word);
        let is_plain = !word.contains('=') || word.starts_with("request=");
        let is_plain = is_plain && word.parse::<std::net::IpAddr>().is_err();
        if !is_plain || id.len() < SHORTEST_ID || self.config.admin.is_none() {
            return None;
        }
        let process = Process::of(self.config, self.file.clone().into()).ok()?;
        process.denied(id, limit.map(|limit| &*limit.name))
    }

    /// For people the text, for scripts the JSON.
    fn told(&self, json: impl FnOnce() -> Json, text: impl FnOnce() -> String) -> String {
        if self.json {
            return json().line() + "\n";
        }
        text()
    }

    fn list(&self, audit: bool) -> Result<String, Trouble> {
        let mut place = self.place()?;
        let said = place.said()?;
        let changes = audit.then(|| place.changes()).transpose()?;
        let limits = || self.config.limits.iter().map(AsRef::as_ref);
        Ok(self.told(
            || print::list_json(limits(), &said, changes.as_deref()),
            || print::list(limits(), &said, changes.as_deref()),
        ))
    }

    fn show(&self, target: &Target) -> Result<String, Trouble> {
        let limit = self.limit(&target.limit)?;
        let (whom, rows, said) = match self.place()? {
            Place::Redis(mut client) => {
                let (whom, said) = self.whom(&mut client, &target.key, Some(limit))?;
                let records = &said.records;
                let rows = client_usage(limit, &whom, records, |charge| client.stand(charge))?;
                (whom, rows, said)
            }
            Place::Process(process) => process.show(limit, &target.key)?,
        };
        let shown = Shown {
            limit,
            whom: &whom,
            rows,
            said: &said,
        };
        Ok(self.told(|| shown.json(), || shown.text()))
    }

    fn reset(&self, target: &Target) -> Result<String, Trouble> {
        let limit = self.limit(&target.limit)?;
        let (whom, gone) = match self.place()? {
            Place::Redis(mut client) => {
                let (whom, said) = self.whom(&mut client, &target.key, Some(limit))?;
                let gone = reset(&mut client, limit, &whom, &said)?;
                (whom, gone)
            }
            Place::Process(process) => {
                let asked = Asked::reset(limit, me());
                // It forgets all of it when it is told.
                let found = process.order(&asked, &target.key)?;
                (found.whom, 1)
            }
        };
        let json = || {
            Json::Object(vec![
                ("limit", Json::text(&limit.name)),
                ("tag", Json::Text(whom.tag.to_string())),
                ("deleted", Json::Number(gone)),
            ])
        };
        Ok(self.told(json, || {
            let key = print::named(whom.tag, &whom.parts);
            match gone {
                0 => format!("{}: nothing was counted for key {key}\n", limit.name),
                _ => format!("{}: key {key} begins anew\n", limit.name),
            }
        }))
    }

    fn set_override(&self, args: &OverrideArgs) -> Result<String, Trouble> {
        let limit = self.limit(&args.limit)?;
        let (mut key, mut rules) = (&args.words[..], Vec::new());
        if !args.terms.remove {
            let Some((rate, words)) = args.words.split_last().filter(|(_, key)| !key.is_empty())
            else {
                return Err(Trouble::wrong("after the key, the rate is missing")
                    .help("write for example `50/min` or `unlimited`, or `--remove`"));
            };
            (key, rules) = (words, rate::rules(rate, limit)?);
        }
        let unlimited = rules.is_empty() && !args.terms.remove;
        let record = RecordTerms {
            rules,
            unlimited,
            ..RecordTerms::default()
        };
        let rates = record.rates().unwrap_or_default();
        let subject = |tag| Subject::Override(limit.name.to_string(), tag);
        let (whom, until_us) = self.make(&args.terms, key, Some(limit), subject, record)?;
        let key = print::named(whom.tag, &whom.parts);
        let text = match args.terms.remove {
            true => format!("{}: key {key} has the limit's own rate again\n", limit.name),
            false => {
                let until = print::until(until_us);
                format!("{}: key {key} has {rates} {until}\n", limit.name)
            }
        };
        Ok(self.told(|| made(Some(limit), &whom, until_us), || text))
    }

    fn block(&self, args: &BlockArgs) -> Result<String, Trouble> {
        let record = RecordTerms::default();
        let (whom, until_us) = self.make(&args.terms, &args.key, None, Subject::Block, record)?;
        let key = print::named(whom.tag, &whom.parts);
        let text = match args.terms.remove {
            true => format!("key {key} is let in again\n"),
            false => format!("key {key} is blocked {}\n", print::until(until_us)),
        };
        Ok(self.told(|| made(None, &whom, until_us), || text))
    }

    /// Makes the change; returns of whom, and until when it holds.
    fn make(
        &self,
        terms: &Terms,
        key: &[String],
        limit: Option<&Arc<Limit>>,
        subject: impl FnOnce(KeyHash) -> Subject,
        record: RecordTerms,
    ) -> Result<(SelectedKey, u64), Trouble> {
        let lasts_us = rate::lasts_us(terms.lasts.as_deref())?;
        let kind = match terms.remove {
            true => ChangeKind::Remove,
            false => ChangeKind::Set,
        };
        let record = RecordTerms {
            kind,
            by: me(),
            note: clean(terms.note.as_deref().unwrap_or_default()),
            ..record
        };
        let (whom, done) = match self.place()? {
            Place::Redis(mut client) => {
                let (whom, _) = self.whom(&mut client, key, limit.map(AsRef::as_ref))?;
                let change = OverrideChange {
                    subject: subject(whom.tag),
                    lasts_us,
                    terms: RecordTerms {
                        key: whom.parts.clone(),
                        ..record
                    },
                };
                let done = client.change(&change)?;
                (whom, done)
            }
            Place::Process(process) => {
                let asked = Asked::change(limit, lasts_us, &record);
                let found = process.order(&asked, key)?;
                (found.whom, found.done)
            }
        };
        match done {
            ChangeOutcome::Made(until_us) => Ok((whom, until_us)),
            ChangeOutcome::Nothing => Err(Trouble::failed(match limit {
                Some(limit) => format!("that key has no override in `{}`", limit.name),
                None => "that key is not blocked".to_owned(),
            })),
            ChangeOutcome::Full => Err(Trouble::failed(format!(
                "there are {MAX_RECORDS} overrides and blocks already, as many as there may be"
            ))
            .help("remove some, or write a limit or a `[[bypass]]` for the whole group")),
        }
    }
}

fn made(limit: Option<&Arc<Limit>>, whom: &SelectedKey, until_us: u64) -> Json {
    let until = (until_us > 0).then(|| crate::telemetry::stamp::rfc3339(until_us));
    Json::Object(vec![
        ("limit", limit.map(|limit| limit.name.to_string()).into()),
        ("key", Json::text(&print::short(whom.tag))),
        ("tag", Json::Text(whom.tag.to_string())),
        ("until", until.into()),
    ])
}

/// Forgets what is counted; returns how many counts there were.
fn reset(
    client: &mut OverrideClient,
    limit: &Arc<Limit>,
    whom: &SelectedKey,
    said: &OverrideList,
) -> Result<u64, Trouble> {
    let windows = windows_of_key(limit, whom.tag, &said.records);
    let items: Vec<LimitCheck> = limit_checks(limit, &windows, whom.tag).collect();
    let gone = client.forget(&items)?;
    // Told after it is done: who hears of it asks the store again.
    client.change(&OverrideChange {
        subject: Subject::Reset(limit.name.to_string(), whom.tag),
        lasts_us: 0,
        terms: RecordTerms {
            by: me(),
            key: whom.parts.clone(),
            suffixes: windows.iter().map(|one| one.store_suffix.clone()).collect(),
            ..RecordTerms::default()
        },
    })?;
    Ok(gone)
}

/// Who makes a change: `ann@desk`.
fn me() -> String {
    let variables = ["SUDO_USER", "USER", "LOGNAME"];
    let mut named = variables
        .iter()
        .filter_map(|name| config::environment(name));
    let user = named.find(|name| !name.is_empty());
    let user = user.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string());
    let system = rustix::system::uname();
    format!("{user}@{}", system.nodename().to_string_lossy())
}
