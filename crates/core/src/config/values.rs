//! Reads the values of a section's keys: strings, lists, numbers, times, sizes, words.
//!
//! Each method takes a key's name. It declares the key, and returns the value or reports why there
//! is none. Methods without `Option` fall back to the default that the reference shows. Variables
//! of the environment are filled in here: no later code sees a `${..}`.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use http::HeaderName;
use toml::Spanned;
use toml::de::DeValue;

use super::diagnostic::{Code, Diagnostic, TextSpan, duplicate};
use super::habits::{self, nearest};
use super::interpolation::interpolate;
use super::reader::{Located, ValueKind};
use super::reference;
use super::section::Section;
use crate::limit::rate;
use crate::route::template::Template;
use crate::route::{HostPattern, PathPattern, StatusSet};

/// The form that a text must have.
#[derive(Clone, Copy)]
pub(super) struct TextForm {
    /// The kind of the finding for another text.
    code: Code,
    /// Completes the message "`key` is not ...".
    what: &'static str,
}

impl TextForm {
    pub(super) const HEADER_NAME: TextForm = TextForm::new(Code::BadHttp, "a header's name");
    pub(super) const HOST: TextForm = TextForm::new(Code::BadPattern, "a host");
    pub(super) const LISTEN: TextForm = TextForm::new(Code::BadAddress, "an address to listen on");
    pub(super) const NETWORK: TextForm = TextForm::new(Code::BadAddress, "an address or a network");
    pub(super) const PATH: TextForm = TextForm::new(Code::BadAddress, "a file's path");
    pub(super) const STATUS: TextForm = TextForm::new(Code::BadHttp, "a status");

    pub(super) const fn new(code: Code, what: &'static str) -> TextForm {
        TextForm { code, what }
    }
}

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);
/// The longest wait that a file may set.
pub(super) const DAY: Duration = Duration::from_secs(86_400);
pub(super) const UP_TO_A_DAY: RangeInclusive<Duration> = MS..=DAY;

