//! The readings of a decoded path: some upstreams change a path in ways that others do not.

use super::{ABOVE_ROOT, HIDDEN_DOTS, MAYBE_SEPARATOR, Malformed, TOO_MANY_READINGS};

/// What an upstream does with a path. Every upstream splits it at `/`, drops empty segments, and
/// drops the text behind a `;`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Habits(u8);

/// It removes the segment before a `..`.
const CLIMBS: u8 = 1;
/// It splits at `\` and at an escaped `/` or `\`.
const SPLITS: u8 = 2;
/// It drops the text behind an escaped `;` in a segment.
const CUTS: u8 = 4;
/// It drops dots and spaces at the end of a segment, as Windows does.
const TRIMS: u8 = 8;

const ESCAPED_SEMICOLON: &str = "%3B";
const SPACE: &str = "%20";

impl Habits {
    /// The habits that may change a path.
    pub(super) fn seen_in(decoded: &str) -> Result<Habits, Malformed> {
        let mut seen = 0;
        for segment in decoded.split('/') {
            if segment == ".." {
                seen |= CLIMBS;
            }
            if segment.contains(MAYBE_SEPARATOR) {
                seen |= SPLITS;
            }
            if segment.contains(ESCAPED_SEMICOLON) {
                seen |= CUTS;
            }
            for piece in segment.split([MAYBE_SEPARATOR, ';']) {
                for piece in piece.split(ESCAPED_SEMICOLON) {
                    if !matches!(piece, "." | "..") && trimmed(piece) != piece {
                        seen |= TRIMS;
                    }
                }
            }
        }
        match seen & (CLIMBS | SPLITS) == CLIMBS | SPLITS {
            true => Err(TOO_MANY_READINGS),
            false => Ok(Habits(seen)),
        }
    }

    /// All sets of some of these habits, but for the set of all.
    pub(super) fn fewer(self) -> impl Iterator<Item = Habits> {
        let all = self.0;
        (0..all)
            .rev()
            .filter(move |some| some & !all == 0)
            .map(Habits)
    }

    fn has(self, habit: u8) -> bool {
        self.0 & habit != 0
    }
}

/// The reading of an upstream with these habits.
pub(super) fn read(decoded: &str, habits: Habits) -> Result<String, Malformed> {
    let mut text = String::with_capacity(decoded.len());
    for segment in decoded.split('/') {
        if !habits.has(SPLITS) {
            push(&mut text, segment, segment, habits)?;
            continue;
        }
        for piece in segment.split(MAYBE_SEPARATOR) {
            push(&mut text, piece, segment, habits)?;
        }
    }
    if text.is_empty() {
        text.push('/');
    }
    Ok(text)
}

fn push(text: &mut String, piece: &str, segment: &str, habits: Habits) -> Result<(), Malformed> {
    let mut name = piece.split_once(';').map_or(piece, |(name, _)| name);
    if habits.has(CUTS) {
        name = name
            .split_once(ESCAPED_SEMICOLON)
            .map_or(name, |(name, _)| name);
    }
    match name {
        "" => return Ok(()),
        "." | ".." if name != segment => return Err(HIDDEN_DOTS),
        "." => return Ok(()),
        ".." if habits.has(CLIMBS) => {
            let parent = text.rfind('/').ok_or(ABOVE_ROOT)?;
            text.truncate(parent);
            return Ok(());
        }
        ".." => {}
        _ if habits.has(TRIMS) => {
            let bare = trimmed(name);
            if bare.is_empty() && name.contains('.') && name.contains(SPACE) {
                return Err(HIDDEN_DOTS);
            }
            // The order of the steps decides whether a `..` removes it or its parent.
            if bare.is_empty() && habits.has(CLIMBS) {
                return Err(TOO_MANY_READINGS);
            }
            name = bare;
        }
        _ => {}
    }
    if !name.is_empty() {
        text.push('/');
        text.push_str(name);
    }
    Ok(())
}

/// Without dots and spaces at its end.
fn trimmed(mut name: &str) -> &str {
    while let Some(shorter) = name.strip_suffix('.').or_else(|| name.strip_suffix(SPACE)) {
        name = shorter;
    }
    name
}
