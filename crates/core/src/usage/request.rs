//! Reads the body of a request while it arrives: what it asks of a model, and members that keys
//! count by.

use super::paths::MemberPath;

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

/// What a body says of one member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BodyValue {
    #[default]
    Missing,
    One(Box<str>),
    /// The member is there twice, with different values.
    Ambiguous,
}

/// The members that a route needs. `None` where it needs no body.
#[derive(Clone, Debug, Default)]
pub struct RequestTable {
    /// Members of keys and costs.
    pub members: Vec<BodyMember>,
    /// Whether the members that name a maximum of output are wanted, `model` and `stream` too.
    pub reads_usage: bool,
}

/// What the body of a request says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyMembers {
    /// By the index of their `members` in the table.
    pub values: Vec<BodyValue>,
    /// The greatest maximum of output that it names, tokens.
    pub maximum: Option<u64>,
    /// The number of answers that it asks for; at least 1.
    pub answers: u64,
    pub model: Option<Box<str>>,
    pub is_stream: bool,
    /// `stream_options.include_usage`
    pub include_usage: Option<bool>,
    /// Whether all of the body was read, and it is one JSON object.
    pub is_whole: bool,
}
