//! Where counts are kept: in Redis, which this command speaks to itself, or in a proxy's own
//! process, whose admin it asks.

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::cli::admin_client::{AdminArgs, AdminClient, Failed, runtime};
use crate::cli::seen::{list, text};
use crate::cli::trouble::Trouble;
use crate::config::Config;
use crate::limit::key::HashKey;
use crate::limit::{Limit, Tag};
use crate::store::people::{Deed, Record, Subject, Words, rules};
use crate::store::redis::{Change, Desk, Done, Said};

/// Clients of a limit that are looked through for a hash.
const CLIENTS: usize = 100;

/// See the file's head.
pub(super) enum Place<'c> {
    Redis(Box<Desk>),
    Process(Box<Process<'c>>),
}

/// A running proxy with the embedded store.
pub(super) struct Process<'c> {
    client: AdminClient,
    runtime: Runtime,
    config: &'c Config,
}

impl Place<'_> {
    /// What is in force.
    pub(super) fn said(&mut self) -> Result<Said, Trouble> {
        match self {
            Place::Redis(desk) => Ok(desk.said()?),
            Place::Process(process) => process.said(),
        }
    }

    /// The last changes, newest first.
    pub(super) fn changes(&mut self) -> Result<Vec<Record>, Trouble> {
        match self {
            Place::Redis(desk) => Ok(desk.changes()?),
            Place::Process(_) => Err(Trouble::failed(
                "the embedded store keeps no list of what was changed",
            )
            .help("leave out `--audit`: `ls` shows what is in force")),
        }
    }

    /// The secret that keys are hashed with, where it is known here.
    pub(super) fn hash_key(&self, words: &[String]) -> Result<HashKey, Trouble> {
        match self {
            Place::Redis(desk) => Ok(desk.hash_key().key.clone()),
            Place::Process(process) => match process.config.store.hash_key {
                Some(key) => Ok(HashKey::from_bytes(key)),
                // It is not asked for where the hash itself is given.
                None if is_hash(words).is_some() => Ok(HashKey::from_bytes([0; 32])),
                None => Err(Trouble::wrong(
                    "this proxy hashes keys with a secret of its own, which nobody else knows",
                )
                .help(
                    "name the client by its hash, `tag=HASH`, as `tidegate top`, `tap` and the \
                     logs show it; or set `[store] hash_key_file`",
                )),
            },
        }
    }

    /// The words with a hash that is whole, where a client of this limit has one that begins so.
    pub(super) fn whole(
        &self,
        words: &[String],
        limit: Option<&Limit>,
    ) -> Result<Vec<String>, Trouble> {
        let (Place::Process(process), Some(hash)) = (self, is_hash(words)) else {
            return Ok(words.to_vec());
        };
        let limits = process.config.limits.iter().map(AsRef::as_ref);
        let mut found = Vec::new();
        for limit in limits.filter(|one| limit.is_none_or(|limit| limit.name == one.name)) {
            let path = format!("/api/v1/limits/{}/clients?top={CLIENTS}", limit.name);
            let told = process.get(&path)?;
            let ids = list(&told["clients"]).map(|client| text(&client["id"]));
            found.extend(ids.filter(|id| hash.len() >= 4 && id.starts_with(hash)));
        }
        found.sort_unstable();
        found.dedup();
        Ok(match &found[..] {
            [id] => vec![format!("tag={id}")],
            _ => words.to_vec(),
        })
    }

    /// Makes a change.
    pub(super) fn change(&mut self, change: &Change) -> Result<Done, Trouble> {
        match self {
            Place::Redis(desk) => Ok(desk.change(change)?),
            Place::Process(process) => process.change(change),
        }
    }
}

/// The hash, if that is how a client is named.
fn is_hash(words: &[String]) -> Option<&str> {
    match words {
        [word] => word.strip_prefix("tag="),
        _ => None,
    }
}

impl Process<'_> {
    /// Finds the admin of the proxy that runs this file.
    pub(super) fn of(config: &Config, file: std::path::PathBuf) -> Result<Process<'_>, Trouble> {
        let args = AdminArgs {
            config: file,
            admin: None,
            token_file: None,
        };
        Ok(Process {
            client: AdminClient::of(&args)?,
            runtime: runtime()?,
            config,
        })
    }

    fn get(&self, path: &str) -> Result<Value, Trouble> {
        let told = self.runtime.block_on(self.client.get(path));
        told.map_err(|failed| self.client.trouble(&failed))
    }

    fn said(&self) -> Result<Said, Trouble> {
        let told = self.get("/api/v1/overrides")?;
        let records = list(&told["overrides"]).filter_map(|told| self.record(told));
        Ok(Said {
            now_us: 0,
            records: records.collect(),
        })
    }

    fn record(&self, told: &Value) -> Option<Record> {
        let tag = Tag::parse(told["id"].as_str()?)?;
        let mut words = Words {
            until_us: micros(&told["until"]),
            at_us: micros(&told["at"]),
            by: text(&told["by"]),
            key: text(&told["key"]),
            note: text(&told["reason"]),
            ..Words::default()
        };
        let subject = match told["limit"].as_str() {
            None => Subject::Block(tag),
            Some(name) => {
                let mut limits = self.config.limits.iter();
                let limit = limits.find(|limit| *limit.name == *name)?;
                words.rules = rules(told["rates"].as_str()?, limit).ok()?;
                words.unlimited = words.rules.is_empty();
                Subject::Override(name.to_owned(), tag)
            }
        };
        Some(Record { subject, words })
    }

    fn change(&self, change: &Change) -> Result<Done, Trouble> {
        let words = &change.words;
        let mut limits = self.config.limits.iter();
        let any = limits.next().map(|limit| limit.name.to_string());
        let (limit, what) = match &change.subject {
            Subject::Override(limit, _) => (Some(limit.clone()), "override"),
            Subject::Reset(limit, _) => (Some(limit.clone()), "reset"),
            // A block is of all of them.
            Subject::Block(_) => (any, "block"),
        };
        let limit = limit.ok_or_else(|| Trouble::failed("there is no limit at all"))?;
        let mut order = json!({
            "id": change.subject.tag().to_string(),
            "reason": words.note,
            "remove": words.deed == Deed::Remove,
        });
        if let Some(rates) = words.rates() {
            order["rate"] = Value::String(rates);
        }
        if change.lasts_us > 0 {
            order["for_seconds"] = change.lasts_us.div_ceil(1_000_000).into();
        }
        let path = format!("/api/v1/limits/{limit}/{what}");
        let done = self.runtime.block_on(self.client.post(&path, &order));
        match done {
            Ok(told) => Ok(Done::Made(micros(&told["until"]))),
            Err(Failed::Refused(404, _)) if words.deed == Deed::Remove => Ok(Done::Nothing),
            Err(Failed::Refused(409, _)) => Ok(Done::Full),
            Err(failed) => Err(self.client.trouble(&failed)),
        }
    }
}

/// Seconds as the API tells them; 0 for none.
fn micros(told: &Value) -> u64 {
    (told.as_f64().unwrap_or(0.0) * 1e6) as u64
}
