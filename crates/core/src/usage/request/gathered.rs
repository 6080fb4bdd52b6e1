//! The values of the members that were read so far.
//!
//! An array at the top is a batch of JSON-RPC or GraphQL: each of its elements is read like a body
//! of its own. A batch is charged like one request. So a member that several elements have is
//! ambiguous, even where they agree: otherwise one charge would pay for any number of calls.

use super::super::scan::{Piece, Sink};
use super::super::tokens::MAX_UNITS;
use super::members::{BodyMembers, BodyValue, MAX_VALUE, StreamOptions};
use super::operations::Operations;
use super::table::{Purpose, RequestRole, RequestTable, ValueSource};

/// The method of MCP that calls a tool.
const CALL: &str = "tools/call";

#[derive(Clone, Debug)]
pub(super) struct GatheredMembers {
    /// Of the elements that have ended, by the index of their member. `None` where no element has
    /// the member.
    ended: Vec<Option<BodyValue>>,
    ended_model: Option<BodyValue>,
    element: Element,
    maximum: Option<u64>,
    raised: u64,
    answers: u64,
    is_stream: bool,
    include_usage: Option<bool>,
    stream_options: StreamOptions,
    has_prompt: bool,
    objects: u32,
    is_array: bool,
}

/// The body, or one element of a batch.
#[derive(Clone, Debug)]
struct Element {
    /// By their places.
    texts: Vec<Option<BodyValue>>,
    /// One of its methods is [`CALL`].
    calls_tool: bool,
    /// The result of its `query`.
    operation: Option<BodyValue>,
    /// The text that is read. One byte more than is kept shows that it is too long.
    text: Vec<u8>,
    query: Operations,
}

/// Takes a value that may be there already.
fn take(known: &mut Option<BodyValue>, value: BodyValue) {
    match known {
        Some(known) if *known != value => *known = BodyValue::Ambiguous,
        Some(_) => {}
        None => *known = Some(value),
    }
}

impl Element {
    fn new(places: usize) -> Element {
        Element {
            texts: vec![None; places],
            calls_tool: false,
            operation: None,
            text: Vec::new(),
            query: Operations::default(),
        }
    }

    fn push(&mut self, text: &[u8]) {
        let room = (MAX_VALUE + 1).saturating_sub(self.text.len());
        self.text.extend(text.iter().take(room));
    }

    fn end_text(&mut self) -> BodyValue {
        let text = String::from_utf8(std::mem::take(&mut self.text));
        let text = text.ok().filter(|text| text.len() <= MAX_VALUE);
        text.map_or(BodyValue::Missing, |text| {
            BodyValue::One(text.into_boxed_str())
        })
    }

    fn end_number(&mut self, whole: Option<u64>) -> BodyValue {
        let digits = self.end_text();
        match whole {
            // The largest value stands for all that do not fit.
            Some(whole) if whole < u64::MAX => BodyValue::One(whole.to_string().into_boxed_str()),
            _ => digits,
        }
    }

    /// Reads on in the value of a member, and returns it at its end.
    fn read_value(&mut self, piece: Piece<'_>) -> Option<BodyValue> {
        Some(match piece {
            Piece::Text(text) | Piece::Digits(text) => {
                self.push(text);
                return None;
            }
            Piece::EmptyArray => return None,
            Piece::TextEnd => self.end_text(),
            Piece::Number(whole) => self.end_number(whole),
            Piece::Bool(value) => BodyValue::One(value.to_string().into_boxed_str()),
            Piece::Null | Piece::Object | Piece::Array => BodyValue::Missing,
        })
    }

    fn read_text(&mut self, table: &RequestTable, place: usize, piece: Piece<'_>) {
        let Some(value) = self.read_value(piece) else {
            return;
        };
        let is_call = matches!(&value, BodyValue::One(text) if **text == *CALL);
        self.calls_tool |= is_call && table.method == Some(place);
        if let Some(known) = self.texts.get_mut(place) {
            take(known, value);
        }
    }

    fn read_query(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Text(text) => self.query.read(text),
            Piece::TextEnd => {
                let name = std::mem::take(&mut self.query).finish();
                let value = name.map_or(BodyValue::Missing, BodyValue::One);
                take(&mut self.operation, value);
            }
            Piece::Digits(_) | Piece::EmptyArray => {}
            _ => take(&mut self.operation, BodyValue::Missing),
        }
    }

    fn text_at(&self, place: usize) -> Option<&BodyValue> {
        self.texts.get(place)?.as_ref()
    }

    /// The value of a member. `None` if this element does not have it.
    fn value(&self, source: ValueSource) -> Option<BodyValue> {
        match source {
            ValueSource::Text(place) => self.text_at(place).cloned(),
            ValueSource::Tool(place) => self.text_at(place).filter(|_| self.calls_tool).cloned(),
            ValueSource::Operation(place) => match self.text_at(place) {
                // Servers take an empty name for none.
                Some(BodyValue::One(name)) if name.is_empty() => self.operation.clone(),
                None | Some(BodyValue::Missing) => self.operation.clone(),
                known => known.cloned(),
            },
            ValueSource::Nowhere => None,
        }
    }
}

