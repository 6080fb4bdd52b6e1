//! Routes: which route a request belongs to.
//!
//! A table is built once and only read after that. The most specific route wins, whatever the
//! order of the file. The time to find it does not grow with the number of routes.

mod access_log;
mod answer;
mod bandwidth;
mod error_page;
mod expires;
mod host;
mod matching;
mod near;
mod pattern;
mod regex;
mod replacement;
mod response_rewrite;
mod rewrite;
mod table;
pub mod template;
mod trie;

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, HeaderName, ORIGIN, UPGRADE};
use http::{HeaderMap, Method, StatusCode};
use smallvec::SmallVec;

use crate::client::networks::AccessList;
use crate::limit::Limit;
use crate::limit::key::{BodyFacts, Key, Part};
use crate::path::{CanonicalPath, Case};
use crate::usage::number::rounded_up;
use crate::usage::paths::MemberPath;
use crate::usage::request::{BodyMember, RequestTable};
use crate::usage::settings::UsageSettings;

pub use access_log::RouteLog;
pub use answer::{
    LocationBase, Redirect, RedirectError, RedirectFailure, Respond, RespondBody, Target,
};
pub use bandwidth::Bandwidth;
pub use error_page::{ErrorPage, PageBody, PageServer, PageSource, PageStatus};
pub use expires::{Expires, ExpiryStart};
pub use host::{HostPattern, MAX_HOST_BYTES, host_of};
pub use matching::{HeaderMatch, MethodError, Precedence, QueryMatch, ValueMatch, method_of};
pub use near::{Miss, Near};
pub use pattern::{MAX_SEGMENTS, PathPattern, PatternError};
pub use regex::Regex;
pub use replacement::Replacement;
pub use response_rewrite::{CookieFlags, ResponseRewrites, TextRewrite};
pub(crate) use response_rewrite::{rewrite_cookie, rewrite_lines, rewrite_places};
pub use rewrite::{Action, Direction, HeaderChange, HeaderText, Prefix, is_success};
pub use table::{Conflict, RouteTable};
use template::Template;

/// The name of requests without a route in metrics. No route can have it.
pub const NO_ROUTE: &str = "(none)";

/// One `[[route]]`: the requests it matches, their target and their limits.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its index in its table.
    pub number: usize,
    pub name: Arc<str>,
    pub host: HostPattern,
    /// In the form of `case`.
    pub path: PathPattern,
    /// Whether letter case tells its paths apart.
    pub case: Case,
    /// Empty for all methods. `GET` includes `HEAD`.
    pub methods: Vec<Method>,
    /// A request must carry all of these headers.
    pub headers: Vec<HeaderMatch>,
    /// And all of these query parameters.
    pub query: Vec<QueryMatch>,
    /// The port of the proxy that requests must come to; `None` for all ports.
    pub port: Option<u16>,
    /// Whether its paths end with a slash; `None` for both.
    pub trailing_slash: Option<bool>,
    pub target: Target,
    /// The key that chooses a server of the upstream; `None` chooses by load.
    pub affinity: Option<Key>,
    pub limits: Vec<Arc<Limit>>,
    /// 0 with `usage`: that of a request that asks no model.
    pub cost: CostSource,
    /// Where a response has the final cost of a request, units.
    pub settle: Option<Settle>,
    /// Requests with these response statuses get their units back.
    pub refund: StatusSet,
    pub strip_prefix: Option<Prefix>,
    pub add_prefix: Option<Prefix>,
    /// In place of both.
    pub replace_prefix: Option<Box<Replacement>>,
    /// The clients that are served, of those that `[access]` serves.
    pub access: AccessList,
    /// The status for clients without a verified certificate; `None` serves them too.
    pub require_client_certificate: Option<StatusCode>,
    /// The largest body of a request, bytes; `None` for no bound.
    pub body_limit: Option<u64>,
    /// The speed of the bodies of its responses; `None` for no bound.
    pub bandwidth: Option<Bandwidth>,
    /// The method that upstreams see; `None` for that of the client.
    pub method_up: Option<Template>,
    /// Whether upstreams get headers of the client, beside those that name it and its host.
    pub pass_headers: bool,
    /// Whether upstreams get bodies of requests.
    pub pass_body: bool,
    /// Changes of request heads, in this order.
    pub headers_up: Vec<HeaderChange>,
    /// Changes of response heads, in this order.
    pub headers_down: Vec<HeaderChange>,
    /// How long clients may keep successful responses; `None` leaves that to the upstream.
    pub expires: Option<Expires>,
    /// Trailers that are added to responses.
    pub trailers_down: Vec<HeaderChange>,
    /// New texts in the responses of upstreams, before `headers_down`.
    pub rewrite_down: Option<Box<ResponseRewrites>>,
    /// What stands before a path in `Location`, if the proxy makes or rewrites it.
    pub location_base: Option<LocationBase>,
    /// Pages in place of error responses; the first that has the status counts.
    pub error_pages: Vec<Arc<ErrorPage>>,
    /// The logs that its requests have a line in, beside that of `[log]`.
    pub access_logs: Vec<Arc<RouteLog>>,
    /// The time from admission to the last byte of the answer; `None` for no bound.
    pub timeout: Option<Duration>,
    /// How tokens are counted; `None` if they are not.
    pub usage: Option<Arc<UsageSettings>>,
    /// The members of a request's body that the decision needs; `None` if it needs none.
    pub reads_body: Option<Arc<RequestTable>>,
    /// Bytes of a body that are read before the decision, at most.
    pub body_read: usize,
}

