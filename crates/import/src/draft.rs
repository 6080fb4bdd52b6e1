//! A `proxy.toml` before it is text, and notes on each directive that it does not keep as it was.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use super::calls::CallsDraft;
use super::files::{SourceEntry, SourceLine};
use super::patterns::parse_shape;
use super::values::TomlEntries;
pub(super) use super::values::{clean_name, free_name};
use crate::route::HostPattern;

/// How much of a directive is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Nothing is kept. The operator has to decide.
    Lost,
    /// The result behaves a little differently.
    Differs,
    /// Nothing is kept, and the result needs nothing for it.
    Needless,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    pub grade: Grade,
    pub place: SourceLine,
    /// The directive, in one line.
    pub what: String,
    /// Why it is not kept, or how the result differs.
    pub why: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.place, self.what, self.why)
    }
}

/// The notes of an import, which all of its parts share.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes(Rc<RefCell<BTreeSet<Note>>>);

impl Notes {
    pub(super) fn lost(&self, place: &SourceLine, what: &str, why: impl Into<String>) {
        self.add(Grade::Lost, place, what, why);
    }

    /// Adds a note once: several scopes may inherit one directive.
    pub(super) fn add(&self, grade: Grade, place: &SourceLine, what: &str, why: impl Into<String>) {
        let note = Note {
            grade,
            place: place.clone(),
            what: one_line(what),
            why: why.into(),
        };
        self.0.borrow_mut().insert(note);
    }

    pub(super) fn differs(&self, place: &SourceLine, what: &str, why: impl Into<String>) {
        self.add(Grade::Differs, place, what, why);
    }

    pub(super) fn sorted(&self) -> Vec<Note> {
        self.0.borrow().iter().cloned().collect()
    }
}

/// Returns at most 100 characters of a text, without line breaks or terminal controls.
pub(super) fn one_line(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let line: String = text.chars().take(100).map(clean).collect();
    match text.chars().count() > 100 {
        true => format!("{line}.."),
        false => line,
    }
}

#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) listen: Vec<String>,
    pub(super) proxy_protocol: Option<ProxyProtocolDraft>,
    pub(super) trusted: Vec<String>,
    pub(super) client_ip_header: Option<String>,
    pub(super) tls: TlsDraft,
    pub(super) server: TomlEntries,
    pub(super) request_id: Option<String>,
    pub(super) deny_status: Option<u16>,
    /// Whether each limit has the status of its denials.
    pub(super) has_own_statuses: bool,
    pub(super) limits: Vec<LimitDraft>,
    pub(super) calls: CallsDraft,
    pub(super) upstreams: Vec<UpstreamDraft>,
    pub(super) error_pages: Vec<SectionDraft>,
    pub(super) access_logs: Vec<SectionDraft>,
    pub(super) routes: Vec<RouteDraft>,
    /// `[decide]`; a draft with it has no clients of its own.
    pub(super) decide: TomlEntries,
    pub(super) descriptors: Vec<DescriptorDraft>,
    pub(super) notes: Notes,
    /// The zones of nginx that limits come from.
    pub(super) used_zones: Vec<SourceEntry>,
}

#[derive(Clone, Debug)]
pub(super) struct ProxyProtocolDraft {
    /// `optional` or `required`.
    pub(super) mode: &'static str,
    pub(super) source: SourceEntry,
}

/// `[tls]`
#[derive(Debug, Default)]
pub(super) struct TlsDraft {
    pub(super) listen: Vec<String>,
    pub(super) certificates: Vec<CertificateDraft>,
    pub(super) entries: TomlEntries,
    /// The first server or router that has no plain requests.
    pub(super) only: Option<SourceEntry>,
    /// Why `[tls]` is written as comments only.
    pub(super) disabled: Option<String>,
}

#[derive(Debug)]
pub(super) struct CertificateDraft {
    pub(super) cert: String,
    pub(super) key: String,
    pub(super) place: SourceLine,
}

impl TlsDraft {
    pub(super) fn is_used(&self) -> bool {
        !self.listen.is_empty() && self.disabled.is_none()
    }

