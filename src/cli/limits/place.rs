//! Where counts are kept: in Redis, which this command speaks to itself, or in a proxy's own
//! process, whose admin it asks.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::cli::admin_client::{AdminArgs, AdminClient, Failed, runtime};
use crate::cli::seen::{list, text};
use crate::cli::trouble::Trouble;
use crate::config::Config;
use crate::key_selector::{KeySelector, SelectedKey, WindowStatus, hash_prefix};
use crate::limit::key::HashSecret;
use crate::limit::{KeyHash, Limit, Retry};
use crate::store::overrides::{
    ChangeKind, ChangeOutcome, OverrideList, Record, RecordTerms, Subject, rules,
};
use crate::store::redis::OverrideClient;

/// See the file's head.
pub(super) enum Place<'c> {
    Redis(Box<OverrideClient>),
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
    pub(super) fn said(&mut self) -> Result<OverrideList, Trouble> {
        match self {
            Place::Redis(client) => Ok(client.overrides()?),
            Place::Process(process) => process.said(),
        }
    }

    /// The last changes, newest first.
    pub(super) fn changes(&mut self) -> Result<Vec<Record>, Trouble> {
        match self {
            Place::Redis(client) => Ok(client.changes()?),
            Place::Process(process) => {
                let told = process.get("/api/v1/changes")?;
                let changes = list(&told["changes"]).filter_map(|told| process.record(told));
                Ok(changes.collect())
            }
        }
    }
}

/// What a proxy is asked to do.
pub(super) struct Asked {
    path: String,
    said: Value,
    limit: Option<Arc<Limit>>,
    removes: bool,
}

impl Asked {
    pub(super) fn reset(limit: &Arc<Limit>, by: String) -> Asked {
        Asked {
            path: format!("/api/v1/limits/{}/reset", encoded(&limit.name)),
            said: json!({ "by": by }),
            limit: Some(Arc::clone(limit)),
            removes: false,
        }
    }

    /// An override of a limit, or a block.
    pub(super) fn change(limit: Option<&Arc<Limit>>, lasts_us: u64, terms: &RecordTerms) -> Asked {
        let removes = terms.kind == ChangeKind::Remove;
        let mut said = json!({ "by": terms.by, "reason": terms.note, "remove": removes });
        if let Some(rates) = terms.rates() {
            said["rate"] = Value::String(rates);
        }
        if lasts_us > 0 {
            said["for_seconds"] = lasts_us.div_ceil(1_000_000).into();
        }
        Asked {
            path: limit.map_or_else(
                || "/api/v1/block".to_owned(),
                |limit| format!("/api/v1/limits/{}/override", encoded(&limit.name)),
            ),
            said,
            limit: limit.cloned(),
            removes,
        }
    }
}

/// What became of it.
pub(super) struct Obeyed {
    pub(super) whom: SelectedKey,
    pub(super) done: ChangeOutcome,
}

