//! `[ledger]`: whose usage is added up by day, for invoices.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::*;
use crate::ledger::{BilledIdentity, LedgerCount, LedgerSettings};
use crate::limit::calendar::Zone;
use crate::limit::key::{KeyError, Part};

const KEEP: RangeInclusive<Duration> = DAY..=DAY.saturating_mul(4000);
const MAX_CLIENTS: RangeInclusive<u64> = 1..=1_000_000;

/// `[ledger]`, with the places that warnings need.
pub(super) struct DefinedLedger {
    pub(super) settings: LedgerSettings,
    pub(super) span: TextSpan,
    pub(super) by_span: TextSpan,
}

/// Reads the section, if the file has it.
pub(super) fn read(top: &mut Section<'_>) -> Option<DefinedLedger> {
    if !top.reader.surroundings.forwards {
        return None;
    }
    let is_given = top.has("ledger");
    let span = top.key_span("ledger");
    let mut section = top.section("ledger");
    let form = TextForm::new(Code::InventableIdentity, "an identity to bill by");
    let by = section.parse("by", form, identity);
    let counts = section.counts();
    let zone = section.located_text("zone");
    let zone = zone.and_then(|text| zones::read(&section, text));
    let settings = LedgerSettings {
        by: by.unwrap_or(BilledIdentity(Part::ApiKey)),
        counts,
        keep: section.duration("keep", KEEP),
        max_clients: section.integer("max_clients", MAX_CLIENTS),
        ..LedgerSettings::of_zone(zone.unwrap_or_else(Zone::utc))
    };
    let by_span = section.value_span("by");
    section.finish();
    is_given.then_some(DefinedLedger {
        settings,
        span,
        by_span,
    })
}

impl Section<'_> {
    fn counts(&mut self) -> Vec<LedgerCount> {
        let words = LedgerCount::ALL.map(LedgerCount::word);
        self.declare("counts", || ValueKind::Words(words.to_vec()));
        let texts = self
            .peek("counts")
            .and_then(|value| self.texts_in("counts", value));
        let is_empty = texts.as_ref().is_some_and(Vec::is_empty);
        let form = TextForm::new(Code::UnknownWord, "a quantity of the ledger");
        let found = self.parse_all("counts", texts, form, |text| {
            let count = LedgerCount::ALL
                .into_iter()
                .find(|count| count.word() == text);
            count.ok_or("there are `requests`, `tokens` and `money`")
        });
        let found = values(found);
        if is_empty {
            self.out_of_range("counts", "1 to 3 quantities");
        }
        let is_chosen = |count: &LedgerCount| found.is_empty() || found.contains(count);
        LedgerCount::ALL.into_iter().filter(is_chosen).collect()
    }
}

fn identity(text: &str) -> Result<BilledIdentity, String> {
    const WRITE: &str = "write `api_key`, `jwt:CLAIM` or `tls:subject`";
    let part = Part::parse(text).map_err(|error: KeyError| error.to_string())?;
    match part {
        Part::ApiKey | Part::Jwt(_) | Part::Tls(_) => Ok(BilledIdentity(part)),
        _ => Err(format!("clients can choose `{text}`, or share it; {WRITE}")),
    }
}

/// Whether the ledger has the tokens or the money of requests.
pub(super) fn counts_tokens(ledger: &DefinedLedger) -> bool {
    ledger.settings.counts != [LedgerCount::Requests]
}

/// Refuses identities that no request can have.
pub(super) fn check(reader: &ConfigReader<'_>, config: &Config, ledger: &DefinedLedger) {
    let missing = match &ledger.settings.by.0 {
        Part::Jwt(_) if config.jwt.is_none() => Some(("`[auth.jwt]`", "no token is verified")),
        Part::Tls(_) if config.tls.as_ref().is_none_or(|tls| tls.clients.is_none()) => {
            Some(("`client_ca` in `[tls]`", "no client shows a certificate"))
        }
        _ => None,
    };
    if let Some((needed, why)) = missing {
        contradiction(format!("`ledger.by` needs {needed}"))
            .at(&ledger.by_span, why)
            .report_to(reader);
    }
}

/// Reports a ledger that a restart forgets, and one in which every client is unknown.
pub(super) fn warn(reader: &ConfigReader<'_>, config: &Config, ledger: &DefinedLedger) {
    if matches!(config.store.kind, StoreKind::Memory) {
        Diagnostic::new(Code::ForgottenLedger, "a restart forgets the ledger")
            .at(&ledger.span, "kept in the memory of this process")
            .help("keep it in Redis: `[store]` with `url = \"redis://127.0.0.1:6379\"`")
            .report_to(reader);
    }
    if ledger.settings.by.0 == Part::ApiKey && !config.api_key.has_source() {
        Diagnostic::new(Code::UntoldClients, "the ledger knows no client")
            .at(
                &ledger.by_span,
                "no API key is known, so all usage is of `unknown`",
            )
            .help("name a file of keys: `[api_key]` with `known = \"keys.txt\"`")
            .report_to(reader);
    }
}
