//! The numbers and names that the events of an answer report.

use super::super::format::{AnswerRole, AnswerTable, TokenField};
use super::super::framing::Framing;
use super::super::scan::{Piece, Sink};
use super::super::tokens::{MAX_UNITS, ReportedTokens};
use super::model::ModelName;
use super::nested::NestedScan;

const ERROR: &[u8] = b"error";

/// Counts by their places.
type PlacedCounts = [u64; TokenField::PLACES];

/// Everything that the events so far reported.
#[derive(Clone, Debug)]
pub(super) struct ReportedUsage {
    counts: PlacedCounts,
    /// Counts of the event that is read.
    pending: PlacedCounts,
    /// One bit for each place.
    known: u8,
    pending_known: u8,
    text_bytes: u32,
    named: Named,
    event: EventMarks,
    is_document: bool,
    is_final: bool,
    is_error: bool,
}

/// Marks of the event that is read.
#[derive(Clone, Copy, Debug, Default)]
struct EventMarks {
    is_unfinished: bool,
    is_finished: bool,
    is_error: bool,
    /// A text within its texts is no JSON.
    is_broken: bool,
    /// The bytes of the word `error` so far, or more.
    word: u8,
}

/// Answers with texts within their texts do not name a model, so both share their bytes.
#[derive(Clone, Debug)]
enum Named {
    Model(ModelName),
    Nested(NestedScan),
}

impl ReportedUsage {
    pub(super) fn new(table: &AnswerTable, framing: Framing) -> ReportedUsage {
        ReportedUsage {
            counts: [0; TokenField::PLACES],
            pending: [0; TokenField::PLACES],
            known: 0,
            pending_known: 0,
            text_bytes: 0,
            named: match table.has_nested {
                true => Named::Nested(NestedScan::default()),
                false => Named::Model(ModelName::default()),
            },
            event: EventMarks::default(),
            is_document: framing == Framing::Document,
            is_final: false,
            is_error: false,
        }
    }

    pub(super) fn knows_model(&self) -> bool {
        matches!(&self.named, Named::Model(model) if model.is_known())
    }

    pub(super) fn is_final(&self) -> bool {
        self.is_final
    }

    pub(super) fn is_error(&self) -> bool {
        self.is_error
    }

    pub(super) fn text_bytes(&self) -> u64 {
        u64::from(self.text_bytes)
    }

    /// The answer has ended, so the counts that it reported are the last ones.
    pub(super) fn end(&mut self) {
        self.is_final |= self.known != 0 && !self.is_error;
    }

    fn take(&mut self, role: AnswerRole, piece: Piece<'_>) {
        match (role, piece) {
            (AnswerRole::Count(field), Piece::Number(Some(count))) => self.count(field, count),
            (AnswerRole::PositiveCount(field), Piece::Number(Some(count))) if count > 0 => {
                self.count(field, count);
            }
            (AnswerRole::Model, piece) => {
                if let Named::Model(model) = &mut self.named {
                    model.read(piece);
                }
            }
            (AnswerRole::ErrorWord, piece) => self.read_word(piece),
            (AnswerRole::Text, Piece::Text(text)) => {
                let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
                self.text_bytes = self.text_bytes.saturating_add(length);
            }
            (
                AnswerRole::Error,
                Piece::Object | Piece::Text(_) | Piece::Bool(true) | Piece::Number(_),
            ) => self.event.is_error = true,
            (AnswerRole::Unfinished, Piece::Object | Piece::Bool(false)) => {
                self.event.is_unfinished = true;
            }
            (AnswerRole::Finished, Piece::Text(_)) => self.event.is_finished = true,
            _ => {}
        }
    }

    fn count(&mut self, field: TokenField, count: u64) {
        self.pending[field.place()] = count.min(MAX_UNITS);
        self.pending_known |= 1 << field.place();
    }

    fn get(&self, field: TokenField) -> Option<u64> {
        let is_known = self.known & (1 << field.place()) != 0;
        is_known.then(|| self.counts[field.place()])
    }

    /// The sum of those that are known, if any is.
    fn sum(&self, fields: &[TokenField]) -> Option<u64> {
        let known = fields.iter().filter_map(|field| self.get(*field));
        let sum = known.reduce(u64::saturating_add);
        sum.map(|sum| sum.min(MAX_UNITS))
    }

