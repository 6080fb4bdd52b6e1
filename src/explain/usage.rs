//! Explains what a request reserves of token budgets.

use super::explanation::UsageExplanation;
use crate::limit::Limit;
use crate::limit::key::BodyFacts;
use crate::usage::ask;
use crate::usage::settings::Quantity;
use tidegate_core::exchange::reserve::UsageReserve;

pub(super) fn explain_usage(reserve: &UsageReserve, body: Option<&BodyFacts>) -> UsageExplanation {
    let settings = &reserve.settings;
    let estimate = reserve.estimate;
    let members = body.map(|body| &body.members);
    let answers = members.map_or(1, |members| members.answers);
    let output_why = match estimate.names_maximum {
        true => "the maximum that the request names",
        false => "`default_output`, since the request names no maximum",
    };
    UsageExplanation {
        name: settings.name.to_string(),
        format: settings
            .format
            .map_or("json", |format| format.word())
            .to_owned(),
        model: (!reserve.model.is_empty()).then(|| reserve.model.to_string()),
        input: estimate.tokens.input,
        output: estimate.tokens.output,
        input_why: match settings.bytes_per_token {
            1 => "one for each byte of the body".to_owned(),
            bytes => format!("one for {bytes} bytes of the body"),
        },
        output_why: match answers {
            0 | 1 => output_why.to_owned(),
            many => format!("{output_why}, for each of {many} answers"),
        },
        names_maximum: estimate.names_maximum,
        asks: settings.asks && members.is_some_and(ask::is_open),
    }
}

/// How the units that a limit reserves are computed.
pub(super) fn explain_reserve(reserve: &UsageReserve, limit: &Limit, units: u64) -> String {
    let settings = &reserve.settings;
    let of = match limit.counts {
        Quantity::Requests => "each request".to_owned(),
        Quantity::Tokens => "its estimated input and output".to_owned(),
        Quantity::Input => "its estimated input".to_owned(),
        Quantity::Output => "its estimated output".to_owned(),
        Quantity::Money => "the price of its estimate, in millionths".to_owned(),
        Quantity::Costs => format!("its estimate by the weights of `{}`", settings.name),
    };
    let times = match limit.cost {
        1 => String::new(),
        own => format!(", times {own} of the limit"),
    };
    let whole = settings.units(limit.counts, reserve.estimate.tokens, &reserve.model);
    let lowered = match whole.map(|whole| limit.units(whole)) {
        Some(whole) if units < whole => {
            format!("; {whole} is lowered to what the limit holds, since no maximum is named")
        }
        _ => String::new(),
    };
    format!("reserved for {of}{times}{lowered}")
}
