//! Routes: which one a request belongs to.
//!
//! A table is built once and only read after that. The most specific route wins, whatever the
//! order of the file; finding it takes the same time for ten routes and for ten thousand.

mod answer;
mod asked;
mod change;
mod fit;
mod host;
mod near;
mod pattern;
mod prefix;
mod regex;
mod status;
mod table;
pub mod template;
mod trie;

use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;
use http::{HeaderMap, Method};
use smallvec::SmallVec;

use crate::limit::Limit;
use crate::limit::key::{Key, Part};
use crate::path::{CanonicalPath, Case};

pub use answer::{NoWay, Redirect, RedirectError, Respond, Target};
pub use asked::is_preflight;
pub use change::{Action, Direction, HeaderChange, Text};
pub use fit::{MethodError, method_of};
pub use host::{HostError, HostPattern, MAX_HOST_BYTES, host_of};
pub use near::{Miss, Near, Precedence};
pub use pattern::{MAX_SEGMENTS, PathPattern, PatternError, PatternFault};
pub use prefix::Prefix;
pub use regex::{Regex, RegexFault};
pub use status::StatusSet;
pub use table::{Conflict, RouteTable};

/// One `[[route]]`: which requests it takes, where they go and what limits them.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its place in its table.
    pub number: usize,
    /// What operators call it.
    pub name: Arc<str>,
    /// Hosts it answers for.
    pub host: HostPattern,
    /// Paths it answers for, in the form of `case`.
    pub path: PathPattern,
    /// Whether letter case tells its paths apart.
    pub case: Case,
    /// Methods it answers for; empty for all. `GET` includes `HEAD`.
    pub methods: Vec<Method>,
    /// Headers that a request must carry; all of them.
    pub headers: Vec<HeaderMatch>,
    /// Where its requests go.
    pub target: Target,
    /// What decides which of the upstream's servers gets a request, where that is not chance.
    pub affinity: Option<Key>,
    /// What limits its requests; every one must allow.
    pub limits: Vec<Arc<Limit>>,
    /// What one of its requests weighs.
    pub cost: CostSource,
    /// The response header that says what a request weighed in the end, units.
    pub settle: Option<HeaderName>,
    /// Responses whose requests get their units back.
    pub refund: StatusSet,
    /// What is taken off its requests' paths on their way up.
    pub strip_prefix: Option<Prefix>,
    /// What is put before their paths after that.
    pub add_prefix: Option<Prefix>,
    /// Bytes in the body of one of its requests; `None` for no bound.
    pub body_limit: Option<u64>,
    /// What changes in its requests' heads, in this order.
    pub headers_up: Vec<HeaderChange>,
    /// What changes in its responses' heads, in this order.
    pub headers_down: Vec<HeaderChange>,
    /// From letting a request pass until the last byte of its answer; `None` for no bound.
    pub timeout: Option<Duration>,
}

impl Route {
    /// Whether a response may change what its request has cost.
    pub fn adjusts(&self) -> bool {
        self.settle.is_some() || !self.refund.is_empty()
    }

    /// Whether its upstream's server is chosen by such a part of a key.
    pub fn is_balanced_by(&self, is_such: fn(&Part) -> bool) -> bool {
        self.affinity
            .as_ref()
            .is_some_and(|key| key.all().any(is_such))
    }
}

/// Where a request's weight comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSource {
    /// Always the same, units.
    Fixed(u64),
    /// This header, believed from trusted peers only; else 1.
    Header(HeaderName),
}

/// A header that a request must carry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderMatch {
    /// Its name.
    pub name: HeaderName,
    /// What it must be.
    pub value: ValueMatch,
}

/// What a header's value must be, spaces around it aside.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ValueMatch {
    /// Any value will do.
    Any,
    /// The expression is found in it.
    Regex(Regex),
    /// Exactly this.
    Exactly(String),
}

impl ValueMatch {
    /// Reads a value as it stands in a route: `regex:..` is an expression.
    pub fn parse(text: String) -> Result<ValueMatch, RegexFault> {
        match text.strip_prefix(regex::MARK) {
            Some(expression) => Regex::parse(expression).map(ValueMatch::Regex),
            None => Ok(ValueMatch::Exactly(text)),
        }
    }
}

/// What the table is asked about one request.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'p> {
    /// The host asked for, as [`host_of`] returns it.
    pub host: &'p str,
    /// The canonical path.
    pub path: &'p CanonicalPath<'p>,
    /// The method.
    pub method: &'p Method,
    /// The request's headers.
    pub headers: &'p HeaderMap,
}

/// Names and values of a route's `{param}`s, in the path's order.
pub type Params<'t, 'p> = SmallVec<[(&'t str, &'p str); 4]>;

/// The route that a request belongs to.
#[derive(Clone, Debug)]
pub struct Found<'t, 'p> {
    /// The route.
    pub route: &'t Route,
    /// What its `{param}`s stand for in this path.
    pub params: Params<'t, 'p>,
}
