//! What will be written: a configuration before it is text, whoever it came from.

use std::collections::BTreeSet;

use super::notes::{Notes, Place};
use crate::limit::Rate;
use crate::route::{HostPattern, PathPattern, PatternError};

/// Everything.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) listen: Vec<String>,
    pub(super) proxy_protocol: Option<ProxyProtocol>,
    pub(super) trusted: Vec<String>,
    pub(super) client_ip_header: Option<String>,
    pub(super) tls: Tls,
    pub(super) server: Vec<Setting>,
    pub(super) request_id: Option<String>,
    pub(super) deny_status: Option<u16>,
    pub(super) limits: Vec<LimitDraft>,
    pub(super) upstreams: Vec<UpstreamDraft>,
    pub(super) routes: Vec<RouteDraft>,
    pub(super) notes: Notes,
}

/// Connections begin with a header that says whom they are from.
#[derive(Clone, Debug)]
pub(super) struct ProxyProtocol {
    /// `optional`, `required`.
    pub(super) mode: &'static str,
    pub(super) place: Place,
    pub(super) was: String,
}

/// A key and its value as TOML.
pub(super) type Setting = (String, String);

/// `[tls]`
#[derive(Debug, Default)]
pub(super) struct Tls {
    pub(super) listen: Vec<String>,
    /// Certificate, key and where they are named.
    pub(super) certificates: Vec<(String, String, Place)>,
    pub(super) settings: Vec<Setting>,
    /// Some of what is served was never served to plain requests; where that stands.
    pub(super) only: Option<(Place, String)>,
    /// Why it is written as comments only.
    pub(super) elsewhere: Option<String>,
}

impl Tls {
    pub(super) fn is_used(&self) -> bool {
        !self.listen.is_empty() && self.elsewhere.is_none()
    }
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Budget {
    Rate(Rate),
    Concurrent(u64),
}

/// Who is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyDraft {
    /// Together they are the key.
    pub(super) parts: Vec<String>,
    /// `skip`, `shared`; else the default.
    pub(super) missing: Option<&'static str>,
    pub(super) exempt: Vec<String>,
}

/// `[limit.NAME]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitDraft {
    pub(super) name: String,
    /// What it was before.
    pub(super) was: String,
    pub(super) budget: Budget,
    pub(super) key: KeyDraft,
    pub(super) shadow: bool,
    pub(super) place: Place,
}

/// `[upstream.NAME]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UpstreamDraft {
    pub(super) name: String,
    pub(super) servers: Vec<ServerDraft>,
    pub(super) settings: Vec<Setting>,
    pub(super) place: Place,
}

/// One of its servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerDraft {
    pub(super) url: String,
    pub(super) weight: Option<u64>,
    pub(super) max_connections: Option<u64>,
}

/// What a route does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// To the upstream of this name.
    Upstream(String),
    Respond {
        status: u16,
        body: Option<String>,
        content_type: Option<String>,
    },
    Redirect {
        to: String,
        status: u16,
    },
    /// It did something that cannot be said: 501 until somebody has decided.
    Closed(String),
}

impl Goal {
    /// Whether requests are turned away.
    pub(super) fn refuses(&self) -> bool {
        matches!(self, Goal::Closed(_) | Goal::Respond { status: 400.., .. })
    }
}

/// `[[route]]`
#[derive(Clone, Debug)]
pub(super) struct RouteDraft {
    pub(super) place: Place,
    /// What it was before.
    pub(super) was: String,
    pub(super) host: Option<String>,
    pub(super) path: String,
    pub(super) methods: Vec<String>,
    /// Names and values; any value where there is none.
    pub(super) headers: Vec<(String, Option<String>)>,
    pub(super) goal: Goal,
    pub(super) limits: Vec<String>,
    pub(super) settings: Vec<Setting>,
}

