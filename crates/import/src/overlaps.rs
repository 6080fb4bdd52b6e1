//! Routes that take some of the same requests. tidegate asks the more specific one first, and the
//! source may have asked the other one first.

use std::cmp::Reverse;

use super::draft::{Draft, HeaderDraft, RouteDraft, TargetDraft};
use super::patterns;
use crate::route::{HostPattern, Regex};

/// A place in the order of a source. Routes of larger ranks are asked first.
pub(super) type SourceRank = [i64; 6];

pub(super) struct RankedRoute {
    pub(super) rank: SourceRank,
    pub(super) route: RouteDraft,
    /// The text with which its paths begin in the source, if they may go on within a segment.
    pub(super) text_prefix: Option<String>,
}

/// Adds routes in the order of their source.
pub(super) fn add_in_order(mut routes: Vec<RankedRoute>, program: &str, draft: &mut Draft) {
    for index in 0..routes.len() {
        guard_text_prefix(&mut routes, index, draft);
    }
    routes.sort_by_key(|one| Reverse(one.rank));
    for RankedRoute { route, .. } in routes {
        draft.add_or_note(route);
    }
    note_order(program, draft);
    // The order of the file matters for expressions only.
    let line = |one: &RouteDraft| match one.path.starts_with("regex:") {
        true => usize::MAX,
        false => one.source.place.line,
    };
    draft.routes.sort_by_key(line);
}

/// Guards the paths that begin with the prefix of a guarded route and go on within a segment, if
/// another route would take them.
fn guard_text_prefix(routes: &mut Vec<RankedRoute>, index: usize, draft: &mut Draft) {
    let (RankedRoute { rank, route, .. }, Some(prefix)) =
        (&routes[index], routes[index].text_prefix.clone())
    else {
        return;
    };
    let source = route.source.clone();
    let lost = |why: String| draft.notes.lost(&source.place, &source.text, why);
    let beyond = RouteDraft {
        path: format!("{prefix}-more"),
        ..route.clone()
    };
    let place = TablePlace::new(&beyond, 0);
    let others = routes
        .iter()
        .filter(|other| other.route.source != source && other.route.methods_meet(route));
    let mut later = others.clone().filter(|other| other.rank < *rank);
    let taking = later.find(|other| place.meets(&TablePlace::new(&other.route, 0)));
    let Some(taking) = taking.filter(|_| route.is_guarded()) else {
        let why = patterns::whole_segments(&prefix);
        return draft.notes.differs(&source.place, &source.text, why);
    };
    let goes_on = |other: &RankedRoute| {
        let beginning = TablePlace::new(&other.route, 0).beginning();
        let rest = beginning.strip_prefix(&prefix);
        rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
    };
    if others.clone().any(goes_on) {
        return lost(format!(
            "`{prefix}-more` is for `{}` here, without this guard; write a route for such paths",
            taking.route.source.text
        ));
    }
    let pattern = format!("regex:^{}", patterns::escape_regex(&prefix));
    let strips = route
        .entries
        .list
        .iter()
        .any(|one| one.key == "strip_prefix");
    if !strips {
        routes[index].route.path = pattern;
        return;
    }
    lost(format!(
        "`{prefix}-more` is closed: a route takes whole segments off a path"
    ));
    let mut rest = RankedRoute {
        rank: *rank,
        route: RouteDraft {
            path: format!("{pattern}[^/]"),
            ..route.clone()
        },
        text_prefix: None,
    };
    let why = format!("paths that go on behind `{prefix}` within a segment");
    rest.route.answer(TargetDraft::Closed(why));
    routes.push(rest);
}

/// Notes routes that tidegate asks before an earlier one of the draft, which `program` asked first.
/// Closes them if the earlier one guards their requests.
pub(super) fn note_order(program: &str, draft: &mut Draft) {
    let Draft { routes, notes, .. } = draft;
    let place = |route: &RouteDraft| {
        let index = routes.iter().position(|one| one.host == route.host);
        TablePlace::new(route, index.unwrap_or_default())
    };
    let places: Vec<TablePlace> = routes.iter().map(place).collect();
    for (index, place) in places.iter().enumerate() {
        let (earlier, rest) = routes.split_at_mut(index);
        let Some(route) = rest.first_mut() else {
            continue;
        };
        let is_passed = |(one, other): &(&RouteDraft, &TablePlace)| {
            one.source != route.source
                && one.methods_meet(route)
                && headers_meet(one, route)
                && place.order < other.order
                && place.meets(other)
        };
        let passed = earlier.iter().zip(&places).filter(is_passed);
        let passed: Vec<&RouteDraft> = passed.map(|(one, _)| one).collect();
        let guard = passed.iter().find(|one| one.guards_more_than(route));
        let Some(first) = guard.or(passed.first()) else {
            continue;
        };
        let (source, text) = (route.source.clone(), &first.source.text);
        let why = format!("is the more specific route here, and {program} asks `{text}` before it");
        if guard.is_some() {
            let why = format!("{why}, which guards some of its requests; it is closed");
            notes.lost(&source.place, &source.text, why);
            route.close_for(first);
        } else {
            notes.differs(&source.place, &source.text, why);
        }
    }
}

