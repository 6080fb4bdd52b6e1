//! `tidegate keys`: adds, lists and removes the API keys that all proxies of a Redis know, within a
//! second. Redis gets the hash of each key, never the key.

use std::io::Read;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::check::store_error;
use super::display::{self, StyledSpan, render_lines};
use super::limits::user;
use super::output::{self, CommandError, print_error};
use crate::config::{Config, StoreKind};
use crate::limit::key::{KeyDigest, KeyRegistry};
use crate::store::known_keys::{KeyRecord, MAX_KNOWN_KEYS};
use crate::store::redis::{KeyChangeOutcome, OverrideClient};
use crate::telemetry::stamp;

/// What every generated key begins with, so that people and scanners of code recognize it.
const MARK: &str = "tgk_";
/// Random bytes of a generated key.
const RANDOM_BYTES: usize = 24;
/// Bytes of a key, at most.
const MAX_KEY: usize = 4096;
/// A given key with fewer characters may be guessed.
const SHORT_KEY: usize = 20;
/// Characters of a key's hash in lists.
const SHOWN_ID: usize = 12;

#[derive(Debug, Args)]
pub(super) struct KeysArgs {
    /// The configuration that the proxies run.
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "proxy.toml",
        global = true
    )]
    config: PathBuf,
    /// Print one line of JSON instead of text.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: KeysSubcommand,
}

#[derive(Debug, Subcommand)]
enum KeysSubcommand {
    /// Make a key known. Without `--key` it makes one, and prints it once.
    Add(AddArgs),
    /// List the known keys: names, tiers, and the beginning of each key's hash.
    List,
    /// Remove all keys of a name, or one of them.
    Remove(RemoveArgs),
}

#[derive(Debug, Args)]
struct AddArgs {
    /// The client's name. A name may have several keys.
    name: String,
    /// The client's tier.
    #[arg(long)]
    tier: Option<String>,
    /// The day on which the client's months begin, 1 to 31, or a date.
    #[arg(long, value_name = "DAY")]
    anchor: Option<String>,
    /// The key, or `-` to read it from standard input. A known key of this name gets the new tier
    /// and anchor.
    #[arg(long)]
    key: Option<String>,
}

#[derive(Debug, Args)]
struct RemoveArgs {
    /// The client's name.
    name: String,
    /// Remove only the key whose hash begins so, as `list` shows it.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    id: Option<String>,
}

/// A known key for people and programs.
#[derive(Debug, Serialize)]
struct RegisteredKeyReport<'r> {
    name: &'r str,
    tier: Option<&'r str>,
    anchor: Option<&'r str>,
    /// SHA-256 of the key.
    sha256: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    added: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    by: &'r str,
    /// A key that was just made.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'r str>,
}

type KeyRecords = Vec<(KeyDigest, KeyRecord)>;

pub(super) fn keys(args: &KeysArgs) -> Result<u8, CommandError> {
    let config = output::load(&args.config)?;
    let StoreKind::Redis(server) = &config.store.kind else {
        let file = args.config.display();
        let error = format!("{file} keeps counts in the proxy's own process, which has no keys");
        return Err(CommandError::failed(error).help(
            "set `[store] url` to a Redis and `known = \"redis\"` in `[api_key]`; or list the \
             keys in a file: `known = \"keys.txt\"`",
        ));
    };
    let client = OverrideClient::open(&config.store, server);
    let mut client = client.map_err(|error| store_error(&error, &config, &args.config))?;
    if config.api_key.registry != KeyRegistry::Redis {
        print_error(&format!(
            "warning: the proxies of {} do not use these keys: write `known = \"redis\"` in \
             `[api_key]`",
            args.config.display()
        ));
    }
    let text = match &args.command {
        KeysSubcommand::Add(add) => add_key(&mut client, &config, add, args.json)?,
        KeysSubcommand::List => list(&client.known_keys()?, args.json)?,
        KeysSubcommand::Remove(remove) => remove_keys(&mut client, remove, args.json)?,
    };
    let KeysSubcommand::Add(add) = &args.command else {
        output::print(text)?;
        return Ok(0);
    };
    let unread = match output::print_next(text) {
        Ok(true) => return Ok(0),
        Ok(false) => CommandError::failed("standard output is closed"),
        Err(error) => error,
    };
    Err(unread.help(format!(
        "the new key is lost: remove it with `tidegate keys remove {} --id ID`",
        add.name
    )))
}

