//! The formats of answers, each as a table of paths.
//!
//! Numbers count only at these paths, from the top of an answer or of one of its events. So neither
//! a model's text, nor the input of a tool, nor `metadata` can change what is charged.

mod anthropic;
mod bedrock;
mod gemini;
mod json;
mod ollama;
mod openai;

use memchr::memmem::Finder;

use super::paths::{NameCase, PathRow, PathTable, Tops, steps};
pub use bedrock::header_tokens;
pub use json::JsonPaths;

/// Whose words an answer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnswerFormat {
    OpenAi,
    Anthropic,
    Gemini,
    Ollama,
    Bedrock,
}

impl AnswerFormat {
    pub const ALL: [AnswerFormat; 5] = [
        AnswerFormat::OpenAi,
        AnswerFormat::Anthropic,
        AnswerFormat::Gemini,
        AnswerFormat::Ollama,
        AnswerFormat::Bedrock,
    ];

    /// The word in the configuration.
    pub const fn word(self) -> &'static str {
        match self {
            AnswerFormat::OpenAi => "openai",
            AnswerFormat::Anthropic => "anthropic",
            AnswerFormat::Gemini => "gemini",
            AnswerFormat::Ollama => "ollama",
            AnswerFormat::Bedrock => "bedrock",
        }
    }

    /// Whether a call with this path only counts the tokens of a text, and asks no model.
    pub fn only_counts(self, path: &str) -> bool {
        match self {
            AnswerFormat::OpenAi => path.ends_with("/responses/input_tokens"),
            AnswerFormat::Anthropic => path.ends_with("/messages/count_tokens"),
            AnswerFormat::Gemini => {
                let model = gemini::path_model(path).filter(|model| !model.contains(':'));
                model.is_some() && path.ends_with(":countTokens")
            }
            AnswerFormat::Ollama => false,
            AnswerFormat::Bedrock => path.ends_with("/count-tokens"),
        }
    }

    /// The model that the path of a request names.
    pub fn path_model(self, path: &str) -> Option<&str> {
        match self {
            AnswerFormat::Gemini => gemini::path_model(path),
            AnswerFormat::Bedrock => bedrock::path_model(path),
            AnswerFormat::OpenAi | AnswerFormat::Anthropic | AnswerFormat::Ollama => None,
        }
    }
}

/// What a number of an answer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenField {
    Input,
    /// Input that tools add.
    ToolInput,
    /// Input from a cache.
    Cached,
    /// Input into a cache.
    CacheWrite,
    Output,
    /// Output of a model's thoughts.
    Thoughts,
    Total,
}

impl TokenField {
    /// How many places there are.
    pub(super) const PLACES: usize = 6;

    /// The place of the count. No format has both tool input and writes to a cache, so these share
    /// one.
    pub(super) const fn place(self) -> usize {
        match self {
            TokenField::Input => 0,
            TokenField::Cached => 1,
            TokenField::ToolInput | TokenField::CacheWrite => 2,
            TokenField::Output => 3,
            TokenField::Thoughts => 4,
            TokenField::Total => 5,
        }
    }
}

/// What a value at a path says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerRole {
    Count(TokenField),
    /// A count whose 0 says nothing.
    PositiveCount(TokenField),
    Model,
    /// Text that the model made.
    Text,
    /// A JSON text of its own, in Base64, whose paths are the same.
    Nested,
    /// An error, unless it is null.
    Error,
    /// The word `error` is an error.
    ErrorWord,
    /// An object here, or `false`, says that the counts of this event are not the last ones ..
    Unfinished,
    /// .. unless a string is here.
    Finished,
}