/// Whether a client may be named by its hash or by a request's id: only the proxy knows them.
fn may_be_shown(words: &[String]) -> bool {
    let is_id = |word: &String| word.starts_with("tag=") || word.starts_with("request=");
    hash_prefix(words).is_some() || matches!(words, [word] if is_id(word))
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
        told.map_err(|failed| self.trouble(&failed))
    }

    fn said(&self) -> Result<OverrideList, Trouble> {
        let told = self.get("/api/v1/overrides")?;
        let records = list(&told["overrides"]).filter_map(|told| self.record(told));
        Ok(OverrideList {
            now_us: 0,
            records: records.collect(),
        })
    }

    /// How a client stands, and what is said of it.
    pub(super) fn show(
        &self,
        limit: &Limit,
        words: &[String],
    ) -> Result<(SelectedKey, Vec<WindowStatus>, OverrideList), Trouble> {
        self.understands(words, Some(limit))?;
        let key: Vec<String> = words.iter().map(|word| encoded(word)).collect();
        let name = encoded(&limit.name);
        let told = self.get(&format!("/api/v1/limits/{name}/keys/{}", key.join("&")))?;
        let records = [&told["override"], &told["block"]];
        let said = OverrideList {
            now_us: 0,
            records: records
                .iter()
                .filter_map(|told| self.record(told))
                .collect(),
        };
        let rows = list(&told["windows"]).map(row).collect();
        Ok((whom(&told)?, rows, said))
    }

    /// The client that was denied as its request had this id.
    pub(super) fn denied(&self, request: &str, limit: Option<&str>) -> Option<KeyHash> {
        let told = self.get(&format!("/api/v1/denials?request_id={}", encoded(request)));
        let told = told.ok()?;
        let all: Vec<&Value> = list(&told["denials"]).collect();
        let by_limit = |one: &&&Value| limit.is_none_or(|limit| one["limit"] == *limit);
        let found = all.iter().find(by_limit).or_else(|| all.first())?;
        KeyHash::parse(found["id"].as_str()?)
    }

    /// Has it do something.
    pub(super) fn order(&self, asked: &Asked, words: &[String]) -> Result<Obeyed, Trouble> {
        self.understands(words, asked.limit.as_deref())?;
        let mut said = asked.said.clone();
        said["key"] = json!(words);
        let done = self.runtime.block_on(self.client.post(&asked.path, &said));
        let undone = |done| Obeyed {
            whom: SelectedKey {
                tag: KeyHash([0; 16]),
                parts: String::new(),
            },
            done,
        };
        match done {
            Ok(told) => Ok(Obeyed {
                whom: whom(&told)?,
                done: ChangeOutcome::Made(micros(&told["until"])),
            }),
            Err(Failed::Refused(404, why)) if asked.removes && why.contains("to take back") => {
                Ok(undone(ChangeOutcome::Nothing))
            }
            Err(Failed::Refused(409, why)) if why.contains("as many as there may be") => {
                Ok(undone(ChangeOutcome::Full))
            }
            Err(failed) => Err(self.trouble(&failed)),
        }
    }

    /// Whether the words are a key at all: the proxy's file is the one that is read here.
    fn understands(&self, words: &[String], limit: Option<&Limit>) -> Result<(), Trouble> {
        if may_be_shown(words) {
            return Ok(());
        }
        let eyes = KeySelector {
            client_ip: &self.config.client_ip,
            api_key: &self.config.api_key,
            // Only the proxy knows its own.
            hash_key: &HashSecret::from_bytes([0; 32]),
            records: &[],
            known: &[],
        };
        eyes.select(words, limit, &self.config.limits)?;
        Ok(())
    }

    fn trouble(&self, failed: &Failed) -> Trouble {
        match failed {
            Failed::Refused(400, why) => Trouble::wrong(why.clone()),
            Failed::Refused(404 | 409, why) if why.contains("hash") => match why.split_once("; ") {
                Some((message, help)) => Trouble::failed(message).help(help),
                None => Trouble::failed(why.clone()),
            },
            Failed::Refused(404, why) if why.contains("limit") => {
                Trouble::failed(format!("the proxy at {} says: {why}", self.client.url()))
                    .help("it runs another file, or has not read this one yet: `tidegate reload`")
            }
            failed => self.client.trouble(failed),
        }
    }

    fn record(&self, told: &Value) -> Option<Record> {
        let tag = KeyHash::parse(told["id"].as_str()?)?;
        let mut terms = RecordTerms {
            until_us: micros(&told["until"]),
            at_us: micros(&told["at"]),
            by: text(&told["by"]),
            key: text(&told["key"]),
            note: text(&told["reason"]),
            ..RecordTerms::default()
        };
        let what = text(&told["what"]);
        if what.ends_with(" removed") {
            terms.kind = ChangeKind::Remove;
        }
        let subject = match told["limit"].as_str() {
            None => Subject::Block(tag),
            Some(name) if what == "reset" => Subject::Reset(name.to_owned(), tag),
            Some(name) if terms.kind == ChangeKind::Remove => {
                Subject::Override(name.to_owned(), tag)
            }
            Some(name) => {
                let mut limits = self.config.limits.iter();
                let limit = limits.find(|limit| *limit.name == *name)?;
                terms.rules = rules(told["rates"].as_str()?, limit).ok()?;
                terms.unlimited = terms.rules.is_empty();
                Subject::Override(name.to_owned(), tag)
            }
        };
        Some(Record { subject, terms })
    }
}

fn whom(told: &Value) -> Result<SelectedKey, Trouble> {
    let tag = told["id"].as_str().and_then(KeyHash::parse);
    let tag = tag.ok_or_else(|| Trouble::failed("the proxy does not say whom it understood"))?;
    Ok(SelectedKey {
        tag,
        parts: text(&told["key"]),
    })
}

fn row(told: &Value) -> WindowStatus {
    let number = |name: &str| told[name].as_u64().unwrap_or(0);
    WindowStatus {
        of: told["of"].as_str().map(str::to_owned),
        policy: text(&told["policy"]),
        rate: text(&told["rate"]),
        used: number("used"),
        remaining: number("remaining"),
        reset_us: micros(&told["reset_seconds"]),
        retry: match told["retry"].as_str() {
            Some("after") => Retry::After(micros(&told["retry_seconds"])),
            Some("never") => Retry::Never,
            Some("released") => Retry::Released,
            _ => Retry::Now,
        },
    }
}

/// A word as it stands in a path.
fn encoded(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    for byte in word.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'=' | b':' => {
                out.push(char::from(byte));
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Seconds as the API tells them; 0 for none.
fn micros(told: &Value) -> u64 {
    (told.as_f64().unwrap_or(0.0) * 1e6).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_in_a_path_as_they_were_written() {
        assert_eq!(encoded("ip=2001:db8::1"), "ip=2001:db8::1");
        assert_eq!(encoded("path=/a b&c%"), "path=%2Fa%20b%26c%25");
        assert_eq!(micros(&json!(1.000_001)), 1_000_001);
    }
}
