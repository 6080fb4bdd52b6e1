//! Gemini, by its own API and by Vertex AI.
//!
//! Each event may have `usageMetadata`, which counts from the beginning. Without `alt=sse` a stream
//! is one array of the same objects. A number that is 0 is left out.

use super::AnswerRole::{Error, Finished, Model, Text, Unfinished};
use super::TokenField::{Cached, Input, Output, Thoughts, ToolInput, Total};
use super::{AnswerLayout, AnswerRow, Tops, count, row};

pub(super) const LAYOUT: AnswerLayout = AnswerLayout {
    rows: ROWS,
    needle: "TokenCount\"",
    tops: Tops::Elements,
    is_cache_apart: false,
    omits_zero_output: true,
    total_has_more_output: false,
    ends_with_counts: true,
};

const ROWS: &[AnswerRow] = &[
    count("usageMetadata.promptTokenCount", Input),
    count("usageMetadata.toolUsePromptTokenCount", ToolInput),
    count("usageMetadata.cachedContentTokenCount", Cached),
    count("usageMetadata.candidatesTokenCount", Output),
    count("usageMetadata.thoughtsTokenCount", Thoughts),
    count("usageMetadata.totalTokenCount", Total),
    row("modelVersion", Model),
    row("candidates[]", Unfinished),
    row("candidates[].finishReason", Finished),
    row("error", Error),
    row("candidates[].content.parts[].text", Text),
];

/// The model in `/v1/models/MODEL:METHOD`.
pub(super) fn path_model(path: &str) -> Option<&str> {
    let (path, _method) = path.rsplit_once(':')?;
    let (_, model) = path.rsplit_once("/models/")?;
    (!model.is_empty()).then_some(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_model() {
        for (path, model) in [
            ("/v1beta/models/gemini-3:generateContent", Some("gemini-3")),
            (
                "/v1/projects/p/publishers/google/models/gemini-3:streamGenerateContent",
                Some("gemini-3"),
            ),
            ("/v1beta/models/gemini-3", None),
            ("/v1beta/models/:generateContent", None),
            ("/v1beta/openai/chat/completions", None),
        ] {
            assert_eq!(path_model(path), model, "{path}");
        }
    }
}
