//! The members of a request's body that matter, and their values.

use super::super::paths::MemberPath;

/// Bytes of a value that are kept. A key has no use for more.
pub const MAX_VALUE: usize = 256;

/// A member of a body that a key or a cost is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BodyMember {
    /// `body:PATH`
    Path(MemberPath),
    /// `mcp:method`: `method` of JSON-RPC.
    McpMethod,
    /// `mcp:tool`: `params.name` of the method `tools/call`.
    McpTool,
    /// `graphql:operation`: `operationName`, or else the only name in `query`.
    GraphqlOperation,
}

/// The value of one member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BodyValue {
    /// The member is not there, or it is no string, number or boolean. A text of more than
    /// [`MAX_VALUE`] bytes is missing too. It is a single value, so the request is not refused as
    /// ambiguous. Its beginning would be a wrong key: clients choose it, and many texts share it.
    #[default]
    Missing,
    /// The text of a string, of a boolean or of a number. Whole numbers have their shortest text,
    /// so `1`, `1.0` and `1e0` are one key.
    One(Box<str>),
    /// The member is there twice, with different values. Servers disagree about which one counts.
    Ambiguous,
}

/// `stream_options`, and whether it can be asked for usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamOptions {
    #[default]
    Absent,
    Null,
    /// An object without `include_usage`.
    Object,
    /// It has `include_usage`, is there twice, or is another value.
    Closed,
}

/// The content of a request's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyMembers {
    /// By the index of their `members` in the table.
    pub values: Vec<BodyValue>,
    /// The greatest maximum of output that it names, tokens.
    pub maximum: Option<u64>,
    /// A maximum that some servers take instead, and others ignore: it may only raise the output.
    pub raised: u64,
    /// The number of answers that it asks for; at least 1.
    pub answers: u64,
    /// `None` if the body names none, or several.
    pub model: Option<Box<str>>,
    pub is_stream: bool,
    /// `stream_options.include_usage`
    pub include_usage: Option<bool>,
    pub stream_options: StreamOptions,
    /// Whether it has `messages` of chat, or `prompt` of completions.
    pub has_prompt: bool,
    /// Whether all of the body was read, and it is one JSON object.
    pub is_whole: bool,
}

impl Default for BodyMembers {
    /// The members of a body that was not read.
    fn default() -> BodyMembers {
        BodyMembers {
            values: Vec::new(),
            maximum: None,
            raised: 0,
            answers: 1,
            model: None,
            is_stream: false,
            include_usage: None,
            stream_options: StreamOptions::Absent,
            has_prompt: false,
            is_whole: false,
        }
    }
}
