//! `GET /api/v1/config`: what holds in the proxy that runs, with every default and without secrets.
//! TOML, or JSON for whoever asks for that.

use http::{HeaderMap, StatusCode, header};

use super::Desk;
use super::answer::{Answer, json_of, seen, with_type};
use crate::config::{effective, environment};

pub(super) fn config(desk: &Desk, headers: &HeaderMap) -> Answer {
    let text = desk
        .grounds
        .sight
        .look(|view| view.config.written.text.clone());
    let found = effective::effective(&seen(text)?, &environment);
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let wants_json = accept.is_some_and(|accept| accept.contains("application/json"));
    Ok(match wants_json {
        true => json_of(&found),
        false => with_type(StatusCode::OK, "application/toml", effective::toml(&found)),
    })
}
