//! Answers one request: finds the endpoint or the file of the dashboard, checks access, and adds
//! the headers of every answer.
//!
//! The files of the dashboard are part of the program. The head of `page.js` describes them;
//! `tests/browser` tests them in a browser.

use std::sync::Arc;

use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use super::endpoints::ENDPOINTS;
use super::gate::AdminAction;
use super::openapi::find;
use super::request::ApiRequest;
use super::response::{AdminBody, ApiError, ApiResult, with_type};
use super::state::AdminState;
use crate::telemetry::panics::contained;
use tidegate_core::failpoint;

/// Headers that keep other pages from using an answer, and caches from keeping it.
const HEADERS: [(HeaderName, &str); 6] = [
    (CACHE_CONTROL, "no-store"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// Answers one request, also if that panics.
pub(super) async fn answer(
    state: &Arc<AdminState>,
    request: Request<Incoming>,
) -> Response<AdminBody> {
    let answer = contained(dispatch(state, request)).await;
    let answer = answer.unwrap_or_else(|| {
        let detail = "internal error: the log of the proxy has the details";
        Err(ApiError::internal(detail))
    });
    let mut response = answer.unwrap_or_else(ApiError::into_response);
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

async fn dispatch(state: &Arc<AdminState>, request: Request<Incoming>) -> ApiResult {
    let path = request.uri().path();
    let found = find(&ENDPOINTS, path);
    // A client without access does not learn which paths exist.
    let action = found
        .as_ref()
        .map_or(AdminAction::Probe, |(endpoint, _)| endpoint.action);
    state.policy.load().authorize(&request, action)?;
    failpoint!("admin.request");
    let Some((endpoint, parameters)) = found else {
        return dashboard_file(path, request.method());
    };
    endpoint.check_method(request.method())?;
    endpoint.check_query(request.uri().query())?;
    let read = ApiRequest::new(state, parameters, &request);
    let read = match endpoint.body.is_some() {
        true => read.with_body(request.into_body()).await?,
        false => read,
    };
    (endpoint.answer)(read).await
}

fn dashboard_file(path: &str, method: &Method) -> ApiResult {
    let name = path
        .strip_prefix('/')
        .filter(|_| !path.starts_with("/api/v1/"));
    let name = name.ok_or_else(|| ApiError::not_found("there is nothing here"))?;
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD"));
    }
    file(name).ok_or_else(|| ApiError::not_found("no such page"))
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// The name, media type and text of each file.
const FILES: [(&str, &str, &str); 25] = [
    ("", HTML, include_str!("dashboard/index.html")),
    ("style.css", CSS, include_str!("dashboard/style.css")),
    ("client.css", CSS, include_str!("dashboard/client.css")),
    ("print.css", CSS, include_str!("dashboard/print.css")),
    ("theme.js", JS, include_str!("dashboard/theme.js")),
    ("page.js", JS, include_str!("dashboard/page.js")),
    ("actions.js", JS, include_str!("dashboard/actions.js")),
    ("address.js", JS, include_str!("dashboard/address.js")),
    ("api.js", JS, include_str!("dashboard/api.js")),
    ("charts.js", JS, include_str!("dashboard/charts.js")),
    ("client.js", JS, include_str!("dashboard/client.js")),
    ("commands.js", JS, include_str!("dashboard/commands.js")),
    ("denials.js", JS, include_str!("dashboard/denials.js")),
    ("dom.js", JS, include_str!("dashboard/dom.js")),
    ("explain.js", JS, include_str!("dashboard/explain.js")),
    ("ledger.js", JS, include_str!("dashboard/ledger.js")),
    ("limits.js", JS, include_str!("dashboard/limits.js")),
    ("moment.js", JS, include_str!("dashboard/moment.js")),
    ("promote.js", JS, include_str!("dashboard/promote.js")),
    ("routes.js", JS, include_str!("dashboard/routes.js")),
    ("table.js", JS, include_str!("dashboard/table.js")),
    ("timeline.js", JS, include_str!("dashboard/timeline.js")),
    ("tokens.js", JS, include_str!("dashboard/tokens.js")),
    ("units.js", JS, include_str!("dashboard/units.js")),
    ("theming.js", JS, include_str!("dashboard/theming.js")),
];

/// The file of this name. The name of the page itself is empty.
pub(super) fn file(name: &str) -> Option<Response<AdminBody>> {
    let (_, media, text) = FILES.iter().find(|(known, ..)| *known == name)?;
    Some(with_type(StatusCode::OK, media, *text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a text between `open` and `close`.
    fn between<'t>(text: &'t str, open: &str, close: char) -> Vec<&'t str> {
        let parts = text.split(open).skip(1);
        parts.filter_map(|rest| rest.split(close).next()).collect()
    }

    #[test]
    fn what_the_files_ask_for_is_there_and_nothing_is_from_elsewhere() {
        for (name, media, text) in FILES {
            let asked = match media {
                HTML => [
                    between(text, "src=\"", '"'),
                    between(text, "rel=\"stylesheet\" href=\"", '"'),
                ]
                .concat(),
                _ => between(text, " from './", '\''),
            };
            for file in asked {
                assert!(self::file(file).is_some(), "{name} asks for {file}");
            }
            // The name of SVG is an address, but browsers do not request it.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(
                media == JS || !text.contains("://"),
                "{name} asks elsewhere"
            );
        }
    }

    #[test]
    fn no_file_makes_markup_of_a_text() {
        let ways = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ];
        for (name, _, text) in FILES {
            for way in ways {
                assert!(!text.contains(way), "{name} has {way}");
            }
            assert!(
                !text.contains(" style=") && !text.contains(" onclick="),
                "{name} is inline"
            );
        }
    }

    #[test]
    fn files_and_lines_fit_as_they_do_elsewhere() {
        for (name, media, text) in FILES {
            assert!(text.lines().count() <= 500, "{name} is long");
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(media == HTML || widest <= Some(100), "{name} is wide");
        }
    }
}
