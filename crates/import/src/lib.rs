//! Import: makes a `proxy.toml` of a configuration of another proxy or gateway, and lists each
//! directive that it cannot translate.
//!
//! The import never guesses. A route answers 501 until the operator decides if the source guards it
//! with something that `proxy.toml` has not. Only `files` does IO, and it only reads.

mod patterns;

mod files;

mod values;

mod calls;

mod linear;

mod draft;

mod overlaps;

mod tree;

mod budgets;

mod nginx;

mod print;

mod traefik;

mod envoy_ratelimit;

mod providers;

mod kong;

mod apisix;

mod envoy_ai;

mod tyk;

use std::path::PathBuf;

use draft::{Draft, LimitDraft, RouteDraft, SectionDraft, ServerDraft, TargetDraft, UpstreamDraft};
pub use draft::{Grade, Note};
use files::SourceEntry;
pub use files::{ImportError, SourceFault, SourceLine};
use tidegate_core::{config, limit, path, route};
use values::{TomlEntries, TomlEntry};

/// The largest weight of `proxy.toml`.
const MAX_WEIGHT: u64 = 1000;

/// The program that a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceProgram {
    /// nginx.conf, or a file that it includes.
    Nginx,
    /// Traefik's dynamic or static configuration, YAML or TOML.
    Traefik,
    /// YAML of envoyproxy/ratelimit, one file for each domain.
    EnvoyRatelimit,
    /// Kong's declarative configuration, YAML or JSON.
    Kong,
    /// APISIX routes: `apisix.yaml`, a file of ADC, or JSON of the Admin API.
    Apisix,
    /// Kubernetes resources of Envoy AI gateway, YAML.
    EnvoyAi,
    /// API definitions and policies of Tyk, JSON.
    Tyk,
}

#[derive(Debug)]
pub struct Imported {
    /// A `proxy.toml` that `tidegate check` accepts.
    pub text: String,
    /// The directives that are lost, that differ, and that are not needed.
    pub notes: Vec<Note>,
}

/// Reads the files at `paths`, `-` for standard input, and writes them as a `proxy.toml`. Only
/// envoyproxy/ratelimit and Tyk have several.
pub fn import(program: SourceProgram, paths: &[PathBuf]) -> Result<Imported, ImportError> {
    let names: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let draft = match (program, paths) {
        (SourceProgram::EnvoyRatelimit, paths) => envoy_ratelimit::read(paths)?,
        (SourceProgram::Tyk, paths) => tyk::read(paths)?,
        (SourceProgram::Nginx, [path]) => nginx::read(path)?,
        (SourceProgram::Traefik, [path]) => traefik::read(path)?,
        (SourceProgram::Kong, [path]) => kong::read(path)?,
        (SourceProgram::Apisix, [path]) => apisix::read(path)?,
        (SourceProgram::EnvoyAi, [path]) => envoy_ai::read(path)?,
        _ => {
            let what = "this program has one file, with all that it includes";
            return Err(ImportError::Unreadable(what.to_owned()));
        }
    };
    finish(draft, &names.join(", "))
}

/// Prints the draft and parses the result as a configuration. Writes `[tls]` as comments if its
/// certificates cannot be read: they may be on another machine.
fn finish(mut draft: Draft, name: &str) -> Result<Imported, ImportError> {
    let first_line = SourceLine {
        file: name.into(),
        line: 1,
    };
    remove_refused_globals(&mut draft, &first_line);
    remove_refused_calls(&mut draft, &first_line);
    remove_refused_limits(&mut draft);
    settle_weights(&mut draft);
    remove_refused_upstreams(&mut draft);
    remove_refused_pages(&mut draft);
    close_refused_routes(&mut draft);
    remove_refused_budgets(&mut draft);
    close_routes_without_keys(&mut draft);
    if draft.limits.is_empty() && draft.descriptors.is_empty() {
        let why = "the file limits nothing that can be kept, so nothing is limited here: a \
                   `[limit.default]` with a `rate` limits every route that names no other";
        draft
            .notes
            .add(Grade::Differs, &first_line, "no limits", why);
    }
    draft.finish();
    let mut text = print::print(&draft, name);
    if let (Some(why), true) = (refusal_of_text(&text), draft.tls.is_used()) {
        draft.disable_tls(&why);
        text = print::print(&draft, name);
    }
    match config::parse("proxy.toml", &text, &|_| None) {
        Ok(_) => Ok(Imported {
            text,
            notes: draft.notes.sorted(),
        }),
        Err(found) => Err(ImportError::Refused(config::render::human(&found, false))),
    }
}

