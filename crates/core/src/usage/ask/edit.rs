//! The change of a request's body that asks for usage.

use std::sync::LazyLock;

use memchr::memchr3_iter;
use memchr::memmem::rfind;

use super::super::paths::{NameCase, PathRow, PathTable, Tops, steps};
use super::super::request::{BodyMembers, StreamOptions};
use super::super::scan::{JsonScan, Piece, Sink, is_space};

const NULL: &[u8] = b"null";

/// One change of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyEdit {
    /// The index of the first byte that is removed or moved.
    pub at: usize,
    /// How many bytes are removed there.
    pub removed: usize,
    pub added: &'static str,
}

impl BodyEdit {
    /// The change that asks for usage. `body` has the members, and [`super::is_open`] holds for
    /// them. `None` if the place is not found.
    pub fn asking(members: &BodyMembers, body: &[u8]) -> Option<BodyEdit> {
        match members.stream_options {
            // The object is not empty: it has `stream`.
            StreamOptions::Absent => Some(BodyEdit {
                at: memchr::memchr(b'{', body)? + 1,
                removed: 0,
                added: "\"stream_options\":{\"include_usage\":true},",
            }),
            StreamOptions::Null => Some(BodyEdit {
                at: find_options(body)?.checked_sub(NULL.len())?,
                removed: NULL.len(),
                added: "{\"include_usage\":true}",
            }),
            StreamOptions::Object => {
                let at = find_options(body)?;
                let next = body.get(at..)?.iter().find(|byte| !is_space(**byte))?;
                Some(BodyEdit {
                    at,
                    removed: 0,
                    added: match next {
                        b'}' => "\"include_usage\":true",
                        _ => "\"include_usage\":true,",
                    },
                })
            }
            StreamOptions::Closed => None,
        }
    }
}

/// `stream_options`, in the case of letters that the reader of requests accepts.
static OPTIONS: LazyLock<PathTable<()>> = LazyLock::new(|| {
    let rows = [PathRow {
        steps: steps("stream_options"),
        role: (),
    }];
    let table = PathTable::new(&rows, NameCase::Folded, Tops::One);
    table.unwrap_or_else(|| PathTable::empty(NameCase::Folded))
});

/// The value of `stream_options`, once it is found.
#[derive(Default)]
struct FoundOptions(Option<StreamOptions>);

impl Sink for FoundOptions {
    type Role = ();

    fn take(&mut self, (): (), piece: Piece<'_>) {
        self.0 = match piece {
            Piece::Null => Some(StreamOptions::Null),
            Piece::Object => Some(StreamOptions::Object),
            _ => None,
        };
    }
}

/// Where the bracket that opens `stream_options` ends, or its `null`.
fn find_options(body: &[u8]) -> Option<usize> {
    let mut scan = JsonScan::default();
    let mut found = FoundOptions::default();
    let mut from = memchr::memchr(b'{', body)?;
    // `null` is known behind it, at the latest with the byte that ends the member.
    for at in memchr3_iter(b'{', b',', b'}', body) {
        let piece = body.get(from..=at).unwrap_or_default();
        scan.feed(&OPTIONS, piece, &mut found);
        match found.0 {
            Some(StreamOptions::Object) => return Some(at + 1),
            Some(_) => return Some(from + rfind(piece, NULL)? + NULL.len()),
            None => from = at + 1,
        }
    }
    None
}
