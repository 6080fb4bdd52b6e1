//! Counts, overrides and blocks in Redis, which all proxies share.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use super::proxy_process::ProxyProcess;
use super::{CountsBackend, KeyChange};
use crate::admin::operator_store::{
    ChangeDone, ChangeOrder, KeyUsage, OperatorStore, RecordReport,
};
use crate::cli::output::CommandError;
use crate::config::{Config, RedisSettings};
use crate::key_selector::{KeySelectionErrorKind, KeySelector, SelectedKey, hash_prefix};
use crate::limit::{KeyHash, Limit};
use crate::store::overrides::OverrideList;

/// Characters of a request id, at least; the proxy's own ids have 16.
const SHORTEST_REQUEST_ID: usize = 8;

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
            store: OperatorStore::open(&config.store, server)?,
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

    fn change(&mut self, change: KeyChange<'_>) -> Result<ChangeDone, CommandError> {
        let overrides = self.store.overrides()?;
        let limit = change.limit.map(AsRef::as_ref);
        let order = ChangeOrder {
            kind: change.kind,
            client: &self.select(change.words, limit, &overrides)?,
            limit: change.limit,
            lasts_us: change.lasts_us,
            terms: change.terms.clone(),
        };
        let done = self.store.change(order, &overrides);
        done.map_err(|failure| change.error(failure))
    }
}