fn refusal_of_text(text: &str) -> Option<String> {
    let found = config::parse("proxy.toml", text, &|_| None).err()?;
    let first = found.list.first()?;
    let help = first.help.iter().next().map(|help| format!("; {help}"));
    Some(format!("{}{}", first.message, help.unwrap_or_default()))
}

/// Returns the first error of a draft that has only the parts that `fill` adds.
fn refusal(fill: impl FnOnce(&mut Draft)) -> Option<String> {
    let mut parts = Draft::default();
    fill(&mut parts);
    refusal_of_text(&print::print(&parts, ""))
}

/// Takes the elements out of a list that are refused when they are alone in a draft, with the
/// reasons. `add` adds one to a draft.
fn take_refused<T: Clone>(list: &mut Vec<T>, add: impl Fn(&mut Draft, T)) -> Vec<(T, String)> {
    let mut refused = Vec::new();
    list.retain(|one| {
        let why = refusal(|part| add(part, one.clone()));
        let is_kept = why.is_none();
        refused.extend(why.map(|why| (one.clone(), why)));
        is_kept
    });
    refused
}

/// Removes addresses, settings and headers that are refused. None of them has a place of its own.
fn remove_refused_globals(draft: &mut Draft, place: &SourceLine) {
    let notes = &draft.notes;
    for list in [&mut draft.listen, &mut draft.tls.listen] {
        for (one, why) in take_refused(list, |part, one| part.listen.push(one)) {
            notes.lost(place, &format!("listen {one}"), why);
        }
    }
    for (one, why) in take_refused(&mut draft.trusted, |part, one| part.trusted.push(one)) {
        notes.lost(place, &format!("trusted address {one}"), why);
    }
    let server = &mut draft.server.list;
    for (one, why) in take_refused(server, |part, one| part.server.list.push(one)) {
        notes.lost(place, &one.line_for_note(), why);
    }
    let header = &mut draft.client_ip_header;
    if let Some(why) = refusal(|part| part.client_ip_header.clone_from(header)) {
        notes.lost(place, "the header with the client's address", why);
        *header = None;
    }
    let header = &mut draft.request_id;
    if let Some(why) = refusal(|part| part.request_id.clone_from(header)) {
        notes.lost(place, "the header with the request's id", why);
        *header = None;
    }
}

/// Removes prices, and settings of keys and tiers, that are refused.
fn remove_refused_calls(draft: &mut Draft, place: &SourceLine) {
    let Draft { calls, notes, .. } = draft;
    let add_price = |part: &mut Draft, one| part.calls.prices.push(one);
    for (price, why) in take_refused(&mut calls.prices, add_price) {
        notes.lost(place, &format!("price of {}", price.model), why);
    }
    calls.sort_prices();
    let prices = calls.prices.clone();
    if let Some(why) = refusal(|part| part.calls.prices = prices) {
        notes.lost(place, "prices", why);
        calls.prices.clear();
    }
    let keys = calls.api_key.clone();
    if let Some(why) = refusal(|part| part.calls.api_key = keys) {
        notes.lost(place, "the places of API keys", why);
        // Unknown keys stay refused.
        calls.api_key.list.retain(|one| one.key == "unknown");
    }
}

fn remove_refused_limits(draft: &mut Draft) {
    let calls = draft.calls.clone();
    let add = |part: &mut Draft, one| {
        part.calls = calls.clone();
        part.limits.push(one);
    };
    for (limit, why) in take_refused(&mut draft.limits, add) {
        let what = format!("limit {}", limit.source.text);
        draft.notes.lost(&limit.source.place, &what, why);
        for route in &mut draft.routes {
            route.limits.retain(|name| *name != limit.name);
        }
    }
}