fn add_key(
    client: &mut OverrideClient,
    config: &Config,
    args: &AddArgs,
    json: bool,
) -> Result<String, CommandError> {
    let record = KeyRecord {
        name: Some(args.name.clone()),
        tier: args.tier.clone(),
        anchor: args.anchor.clone(),
        at_us: 0,
        by: user(),
    };
    record.client().map_err(CommandError::wrong_use)?;
    warn_of_tier(config, args.tier.as_deref());
    let (key, is_made) = match args.key.as_deref() {
        None => (new_key()?, true),
        Some("-") => (read_key()?, false),
        Some(key) => (key.to_owned(), false),
    };
    check_key(&key)?;
    let digest = KeyDigest::new(key.as_bytes());
    let known = client.known_keys()?;
    let before = known.iter().find(|(known, _)| *known == digest);
    let owner = before.and_then(|(_, record)| record.name.as_deref());
    if let Some(owner) = owner.filter(|owner| *owner != args.name) {
        return Err(CommandError::failed(format!(
            "this key is known already, as the key of {owner}"
        )));
    }
    match client.change_key(&digest, Some(&record))? {
        KeyChangeOutcome::Made => {}
        KeyChangeOutcome::Nothing | KeyChangeOutcome::Full => {
            return Err(CommandError::failed(format!(
                "there are {MAX_KNOWN_KEYS} keys already, as many as there may be"
            ))
            .help("let a service say which keys are known: `known = { url = \"..\" }`"));
        }
    }
    let id = short_id(&digest);
    let others = known.iter().filter(|(key, record)| {
        record.name.as_deref() == Some(args.name.as_str()) && *key != digest
    });
    let others = others.count();
    print_error(&match before {
        Some(_) => format!("{}: the key {id} has this tier and anchor now", args.name),
        None => format!(
            "{}: every proxy knows the key {id} within a second",
            args.name
        ),
    });
    if others > 0 {
        print_error(&format!(
            "{} has {others} more; remove an old one with `tidegate keys remove {} --id ID`",
            args.name, args.name
        ));
    }
    if is_made {
        print_error("this is the only time that the key is shown:");
    }
    if json {
        let shown = is_made.then_some(key.as_str());
        return to_json(&RegisteredKeyReport::new(&digest, &record, shown));
    }
    Ok(match is_made {
        true => format!("{key}\n"),
        false => String::new(),
    })
}

/// Says that no limit has a rate for this tier.
fn warn_of_tier(config: &Config, tier: Option<&str>) {
    let Some(tier) = tier else { return };
    let mut tiers = config.limits.iter().flat_map(|limit| &limit.tiers);
    if !tiers.any(|known| *known.name == *tier) {
        print_error(&format!(
            "warning: no limit has rates for the tier `{tier}`"
        ));
    }
}

/// A key that nobody can guess.
fn new_key() -> Result<String, CommandError> {
    let mut bytes = [0; RANDOM_BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|_| CommandError::failed("the operating system gave no random bytes"))?;
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    Ok(format!("{MARK}{}", digits.collect::<String>()))
}

