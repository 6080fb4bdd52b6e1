//! Counts, overrides and blocks in Redis, which all proxies share.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use super::proxy_process::ProxyProcess;
use super::{
    ChangedClient, ClientState, ClientTerms, CountsBackend, ResetClient, too_many_records, user,
};
use crate::cli::output::CommandError;
use crate::config::{Config, RedisSettings};
use crate::key_selector::{
    KeySelectionErrorKind, KeySelector, SelectedKey, client_usage, hash_prefix, limit_checks,
    windows_of_key,
};
use crate::limit::{KeyHash, Limit, LimitCheck};
use crate::store::overrides::{
    ChangeOutcome, OverrideChange, OverrideList, Record, RecordTerms, Subject,
};
use crate::store::redis::OverrideClient;

/// Characters of a request id, at least; the proxy's own ids have 16.
const SHORTEST_REQUEST_ID: usize = 8;

pub(super) struct SharedStore<'c> {
    client: OverrideClient,
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
            client: OverrideClient::open(&config.store, server)?,
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
            let limits = self.config.limits.iter().map(AsRef::as_ref);
            let found = self.client.find_key_hashes(limits, &prefix);
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
            hash_key: &self.client.hash_key().key,
            records: &list.records,
            known: &known,
        };
        let selected = selector.select(&words, limit, &self.config.limits);
        selected.map_err(|error| match error.kind {
            KeySelectionErrorKind::Unknown if is_partial => CommandError::failed(error.message)
                .help(
                    "not every key of the store could be looked at in time, or this user may not \
                     (`+scan`): write the whole hash as `tag=HASH`, or the key as `PART=VALUE`",
                ),
            _ => error.into(),
        })
    }

    /// The client whose request had this id, if the proxy of this file denied it.
    fn find_denied(&self, words: &[String], limit: Option<&Limit>) -> Option<KeyHash> {
        let [word] = words else {
            return None;
        };
        let id = match word.strip_prefix("request=") {
            Some(id) => id,
            None if word.contains('=') => return None,
            None => word,
        };
        let is_address = word.parse::<IpAddr>().is_ok();
        if is_address || id.len() < SHORTEST_REQUEST_ID || self.config.admin.is_none() {
            return None;
        }
        let process = ProxyProcess::new(self.config, self.file).ok()?;
        process.find_denied(id, limit.map(|limit| &*limit.name))
    }
}

impl CountsBackend for SharedStore<'_> {
    fn overrides(&mut self) -> Result<OverrideList, CommandError> {
        Ok(self.client.overrides()?)
    }

    fn changes(&mut self) -> Result<Vec<Record>, CommandError> {
        Ok(self.client.changes()?)
    }

    fn show(&mut self, limit: &Arc<Limit>, words: &[String]) -> Result<ClientState, CommandError> {
        let list = self.client.overrides()?;
        let key = self.select(words, Some(limit), &list)?;
        let peek = |charge: &_| self.client.stand(charge);
        let windows = client_usage(limit, &key, &list.records, peek)?;
        Ok(ClientState { key, windows, list })
    }

    fn reset(&mut self, limit: &Arc<Limit>, words: &[String]) -> Result<ResetClient, CommandError> {
        let list = self.client.overrides()?;
        let key = self.select(words, Some(limit), &list)?;
        let windows = windows_of_key(limit, key.tag, &list.records);
        let checks: Vec<LimitCheck> = limit_checks(limit, &windows, key.tag).collect();
        let deleted = self.client.forget(&checks)?;
        // Published after the deletion: proxies then ask the store again.
        self.client.change(&OverrideChange {
            subject: Subject::Reset(limit.name.to_string(), key.tag),
            lasts_us: 0,
            terms: RecordTerms {
                by: user(),
                key: key.parts.clone(),
                suffixes: windows.iter().map(|one| one.store_suffix.clone()).collect(),
                ..RecordTerms::default()
            },
        })?;
        Ok(ResetClient { key, deleted })
    }

    fn set_terms(&mut self, terms: ClientTerms<'_>) -> Result<ChangedClient, CommandError> {
        let list = self.client.overrides()?;
        let limit = terms.limit.map(AsRef::as_ref);
        let key = self.select(terms.words, limit, &list)?;
        let outcome = self.client.change(&OverrideChange {
            subject: terms.subject(key.tag),
            lasts_us: terms.lasts_us,
            terms: RecordTerms {
                key: key.parts.clone(),
                ..terms.terms.clone()
            },
        })?;
        match outcome {
            ChangeOutcome::Made(until_us) => Ok(ChangedClient { key, until_us }),
            ChangeOutcome::Nothing => Err(terms.nothing_to_remove()),
            ChangeOutcome::Full => Err(too_many_records()),
        }
    }
}
