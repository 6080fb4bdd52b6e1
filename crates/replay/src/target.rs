//! A request's target, as logs have it: in any form that HTTP allows.
//!
//! Pure.

use memchr::{memchr, memchr2};

/// Host, path and query of a target; a fragment is none of them.
pub fn split(target: &str) -> (Option<&str>, &str, Option<&str>) {
    let (authority, rest) = match target.strip_prefix("http://") {
        _ if target.starts_with('/') => (None, target),
        Some(rest) => authority(rest),
        None => match target.strip_prefix("https://") {
            Some(rest) => authority(rest),
            None => (None, target),
        },
    };
    match memchr2(b'?', b'#', rest.as_bytes()) {
        None => (authority, rest, None),
        Some(end) if rest.as_bytes()[end] == b'#' => (authority, &rest[..end], None),
        // A query may follow the host at once.
        Some(end) => {
            let path = if end == 0 { "/" } else { &rest[..end] };
            let query = &rest[end + 1..];
            let query = &query[..memchr(b'#', query.as_bytes()).unwrap_or(query.len())];
            (authority, path, Some(query))
        }
    }
}

fn authority(rest: &str) -> (Option<&str>, &str) {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let path = if end < rest.len() { &rest[end..] } else { "/" };
    (Some(&rest[..end]), path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_its_parts() {
        for (target, expected) in [
            ("/", (None, "/", None)),
            ("/a?b=1", (None, "/a", Some("b=1"))),
            ("/a?b?c#d?e", (None, "/a", Some("b?c"))),
            ("/a#b?c", (None, "/a", None)),
            ("http://h:80/a?b", (Some("h:80"), "/a", Some("b"))),
            ("https://h?b", (Some("h"), "/", Some("b"))),
            ("https://h", (Some("h"), "/", None)),
            ("*", (None, "*", None)),
            ("", (None, "", None)),
        ] {
            assert_eq!(split(target), expected, "{target}");
        }
    }
}