impl RouteDraft {
    /// Whether the same requests would fit both.
    fn rivals(&self, other: &RouteDraft) -> bool {
        let methods_meet = self.methods.is_empty() && other.methods.is_empty()
            || self.methods.iter().any(|one| other.methods.contains(one));
        let headers = |one: &RouteDraft| {
            let mut headers = one.headers.clone();
            headers.sort();
            headers
        };
        let host = |one: &RouteDraft| one.host.as_deref().map(HostPattern::parse);
        host(self) == host(other)
            && shape(&self.path) == shape(&other.path)
            && methods_meet
            && headers(self) == headers(other)
    }
}

impl RouteDraft {
    /// Whether it takes requests of the other one, which is more specific by its host or path.
    pub(super) fn surrounds(&self, other: &RouteDraft) -> bool {
        let below = |base: &str| {
            let rest = other.path.strip_prefix(base);
            rest.is_some_and(|rest| rest.starts_with('/') && rest != "/*")
        };
        let path = self.path.strip_suffix("/*").is_some_and(below);
        let hosts = self.host == other.host || self.host.is_none();
        let wider = self.host != other.host && self.path == other.path;
        hosts && (path || wider) && self.place != other.place
    }

    /// Whether only the methods are others.
    pub(super) fn is_but_for_methods(&self, other: &RouteDraft) -> bool {
        let different = self.methods.iter().all(|one| !other.methods.contains(one));
        self.place == other.place
            && (&self.host, &self.path, &self.headers) == (&other.host, &other.path, &other.headers)
            && !self.methods.is_empty()
            && !other.methods.is_empty()
            && different
    }
}

impl Draft {
    /// Adds a route, unless an earlier one takes its requests: that one, then.
    pub(super) fn add_route(&mut self, route: RouteDraft) -> Option<&RouteDraft> {
        let at = self.routes.iter().position(|one| one.rivals(&route));
        match at {
            Some(at) => {
                let first = &mut self.routes[at];
                // Of two for the same requests the one that turns them away is kept.
                if route.goal.refuses() && !first.goal.refuses() {
                    let why = format!("`{}` of line {} guards", route.was, route.place.line);
                    first.goal = Goal::Closed(format!("{why} some of the same requests"));
                    first.settings.retain(|(key, _)| key == "headers_down");
                    first.limits.clear();
                }
                self.routes.get(at)
            }
            None => {
                self.routes.push(route);
                None
            }
        }
    }

    /// Plain requests are sent to https.
    pub(super) fn redirect_to_https(&mut self) {
        let settings = &mut self.tls.settings;
        if !settings.iter().any(|(key, _)| key == "redirect") {
            settings.push(("redirect".to_owned(), "true".to_owned()));
        }
    }

    /// The name of an upstream that is like this one; a new one if there is none.
    pub(super) fn upstream(&mut self, draft: UpstreamDraft) -> String {
        let same =
            |one: &&UpstreamDraft| one.servers == draft.servers && one.settings == draft.settings;
        if let Some(known) = self.upstreams.iter().find(same) {
            return known.name.clone();
        }
        let taken = self.upstreams.iter().map(|one| one.name.as_str());
        let name = free_name(&draft.name, taken);
        self.upstreams.push(UpstreamDraft {
            name: name.clone(),
            ..draft
        });
        name
    }

    /// The same for a limit.
    pub(super) fn limit(&mut self, draft: LimitDraft) -> String {
        let same = |one: &&LimitDraft| {
            (&one.was, one.budget, &one.key, one.shadow)
                == (&draft.was, draft.budget, &draft.key, draft.shadow)
        };
        if let Some(known) = self.limits.iter().find(same) {
            return known.name.clone();
        }
        let taken = self.limits.iter().map(|one| one.name.as_str());
        let name = free_name(&draft.name, taken);
        self.limits.push(LimitDraft {
            name: name.clone(),
            ..draft
        });
        name
    }

    /// Whether a limit of this name was there before the last one.
    pub(super) fn has_limit_like(&self, name: &str) -> bool {
        let before = self.limits.split_last().map(|(_, before)| before);
        let wanted = free_name(name, std::iter::empty());
        before.is_some_and(|before| before.iter().any(|one| one.name == wanted))
    }

