//! The dashboard's files, as they are in the program.

use http::{Response, StatusCode};

use super::answer::{Body, with_type};

const PAGE: &str = include_str!("dashboard/index.html");
const STYLE: &str = include_str!("dashboard/style.css");
const SCRIPT: &str = include_str!("dashboard/page.js");

/// The file of this name; the page itself has none.
pub(super) fn file(name: &str) -> Option<Response<Body>> {
    let (media, text) = match name {
        "" => ("text/html; charset=utf-8", PAGE),
        "style.css" => ("text/css; charset=utf-8", STYLE),
        "page.js" => ("text/javascript; charset=utf-8", SCRIPT),
        _ => return None,
    };
    Some(with_type(StatusCode::OK, media, text))
}
