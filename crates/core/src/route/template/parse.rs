//! Templates as people write them.

use std::fmt;

use http::HeaderName;

use super::{MAX_TEXT, MAX_VARIABLES, Piece, Template, Variable};

/// Why a text is no template. The configuration's author is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    /// A `{` without its `}`.
    Open,
    /// A `}` without its `{`.
    Close,
    /// No variable is called so.
    Unknown(String),
    /// What follows the colon is no name of a header, parameter or cookie.
    Name(String),
    /// A character that no value of a header has.
    Control,
    /// More text than [`MAX_TEXT`].
    TooLong,
    /// More variables than [`MAX_VARIABLES`].
    TooMany,
}

/// Variables that are one word.
const WORDS: [(&str, Variable); 12] = [
    ("client_ip", Variable::ClientIp),
    ("peer_ip", Variable::PeerIp),
    ("host", Variable::Host),
    ("path", Variable::Path),
    ("rest", Variable::Rest),
    ("uri", Variable::Uri),
    ("query", Variable::Query),
    ("method", Variable::Method),
    ("route", Variable::Route),
    ("request_id", Variable::RequestId),
    ("scheme", Variable::Scheme),
    ("tls_subject", Variable::TlsSubject),
];

impl Template {
    /// Reads `text {variable} text`; `{{` and `}}` are braces.
    pub fn parse(text: &str) -> Result<Template, TemplateError> {
        if text.len() > MAX_TEXT {
            return Err(TemplateError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(TemplateError::Control);
        }
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut left = text;
        while let Some(at) = left.find(['{', '}']) {
            plain.push_str(&left[..at]);
            let brace = &left[at..=at];
            let rest = &left[at + 1..];
            if let Some(rest) = rest.strip_prefix(brace) {
                plain.push_str(brace);
                left = rest;
                continue;
            }
            if brace == "}" {
                return Err(TemplateError::Close);
            }
            let (name, rest) = rest.split_once('}').ok_or(TemplateError::Open)?;
            push_text(&mut pieces, &mut plain);
            pieces.push(Piece::Variable(variable(name)?));
            left = rest;
        }
        plain.push_str(left);
        push_text(&mut pieces, &mut plain);
        let template = Template { pieces };
        if template.variables().count() > MAX_VARIABLES {
            return Err(TemplateError::TooMany);
        }
        Ok(template)
    }
}

fn push_text(pieces: &mut Vec<Piece>, plain: &mut String) {
    if !plain.is_empty() {
        pieces.push(Piece::Text(std::mem::take(plain).into()));
    }
}

fn variable(name: &str) -> Result<Variable, TemplateError> {
    if let Some((_, variable)) = WORDS.iter().find(|(word, _)| *word == name) {
        return Ok(variable.clone());
    }
    let Some((kind, inner)) = name.split_once(':') else {
        return Err(TemplateError::Unknown(name.to_owned()));
    };
    let is_token = !inner.is_empty()
        && inner
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
    match kind {
        "header" => match HeaderName::from_bytes(inner.as_bytes()) {
            Ok(header) => Ok(Variable::Header(header)),
            Err(_) => Err(TemplateError::Name(inner.to_owned())),
        },
        "query" | "cookie" | "path" if !is_token => Err(TemplateError::Name(inner.to_owned())),
        "query" => Ok(Variable::QueryValue(inner.into())),
        "cookie" => Ok(Variable::Cookie(inner.into())),
        "path" => Ok(Variable::PathParam(inner.into())),
        _ => Err(TemplateError::Unknown(name.to_owned())),
    }
}

impl TemplateError {
    /// The word for a variable that the unknown one may have meant.
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
                        "; there are client_ip, peer_ip, host, path, rest, uri, query, method, \
                         route, request_id, scheme, tls_subject, header:NAME, query:NAME, \
                         cookie:NAME and path:PARAM",
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Template::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn texts_and_variables_follow_each_other() {
        let pieces = |text| Template::parse(text).unwrap().pieces;
        let text = |text: &str| Piece::Text(text.into());
        assert_eq!(pieces(""), []);
        assert_eq!(pieces("a"), [text("a")]);
        assert_eq!(pieces("{host}"), [Piece::Variable(Variable::Host)]);
        assert_eq!(
            pieces("a{path:id}{header:X-A}b"),
            [
                text("a"),
                Piece::Variable(Variable::PathParam("id".into())),
                Piece::Variable(Variable::Header(HeaderName::from_static("x-a"))),
                text("b"),
            ]
        );
        assert_eq!(pieces("{{host}} {{}}"), [text("{host} {}")]);
    }

    #[test]
    fn what_cannot_be_filled_in_says_why() {
        assert!(refused("{host").starts_with("a `{` is not closed"));
        assert!(refused("host}").starts_with("a `}` closes nothing"));
        assert_eq!(
            refused("{client-ip}"),
            "there is no `{client-ip}`; did you mean `{client_ip}`?"
        );
        assert!(refused("{}").contains("there are client_ip"));
        assert!(refused("{env:HOME}").contains("there are client_ip"));
        assert!(refused("{header:a b}").starts_with("`a b` is no name"));
        assert!(refused("{cookie:}").starts_with("`` is no name"));
        assert!(refused("a\r\nb").starts_with("a header cannot hold"));
        assert!(refused(&"a".repeat(MAX_TEXT + 1)).starts_with("longer"));
        assert!(refused(&"{host}".repeat(MAX_VARIABLES + 1)).starts_with("more"));
    }
}