    /// A total alone counts as output, and beside one part it is the other one. Beside both it can
    /// show output that they lack.
    pub(super) fn tokens(&self, table: &AnswerTable) -> ReportedTokens {
        use TokenField::{CacheWrite, Cached, Input, Output, Thoughts, ToolInput, Total};
        let mut input = match (table.is_cache_apart, table.has_tool_input) {
            (true, _) => self.sum(&[Input, Cached, CacheWrite]),
            (false, true) => self.sum(&[Input, ToolInput]),
            (false, false) => self.get(Input),
        };
        let mut output = self.sum(&[Output, Thoughts]);
        if let Some(total) = self.get(Total) {
            match (input, output) {
                (None, None) => {
                    input = Some(0);
                    output = Some(total);
                }
                (Some(input), None) => output = Some(total.saturating_sub(input)),
                (None, Some(output)) => input = Some(total.saturating_sub(output)),
                (Some(input), Some(known)) if table.total_has_more_output => {
                    // Where the input lacks what comes from the cache, the total may have it.
                    let cached = self.get(Cached).filter(|cached| *cached > input);
                    let rest = total.saturating_sub(input.saturating_add(cached.unwrap_or(0)));
                    output = Some(known.max(rest));
                }
                (Some(_), Some(_)) => {}
            }
        }
        if table.omits_zero_output && input.is_some() {
            output = output.or(Some(0));
        }
        let writes = self.get(CacheWrite).filter(|_| !table.has_tool_input);
        ReportedTokens {
            input,
            cached: self.get(Cached).unwrap_or(0),
            cache_write: writes.unwrap_or(0),
            output,
        }
    }

    /// The tokens so far, with those of a document that has not ended.
    pub(super) fn tokens_so_far(&self, table: &AnswerTable) -> ReportedTokens {
        let mut all = self.clone();
        if self.is_document {
            all.keep_pending();
        }
        all.tokens(table)
    }

    pub(super) fn model_name(&self) -> Option<&str> {
        match &self.named {
            Named::Model(model) => model.name(),
            Named::Nested(_) => None,
        }
    }

    /// The text that an answer has within its texts, unless that is being read.
    fn take_nested(&mut self) -> Option<NestedScan> {
        match &mut self.named {
            Named::Nested(nested) => nested.begin(),
            Named::Model(_) => None,
        }
    }

    fn read_word(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Text(text) => {
                let read = usize::from(self.event.word);
                let goes_on = ERROR.get(read..).is_some_and(|rest| rest.starts_with(text));
                let length = u8::try_from(text.len()).ok().filter(|_| goes_on);
                let word = length.and_then(|length| self.event.word.checked_add(length));
                self.event.word = word.unwrap_or(u8::MAX);
            }
            Piece::TextEnd => {
                self.event.is_error |= usize::from(self.event.word) == ERROR.len();
                self.event.word = 0;
            }
            _ => {}
        }
    }

    /// Whether an error would change anything.
    pub(super) fn may_err(&self) -> bool {
        (self.known != 0 || self.is_document) && !self.is_final && !self.is_error
    }

    pub(super) fn fail(&mut self) {
        self.is_error |= self.may_err();
    }

    /// Keeps the counts of the event that is read. Returns their places.
    fn keep_pending(&mut self) -> u8 {
        let known = std::mem::take(&mut self.pending_known);
        for (place, count) in self.counts.iter_mut().enumerate() {
            if known & (1 << place) != 0 {
                *count = self.pending[place];
            }
        }
        self.known |= known;
        known
    }

    /// Ends an event. One that is no JSON says nothing.
    pub(super) fn end_event(&mut self, is_json: bool, knows_end: bool) {
        let event = std::mem::take(&mut self.event);
        let is_json = is_json && !event.is_broken;
        match &mut self.named {
            Named::Model(model) => model.end_event(is_json),
            Named::Nested(nested) => *nested = NestedScan::default(),
        }
        if !is_json {
            self.pending_known = 0;
            return;
        }
        let known = self.keep_pending();
        if known != 0 {
            let is_last = event.is_finished || !event.is_unfinished;
            self.is_final = self.is_document || (knows_end && is_last);
        }
        if event.is_error {
            self.fail();
        }
    }
}

/// What is reported, with the table that tells what it means.
pub(super) struct Reporting<'r> {
    pub(super) table: &'r AnswerTable,
    pub(super) reported: &'r mut ReportedUsage,
}

impl Reporting<'_> {
    /// Reads a part of a text within a text.
    fn read_nested(&mut self, piece: Piece<'_>) {
        let Some(mut nested) = self.reported.take_nested() else {
            return;
        };
        match piece {
            Piece::Text(text) => nested.read(&self.table.paths, text, self),
            Piece::TextEnd => {
                self.reported.event.is_broken |= !nested.is_whole();
                nested = NestedScan::default();
            }
            _ => {}
        }
        self.reported.named = Named::Nested(nested);
    }
}

impl Sink for Reporting<'_> {
    type Role = AnswerRole;

    fn take(&mut self, role: AnswerRole, piece: Piece<'_>) {
        match role {
            AnswerRole::Nested => self.read_nested(piece),
            _ => self.reported.take(role, piece),
        }
    }
}
