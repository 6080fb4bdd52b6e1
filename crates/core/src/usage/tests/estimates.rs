//! What requests reserve and are charged for.

use super::super::estimate::{Estimate, actual, estimate, observed};
use super::super::request::BodyMembers;
use super::super::settings::{
    AbortedUsage, MissingUsage, PriceRow, PriceTable, Quantity, TokenWeights, UsageSettings,
};
use super::super::tokens::{MAX_UNITS, TokenCounts};
use super::requests::usage_of;
use super::*;

fn settings(missing: MissingUsage) -> UsageSettings {
    UsageSettings {
        name: "chat".into(),
        format: Some(AnswerFormat::OpenAi),
        table: table(AnswerFormat::OpenAi),
        bytes_per_token: 3,
        default_output: 1024,
        weights: TokenWeights::default(),
        asks: false,
        missing,
        abort: AbortedUsage::default(),
        prices: Arc::new(PriceTable::default()),
    }
}

fn pair(input: u64, output: u64) -> TokenCounts {
    TokenCounts {
        input,
        output,
        ..TokenCounts::default()
    }
}

#[test]
fn an_estimate_is_of_the_body_and_of_the_maximum() {
    let settings = settings(MissingUsage::Estimate);
    let named = usage_of(r#"{"max_tokens":100,"n":3}"#);
    let several = usage_of(r#"{"n":2}"#);
    let other_word = usage_of(r#"{"max_tokens":1,"n_predict":4000}"#);
    let only_other_word = usage_of(r#"{"n_predict":4000}"#);
    let lower_word = usage_of(r#"{"n_predict":1}"#);
    let huge = usage_of(r#"{"n":9007199254740991,"max_tokens":9007199254740991}"#);
    for (members, bytes, tokens, names_maximum) in [
        (None, 0, pair(0, 1024), false),
        (None, 1, pair(1, 1024), false),
        (Some(&BodyMembers::default()), 3, pair(1, 1024), false),
        (Some(&several), 4, pair(2, 2048), false),
        (Some(&named), 301, pair(101, 300), true),
        (Some(&other_word), 3, pair(1, 4000), true),
        (Some(&only_other_word), 3, pair(1, 4000), true),
        (Some(&lower_word), 3, pair(1, 1024), false),
        (
            Some(&huge),
            u64::MAX,
            pair(u64::MAX.div_ceil(3).min(MAX_UNITS), MAX_UNITS),
            true,
        ),
    ] {
        let expected = Estimate {
            tokens,
            names_maximum,
        };
        assert_eq!(estimate(&settings, members, bytes), expected);
    }
}

#[test]
fn missing_counts_are_those_of_the_settings() {
    let estimate = Estimate {
        tokens: pair(10, 100),
        names_maximum: true,
    };
    let only_output = ReportedTokens {
        output: Some(7),
        ..ReportedTokens::default()
    };
    let only_input = ReportedTokens {
        input: Some(12),
        cached: 3,
        ..ReportedTokens::default()
    };
    for (missing, nothing, input) in [
        (MissingUsage::Estimate, pair(10, 100), pair(12, 100)),
        (MissingUsage::Prompt, pair(10, 0), pair(12, 0)),
        (MissingUsage::Observed, pair(10, 5), pair(12, 5)),
    ] {
        let settings = settings(missing);
        let actual = |reported| actual(&settings, reported, estimate, 13).tokens;
        assert_eq!(actual(None), nothing);
        assert_eq!(actual(Some(only_output)), pair(10, 7));
        assert_eq!(actual(Some(only_input)), TokenCounts { cached: 3, ..input });
    }
    let settings = settings(MissingUsage::Observed);
    let observed = |bytes| observed(&settings, estimate, bytes).tokens;
    assert_eq!(observed(0), pair(10, 0));
    assert_eq!(observed(1 << 40), pair(10, 100));
}

#[test]
fn units_are_weighted_and_rounded_up_once() {
    let tokens = TokenCounts {
        input: 100,
        cached: 31,
        cache_write: 10,
        output: 5,
    };
    let mut settings = settings(MissingUsage::Estimate);
    settings.weights = TokenWeights {
        input: 1_000_000,
        cached: 100_000,
        cache_write: 1_250_000,
        output: 4_000_000,
    };
    settings.prices = Arc::new(PriceTable {
        rows: [("gpt-5*", 10), ("o1", 20)]
            .map(|(model, price)| PriceRow {
                model: model.into(),
                price: TokenWeights {
                    input: price * 1_000_000,
                    ..TokenWeights::default()
                },
            })
            .into(),
    });
    let units = |quantity, model| settings.units(quantity, tokens, model);
    // 59 + 3.1 + 12.5 + 20
    assert_eq!(units(Quantity::Costs, ""), Some(95));
    assert_eq!(units(Quantity::Tokens, ""), Some(105));
    assert_eq!(units(Quantity::Input, ""), Some(100));
    assert_eq!(units(Quantity::Output, ""), Some(5));
    assert_eq!(units(Quantity::Requests, ""), Some(1));
    assert_eq!(units(Quantity::Money, "gpt-5-mini"), Some(590 + 46));
    assert_eq!(units(Quantity::Money, "o1"), Some(1180 + 46));
    assert_eq!(units(Quantity::Money, "o1-pro"), None);
    let largest = TokenCounts {
        input: u64::MAX,
        output: u64::MAX,
        ..TokenCounts::default()
    };
    assert_eq!(settings.weights.units(largest), MAX_UNITS);
    assert_eq!(largest.total(), MAX_UNITS);
}
