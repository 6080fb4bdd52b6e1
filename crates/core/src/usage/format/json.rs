//! Any JSON, by paths that the operator configures.

use memchr::memmem::Finder;

use super::super::paths::{MemberPath, NameCase, PathRow, PathTable, Tops};
use super::{AnswerRole, AnswerTable, Needles, TextCount, TokenField};

/// Where the answers of a server have their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JsonPaths {
    pub input: Option<MemberPath>,
    pub output: Option<MemberPath>,
    pub total: Option<MemberPath>,
    pub model: Option<MemberPath>,
    /// The text that the model made.
    pub text: Option<MemberPath>,
}

impl AnswerTable {
    /// The table of configured paths. Of two equal paths the later one counts.
    pub fn of_paths(paths: &JsonPaths, text: TextCount) -> AnswerTable {
        let wanted = text == TextCount::Counted;
        let roles = [
            (&paths.input, AnswerRole::Count(TokenField::Input)),
            (&paths.output, AnswerRole::Count(TokenField::Output)),
            (&paths.total, AnswerRole::Count(TokenField::Total)),
            (&paths.model, AnswerRole::Model),
            (&paths.text, AnswerRole::Text),
        ];
        let rows = roles.into_iter().filter_map(|(path, role)| {
            let path = path.as_ref()?;
            let steps = path.steps();
            (wanted || role != AnswerRole::Text).then_some(PathRow { steps, role })
        });
        let rows: Vec<PathRow<AnswerRole>> = rows.collect();
        let counts = [&paths.input, &paths.output, &paths.total];
        let counts = counts.into_iter().flatten().map(MemberPath::last);
        let needles = counts.map(needle).collect::<Option<Vec<_>>>();
        let table = PathTable::new(&rows, NameCase::Exact, Tops::One);
        AnswerTable {
            paths: table.unwrap_or_else(|| PathTable::empty(NameCase::Exact)),
            needles: needles.map(Needles::new),
            has_tool_input: false,
            is_cache_apart: false,
            omits_zero_output: false,
            total_has_more_output: false,
            has_model: paths.model.is_some(),
            has_nested: false,
            knows_end: false,
            ends_with_counts: false,
            counts_text: wanted,
        }
    }
}

/// The end of a name as every server writes it, unless it escapes letters as `\u00XX`.
fn needle(name: &str) -> Option<Finder<'static>> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let text = format!("{name}\"");
    name.bytes()
        .all(is_plain)
        .then(|| Finder::new(text.as_bytes()).into_owned())
}
