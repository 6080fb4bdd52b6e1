//! Pages in place of error responses.

use http::uri::PathAndQuery;
use http::{HeaderValue, StatusCode};

use super::template::BodyTemplate;
use super::{RespondBody, StatusSet};

/// One `[error_page.NAME]`.
#[derive(Clone, Debug)]
pub struct ErrorPage {
    /// The errors that it replaces.
    pub statuses: StatusSet,
    /// Whether it also replaces error responses of upstreams.
    pub replaces_upstream: bool,
    pub source: PageSource,
    pub status: PageStatus,
}

/// Where the page is.
#[derive(Clone, Debug)]
pub enum PageSource {
    Body(PageBody),
    /// The value of `Location`.
    Redirect(HeaderValue),
    Upstream(PageServer),
}

#[derive(Clone, Debug)]
pub struct PageBody {
    pub text: RespondBody,
    pub content_type: HeaderValue,
}

/// A server that is asked for the page with GET.
#[derive(Clone, Debug)]
pub struct PageServer {
    /// An index into the configuration's upstreams.
    pub upstream: usize,
    /// `None` for the target of the client's request.
    pub target: Option<PathAndQuery>,
}

/// The status of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageStatus {
    /// That of the error.
    Same,
    Fixed(StatusCode),
    /// That of the server that was asked for the page.
    OfServer,
}

impl ErrorPage {
    /// The text of a page with variables.
    pub fn made_text(&self) -> Option<&BodyTemplate> {
        match &self.source {
            PageSource::Body(PageBody {
                text: RespondBody::Made(text),
                ..
            }) => Some(text),
            _ => None,
        }
    }

    /// The status in place of `error`. `by_server` is that of the server's page.
    pub fn status(&self, error: StatusCode, by_server: Option<StatusCode>) -> StatusCode {
        match (self.status, &self.source) {
            (PageStatus::Fixed(status), _) => status,
            (PageStatus::Same, PageSource::Redirect(_)) => StatusCode::FOUND,
            (PageStatus::Same, _) => error,
            (PageStatus::OfServer, _) => by_server.unwrap_or(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_page_keeps_the_status_of_the_error_unless_it_has_its_own() {
        let body = || PageBody {
            text: RespondBody::Fixed(Bytes::new()),
            content_type: HeaderValue::from_static("text/html"),
        };
        let page = |source, status| ErrorPage {
            statuses: StatusSet::default(),
            replaces_upstream: false,
            source,
            status,
        };
        let error = StatusCode::BAD_GATEWAY;
        let of = |page: ErrorPage| page.status(error, Some(StatusCode::ACCEPTED));
        let of_body = |status| of(page(PageSource::Body(body()), status));
        assert_eq!(of_body(PageStatus::Same), error);
        assert_eq!(of_body(PageStatus::Fixed(StatusCode::OK)), StatusCode::OK);
        assert_eq!(of_body(PageStatus::OfServer), StatusCode::ACCEPTED);
        let place = PageSource::Redirect(HeaderValue::from_static("/"));
        assert_eq!(of(page(place, PageStatus::Same)), StatusCode::FOUND);
    }
}
