//! What the workers have added up since it was last collected.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::civil::Date;

use super::{BilledIdentity, LedgerAmounts, LedgerClient, LedgerSettings, MAX_WAITING};
use crate::limit::key::{Facts, Part};

/// One request as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BilledRequest {
    client: LedgerClient,
    /// Set when the request was admitted.
    admitted: Option<Admitted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Admitted {
    date: Date,
    amounts: LedgerAmounts,
}

/// The usage of one day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingDay {
    pub date: Date,
    pub clients: HashMap<LedgerClient, LedgerAmounts>,
}

#[derive(Debug, Default)]
struct PendingUsage(Mutex<Vec<PendingDay>>);

impl PendingUsage {
    fn lock(&self) -> MutexGuard<'_, Vec<PendingDay>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One worker's part of the ledger. Only the collecting thread waits for it, once a second.
#[derive(Debug)]
pub struct WorkerLedger {
    settings: Arc<LedgerSettings>,
    pending: Arc<PendingUsage>,
}

/// Where the usage of all workers is collected. Parts of replaced configurations go on until their
/// last request has ended.
#[derive(Debug, Default)]
pub struct LedgerInbox(Mutex<Vec<Arc<PendingUsage>>>);

impl LedgerInbox {
    /// A part of the ledger for one worker.
    pub fn worker(&self, settings: &Arc<LedgerSettings>) -> WorkerLedger {
        let pending = Arc::<PendingUsage>::default();
        self.lock().push(Arc::clone(&pending));
        WorkerLedger {
            settings: Arc::clone(settings),
            pending,
        }
    }

