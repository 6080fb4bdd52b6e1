//! What a route rewrites: headers of requests and responses, and the front of a path.
//!
//! Header changes must never touch message framing or headers of one connection. Otherwise two
//! readers could disagree about the end of a message.
//!
//! The limiter has counted the canonical path. An upstream must read the rest of a stripped path as
//! the rest of that path, and as nothing else.

use std::borrow::Cow;

use http::StatusCode;
use http::header::{self as h, HeaderName, HeaderValue};

use super::template::{Template, TemplateError};
use crate::path::{CanonicalPath, Case, fold};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderChange {
    pub name: HeaderName,
    pub action: Action,
    /// Whether it changes only successful responses.
    pub only_success: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Replaces all values; removes the header if the new value is empty.
    Set(HeaderText),
    Add(HeaderText),
    Remove,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderText {
    Fixed(HeaderValue),
    Made(Template),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Up,
    Down,
    /// Behind the body of a response.
    Trailer,
}

/// Whether `headers_success` and `expires` change a response of this status, as in nginx.
pub fn is_success(status: StatusCode) -> bool {
    const STATUSES: [u16; 10] = [200, 201, 204, 206, 301, 302, 303, 304, 307, 308];
    STATUSES.contains(&status.as_u16())
}

impl HeaderChange {
    pub fn changes_status(&self, status: StatusCode) -> bool {
        !self.only_success || is_success(status)
    }

    pub fn may_touch(name: &HeaderName, direction: Direction) -> Result<(), &'static str> {
        let frames = matches!(
            *name,
            h::CONTENT_LENGTH | h::TRANSFER_ENCODING | h::TRAILER | h::TE | h::UPGRADE
        );
        let closes = *name == h::CONNECTION && direction == Direction::Up;
        if frames || *name == h::CONNECTION && !closes || *name == h::EXPECT {
            return Err("it frames messages, which is the proxy's own affair");
        }
        if matches!(
            name.as_str(),
            "keep-alive" | "proxy-connection" | "http2-settings"
        ) {
            return Err("it concerns one connection, which is the proxy's own affair");
        }
        match (direction, name) {
            (Direction::Up, name) if *name == h::HOST => {
                Err("an upstream is asked for its own host; write `host` in `[upstream.NAME]`")
            }
            (Direction::Up, name) if *name == h::VIA => {
                Err("requests that come back are known by it")
            }
            // RFC 9110 section 6.5.1.
            (
                Direction::Trailer,
                &(h::AUTHORIZATION
                | h::CACHE_CONTROL
                | h::CONTENT_ENCODING
                | h::CONTENT_RANGE
                | h::CONTENT_TYPE
                | h::HOST
                | h::MAX_FORWARDS
                | h::SET_COOKIE),
            ) => Err("clients need it before the body"),
            _ => Ok(()),
        }
    }

    /// Copies the change for another worker, without shared memory.
    #[must_use]
    pub fn deep_copy(&self) -> HeaderChange {
        let name = HeaderName::from_bytes(self.name.as_str().as_bytes());
        let action = match &self.action {
            Action::Set(text) => Action::Set(text.deep_copy()),
            Action::Add(text) => Action::Add(text.deep_copy()),
            Action::Remove => Action::Remove,
        };
        HeaderChange {
            name: name.unwrap_or_else(|_| self.name.clone()),
            action,
            only_success: self.only_success,
        }
    }
}

impl HeaderText {
    /// Reads a value. It is fixed if it has no variables.
    pub fn parse(text: &str) -> Result<HeaderText, TemplateError> {
        let template = Template::parse(text.trim())?;
        let fixed = template.fixed().map(HeaderValue::from_str);
        match fixed {
            Some(Ok(value)) => Ok(HeaderText::Fixed(value)),
            Some(Err(_)) => Err(TemplateError::Control),
            None => Ok(HeaderText::Made(template)),
        }
    }

    fn deep_copy(&self) -> HeaderText {
        match self {
            HeaderText::Fixed(value) => HeaderText::Fixed(own_value(value)),
            HeaderText::Made(template) => HeaderText::Made(template.clone()),
        }
    }
}

/// A copy without shared memory, for another worker.
pub(super) fn own_value(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone())
}

/// The first segments of a path: `/api`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// In canonical spelling, without a slash at its end, and folded if `case` is insensitive.
    text: Box<str>,
    case: Case,
    /// The prefix in a header for upstreams, as the configuration writes it.
    header: HeaderValue,
}

impl Prefix {
    /// Reads a prefix. A slash at its end is ignored.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let path = CanonicalPath::parse(text).map_err(|error| error.0)?;
        if !path.is_plain() || text.contains([';', '{', '}', '*', '?', '#']) {
            return Err("a prefix is plain segments, such as `/api`");
        }
        if path.as_str() == "/" {
            return Err("that is no prefix; write for example `/api`");
        }
        let header = HeaderValue::from_str(path.as_str()).map_err(|_| "not a path")?;
        Ok(Self {
            text: path.as_str().into(),
            case: Case::Sensitive,
            header,
        })
    }

    #[must_use]
    pub fn in_case(mut self, case: Case) -> Self {
        if case == Case::Insensitive {
            self.text = fold(&self.text).into();
        }
        self.case = case;
        self
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn header(&self) -> &HeaderValue {
        &self.header
    }

    #[must_use]
    pub fn deep_copy(&self) -> Self {
        Self {
            header: own_value(&self.header),
            ..self.clone()
        }
    }

    /// Strips the prefix from a path. The rest has the client's spelling (`sent` is the whole path)
    /// if that still means the counted path, else the fullest canonical spelling. `None` if some
    /// reading of the path does not begin with the prefix.
    pub fn strip<'p>(&self, path: &'p CanonicalPath<'_>, sent: &'p str) -> Option<Cow<'p, str>> {
        let rest = self.rest(path.as_str())?;
        let others: Option<Vec<&str>> = path.others().map(|other| self.rest(other)).collect();
        let others = others?;
        // Some upstreams read a path that begins with two slashes as a host.
        let kept = self
            .after(sent)
            .filter(|kept| kept.starts_with('/') && !kept.starts_with("//"));
        let same = |kept: &&str| {
            CanonicalPath::parse(kept).is_ok_and(|kept| {
                kept.as_str() == rest
                    && kept.others().eq(others.iter().copied())
                    && !others.iter().any(|text| text.starts_with("/\\"))
            })
        };
        if let Some(kept) = kept.filter(same) {
            return Some(Cow::Borrowed(kept));
        }
        let full = self.rest(path.fullest())?;
        if sent.ends_with('/') && full != "/" {
            return Some(Cow::Owned(format!("{full}/")));
        }
        Some(Cow::Borrowed(full))
    }

    fn rest<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self.after(path)? {
            "" => Some("/"),
            rest => rest.starts_with('/').then_some(rest),
        }
    }

    /// The text behind the prefix, if the path begins with it.
    fn after<'p>(&self, path: &'p str) -> Option<&'p str> {
        if self.case == Case::Sensitive {
            return path.strip_prefix(&*self.text);
        }
        // A letter and its folded form may differ in length, so this counts segments.
        let slashes = path.match_indices('/').map(|(at, _)| at);
        let end = slashes
            .chain([path.len()])
            .nth(self.text.matches('/').count());
        let (beginning, rest) = path.split_at_checked(end?)?;
        (fold(beginning) == *self.text).then_some(rest)
    }
}

#[cfg(test)]
mod tests;