impl Section<'_> {
    /// Reports a variable that only routes with certain patterns have.
    pub(super) fn check_for_all_routes(&self, key: &str, template: &Template) {
        let every_path = PathPattern::parse("/*").expect("`/*` is a pattern");
        let unknown = template.unknown_to_path(&every_path);
        let Some(unknown) = unknown.or(template.unknown_to_host(&HostPattern::Any)) else {
            return;
        };
        let message = format!("not every route has something for `{{{unknown}}}`");
        Diagnostic::new(Code::NoSuchParameter, message)
            .at(&self.value_span(key), "asked for here")
            .report_to(self.reader);
    }

    /// Reads a list of classes (`5xx`) and statuses (`404`).
    pub(super) fn statuses(&mut self, key: &'static str) -> Option<StatusSet> {
        self.declare(key, || ValueKind::WordsOrStatuses(Vec::new()));
        let texts = self.texts(key)?;
        let mut set = StatusSet::default();
        self.parse_all(key, Some(texts), TextForm::STATUS, |text| set.add(text));
        Some(set)
    }

    /// The statuses of a setting that needs at least one. `check` can refuse a text.
    pub(super) fn one_or_more_statuses(
        &mut self,
        key: &'static str,
        check: impl Fn(&str) -> Result<(), &'static str>,
    ) -> Option<StatusSet> {
        self.declare(key, || ValueKind::WordsOrStatuses(Vec::new()));
        let texts = self.counted_texts(key, 1..=usize::MAX, "one or more")?;
        let mut set = StatusSet::default();
        self.parse_all(key, Some(texts), TextForm::STATUS, |text| {
            check(text)?;
            set.add(text)
        });
        Some(set)
    }

    pub(super) fn text(&mut self, key: &'static str) -> Option<String> {
        let value = self.take(key, || ValueKind::Text)?;
        let text = self.interpolated(value);
        if text.is_none() && !value.get_ref().is_str() {
            self.wrong_type(key, value, "a string");
        }
        text.map(|text| text.value)
    }

    /// A string with the place of its value.
    pub(super) fn located_text(&mut self, key: &'static str) -> Option<Located<String>> {
        let text = self.text(key)?;
        Some(self.located(key, text))
    }

    pub(super) fn located<T>(&self, key: &str, value: T) -> Located<T> {
        Located::new(value, &self.value_span(key))
    }

    pub(super) fn texts(&mut self, key: &'static str) -> Option<Vec<Located<String>>> {
        let value = self.take(key, || ValueKind::Texts)?;
        self.texts_in(key, value)
    }

    /// The same; reports a list that is too short or too long.
    pub(super) fn counted_texts(
        &mut self,
        key: &'static str,
        range: RangeInclusive<usize>,
        allowed: &str,
    ) -> Option<Vec<Located<String>>> {
        let texts = self.texts(key)?;
        if !range.contains(&texts.len()) {
            self.out_of_range(key, allowed);
        }
        Some(texts)
    }

    pub(super) fn texts_in(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<Vec<Located<String>>> {
        const WANTED: &str = "a string or a list of strings";
        match value.get_ref() {
            DeValue::String(_) => self.interpolated(value).map(|text| vec![text]),
            DeValue::Array(values) => {
                for value in values.iter().filter(|value| !value.get_ref().is_str()) {
                    self.wrong_type(key, value, WANTED);
                }
                let texts = values.iter().filter_map(|value| self.interpolated(value));
                Some(texts.collect())
            }
            _ => {
                self.wrong_type(key, value, WANTED);
                None
            }
        }
    }

    /// The text of a string with its variables filled in; `None` for any other kind of value.
    pub(super) fn interpolated(&self, value: &Spanned<DeValue<'_>>) -> Option<Located<String>> {
        let raw = value.get_ref().as_str()?;
        let span = value.span();
        let unfilled = match interpolate(raw, self.reader.surroundings.env) {
            Ok(text) => return Some(Located::new(text.into_owned(), &span)),
            Err(unfilled) => unfilled,
        };
        for one in unfilled {
            // An escape in the string may hide the reference: then the label is the whole value.
            let literal = self.reader.text.get(span.clone()).unwrap_or_default();
            let place = literal.find(&one.written).map_or(span.clone(), |at| {
                span.start + at..span.start + at + one.written.len()
            });
            Diagnostic::new(
                Code::Variable,
                format!("`{}` cannot be filled in", one.written),
            )
            .at(&place, one.error)
            .help("`${VAR:-default}` gives a default; `$$` is a dollar sign")
            .report_to(self.reader);
        }
        None
    }

    /// A string that `parse` accepts. The part of its error after a `;` becomes the help.
    pub(super) fn parse<T, E: Display>(
        &mut self,
        key: &'static str,
        form: TextForm,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.located_text(key)?;
        let parsed = self.parse_text(key, text, form, parse)?;
        Some(parsed.value)
    }

    /// A string or a list of strings that `parse` accepts. Others are reported and left out.
    pub(super) fn parse_list<T, E: Display>(
        &mut self,
        key: &'static str,
        form: TextForm,
        parse: impl FnMut(&str) -> Result<T, E>,
    ) -> Vec<Located<T>> {
        let texts = self.texts(key);
        self.parse_all(key, texts, form, parse)
    }

    /// The same for texts at hand.
    pub(super) fn parse_all<T, E: Display>(
        &self,
        key: &str,
        texts: Option<Vec<Located<String>>>,
        form: TextForm,
        mut parse: impl FnMut(&str) -> Result<T, E>,
    ) -> Vec<Located<T>> {
        let parsed = texts.unwrap_or_default().into_iter();
        let parsed = parsed.filter_map(|text| self.parse_text(key, text, form, &mut parse));
        parsed.collect()
    }

    /// The same for one text at hand.
    pub(super) fn parse_text<T, E: Display>(
        &self,
        key: &str,
        text: Located<String>,
        TextForm { code, what }: TextForm,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<Located<T>> {
        match parse(&text.value) {
            Ok(value) => Some(Located::new(value, &text.span)),
            Err(error) => {
                let message = format!("`{}` is not {what}", self.full_key(key));
                let mut diagnostic = Diagnostic::new(code, message).at_error(&text.span, &error);
                let is_specific =
                    |help: &String| code != Code::BadRate || help.starts_with("did you mean");
                if !diagnostic.help.as_ref().is_some_and(is_specific) {
                    diagnostic = diagnostic.maybe_help(match what == TextForm::HOST.what {
                        true => habits::host(text.value.trim()),
                        false => habits::advice_for(code, &text.value),
                    });
                }
                self.reader.report(diagnostic);
                None
            }
        }
    }

    /// The place of a setting that has another value than its default.
    pub(super) fn changed(&self, key: &str) -> Option<TextSpan> {
        let text = self.reader.text.get(self.value_span(key))?;
        // `10_000` and `10000` are one number.
        let plain = |text: &str| text.trim_matches('"').replace('_', "");
        let differs = self.has(key) && plain(text) != plain(self.default_text(key));
        differs.then(|| self.key_span(key))
    }

    /// The default that the reference shows, without quotes.
    pub(super) fn default_text(&self, key: &str) -> &'static str {
        let setting = reference::setting(self.pattern(), key);
        setting.map_or("", |setting| setting.value.trim_matches('"'))
    }

    /// The default that the reference shows. Tests read every setting of the reference, so that
    /// `parse` accepts each of them.
    fn default<T, E>(&self, key: &str, parse: impl FnOnce(&str) -> Result<T, E>) -> T {
        let default = parse(self.default_text(key)).ok();
        default.expect("the reference shows a default of the kind that its reader takes")
    }

    /// `true` or `false`; its default is the reference's.
    pub(super) fn boolean(&mut self, key: &'static str) -> bool {
        let given = self.optional_boolean(key);
        given.unwrap_or_else(|| self.default(key, str::parse))
    }

    pub(super) fn optional_boolean(&mut self, key: &'static str) -> Option<bool> {
        let value = self.take(key, || ValueKind::Boolean)?;
        let given = value.get_ref().as_bool();
        if given.is_none() {
            self.wrong_type(key, value, "true or false");
        }
        given
    }

    /// A whole number; its default is the reference's.
    pub(super) fn integer<T: TryFrom<u64>>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> T {
        let given = self.optional_integer(key, range);
        let parse = |text: &str| T::try_from(text.replace('_', "").parse().unwrap_or(u64::MAX));
        given.unwrap_or_else(|| self.default(key, parse))
    }

    pub(super) fn optional_integer<T: TryFrom<u64>>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<T> {
        let value = self.take(key, || ValueKind::Integer)?;
        let Some(integer) = value.get_ref().as_integer() else {
            self.wrong_type(key, value, "a whole number");
            return None;
        };
        let number = i128::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number.and_then(|number| u64::try_from(number).ok());
        let number = number.filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        if number.is_none() {
            self.out_of_range(key, &format!("{} to {}", range.start(), range.end()));
        }
        number
    }

    pub(super) fn fraction(&mut self, key: &'static str) -> f64 {
        let given = self.take(key, || ValueKind::Fraction).and_then(|value| {
            let text = match value.get_ref() {
                DeValue::Float(float) => float.as_str(),
                DeValue::Integer(integer) => integer.as_str(),
                _ => {
                    self.wrong_type(key, value, "a number from 0 to 1");
                    return None;
                }
            };
            let number = text.parse::<f64>().ok();
            let number = number.filter(|number| (0.0..=1.0).contains(number));
            if number.is_none() {
                self.out_of_range(key, "0 to 1");
            }
            number
        });
        given.unwrap_or_else(|| self.default(key, str::parse))
    }

    /// A length of time such as `"25ms"`; its default is the reference's.
    pub(super) fn duration(
        &mut self,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        let given = self.optional_duration(key, range);
        given.unwrap_or_else(|| self.default_duration(key))
    }

    pub(super) fn default_duration(&self, key: &str) -> Duration {
        self.default(key, rate::parse_duration)
    }

    pub(super) fn optional_duration(
        &mut self,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        self.duration_by(key, range, rate::parse_duration)
    }

    /// The same for a key whose `10m` is 10 minutes: nobody means milliseconds by it.
    pub(super) fn duration_in_minutes(
        &mut self,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        self.declare(key, || ValueKind::DurationInMinutes);
        let given = self.duration_by(key, range, rate::parse_minutes);
        given.unwrap_or_else(|| self.default_duration(key))
    }

    /// The same for a key with another spelling of times.
    fn duration_by(
        &mut self,
        key: &'static str,
        range: RangeInclusive<Duration>,
        parse: fn(&str) -> Result<Duration, rate::QuantityError>,
    ) -> Option<Duration> {
        const FORM: TextForm = TextForm::new(Code::BadQuantity, "a length of time");
        self.declare(key, || ValueKind::Duration);
        let Some(value) = self.parse(key, FORM, parse) else {
            self.explain_missing_unit(key);
            return None;
        };
        if !range.contains(&value) {
            self.out_of_range(key, &format!("{:?} to {:?}", range.start(), range.end()));
            return None;
        }
        Some(value)
    }

    /// Replaces the help for a number without a unit, which is reported as a wrong type.
    fn explain_missing_unit(&self, key: &str) {
        let Some(value) = self.peek(key) else { return };
        if let DeValue::Integer(number) = value.get_ref() {
            // The unit of the default is the likelier one.
            let help = match self.default_text(key).ends_with("ms") {
                true => format!("write `\"{number}ms\"` for milliseconds, or `\"{number}s\"`"),
                false => format!("write `\"{number}s\"` for seconds"),
            };
            self.reader.set_help(&value.span(), help);
        }
    }

    /// Bytes: a number, or a text such as `"64KiB"`; the default is the reference's.
    pub(super) fn size(&mut self, key: &'static str, range: RangeInclusive<u64>) -> usize {
        self.declare(key, || ValueKind::Size);
        let size = match self.has_integer(key) {
            true => self.optional_integer(key, range.clone()),
            false => self.parse(key, SIZE, rate::parse_size),
        };
        if size.is_some_and(|size| !range.contains(&size)) {
            self.out_of_range(key, &format!("{} to {} bytes", range.start(), range.end()));
        }
        let size = size.unwrap_or_else(|| self.default(key, rate::parse_size));
        usize::try_from(size).unwrap_or(usize::MAX)
    }

    pub(super) fn optional_size(&mut self, key: &'static str) -> Option<u64> {
        self.declare(key, || ValueKind::Size);
        match self.has_integer(key) {
            true => self.optional_integer(key, 0..=u64::MAX),
            false => self.parse(key, SIZE, rate::parse_size),
        }
    }

    /// The most bytes of something: a size, or the word `unlimited`, which is `Some(None)`.
    pub(super) fn size_or_unlimited(&mut self, key: &'static str) -> Option<Option<u64>> {
        self.declare(key, || ValueKind::SizeOrUnlimited);
        if self.has_integer(key) {
            return self.optional_integer(key, 0..=u64::MAX).map(Some);
        }
        self.parse(key, SIZE, |text| match text {
            "unlimited" => Ok(None),
            text => rate::parse_size(text).map(Some),
        })
    }

    pub(super) fn has_integer(&self, key: &str) -> bool {
        let value = self.peek(key);
        value.is_some_and(|value| value.get_ref().is_integer())
    }

    /// One of a closed set of words; its default is the reference's.
    pub(super) fn word<T: Clone>(&mut self, key: &'static str, words: &[(&'static str, T)]) -> T {
        if let Some(word) = self.optional_word(key, words) {
            return word;
        }
        self.default(key, |default| {
            let found = words.iter().find(|(word, _)| *word == default);
            found.map(|(_, meaning)| meaning.clone()).ok_or(())
        })
    }

    pub(super) fn optional_word<T: Clone>(
        &mut self,
        key: &'static str,
        words: &[(&'static str, T)],
    ) -> Option<T> {
        let all = || words.iter().map(|(word, _)| *word);
        self.declare(key, || ValueKind::Word(all().collect()));
        let text = self.text(key)?;
        if let Some((_, meaning)) = words.iter().find(|(word, _)| *word == text) {
            return Some(meaning.clone());
        }
        let quoted: Vec<String> = all().map(|word| format!("`\"{word}\"`")).collect();
        let wanted = match quoted.split_last()? {
            (only, []) => only.clone(),
            (last, others) => format!("{} or {last}", others.join(", ")),
        };
        let message = format!("`{}` must be {wanted}", self.full_key(key));
        let close = nearest(&text, all());
        Diagnostic::new(Code::UnknownWord, message)
            .at(&self.value_span(key), "not one of these")
            .maybe_help(close.map(|word| format!("did you mean `{word}`?")))
            .report_to(self.reader);
        None
    }

    /// Reports a value that is readable and too small or too large.
    pub(super) fn out_of_range(&self, key: &str, allowed: &str) {
        let message = format!("`{}` is out of range", self.full_key(key));
        Diagnostic::new(Code::OutOfRange, message)
            .at(&self.value_span(key), format!("possible: {allowed}"))
            .report_to(self.reader);
    }

    pub(super) fn report_duplicate(&self, message: impl Into<String>, second: &TextSpan) {
        duplicate(message).at(second, "").report_to(self.reader);
    }
}

const SIZE: TextForm = TextForm::new(Code::BadQuantity, "a size");

pub(super) fn header_name(text: &str) -> Result<HeaderName, &'static str> {
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| "not a header's name")
}
