//! Amazon Bedrock: Converse and `InvokeModel`, whole or as event streams.
//!
//! The `metadata` message at the end of a Converse stream has the counts. `inputTokens` are those
//! beside the cache. `InvokeModel` streams the events of the model itself, in Base64, and adds its
//! metrics to the last one. Whole, it has the counts in headers. An answer does not name its model;
//! the path of the request does.

use super::super::tokens::{MAX_UNITS, ReportedTokens};
use super::AnswerRole::{Error, Nested, Text};
use super::TokenField::{CacheWrite, Cached, Input, Output, Total};
use super::{AnswerLayout, AnswerRow, Tops, count, row};

pub(super) const LAYOUT: AnswerLayout = AnswerLayout {
    rows: ROWS,
    needle: "Tokens\"",
    tops: Tops::One,
    is_cache_apart: true,
    omits_zero_output: false,
    total_has_more_output: false,
    ends_with_counts: true,
};

const ROWS: &[AnswerRow] = &[
    count("usage.inputTokens", Input),
    count("usage.cacheReadInputTokens", Cached),
    count("usage.cacheWriteInputTokens", CacheWrite),
    count("usage.outputTokens", Output),
    count("usage.totalTokens", Total),
    row("bytes", Nested),
    count("amazon-bedrock-invocationMetrics.inputTokenCount", Input),
    count(
        "amazon-bedrock-invocationMetrics.cacheReadInputTokenCount",
        Cached,
    ),
    count(
        "amazon-bedrock-invocationMetrics.cacheWriteInputTokenCount",
        CacheWrite,
    ),
    count("amazon-bedrock-invocationMetrics.outputTokenCount", Output),
    row("error", Error),
    // Streamed.
    row("delta.text", Text),
    row("delta.toolUse.input", Text),
    row("delta.reasoningContent.text", Text),
    // Whole.
    row("output.message.content[].text", Text),
    row(
        "output.message.content[].reasoningContent.reasoningText.text",
        Text,
    ),
];

/// Reads the headers in which a whole answer of `InvokeModel` has its counts.
pub fn header_tokens<'h>(header: impl Fn(&str) -> Option<&'h str>) -> Option<ReportedTokens> {
    let count = |name: &str| {
        let name = format!("x-amzn-bedrock-{name}-token-count");
        let count = header(&name)?.trim().parse::<u64>().ok()?;
        Some(count.min(MAX_UNITS))
    };
    let cached = count("cache-read-input").unwrap_or(0);
    let cache_write = count("cache-write-input").unwrap_or(0);
    let whole = |input: u64| input.saturating_add(cached.saturating_add(cache_write));
    let tokens = ReportedTokens {
        input: count("input").map(|input| whole(input).min(MAX_UNITS)),
        cached,
        cache_write,
        output: count("output"),
    };
    (!tokens.is_empty()).then_some(tokens)
}

/// The model in `/model/MODEL/METHOD`. The name of an inference profile has a slash.
pub(super) fn path_model(path: &str) -> Option<&str> {
    let (path, method) = path.rsplit_once('/')?;
    let methods = [
        "converse",
        "converse-stream",
        "invoke",
        "invoke-with-response-stream",
    ];
    let (_, model) = path.rsplit_once("/model/")?;
    (methods.contains(&method) && !model.is_empty()).then_some(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_model() {
        for (path, model) in [
            ("/model/claude-5-v1:0/converse", Some("claude-5-v1:0")),
            ("/aws/model/claude/converse-stream", Some("claude")),
            ("/model/claude/invoke", Some("claude")),
            ("/model/claude/invoke-with-response-stream", Some("claude")),
            (
                "/model/arn:aws:bedrock:us-east-1:1:inference-profile/us.claude-5/converse",
                Some("arn:aws:bedrock:us-east-1:1:inference-profile/us.claude-5"),
            ),
            ("/model/claude/count-tokens", None),
            ("/model//invoke", None),
            ("/invoke", None),
        ] {
            assert_eq!(path_model(path), model, "{path}");
        }
    }
}