    /// Sets `hsts`, in whole days. Returns whether there is at least one day.
    pub(super) fn set_hsts(&mut self, seconds: Option<u64>) -> bool {
        match seconds.unwrap_or(0) / 86_400 {
            0 => return false,
            365 => self.entries.add_new("hsts", "true"),
            days => self.entries.add_new("hsts", format!("\"{days}d\"")),
        }
        true
    }
}

/// `[limit.NAME]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitDraft {
    pub(super) name: String,
    pub(super) source: SourceEntry,
    pub(super) entries: TomlEntries,
}

/// `[upstream.NAME]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UpstreamDraft {
    pub(super) name: String,
    pub(super) servers: Vec<ServerDraft>,
    pub(super) entries: TomlEntries,
    pub(super) place: SourceLine,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerDraft {
    pub(super) url: String,
    pub(super) weight: Option<u64>,
    pub(super) max_connections: Option<u64>,
    pub(super) is_backup: bool,
}

/// A section that routes name, such as `[error_page.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SectionDraft {
    pub(super) name: String,
    pub(super) source: SourceEntry,
    pub(super) entries: TomlEntries,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TargetDraft {
    Upstream(String),
    Respond {
        status: u16,
        body: Option<String>,
        has_variables: bool,
        content_type: Option<String>,
    },
    Redirect {
        to: String,
        status: u16,
    },
    /// The source cannot be translated, for this reason: the route answers 501.
    Closed(String),
}

impl TargetDraft {
    pub(super) fn respond(status: u16) -> TargetDraft {
        TargetDraft::Respond {
            status,
            body: None,
            has_variables: false,
            content_type: None,
        }
    }

    pub(super) fn is_upstream(&self, name: &str) -> bool {
        matches!(self, TargetDraft::Upstream(known) if known == name)
    }

    pub(super) fn denies(&self) -> bool {
        matches!(
            self,
            TargetDraft::Closed(_) | TargetDraft::Respond { status: 400.., .. }
        )
    }
}

/// The target of a route, and settings that belong to the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RouteAction {
    pub(super) target: TargetDraft,
    pub(super) entries: TomlEntries,
    /// Changes of headers in place of those of the location; `None` keeps the location's.
    pub(super) headers: Option<TomlEntries>,
}

impl From<TargetDraft> for RouteAction {
    fn from(target: TargetDraft) -> RouteAction {
        RouteAction {
            target,
            entries: TomlEntries::default(),
            headers: None,
        }
    }
}

/// A header or a query parameter that a request must have, and its value as a route writes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HeaderDraft {
    /// That of the header, or `query:NAME`.
    pub(super) name: String,
    /// `None` accepts any value.
    pub(super) value: Option<String>,
}

/// `[[route]]`
#[derive(Clone, Debug)]
pub(super) struct RouteDraft {
    pub(super) source: SourceEntry,
    pub(super) host: Option<String>,
    pub(super) path: String,
    pub(super) methods: Vec<String>,
    pub(super) headers: Vec<HeaderDraft>,
    /// `None` for every port.
    pub(super) port: Option<u16>,
    /// Whether its paths end with a slash; `None` for both.
    pub(super) trailing_slash: Option<bool>,
    pub(super) target: TargetDraft,
    pub(super) limits: Vec<String>,
    /// The names of its error pages, and of its logs.
    pub(super) error_pages: Vec<String>,
    pub(super) access_logs: Vec<String>,
    /// The name of a usage, for a route to a model server.
    pub(super) usage: Option<String>,
    /// Whether the source serves only clients with a key.
    pub(super) needs_key: bool,
    pub(super) entries: TomlEntries,
}

/// `[[descriptor]]`
#[derive(Clone, Debug)]
pub(super) struct DescriptorDraft {
    pub(super) source: SourceEntry,
    pub(super) entries: TomlEntries,
}

