//! Reads `[usage.NAME]` and `[prices]`: where the answers of a model server have their tokens, what
//! is charged before they are known, and what tokens cost.

use std::sync::Arc;

use toml::de::DeValue;

use super::*;
use crate::usage::format::{AnswerFormat, AnswerTable, JsonPaths, TextCount};
use crate::usage::paths::MemberPath;
use crate::usage::settings::{
    AbortedUsage, MissingUsage, PriceRow, PriceTable, TokenWeights, UsageSettings,
};

/// Models that `[prices]` may name, at most.
const MAX_PRICES: usize = 1_000;
/// The largest weight, and the highest price of a million tokens.
const MAX_WEIGHT: u64 = 1_000_000;
/// The settings of `format = "json"`.
const PATHS: [&str; 5] = ["input", "output", "total", "model", "text"];
/// The format without defaults.
pub(super) const JSON: &str = "json";

/// The formats by their words; `None` is any JSON, by paths.
const FORMATS: [(&str, Option<AnswerFormat>); 6] = [
    (AnswerFormat::OpenAi.word(), Some(AnswerFormat::OpenAi)),
    (
        AnswerFormat::Anthropic.word(),
        Some(AnswerFormat::Anthropic),
    ),
    (AnswerFormat::Gemini.word(), Some(AnswerFormat::Gemini)),
    (AnswerFormat::Ollama.word(), Some(AnswerFormat::Ollama)),
    (AnswerFormat::Bedrock.word(), Some(AnswerFormat::Bedrock)),
    (JSON, None),
];

/// The words of formats that a route may name.
pub(super) fn format_words<'w>() -> impl Iterator<Item = &'w str> {
    let words = FORMATS.iter().map(|(word, _)| *word);
    words.filter(|word| *word != JSON)
}

/// `[usage.NAME]`, or the defaults of a format, and its places in the file.
pub(super) struct DefinedUsage {
    pub(super) name: String,
    /// The place of the name, if there is a section.
    pub(super) name_span: Option<TextSpan>,
    pub(super) settings: Arc<UsageSettings>,
    /// The place of `abort`, or of the name.
    pub(super) abort_span: TextSpan,
    /// The place of `default_output`, or of the name.
    pub(super) output_span: TextSpan,
}

/// Reads every `[usage.NAME]`.
pub(super) fn read_all(top: &mut Section<'_>, prices: &Arc<PriceTable>) -> Vec<DefinedUsage> {
    if !top.reader.surroundings.forwards {
        return Vec::new();
    }
    let sections = top.named("usage").into_iter();
    let defined = sections.map(|(name, mut section)| {
        section.check_name(&name, "usage");
        section.require("format", "format = \"openai\"");
        let format = format(&mut section);
        let defined = read(&mut section, &name.value, format.flatten(), prices);
        check_format(&section, format);
        section.finish();
        DefinedUsage {
            name_span: Some(name.span),
            ..defined
        }
    });
    let defined: Vec<DefinedUsage> = defined.collect();
    // A file without such a section declares the settings all the same.
    let mut absent = Section::absent(top.reader, "usage.NAME", 0..0);
    format(&mut absent);
    read(&mut absent, "", None, prices);
    defined
}

fn format(section: &mut Section<'_>) -> Option<Option<AnswerFormat>> {
    section.optional_word("format", &FORMATS)
}

/// The defaults of a format, for a route that names the format alone.
pub(super) fn of_format(place: &Located<String>, prices: &Arc<PriceTable>) -> Option<DefinedUsage> {
    let mut formats = FORMATS.iter().filter(|(word, _)| *word == place.value);
    let format = formats.find_map(|(_, format)| *format)?;
    let defined = Section::read_defaults("usage.NAME", |section| {
        read(section, format.word(), Some(format), prices)
    });
    Some(DefinedUsage {
        abort_span: place.span.clone(),
        output_span: place.span.clone(),
        ..defined
    })
}

fn read(
    section: &mut Section<'_>,
    name: &str,
    format: Option<AnswerFormat>,
    prices: &Arc<PriceTable>,
) -> DefinedUsage {
    let missing = section.word(
        "missing",
        &[
            ("estimate", MissingUsage::Estimate),
            ("prompt", MissingUsage::Prompt),
            ("observed", MissingUsage::Observed),
        ],
    );
    let abort = abort(section);
    let is_observed = missing == MissingUsage::Observed || abort == AbortedUsage::Observed;
    let text = match is_observed {
        true => TextCount::Counted,
        false => TextCount::Ignored,
    };
    let paths = paths(section);
    let table = match format {
        Some(format) => AnswerTable::new(format, text),
        None => AnswerTable::of_paths(&paths, text),
    };
    let settings = UsageSettings {
        name: name.into(),
        format,
        table: Arc::new(table),
        bytes_per_token: section.integer("bytes_per_token", 1..=64),
        default_output: section.integer("default_output", 0..=u64::from(u32::MAX)),
        weights: weights(section),
        asks: section.boolean("ask"),
        missing,
        abort,
        prices: Arc::clone(prices),
    };
    DefinedUsage {
        name: name.to_owned(),
        name_span: None,
        settings: Arc::new(settings),
        abort_span: section.value_span("abort"),
        output_span: section.value_span("default_output"),
    }
}

