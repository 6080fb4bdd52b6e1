//! The same rules once more, on whole texts that serde_json reads.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::super::format::{AnswerRole, TokenField, rows};
use super::super::paths::PathStep;
use super::*;

/// A value of JSON that keeps all members of an object, also those of one name.
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Whole(u64),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Whole(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Json, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = array.next_element()? {
            values.push(value);
        }
        Ok(Json::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Json, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = object.next_entry()? {
            members.push(member);
        }
        Ok(Json::Object(members))
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

impl Json {
    /// Shows each value with its path.
    fn visit(&self, path: &mut Vec<PathStep>, see: &mut impl FnMut(&[PathStep], &Json)) {
        see(path, self);
        match self {
            Json::Array(values) => {
                for value in values {
                    path.push(PathStep::Elements);
                    value.visit(path, see);
                    path.pop();
                }
            }
            Json::Object(members) => {
                for (name, value) in members {
                    path.push(PathStep::Member(name.as_str().into()));
                    value.visit(path, see);
                    path.pop();
                }
            }
            _ => {}
        }
    }

    pub(super) fn whole(&self) -> Option<u64> {
        match self {
            Json::Whole(value) => Some((*value).min((1 << 53) - 1)),
            Json::Number(value) if *value >= 0.0 && value.fract() == 0.0 => {
                (!value.is_sign_negative()).then(|| value.min(9_007_199_254_740_991.0) as u64)
            }
            _ => None,
        }
    }
}

/// The data of each event, as WHATWG's standard makes it; the end of the stream ends an event too.
pub(super) fn events(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut events = Vec::new();
    let mut data: Option<String> = None;
    for line in text.split('\n').chain([""]) {
        if line.is_empty() {
            events.extend(data.take());
            continue;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        if name == "data" {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut data {
                Some(data) => *data = format!("{data}\n{value}"),
                None => data = Some(value.to_owned()),
            }
        }
    }
    events
}

#[derive(Default)]
struct Marks {
    is_unfinished: bool,
    is_finished: bool,
    is_error: bool,
}

#[derive(Default)]
struct Model {
    counts: [Option<u64>; TokenField::PLACES],
    name: Option<String>,
    is_final: bool,
    is_error: bool,
}

impl Model {
    fn event(&mut self, format: AnswerFormat, json: &Json) {
        let mut marks = Marks::default();
        let mut counts = [None; TokenField::PLACES];
        let mut name = None;
        let rows = rows(format);
        let mut see = |path: &[PathStep], value: &Json| {
            let Some(row) = rows.iter().find(|row| row.steps == path) else {
                return;
            };
            match (row.role, value) {
                (AnswerRole::Count(field), value) => {
                    counts[field.place()] = value.whole().or(counts[field.place()]);
                }
                (AnswerRole::PositiveCount(field), value) => {
                    let count = value.whole().filter(|count| *count > 0);
                    counts[field.place()] = count.or(counts[field.place()]);
                }
                (AnswerRole::Model, Json::Text(text)) if !text.is_empty() => {
                    name = Some(text.clone());
                }
                (AnswerRole::Error, Json::Text(text)) => marks.is_error |= !text.is_empty(),
                (
                    AnswerRole::Error,
                    Json::Bool(true) | Json::Object(_) | Json::Number(_) | Json::Whole(_),
                ) => marks.is_error = true,
                (AnswerRole::ErrorWord, Json::Text(text)) => marks.is_error |= text == "error",
                (AnswerRole::Unfinished, Json::Object(_) | Json::Bool(false)) => {
                    marks.is_unfinished = true;
                }
                (AnswerRole::Finished, Json::Text(text)) => {
                    marks.is_finished |= !text.is_empty();
                }
                _ => {}
            }
        };
        match json {
            Json::Array(tops) if format == AnswerFormat::Gemini => {
                for top in tops {
                    top.visit(&mut Vec::new(), &mut see);
                }
            }
            _ => json.visit(&mut Vec::new(), &mut see),
        }
        self.name = self.name.take().or(name);
        let has_counts = counts.iter().any(Option::is_some);
        for (known, count) in self.counts.iter_mut().zip(counts) {
            *known = count.or(*known);
        }
        if has_counts {
            self.is_final = marks.is_finished || !marks.is_unfinished;
        }
        let is_known = self.counts.iter().any(Option::is_some);
        self.is_error |= marks.is_error && is_known && !self.is_final;
    }
}

/// What a reader of these events must report, its sums left out.
pub(super) fn expected(format: AnswerFormat, events: &[String]) -> Reading {
    let mut model = Model::default();
    for event in events {
        if let Ok(json) = serde_json::from_str::<Json>(event) {
            model.event(format, &json);
        }
    }
    let known = |field: TokenField| model.counts[field.place()];
    let sum = |fields: &[TokenField]| {
        let known = fields.iter().filter_map(|field| known(*field));
        known.reduce(|sum, count| (sum + count).min((1 << 53) - 1))
    };
    let (cached, write) = (known(TokenField::Cached), known(TokenField::CacheWrite));
    let (mut input, mut output) = match format {
        AnswerFormat::Gemini => (
            sum(&[TokenField::Input, TokenField::ToolInput]),
            sum(&[TokenField::Output, TokenField::Thoughts]),
        ),
        AnswerFormat::Anthropic | AnswerFormat::Bedrock => (
            sum(&[
                TokenField::Input,
                TokenField::Cached,
                TokenField::CacheWrite,
            ]),
            known(TokenField::Output),
        ),
        AnswerFormat::OpenAi | AnswerFormat::Ollama => {
            (known(TokenField::Input), known(TokenField::Output))
        }
    };
    if let Some(total) = known(TokenField::Total) {
        if input.is_none() {
            input = Some(output.map_or(0, |output| total.saturating_sub(output)));
        }
        let rest = input.map(|input| {
            let apart = cached.filter(|cached| format == AnswerFormat::OpenAi && *cached > input);
            total.saturating_sub(input + apart.unwrap_or(0))
        });
        output = match format {
            AnswerFormat::OpenAi => output.max(rest),
            _ => output.or(rest),
        };
    }
    if matches!(format, AnswerFormat::Gemini | AnswerFormat::Ollama) && input.is_some() {
        output = output.or(Some(0));
    }
    let write = write.filter(|_| format != AnswerFormat::Gemini);
    let tokens = ReportedTokens {
        input,
        cached: cached.unwrap_or(0),
        cache_write: write.unwrap_or(0),
        output,
    };
    let is_told = input.is_some() || output.is_some();
    Reading {
        tokens: (is_told && (model.is_final || !model.is_error)).then_some(tokens),
        model: model.name,
        is_final: model.is_final,
        is_error: model.is_error,
        text_bytes: 0,
    }
}