impl Route {
    /// A route of a path that has no limit, charges 1, and changes nothing on the way to the first
    /// upstream.
    pub fn of_path(name: &str, path: PathPattern) -> Route {
        Route {
            number: 0,
            name: name.into(),
            host: HostPattern::Any,
            path,
            case: Case::Sensitive,
            methods: Vec::new(),
            headers: Vec::new(),
            query: Vec::new(),
            port: None,
            trailing_slash: None,
            target: Target::Upstream(0),
            affinity: None,
            limits: Vec::new(),
            cost: CostSource::Fixed(1),
            settle: None,
            refund: StatusSet::default(),
            strip_prefix: None,
            add_prefix: None,
            replace_prefix: None,
            access: AccessList::default(),
            require_client_certificate: None,
            body_limit: None,
            bandwidth: None,
            method_up: None,
            pass_headers: true,
            pass_body: true,
            headers_up: Vec::new(),
            headers_down: Vec::new(),
            expires: None,
            trailers_down: Vec::new(),
            rewrite_down: None,
            location_base: None,
            error_pages: Vec::new(),
            access_logs: Vec::new(),
            timeout: None,
            usage: None,
            reads_body: None,
            body_read: 0,
        }
    }

    /// How the tokens of a request are counted; `None` if it asks no model. Servers of the known
    /// formats are asked by other methods than these, and some paths only count tokens. Any other
    /// server may be asked by each.
    pub fn usage_of(
        &self,
        method: &Method,
        headers: &HeaderMap,
        path: &CanonicalPath<'_>,
    ) -> Option<&Arc<UsageSettings>> {
        let usage = self.usage.as_ref()?;
        let asks_none = usage.format.is_some_and(|format| {
            let by_method = matches!(
                *method,
                Method::GET | Method::HEAD | Method::DELETE | Method::OPTIONS
            );
            by_method || path.is_plain() && format.only_counts(path.as_str())
        });
        (!asks_none || !self.keeps_method(headers)).then_some(usage)
    }

    /// Whether a request is a CORS preflight. It is never charged, since no script can avoid it.
    pub fn is_preflight(&self, method: &Method, headers: &HeaderMap) -> bool {
        method == Method::OPTIONS
            && headers.contains_key(ORIGIN)
            && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
            && self.keeps_method(headers)
    }

    /// Whether the upstream is asked by the client's method alone: not by another, and not for a
    /// tunnel.
    fn keeps_method(&self, headers: &HeaderMap) -> bool {
        self.method_up.is_none() && !headers.contains_key(UPGRADE)
    }

    pub fn adjusts(&self) -> bool {
        self.settle.is_some() || self.usage.is_some() || !self.refund.is_empty()
    }

    /// The header of responses that settles the cost.
    pub fn settle_header(&self) -> Option<&HeaderName> {
        match &self.settle {
            Some(Settle::Header(name)) => Some(name),
            Some(Settle::Json(_) | Settle::Trailer(_)) | None => None,
        }
    }

    /// Whether what follows the head of a response may settle the cost.
    pub fn settles_by_body(&self) -> bool {
        let by_body = matches!(self.settle, Some(Settle::Json(_) | Settle::Trailer(_)));
        by_body || self.usage.is_some()
    }

