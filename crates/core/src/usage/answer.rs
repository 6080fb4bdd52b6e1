//! Reads the answer of a model server while it passes.
//!
//! An event counts if all of its text is JSON. Its numbers then replace earlier ones of their kind,
//! and `null` replaces nothing. Counts are never summed: servers send them from the beginning.
//!
//! Most events have no counts. So the reader first looks for a word that each event with counts
//! has, and scans only the events with that word, and the event that a chunk leaves incomplete.

mod model;
mod nested;
mod reported;
mod search;

use std::sync::Arc;

use super::format::{AnswerTable, Needles};
use super::framing::{FramePiece, Frames, Framing};
use super::scan::JsonScan;
use super::tokens::ReportedTokens;
pub use model::MAX_MODEL;
use reported::{ReportedUsage, Reporting};
use search::{EventSearch, has_word};

/// The longest chunk that is looked at as a whole, bytes.
const MAX_SHORT: usize = 2048;

/// Reads one answer. It keeps at most 256 bytes, whatever the answer is.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    table: Arc<AnswerTable>,
    progress: AnswerProgress,
}

const _: () = assert!(size_of::<AnswerReader>() <= 256);

#[derive(Clone, Debug)]
struct AnswerProgress {
    frames: Frames,
    scan: JsonScan,
    reported: ReportedUsage,
    scanning: EventScanning,
}

/// The events that are scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventScanning {
    /// Those that may matter.
    Sparse,
    All,
}

impl AnswerReader {
    pub fn new(table: &Arc<AnswerTable>, framing: Framing) -> AnswerReader {
        AnswerReader::with(table, framing, EventScanning::Sparse)
    }

    /// A reader with a choice of how it works. It reports the same either way.
    pub fn with(
        table: &Arc<AnswerTable>,
        framing: Framing,
        scanning: EventScanning,
    ) -> AnswerReader {
        let is_sparse = table.needles.is_some() && !table.counts_text;
        AnswerReader {
            table: Arc::clone(table),
            progress: AnswerProgress {
                frames: Frames::new(framing),
                scan: JsonScan::default(),
                reported: ReportedUsage::new(table, framing),
                scanning: match is_sparse {
                    true => scanning,
                    false => EventScanning::All,
                },
            },
        }
    }

    /// Reads the next bytes of the answer, wherever they were cut.
    pub fn read(&mut self, chunk: &[u8]) {
        self.progress.read(&self.table, chunk);
    }

    /// The answer has come to its regular end.
    pub fn finish(&mut self) {
        self.progress.finish(&self.table);
    }

    /// The tokens that the events so far have reported. `None` if they reported none, or an error
    /// before the last counts.
    pub fn tokens(&self) -> Option<ReportedTokens> {
        self.unless_failed(self.progress.reported.tokens(&self.table))
    }

    /// The same for an answer that broke off. A document counts as far as it has come.
    pub fn tokens_so_far(&self) -> Option<ReportedTokens> {
        self.unless_failed(self.progress.reported.tokens_so_far(&self.table))
    }

    fn unless_failed(&self, tokens: ReportedTokens) -> Option<ReportedTokens> {
        let reported = &self.progress.reported;
        let is_valid = !tokens.is_empty() && (reported.is_final() || !reported.is_error());
        is_valid.then_some(tokens)
    }

    /// Whether an answer that ends here lacks its last counts: a server may have died.
    pub fn is_cut(&self) -> bool {
        let is_stream = !matches!(self.progress.frames, Frames::Document(_));
        is_stream && self.table.ends_with_counts && !self.is_final()
    }

    /// Whether the answer has reported its last counts.
    pub fn is_final(&self) -> bool {
        self.progress.reported.is_final()
    }

    /// Whether the answer reported an error in place of its last counts. In a stream without any
    /// counts an error is not noticed: there is nothing that it could change.
    pub fn is_error(&self) -> bool {
        self.progress.reported.is_error()
    }

    /// The model that the answer names, or as much of its name as is kept.
    pub fn model(&self) -> Option<&str> {
        self.progress.reported.model_name()
    }

    /// The bytes of the answer's text so far, if the table counts them.
    pub fn text_bytes(&self) -> u64 {
        self.progress.reported.text_bytes()
    }
}

impl AnswerProgress {
    fn read(&mut self, table: &AnswerTable, chunk: &[u8]) {
        if self.is_plain(table, chunk) {
            return;
        }
        let mut search = None;
        let mut at = 0;
        while at < chunk.len() {
            if let Some(needles) = self.skips(table) {
                let search = search.get_or_insert_with(|| {
                    let whole = self.frames.whole_length(&chunk[at..]);
                    EventSearch::new(&chunk[..at + whole])
                });
                let may_err = self.reported.may_err();
                at = search.next_event(at, needles, &self.frames, may_err);
            }
            let rest = &chunk[at..];
            if !rest.is_empty() {
                let cut = self.frames.next(rest);
                self.take(table, cut.piece);
                at = chunk.len() - cut.rest.len();
            }
        }
    }

    /// Whether the chunk is whole texts of which none matters. Servers send most events in a chunk
    /// of their own, so this is cheaper than a search that remembers places.
    fn is_plain(&self, table: &AnswerTable, chunk: &[u8]) -> bool {
        chunk.len() <= MAX_SHORT
            && self.frames.ends_text(chunk)
            && self
                .skips(table)
                .is_some_and(|needles| !has_word(chunk, needles, self.reported.may_err()))
    }

    /// The words of events that matter, if a text begins here and others may be left out.
    fn skips<'t>(&self, table: &'t AnswerTable) -> Option<&'t Needles> {
        let is_sparse = self.scanning == EventScanning::Sparse;
        let knows_model = !table.has_model || self.reported.knows_model();
        let is_between = || self.frames.is_between() && self.scan.is_fresh();
        let needles = table.needles.as_ref();
        needles.filter(|_| is_sparse && knows_model && is_between())
    }

    fn take(&mut self, table: &AnswerTable, piece: FramePiece<'_>) {
        match piece {
            FramePiece::Data(bytes) => self.feed(table, bytes),
            FramePiece::End => self.end_event(table),
            FramePiece::Failure => {
                self.end_event(table);
                self.reported.fail();
            }
            FramePiece::Nothing => {}
        }
    }

    fn feed(&mut self, table: &AnswerTable, bytes: &[u8]) {
        let is_document = matches!(self.frames, Frames::Document(_));
        if is_document && self.scan.is_closed() {
            return;
        }
        let reported = &mut self.reported;
        let mut sink = Reporting { table, reported };
        let read = self.scan.feed(&table.paths, bytes, &mut sink);
        if is_document && self.scan.is_closed() {
            // A document has reported everything, even if the connection stays open.
            self.reported.end_event(true, table.knows_end);
        } else if let Some(rest) = bytes.get(read..) {
            self.scan.feed(&table.paths, rest, &mut sink);
        }
    }

    fn end_event(&mut self, table: &AnswerTable) {
        let is_json = self.scan.is_whole();
        self.reported.end_event(is_json, table.knows_end);
        self.scan = JsonScan::default();
    }

    fn finish(&mut self, table: &AnswerTable) {
        if matches!(self.frames, Frames::Lines(_) | Frames::Sse(_)) && !self.scan.is_fresh() {
            self.end_event(table);
        }
        if !table.knows_end {
            self.reported.end();
        }
    }
}
