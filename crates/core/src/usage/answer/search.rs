//! Looks for the events of a chunk that matter, without reading the others.

use memchr::memchr;
use memchr::memmem::Finder;
use smallvec::SmallVec;

use super::super::format::Needles;
use super::super::framing::Frames;

/// Backslashes of a chunk that are looked at one by one. More of them are cheaper to search.
const MAX_BACKSLASHES: usize = 32;

/// Looks for the events of one chunk that matter.
pub(super) struct EventSearch<'c> {
    /// The chunk up to the end of its last whole event.
    whole: &'c [u8],
    /// The next place of each word, once it has been looked for; the length where it is no more.
    found: SmallVec<[Option<usize>; 5]>,
    /// The event that is scanned has a word here.
    hit: Option<usize>,
}

impl<'c> EventSearch<'c> {
    pub(super) fn new(whole: &'c [u8]) -> EventSearch<'c> {
        EventSearch {
            whole,
            found: SmallVec::new(),
            hit: None,
        }
    }

    /// Where the next event begins that matters, at or behind `at`; the end of the whole events if
    /// there is none.
    pub(super) fn next_event(
        &mut self,
        at: usize,
        needles: &Needles,
        frames: &Frames,
        may_err: bool,
    ) -> usize {
        if at >= self.whole.len() || self.hit.is_some_and(|hit| at <= hit) {
            return at;
        }
        let mut hit = self.whole.len();
        for (index, finder) in needles.counts.iter().enumerate() {
            hit = hit.min(self.find_next(index, at, |rest| finder.find(rest)));
        }
        let escapes = needles.counts.len();
        hit = hit.min(self.find_next(escapes, at, |rest| find_escape(rest, &needles.escape)));
        if may_err {
            hit = hit.min(self.find_next(escapes + 1, at, |rest| needles.error.find(rest)));
        }
        if hit == self.whole.len() {
            return hit;
        }
        self.hit = Some(hit);
        at + frames.whole_length(&self.whole[at..hit])
    }

    /// The next place of one word, from `at` on.
    fn find_next(
        &mut self,
        index: usize,
        at: usize,
        find: impl Fn(&[u8]) -> Option<usize>,
    ) -> usize {
        if self.found.len() <= index {
            self.found.resize(index + 1, None);
        }
        if let Some(known) = self.found[index].filter(|known| *known >= at) {
            return known;
        }
        let place = find(&self.whole[at..]).map_or(self.whole.len(), |place| at + place);
        self.found[index] = Some(place);
        place
    }
}

/// Whether these texts have a word of events that matter.
pub(super) fn has_word(texts: &[u8], needles: &Needles, may_err: bool) -> bool {
    needles
        .counts
        .iter()
        .any(|finder| finder.find(texts).is_some())
        || find_escape(texts, &needles.escape).is_some()
        || (may_err && needles.error.find(texts).is_some())
}

/// Texts have few backslashes, and a search for a single byte is faster than one for a word.
fn find_escape(bytes: &[u8], escape: &Finder<'_>) -> Option<usize> {
    let mut at = 0;
    for _ in 0..MAX_BACKSLASHES {
        at += memchr(b'\\', bytes.get(at..)?)?;
        if bytes[at..].starts_with(escape.needle()) {
            return Some(at);
        }
        at += 1;
    }
    let rest = bytes.get(at..)?;
    escape.find(rest).map(|place| at + place)
}
