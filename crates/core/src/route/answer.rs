//! The target of a route: an upstream, a fixed answer, or a redirect.

use std::fmt;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::host_of;
use super::rewrite::own_value;
use super::template::{
    BodyTemplate, Template, TemplateError, TemplateFacts, TemplatePiece, TooLong, Variable,
};

#[derive(Clone, Debug)]
pub enum Target {
    /// An index into the configuration's upstreams.
    Upstream(usize),
    Respond(Box<Respond>),
    Redirect(Box<Redirect>),
}

impl Target {
    /// Copies the target for another worker, without shared memory.
    #[must_use]
    pub fn deep_copy(&self) -> Target {
        let Target::Respond(respond) = self else {
            return self.clone();
        };
        Target::Respond(Box::new(Respond {
            status: respond.status,
            body: match &respond.body {
                RespondBody::Fixed(bytes) => RespondBody::Fixed(Bytes::copy_from_slice(bytes)),
                RespondBody::Made(template) => RespondBody::Made(template.clone()),
            },
            content_type: respond.content_type.as_ref().map(own_value),
        }))
    }
}

#[derive(Clone, Debug)]
pub struct Respond {
    /// 200 or above. [`Respond::CLOSED`] is no response: the connection is closed.
    pub status: StatusCode,
    pub body: RespondBody,
    pub content_type: Option<HeaderValue>,
}

#[derive(Clone, Debug)]
pub enum RespondBody {
    Fixed(Bytes),
    Made(BodyTemplate),
}

impl RespondBody {
    /// Escapes the values of variables as the media type of the body wants.
    #[must_use]
    pub fn of_type(self, media_type: &HeaderValue) -> RespondBody {
        match self {
            RespondBody::Made(made) => RespondBody::Made(made.of_type(media_type)),
            fixed @ RespondBody::Fixed(_) => fixed,
        }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, RespondBody::Fixed(bytes) if bytes.is_empty())
    }
}

impl Respond {
    /// The status of logs and metrics for a connection that is closed without a response, as in
    /// nginx.
    pub const CLOSED: u16 = 444;

    pub fn closes(&self) -> bool {
        self.status.as_u16() == Respond::CLOSED
    }
}

#[derive(Clone, Debug)]
pub struct Redirect {
    /// 301, 302, 303, 307 or 308.
    pub status: StatusCode,
    to: Template,
}

/// A text that is not a location. The configuration's author is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedirectError {
    Template(TemplateError),
    Form,
    Host,
    Character(char),
}

/// A request cannot be redirected. The client is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectFailure {
    TooLong,
    /// The location needs the request's host, and the request names none.
    NoHost,
}

impl Redirect {
    /// Reads a location: a path, or a URL whose host the client cannot choose.
    pub fn new(to: &str, status: StatusCode) -> Result<Redirect, RedirectError> {
        let to = Template::parse(to).map_err(RedirectError::Template)?;
        let texts = to.pieces().iter().filter_map(|piece| match piece {
            TemplatePiece::Text(text) => Some(text),
            TemplatePiece::Variable(_) => None,
        });
        let is_odd = |c: &char| !c.is_ascii_graphic() || "\"<>\\^`{|}".contains(*c);
        if let Some(odd) = texts.flat_map(|text| text.chars()).find(is_odd) {
            return Err(RedirectError::Character(odd));
        }
        check_front(to.pieces())?;
        Ok(Redirect { status, to })
    }

    pub fn to(&self) -> &Template {
        &self.to
    }

    pub fn location(&self, facts: &TemplateFacts<'_>) -> Result<HeaderValue, RedirectFailure> {
        let place = self
            .to
            .fill_url(facts)
            .map_err(|TooLong| RedirectFailure::TooLong)?;
        if facts.host.is_empty() && place.contains("://") {
            return Err(RedirectFailure::NoHost);
        }
        HeaderValue::try_from(place).map_err(|_| RedirectFailure::TooLong)
    }
}

