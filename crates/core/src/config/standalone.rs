//! Files that limit what somebody else serves: as a proxy's, without what listens and forwards.

use super::Config;
use super::diagnostic::{Code, Diagnostic, Span};
use super::section::Section;

/// A whole, valid configuration of a limiter alone: it listens nowhere and forwards nothing.
#[derive(Debug)]
pub struct Limits(pub(super) Config);

impl Limits {
    /// What it says; its routes' upstreams and its `server` mean nothing.
    pub fn into_config(self) -> Config {
        self.0
    }
}

/// Stands in each route for the upstream that there is none of.
pub(super) const INNER: usize = 0;

/// Settings of the top of a file that only a proxy has.
const SERVING: [&str; 6] = ["listen", "tls", "admin", "upstream", "server", "tracing"];
/// Settings of `[log]` that concern the access log and the admin: the service in question has its
/// own.
const ACCESS: [&str; 5] = ["access", "format", "sample_allowed", "keys", "silence"];

/// Refuses what has no meaning where nothing is listened to or forwarded.
pub(super) fn refuse_serving(top: &Section<'_>) {
    for key in SERVING {
        if top.peek(key).is_some() {
            refuse(top, key, &top.key_span(key));
        }
    }
    for (key, span) in ACCESS
        .iter()
        .filter_map(|key| Some((key, top.span_within("log", key)?)))
    {
        refuse(top, &format!("log.{key}"), &span);
    }
}

/// Refuses a setting that only a proxy has.
pub(super) fn refuse(section: &Section<'_>, key: &str, span: &Span) {
    section.reader.report(meaningless(&section.full(key), span));
}

pub(super) fn meaningless(key: &str, span: &Span) -> Diagnostic {
    Diagnostic::new(Code::UnknownKey, format!("`{key}` is a proxy's setting"))
        .at(span, "not a setting here")
        .note("these limits stand before a service that listens, answers and logs by itself")
}