    /// Takes what the workers have added up.
    pub fn collect(&self) -> Vec<PendingDay> {
        let mut all = Vec::new();
        self.lock().retain(|pending| {
            // Read before the rest is taken: a worker may add something and end in between.
            let is_used = Arc::strong_count(pending) > 1;
            all.append(&mut *pending.lock());
            is_used
        });
        all
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<PendingUsage>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerLedger {
    /// The client of a request. Nothing is counted yet.
    pub fn begin(&self, facts: &Facts<'_>) -> BilledRequest {
        BilledRequest {
            client: client_of(&self.settings.by, facts),
            admitted: None,
        }
    }

    /// Counts a request that was admitted at `at_us`, microseconds since the Unix epoch.
    pub fn admit(&self, request: &mut BilledRequest, at_us: u64, amounts: LedgerAmounts) {
        let date = self.settings.date_at(at_us);
        request.admitted = Some(Admitted { date, amounts });
        self.add(&request.client, date, amounts);
    }

    /// Corrects the day of a request to its final amounts. Call it once.
    pub fn settle(&self, request: &BilledRequest, amounts: LedgerAmounts) {
        if let Some(admitted) = &request.admitted {
            let correction = amounts.since(admitted.amounts);
            self.add(&request.client, admitted.date, correction);
        }
    }

    fn add(&self, client: &LedgerClient, date: Date, amounts: LedgerAmounts) {
        let amounts = amounts.only(&self.settings.counts);
        if amounts.is_zero() {
            return;
        }
        let mut days = self.pending.lock();
        // There is one day, or two shortly after midnight.
        let index = days.iter().position(|day| day.date == date);
        let index = index.unwrap_or_else(|| {
            let clients = HashMap::new();
            days.push(PendingDay { date, clients });
            days.len() - 1
        });
        let clients = &mut days[index].clients;
        if let Some(sum) = clients.get_mut(client) {
            return sum.add(amounts);
        }
        let is_one = matches!(client, LedgerClient::Named(_));
        let client = match !is_one || clients.len() < MAX_WAITING {
            true => client.clone(),
            false => LedgerClient::Other,
        };
        clients.entry(client).or_default().add(amounts);
    }
}

/// The client, if its identity is one that clients cannot invent.
fn client_of(by: &BilledIdentity, facts: &Facts<'_>) -> LedgerClient {
    let name = match &by.0 {
        Part::ApiKey => facts.billed_key(),
        part => part.text(facts),
    };
    name.map_or(LedgerClient::Unknown, |name| LedgerClient::named(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::LedgerCount;
    use crate::limit::calendar::Zone;

    const HOUR_US: u64 = 3_600_000_000;
    /// 2026-11-26 22:30 UTC.
    const AT_US: u64 = 1_795_732_200_000_000;

    fn settings(zone: &str) -> Arc<LedgerSettings> {
        Arc::new(LedgerSettings::of_zone(Zone::of_offset(zone).unwrap()))
    }

    fn request(name: &str) -> BilledRequest {
        BilledRequest {
            client: LedgerClient::named(name),
            admitted: None,
        }
    }

    fn one(tokens: i64) -> LedgerAmounts {
        LedgerAmounts {
            requests: 1,
            tokens,
            money: 0,
        }
    }

    fn texts(inbox: &LedgerInbox) -> Vec<String> {
        let lines = inbox.collect().into_iter().flat_map(|day| {
            let date = day.date;
            let line = move |(client, sum): (LedgerClient, LedgerAmounts)| {
                format!("{date} {} {} {}", client.text(), sum.requests, sum.tokens)
            };
            day.clients.into_iter().map(line)
        });
        let mut lines: Vec<String> = lines.collect();
        lines.sort();
        lines
    }

    #[test]
    fn a_request_and_its_corrections_belong_to_the_day_of_its_admission() {
        let inbox = LedgerInbox::default();
        let worker = inbox.worker(&settings("+01:00"));
        let mut before = request("acme");
        worker.admit(&mut before, AT_US, one(100));
        let mut after = request("acme");
        worker.admit(&mut after, AT_US + HOUR_US, one(10));
        assert_eq!(
            texts(&inbox),
            ["2026-11-26 acme 1 100", "2026-11-27 acme 1 10"]
        );
        worker.settle(&before, one(30));
        assert_eq!(texts(&inbox), ["2026-11-26 acme 0 -70"]);
        worker.settle(&after, one(10));
        worker.settle(&request("never admitted"), one(10));
        assert_eq!(texts(&inbox), [""; 0]);
    }

    #[test]
    fn a_worker_keeps_so_many_clients_until_they_are_collected() {
        let inbox = LedgerInbox::default();
        let worker = inbox.worker(&settings("+00:00"));
        for number in 0..MAX_WAITING + 5 {
            worker.admit(&mut request(&format!("c{number}")), AT_US, one(0));
        }
        worker.admit(&mut request(""), AT_US, one(0));
        let day = inbox.collect().remove(0);
        assert_eq!(day.clients.len(), MAX_WAITING + 2);
        assert_eq!(day.clients[&LedgerClient::Other].requests, 5);
        assert_eq!(day.clients[&LedgerClient::Unknown].requests, 1);
    }

    #[test]
    fn the_rest_of_a_worker_that_ends_is_collected() {
        let inbox = LedgerInbox::default();
        let worker = inbox.worker(&settings("+00:00"));
        worker.admit(&mut request("a"), AT_US, one(0));
        drop(worker);
        assert_eq!(texts(&inbox), ["2026-11-26 a 1 0"]);
        assert!(inbox.lock().is_empty());
    }

    #[test]
    fn only_the_counts_of_the_settings_are_kept() {
        let inbox = LedgerInbox::default();
        let settings = LedgerSettings {
            counts: vec![LedgerCount::Tokens],
            ..LedgerSettings::of_zone(Zone::utc())
        };
        let worker = inbox.worker(&Arc::new(settings));
        worker.admit(&mut request("a"), AT_US, one(0));
        worker.admit(&mut request("b"), AT_US, one(5));
        assert_eq!(texts(&inbox), ["2026-11-26 b 0 5"]);
    }
}
