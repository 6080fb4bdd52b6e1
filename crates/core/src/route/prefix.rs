//! What is taken off the front of a path before an upstream sees it, or put there.
//!
//! The limiter has counted the canonical path. Whatever the rest is sent as, an upstream must read
//! it as the rest of that path and as nothing else.

use std::borrow::Cow;

use http::HeaderValue;

use crate::path::{CanonicalPath, Case, fold};

/// The first segments of a path: `/api`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// In canonical spelling, without a slash at its end.
    text: Box<str>,
    /// Whether `text` is without letter case.
    case: Case,
    /// The same as upstreams are told of it.
    header: HeaderValue,
}

impl Prefix {
    /// Reads a prefix. A slash at its end means nothing.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let path = CanonicalPath::parse(text).map_err(|error| error.detail())?;
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

    /// The same prefix for paths of this case. Upstreams are told of it as it was written.
    #[must_use]
    pub fn in_case(mut self, case: Case) -> Self {
        if case == Case::Insensitive {
            self.text = fold(&self.text).into();
        }
        self.case = case;
        self
    }

    /// In its canonical spelling.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// As a header's value.
    pub fn header(&self) -> &HeaderValue {
        &self.header
    }

    /// A copy that shares nothing.
    #[must_use]
    pub fn own(&self) -> Self {
        let header = HeaderValue::from_bytes(self.header.as_bytes());
        Self {
            text: self.text.clone(),
            case: self.case,
            header: header.unwrap_or_else(|_| self.header.clone()),
        }
    }

    /// What is left of a path: as the client spelled it (`sent` is its whole path) where that means
    /// what was counted, or else in the canonical spelling. `None` if there is a reading in which
    /// the path does not begin so.
    pub fn strip<'p>(&self, path: &'p CanonicalPath<'_>, sent: &'p str) -> Option<Cow<'p, str>> {
        let rest = self.rest(path.as_str())?;
        let others: Option<Vec<&str>> = path.others().map(|other| self.rest(other)).collect();
        let others = others?;
        // A path that begins with two slashes is somebody's host to some.
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
        if sent.ends_with('/') && rest != "/" {
            return Some(Cow::Owned(format!("{rest}/")));
        }
        Some(Cow::Borrowed(rest))
    }

    fn rest<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self.after(path)? {
            "" => Some("/"),
            rest => rest.starts_with('/').then_some(rest),
        }
    }

    /// What follows the prefix in a path, if the path begins so.
    fn after<'p>(&self, path: &'p str) -> Option<&'p str> {
        if self.case == Case::Sensitive {
            return path.strip_prefix(&*self.text);
        }
        // A letter and its folded form need not be equally long: segments are counted.
        let slashes = path.match_indices('/').map(|(at, _)| at);
        let end = slashes
            .chain([path.len()])
            .nth(self.text.matches('/').count());
        let (beginning, rest) = path.split_at_checked(end?)?;
        (fold(beginning) == *self.text).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stripped(prefix: &str, sent: &str) -> Option<String> {
        let path = CanonicalPath::parse(sent).unwrap();
        let prefix = Prefix::parse(prefix).unwrap();
        prefix.strip(&path, sent).map(Cow::into_owned)
    }

    #[test]
    fn the_rest_is_sent_as_the_client_spelled_it() {
        for (sent, rest) in [
            ("/api/users", "/users"),
            ("/api/users/", "/users/"),
            ("/api", "/"),
            ("/api/", "/"),
            ("/api/a%2Fb", "/a%2Fb"),
            ("/api/a;v=1/b", "/a;v=1/b"),
            ("/api/x/../y", "/x/../y"),
            ("/api/%6c", "/%6c"),
            ("/api/a//b", "/a//b"),
        ] {
            assert_eq!(stripped("/api", sent).as_deref(), Some(rest), "{sent}");
        }
    }

    #[test]
    fn where_the_spelling_means_something_else_the_counted_path_is_sent() {
        for (sent, rest) in [
            ("//api/users", "/users"),
            ("/%61pi/users/", "/users/"),
            ("/api;v=1/users", "/users"),
            ("/./api/users", "/users"),
            ("/api//evil.example/x", "/evil.example/x"),
            ("/api/%2fevil.example", "/evil.example"),
            ("/api\\evil.example", "/evil.example"),
            ("/api/../api/y", "/y"),
        ] {
            let path = CanonicalPath::parse(sent).unwrap();
            let prefix = Prefix::parse("/api").unwrap();
            match prefix.strip(&path, sent) {
                Some(found) => assert_eq!(found, rest, "{sent}"),
                None => assert!(!path.is_plain(), "{sent}"),
            }
        }
        assert_eq!(stripped("/api", "/apis/x"), None);
        assert_eq!(stripped("/api", "/x/../api/y"), None);
    }

    #[test]
    fn a_prefix_without_case_keeps_the_spelling_of_the_rest() {
        let prefix = Prefix::parse("/Api/\u{c4}")
            .unwrap()
            .in_case(Case::Insensitive);
        let strip = |sent: &str| {
            let path = CanonicalPath::parse(sent).unwrap();
            prefix.strip(&path, sent).map(Cow::into_owned)
        };
        for (sent, rest) in [
            ("/API/%C3%84/Users/", "/Users/"),
            ("/api/%c3%a4/Users%2FX", "/Users%2FX"),
            ("/api/%C3%A4", "/"),
            ("/./aPi/%C3%A4/Users", "/Users"),
        ] {
            assert_eq!(strip(sent).as_deref(), Some(rest), "{sent}");
        }
        assert_eq!(strip("/api/%C3%A4s/x"), None);
        assert_eq!(strip("/api"), None);
        assert_eq!(prefix.header(), "/Api/%C3%84");
    }

    #[test]
    fn a_prefix_is_some_plain_segments() {
        assert_eq!(Prefix::parse("/api/").unwrap().as_str(), "/api");
        assert_eq!(Prefix::parse("/a/b").unwrap().header(), "/a/b");
        for bad in ["", "api", "/", "/a/../b", "/a%2fb", "/{id}", "/a/*", "/a?b"] {
            assert!(Prefix::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        /// Prefix and rest together are what was counted, whatever was sent.
        #[test]
        fn nothing_else_is_reached(
            sent in "/(api|a%70i|api;x)?([a-c./;%\\\\]|%2[ef]|%5c|%2F){0,12}"
        ) {
            let prefix = Prefix::parse("/api").unwrap();
            if let Ok(path) = CanonicalPath::parse(&sent)
                && let Some(rest) = prefix.strip(&path, &sent)
            {
                prop_assert!(!rest.starts_with("//"), "{} {}", sent, rest);
                let read = CanonicalPath::parse(&rest).unwrap();
                let whole = |rest: &str| format!("/api{}", rest.trim_end_matches('/'));
                prop_assert_eq!(whole(read.as_str()), path.as_str());
                for other in read.others() {
                    let other = whole(other);
                    prop_assert!(path.readings().any(|text| text == other), "{} {}", sent, other);
                }
            }
        }
    }
}