impl RouteDraft {
    /// Makes a route for every request.
    pub(super) fn new(source: SourceEntry, target: TargetDraft) -> RouteDraft {
        RouteDraft {
            source,
            host: None,
            path: "/*".to_owned(),
            methods: Vec::new(),
            headers: Vec::new(),
            port: None,
            trailing_slash: None,
            target,
            limits: Vec::new(),
            error_pages: Vec::new(),
            access_logs: Vec::new(),
            usage: None,
            needs_key: false,
            entries: TomlEntries::default(),
        }
    }

    /// Removes the limits and the usage of calls of a route that forwards none.
    fn close_calls(&mut self) {
        if self.usage.take().is_some() {
            self.limits.clear();
            self.entries.list.retain(|one| one.key != "refund");
        }
    }

    pub(super) fn methods_meet(&self, other: &RouteDraft) -> bool {
        let is_others = |one: &String| other.methods.is_empty() || other.methods.contains(one);
        self.methods.is_empty() || self.methods.iter().any(is_others)
    }

    /// Whether it refuses or limits some requests.
    pub(super) fn is_guarded(&self) -> bool {
        let guards = ["access", "require_client_certificate"];
        let mut entries = self.entries.list.iter();
        self.target.denies()
            || self.needs_key
            || !self.limits.is_empty()
            || entries.any(|one| guards.contains(&one.key.as_ref()))
    }

    /// Whether it refuses requests that `other` serves.
    pub(super) fn guards_more_than(&self, other: &RouteDraft) -> bool {
        let entry = |route: &RouteDraft, key: &str| {
            let mut entries = route.entries.list.iter();
            entries
                .find(|one| one.key == key)
                .map(|one| one.value.clone())
        };
        let guards = |key: &&str| {
            let own = entry(self, key);
            own.is_some() && own != entry(other, key)
        };
        let has_guard = ["access", "require_client_certificate"].iter().any(guards);
        let denies = self.target.denies() || has_guard || self.needs_key && !other.needs_key;
        denies && !other.target.denies()
    }

    /// Closes a route, because a guard of `other` is for some of its requests too.
    pub(super) fn close_for(&mut self, other: &RouteDraft) {
        self.answer(TargetDraft::Closed(format!(
            "`{}` of line {} guards some of the same requests",
            other.source.text, other.source.place.line
        )));
    }

    /// Answers all requests here, and removes what is for an upstream only.
    pub(super) fn answer(&mut self, target: TargetDraft) {
        self.target = target;
        self.entries.list.retain(|one| one.key == "headers_down");
        self.limits.clear();
        self.usage = None;
    }

    fn conflicts_with(&self, other: &RouteDraft) -> bool {
        let are_for_all = |route: &RouteDraft| route.methods.is_empty();
        let headers = |route: &RouteDraft| BTreeSet::from_iter(route.headers.clone());
        let host = |route: &RouteDraft| route.host.as_deref().map(HostPattern::parse);
        self.port == other.port
            && self.trailing_slash == other.trailing_slash
            && host(self) == host(other)
            && parse_shape(&self.path) == parse_shape(&other.path)
            && are_for_all(self) == are_for_all(other)
            && self.methods_meet(other)
            && headers(self) == headers(other)
    }
}

impl Draft {
    /// Adds a route, or returns the earlier route that already matches its requests.
    pub(super) fn add_route(&mut self, route: RouteDraft) -> Option<&RouteDraft> {
        let earlier = self
            .routes
            .iter()
            .position(|one| one.conflicts_with(&route));
        let Some(index) = earlier else {
            self.routes.push(route);
            return None;
        };
        let first = &mut self.routes[index];
        // Only one of two routes for the same requests can stay, so the one that denies wins.
        if route.guards_more_than(first) {
            first.close_for(&route);
        }
        self.routes.get(index)
    }

    /// Adds a route, or notes which one takes its requests.
    pub(super) fn add_or_note(&mut self, route: RouteDraft) {
        let source = route.source.clone();
        let first = self.add_route(route).map(|first| first.source.text.clone());
        if let Some(first) = first {
            let why = format!("`{first}` takes these requests");
            self.notes.lost(&source.place, &source.text, why);
        }
    }

    pub(super) fn redirect_to_https(&mut self) {
        self.tls.entries.add_new("redirect", "true");
    }

