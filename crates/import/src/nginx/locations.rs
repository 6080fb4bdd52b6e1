//! Translates the locations of a server to routes.

use std::collections::BTreeSet;

use super::access_logs;
use super::actions;
use super::conditions::{self, Condition, ConditionScope, ServerTls};
use super::directives::{self, AddressRules};
use super::early_answers::{self, EarlyAnswer, RequestClass};
use super::error_pages;
use super::limits;
use super::precedence::{self, Location, LocationKind};
use super::rewrites;
use super::scope::{BlockScope, LocationPath};
use super::settings;
use super::syntax::Directive;
use crate::draft::{Draft, RouteAction, RouteDraft, TargetDraft};
use crate::patterns::{ImportedPath, NO_HOST};
use crate::route::HostPattern;
use crate::values::TomlEntries;

pub(super) struct Site<'a> {
    pub(super) scope: &'a BlockScope<'a>,
    /// `None` is every host.
    pub(super) hosts: Vec<Option<String>>,
    /// The hosts of other servers.
    pub(super) other_hosts: Vec<String>,
    /// Names that conditions test, and that have no routes of their own beside an expression or a
    /// wildcard of another server.
    pub(super) mixed_hosts: BTreeSet<String>,
    /// `None` is every port.
    pub(super) ports: Vec<Option<u16>>,
    pub(super) tls: ServerTls,
    /// Why all routes of the server are closed.
    pub(super) closed: Option<String>,
}

