//! The members that a route reads of its requests, as a tree of paths.

use super::super::format::AnswerFormat;
use super::super::paths::{NameCase, PathRow, PathStep, PathTable, Tops};
use super::members::BodyMember;

/// Different `body:PATH` that one route can read, at most. Further ones are always missing.
pub const MAX_PATHS: usize = 12;

/// Members that name the greatest output of one answer, by the format of the answers. A server
/// ignores the words of other servers, so these must not lower a reserve.
///
/// Gemini's API reads its words in either case. Bedrock has words of Converse and of Anthropic.
const fn maxima(format: AnswerFormat) -> &'static [&'static str] {
    match format {
        AnswerFormat::OpenAi => &["max_tokens", "max_completion_tokens", "max_output_tokens"],
        AnswerFormat::Anthropic => &["max_tokens"],
        AnswerFormat::Gemini => &[
            "generationconfig.maxoutputtokens",
            "generationconfig.max_output_tokens",
            "generation_config.maxoutputtokens",
            "generation_config.max_output_tokens",
        ],
        AnswerFormat::Ollama => &["options.num_predict"],
        AnswerFormat::Bedrock => &["max_tokens", "inferenceconfig.maxtokens"],
    }
}

/// Members that name the greatest output to some servers of a format, and nothing to others. They
/// never lower a reserve.
const fn raised_maxima(format: AnswerFormat) -> &'static [&'static str] {
    match format {
        // llama.cpp takes it before `max_tokens`.
        AnswerFormat::OpenAi => &["n_predict"],
        _ => &[],
    }
}

/// The members of a request to a model server that are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageMembers {
    #[default]
    None,
    /// With the maxima of this format.
    Of(AnswerFormat),
    /// With the maxima of all formats: the server's words are not known.
    OfAny,
}

/// Members that name the number of answers.
const ANSWERS: [&str; 7] = [
    "n",
    "best_of",
    "candidatecount",
    "generationconfig.candidatecount",
    "generationconfig.candidate_count",
    "generation_config.candidatecount",
    "generation_config.candidate_count",
];

/// The members that a route needs. `None` where it needs no body.
#[derive(Clone, Debug)]
pub struct RequestTable {
    /// Members of keys and costs.
    pub members: Vec<BodyMember>,
    /// Whether the members that name a maximum of output are wanted, `model` and `stream` too.
    pub reads_usage: bool,
    pub(super) paths: PathTable<RequestRole>,
    /// Where the values of each member come from, by its index.
    pub(super) sources: Vec<ValueSource>,
    /// The place of `model`.
    pub(super) model: Option<usize>,
    /// The place of `method`, if it tells whether a tool is called.
    pub(super) method: Option<usize>,
    /// How many texts are kept.
    pub(super) places: usize,
}

/// What a member of a body is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestRole {
    pub(super) purpose: Purpose,
    /// The place of its text.
    pub(super) place: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Only its text counts.
    #[default]
    Text,
    /// The body itself, or an element if the body is an array.
    Top,
    Maximum,
    RaisedMaximum,
    Answers,
    Stream,
    StreamOptions,
    IncludeUsage,
    /// `messages` of chat, or `prompt` of completions.
    Prompt,
    /// Its text is a document of GraphQL.
    Query,
}

/// Where the value of a member comes from. Numbers are the places of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueSource {
    Text(usize),
    /// The place of a tool's name.
    Tool(usize),
    /// The place of `operationName`.
    Operation(usize),
    /// The member is one too many.
    Nowhere,
}

impl Default for RequestTable {
    fn default() -> RequestTable {
        RequestTable::new(Vec::new(), UsageMembers::None)
    }
}

