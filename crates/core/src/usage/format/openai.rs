//! OpenAI: chat, completions, embeddings and the Responses API, and the many servers that speak so.
//!
//! A stream has one event with `usage`, near its end and often without choices. vLLM can send sums
//! in every event. Reasoning is a part of the output, but at xAI it is only in the total.

use super::AnswerRole::{Error, ErrorWord, Finished, Model, Text, Unfinished};
use super::TokenField::{Cached, Input, Output, Total};
use super::{AnswerLayout, AnswerRow, Tops, count, row};

pub(super) const LAYOUT: AnswerLayout = AnswerLayout {
    rows: ROWS,
    needle: "_tokens\"",
    tops: Tops::One,
    is_cache_apart: false,
    omits_zero_output: false,
    total_has_more_output: true,
    // The last counts of some servers have a choice without `finish_reason`.
    ends_with_counts: false,
};

const ROWS: &[AnswerRow] = &[
    count("usage.prompt_tokens", Input),
    count("usage.input_tokens", Input),
    count("usage.prompt_tokens_details.cached_tokens", Cached),
    count("usage.input_tokens_details.cached_tokens", Cached),
    count("usage.completion_tokens", Output),
    count("usage.output_tokens", Output),
    count("usage.total_tokens", Total),
    count("response.usage.input_tokens", Input),
    count("response.usage.input_tokens_details.cached_tokens", Cached),
    count("response.usage.output_tokens", Output),
    count("response.usage.total_tokens", Total),
    row("model", Model),
    row("response.model", Model),
    row("choices[]", Unfinished),
    row("choices[].finish_reason", Finished),
    row("error", Error),
    row("response.error", Error),
    row("type", ErrorWord),
    // Chat, streamed and whole.
    row("choices[].delta.content", Text),
    row("choices[].delta.reasoning", Text),
    row("choices[].delta.reasoning_content", Text),
    row("choices[].delta.refusal", Text),
    row("choices[].delta.tool_calls[].function.name", Text),
    row("choices[].delta.tool_calls[].function.arguments", Text),
    row("choices[].message.content", Text),
    row("choices[].message.reasoning", Text),
    row("choices[].message.reasoning_content", Text),
    row("choices[].message.refusal", Text),
    row("choices[].message.tool_calls[].function.name", Text),
    row("choices[].message.tool_calls[].function.arguments", Text),
    // Completions.
    row("choices[].text", Text),
    // Responses: events carry pieces in `delta`; later ones repeat the text in other members.
    row("delta", Text),
    row("output[].content[].text", Text),
    row("output[].content[].refusal", Text),
    row("output[].summary[].text", Text),
    row("output[].arguments", Text),
];