/// Adds an upstream, and a route to it, because a file with upstreams needs routes.
fn add_with_route(part: &mut Draft, upstream: UpstreamDraft) {
    let source = SourceEntry {
        place: upstream.place.clone(),
        text: String::new(),
    };
    let target = TargetDraft::Upstream(upstream.name.clone());
    part.routes.push(RouteDraft::new(source, target));
    part.upstreams.push(upstream);
}

/// Removes servers that get no requests, and scales large weights. The routes of an upstream
/// without another server answer 503.
fn settle_weights(draft: &mut Draft) {
    let Draft {
        upstreams,
        routes,
        notes,
        ..
    } = draft;
    upstreams.retain_mut(|upstream| {
        let place = upstream.place.clone();
        let count = upstream.servers.len();
        upstream.servers.retain(|server| {
            let is_used = server.weight != Some(0);
            if !is_used {
                let why = "its weight is 0, so it gets no requests; it is left out";
                notes.lost(&place, &server.url, why);
            }
            is_used
        });
        let weights = upstream.servers.iter().map(|one| one.weight.unwrap_or(1));
        let (least, most) = (weights.clone().min(), weights.max().unwrap_or(1));
        if most > MAX_WEIGHT && least != Some(most) {
            let why = format!("weights are at most {MAX_WEIGHT}, so they are scaled down");
            notes.differs(&place, &upstream.name, why);
        }
        for server in &mut upstream.servers {
            let weight = server.weight.unwrap_or(1);
            let scaled = match most > MAX_WEIGHT {
                true => (weight.saturating_mul(MAX_WEIGHT) / most).max(1),
                false => weight,
            };
            server.weight = Some(scaled).filter(|one| *one > 1 && least != Some(most));
        }
        let is_used = count == 0 || !upstream.servers.is_empty();
        let all = routes.iter_mut().filter(|_| !is_used);
        for route in all.filter(|one| one.target.is_upstream(&upstream.name)) {
            let why = "all of its servers have a weight of 0; it answers 503";
            notes.lost(&route.source.place, &route.source.text, why);
            route.answer(TargetDraft::respond(503));
        }
        is_used
    });
}

/// Removes servers and settings that are refused, then upstreams without servers. Closes the routes
/// of the removed upstreams.
fn remove_refused_upstreams(draft: &mut Draft) {
    let notes = &draft.notes;
    for upstream in &mut draft.upstreams {
        let (name, place) = (&upstream.name, &upstream.place);
        let add = |part: &mut Draft, servers: Vec<ServerDraft>, list: Vec<TomlEntry>| {
            let upstream = UpstreamDraft {
                name: name.clone(),
                servers,
                entries: TomlEntries { list },
                place: place.clone(),
            };
            add_with_route(part, upstream);
        };
        let servers = &mut upstream.servers;
        // A backup cannot be alone.
        let alone = |server: &ServerDraft| ServerDraft {
            is_backup: false,
            ..server.clone()
        };
        for (server, why) in take_refused(servers, |part, one| {
            add(part, vec![alone(&one)], Vec::new());
        }) {
            notes.lost(place, &server.url, why);
        }
        // Without a server, everything is refused, and the upstream is removed below.
        let Some(first) = servers.first() else {
            continue;
        };
        let entries = &mut upstream.entries.list;
        for (entry, why) in take_refused(entries, |part, one| {
            add(part, vec![alone(first)], vec![one]);
        }) {
            notes.lost(place, &entry.line_for_note(), why);
        }
    }
    for (upstream, why) in take_refused(&mut draft.upstreams, add_with_route) {
        let why = match upstream.servers.is_empty() {
            true => "no server is left".to_owned(),
            false => why,
        };
        notes.lost(&upstream.place, &format!("upstream {}", upstream.name), why);
        for route in &mut draft.routes {
            if route.target.is_upstream(&upstream.name) {
                route.target = TargetDraft::Closed("its upstream cannot be kept".to_owned());
            }
        }
    }
}