/// The paths of one format, ready to be looked for.
#[derive(Clone, Debug)]
pub struct AnswerTable {
    pub(super) paths: PathTable<AnswerRole>,
    /// Where events with counts are found. `None` where no word tells them.
    pub(super) needles: Option<Needles>,
    pub(super) has_tool_input: bool,
    /// The counts of caches are not in the input.
    pub(super) is_cache_apart: bool,
    /// A count of 0 is left out.
    pub(super) omits_zero_output: bool,
    /// Output may be in the total alone.
    pub(super) total_has_more_output: bool,
    pub(super) has_model: bool,
    /// Texts hold texts.
    pub(super) has_nested: bool,
    /// An event with counts says whether they are the last ones.
    pub(super) knows_end: bool,
    /// A whole stream ends with its last counts.
    pub(super) ends_with_counts: bool,
    /// The text of the answer is counted too.
    pub(super) counts_text: bool,
}

/// The words that tell the events that matter.
#[derive(Clone, Debug)]
pub(super) struct Needles {
    /// Every event with a count has one of these, if its names are not escaped.
    pub(super) counts: Vec<Finder<'static>>,
    /// Letters of names are escaped as `\u0075`.
    pub(super) escape: Finder<'static>,
    /// Every error has this word, as a name or as a value.
    pub(super) error: Finder<'static>,
}

impl Needles {
    fn new(counts: Vec<Finder<'static>>) -> Needles {
        Needles {
            counts,
            escape: Finder::new("\\u00"),
            error: Finder::new("\"error\""),
        }
    }
}

/// Whether the bytes of an answer's text are counted. They are needed where usage that the answer
/// does not tell is observed, and cost more time: each event is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextCount {
    Counted,
    Ignored,
}

/// One row of a format.
struct AnswerRow {
    path: &'static str,
    role: AnswerRole,
}

const fn row(path: &'static str, role: AnswerRole) -> AnswerRow {
    AnswerRow { path, role }
}

const fn count(path: &'static str, field: TokenField) -> AnswerRow {
    row(path, AnswerRole::Count(field))
}

/// A format of ours.
struct AnswerLayout {
    rows: &'static [AnswerRow],
    /// The end of the names of all counts, with the quote behind it.
    needle: &'static str,
    tops: Tops,
    is_cache_apart: bool,
    omits_zero_output: bool,
    total_has_more_output: bool,
    ends_with_counts: bool,
}

impl AnswerLayout {
    fn for_format(format: AnswerFormat) -> &'static AnswerLayout {
        match format {
            AnswerFormat::OpenAi => &openai::LAYOUT,
            AnswerFormat::Anthropic => &anthropic::LAYOUT,
            AnswerFormat::Gemini => &gemini::LAYOUT,
            AnswerFormat::Ollama => &ollama::LAYOUT,
            AnswerFormat::Bedrock => &bedrock::LAYOUT,
        }
    }
}

/// The paths of a format, and their roles.
pub(super) fn rows(format: AnswerFormat) -> Vec<PathRow<AnswerRole>> {
    let rows = AnswerLayout::for_format(format).rows.iter();
    let rows = rows.map(|row| PathRow {
        steps: steps(row.path),
        role: row.role,
    });
    rows.collect()
}

impl AnswerTable {
    pub fn new(format: AnswerFormat, text: TextCount) -> AnswerTable {
        let layout = AnswerLayout::for_format(format);
        let counts_text = text == TextCount::Counted;
        let mut rows = rows(format);
        rows.retain(|row| counts_text || row.role != AnswerRole::Text);
        let has_model = rows.iter().any(|row| row.role == AnswerRole::Model);
        let has_nested = rows.iter().any(|row| row.role == AnswerRole::Nested);
        let tool_input = AnswerRole::Count(TokenField::ToolInput);
        let has_tool_input = rows.iter().any(|row| row.role == tool_input);
        let paths = PathTable::new(&rows, NameCase::Exact, layout.tops);
        AnswerTable {
            paths: paths.unwrap_or_else(|| PathTable::empty(NameCase::Exact)),
            needles: Some(Needles::new(vec![Finder::new(layout.needle)])),
            has_tool_input,
            is_cache_apart: layout.is_cache_apart,
            omits_zero_output: layout.omits_zero_output,
            total_has_more_output: layout.total_has_more_output,
            has_model,
            has_nested,
            knows_end: true,
            ends_with_counts: layout.ends_with_counts,
            counts_text,
        }
    }
}
