//! Tokens of model servers, by route.

/// How a request to a model server ended, as the label `outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageOutcome {
    /// The answer said its usage.
    Exact,
    /// It said none.
    Missing,
    /// The client left before.
    Aborted,
    /// The client left, and the answer was read to its end.
    Drained,
    /// The status of the answer gave back all units.
    Refunded,
    /// The answer is compressed in a way that is not read.
    Encoded,
}

impl UsageOutcome {
    pub const WORDS: [&str; 6] = [
        "exact", "missing", "aborted", "drained", "refunded", "encoded",
    ];

    pub const ALL: [UsageOutcome; 6] = [
        UsageOutcome::Exact,
        UsageOutcome::Missing,
        UsageOutcome::Aborted,
        UsageOutcome::Drained,
        UsageOutcome::Refunded,
        UsageOutcome::Encoded,
    ];

    pub fn word(self) -> &'static str {
        UsageOutcome::WORDS[self as usize]
    }

    pub fn parse(word: &str) -> Option<UsageOutcome> {
        let mut all = UsageOutcome::ALL.into_iter();
        all.find(|outcome| outcome.word() == word)
    }
}

/// The label `class`. Input is without the two kinds of cached input.
pub const TOKEN_CLASSES: [&str; 4] = ["input", "cached", "cache_write", "output"];

/// The upper bounds of the share that answers used of their reserve, millionths.
pub const RATIO_BOUNDS: [u64; 14] = [
    10_000, 25_000, 50_000, 100_000, 200_000, 300_000, 400_000, 500_000, 750_000, 1_000_000,
    1_250_000, 1_500_000, 2_000_000, 5_000_000,
];
