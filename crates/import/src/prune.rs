//! What `proxy.toml` does not take after all: numbers that are too large, names that are none. Each
//! part of a draft is tried by itself, and what is refused is listed with the reason instead of
//! written.

use super::draft::{Draft, Goal, LimitDraft, RouteDraft, ServerDraft, UpstreamDraft};
use super::notes::Place;
use super::print;
use crate::config;

/// What is wrong with a text as a configuration, in a line.
pub(super) fn refusal(text: &str) -> Option<String> {
    let found = config::parse("proxy.toml", text, &|_| None).err()?;
    let first = found.list.first()?;
    let help = first.help.iter().next().map(|help| format!("; {help}"));
    Some(format!("{}{}", first.message, help.unwrap_or_default()))
}

/// The same of a draft that has only some parts.
fn refused(parts: Draft) -> Option<String> {
    refusal(&print::print(&parts, ""))
}

/// Leaves out what is refused. `whole` is where things stand that have no place of their own.
pub(super) fn prune(draft: &mut Draft, whole: &Place) {
    top(draft, whole);
    limits(draft);
    upstreams(draft);
    routes(draft);
}

/// Keeps what is not refused of a list; tells of the others.
fn keep<T: Clone>(list: &mut Vec<T>, part: impl Fn(T) -> Draft, mut told: impl FnMut(&T, String)) {
    list.retain(|one| match refused(part(one.clone())) {
        None => true,
        Some(why) => {
            told(one, why);
            false
        }
    });
}

fn top(draft: &mut Draft, whole: &Place) {
    let notes = &mut draft.notes;
    let listening = |one| Draft {
        listen: vec![one],
        ..Draft::default()
    };
    for list in [&mut draft.listen, &mut draft.tls.listen] {
        keep(list, listening, |one, why| {
            notes.lost(whole, &format!("listen {one}"), why)
        });
    }
    let trusting = |one| Draft {
        trusted: vec![one],
        ..Draft::default()
    };
    keep(&mut draft.trusted, trusting, |one, why| {
        notes.lost(whole, &format!("trusted address {one}"), why);
    });
    let serving = |one| Draft {
        server: vec![one],
        ..Draft::default()
    };
    keep(&mut draft.server, serving, |(key, value), why| {
        notes.lost(whole, &format!("{key} = {value}"), why);
    });
    let headed = |name: &Option<String>, id: &Option<String>| {
        refused(Draft {
            client_ip_header: name.clone(),
            request_id: id.clone(),
            ..Draft::default()
        })
    };
    if let Some(why) = headed(&draft.client_ip_header, &None) {
        notes.lost(whole, "the header with the client's address", why);
        draft.client_ip_header = None;
    }
    if let Some(why) = headed(&None, &draft.request_id) {
        notes.lost(whole, "the header with the request's id", why);
        draft.request_id = None;
    }
}

fn limits(draft: &mut Draft) {
    let part = |one: LimitDraft| Draft {
        limits: vec![one],
        ..Draft::default()
    };
    let mut gone = Vec::new();
    let notes = &mut draft.notes;
    keep(&mut draft.limits, part, |one, why| {
        notes.lost(&one.place, &format!("limit {}", one.was), why);
        gone.push(one.name.clone());
    });
    for route in &mut draft.routes {
        route.limits.retain(|name| !gone.contains(name));
    }
}

fn upstreams(draft: &mut Draft) {
    // A file with upstreams has routes.
    let part = |one: UpstreamDraft| Draft {
        routes: vec![RouteDraft {
            place: one.place.clone(),
            was: String::new(),
            host: None,
            path: "/*".to_owned(),
            methods: Vec::new(),
            headers: Vec::new(),
            goal: Goal::Upstream(one.name.clone()),
            limits: Vec::new(),
            settings: Vec::new(),
        }],
        upstreams: vec![one],
        ..Draft::default()
    };
    let mut gone = Vec::new();
    let notes = &mut draft.notes;
    draft.upstreams.retain_mut(|upstream| {
        let place = upstream.place.clone();
        let alone = |server: ServerDraft, settings| {
            part(UpstreamDraft {
                name: upstream.name.clone(),
                servers: vec![server],
                settings,
                place: place.clone(),
            })
        };
        let mut servers = upstream.servers.clone();
        keep(
            &mut servers,
            |one| alone(one, Vec::new()),
            |one, why| {
                notes.lost(&place, &one.url, why);
            },
        );
        let mut settings = upstream.settings.clone();
        if let Some(first) = servers.first() {
            let part = |one| alone(first.clone(), vec![one]);
            keep(&mut settings, part, |(key, value), why| {
                notes.lost(&place, &format!("{key} = {value}"), why);
            });
        }
        (upstream.servers, upstream.settings) = (servers, settings);
        let refused = match upstream.servers.is_empty() {
            true => Some("no server is left".to_owned()),
            false => refused(part(upstream.clone())),
        };
        if let Some(why) = refused {
            notes.lost(&place, &format!("upstream {}", upstream.name), why);
            gone.push(upstream.name.clone());
            return false;
        }
        true
    });
    for route in &mut draft.routes {
        let lost = |goal: &Goal| matches!(goal, Goal::Upstream(name) if gone.contains(name));
        if lost(&route.goal) {
            route.goal = Goal::Closed("its upstream cannot be kept".to_owned());
        }
    }
}

fn routes(draft: &mut Draft) {
    let notes = &mut draft.notes;
    let upstreams = draft.upstreams.clone();
    let part = |route: RouteDraft| {
        let wanted =
            |one: &&UpstreamDraft| matches!(&route.goal, Goal::Upstream(name) if *name == one.name);
        Draft {
            upstreams: upstreams.iter().filter(wanted).cloned().collect(),
            routes: vec![route],
            ..Draft::default()
        }
    };
    draft.routes.retain_mut(|route| {
        let (place, was) = (route.place.clone(), route.was.clone());
        let limits = std::mem::take(&mut route.limits);
        let settings = std::mem::take(&mut route.settings);
        if let Some(why) = refused(part(route.clone())) {
            notes.lost(&place, &was, why.clone());
            route.goal = Goal::Closed(why);
            if refused(part(route.clone())).is_some() {
                return false;
            }
        }
        for setting in settings {
            route.settings.push(setting);
            if let Some(why) = refused(part(route.clone())) {
                let (key, value) = route.settings.pop().unwrap_or_default();
                notes.lost(&place, &format!("{key} = {value}"), why.clone());
                // Another path than the one that was meant is asked for by nobody.
                if key == "strip_prefix" {
                    route.goal = Goal::Closed(why);
                }
            }
        }
        route.limits = limits;
        true
    });
}
