//! The tokens that a request may use, and those that it is charged for in the end.

use super::request::BodyMembers;
use super::settings::{MissingUsage, UsageSettings};
use super::tokens::{ChargedTokens, MAX_UNITS, ReportedTokens, TokenCounts};

/// The tokens that a request reserves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    pub tokens: TokenCounts,
    /// The request names a maximum of output itself, so the estimate is never lowered.
    pub names_maximum: bool,
}

/// Estimates a request by the bytes of its body. `members` is `None` if the body is not read.
pub fn estimate(
    settings: &UsageSettings,
    members: Option<&BodyMembers>,
    body_bytes: u64,
) -> Estimate {
    let answers = members.map_or(1, |members| members.answers.max(1));
    let named = members.and_then(|members| members.maximum);
    let least = named.unwrap_or(settings.default_output);
    let output = least.max(members.map_or(0, |members| members.raised));
    Estimate {
        tokens: TokenCounts {
            input: tokens_of(settings, body_bytes),
            output: output.saturating_mul(answers).min(MAX_UNITS),
            ..TokenCounts::default()
        },
        names_maximum: named.is_some() || output > least,
    }
}

/// The least that [`estimate`] returns for any body of so many bytes, or more.
pub fn least(settings: &UsageSettings, body_bytes: u64) -> Estimate {
    Estimate {
        tokens: TokenCounts {
            input: tokens_of(settings, body_bytes),
            // A maximum is 1 or more.
            output: settings.default_output.min(1),
            ..TokenCounts::default()
        },
        names_maximum: false,
    }
}

/// The same estimate for a body of so many bytes, if that is less input.
pub fn lowered(settings: &UsageSettings, estimate: Estimate, body_bytes: u64) -> Estimate {
    let tokens = estimate.tokens;
    Estimate {
        tokens: TokenCounts {
            input: tokens.input.min(tokens_of(settings, body_bytes)),
            ..tokens
        },
        ..estimate
    }
}

/// The tokens of an answer. A count that it reports replaces that of the estimate. A count that it
/// does not report keeps the estimate's, or what `settings.missing` makes of it, which is no more.
///
/// So the part that was not reported never lifts a charge above the estimate. The reserve of a
/// limit may be lower still, and its settlement keeps to that.
///
/// `text_bytes` are the bytes of the answer's text.
pub fn actual(
    settings: &UsageSettings,
    reported: Option<ReportedTokens>,
    estimate: Estimate,
    text_bytes: u64,
) -> ChargedTokens {
    let missing = match settings.missing {
        MissingUsage::Estimate => estimate.tokens,
        MissingUsage::Prompt => TokenCounts {
            output: 0,
            ..estimate.tokens
        },
        MissingUsage::Observed => observed(settings, estimate, text_bytes).tokens,
    };
    reported.unwrap_or_default().or(missing)
}

/// The tokens of an answer by the bytes of its text. They are never above the estimate.
pub fn observed(settings: &UsageSettings, estimate: Estimate, text_bytes: u64) -> ChargedTokens {
    let tokens = estimate.tokens;
    ReportedTokens::default().or(TokenCounts {
        output: tokens.output.min(tokens_of(settings, text_bytes)),
        ..tokens
    })
}

fn tokens_of(settings: &UsageSettings, bytes: u64) -> u64 {
    bytes
        .div_ceil(settings.bytes_per_token.max(1))
        .min(MAX_UNITS)
}
