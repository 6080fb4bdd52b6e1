//! The user that `Authorization: Basic` names. Nothing has verified it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::AUTHORIZATION;

/// Writes nothing if the request names no user, or one whose name no header can have.
pub(super) fn write(out: &mut Vec<u8>, headers: &HeaderMap) {
    if let Some(user) = find(headers) {
        out.extend_from_slice(&user);
    }
}

fn find(headers: &HeaderMap) -> Option<Vec<u8>> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, rest) = value.split_at_checked("Basic ".len())?;
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return None;
    }
    let mut user = STANDARD.decode(rest.trim_ascii()).ok()?;
    let end = user.iter().position(|byte| *byte == b':')?;
    user.truncate(end);
    let is_safe = user.iter().all(|byte| !byte.is_ascii_control());
    is_safe.then_some(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_found_and_ends_no_line() {
        for (value, user) in [
            ("Basic am9lOnNlY3JldA==", "joe"),
            ("basic  am9lOjpzZWNyZXQ=", "joe"),
            ("Basic OnNlY3JldA==", ""),
            // Without a colon, with a line's end, not in base64, and in another scheme.
            ("Basic am9l", ""),
            ("Basic am9lDQp4OmE=", ""),
            ("Basic joe:secret", ""),
            ("Bearer am9lOnNlY3JldA==", ""),
            ("Basic", ""),
        ] {
            let (mut headers, mut found) = (HeaderMap::new(), Vec::new());
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            write(&mut found, &headers);
            assert_eq!(found, user.as_bytes(), "{value}");
        }
    }
}
