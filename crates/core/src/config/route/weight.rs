//! What a route's requests weigh, and what of it they get back.

use http::HeaderName;

use super::super::diagnostic::Code;
use super::super::reader::At;
use super::super::section::Section;
use super::super::values::{TextForm, header_name};
use crate::route::{CostSource, StatusSet};

/// A cost is below 2^32, as the units of a limit are.
const MAX_COST: u64 = u32::MAX as u64;

/// `cost`: a number, or `"header:x-cost"`.
pub(super) fn cost(section: &mut Section<'_>) -> At<CostSource> {
    let default = At {
        value: CostSource::Fixed(1),
        span: section.span.clone(),
    };
    let is_text = section
        .peek("cost")
        .is_some_and(|value| value.get_ref().is_str());
    if !is_text {
        let number = section.integer("cost", 0..=MAX_COST);
        return number.map_or(default, |number| number.map(CostSource::Fixed));
    }
    let source = section.parsed("cost", TextForm::new(Code::BadKey, "a cost"), |text| {
        let name = text
            .strip_prefix("header:")
            .ok_or("write a number, or `\"header:x-cost\"`")?;
        header_name(name)
    });
    source.map_or(default, |name| name.map(CostSource::Header))
}

/// `settle = "response-header:x-cost"`
pub(super) fn settle(text: &str) -> Result<HeaderName, &'static str> {
    let name = text.strip_prefix("response-header:");
    header_name(name.ok_or("the upstream says it; write `\"response-header:x-cost\"`")?)
}

/// `refund = ["5xx", "404"]`
pub(super) fn refund(section: &mut Section<'_>) -> Option<At<StatusSet>> {
    let texts = section.texts("refund")?;
    if texts.value.is_empty() {
        section.out_of_range_at("refund", &texts, "one or more; leave `refund` out for none");
    }
    let mut set = StatusSet::default();
    for text in texts.value {
        let kind = TextForm::new(Code::BadHttp, "a status");
        section.understood("refund", text, kind, |text| set.add(text));
    }
    Some(At {
        value: set,
        span: texts.span,
    })
}
