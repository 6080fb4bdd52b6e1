//! Reading the values of a section's keys: strings, lists, numbers, times, sizes, words, secrets.
//!
//! Each reader takes a key's name and gives its value, or nothing after reporting why. Texts are
//! filled in from the environment here, so nothing later sees a `${..}`.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use super::advice;
use super::diagnostic::{Code, Diagnostic};
use super::interpolate::interpolate;
use super::known;
use super::reader::At;
use super::section::Section;
use super::slip::nearest;
use crate::limit::rate;
use http::HeaderName;

/// What a text must be.
#[derive(Clone, Copy)]
pub(super) struct TextForm {
    /// The mistake, if it is not.
    code: Code,
    /// Completes "`key` is not ...".
    what: &'static str,
}

impl TextForm {
    pub(super) const HEADER_NAME: TextForm = TextForm::new(Code::BadHttp, "a header's name");
    pub(super) const LISTEN: TextForm = TextForm::new(Code::BadAddress, "an address to listen on");
    pub(super) const NETWORK: TextForm = TextForm::new(Code::BadAddress, "an address or a network");

    pub(super) const fn new(code: Code, what: &'static str) -> TextForm {
        TextForm { code, what }
    }
}

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);
/// No wait in a file may be longer.
pub(super) const DAY: Duration = Duration::from_secs(86_400);