fn remove_refused_pages(draft: &mut Draft) {
    let upstreams = draft.upstreams.clone();
    let add = |part: &mut Draft, page: SectionDraft| {
        for upstream in upstreams.iter().cloned() {
            add_with_route(part, upstream);
        }
        part.routes.truncate(1);
        part.error_pages.push(page);
    };
    for (page, why) in take_refused(&mut draft.error_pages, add) {
        draft.notes.lost(&page.source.place, &page.source.text, why);
        for route in &mut draft.routes {
            route.error_pages.retain(|name| *name != page.name);
        }
    }
}

/// Closes routes that are refused, and removes their settings that are refused.
fn close_refused_routes(draft: &mut Draft) {
    let Draft {
        upstreams,
        notes,
        calls,
        ..
    } = draft;
    let refusal_of = |route: &RouteDraft| {
        let is_target = |one: &&UpstreamDraft| route.target.is_upstream(&one.name);
        refusal(|part| {
            part.calls = calls.clone();
            part.upstreams
                .extend(upstreams.iter().find(is_target).cloned());
            part.routes.push(route.clone());
        })
    };
    draft.routes.retain_mut(|route| {
        let SourceEntry { place, text } = route.source.clone();
        let limits = std::mem::take(&mut route.limits);
        let entries = std::mem::take(&mut route.entries);
        if let Some(why) = refusal_of(route) {
            notes.lost(&place, &text, why.clone());
            route.target = TargetDraft::Closed(why);
            if refusal_of(route).is_some() {
                return false;
            }
        }
        for entry in entries.list {
            route.entries.list.push(entry.clone());
            if let Some(why) = refusal_of(route) {
                route.entries.list.pop();
                notes.lost(&place, &entry.line_for_note(), why.clone());
                // Without the prefix, the upstream would get another path than the source meant.
                // Without the list, the route would be open.
                if matches!(entry.key.as_str(), "strip_prefix" | "access") {
                    route.target = TargetDraft::Closed(why);
                }
            }
        }
        route.limits = limits;
        true
    });
}

/// Removes limits from routes with `usage` that are refused together with it. Their units do not
/// fit the weights or the prices of the calls.
fn remove_refused_budgets(draft: &mut Draft) {
    let Draft {
        upstreams,
        notes,
        calls,
        limits,
        routes,
        ..
    } = draft;
    for route in routes.iter_mut().filter(|route| route.usage.is_some()) {
        let names = std::mem::take(&mut route.limits);
        for name in names {
            let Some(limit) = limits.iter().find(|one| one.name == name) else {
                continue;
            };
            let is_target = |one: &&UpstreamDraft| route.target.is_upstream(&one.name);
            let mut alone = route.clone();
            alone.limits = vec![name.clone()];
            let why = refusal(|part| {
                part.calls = calls.clone();
                part.limits.push(limit.clone());
                part.upstreams
                    .extend(upstreams.iter().find(is_target).cloned());
                part.routes.push(alone);
            });
            match why {
                None => route.limits.push(name),
                Some(why) => notes.lost(&limit.source.place, &limit.source.text, why),
            }
        }
    }
}

/// Closes routes that served only clients with a key, if no limit that is left asks for one.
fn close_routes_without_keys(draft: &mut Draft) {
    let asks = |limit: &&LimitDraft| {
        let has = |key: &str, text: &str| {
            let mut entries = limit.entries.list.iter();
            entries.any(|one| one.key == key && one.value.contains(text))
        };
        has("key", "\"api_key\"") && has("missing", "\"deny\"")
    };
    let asking = draft.limits.iter().filter(asks);
    let asking: Vec<&String> = asking.map(|one| &one.name).collect();
    for route in draft.routes.iter_mut().filter(|one| one.needs_key) {
        let is_open = matches!(route.target, TargetDraft::Upstream(_));
        if is_open && !route.limits.iter().any(|name| asking.contains(&name)) {
            let why = "its clients had keys, and no limit by key is left, which alone asks for one";
            let SourceEntry { place, text } = &route.source;
            draft
                .notes
                .lost(place, text, format!("{why}; it is closed"));
            route.answer(TargetDraft::Closed(why.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests;
