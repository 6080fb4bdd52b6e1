//! Counts of tokens, by their kinds.

/// No count and no sum of units is larger. So doubles hold them exactly, as Redis's scripts need.
pub const MAX_UNITS: u64 = (1 << 53) - 1;

/// The tokens of one request and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// The whole input, caches included.
    pub input: u64,
    /// Its part that was read from a cache.
    pub cached: u64,
    /// Its part that was written to a cache.
    pub cache_write: u64,
    pub output: u64,
}

impl TokenCounts {
    pub fn total(self) -> u64 {
        self.input.saturating_add(self.output).min(MAX_UNITS)
    }
}

/// The tokens that an answer tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedTokens {
    pub input: Option<u64>,
    pub cached: u64,
    pub cache_write: u64,
    pub output: Option<u64>,
}

impl ReportedTokens {
    pub fn is_empty(self) -> bool {
        self.input.is_none() && self.output.is_none()
    }

    /// The counts, with the estimate where the answer tells none.
    pub fn or(self, estimate: TokenCounts) -> TokenCounts {
        TokenCounts {
            input: self.input.unwrap_or(estimate.input),
            cached: self.cached,
            cache_write: self.cache_write,
            output: self.output.unwrap_or(estimate.output),
        }
    }
}
