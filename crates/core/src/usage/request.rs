//! Reads the body of a request while it arrives: its maximum of output, and members that keys count
//! by.
//!
//! Members count only once the object around them is closed: before that, another one of the same
//! name may follow. A body that is cut, is no JSON or is too deep has no members.
//!
//! Names match in either case of their ASCII letters. Servers in Go read them so, and a name that
//! only the server knows would escape its limit.

mod gathered;
mod members;
mod operations;
mod table;

use std::sync::Arc;

use super::framing::{FramePiece, Frames, Framing};
use super::scan::{JsonScan, is_space};
use gathered::{GatheredMembers, Gathering};
pub use members::{BodyMember, BodyMembers, BodyValue, MAX_VALUE, StreamOptions};
pub use table::{MAX_PATHS, RequestTable, UsageMembers};

/// Reads one body. It keeps the values of members, and nothing else of the body.
#[derive(Clone, Debug)]
pub struct RequestReader {
    table: Arc<RequestTable>,
    frames: Frames,
    scan: JsonScan,
    gathered: GatheredMembers,
    /// Something follows the text.
    has_more: bool,
}

impl RequestReader {
    pub fn new(table: &Arc<RequestTable>) -> RequestReader {
        RequestReader {
            table: Arc::clone(table),
            frames: Frames::new(Framing::Document),
            scan: JsonScan::default(),
            gathered: GatheredMembers::new(table),
            has_more: false,
        }
    }

    /// Reads the next bytes of the body, wherever they were cut.
    pub fn read(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while !rest.is_empty() && !self.has_failed() {
            let cut = self.frames.next(rest);
            if let FramePiece::Data(bytes) = cut.piece {
                self.feed(bytes);
            }
            rest = cut.rest;
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        let mut at = 0;
        if !self.scan.is_closed() {
            let mut gathering = Gathering {
                table: &self.table,
                members: &mut self.gathered,
            };
            at = self.scan.feed(&self.table.paths, bytes, &mut gathering);
        }
        let behind = bytes.get(at..).unwrap_or_default();
        self.has_more |= !behind.iter().copied().all(is_space);
    }

    /// Whether more bytes tell no other members: the object is closed, or this is no JSON, or it is
    /// deeper than 64 levels.
    pub fn is_done(&self) -> bool {
        self.scan.is_closed() || self.has_failed()
    }

    fn has_failed(&self) -> bool {
        self.scan.is_broken() || self.scan.is_too_deep()
    }

    /// The members of the body that has been read.
    pub fn finish(self) -> BodyMembers {
        if !self.scan.is_closed() || self.has_failed() {
            return BodyMembers {
                values: vec![BodyValue::Missing; self.table.members.len()],
                ..BodyMembers::default()
            };
        }
        let is_whole = self.gathered.is_object() && !self.has_more;
        BodyMembers {
            is_whole,
            ..self.gathered.finish(&self.table)
        }
    }
}
