//! Headers up and down, and request ids.

use http::HeaderName;

use super::scope::Scope;
use super::syntax::Directive;
use super::values;
use crate::draft::{Draft, Setting};
use crate::print::{text, texts};
use crate::route::{Direction, HeaderChange};

/// What tidegate tells upstreams by itself, or needs not be told.
const BY_ITSELF: [&str; 10] = [
    "host",
    "x-real-ip",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "forwarded",
    "upgrade",
    "connection",
    "x-forwarded-port",
    "x-forwarded-server",
];

/// `headers_up` and `headers_down` of a route.
pub(super) fn changes(scope: &Scope<'_>, draft: &mut Draft) -> Vec<Setting> {
    let mut found = Vec::new();
    let mut up = Vec::new();
    for one in scope
        .all("proxy_set_header")
        .into_iter()
        .chain(scope.all("grpc_set_header"))
    {
        up.extend(set(one, draft));
    }
    let mut down = Vec::new();
    for one in scope.all("proxy_hide_header") {
        if let Some(name) = checked(one, Direction::Down, draft) {
            let change = format!("{} = false", key(&name));
            if !down.contains(&change) {
                down.push(change);
            }
        }
    }
    let mut added: Vec<(String, Vec<String>)> = Vec::new();
    for one in scope.all("add_header") {
        let Some((name, value)) = add(one, draft) else {
            continue;
        };
        match added.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => values.push(value),
            None => added.push((name, vec![value])),
        }
    }
    down.extend(added.into_iter().map(|(name, values)| {
        let value = match &values[..] {
            [one] => text(one),
            _ => texts(&values),
        };
        format!("{} = {value}", text(&format!("+{name}")))
    }));
    for (name, list) in [("headers_up", up), ("headers_down", down)] {
        if !list.is_empty() {
            found.push((name.to_owned(), format!("{{ {} }}", list.join(", "))));
        }
    }
    found
}

fn key(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    match name.bytes().all(plain) {
        true => name.to_owned(),
        false => text(name),
    }
}

/// The header's name, if a route may change it.
fn checked(one: &Directive, direction: Direction, draft: &mut Draft) -> Option<String> {
    let name = HeaderName::from_bytes(one.arg(0).as_bytes());
    let why = match &name {
        Ok(name) => HeaderChange::may_touch(name, direction).err(),
        Err(_) => Some("not a header's name"),
    };
    match (why, name) {
        (None, Ok(name)) => Some(name.as_str().to_owned()),
        (why, _) => {
            draft
                .notes
                .lost(&one.place, &one.line(), why.unwrap_or_default());
            None
        }
    }
}

/// `proxy_set_header X-User $http_x_user;`
fn set(one: &Directive, draft: &mut Draft) -> Option<String> {
    let lower = one.arg(0).to_ascii_lowercase();
    if BY_ITSELF.contains(&lower.as_str()) {
        if matches!(lower.as_str(), "x-forwarded-port" | "x-forwarded-server") {
            let why = "tidegate tells X-Forwarded-For, -Proto and -Host, and Forwarded";
            draft.notes.lost(&one.place, &one.line(), why);
        }
        return None;
    }
    if one.arg(1) == "$request_id" {
        draft.request_id = Some(lower);
        return None;
    }
    let name = checked(one, Direction::Up, draft)?;
    match values::template(one.arg(1)) {
        Ok(value) if value.is_empty() => Some(format!("{} = false", key(&name))),
        Ok(value) => Some(format!("{} = {}", key(&name), text(&value))),
        Err(variable) => {
            let why = format!("there is no {variable} here");
            draft.notes.lost(&one.place, &one.line(), why);
            None
        }
    }
}

/// `add_header X-Frame-Options DENY always;`
fn add(one: &Directive, draft: &mut Draft) -> Option<(String, String)> {
    let lower = one.arg(0).to_ascii_lowercase();
    if lower == "strict-transport-security" {
        // `hsts` of [tls] says it, which is written from it.
        return None;
    }
    let name = checked(one, Direction::Down, draft)?;
    match values::template(one.arg(1)) {
        Ok(value) if value.is_empty() => None,
        Ok(value) => Some((name, value)),
        Err(variable) => {
            let why = format!("there is no {variable} here");
            draft.notes.lost(&one.place, &one.line(), why);
            None
        }
    }
}