impl GatheredMembers {
    pub(super) fn new(table: &RequestTable) -> GatheredMembers {
        GatheredMembers {
            ended: vec![None; table.members.len()],
            ended_model: None,
            element: Element::new(table.places),
            maximum: None,
            raised: 0,
            answers: 1,
            is_stream: false,
            include_usage: None,
            stream_options: StreamOptions::Absent,
            has_prompt: false,
            objects: 0,
            is_array: false,
        }
    }

    /// Whether the body is one object.
    pub(super) fn is_object(&self) -> bool {
        self.objects == 1 && !self.is_array
    }

    /// All members, once the body has ended.
    pub(super) fn finish(mut self, table: &RequestTable) -> BodyMembers {
        self.end_element(table);
        let model = match self.ended_model {
            Some(BodyValue::One(model)) => Some(model),
            _ => None,
        };
        let values = self.ended.into_iter().map(Option::unwrap_or_default);
        BodyMembers {
            values: values.collect(),
            maximum: self.maximum,
            raised: self.raised,
            answers: self.answers,
            model,
            is_stream: self.is_stream,
            include_usage: self.include_usage,
            stream_options: self.stream_options,
            has_prompt: self.has_prompt,
            is_whole: false,
        }
    }

    fn end_element(&mut self, table: &RequestTable) {
        let element = std::mem::replace(&mut self.element, Element::new(table.places));
        let add = |known: &mut Option<BodyValue>, value: Option<BodyValue>| match (&known, value) {
            (Some(_), Some(_)) => *known = Some(BodyValue::Ambiguous),
            (None, value) => *known = value,
            (Some(_), None) => {}
        };
        for (known, source) in self.ended.iter_mut().zip(&table.sources) {
            add(known, element.value(*source));
        }
        let model = table.model.and_then(|place| element.text_at(place));
        add(&mut self.ended_model, model.cloned());
    }

    fn read(&mut self, table: &RequestTable, role: RequestRole, piece: Piece<'_>) {
        match (role.purpose, piece) {
            (Purpose::Top, Piece::Array) => self.is_array |= self.objects == 0,
            (Purpose::Top, Piece::Object) => {
                if self.objects > 0 {
                    self.end_element(table);
                }
                self.objects = self.objects.saturating_add(1);
            }
            (Purpose::Maximum, Piece::Number(Some(number))) => self.read_maximum(number),
            (Purpose::RaisedMaximum, Piece::Number(Some(number))) => {
                self.raised = self.raised.max(number.min(MAX_UNITS));
            }
            (Purpose::Answers, Piece::Number(Some(number))) => {
                self.answers = self.answers.max(number.min(MAX_UNITS));
            }
            (Purpose::Stream, Piece::Bool(is_stream)) => self.is_stream |= is_stream,
            (Purpose::StreamOptions, piece) => self.read_options(piece),
            (Purpose::IncludeUsage, piece) => {
                self.stream_options = StreamOptions::Closed;
                if let Piece::Bool(includes) = piece {
                    self.include_usage = Some(includes);
                }
            }
            (Purpose::Prompt, Piece::Array | Piece::TextEnd) => self.has_prompt = true,
            (Purpose::Query, piece) => self.element.read_query(piece),
            _ => {}
        }
        if let Some(place) = role.place {
            self.element.read_text(table, place, piece);
        }
    }

    fn read_options(&mut self, piece: Piece<'_>) {
        self.stream_options = match (self.stream_options, piece) {
            (StreamOptions::Absent, Piece::Null) => StreamOptions::Null,
            (StreamOptions::Absent, Piece::Object) => StreamOptions::Object,
            _ => StreamOptions::Closed,
        };
    }

    /// Some servers take a maximum of 0 for none, so it counts like none.
    fn read_maximum(&mut self, number: u64) {
        if number > 0 {
            let number = number.min(MAX_UNITS);
            self.maximum = Some(self.maximum.map_or(number, |known| known.max(number)));
        }
    }
}

/// The members at work, with the table that they are of.
pub(super) struct Gathering<'g> {
    pub(super) table: &'g RequestTable,
    pub(super) members: &'g mut GatheredMembers,
}

impl Sink for Gathering<'_> {
    type Role = RequestRole;

    fn take(&mut self, role: RequestRole, piece: Piece<'_>) {
        self.members.read(self.table, role, piece);
    }
}
