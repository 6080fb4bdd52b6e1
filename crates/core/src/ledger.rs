//! The ledger: what each client used on each day, for invoices.
//!
//! Workers add up beside the decision (`pending`), one thread of the process collects that each
//! second (`backlog`) and sends it to the store. A request belongs to the day of its admission, and
//! so does what its answer corrects later. Requests count that a limit counted and that were
//! admitted.
//!
//! Pure, but for the locks of the workers: time is an argument.

mod backlog;
mod lines;
mod pending;
mod settings;

pub use jiff::civil::Date;

pub use backlog::{BatchLine, BatchReceipt, LedgerBacklog, LedgerBatch, LedgerShard, SHARDS};
pub use lines::{
    DayLines, LedgerDays, LedgerGroups, LedgerPeriod, LedgerRow, MAX_LINES, TooManyRows, days_of,
};
pub use pending::{BilledRequest, LedgerInbox, PendingDay, WorkerLedger};
pub use settings::{BilledIdentity, LedgerSettings};

/// Lines that wait in a worker until they are collected, and in the process while the store is
/// away; about 150 bytes each.
const MAX_WAITING: usize = 200_000;

/// A quantity of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerCount {
    Requests,
    Tokens,
    /// Millionths of the currency of `[prices]`.
    Money,
}

impl LedgerCount {
    pub const ALL: [LedgerCount; 3] = [
        LedgerCount::Requests,
        LedgerCount::Tokens,
        LedgerCount::Money,
    ];

    /// The word in `counts`.
    pub fn word(self) -> &'static str {
        match self {
            LedgerCount::Requests => "requests",
            LedgerCount::Tokens => "tokens",
            LedgerCount::Money => "money",
        }
    }
}

/// An amount of each quantity. A correction may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerAmounts {
    pub requests: i64,
    pub tokens: i64,
    /// Millionths of the currency of `[prices]`.
    pub money: i64,
}

impl LedgerAmounts {
    pub fn amount(self, count: LedgerCount) -> i64 {
        match count {
            LedgerCount::Requests => self.requests,
            LedgerCount::Tokens => self.tokens,
            LedgerCount::Money => self.money,
        }
    }

    pub fn amount_mut(&mut self, count: LedgerCount) -> &mut i64 {
        match count {
            LedgerCount::Requests => &mut self.requests,
            LedgerCount::Tokens => &mut self.tokens,
            LedgerCount::Money => &mut self.money,
        }
    }

    pub fn add(&mut self, more: LedgerAmounts) {
        for count in LedgerCount::ALL {
            let sum = self.amount_mut(count);
            *sum = sum.saturating_add(more.amount(count));
        }
    }

    /// What is to be added to `before` to make it this.
    pub fn since(self, before: LedgerAmounts) -> LedgerAmounts {
        let mut difference = self;
        for count in LedgerCount::ALL {
            let left = difference.amount_mut(count);
            *left = left.saturating_sub(before.amount(count));
        }
        difference
    }

    /// Only these quantities; the others are 0.
    pub fn only(self, counts: &[LedgerCount]) -> LedgerAmounts {
        let mut chosen = LedgerAmounts::default();
        for count in counts {
            *chosen.amount_mut(*count) = self.amount(*count);
        }
        chosen
    }

    /// The same without corrections downwards, for counters that never fall.
    pub fn raised(self) -> LedgerAmounts {
        let mut raised = self;
        for count in LedgerCount::ALL {
            *raised.amount_mut(count) = self.amount(count).max(0);
        }
        raised
    }

    fn has_negative(self) -> bool {
        LedgerCount::ALL.iter().any(|count| self.amount(*count) < 0)
    }

    pub fn is_zero(self) -> bool {
        self == LedgerAmounts::default()
    }
}

/// Whose usage a line has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LedgerClient {
    /// By the name for people, never by a key.
    Named(Box<str>),
    /// Requests without a known identity.
    Unknown,
    /// The clients beyond `max_clients`.
    Other,
}

/// Bytes of a client's name, at most. A longer identity counts as unknown.
const MAX_NAME: usize = 256;

impl LedgerClient {
    pub fn named(name: &str) -> LedgerClient {
        match name.len() {
            1..=MAX_NAME => LedgerClient::Named(name.into()),
            _ => LedgerClient::Unknown,
        }
    }

    /// The word or the name that people read.
    pub fn text(&self) -> &str {
        match self {
            LedgerClient::Named(name) => name,
            LedgerClient::Unknown => "unknown",
            LedgerClient::Other => "other",
        }
    }

    /// What kind of line it is: a client may have the name `other`.
    pub fn kind(&self) -> &'static str {
        match self {
            LedgerClient::Named(_) => "client",
            LedgerClient::Unknown => "unknown",
            LedgerClient::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_added_and_corrected() {
        let mut sum = LedgerAmounts {
            requests: 1,
            tokens: 100,
            money: 7,
        };
        let before = sum;
        let settled = LedgerAmounts { tokens: 40, ..sum };
        let correction = settled.since(before);
        assert_eq!((correction.requests, correction.tokens), (0, -60));
        sum.add(correction);
        assert_eq!(sum, settled);
        let chosen = sum.only(&[LedgerCount::Tokens]);
        assert_eq!((chosen.requests, chosen.tokens, chosen.money), (0, 40, 0));
        assert!(sum.only(&[]).is_zero());
    }

    #[test]
    fn a_client_that_is_called_other_is_a_client() {
        let client = LedgerClient::named("other");
        assert_eq!((client.text(), client.kind()), ("other", "client"));
        assert_ne!(client, LedgerClient::Other);
        assert_eq!(LedgerClient::named(""), LedgerClient::Unknown);
        assert_eq!(LedgerClient::named(&"x".repeat(257)), LedgerClient::Unknown);
    }
}
