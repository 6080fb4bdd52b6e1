//! Counts, overrides and blocks in the memory of a running proxy, which its admin shows and
//! changes.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    ChangedClient, ClientState, ClientTerms, CountsBackend, ResetClient, too_many_records, user,
};
use crate::cli::admin_client::{AdminArgs, AdminClient, AdminFailure, percent_encoded, runtime};
use crate::cli::output::CommandError;
use crate::cli::proxy_snapshot::{list, text};
use crate::config::Config;
use crate::key_selector::{KeySelector, SelectedKey, WindowStatus, hash_prefix};
use crate::limit::key::HashSecret;
use crate::limit::{KeyHash, Limit, Retry};
use crate::store::overrides::{ChangeKind, OverrideList, Record, RecordTerms, Subject, rules};

pub(super) struct ProxyProcess<'c> {
    client: AdminClient,
    config: &'c Config,
}

impl<'c> ProxyProcess<'c> {
    /// Finds the admin of the proxy that runs this file.
    pub(super) fn new(config: &'c Config, file: &Path) -> Result<ProxyProcess<'c>, CommandError> {
        let args = AdminArgs {
            config: file.to_owned(),
            admin: None,
            token_file: None,
        };
        let client = AdminClient::new(&args)?;
        Ok(ProxyProcess { client, config })
    }

    fn get(&self, path: &str) -> Result<Value, CommandError> {
        let answer = runtime()?.block_on(self.client.get(path));
        answer.map_err(|failure| self.error(&failure))
    }

    fn post(&self, path: &str, body: &Value) -> Result<Result<Value, AdminFailure>, CommandError> {
        Ok(runtime()?.block_on(self.client.post(path, body)))
    }

    /// The client whose request had this id, if the proxy denied it; preferably by this limit.
    pub(super) fn find_denied(&self, request: &str, limit: Option<&str>) -> Option<KeyHash> {
        let path = format!("/api/v1/denials?request_id={}", encoded(request));
        let answer = self.get(&path).ok()?;
        let denials = || list(&answer["denials"]);
        let found = denials().find(|one| limit.is_none_or(|limit| one["limit"] == *limit));
        KeyHash::parse(found.or_else(|| denials().next())?["id"].as_str()?)
    }

    /// Refuses words that cannot be a key, by the same file that the proxy runs. Only the proxy can
    /// look up hashes and request ids.
    fn check_words(&self, words: &[String], limit: Option<&Limit>) -> Result<(), CommandError> {
        let is_id = |word: &String| word.starts_with("tag=") || word.starts_with("request=");
        if hash_prefix(words).is_some() || matches!(words, [word] if is_id(word)) {
            return Ok(());
        }
        let selector = KeySelector {
            client_ip: &self.config.client_ip,
            api_key: &self.config.api_key,
            // The hash is not used: only the proxy has the secret.
            hash_key: &HashSecret::from_bytes([0; 32]),
            records: &[],
            known: &[],
        };
        selector.select(words, limit, &self.config.limits)?;
        Ok(())
    }

    fn error(&self, failure: &AdminFailure) -> CommandError {
        match failure {
            AdminFailure::Refused(400, why) => CommandError::wrong_use(why),
            AdminFailure::Refused(404 | 409, why) if why.contains("hash") => {
                match why.split_once("; ") {
                    Some((message, help)) => CommandError::failed(message).help(help),
                    None => CommandError::failed(why),
                }
            }
            AdminFailure::Refused(404, why) if why.contains("limit") => {
                let url = self.client.url();
                CommandError::failed(format!("the proxy at {url} says: {why}"))
                    .help("it runs another file, or has not read this one yet: `tidegate reload`")
            }
            failure => self.client.error(failure),
        }
    }

    fn record(&self, value: &Value) -> Option<Record> {
        let tag = KeyHash::parse(value["id"].as_str()?)?;
        let what = text(&value["what"]);
        let mut terms = RecordTerms {
            kind: match what.ends_with(" removed") {
                true => ChangeKind::Remove,
                false => ChangeKind::default(),
            },
            until_us: micros(&value["until"]),
            at_us: micros(&value["at"]),
            by: text(&value["by"]),
            key: text(&value["key"]),
            note: text(&value["reason"]),
            ..RecordTerms::default()
        };
        let subject = match value["limit"].as_str() {
            None => Subject::Block(tag),
            Some(name) if what == "reset" => Subject::Reset(name.to_owned(), tag),
            Some(name) => {
                if terms.kind != ChangeKind::Remove {
                    let mut limits = self.config.limits.iter();
                    let limit = limits.find(|limit| *limit.name == *name)?;
                    terms.rules = rules(value["rates"].as_str()?, limit).ok()?;
                    terms.unlimited = terms.rules.is_empty();
                }
                Subject::Override(name.to_owned(), tag)
            }
        };
        Some(Record { subject, terms })
    }
}

impl CountsBackend for ProxyProcess<'_> {
    fn overrides(&mut self) -> Result<OverrideList, CommandError> {
        let answer = self.get("/api/v1/overrides")?;
        let records = list(&answer["overrides"]).filter_map(|one| self.record(one));
        Ok(override_list(records.collect()))
    }