impl Site<'_> {
    pub(super) fn add_routes(&mut self, draft: &mut Draft) {
        let whole = LocationPath {
            path: Some("/"),
            ..LocationPath::default()
        };
        self.add_tested_hosts(self.scope);
        let mut answers = self.read_answers(self.scope, &whole, draft);
        let refusal = early_answers::take_refusal(&mut answers);
        self.tls.certificates.status = self.tls.certificates.status.or(refusal);
        for answer in &answers {
            if let Condition::Path(regex) = &answer.condition {
                self.add_for_hosts(self.scope, &format!("regex:{regex}"), &answer.action, draft);
            }
        }
        let rewrites = actions::read_server_rewrites(self.scope);
        for one in rewrites.answered {
            self.add_for_hosts(self.scope, &one.path, &one.target.into(), draft);
        }
        let mut found = Vec::new();
        if !rewrites.answers_all {
            self.collect(self.scope, &mut found, draft);
        }
        let redirects = found.iter().filter_map(|one| one.slash_redirect(&found));
        let redirects: Vec<Location<'_>> = redirects.collect();
        found.extend(redirects);
        for placed in precedence::order(&found) {
            let location = &found[placed.index];
            let one = location.scope.block();
            let mut path = match placed.path {
                Ok(path) => path,
                Err(why) => {
                    one.lost(format!(
                        "{why}; its requests go where its path leads without it"
                    ));
                    continue;
                }
            };
            if let Some(why) = path.differs.take_if(|_| path.is_wider) {
                one.lost(why);
            }
            self.add_location(location, &answers, path, draft);
        }
        let is_rest = |one: &Location<'_>| one.path == "/" && one.kind.is_prefix();
        if !found.iter().any(is_rest) {
            let rest = Location {
                kind: LocationKind::Prefix,
                path: "/",
                scope: self.scope.clone(),
                action: actions::find_action(self.scope, &whole, draft),
                answers: Vec::new(),
                is_plain: true,
            };
            self.add_location(&rest, &answers, ImportedPath::same("/*"), draft);
        }
    }

    fn read_answers(
        &self,
        scope: &BlockScope<'_>,
        path: &LocationPath<'_>,
        draft: &mut Draft,
    ) -> Vec<EarlyAnswer> {
        let tls = self.tls;
        early_answers::read_answers(ConditionScope { scope, path, tls }, draft)
    }

    /// Adds hosts that conditions of the server or of its locations name, so that each has routes
    /// of its own.
    fn add_tested_hosts(&mut self, scope: &BlockScope<'_>) {
        let path = &LocationPath::default();
        for one in scope.named("if") {
            let tls = self.tls;
            let condition = conditions::parse_condition(one, ConditionScope { scope, path, tls });
            for name in condition.named_hosts() {
                self.add_tested_host(&name);
            }
        }
        for one in scope.named("location") {
            self.add_tested_hosts(&scope.enter(one));
        }
    }

    fn add_tested_host(&mut self, name: &str) {
        let text = if name.is_empty() { NO_HOST } else { name };
        let host = Some(text.to_owned());
        let is_others = self.other_hosts.iter().any(|other| other == text);
        // No request has a star in its host.
        if self.hosts.contains(&host) || is_others || name.contains('*') {
            return;
        }
        if HostPattern::parse(text).is_err() {
            self.mixed_hosts.insert(name.to_owned());
            return;
        }
        let covers =
            |host: &&String| HostPattern::parse(host).is_ok_and(|pattern| pattern.matches(name));
        let own = self.hosts.iter().flatten().find(covers);
        let is_others = self.other_hosts.iter().any(|host| covers(&host));
        match own {
            Some(own) if own.starts_with("*.") && !is_others => self.hosts.push(host),
            Some(_) => {
                self.mixed_hosts.insert(name.to_owned());
            }
            None if self.hosts.contains(&None) && !is_others => self.hosts.push(host),
            None => {}
        }
    }

    fn collect<'d>(
        &self,
        scope: &BlockScope<'d>,
        found: &mut Vec<Location<'d>>,
        draft: &mut Draft,
    ) {
        for one in scope.named("location") {
            if let (named, 1) = (one.arg(0), one.args.len())
                && named.starts_with('@')
            {
                if !is_fallback(scope.block(), named) {
                    let why = "locations with a name are reached from within nginx only";
                    one.lost(why);
                }
                continue;
            }
            let Some((kind, path)) = precedence::parse_location(one) else {
                one.lost("not a location");
                continue;
            };
            let inner = scope.enter(one);
            self.collect(&inner, found, draft);
            let mut location = Location {
                kind,
                path,
                is_plain: one.first("if").or(one.first("limit_except")).is_none()
                    && directives::have_same_addresses(&inner, self.scope),
                scope: inner,
                action: TargetDraft::respond(404).into(),
                answers: Vec::new(),
            };
            let path = location.request_path();
            location.action = actions::find_action(&location.scope, &path, draft);
            location.answers = self.read_answers(&location.scope, &path, draft);
            if let Some(fallback) = actions::find_fallback(&location.scope) {
                let answers = self.read_answers(&fallback.scope, &path, draft);
                location.answers.extend(answers);
            }
            found.push(location);
        }
    }

    fn add_location(
        &self,
        location: &Location<'_>,
        server_answers: &[EarlyAnswer],
        route_path: ImportedPath,
        draft: &mut Draft,
    ) {
        let (scope, path) = (&location.scope, location.request_path());
        let one = scope.block();
        if let Some(why) = &route_path.differs {
            one.differs(why.clone());
        }
        settings::read_real_ip(scope, draft);
        let mut answers = server_answers.to_vec();
        let mut own_answers = location.answers.clone();
        let refusal = early_answers::take_refusal(&mut own_answers);
        answers.append(&mut own_answers);
        if let Some(internal) = scope.first("internal") {
            answers.clear();
            let is_reached = |server: BlockScope<'_>| is_fallback(server.block(), location.path);
            if !scope.server().is_some_and(is_reached) {
                let why = "`X-Accel-Redirect` of an upstream is not followed: clients get its \
                           response as it is";
                internal.lost(why);
            }
        }
        let mut action = location.action.clone();
        let cannot_say = || format!("`{}` cannot be said", one.line());
        let wider = route_path.is_wider.then(cannot_say);
        if let Some(why) = self.closed.clone().or(wider) {
            close_actions(why, &mut answers, &mut action);
        }
        require_certificate(&mut action.entries, refusal);
        for answer in &mut answers {
            require_certificate(&mut answer.action.entries, refusal);
        }
        for host in &self.hosts {
            let class = RequestClass {
                method: None,
                host: host.as_deref(),
                mixed_hosts: &self.mixed_hosts,
                path: path.path.filter(|_| path.is_exact),
            };
            let mut add = |path: &ImportedPath, before: &[EarlyAnswer], action: &RouteAction| {
                for variant in early_answers::variants(before, action, class) {
                    let route = RouteDraft {
                        host: host.clone(),
                        path: path.pattern.clone(),
                        trailing_slash: path.trailing_slash,
                        methods: variant.methods,
                        headers: variant.headers,
                        ..make_route(scope, &variant.action, draft)
                    };
                    self.add_for_ports(&route, one, draft);
                }
            };
            let own = answers.iter().enumerate().skip(server_answers.len());
            for (index, answer) in own.filter(|_| !path.is_exact) {
                if let Condition::Path(regex) = &answer.condition {
                    let path = ImportedPath::same(&format!("regex:{regex}"));
                    add(&path, &answers[..index], &answer.action);
                }
            }
            add(&route_path, &answers, &action);
        }
    }

    fn add_for_hosts(
        &self,
        scope: &BlockScope<'_>,
        path: &str,
        action: &RouteAction,
        draft: &mut Draft,
    ) {
        for host in &self.hosts {
            let mut route = make_route(scope, action, draft);
            route.host.clone_from(host);
            path.clone_into(&mut route.path);
            self.add_for_ports(&route, scope.block(), draft);
        }
    }

    fn add_for_ports(&self, route: &RouteDraft, one: &Directive, draft: &mut Draft) {
        for port in &self.ports {
            let mut route = RouteDraft {
                port: *port,
                ..route.clone()
            };
            require_certificate(&mut route.entries, self.tls.certificates.status);
            add_route(route, one, draft);
        }
    }
}

