//! The tables that routes refer to: limits and upstreams by name, those that are written in place
//! included.

use std::collections::HashMap;
use std::sync::Arc;

use super::advice;
use super::budget::{self, Budget};
use super::diagnostic::{Code, Diagnostic, Span};
use super::limits::RawLimit;
use super::reader::{At, Reader};
use super::slip::nearest;
use super::upstream::RawUpstream;
use super::{Balance, UpstreamSettings, address};
use crate::limit::OnError;
use crate::limit::key::Key;
use crate::path::Case;
use crate::route;

/// What a route is called that the top-level `upstream` makes, and the limit for routes that name
/// none.
pub(super) const DEFAULT: &str = "default";

/// An upstream and where it came from.
pub(super) struct Target {
    pub(super) settings: UpstreamSettings,
    pub(super) span: Span,
    /// Where each of its servers is named.
    pub(super) server_spans: Vec<Span>,
    pub(super) used: bool,
}

/// The tables that routes refer to.
pub(super) struct Names<'r> {
    pub(super) reader: &'r Reader<'r>,
    pub(super) budgets: Vec<Budget>,
    pub(super) targets: Vec<Target>,
    pub(super) on_error: OnError,
    /// Bytes of a request's body where its route does not say it.
    pub(super) max_body: Option<u64>,
    /// What the file says of letter case in all paths.
    pub(super) case: Option<Case>,
    /// Routes of whose letter case the file says nothing, by number, with their paths' places.
    pub(super) caseless: Vec<At<usize>>,
    /// Whether some route does not say that it has no limits, and has none.
    pub(super) unlimited_unsaid: bool,
    /// How many budgets are limits: rates of `unlimited` are not.
    limits: usize,
    /// How many budgets have a section; the others are rates in place, which nobody can refer to.
    sections: usize,
    limit_index: HashMap<String, usize>,
    target_index: HashMap<String, usize>,
}

impl<'r> Names<'r> {
    pub(super) fn new(
        reader: &'r Reader<'r>,
        on_error: OnError,
        max_body: Option<u64>,
        case: Option<Case>,
    ) -> Names<'r> {
        Names {
            reader,
            budgets: Vec::new(),
            targets: Vec::new(),
            on_error,
            max_body,
            case,
            caseless: Vec::new(),
            unlimited_unsaid: false,
            limits: 0,
            sections: 0,
            limit_index: HashMap::new(),
            target_index: HashMap::new(),
        }
    }

    /// Checks a limit by itself and adds it; returns its index.
    pub(super) fn add_limit(&mut self, raw: RawLimit) -> usize {
        let index = self.budgets.len();
        self.limit_index.insert(raw.name.value.clone(), index);
        let mut budget = budget::budget(self.reader, raw, self.on_error);
        if let Some(limit) = &mut budget.limit {
            Arc::make_mut(limit).number = self.limits;
            self.limits += 1;
        }
        self.budgets.push(budget);
        index
    }

    /// What is added from now on has no section.
    pub(super) fn end_sections(&mut self) {
        self.sections = self.budgets.len();
    }

    /// The limit whose section has this name.
    pub(super) fn limit_named(&self, name: &str) -> Option<usize> {
        self.limit_index
            .get(name)
            .copied()
            .filter(|index| *index < self.sections)
    }

    /// Whether routes that name no limits have one.
    pub(super) fn has_default(&self) -> bool {
        self.limit_named(DEFAULT).is_some()
    }

    /// Whether any limit has this name.
    pub(super) fn is_limit(&self, name: &str) -> bool {
        self.limit_index.contains_key(name)
    }

    /// The key by which the servers of a route's upstream are chosen, if they are.
    pub(super) fn affinity(&self, target: &route::Target) -> Option<Key> {
        let route::Target::Upstream(upstream) = target else {
            return None;
        };
        match &self.targets.get(*upstream)?.settings.balance {
            Balance::Hash(key) => Some(key.clone()),
            Balance::P2c | Balance::RoundRobin => None,
        }
    }

    /// Limits that have sections.
    pub(super) fn limits(&self) -> &[Budget] {
        &self.budgets[..self.sections]
    }

    pub(super) fn add_upstream(&mut self, raw: RawUpstream) -> usize {
        let name = raw.settings.name.to_string();
        self.target_index.insert(name, self.targets.len());
        self.targets.push(Target {
            settings: raw.settings,
            span: raw.span,
            server_spans: raw.server_spans,
            used: false,
        });
        self.targets.len() - 1
    }

    /// What `upstream = TEXT` refers to: a name, or a server's URL in place.
    pub(super) fn target(&mut self, text: &At<String>) -> Option<usize> {
        if let Some(index) = self.target_index.get(&text.value).copied() {
            self.targets[index].used = true;
            return Some(index);
        }
        if !address::is_server(&text.value) {
            self.unknown_upstream(text);
            return None;
        }
        let server = match address::server(&text.value) {
            Ok(server) => server.within(|path| self.reader.surroundings.path(path)),
            Err(error) => {
                let diagnostic = Diagnostic::new(Code::BadUrl, "`upstream` is not a server's URL");
                let diagnostic = diagnostic.because(&text.span, &error);
                let help = diagnostic.help.clone();
                let help = help.or_else(|| advice::of(Code::BadUrl, &text.value));
                self.reader.report(diagnostic.maybe_help(help));
                return None;
            }
        };
        let name = address::server_name(&server);
        let index = match self.target_index.get(&name).copied() {
            Some(index) => index,
            None => self.add_upstream(RawUpstream {
                settings: UpstreamSettings::new(&name, vec![server.into()]),
                span: text.span.clone(),
                server_spans: vec![text.span.clone()],
            }),
        };
        self.targets[index].used = true;
        Some(index)
    }

    fn unknown_upstream(&self, text: &At<String>) {
        if self.reader.is_misnamed("upstream", &text.value) {
            return;
        }
        let known = || self.targets.iter().map(|target| &*target.settings.name);
        let help = match nearest(&text.value, known()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("define it: `[upstream.{}]`, or write a URL", text.value),
        };
        let message = format!("no upstream is called `{}`", text.value);
        let diagnostic = Diagnostic::new(Code::UnknownUpstream, message)
            .at(&text.span, "")
            .help(help);
        self.reader.report(diagnostic);
    }
}
