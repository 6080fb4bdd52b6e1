//! Overrides and bans of a simulated store: what `lua/overrides.lua` and `lua/bans.lua` do.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::limit::ban::DenialRecord;
use crate::limit::{KeyHash, Limit, Rule};
use crate::store::overrides::{Record, RecordTerms, Subject};
use crate::store::redis::stepped::{OverrideFields, TakenDenials, ToldBan};

/// A field of the store: when it ends, and its text.
#[derive(Clone, Debug)]
struct Field {
    until_us: u64,
    text: String,
}

/// Overrides and blocks in force, and the denials that begin bans.
#[derive(Clone, Debug, Default)]
pub(super) struct Orders {
    version: u64,
    fields: BTreeMap<String, Field>,
    changes: Vec<Record>,
    denials: BTreeMap<(Arc<str>, [u8; 16]), DenialRecord>,
}

impl Orders {
    fn next_version(&mut self, now_us: u64) -> u64 {
        self.version = now_us.max(self.version + 1);
        self.version
    }

    fn put(&mut self, subject: &Subject, terms: &RecordTerms) {
        let (until_us, at_us) = (terms.until_us, terms.at_us);
        let text = format!("until {until_us}\nat {at_us}\n{}", terms.lines());
        self.fields
            .insert(subject.to_string(), Field { until_us, text });
    }

    /// An operator gives one key of a limit another rate for a while.
    pub(super) fn set(
        &mut self,
        limit: &Limit,
        tag: KeyHash,
        rule: Rule,
        now_us: u64,
        until_us: u64,
    ) {
        let subject = Subject::Override(limit.name.to_string(), tag);
        let terms = RecordTerms {
            version: self.next_version(now_us),
            until_us,
            at_us: now_us,
            by: "an operator".to_owned(),
            key: "ip".to_owned(),
            rules: vec![rule],
            ..RecordTerms::default()
        };
        self.put(&subject, &terms);
        self.changes.push(Record { subject, terms });
    }

    /// What a proxy reads now.
    pub(super) fn read(&mut self, now_us: u64) -> Arc<OverrideFields> {
        self.fields.retain(|_, field| field.until_us > now_us);
        let fields = self.fields.iter();
        let fields = fields.map(|(name, field)| (name.clone(), field.text.clone()));
        Arc::new(OverrideFields {
            version: self.version,
            store_us: now_us,
            fields: fields.collect(),
            changes: self.changes.clone(),
        })
    }

    /// Forgets the bans that began since, and that they were counted.
    pub(super) fn forget_bans(&mut self, before: &Orders) {
        self.version = before.version;
        self.fields.clone_from(&before.fields);
    }

    /// Counts the denials that a proxy tells. Returns the version, and the bans that they begin.
    pub(super) fn count(
        &mut self,
        told: &TakenDenials,
        now_us: u64,
    ) -> (u64, Vec<Option<ToldBan>>) {
        let mut begun = Vec::new();
        for (limit, tag, count) in told.keys() {
            begun.push(self.count_one(&limit, tag, count, now_us));
        }
        (self.version, begun)
    }

    fn count_one(
        &mut self,
        limit: &Arc<Limit>,
        tag: KeyHash,
        count: u64,
        now_us: u64,
    ) -> Option<ToldBan> {
        let ban = limit.ban.as_ref()?;
        let subject = Subject::Block(tag);
        let block = self.fields.get(&subject.to_string());
        if block.is_some_and(|block| block.until_us > now_us) {
            return None;
        }
        let record = self
            .denials
            .entry((Arc::clone(&limit.name), tag.0))
            .or_default();
        let begins = record.add(ban, count, now_us)?;
        let until_us = now_us + begins.length_us;
        let terms = RecordTerms {
            until_us,
            at_us: now_us,
            ..RecordTerms::of_ban(limit)
        };
        self.put(&subject, &terms);
        self.next_version(now_us);
        Some(ToldBan {
            level: begins.level,
            until_us,
        })
    }
}