    /// Whether a part of this kind chooses the upstream's server.
    pub fn is_balanced_by(&self, is_such: fn(&Part) -> bool) -> bool {
        self.affinity
            .as_ref()
            .is_some_and(|key| key.all().any(is_such))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSource {
    Fixed(u64),
    /// A header of trusted peers; 1 for all other requests.
    Header(HeaderName),
    /// A member of the body, which clients choose; 1 if it is missing or no number.
    Body(MemberPath),
}

/// Where a response has the final cost of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settle {
    Header(HeaderName),
    /// A member of a JSON body, or of the last event or line that has it.
    Json(MemberPath),
    /// A field after the body.
    Trailer(HeaderName),
}

impl CostSource {
    /// The weight of a request, units. A header counts only if the peer is `trusted`; 1 if it is
    /// missing or not a number. A fraction is rounded up. Of several values the greatest counts,
    /// because the client may have sent the others. A member of the body is
    /// [`CostSource::body_units`].
    pub fn units(&self, headers: &HeaderMap, trusted: bool) -> u64 {
        match self {
            Self::Fixed(units) => *units,
            Self::Header(name) if trusted => headers
                .get_all(name)
                .iter()
                .filter_map(|line| line.to_str().ok())
                .flat_map(|line| line.split(','))
                .filter_map(|value| rounded_up(value.trim()))
                .max()
                .unwrap_or(1),
            Self::Header(_) | Self::Body(_) => 1,
        }
    }

    pub fn asks_body(&self) -> bool {
        matches!(self, Self::Body(_))
    }

    /// The weight that the body of a request names. `None` if a body names none.
    pub fn body_units(&self, body: Option<&BodyFacts>) -> Option<u64> {
        match self {
            Self::Body(path) => body?.number(&BodyMember::Path(path.clone())),
            Self::Fixed(_) | Self::Header(_) => None,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusSet {
    /// Bit n stands for class n.
    classes: u8,
    codes: Vec<u16>,
}

impl StatusSet {
    /// Adds a class (`5xx`) or one status (`404`). The error says what to write.
    pub fn add(&mut self, text: &str) -> Result<(), &'static str> {
        const WRITE: &str = "write a class such as `5xx`, or a status such as `404`";
        let digit = |byte: u8| byte.wrapping_sub(b'0');
        match *text.as_bytes() {
            [class @ b'1'..=b'5', b'x', b'x'] => self.classes |= 1 << digit(class),
            [b'1'..=b'5', b'0'..=b'9', b'0'..=b'9'] => {
                self.codes.push(text.parse().map_err(|_| WRITE)?);
            }
            _ => return Err(WRITE),
        }
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.classes == 0 && self.codes.is_empty()
    }

    pub fn contains(&self, status: StatusCode) -> bool {
        self.contains_code(status.as_u16())
    }

    fn contains_code(&self, code: u16) -> bool {
        self.classes & (1 << (code / 100).min(7)) != 0 || self.codes.contains(&code)
    }

    /// Whether it has all statuses of another set.
    pub fn covers(&self, other: &StatusSet) -> bool {
        let mut codes = other.codes.iter();
        other.classes & !self.classes == 0 && codes.all(|code| self.contains_code(*code))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RouteQuery<'p> {
    /// The host, as [`host_of`] returns it.
    pub host: &'p str,
    pub path: &'p CanonicalPath<'p>,
    pub method: &'p Method,
    pub headers: &'p HeaderMap,
    /// The query without its `?`.
    pub query: Option<&'p str>,
    /// The port of the proxy that the request came to; 0 if that is not known.
    pub port: u16,
}

/// Names and values of a route's `{param}`s, in the path's order.
pub type Params<'t, 'p> = SmallVec<[(&'t str, &'p str); 4]>;

#[derive(Clone, Debug)]
pub struct RouteMatch<'t, 'p> {
    pub route: &'t Route,
    pub params: Params<'t, 'p>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_that_is_no_small_integer_is_no_small_cost() {
        let cost = CostSource::Header(HeaderName::from_static("x-cost"));
        for (text, units) in [
            ("7", 7),
            ("1000.5", 1001),
            ("1e3", 1000),
            ("3, 2.5", 3),
            ("0.0", 0),
            ("1e30", u64::MAX),
            ("1e400", u64::MAX),
            ("18446744073709551616", u64::MAX),
            ("-5", 1),
            ("inf", 1),
            ("nan", 1),
            ("many", 1),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("x-cost", text.parse().unwrap());
            assert_eq!(cost.units(&headers, true), units, "{text}");
            assert_eq!(cost.units(&headers, false), 1, "{text}");
        }
    }

    #[test]
    fn classes_and_codes() {
        let mut set = StatusSet::default();
        assert!(set.is_empty());
        set.add("5xx").unwrap();
        set.add("404").unwrap();
        for (status, expected) in [(500, true), (599, true), (404, true), (400, false)] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(set.contains(status), expected, "{status}");
        }
        for wrong in ["", "6xx", "5XX", "50", "5000", "600", "5x5"] {
            assert!(set.add(wrong).is_err(), "{wrong}");
        }
    }
}