fn make_route(scope: &BlockScope<'_>, action: &RouteAction, draft: &mut Draft) -> RouteDraft {
    let target = action.target.clone();
    let passes = matches!(target, TargetDraft::Upstream(_));
    let mut entries = action.entries.clone();
    let fallback = actions::find_fallback(scope);
    let last_scope = fallback.as_ref().map_or(scope, |fallback| &fallback.scope);
    let changes = match &action.headers {
        Some(headers) => headers.clone(),
        None => settings::header_changes(last_scope, draft),
    };
    for change in changes.list {
        const DOWN: &str = "headers_down headers_success expires expires_from trailers_down";
        let is_down = DOWN.split(' ').any(|key| key == change.key);
        // nginx adds the headers of `always` to its own denials.
        let has_headers = action.headers.is_some() || !matches!(target, TargetDraft::Closed(_));
        let is_for_denial = has_headers && change.key == "headers_down";
        if passes || is_down && !target.denies() || is_for_denial {
            entries.add_new(&change.key, change.value);
        }
    }
    rewrites::add_location_base(scope, &target, &mut entries);
    let sizes = scope.inherited("client_max_body_size");
    let is_of_route = sizes
        .first()
        .is_some_and(|one| !scope.http.inner().iter().any(|own| std::ptr::eq(own, *one)));
    let bytes = settings::max_body(scope);
    if let Some(bytes) = bytes.filter(|_| is_of_route && passes) {
        entries.add("body_limit", settings::body_text(bytes));
    }
    if passes {
        settings::add_bandwidth(scope, &mut entries);
    }
    if passes && let AddressRules::Lists(fields) = directives::address_rules(scope) {
        entries.add_table("access", &fields);
    }
    let error_pages = error_pages::add_pages(last_scope, draft);
    let access_logs = access_logs::add_logs(last_scope, draft);
    // nginx does not limit what it answers by itself.
    let mut limits = Vec::new();
    if passes {
        limits = limits::add_limits(scope, draft);
        if let Some(fallback) = fallback.filter(|_| limits.is_empty()) {
            limits = limits::add_limits(&fallback.scope, draft);
        }
    }
    RouteDraft {
        limits,
        error_pages,
        access_logs,
        entries,
        ..RouteDraft::new(scope.block().source(), target)
    }
}

/// Closes a location, and its answers that would reach an upstream.
fn close_actions(why: String, answers: &mut [EarlyAnswer], own: &mut RouteAction) {
    let closed = RouteAction::from(TargetDraft::Closed(why));
    let passes = |one: &&mut RouteAction| matches!(one.target, TargetDraft::Upstream(_));
    let actions = answers.iter_mut().map(|one| &mut one.action);
    for action in actions.filter(passes) {
        action.clone_from(&closed);
    }
    if !own.target.denies() {
        *own = closed;
    }
}

/// Has a route refuse clients without a certificate. All its answers do so, also those that stand
/// before the check.
fn require_certificate(entries: &mut TomlEntries, status: Option<u16>) {
    if let Some(status) = status {
        entries.add_new("require_client_certificate", status.to_string());
    }
}

fn is_fallback(block: &Directive, name: &str) -> bool {
    block.inner().iter().any(|one| {
        let leads_on = matches!(one.name.as_str(), "try_files" | "error_page");
        leads_on && one.args.last().is_some_and(|last| last == name) || is_fallback(one, name)
    })
}

/// Adds a route, and notes a location whose requests an earlier route matches.
fn add_route(route: RouteDraft, one: &Directive, draft: &mut Draft) {
    let Some(first) = draft.add_route(route) else {
        return;
    };
    let first = first.source.clone();
    // A server without a location for all requests has a route for them by itself.
    if first.place != one.place && one.name == "location" {
        let (text, line) = (first.text, first.place.line);
        one.lost(format!("`{text}` of line {line} takes these requests"));
    }
}