    fn changes(&mut self) -> Result<Vec<Record>, CommandError> {
        let answer = self.get("/api/v1/changes")?;
        let changes = list(&answer["changes"]).filter_map(|change| self.record(change));
        Ok(changes.collect())
    }

    fn show(&mut self, limit: &Arc<Limit>, words: &[String]) -> Result<ClientState, CommandError> {
        self.check_words(words, Some(limit))?;
        let key: Vec<String> = words.iter().map(|word| encoded(word)).collect();
        let name = encoded(&limit.name);
        let answer = self.get(&format!("/api/v1/limits/{name}/keys/{}", key.join("&")))?;
        let records = [&answer["override"], &answer["block"]];
        let records = records.iter().filter_map(|one| self.record(one));
        Ok(ClientState {
            key: selected_key(&answer)?,
            windows: list(&answer["windows"]).map(window_status).collect(),
            list: override_list(records.collect()),
        })
    }

    /// The admin does not report how many counts there were.
    fn reset(&mut self, limit: &Arc<Limit>, words: &[String]) -> Result<ResetClient, CommandError> {
        self.check_words(words, Some(limit))?;
        let path = format!("/api/v1/limits/{}/reset", encoded(&limit.name));
        let answer = self.post(&path, &json!({ "by": user(), "key": words }))?;
        let answer = answer.map_err(|failure| self.error(&failure))?;
        let key = selected_key(&answer)?;
        Ok(ResetClient { key, deleted: 1 })
    }

    fn set_terms(&mut self, change: ClientTerms<'_>) -> Result<ChangedClient, CommandError> {
        let limit = change.limit.map(AsRef::<Limit>::as_ref);
        self.check_words(change.words, limit)?;
        let terms = &change.terms;
        let removes = terms.kind == ChangeKind::Remove;
        let mut body = json!({
            "by": terms.by,
            "reason": terms.note,
            "remove": removes,
            "key": change.words,
        });
        if let Some(rates) = terms.rates() {
            body["rate"] = rates.into();
        }
        if change.lasts_us > 0 {
            body["for_seconds"] = change.lasts_us.div_ceil(1_000_000).into();
        }
        let path = match limit {
            Some(limit) => format!("/api/v1/limits/{}/override", encoded(&limit.name)),
            None => "/api/v1/block".to_owned(),
        };
        match self.post(&path, &body)? {
            Ok(answer) => Ok(ChangedClient {
                key: selected_key(&answer)?,
                until_us: micros(&answer["until"]),
            }),
            Err(AdminFailure::Refused(404, why)) if removes && why.contains("to take back") => {
                Err(change.nothing_to_remove())
            }
            Err(AdminFailure::Refused(409, why)) if why.contains("as many as there may be") => {
                Err(too_many_records())
            }
            Err(failure) => Err(self.error(&failure)),
        }
    }
}

fn override_list(records: Vec<Record>) -> OverrideList {
    OverrideList { now_us: 0, records }
}

fn selected_key(answer: &Value) -> Result<SelectedKey, CommandError> {
    let tag = answer["id"].as_str().and_then(KeyHash::parse);
    let tag =
        tag.ok_or_else(|| CommandError::failed("the proxy does not say whom it understood"))?;
    Ok(SelectedKey {
        tag,
        parts: text(&answer["key"]),
    })
}

fn window_status(window: &Value) -> WindowStatus {
    let number = |name: &str| window[name].as_u64().unwrap_or(0);
    WindowStatus {
        of: window["of"].as_str().map(str::to_owned),
        policy: text(&window["policy"]),
        rate: text(&window["rate"]),
        used: number("used"),
        remaining: number("remaining"),
        reset_us: micros(&window["reset_seconds"]),
        retry: match window["retry"].as_str() {
            Some("after") => Retry::After(micros(&window["retry_seconds"])),
            Some("never") => Retry::Never,
            Some("released") => Retry::Released,
            _ => Retry::Now,
        },
    }
}

/// A word for a path: `=` and `:` stay readable.
fn encoded(word: &str) -> String {
    percent_encoded(word, "=:")
}

/// Converts seconds, as the admin reports them; 0 for none.
fn micros(seconds: &Value) -> u64 {
    (seconds.as_f64().unwrap_or(0.0) * 1e6).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_to_microseconds() {
        assert_eq!(micros(&json!(1.000_001)), 1_000_001);
    }
}
