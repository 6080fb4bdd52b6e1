//! Asks a stream of OpenAI's format for its usage, and takes the answer to that out again.
//!
//! A stream says its usage only if its request has `stream_options.include_usage`. It then has one
//! more event, without choices. Clients that have not asked for it may look for a choice there.

mod edit;
mod filter;

use super::request::{BodyMembers, StreamOptions};
pub use edit::BodyEdit;
pub use filter::{MAX_EVENT, UsageEventFilter};

/// Whether a request may be asked for usage: it is a stream of chat or completions, all of it was
/// read, and it says nothing of usage itself.
pub fn is_open(members: &BodyMembers) -> bool {
    let is_stream = members.is_whole && members.is_stream && members.has_prompt;
    is_stream && members.stream_options != StreamOptions::Closed
}
