//! The tokens of a call of a model server, as a line of a log has them.

use std::borrow::Cow;

use crate::telemetry::access::DENIED_USAGE;
use crate::telemetry::metrics::usage::UsageOutcome;
use crate::usage::tokens::{MAX_UNITS, ReportedTokens};

/// What one member of a line says of a call. `--usage-from` has the words of [`CallField::WORDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallField {
    Model,
    /// The whole input, caches included.
    Input,
    Cached,
    CacheWrite,
    Output,
    /// Input and output together.
    Total,
    /// The maximum of output that the request names.
    Maximum,
    /// The length of the request's body, bytes.
    BodyBytes,
    /// The reserve, input and output together.
    Reserved,
    Estimated,
    ReservedInput,
    /// The model of the request, if the answer names another one.
    RequestedModel,
    /// Whether the request names a maximum of output.
    NamedMaximum,
    /// How the call ended, in tidegate's words.
    Outcome,
    /// Input without what was read from caches or written to them, as Anthropic counts.
    PlainInput,
    /// What was read from a cache, beside [`CallField::PlainInput`].
    CacheRead,
    /// What was written to a cache, beside [`CallField::PlainInput`].
    CacheCreation,
}

impl CallField {
    /// The fields that an option can name, and their words.
    pub const WORDS: [(&str, CallField); 9] = [
        ("model", CallField::Model),
        ("input", CallField::Input),
        ("cached", CallField::Cached),
        ("cache_write", CallField::CacheWrite),
        ("output", CallField::Output),
        ("total", CallField::Total),
        ("maximum", CallField::Maximum),
        ("body_bytes", CallField::BodyBytes),
        ("reserved", CallField::Reserved),
    ];

    pub fn parse(word: &str) -> Option<CallField> {
        let mut words = CallField::WORDS.iter();
        words.find(|(own, _)| *own == word).map(|(_, field)| *field)
    }

    /// The field of a member with a name that model servers and gateways use.
    pub fn of_member(name: &[u8]) -> Option<CallField> {
        Some(match name {
            b"model" => CallField::Model,
            b"prompt_tokens" => CallField::Input,
            b"input_tokens" => CallField::PlainInput,
            b"completion_tokens" | b"output_tokens" => CallField::Output,
            b"total_tokens" => CallField::Total,
            b"cache_read_input_tokens" => CallField::CacheRead,
            b"cache_creation_input_tokens" => CallField::CacheCreation,
            _ => return None,
        })
    }

    /// The field of a member of the object `usage`: tidegate's own names too.
    pub fn of_usage_member(name: &[u8]) -> Option<CallField> {
        Some(match name {
            b"input" => CallField::Input,
            b"cached" => CallField::Cached,
            b"cache_write" => CallField::CacheWrite,
            b"output" => CallField::Output,
            b"reserved" => CallField::Reserved,
            b"estimated" => CallField::Estimated,
            b"reserved_input" => CallField::ReservedInput,
            b"requested_model" => CallField::RequestedModel,
            b"named_maximum" => CallField::NamedMaximum,
            b"outcome" => CallField::Outcome,
            _ => return CallField::of_member(name),
        })
    }
}

/// How a call of tidegate's own log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedEnd {
    /// A limit denied it.
    Denied,
    Settled(UsageOutcome),
}

/// What a line says of a call of a model server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedTokens<'l> {
    pub model: Option<Cow<'l, str>>,
    pub requested_model: Option<Cow<'l, str>>,
    pub numbers: TokenNumbers,
}

/// The numbers of a call, as the log has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenNumbers {
    input: Option<u64>,
    cached: u64,
    cache_write: u64,
    output: Option<u64>,
    total: Option<u64>,
    pub maximum: Option<u64>,
    pub body_bytes: Option<u64>,
    /// Input and output together.
    pub reserved: Option<u64>,
    /// The same before it was lowered to what a limit holds; `None` if it was not.
    pub estimated: Option<u64>,
    pub reserved_input: Option<u64>,
    /// `None` if the log does not say it.
    pub named_maximum: Option<bool>,
    /// `None` in the logs of other programs.
    pub end: Option<LoggedEnd>,
    /// Some number is negative, too large, or no whole number. It counts as missing.
    pub is_broken: bool,
    plain_input: Option<u64>,
    cache_read: u64,
    cache_creation: u64,
}

impl<'l> LoggedTokens<'l> {
    /// Notes a field. Text that is no whole number is noted as broken.
    pub fn set(&mut self, field: CallField, text: Cow<'l, str>) {
        let numbers = &mut self.numbers;
        match field {
            CallField::Model => self.model = Some(text),
            CallField::RequestedModel => self.requested_model = Some(text),
            CallField::NamedMaximum => numbers.named_maximum = text.parse().ok(),
            CallField::Outcome => numbers.end = LoggedEnd::parse(&text),
            field => match whole(&text) {
                Some(number) => numbers.set(field, number),
                None => numbers.is_broken = true,
            },
        }
    }

    /// The model that the request names, as far as the log has it.
    pub fn asked_model(&self) -> Option<&str> {
        self.requested_model.as_deref().or(self.model.as_deref())
    }