    /// Adds an upstream unless there is an equal one. Returns its name.
    pub(super) fn add_upstream(&mut self, mut draft: UpstreamDraft) -> String {
        let same =
            |one: &&UpstreamDraft| one.servers == draft.servers && one.entries == draft.entries;
        if let Some(known) = self.upstreams.iter().find(same) {
            return known.name.clone();
        }
        draft.name = free_name(&draft.name, self.upstreams.iter().map(|one| &one.name));
        let name = draft.name.clone();
        self.upstreams.push(draft);
        name
    }

    /// Adds a limit unless there is an equal one. Returns its name.
    pub(super) fn add_limit(&mut self, mut draft: LimitDraft) -> String {
        let same = |one: &&LimitDraft| {
            one.source.text == draft.source.text && one.entries == draft.entries
        };
        if let Some(known) = self.limits.iter().find(same) {
            return known.name.clone();
        }
        draft.name = free_name(&draft.name, self.limits.iter().map(|one| &one.name));
        let name = draft.name.clone();
        self.limits.push(draft);
        name
    }

    /// Removes duplicates, and settings that have no effect without others.
    pub(super) fn finish(&mut self) {
        for list in [&mut self.listen, &mut self.tls.listen, &mut self.trusted] {
            let mut seen = BTreeSet::new();
            list.retain(|one| seen.insert(one.clone()));
        }
        if self.trusted.is_empty()
            && let Some(ProxyProtocolDraft { source, .. }) = self.proxy_protocol.take()
        {
            let why = "`proxy_protocol` needs `trusted_proxies`, and this source names no proxies. \
                       Set both. Until then the proxy refuses connections with the header";
            self.notes.lost(&source.place, &source.text, why);
        }
        if self.tls.listen.is_empty() {
            self.tls.certificates.clear();
            self.tls.entries.list.clear();
        } else if self.tls.certificates.is_empty() {
            self.tls.disabled = Some("no certificate is named".to_owned());
        }
        self.protect_tls_only();
        if self.routes.is_empty() {
            self.upstreams.clear();
        }
        let is_closed = |one: &&mut RouteDraft| !matches!(one.target, TargetDraft::Upstream(_));
        for route in self.routes.iter_mut().filter(is_closed) {
            route.close_calls();
        }
        let mut seen = BTreeSet::new();
        self.tls
            .certificates
            .retain(|pair| seen.insert((pair.cert.clone(), pair.key.clone())));
    }

    /// Redirects plain requests to https where the source served a site over TLS only. The redirect
    /// stays even while there is no certificate.
    fn protect_tls_only(&mut self) {
        let is_set = self.tls.entries.has("redirect");
        if self.listen.is_empty() {
            self.tls.entries.list.retain(|one| one.key != "redirect");
        } else if let Some(source) = self.tls.only.clone()
            && !is_set
            && !self.tls.listen.is_empty()
        {
            self.redirect_to_https();
            let why = "was served over TLS only, and routes do not depend on ports: all plain \
                       requests are sent to https, also those that were served before";
            self.notes.lost(&source.place, &source.text, why);
        }
        let guards = is_set || self.tls.only.is_some();
        if guards && self.tls.disabled.is_some() && !self.tls.listen.is_empty() {
            let port = |listen: &String| listen.rsplit_once(':')?.1.parse::<u16>().ok();
            let port = self.tls.listen.iter().find_map(port).filter(|one| *one > 0);
            let port = port.unwrap_or(443).to_string();
            self.server.add_new("https_port", port);
        }
    }

    /// Writes `[tls]` as comments, because this machine cannot use its certificates.
    pub(super) fn disable_tls(&mut self, why: &str) {
        let why = why.replace("`tls.certificates.cert`", "`cert`");
        self.tls.disabled = Some(why.clone());
        if let Some(CertificateDraft { cert, place, .. }) = self.tls.certificates.first() {
            let what = format!("certificate {cert}");
            let why =
                format!("{why}; [tls] is written as comments: take their `#` away where it is");
            self.notes.lost(place, &what, why);
        }
        self.protect_tls_only();
    }
}
