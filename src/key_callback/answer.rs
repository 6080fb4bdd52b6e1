//! What the service's responses mean.

use http::StatusCode;
use serde_json::{Map, Value};
use tidegate_core::exchange::key_callback::{CallbackFailure, KeyAnswer};

use crate::limit::key::{KeyClient, KeyDigest, is_client_name};

/// Characters of a client's name.
const MAX_NAME: usize = 64;
/// Digits of the hash of a changed name.
const HASH_DIGITS: usize = 12;

/// Reads a response: 200 knows the key, 401 and 404 do not. Anything else is no answer.
pub(super) fn read_answer(status: StatusCode, body: &[u8]) -> KeyAnswer {
    match status {
        StatusCode::OK => match read_client(body) {
            Some(client) => KeyAnswer::Known(client),
            None => KeyAnswer::Failed(CallbackFailure::Unusable),
        },
        StatusCode::UNAUTHORIZED | StatusCode::NOT_FOUND => KeyAnswer::Unknown,
        status if status.as_u16() >= 500 => KeyAnswer::Failed(CallbackFailure::ServerError),
        _ => KeyAnswer::Failed(CallbackFailure::Unusable),
    }
}

/// Reads `{"name": "acme", "tier": "pro", "anchor": 15}`. Every member may be absent, and so may
/// the whole object.
fn read_client(body: &[u8]) -> Option<KeyClient> {
    if body.trim_ascii().is_empty() {
        return Some(KeyClient::default());
    }
    let members: Map<String, Value> = serde_json::from_slice(body).ok()?;
    let member = |name: &str| members.get(name).filter(|value| !value.is_null());
    let anchor = match member("anchor") {
        Some(Value::Number(day)) => Some(day.to_string()),
        other => text(other)?,
    };
    let name = text(member("name"))?.map(|name| client_name(&name));
    let tier = text(member("tier"))?;
    KeyClient::new(name.as_deref(), tier.as_deref(), anchor.as_deref()).ok()
}

/// The inner `None` stands for an absent member, the outer one for a member of another type.
fn text(member: Option<&Value>) -> Option<Option<String>> {
    match member {
        None => Some(None),
        Some(Value::String(text)) if text.is_empty() => Some(None),
        Some(Value::String(text)) => Some(Some(text.clone())),
        Some(_) => None,
    }
}

/// The name as logs can show it: a service may call a client `Acme, Inc.`. A changed name ends with
/// the beginning of the SHA-256 of the whole one, so two names stay two clients.
fn client_name(name: &str) -> String {
    let fit = |c: char| match is_client_name(c.encode_utf8(&mut [0; 4])) {
        true => c,
        false => '_',
    };
    let shown: String = name.chars().map(fit).collect();
    if shown == name && name.chars().count() <= MAX_NAME {
        return shown;
    }
    let digest = KeyDigest::new(name.as_bytes()).to_hex();
    let begin = shown.chars().take(MAX_NAME - 1 - HASH_DIGITS);
    let digits = digest.chars().take(HASH_DIGITS);
    begin.chain(['-']).chain(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::AnchorDay;

    fn read(status: u16, body: &str) -> KeyAnswer {
        read_answer(StatusCode::from_u16(status).unwrap(), body.as_bytes())
    }

    #[test]
    fn a_known_key_may_have_a_name_a_tier_and_an_anchor() {
        let known = |body| match read(200, body) {
            KeyAnswer::Known(client) => client,
            other => panic!("{body}: {other:?}"),
        };
        for nothing in ["", " \n", "{}", "{\"name\":null,\"tier\":\"\",\"x\":[1]}"] {
            assert_eq!(known(nothing), KeyClient::default(), "{nothing}");
        }
        let all = known(r#"{"name":"acme","tier":"pro","anchor":15}"#);
        assert_eq!(all.name.as_deref(), Some("acme"));
        assert_eq!(all.tier.as_deref(), Some("pro"));
        assert_eq!(all.anchor, AnchorDay::of_month(15));
        let date = known(r#"{"anchor":"2026-03-31"}"#);
        assert_eq!(date.anchor, AnchorDay::of_date("2026-03-31"));
        let company = known("{\"name\":\"Acme, Inc.\\n\"}");
        let name = company.name.unwrap();
        assert!(
            name.starts_with("Acme__Inc._-") && name.len() == 24,
            "{name}"
        );
    }

    #[test]
    fn two_names_stay_two_clients() {
        let long = "a".repeat(64);
        let read = |name: &str| client_name(name);
        assert_eq!(read(&long), long);
        for (one, other) in [
            ("A & B", "A + B"),
            ("Müller GmbH", "Müller_GmbH"),
            (&format!("{long}b"), &format!("{long}c")),
        ] {
            assert_ne!(read(one), read(other));
            assert!(is_client_name(&read(one)) && is_client_name(&read(other)));
        }
    }

    #[test]
    fn all_else_is_unknown_or_no_answer() {
        assert_eq!(read(401, "{}"), KeyAnswer::Unknown);
        assert_eq!(read(404, "no"), KeyAnswer::Unknown);
        let unusable = KeyAnswer::Failed(CallbackFailure::Unusable);
        for status in [201, 204, 302, 400, 403, 429] {
            assert_eq!(read(status, "{}"), unusable, "{status}");
        }
        for status in [500, 503] {
            let failed = KeyAnswer::Failed(CallbackFailure::ServerError);
            assert_eq!(read(status, "{}"), failed, "{status}");
        }
        for body in [
            "<html>",
            "[]",
            "true",
            r#"{"name":7}"#,
            r#"{"tier":"Pro plan"}"#,
            r#"{"anchor":32}"#,
            r#"{"anchor":1.5}"#,
        ] {
            assert_eq!(read(200, body), unusable, "{body}");
        }
    }
}