impl Section<'_> {
    /// A string.
    pub(super) fn text(&mut self, key: &'static str) -> Option<At<String>> {
        let value = self.take(key)?;
        let read = self.filled(value);
        if read.is_none() && !value.get_ref().is_str() {
            self.wrong_type(key, value, "a string");
        }
        read
    }

    /// A string, or a list of strings.
    pub(super) fn texts(&mut self, key: &'static str) -> Option<At<Vec<At<String>>>> {
        let value = self.take(key)?;
        self.texts_of(key, value)
    }

    /// The same for a value already at hand.
    pub(super) fn texts_of(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<At<Vec<At<String>>>> {
        let span = value.span();
        match value.get_ref() {
            DeValue::String(_) => self.filled(value).map(|one| At {
                value: vec![one],
                span,
            }),
            DeValue::Array(values) => {
                let mut texts = Vec::new();
                for value in values {
                    texts.extend(self.filled(value));
                    if !value.get_ref().is_str() {
                        self.wrong_type(key, value, "a string or a list of strings");
                    }
                }
                Some(At { value: texts, span })
            }
            _ => {
                self.wrong_type(key, value, "a string or a list of strings");
                None
            }
        }
    }

    /// The text of a string value with its variables filled in; `None` for any other kind of value.
    pub(super) fn filled(&self, value: &Spanned<DeValue<'_>>) -> Option<At<String>> {
        let DeValue::String(raw) = value.get_ref() else {
            return None;
        };
        let span = value.span();
        match interpolate(raw, self.reader.surroundings.env) {
            Ok(text) => Some(At {
                value: text.into_owned(),
                span,
            }),
            Err(unfilled) => {
                for one in unfilled {
                    // An escape in the string may hide it: then the whole value is shown.
                    let literal = self.reader.text.get(span.clone()).unwrap_or_default();
                    let place = literal.find(&one.written).map_or(span.clone(), |at| {
                        span.start + at..span.start + at + one.written.len()
                    });
                    let message = format!("`{}` cannot be filled in", one.written);
                    let diagnostic = Diagnostic::new(Code::Variable, message)
                        .at(&place, one.why.words())
                        .help("`${VAR:-default}` gives a default; `$$` is a dollar sign");
                    self.reader.report(diagnostic);
                }
                None
            }
        }
    }

    /// A string that `parse` understands. What an error says after a `;` becomes the help.
    pub(super) fn parsed<T, E: Display>(
        &mut self,
        key: &'static str,
        form: TextForm,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<At<T>> {
        let text = self.text(key)?;
        self.understood(key, text, form, parse)
    }

    /// The same for a text already at hand.
    pub(super) fn understood<T, E: Display>(
        &self,
        key: &str,
        text: At<String>,
        TextForm { code, what }: TextForm,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<At<T>> {
        match parse(&text.value) {
            Ok(value) => Some(At {
                value,
                span: text.span,
            }),
            Err(error) => {
                let message = format!("`{}` is not {what}", self.full(key));
                let mut diagnostic = Diagnostic::new(code, message).because(&text.span, &error);
                let guessed =
                    |help: &String| code != Code::BadRate || help.starts_with("did you mean");
                if !diagnostic.help.as_ref().is_some_and(guessed) {
                    diagnostic = diagnostic.maybe_help(advice::of(code, &text.value));
                }
                self.reader.report(diagnostic);
                None
            }
        }
    }

    /// `true` or `false`.
    pub(super) fn boolean(&mut self, key: &'static str, default: bool) -> bool {
        let Some(value) = self.take(key) else {
            return default;
        };
        value.get_ref().as_bool().unwrap_or_else(|| {
            self.wrong_type(key, value, "true or false");
            default
        })
    }

    /// A whole number.
    pub(super) fn integer(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<At<u64>> {
        let value = self.take(key)?;
        let Some(integer) = value.get_ref().as_integer() else {
            self.wrong_type(key, value, "a whole number");
            return None;
        };
        let number = i128::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(i128::MAX);
        let fits = u64::try_from(number)
            .ok()
            .filter(|number| range.contains(number));
        if fits.is_none() {
            self.out_of_range(key, value, &format!("{} to {}", range.start(), range.end()));
        }
        fits.map(|number| At {
            value: number,
            span: value.span(),
        })
    }

    /// A whole number that counts things in this process.
    pub(super) fn count(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
        default: usize,
    ) -> usize {
        let number = self.integer(key, range);
        number
            .and_then(|number| usize::try_from(number.value).ok())
            .unwrap_or(default)
    }

    /// A number from 0 to 1.
    pub(super) fn share(&mut self, key: &'static str, default: f64) -> f64 {
        let Some(value) = self.take(key) else {
            return default;
        };
        let number = match value.get_ref() {
            DeValue::Float(float) => float.as_str().parse::<f64>().ok(),
            DeValue::Integer(integer) => integer.as_str().parse::<f64>().ok(),
            _ => {
                self.wrong_type(key, value, "a number from 0 to 1");
                return default;
            }
        };
        number
            .filter(|number| (0.0..=1.0).contains(number))
            .unwrap_or_else(|| {
                self.out_of_range(key, value, "0 to 1");
                default
            })
    }

    /// A length of time such as `"25ms"`.
    pub(super) fn duration(
        &mut self,
        key: &'static str,
        range: RangeInclusive<Duration>,
        default: Duration,
    ) -> Duration {
        self.length(key, range)
            .map_or(default, |length| length.value)
    }

    /// The same without a default.
    pub(super) fn length(
        &mut self,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Option<At<Duration>> {
        let kind = TextForm::new(Code::BadQuantity, "a length of time");
        let Some(value) = self.parsed(key, kind, rate::parse_duration) else {
            self.number_without_unit(key);
            return None;
        };
        if !range.contains(&value.value) {
            let allowed = format!("{:?} to {:?}", range.start(), range.end());
            self.out_of_range_at(key, &value, &allowed);
            return None;
        }
        Some(value)
    }

    /// A number where a text with a unit belongs has been called a wrong type: say what to write.
    fn number_without_unit(&mut self, key: &'static str) {
        let Some(value) = self.take(key) else { return };
        if let DeValue::Integer(number) = value.get_ref() {
            // The default's own unit is the likelier one.
            let default = known::of(self.pattern(), key).map_or("", |known| known.value);
            let help = match default.trim_matches('"').ends_with("ms") {
                true => format!("write `\"{number}ms\"` for milliseconds, or `\"{number}s\"`"),
                false => format!("write `\"{number}s\"` for seconds"),
            };
            self.reader.amend(&value.span(), help);
        }
    }

    /// Bytes: a number, or a text such as `"64KiB"`.
    pub(super) fn size(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
        default: u64,
    ) -> u64 {
        if self
            .peek(key)
            .is_some_and(|value| value.get_ref().is_integer())
        {
            return self
                .integer(key, range)
                .map_or(default, |number| number.value);
        }
        let Some(size) = self.parsed(
            key,
            TextForm::new(Code::BadQuantity, "a size"),
            rate::parse_size,
        ) else {
            return default;
        };
        if !range.contains(&size.value) {
            let allowed = format!("{} to {} bytes", range.start(), range.end());
            self.out_of_range_at(key, &size, &allowed);
            return default;
        }
        size.value
    }

    /// Bytes at most: a size, or the word `unlimited`, which is `Some(None)`.
    pub(super) fn bound(&mut self, key: &'static str) -> Option<Option<u64>> {
        let value = self.peek(key);
        if value.is_some_and(|value| value.get_ref().is_integer()) {
            let number = self.integer(key, 0..=u64::MAX)?;
            return Some(Some(number.value));
        }
        let kind = TextForm::new(Code::BadQuantity, "a size");
        let size = self.parsed(key, kind, |text| match text {
            "unlimited" => Ok(None),
            text => rate::parse_size(text).map(Some),
        });
        size.map(|size| size.value)
    }

    /// One of a closed set of words.
    pub(super) fn word<T: Clone>(
        &mut self,
        key: &'static str,
        words: &[(&'static str, T)],
    ) -> Option<T> {
        self.word_at(key, words).map(|word| word.value)
    }

    /// The same, and where it stands.
    pub(super) fn word_at<T: Clone>(
        &mut self,
        key: &'static str,
        words: &[(&'static str, T)],
    ) -> Option<At<T>> {
        let text = self.text(key)?;
        if let Some((_, meaning)) = words.iter().find(|(word, _)| *word == text.value) {
            return Some(text.map(|_| meaning.clone()));
        }
        let all: Vec<_> = words
            .iter()
            .map(|(word, _)| format!("`\"{word}\"`"))
            .collect();
        let wanted = match all.split_last()? {
            (only, []) => only.clone(),
            (last, others) => format!("{} or {last}", others.join(", ")),
        };
        let message = format!("`{}` must be {wanted}", self.full(key));
        let close = nearest(&text.value, words.iter().map(|(word, _)| *word));
        let diagnostic = Diagnostic::new(Code::UnknownWord, message)
            .at(&text.span, "not one of these")
            .maybe_help(close.map(|word| format!("did you mean `{word}`?")));
        self.reader.report(diagnostic);
        None
    }

    fn out_of_range(&self, key: &str, value: &Spanned<DeValue<'_>>, allowed: &str) {
        self.out_of_range_at(
            key,
            &At {
                value: (),
                span: value.span(),
            },
            allowed,
        );
    }

    /// A value that is readable and too small or too large.
    pub(super) fn out_of_range_at<T>(&self, key: &str, value: &At<T>, allowed: &str) {
        let message = format!("`{}` is out of range", self.full(key));
        let label = format!("possible: {allowed}");
        self.reader
            .report(Diagnostic::new(Code::OutOfRange, message).at(&value.span, label));
    }
}

/// Any time from 1 ms to a day.
pub(super) fn some_time() -> RangeInclusive<Duration> {
    MS..=DAY
}

pub(super) fn header_name(text: &str) -> Result<HeaderName, &'static str> {
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| "not a header's name")
}
