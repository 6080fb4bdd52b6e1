//! The two places of counts, overrides and blocks: Redis, which all proxies share, and the memory
//! of a running proxy, which its admin shows and changes.

use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{CountsBackend, change_error};
use crate::admin::denials::DenialList;
use crate::admin::operator_store::{
    ChangeDone, ChangeFailure, ChangeOrder, ClientChange, KeyUsage, OperatorStore, RecordReport,
};
use crate::admin::overrides::{ChangeList, OverrideTexts};
use crate::cli::admin_client::{AdminArgs, AdminClient, AdminFailure, percent_encoded, runtime};
use crate::cli::check::store_error;
use crate::cli::output::CommandError;
use crate::config::{Config, RedisSettings};
use crate::key_selector::{
    KeySelectionErrorKind, KeySelector, SelectedKey, denied_request, hash_prefix,
};
use crate::limit::key::HashSecret;
use crate::limit::{KeyHash, Limit};
use crate::store::overrides::{ChangeKind, OverrideList};

pub(super) struct SharedStore<'c> {
    store: OperatorStore,
    config: &'c Config,
    file: &'c Path,
}

impl<'c> SharedStore<'c> {
    pub(super) fn open(
        config: &'c Config,
        file: &'c Path,
        server: &RedisSettings,
    ) -> Result<SharedStore<'c>, CommandError> {
        Ok(SharedStore {
            store: OperatorStore::open(&config.store, server)
                .map_err(|error| store_error(&error, config, file))?,
            config,
            file,
        })
    }

    /// Reads the key that the words name.
    fn select(
        &mut self,
        words: &[String],
        limit: Option<&Limit>,
        list: &OverrideList,
    ) -> Result<SelectedKey, CommandError> {
        let mut words = words.to_vec();
        let (mut known, mut is_partial) = (Vec::new(), false);
        if let Some(prefix) = hash_prefix(&words) {
            let found = self.store.find_key_hashes(&self.config.limits, &prefix);
            (known, is_partial) = (found.tags, found.partly);
        }
        if known.is_empty()
            && let Some(tag) = self.find_denied(&words, limit)
        {
            words = vec![format!("tag={tag}")];
        }
        let selector = KeySelector {
            client_ip: &self.config.client_ip,
            api_key: &self.config.api_key,
            hash_key: &self.store.hash_key(),
            records: &list.records,
            known: &known,
        };
        let selected = selector.select(&words, limit, &self.config.limits);
        selected.map_err(|error| match error.kind {
            KeySelectionErrorKind::Unknown if is_partial => CommandError::failed(error.message)
                .help(
                    "the search took too long, or the Redis user lacks `+scan`: write the whole \
                     hash as `tag=HASH`, or the key as `PART=VALUE`",
                ),
            _ => error.into(),
        })
    }

    /// The client whose request had this id, if the proxy of this file denied it.
    fn find_denied(&self, words: &[String], limit: Option<&Limit>) -> Option<KeyHash> {
        let id = denied_request(words, &self.config.api_key)?;
        self.config.admin.as_ref()?;
        let process = ProxyProcess::new(self.config, self.file).ok()?;
        process.find_denied(id, limit.map(|limit| &*limit.name))
    }
}

impl CountsBackend for SharedStore<'_> {
    fn overrides(&mut self) -> Result<Vec<RecordReport>, CommandError> {
        Ok(RecordReport::list(&self.store.overrides()?.records))
    }

    fn changes(&mut self) -> Result<Vec<RecordReport>, CommandError> {
        Ok(RecordReport::list(&self.store.changes()?))
    }

    fn show(&mut self, limit: &Arc<Limit>, words: &[String]) -> Result<KeyUsage, CommandError> {
        let overrides = self.store.overrides()?;
        let client = self.select(words, Some(limit), &overrides)?;
        Ok(self.store.usage(limit, &client, &overrides)?)
    }

    fn change(
        &mut self,
        words: &[String],
        order: ChangeOrder<'_>,
    ) -> Result<ChangeDone, CommandError> {
        let (overrides, limit) = (self.store.overrides()?, order.limit);
        let client = self.select(words, limit.map(AsRef::as_ref), &overrides)?;
        let done = self.store.change(&client, order, &overrides);
        done.map_err(|failure| change_error(failure, limit))
    }
}

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
        ProxyProcess::at(config, &args)
    }

    /// Finds the admin that the options name.
    pub(super) fn at(
        config: &'c Config,
        args: &AdminArgs,
    ) -> Result<ProxyProcess<'c>, CommandError> {
        let client = AdminClient::new(args)?;
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

    fn change(
        &mut self,
        words: &[String],
        order: ChangeOrder<'_>,
    ) -> Result<ChangeDone, CommandError> {
        self.check_words(words, order.limit.map(AsRef::as_ref))?;
        let terms = &order.terms;
        let removes = terms.kind == ChangeKind::Remove;
        let mut body = json!({
            "by": terms.by,
            "reason": terms.note,
            "key": words,
        });
        if removes {
            body["remove"] = true.into();
        }
        if let Some(rates) = terms.rates() {
            body["rate"] = rates.into();
        }
        if order.lasts_us > 0 {
            body["for_seconds"] = order.lasts_us.div_ceil(1_000_000).into();
        }
        let name = order
            .limit
            .map_or_else(String::new, |limit| encoded(&limit.name));
        let path = match order.kind {
            ClientChange::Reset => format!("/api/v1/limits/{name}/reset"),
            ClientChange::Override => format!("/api/v1/limits/{name}/override"),
            ClientChange::Block => "/api/v1/block".to_owned(),
        };
        match runtime()?.block_on(self.client.post(&path, &body)) {
            Ok(answer) => parse(answer),
            Err(AdminFailure::Refused(404, why)) if removes && why.contains("to remove") => {
                Err(change_error(ChangeFailure::NothingToRemove, order.limit))
            }
            Err(AdminFailure::Refused(409, why)) if why.contains("as many as there may be") => {
                Err(change_error(ChangeFailure::TooManyRecords, order.limit))
            }
            Err(failure) => Err(self.error(&failure)),
        }
    }
}

fn encoded(word: &str) -> String {
    percent_encoded(word, "=:")
}
