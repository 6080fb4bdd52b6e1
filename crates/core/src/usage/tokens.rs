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

    /// The same counts, lowered until input and output together are at most `most`. Output goes
    /// first. No count sinks below the one in `known`.
    pub fn lowered_to(self, most: u64, known: TokenCounts) -> TokenCounts {
        let excess = self.total().saturating_sub(most);
        let of_output = excess.min(self.output.saturating_sub(known.output));
        let of_input = (excess - of_output).min(self.input.saturating_sub(known.input));
        TokenCounts {
            input: self.input - of_input,
            output: self.output - of_output,
            ..self
        }
    }
}

/// The tokens that a request is charged for in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargedTokens {
    /// All of them, with the estimate's part for each count that the answer does not report.
    pub tokens: TokenCounts,
    /// Those that the answer reports, if `tokens` has a part of the estimate; else `None`.
    pub partly_reported: Option<TokenCounts>,
}

/// The tokens that an answer tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedTokens {
    pub input: Option<u64>,
    pub cached: u64,
    pub cache_write: u64,
    pub output: Option<u64>,
}

impl ChargedTokens {
    /// The same, but no less than what an answer reported before it broke off.
    pub fn at_least(self, known: TokenCounts) -> ChargedTokens {
        // Parts from a cache are cheaper, so they would lower the estimate.
        let tokens = TokenCounts {
            input: self.tokens.input.max(known.input),
            output: self.tokens.output.max(known.output),
            ..self.tokens
        };
        ChargedTokens {
            tokens,
            partly_reported: Some(known),
        }
    }
}

impl ReportedTokens {
    pub fn is_empty(self) -> bool {
        self.input.is_none() && self.output.is_none()
    }

    /// The counts, with the estimate where the answer tells none.
    pub fn or(self, estimate: TokenCounts) -> ChargedTokens {
        let with = |estimate: TokenCounts| TokenCounts {
            input: self.input.unwrap_or(estimate.input),
            cached: self.cached,
            cache_write: self.cache_write,
            output: self.output.unwrap_or(estimate.output),
        };
        let is_whole = self.input.is_some() && self.output.is_some();
        ChargedTokens {
            tokens: with(estimate),
            partly_reported: (!is_whole).then(|| with(TokenCounts::default())),
        }
    }
}