/// `https://{host}{port_part}`: the scheme and the host before a path in `Location`.
#[derive(Clone, Debug)]
pub struct LocationBase {
    text: Template,
}

impl LocationBase {
    /// The client must not choose the host, as with [`Redirect::new`].
    pub fn parse(text: &str) -> Result<LocationBase, String> {
        let whole = Redirect::new(&format!("{text}{{uri}}"), StatusCode::FOUND);
        match whole {
            Ok(_) if text.contains("://") && !text.ends_with('/') => {}
            Ok(_) | Err(RedirectError::Form) => {
                return Err("write a scheme and a host, such as `https://{host}`".to_owned());
            }
            Err(error) => return Err(error.to_string()),
        }
        let text = Template::parse(text).map_err(|error| error.to_string())?;
        Ok(LocationBase { text })
    }

    pub fn text(&self) -> &Template {
        &self.text
    }

    /// `None` if it needs the request's host, and the request names none.
    pub fn fill(&self, facts: &TemplateFacts<'_>) -> Result<Option<String>, TooLong> {
        let is_host = |piece: &TemplatePiece| *piece == TemplatePiece::Variable(Variable::Host);
        if facts.host.is_empty() && self.text.pieces().iter().any(is_host) {
            return Ok(None);
        }
        self.text.fill_url(facts).map(Some)
    }
}

/// Checks that a location begins with a path, or with a scheme and a host. The client may only
/// choose the host that it sent in its own request.
fn check_front(pieces: &[TemplatePiece]) -> Result<(), RedirectError> {
    let (authority, rest) = match pieces {
        [TemplatePiece::Variable(Variable::Path | Variable::Uri), ..] => return Ok(()),
        [TemplatePiece::Text(text), rest @ ..] => {
            let schemes = ["https://", "http://"];
            match schemes.iter().find_map(|scheme| text.strip_prefix(scheme)) {
                Some(authority) => (authority, rest),
                None if text.starts_with('/') && !text.starts_with("//") => return Ok(()),
                None => return Err(RedirectError::Form),
            }
        }
        [
            TemplatePiece::Variable(Variable::Scheme),
            TemplatePiece::Text(text),
            rest @ ..,
        ] => {
            let authority = text.strip_prefix("://").ok_or(RedirectError::Form)?;
            (authority, rest)
        }
        _ => return Err(RedirectError::Form),
    };
    check_host(authority, rest)
}

fn check_host(first: &str, rest: &[TemplatePiece]) -> Result<(), RedirectError> {
    let mut host = String::new();
    let first = TemplatePiece::Text(first.into());
    for piece in std::iter::once(&first).chain(rest) {
        match piece {
            TemplatePiece::Text(text) => {
                let end = text.find(['/', '?', '#']).unwrap_or(text.len());
                host.push_str(&text[..end]);
                if end < text.len() {
                    break;
                }
            }
            // Any valid name will do.
            TemplatePiece::Variable(Variable::Host) => host.push('h'),
            TemplatePiece::Variable(Variable::PortPart) => host.push_str(":1"),
            TemplatePiece::Variable(Variable::Path | Variable::Uri) => break,
            TemplatePiece::Variable(_) => return Err(RedirectError::Host),
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
            "{scheme}://{host}{port_part}/a",
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
            "https://{host}{port_part}.b.example/",
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
        for base in ["https://b.example", "{scheme}://{host}{port_part}"] {
            assert!(LocationBase::parse(base).is_ok(), "{base}");
        }
        for odd in [
            "",
            "/a",
            "b.example",
            "{uri}",
            "https://b.example/",
            "https://{header:x-a}",
        ] {
            assert!(LocationBase::parse(odd).is_err(), "{odd}");
        }
        assert_eq!(refused("/a b"), Some(RedirectError::Character(' ')));
        assert_eq!(refused("/\\b"), Some(RedirectError::Character('\\')));
    }
}