/// Reads `abort`, and `drain`: how long an answer without a client is read.
fn abort(section: &mut Section<'_>) -> AbortedUsage {
    let drain = section.duration("drain", SECOND..=3_600 * SECOND);
    let words = [
        ("estimate", AbortedUsage::Estimate),
        ("observed", AbortedUsage::Observed),
        ("drain", AbortedUsage::Drain(drain)),
    ];
    let abort = section.word("abort", &words);
    if section.has("drain") && !matches!(abort, AbortedUsage::Drain(_)) {
        contradiction("`drain` is for `abort = \"drain\"`")
            .at(&section.value_span("drain"), "no answer is read to its end")
            .help("write `abort = \"drain\"`, or leave out `drain`")
            .report_to(section.reader);
    }
    abort
}

fn paths(section: &mut Section<'_>) -> JsonPaths {
    const FORM: TextForm = TextForm::new(Code::BadKey, "the path of a member");
    let [input, output, total, model, text] =
        PATHS.map(|key| section.parse(key, FORM, MemberPath::parse));
    JsonPaths {
        input,
        output,
        total,
        model,
        text,
    }
}

fn weights(section: &mut Section<'_>) -> TokenWeights {
    let mut section = section.section("weights");
    let mut weight = |key| section.decimal(key).unwrap_or(TokenWeights::ONE);
    let weights = TokenWeights {
        input: weight("input"),
        cached: weight("cached"),
        cache_write: weight("cache_write"),
        output: weight("output"),
    };
    section.finish();
    weights
}

/// Reports settings that do not go with the format. `None` if it could not be read.
fn check_format(section: &Section<'_>, format: Option<Option<AnswerFormat>>) {
    let Some(format) = format else { return };
    let format_span = section.value_span("format");
    if section.peek("ask").is_some_and(is_true) && format != Some(AnswerFormat::OpenAi) {
        contradiction("`ask` is for `format = \"openai\"`")
            .at(
                &section.value_span("ask"),
                "other servers know no such member",
            )
            .at(&format_span, "")
            .help("leave out `ask`")
            .report_to(section.reader);
    }
    match format {
        Some(_) => {
            for key in PATHS.into_iter().filter(|key| section.has(key)) {
                contradiction(format!("`{key}` is for `format = \"json\"`"))
                    .at(&section.value_span(key), "")
                    .at(&format_span, "has paths of its own")
                    .help(format!("leave out `{key}`, or write `format = \"json\"`"))
                    .report_to(section.reader);
            }
        }
        None => check_paths(section),
    }
}

fn is_true(value: &toml::Spanned<DeValue<'_>>) -> bool {
    value.get_ref().as_bool() == Some(true)
}

/// Reports paths of `format = "json"` that are missing or say the same twice.
fn check_paths(section: &Section<'_>) {
    let parts: Vec<&str> = (PATHS[..2].iter().copied())
        .filter(|key| section.has(key))
        .collect();
    if parts.is_empty() && !section.has("total") {
        report_no_paths(section);
    }
    for key in parts.iter().filter(|_| section.has("total")) {
        contradiction(format!("`{}` has `total` and `{key}`", section.name()))
            .at(&section.value_span("total"), "has both kinds of tokens")
            .at(&section.value_span(key), "")
            .help("write `input` and `output`, or `total` alone")
            .report_to(section.reader);
    }
    let observes = |key: &&str| {
        let word = section.peek(key).and_then(|value| value.get_ref().as_str());
        word == Some("observed")
    };
    if let Some(key) = ["missing", "abort"].into_iter().find(observes)
        && !section.has("text")
    {
        contradiction(format!("`{key} = \"observed\"` needs `text`"))
            .at(
                &section.value_span(key),
                "the text of an answer is measured",
            )
            .help("write for example `text = \"message.content\"`")
            .report_to(section.reader);
    }
}

fn report_no_paths(section: &Section<'_>) {
    let message = format!("`{}` has neither `output` nor `total`", section.name());
    Diagnostic::new(Code::MissingKey, message)
        .at(&section.span, "")
        .help("write for example `input = \"stats.tokens_in\"` and `output = \"stats.tokens_out\"`")
        .report_to(section.reader);
}