    /// What has no use without the rest, and what the rest needs.
    pub(super) fn settle(&mut self) {
        let mut seen = BTreeSet::new();
        self.listen.retain(|one| seen.insert(one.clone()));
        self.tls.listen.retain(|one| seen.insert(one.clone()));
        let mut known = BTreeSet::new();
        self.trusted.retain(|one| known.insert(one.clone()));
        if self.trusted.is_empty()
            && let Some(header) = self.proxy_protocol.take()
        {
            let why = "nobody is named who may say whom a connection is from: with \
                       `trusted_proxies` say who, and then `proxy_protocol`; until then what \
                       begins with its header is refused";
            self.notes.lost(&header.place, &header.was, why);
        }
        if self.tls.listen.is_empty() {
            self.tls.certificates.clear();
            self.tls.settings.clear();
        } else if self.tls.certificates.is_empty() {
            self.tls.elsewhere = Some("no certificate is named".to_owned());
        }
        self.keep_tls();
        let mut pairs = BTreeSet::new();
        self.tls
            .certificates
            .retain(|(cert, key, _)| pairs.insert((cert.clone(), key.clone())));
    }

    /// What was served over TLS only is never served to plain requests: those are sent to https,
    /// also while there is no certificate.
    pub(super) fn keep_tls(&mut self) {
        let redirects = |(key, _): &Setting| key == "redirect";
        let is_set = self.tls.settings.iter().any(redirects);
        if self.listen.is_empty() {
            self.tls.settings.retain(|one| !redirects(one));
        } else if let Some((place, what)) = self.tls.only.clone()
            && !is_set
            && self.tls.is_used()
        {
            self.redirect_to_https();
            let why = "was served over TLS only, and routes do not depend on ports: all plain \
                       requests are sent to https, also those that were served before";
            self.notes.lost(&place, &what, why);
        }
        let guards = is_set || self.tls.only.is_some();
        let known = self.server.iter().any(|(key, _)| key == "https_port");
        if guards && !known && self.tls.elsewhere.is_some() && !self.tls.listen.is_empty() {
            let port = |listen: &String| listen.rsplit_once(':')?.1.parse::<u16>().ok();
            let port = self
                .tls
                .listen
                .iter()
                .find_map(port)
                .filter(|port| *port > 0);
            let value = port.unwrap_or(443).to_string();
            self.server.push(("https_port".to_owned(), value));
        }
    }

    /// `[tls]` cannot be used on this machine.
    pub(super) fn tls_is_elsewhere(&mut self, why: &str) {
        let why = why.replace("`tls.certificates.cert`", "`cert`");
        self.tls.elsewhere = Some(why.clone());
        if let Some((cert, _, place)) = self.tls.certificates.first() {
            let what = format!("certificate {cert}");
            let why =
                format!("{why}; [tls] is written as comments: take their `#` away where it is");
            self.notes.lost(&place.clone(), &what, why);
        }
        self.keep_tls();
    }
}

/// What a path stands for, whatever its parameters are called.
fn shape(path: &str) -> Result<PathPattern, PatternError> {
    let segments = path.split('/').enumerate().map(|(number, segment)| {
        match segment.starts_with('{') && segment.ends_with('}') {
            true => format!("{{p{number}}}"),
            false => segment.to_owned(),
        }
    });
    PathPattern::parse(&segments.collect::<Vec<_>>().join("/"))
}

/// `base` as a name of limits and upstreams that nobody has yet.
fn free_name<'t>(base: &str, taken: impl Iterator<Item = &'t str>) -> String {
    let taken: BTreeSet<&str> = taken.collect();
    let fits = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9' | '_' | '-') => c,
        _ => '-',
    };
    let name: String = base.chars().map(fits).take(58).collect();
    let name = match name.trim_matches('-') {
        "" => "unnamed",
        name => name,
    };
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut all = std::iter::once(name.to_owned()).chain(numbered);
    all.find(|name| !taken.contains(name.as_str()))
        .unwrap_or_default()
}