    pub fn detached(&self) -> LoggedTokens<'static> {
        let own = |text: &Cow<'_, str>| Cow::Owned(text.clone().into_owned());
        LoggedTokens {
            model: self.model.as_ref().map(own),
            requested_model: self.requested_model.as_ref().map(own),
            numbers: self.numbers,
        }
    }
}

impl TokenNumbers {
    fn set(&mut self, field: CallField, number: u64) {
        match field {
            CallField::Input => self.input = Some(number),
            CallField::Cached => self.cached = number,
            CallField::CacheWrite => self.cache_write = number,
            CallField::Output => self.output = Some(number),
            CallField::Total => self.total = Some(number),
            CallField::Maximum => self.maximum = Some(number),
            CallField::BodyBytes => self.body_bytes = Some(number),
            CallField::Reserved => self.reserved = Some(number),
            CallField::Estimated => self.estimated = Some(number),
            CallField::ReservedInput => self.reserved_input = Some(number),
            CallField::PlainInput => self.plain_input = Some(number),
            CallField::CacheRead => self.cache_read = number,
            CallField::CacheCreation => self.cache_creation = number,
            CallField::Model
            | CallField::RequestedModel
            | CallField::NamedMaximum
            | CallField::Outcome => {}
        }
    }

    /// The tokens of the answer. A total alone counts as output.
    pub fn reported(&self) -> ReportedTokens {
        let of_caches = self.cache_read.saturating_add(self.cache_creation);
        let plain = self.plain_input;
        let plain = plain.map(|plain| plain.saturating_add(of_caches).min(MAX_UNITS));
        let (mut input, mut output) = (self.input.or(plain), self.output);
        match (input, output, self.total) {
            (None, None, Some(total)) => (input, output) = (Some(0), Some(total)),
            (Some(known), None, Some(total)) => output = Some(total.saturating_sub(known)),
            (None, Some(known), Some(total)) => input = Some(total.saturating_sub(known)),
            _ => {}
        }
        let most = input.unwrap_or(0);
        let cached = self.cached.max(self.cache_read).min(most);
        ReportedTokens {
            input,
            cached,
            cache_write: self.cache_write.max(self.cache_creation).min(most - cached),
            output,
        }
    }

    /// Whether the line says something of the call's size.
    pub fn is_known(&self) -> bool {
        let estimates = [self.reserved, self.maximum, self.body_bytes];
        !self.reported().is_empty() || estimates.iter().any(Option::is_some)
    }
}

impl LoggedEnd {
    pub fn parse(word: &str) -> Option<LoggedEnd> {
        match word {
            DENIED_USAGE => Some(LoggedEnd::Denied),
            word => UsageOutcome::parse(word).map(LoggedEnd::Settled),
        }
    }
}

/// Reads a whole number: `200`, also `200.0`. `None` if it is above [`MAX_UNITS`].
pub fn whole(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = match text.split_once('.') {
        Some((digits, fraction)) if fraction.bytes().all(|byte| byte == b'0') => digits,
        Some(_) => return None,
        None => text,
    };
    let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_whole.then(|| digits.parse::<u64>().ok()).flatten()?;
    (number <= MAX_UNITS).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_numbers_are_counts() {
        for (text, expected) in [
            ("0", Some(0)),
            (" 200 ", Some(200)),
            ("200.00", Some(200)),
            ("9007199254740991", Some(MAX_UNITS)),
            ("9007199254740992", None),
            ("99999999999999999999999", None),
            ("-1", None),
            ("1.5", None),
            ("1e3", None),
            (".0", None),
            ("", None),
            ("many", None),
        ] {
            assert_eq!(whole(text), expected, "{text}");
        }
    }

    fn reported(fields: &[(CallField, &'static str)]) -> ReportedTokens {
        let mut tokens = LoggedTokens::default();
        for (field, text) in fields {
            tokens.set(*field, Cow::Borrowed(*text));
        }
        tokens.numbers.reported()
    }

    #[test]
    fn parts_and_totals_complete_each_other() {
        use CallField::{CacheCreation, CacheRead, Input, Output, PlainInput, Total};
        let both = |fields: &[_]| {
            let reported = reported(fields);
            (reported.input, reported.output)
        };
        assert_eq!(both(&[(Input, "3"), (Output, "4")]), (Some(3), Some(4)));
        assert_eq!(both(&[(Total, "7")]), (Some(0), Some(7)));
        assert_eq!(both(&[(Total, "7"), (Input, "3")]), (Some(3), Some(4)));
        assert_eq!(both(&[(Total, "7"), (Output, "9")]), (Some(0), Some(9)));
        assert_eq!(both(&[(Input, "-3"), (Output, "4")]), (None, Some(4)));
        assert_eq!(both(&[(Input, "x")]), (None, None));
        let fields = [(PlainInput, "10"), (CacheRead, "20"), (CacheCreation, "5")];
        let anthropic = reported(&fields);
        assert_eq!(anthropic.input, Some(35));
        assert_eq!((anthropic.cached, anthropic.cache_write), (20, 5));
        let cut = reported(&[(Input, "10"), (CallField::Cached, "30")]);
        assert_eq!(cut.cached, 10, "a part is not more than the whole");
    }
}