impl RequestTable {
    /// Prepares to look for these members.
    pub fn new(members: Vec<BodyMember>, usage: UsageMembers) -> RequestTable {
        let mut draft = TableDraft::default();
        draft.purpose("", Purpose::Top);
        let model = match usage {
            UsageMembers::None => None,
            UsageMembers::Of(format) => Some(draft.add_usage(&[format])),
            UsageMembers::OfAny => Some(draft.add_usage(&AnswerFormat::ALL)),
        };
        let sources = members.iter().map(|member| draft.add(member)).collect();
        let method = members.contains(&BodyMember::McpTool);
        let method = method.then(|| draft.text("method"));
        // Few paths of few names always fit.
        let paths = PathTable::new(&draft.path_rows(), NameCase::Folded, Tops::Elements);
        RequestTable {
            members,
            reads_usage: usage != UsageMembers::None,
            paths: paths.unwrap_or_else(|| PathTable::empty(NameCase::Folded)),
            sources,
            model,
            method,
            places: draft.places,
        }
    }

    /// Where the values of [`BodyMembers`](super::BodyMembers) have this member.
    pub fn index_of(&self, member: &BodyMember) -> Option<usize> {
        self.members.iter().position(|own| own == member)
    }
}

/// The rows of a table that is made. Their paths are in lower case: names match in either case,
/// because some servers read them so.
#[derive(Default)]
struct TableDraft {
    rows: Vec<DraftRow>,
    places: usize,
    configured: usize,
}

struct DraftRow {
    path: String,
    role: RequestRole,
}

impl TableDraft {
    fn role(&mut self, path: &str) -> &mut RequestRole {
        let known = self.rows.iter().position(|row| row.path == path);
        let index = known.unwrap_or_else(|| {
            self.rows.push(DraftRow {
                path: path.to_owned(),
                role: RequestRole::default(),
            });
            self.rows.len() - 1
        });
        &mut self.rows[index].role
    }

    fn purpose(&mut self, path: &str, purpose: Purpose) {
        self.role(path).purpose = purpose;
    }

    /// Keeps the text of a member, and returns its place.
    fn text(&mut self, path: &str) -> usize {
        let next = self.places;
        let place = *self.role(path).place.get_or_insert(next);
        self.places = next.max(place + 1);
        place
    }

    /// Returns the place of `model`.
    fn add_usage(&mut self, formats: &[AnswerFormat]) -> usize {
        for path in formats.iter().flat_map(|format| maxima(*format)) {
            self.purpose(path, Purpose::Maximum);
        }
        for path in formats.iter().flat_map(|format| raised_maxima(*format)) {
            self.purpose(path, Purpose::RaisedMaximum);
        }
        for path in ANSWERS {
            self.purpose(path, Purpose::Answers);
        }
        self.purpose("stream", Purpose::Stream);
        self.purpose("stream_options", Purpose::StreamOptions);
        self.purpose("stream_options.include_usage", Purpose::IncludeUsage);
        self.purpose("messages", Purpose::Prompt);
        self.purpose("prompt", Purpose::Prompt);
        self.text("model")
    }

    fn add(&mut self, member: &BodyMember) -> ValueSource {
        match member {
            BodyMember::Path(path) => self.add_path(&path.as_str().to_ascii_lowercase()),
            BodyMember::McpMethod => ValueSource::Text(self.text("method")),
            BodyMember::McpTool => ValueSource::Tool(self.text("params.name")),
            BodyMember::GraphqlOperation => {
                self.purpose("query", Purpose::Query);
                ValueSource::Operation(self.text("operationname"))
            }
        }
    }

    fn add_path(&mut self, path: &str) -> ValueSource {
        let is_known = self.rows.iter().any(|row| row.path == path);
        if !is_known && self.configured == MAX_PATHS {
            return ValueSource::Nowhere;
        }
        self.configured += usize::from(!is_known);
        ValueSource::Text(self.text(path))
    }

    fn path_rows(&self) -> Vec<PathRow<RequestRole>> {
        let names = |path: &str| {
            let names = path.split('.').filter(|name| !name.is_empty());
            names.map(|name| PathStep::Member(name.into())).collect()
        };
        let rows = self.rows.iter().map(|row| PathRow {
            steps: names(&row.path),
            role: row.role,
        });
        rows.collect()
    }
}
