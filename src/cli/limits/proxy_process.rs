//! Counts, overrides and blocks in the memory of a running proxy, which its admin shows and
//! changes.

use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{CountsBackend, KeyChange};
use crate::admin::denials::DenialList;
use crate::admin::operator_store::{
    ChangeDone, ChangeFailure, ClientChange, KeyUsage, RecordReport,
};
use crate::admin::overrides::{ChangeList, OverrideTexts};
use crate::cli::admin_client::{AdminArgs, AdminClient, AdminFailure, percent_encoded, runtime};
use crate::cli::output::CommandError;
use crate::config::Config;
use crate::key_selector::{KeySelector, hash_prefix};
use crate::limit::key::HashSecret;
use crate::limit::{KeyHash, Limit};
use crate::store::overrides::ChangeKind;

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

    /// The client whose request had this id, if the proxy denied it; preferably by this limit.
    pub(super) fn find_denied(&self, request: &str, limit: Option<&str>) -> Option<KeyHash> {
        let path = format!("/api/v1/denials?request_id={}", encoded(request));
        let list: DenialList = self.read(&path).ok()?;
        let mut denials = list.denials.iter();
        let found = denials.find(|one| limit.is_none_or(|limit| one.limit == limit));
        KeyHash::parse(&found.or(list.denials.first())?.id)
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

    fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, CommandError> {
        parse(
            runtime()?
                .block_on(self.client.get(path))
                .map_err(|failure| self.error(&failure))?,
        )
    }
}

fn parse<T: DeserializeOwned>(answer: Value) -> Result<T, CommandError> {
    serde_json::from_value(answer)
        .map_err(|error| CommandError::failed(format!("the proxy's answer is none: {error}")))
}

impl CountsBackend for ProxyProcess<'_> {
    fn overrides(&mut self) -> Result<Vec<RecordReport>, CommandError> {
        let list: OverrideTexts = self.read("/api/v1/overrides")?;
        Ok(list.overrides)
    }

    fn changes(&mut self) -> Result<Vec<RecordReport>, CommandError> {
        let list: ChangeList = self.read("/api/v1/changes")?;
        Ok(list.changes)
    }

    fn show(&mut self, limit: &Arc<Limit>, words: &[String]) -> Result<KeyUsage, CommandError> {
        self.check_words(words, Some(limit))?;
        let key: Vec<String> = words.iter().map(|word| encoded(word)).collect();
        let name = encoded(&limit.name);
        self.read(&format!("/api/v1/limits/{name}/keys/{}", key.join("&")))
    }

    fn change(&mut self, change: KeyChange<'_>) -> Result<ChangeDone, CommandError> {
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
        let name = limit.map_or_else(String::new, |limit| encoded(&limit.name));
        let path = match change.kind {
            ClientChange::Reset => format!("/api/v1/limits/{name}/reset"),
            ClientChange::Override => format!("/api/v1/limits/{name}/override"),
            ClientChange::Block => "/api/v1/block".to_owned(),
        };
        match runtime()?.block_on(self.client.post(&path, &body)) {
            Ok(answer) => parse(answer),
            Err(AdminFailure::Refused(404, why)) if removes && why.contains("to take back") => {
                Err(change.error(ChangeFailure::NothingToRemove))
            }
            Err(AdminFailure::Refused(409, why)) if why.contains("as many as there may be") => {
                Err(change.error(ChangeFailure::TooManyRecords))
            }
            Err(failure) => Err(self.error(&failure)),
        }
    }
}

/// A word for a path: `=` and `:` stay readable.
fn encoded(word: &str) -> String {
    percent_encoded(word, "=:")
}