/// Reads `[prices]`, in the file's order.
pub(super) fn read_prices(top: &mut Section<'_>) -> PriceTable {
    if !top.reader.surroundings.forwards {
        return PriceTable::default();
    }
    top.declare("prices", || ValueKind::Map(Box::new(ValueKind::Table)));
    let prices = top.section("prices");
    for key in ["input", "cached", "cache_write", "output"] {
        prices.reader.declare("prices", key, || ValueKind::Decimal);
    }
    let mut rows: Vec<Located<PriceRow>> = Vec::new();
    for (model, value) in prices.entries() {
        let DeValue::Table(table) = value.get_ref() else {
            prices.wrong_type(&model.value, value, "a table of prices");
            let help = "write for example `{ input = 1.25, output = 10 }`".to_owned();
            prices.reader.set_help(&value.span(), help);
            continue;
        };
        let covers = |earlier: &&Located<PriceRow>| covers(&earlier.value.model, &model.value);
        if let Some(earlier) = rows.iter().find(covers) {
            let message = format!("the price of `{}` is never used", model.value);
            contradiction(message)
                .at(&model.span, "")
                .at(
                    &earlier.span,
                    "has all these models, and the first one counts",
                )
                .help("write it above the other")
                .report_to(prices.reader);
        }
        let mut row = prices.row(&model, table);
        let price = price(&mut row);
        row.finish();
        let model_name = model.value.as_str().into();
        rows.push(model.map(|_| PriceRow {
            model: model_name,
            price,
        }));
    }
    if rows.len() > MAX_PRICES {
        top.out_of_range("prices", &format!("at most {MAX_PRICES} models"));
    }
    PriceTable { rows: values(rows) }
}

fn price(row: &mut Section<'_>) -> TokenWeights {
    row.require("input", "input = 1.25");
    row.require("output", "output = 10");
    let input = row.decimal("input").unwrap_or(0);
    TokenWeights {
        input,
        cached: row.decimal("cached").unwrap_or(input),
        cache_write: row.decimal("cache_write").unwrap_or(input),
        output: row.decimal("output").unwrap_or(0),
    }
}

/// Whether the first of two names of `[prices]` has all the models of the second.
fn covers(first: &str, second: &str) -> bool {
    match first.strip_suffix('*') {
        Some(beginning) => second.trim_end_matches('*').starts_with(beginning),
        None => first == second,
    }
}

impl Section<'_> {
    /// A weight or a price, in millionths.
    fn decimal(&mut self, key: &'static str) -> Option<u64> {
        let value = self.take(key, || ValueKind::Decimal)?;
        let text = match value.get_ref() {
            DeValue::Float(float) => float.as_str(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
            _ => {
                self.wrong_type(key, value, "a number");
                return None;
            }
        };
        let millionths = millionths(text).filter(|one| *one <= MAX_WEIGHT * TokenWeights::ONE);
        if millionths.is_none() {
            let allowed = format!("0 to {MAX_WEIGHT}, with at most 6 decimals");
            self.out_of_range(key, &allowed);
        }
        millionths
    }
}

/// Reads a decimal number exactly. `None` if it is negative, has more than six decimals, or is too
/// large.
fn millionths(text: &str) -> Option<u64> {
    let text = text.trim_start_matches('+').replace('_', "");
    let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
    let decimals = decimals.trim_end_matches('0');
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if decimals.len() > 6 || !is_number(whole) || !is_number(decimals) {
        return None;
    }
    let decimals: u64 = format!("{decimals:0<6}").parse().ok()?;
    let whole: u64 = whole.parse().ok()?;
    whole.checked_mul(TokenWeights::ONE)?.checked_add(decimals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_read_exactly() {
        for (text, expected) in [
            ("1", Some(1_000_000)),
            ("0.1", Some(100_000)),
            ("1.25", Some(1_250_000)),
            ("0.000001", Some(1)),
            ("2.50000000", Some(2_500_000)),
            ("1_000", Some(1_000_000_000)),
            ("0.0000001", None),
            ("-1", None),
            ("1e3", None),
            ("inf", None),
            ("nan", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(millionths(text), expected, "{text}");
        }
    }

    #[test]
    fn a_name_with_a_star_has_all_that_begin_with_it() {
        assert!(covers("*", "gpt-5"));
        assert!(covers("gpt-5*", "gpt-5-mini"));
        assert!(covers("gpt*", "gpt-5*"));
        assert!(!covers("gpt-5*", "gpt*"));
        assert!(!covers("gpt-5", "gpt-5*"));
        assert!(covers("gpt-5", "gpt-5"));
    }
}
