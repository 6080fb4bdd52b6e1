//! A request's target, as logs have it: in any form that HTTP allows.
//!
//! Pure.

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
    let rest = &rest[..rest.find('#').unwrap_or(rest.len())];
    match rest.split_once('?') {
        Some((path, query)) => (authority, path, Some(query)),
        None => (authority, rest, None),
    }
}

fn authority(rest: &str) -> (Option<&str>, &str) {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let path = if end < rest.len() { &rest[end..] } else { "/" };
    (Some(&rest[..end]), path)
}
