//! What a route changes in a head, upstream's or client's: compiled when the configuration is
//! loaded.
//!
//! It must never touch what frames a message or concerns one connection: two readers could then
//! disagree about where a message ends.

use http::header::{self as h, HeaderName, HeaderValue};

use super::template::{Template, TemplateError};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderChange {
    /// The header.
    pub name: HeaderName,
    /// What becomes of it.
    pub action: Action,
}

/// What becomes of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It has this value and no other; none at all if the value comes out empty.
    Set(Text),
    /// It has this value besides those that are there.
    Add(Text),
    /// It is removed.
    Remove,
}

/// A header's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    /// The same for every request.
    Fixed(HeaderValue),
    /// Made for each.
    Made(Template),
}

/// Which heads are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests, on their way to the upstream.
    Up,
    /// Responses, on their way to the client.
    Down,
}

impl HeaderChange {
    /// Whether a route may change this header.
    pub fn may_touch(name: &HeaderName, direction: Direction) -> Result<(), &'static str> {
        let frames = matches!(
            *name,
            h::CONTENT_LENGTH | h::TRANSFER_ENCODING | h::TRAILER | h::TE | h::UPGRADE
        );
        if frames || *name == h::CONNECTION || *name == h::EXPECT {
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
            _ => Ok(()),
        }
    }

    /// A copy that shares nothing.
    #[must_use]
    pub fn own(&self) -> HeaderChange {
        let action = match &self.action {
            Action::Set(text) => Action::Set(text.own()),
            Action::Add(text) => Action::Add(text.own()),
            Action::Remove => Action::Remove,
        };
        let name = HeaderName::from_bytes(self.name.as_str().as_bytes());
        HeaderChange {
            name: name.unwrap_or_else(|_| self.name.clone()),
            action,
        }
    }
}

impl Text {
    /// Reads a value: fixed if it has no variables.
    pub fn parse(text: &str) -> Result<Text, TemplateError> {
        let template = Template::parse(text.trim())?;
        let fixed = template.fixed().map(HeaderValue::from_str);
        match fixed {
            Some(Ok(value)) => Ok(Text::Fixed(value)),
            Some(Err(_)) => Err(TemplateError::Control),
            None => Ok(Text::Made(template)),
        }
    }

    fn own(&self) -> Text {
        match self {
            Text::Fixed(value) => {
                let own = HeaderValue::from_bytes(value.as_bytes());
                Text::Fixed(own.unwrap_or_else(|_| value.clone()))
            }
            Text::Made(template) => Text::Made(template.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_frames_messages_is_out_of_reach() {
        let both = |name: &'static str| {
            let name = HeaderName::from_static(name);
            [Direction::Up, Direction::Down]
                .map(|direction| HeaderChange::may_touch(&name, direction).is_ok())
        };
        for name in [
            "content-length",
            "transfer-encoding",
            "connection",
            "trailer",
            "te",
            "upgrade",
            "keep-alive",
            "proxy-connection",
            "http2-settings",
            "expect",
        ] {
            assert_eq!(both(name), [false, false], "{name}");
        }
        assert_eq!(both("host"), [false, true]);
        assert_eq!(both("via"), [false, true]);
        assert_eq!(both("x-forwarded-for"), [true, true]);
    }
}
