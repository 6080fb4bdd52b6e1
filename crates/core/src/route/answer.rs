//! Where a route's requests go, or what they are answered instead.

use std::fmt;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::host_of;
use super::template::{Piece, Template, TemplateError, TemplateFacts, TooLong, Variable};

/// Where a route's requests go.
#[derive(Clone, Debug)]
pub enum Target {
    /// To an upstream: an index into the configuration's.
    Upstream(usize),
    /// Nowhere: this is the answer.
    Respond(Box<Respond>),
    /// Elsewhere: the client is told.
    Redirect(Box<Redirect>),
}

impl Target {
    /// A copy that shares nothing.
    #[must_use]
    pub fn own(&self) -> Target {
        let Target::Respond(respond) = self else {
            return self.clone();
        };
        let own = |value: &HeaderValue| HeaderValue::from_bytes(value.as_bytes()).ok();
        Target::Respond(Box::new(Respond {
            status: respond.status,
            body: Bytes::copy_from_slice(&respond.body),
            content_type: respond.content_type.as_ref().and_then(own),
        }))
    }
}

/// An answer that is always the same.
#[derive(Clone, Debug)]
pub struct Respond {
    /// Its status, 200 or above.
    pub status: StatusCode,
    /// Its body, as it stands in the configuration.
    pub body: Bytes,
    /// What the body is; nothing where there is none.
    pub content_type: Option<HeaderValue>,
}

/// An answer that sends the client elsewhere.
#[derive(Clone, Debug)]
pub struct Redirect {
    /// Its status: 301, 302, 303, 307 or 308.
    pub status: StatusCode,
    to: Template,
}

/// Why a text is no place to send clients to. The configuration's author is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedirectError {
    /// Its variables.
    Template(TemplateError),
    /// It is neither a path nor a URL.
    Form,
    /// A client could choose the host.
    Host,
    /// A character that no URL has.
    Character(char),
}

/// Why a request cannot be sent elsewhere. The client is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoWay {
    /// The place would be longer than any header's value here.
    TooLong,
    /// It names no host, and the place is made of it.
    NoHost,
}

impl Redirect {
    /// Reads a place: a path, or a URL whose host is not the client's to choose.
    pub fn new(to: &str, status: StatusCode) -> Result<Redirect, RedirectError> {
        let to = Template::parse(to).map_err(RedirectError::Template)?;
        let texts = to.pieces().iter().filter_map(|piece| match piece {
            Piece::Text(text) => Some(text),
            Piece::Variable(_) => None,
        });
        let is_odd = |c: &char| !c.is_ascii_graphic() || "\"<>\\^`{|}".contains(*c);
        if let Some(odd) = texts.flat_map(|text| text.chars()).find(is_odd) {
            return Err(RedirectError::Character(odd));
        }
        check_front(to.pieces())?;
        Ok(Redirect { status, to })
    }

    /// Its template.
    pub fn to(&self) -> &Template {
        &self.to
    }

    /// Where a request is sent.
    pub fn location(&self, facts: &TemplateFacts<'_>) -> Result<HeaderValue, NoWay> {
        let place = self.to.fill_url(facts).map_err(|TooLong| NoWay::TooLong)?;
        if facts.host.is_empty() && place.contains("://") {
            return Err(NoWay::NoHost);
        }
        HeaderValue::try_from(place).map_err(|_| NoWay::TooLong)
    }
}

/// A place begins with a path, or with a scheme and a host of which nothing but the host that was
/// asked for comes from the client.
fn check_front(pieces: &[Piece]) -> Result<(), RedirectError> {
    let (authority, rest) = match pieces {
        [Piece::Variable(Variable::Path | Variable::Uri), ..] => return Ok(()),
        [Piece::Text(text), rest @ ..] => {
            let schemes = ["https://", "http://"];
            match schemes.iter().find_map(|scheme| text.strip_prefix(scheme)) {
                Some(authority) => (authority, rest),
                None if text.starts_with('/') && !text.starts_with("//") => return Ok(()),
                None => return Err(RedirectError::Form),
            }
        }
        [
            Piece::Variable(Variable::Scheme),
            Piece::Text(text),
            rest @ ..,
        ] => {
            let authority = text.strip_prefix("://").ok_or(RedirectError::Form)?;
            (authority, rest)
        }
        _ => return Err(RedirectError::Form),
    };
    check_host(authority, rest)
}

fn check_host(first: &str, rest: &[Piece]) -> Result<(), RedirectError> {
    let mut host = String::new();
    let first = Piece::Text(first.into());
    for piece in std::iter::once(&first).chain(rest) {
        match piece {
            Piece::Text(text) => {
                let end = text.find(['/', '?', '#']).unwrap_or(text.len());
                host.push_str(&text[..end]);
                if end < text.len() {
                    break;
                }
            }
            // A name as good as any other.
            Piece::Variable(Variable::Host) => host.push('h'),
            Piece::Variable(Variable::Path | Variable::Uri) => break,
            Piece::Variable(_) => return Err(RedirectError::Host),
        }
    }
    host_of(&host).map_err(|_| RedirectError::Form)?;
    Ok(())
}

impl fmt::Display for RedirectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Template(error) => error.fmt(f),
            Self::Form => f.write_str(
                "neither a path nor a URL; write for example `/new/{rest}` or \
                 `https://{host}{uri}`",
            ),
            Self::Host => f.write_str(
                "clients could choose the host; of what they send only `{host}` may stand in it, \
                 and a path begins with `/`, `{path}` or `{uri}`",
            ),
            Self::Character(c) => write!(f, "a URL has no `{}`", c.escape_default()),
        }
    }
}

impl std::error::Error for RedirectError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(to: &str) -> Option<RedirectError> {
        Redirect::new(to, StatusCode::FOUND).err()
    }

    #[test]
    fn a_client_never_chooses_the_host() {
        for fine in [
            "/",
            "/new/{rest}",
            "{uri}",
            "{path}?x={query:x}",
            "https://b.example",
            "https://b.example/{query:x}",
            "https://b.example:8443{uri}",
            "https://{host}{uri}",
            "https://{host}:8443{path}",
            "https://www.{host}/",
            "{scheme}://{host}/a",
            "https://b.example?{query}",
        ] {
            assert_eq!(refused(fine), None, "{fine}");
        }
        for open in [
            "https://b.example{rest}",
            "https://b.example{query:x}/",
            "https://{header:x-host}/",
            "https://{cookie:a}.b.example/",
            "https://{host}{header:x}/",
        ] {
            assert_eq!(refused(open), Some(RedirectError::Host), "{open}");
        }
        for odd in [
            "",
            "//b.example",
            "b.example",
            "ftp://b.example",
            "{header:location}",
            "{rest}",
            "https://",
            "https://{path}",
            "https://user@b.example/",
            "javascript:alert(1)",
        ] {
            assert_eq!(refused(odd), Some(RedirectError::Form), "{odd}");
        }
        assert_eq!(refused("/a b"), Some(RedirectError::Character(' ')));
        assert_eq!(refused("/\\b"), Some(RedirectError::Character('\\')));
    }
}
