//! Texts that are not templates, with the reason.

use std::fmt;

use super::words::WORDS;
use super::{MAX_TEXT, MAX_VARIABLES};

/// A text that is not a template. The configuration's author is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    Open,
    Close,
    Unknown(String),
    Name(String),
    Control,
    TooLong,
    TooMany,
}

impl TemplateError {
    /// The known variable that looks most like an unknown one.
    fn near(unknown: &str) -> Option<&'static str> {
        let plain = |text: &str| text.to_ascii_lowercase().replace(['-', ' ', '.', '$'], "_");
        let distance = |word: &str| strsim::damerau_levenshtein(word, &plain(unknown));
        let near = WORDS.iter().map(|(word, _)| (distance(word), *word));
        near.min()
            .filter(|(far, _)| *far <= 2)
            .map(|(_, word)| word)
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("a `{` is not closed; write `{{` for a brace"),
            Self::Close => f.write_str("a `}` closes nothing; write `}}` for a brace"),
            Self::Unknown(name) => {
                write!(f, "there is no `{{{name}}}`")?;
                match Self::near(name) {
                    Some(near) => write!(f, "; did you mean `{{{near}}}`?"),
                    None => f.write_str(
                        "; docs/routes.md lists them: client_ip, peer_ip, host, path, rest, uri, \
                         query, method, route, request_id, scheme, header:NAME, query:NAME, \
                         cookie:NAME, path:PARAM and others",
                    ),
                }
            }
            Self::Name(name) => write!(f, "`{name}` is no name that a request can have"),
            Self::Control => f.write_str("a header cannot hold control characters"),
            Self::TooLong => write!(f, "longer than {MAX_TEXT} bytes"),
            Self::TooMany => write!(f, "more than {MAX_VARIABLES} variables"),
        }
    }
}

impl std::error::Error for TemplateError {}
