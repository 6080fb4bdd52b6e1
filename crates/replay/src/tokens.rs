//! The tokens of a call of a model server, as a line of a log has them.

use std::borrow::Cow;

use crate::telemetry::access::DENIED_USAGE;
use crate::telemetry::metrics::usage::UsageOutcome;
use crate::usage::tokens::{MAX_UNITS, ReportedTokens};

/// What one member of a line says of a call. `--usage-from` has the words of [`TokenField::WORDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenField {
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
    ReservedInput,
    /// The model of the request, if the answer names another one.
    RequestedModel,
    /// Whether the request names a maximum of output.
    NamedMaximum,
    /// How the call ended, in tidegate's words.
    Outcome,
    /// Input without what was read from caches or written to them, as Anthropic counts.
    PlainInput,
    /// What was read from a cache, beside [`TokenField::PlainInput`].
    CacheRead,
    /// What was written to a cache, beside [`TokenField::PlainInput`].
    CacheCreation,
}

impl TokenField {
    /// The fields that an option can name, and their words.
    pub const WORDS: [(&str, TokenField); 9] = [
        ("model", TokenField::Model),
        ("input", TokenField::Input),
        ("cached", TokenField::Cached),
        ("cache_write", TokenField::CacheWrite),
        ("output", TokenField::Output),
        ("total", TokenField::Total),
        ("maximum", TokenField::Maximum),
        ("body_bytes", TokenField::BodyBytes),
        ("reserved", TokenField::Reserved),
    ];

    pub fn parse(word: &str) -> Option<TokenField> {
        let mut words = TokenField::WORDS.iter();
        words.find(|(own, _)| *own == word).map(|(_, field)| *field)
    }

    /// The field of a member with a name that model servers and gateways use.
    pub fn of_member(name: &[u8]) -> Option<TokenField> {
        Some(match name {
            b"model" => TokenField::Model,
            b"prompt_tokens" => TokenField::Input,
            b"input_tokens" => TokenField::PlainInput,
            b"completion_tokens" | b"output_tokens" => TokenField::Output,
            b"total_tokens" => TokenField::Total,
            b"cache_read_input_tokens" => TokenField::CacheRead,
            b"cache_creation_input_tokens" => TokenField::CacheCreation,
            _ => return None,
        })
    }

    /// The field of a member of the object `usage`: tidegate's own names too.
    pub fn of_usage_member(name: &[u8]) -> Option<TokenField> {
        Some(match name {
            b"input" => TokenField::Input,
            b"cached" => TokenField::Cached,
            b"cache_write" => TokenField::CacheWrite,
            b"output" => TokenField::Output,
            b"reserved" => TokenField::Reserved,
            b"reserved_input" => TokenField::ReservedInput,
            b"requested_model" => TokenField::RequestedModel,
            b"named_maximum" => TokenField::NamedMaximum,
            b"outcome" => TokenField::Outcome,
            _ => return TokenField::of_member(name),
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
    pub fn set(&mut self, field: TokenField, text: Cow<'l, str>) {
        let numbers = &mut self.numbers;
        match field {
            TokenField::Model => self.model = Some(text),
            TokenField::RequestedModel => self.requested_model = Some(text),
            TokenField::NamedMaximum => numbers.named_maximum = text.parse().ok(),
            TokenField::Outcome => numbers.end = LoggedEnd::parse(&text),
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
    fn set(&mut self, field: TokenField, number: u64) {
        match field {
            TokenField::Input => self.input = Some(number),
            TokenField::Cached => self.cached = number,
            TokenField::CacheWrite => self.cache_write = number,
            TokenField::Output => self.output = Some(number),
            TokenField::Total => self.total = Some(number),
            TokenField::Maximum => self.maximum = Some(number),
            TokenField::BodyBytes => self.body_bytes = Some(number),
            TokenField::Reserved => self.reserved = Some(number),
            TokenField::ReservedInput => self.reserved_input = Some(number),
            TokenField::PlainInput => self.plain_input = Some(number),
            TokenField::CacheRead => self.cache_read = number,
            TokenField::CacheCreation => self.cache_creation = number,
            TokenField::Model
            | TokenField::RequestedModel
            | TokenField::NamedMaximum
            | TokenField::Outcome => {}
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