fn read_key() -> Result<String, CommandError> {
    let mut text = String::new();
    let mut input = std::io::stdin().take(MAX_KEY as u64 + 2);
    input
        .read_to_string(&mut text)
        .map_err(|error| CommandError::failed(format!("standard input cannot be read: {error}")))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Refuses a key that no request can carry.
fn check_key(key: &str) -> Result<(), CommandError> {
    let is_plain = |c: char| c.is_ascii_graphic() && c != ',';
    if key.is_empty() || key.len() > MAX_KEY || !key.chars().all(is_plain) {
        return Err(CommandError::wrong_use(format!(
            "not a key: 1 to {MAX_KEY} visible ASCII characters without spaces and commas"
        )));
    }
    if key.len() < SHORT_KEY {
        print_error(
            "warning: a short key may be guessed, also from its hash; use a long random one",
        );
    }
    Ok(())
}

fn list(known: &KeyRecords, json: bool) -> Result<String, CommandError> {
    if json {
        let reports = known.iter();
        let reports: Vec<RegisteredKeyReport<'_>> = reports
            .map(|(key, record)| RegisteredKeyReport::new(key, record, None))
            .collect();
        return to_json(&reports);
    }
    if known.is_empty() {
        return Ok("no keys\n".to_owned());
    }
    let dash = || "-".to_owned();
    let rows = known.iter().map(|(key, record)| {
        let cells = [
            record.name.clone().unwrap_or_else(dash),
            record.tier.clone().unwrap_or_else(dash),
            record.anchor.clone().unwrap_or_else(dash),
            short_id(key),
            stamp::rfc3339(record.at_us),
            record.by.clone(),
        ];
        cells.iter().map(StyledSpan::plain).collect()
    });
    let head = ["name", "tier", "anchor", "id", "since", "by"];
    let lines = display::table(&head, rows.collect());
    Ok(render_lines(&lines, false))
}

fn remove_keys(
    client: &mut OverrideClient,
    args: &RemoveArgs,
    json: bool,
) -> Result<String, CommandError> {
    let known = client.known_keys()?;
    let id = args.id.as_deref().unwrap_or_default().to_ascii_lowercase();
    let of_name = known
        .iter()
        .filter(|(_, record)| record.name.as_deref() == Some(args.name.as_str()));
    let chosen: Vec<_> = of_name
        .filter(|(key, _)| key.to_hex().starts_with(&id))
        .collect();
    if !id.is_empty() && chosen.len() > 1 {
        return Err(CommandError::failed(format!(
            "the hashes of {} keys begin with {id}",
            chosen.len()
        ))
        .help("write more of the hash, which `tidegate keys list --json` shows"));
    }
    let mut removed = Vec::new();
    for (key, record) in chosen {
        if client.change_key(key, None)? == KeyChangeOutcome::Made {
            removed.push(RegisteredKeyReport::new(key, record, None));
        }
    }
    if removed.is_empty() {
        let which = match id.is_empty() {
            true => format!("no known key has the name {}", args.name),
            false => format!("{} has no key whose hash begins with {id}", args.name),
        };
        return Err(CommandError::failed(which).help("`tidegate keys list` lists the keys"));
    }
    if json {
        return to_json(&removed);
    }
    let ids = removed.iter().map(|one| &one.sha256[..SHOWN_ID]);
    let ids: Vec<&str> = ids.collect();
    Ok(format!(
        "{}: within a second no proxy knows {} any more\n",
        args.name,
        ids.join(" and ")
    ))
}

fn short_id(key: &KeyDigest) -> String {
    key.to_hex()[..SHOWN_ID].to_owned()
}

fn to_json(report: &impl Serialize) -> Result<String, CommandError> {
    let json = serde_json::to_string(report);
    let json = json.map_err(|error| CommandError::failed(error.to_string()))?;
    Ok(json + "\n")
}

impl<'r> RegisteredKeyReport<'r> {
    fn new(
        digest: &KeyDigest,
        record: &'r KeyRecord,
        key: Option<&'r str>,
    ) -> RegisteredKeyReport<'r> {
        RegisteredKeyReport {
            name: record.name.as_deref().unwrap_or_default(),
            tier: record.tier.as_deref(),
            anchor: record.anchor.as_deref(),
            sha256: digest.to_hex(),
            added: (record.at_us > 0).then(|| stamp::rfc3339(record.at_us)),
            by: &record.by,
            key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_key_can_be_carried_and_is_long() {
        let (one, other) = (new_key().unwrap(), new_key().unwrap());
        assert!(
            one.starts_with(MARK) && one.len() == 52 && one != other,
            "{one}"
        );
        assert!(check_key(&one).is_ok());
        for wrong in ["", "a b", "a,b", "k\u{e9}y", &"k".repeat(MAX_KEY + 1)] {
            assert!(check_key(wrong).is_err(), "{wrong}");
        }
    }
}
