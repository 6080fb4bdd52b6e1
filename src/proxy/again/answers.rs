//! The last answers that denied: one to the same limits that tells the same numbers within the same
//! second is the same but for its id, and is said again instead of being worded.
//!
//! Bounded: `ANSWERS` of at most `TEXT_BYTES`, for `CLASSES` that are told apart. An answer is kept
//! when it is needed for the second time.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::config::BodyKind;
use crate::limit::headers::Told;
use crate::limit::{Charge, LimitCheck, Window};

const ANSWERS: usize = 64;
/// Bytes of an answer that is kept, at most.
const TEXT_BYTES: usize = 2048;
const CLASSES: usize = 256;

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Answers {
    classes: Vec<Alike>,
    /// Each in the place that its class and its wait name.
    last: Box<[Answer]>,
}

/// Denials that are worded alike, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(u16);

/// All that an answer depends on, beside the configuration and what it tells.
#[derive(Debug)]
struct Alike {
    asked: SmallVec<[(Arc<Window>, u64); 1]>,
    kind: BodyKind,
}

#[derive(Debug, Default)]
struct Answer {
    class: Option<Class>,
    told: Told,
    /// Of its date.
    second: u64,
    /// Head and body; empty if it is not kept.
    text: Vec<u8>,
    /// Where in `text` its id stands.
    ids: SmallVec<[usize; 2]>,
    /// Bytes of its body.
    body: usize,
}

impl Answers {
    /// Who is answered like one who asked this, in this form; nothing where there are too many.
    pub(super) fn class(&mut self, charge: &Charge, kind: BodyKind) -> Option<Class> {
        let is_alike = |alike: &Alike| {
            let same = |(item, (window, cost)): (&LimitCheck, &(Arc<Window>, u64))| {
                Arc::ptr_eq(&item.window, window) && item.cost == *cost
            };
            alike.kind == kind
                && alike.asked.len() == charge.len()
                && charge.iter().zip(&alike.asked).all(same)
        };
        let known = self.classes.iter().position(is_alike);
        let number = known.unwrap_or(self.classes.len());
        if number >= CLASSES {
            return None;
        }
        if known.is_none() {
            let asked = |item: &LimitCheck| (Arc::clone(&item.window), item.cost);
            self.classes.push(Alike {
                asked: charge.iter().map(asked).collect(),
                kind,
            });
        }
        u16::try_from(number).ok().map(Class)
    }

    /// Writes the answer that tells this at that second and has this id behind `out`, as it was the
    /// last time or else as `word` writes it, which returns the bytes of its body; so does this.
    pub(super) fn put(
        &mut self,
        class: Option<Class>,
        (told, second, id): (Told, u64, &[u8]),
        out: &mut Vec<u8>,
        word: impl FnOnce(&Told, &mut Vec<u8>) -> usize,
    ) -> usize {
        let Some(Class(number)) = class else {
            return word(&told, out);
        };
        if self.last.is_empty() {
            self.last = (0..ANSWERS).map(|_| Answer::default()).collect();
        }
        let place = (usize::from(number) * 31).wrapping_add(told.wait.unwrap_or(0) as usize);
        let said = &mut self.last[place % ANSWERS];
        let start = out.len();
        let same = said.class == class && said.second == second && said.told == told;
        if same && !said.text.is_empty() {
            out.extend_from_slice(&said.text);
            for at in &said.ids {
                out[start + at..start + at + id.len()].copy_from_slice(id);
            }
            return said.body;
        }
        said.text.clear();
        said.body = word(&told, out);
        let text = &out[start..];
        if !same {
            (said.class, said.told, said.second) = (class, told, second);
        } else if text.len() <= TEXT_BYTES {
            said.text.extend_from_slice(text);
            said.ids = memchr::memmem::find_iter(text, id).collect();
        }
        said.body
    }
}

#[cfg(test)]
#[allow(
    clippy::field_reassign_with_default,
    reason = "the other numbers are its own"
)]
mod tests {
    use super::*;
    use crate::limit::{Algorithm, Key, KeyHash, Limit, Rule};

    /// What is said of `wait` at `second`, and whether it had to be worded.
    fn said(last: &mut Answers, (wait, second): (u64, u64), id: &str) -> (String, bool) {
        let mut told = Told::default();
        told.wait = Some(wait);
        let (mut out, mut worded) = (b"before ".to_vec(), false);
        let told = (told, second, id.as_bytes());
        let bytes = last.put(Some(Class(3)), told, &mut out, |told, out| {
            worded = true;
            out.extend_from_slice(format!("{id}: {:?}, {second} ({id})", told.wait).as_bytes());
            4
        });
        assert_eq!(bytes, 4);
        (String::from_utf8(out).unwrap(), worded)
    }

    #[test]
    fn what_is_said_again_differs_in_its_id_alone() {
        let mut last = Answers::default();
        for (told, id, worded) in [
            ((7, 100), "aaaa", true),
            ((7, 100), "bbbb", true),
            ((7, 100), "cccc", false),
            ((7, 100), "dddd", false),
            ((7, 101), "eeee", true),
            ((6, 101), "ffff", true),
            ((6, 101), "gggg", true),
            ((6, 101), "hhhh", false),
            ((7, 100), "iiii", true),
        ] {
            let text = format!("before {id}: Some({}), {} ({id})", told.0, told.1);
            assert_eq!(said(&mut last, told, id), (text, worded));
        }
    }

    #[test]
    fn what_is_long_is_not_kept() {
        let mut last = Answers::default();
        for _ in 0..3 {
            let told = (Told::default(), 1, &b"id"[..]);
            let mut out = Vec::new();
            last.put(Some(Class(0)), told, &mut out, |_, out| {
                out.resize(TEXT_BYTES + 1, b'x');
                0
            });
            assert_eq!(out.len(), TEXT_BYTES + 1);
            assert_eq!(last.last[0].text.capacity(), 0);
        }
    }

    fn charge(name: &str, cost: u64) -> Charge {
        let rule = Rule {
            algorithm: Algorithm::Log,
            units: 5,
            window_us: 1_000_000,
            precision_us: 1,
        };
        let limit = Limit::new(name, &[rule], Key::parse(["ip"]).unwrap());
        let item = LimitCheck {
            window: Arc::clone(&limit.windows[0]),
            limit: Arc::new(limit),
            tag: KeyHash([0; 16]),
            cost,
            asker: None,
        };
        [item].into_iter().collect()
    }

    #[test]
    fn who_is_asked_alike_and_in_the_same_form_is_answered_alike() {
        let mut answers = Answers::default();
        let (one, two) = (charge("one", 1), charge("two", 1));
        let mut dear = one.clone();
        dear[0].cost = 2;
        let both: Charge = one.iter().chain(&two).cloned().collect();
        let mut other_tag = one.clone();
        other_tag[0].tag = KeyHash([1; 16]);
        let json = BodyKind::Json;
        let rows = [(&one, json), (&two, json), (&dear, json), (&both, json)];
        for (number, (charge, kind)) in rows.into_iter().chain([(&one, BodyKind::Text)]).enumerate()
        {
            for _ in 0..2 {
                assert_eq!(answers.class(charge, kind), Some(Class(number as u16)));
            }
        }
        assert_eq!(answers.class(&other_tag, json), Some(Class(0)));
        for cost in 3..=CLASSES as u64 {
            dear[0].cost = cost;
            answers.class(&dear, json);
        }
        dear[0].cost = 1_000;
        assert_eq!(answers.class(&dear, json), None);
        assert_eq!(answers.class(&one, json), Some(Class(0)));
        assert_eq!(answers.classes.len(), CLASSES);
    }
}