/// Segments of a path, the most specific first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SegmentKind {
    Literal,
    Param,
    Rest,
}

/// Kinds of paths in the order in which tidegate tries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PathKind {
    Whole,
    Regex,
    Prefix,
}

/// The order in which tidegate asks routes that meet: the smallest one first, and of equal ones the
/// first of the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TableOrder {
    host: (u8, usize),
    kind: PathKind,
    segments: Vec<SegmentKind>,
    is_for_all_methods: bool,
    headers: Reverse<usize>,
}

/// Where a route stands in the table of routes.
struct TablePlace {
    host: HostPattern,
    port: Option<u16>,
    path: String,
    regex: Option<Regex>,
    order: TableOrder,
}

impl TablePlace {
    /// `index` is that of the first route with this host.
    fn new(route: &RouteDraft, index: usize) -> TablePlace {
        let host = route.host.as_deref().map(HostPattern::parse);
        let host = host.and_then(Result::ok).unwrap_or(HostPattern::Any);
        let path = route.path.as_str();
        let regex = path.strip_prefix("regex:");
        let segment = |text: &str| match text {
            "*" => SegmentKind::Rest,
            param if param.starts_with('{') => SegmentKind::Param,
            _ => SegmentKind::Literal,
        };
        // The order of the file alone counts for expressions.
        let plain = Some(path).filter(|_| regex.is_none());
        let order = TableOrder {
            host: match &host {
                HostPattern::Exact(_) => (0, 0),
                HostPattern::Below(name) => (1, usize::MAX - name.len()),
                HostPattern::Regex(_) => (2, index),
                HostPattern::Any => (3, 0),
            },
            kind: match plain {
                None => PathKind::Regex,
                Some(path) if path.ends_with("/*") => PathKind::Prefix,
                Some(_) => PathKind::Whole,
            },
            segments: plain.map_or(Vec::new(), |path| path.split('/').map(segment).collect()),
            is_for_all_methods: plain.is_some() && route.methods.is_empty(),
            headers: Reverse(plain.map_or(0, |_| route.headers.len())),
        };
        TablePlace {
            host,
            port: route.port,
            path: path.to_owned(),
            regex: regex.and_then(|text| Regex::parse(text).ok()),
            order,
        }
    }

    fn meets(&self, other: &TablePlace) -> bool {
        let ports = self.port.is_none() || other.port.is_none() || self.port == other.port;
        ports && hosts_meet(&self.host, &other.host) && self.paths_meet(other)
    }

    /// Whether some path may fit both. Of expressions, only their beginnings are compared.
    fn paths_meet(&self, other: &TablePlace) -> bool {
        for (one, other) in [(self, other), (other, self)] {
            if let (PathKind::Whole, Some(regex)) = (one.order.kind, &other.regex)
                && !one.order.segments.contains(&SegmentKind::Param)
            {
                let is_in = |path: &str| regex.is_in(path.as_bytes());
                return is_in(&one.path) || is_in(&format!("{}/", one.path));
            }
        }
        if self.regex.is_some() || other.regex.is_some() {
            let (own, others) = (self.beginning(), other.beginning());
            return own.starts_with(&others) || others.starts_with(&own);
        }
        let (mut left, mut right) = (self.path.split('/'), other.path.split('/'));
        loop {
            match (left.next(), right.next()) {
                (Some("*"), _) | (_, Some("*")) | (None, None) => return true,
                (Some(a), Some(b)) if a == b || a.starts_with('{') || b.starts_with('{') => {}
                _ => return false,
            }
        }
    }

    /// The text that each of its paths begins with.
    fn beginning(&self) -> String {
        match self.path.strip_prefix("regex:") {
            Some(regex) => patterns::regex_beginning(regex),
            None => {
                let end = self.path.find(['{', '*']).unwrap_or(self.path.len());
                self.path[..end].trim_end_matches('/').to_owned()
            }
        }
    }
}

fn hosts_meet(one: &HostPattern, other: &HostPattern) -> bool {
    match (one, other) {
        (HostPattern::Exact(name), pattern) | (pattern, HostPattern::Exact(name)) => {
            pattern.matches(name)
        }
        (HostPattern::Below(a), HostPattern::Below(b)) => {
            a == b || one.matches(b) || other.matches(a)
        }
        _ => true,
    }
}

/// Whether no header must have two values at once.
fn headers_meet(one: &RouteDraft, other: &RouteDraft) -> bool {
    let text = |one: &HeaderDraft| one.value.clone().filter(|it| !it.starts_with("regex:"));
    one.headers.iter().all(|own| {
        let mut others = other.headers.iter().filter(|one| one.name == own.name);
        others.all(|one| text(one).is_none() || text(own).is_none() || text(one) == text(own))
    })
}
