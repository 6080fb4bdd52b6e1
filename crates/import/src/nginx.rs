//! nginx.conf: its grammar, what each block inherits, and what of it `proxy.toml` can say.

mod access;
mod conditions;
mod expressions;
mod fates;
mod headers;
mod keys;
mod limits;
mod locations;
mod maps;
mod outcome;
mod passing;
mod places;
mod rewrites;
mod rules;
mod scope;
mod servers;
mod settings;
mod syntax;
mod upstreams;
mod values;
mod words;

use std::path::Path;

use super::ImportError;
use super::draft::Draft;
use super::notes::Place;
use limits::Zones;
use maps::Maps;
use scope::Scope;
use syntax::Directive;
use upstreams::Groups;

/// What all servers share.
struct Http<'d> {
    top: &'d [Directive],
    zones: Zones<'d>,
    maps: Maps<'d>,
    groups: Groups<'d>,
}

/// Reads a file, and what it includes.
pub(super) fn read(path: &Path) -> Result<Draft, ImportError> {
    let mut draft = Draft::default();
    let main = syntax::read(path, &mut draft.notes)?;
    fates::tell(&main, fates::Context::Main, &mut draft.notes);
    // A file of conf.d or sites-enabled is what stands in `http`.
    let top = Scope::new(&main);
    let mut blocks = Vec::new();
    let is_http = |one: &&Directive| one.name == "http";
    for block in main.iter().filter(is_http) {
        blocks.push(top.within(block));
    }
    if blocks.is_empty() {
        blocks.push(top);
    }
    for scope in &blocks {
        let http = Http {
            top: scope.own(),
            zones: Zones::of(scope.own()),
            maps: Maps::of(scope.own(), &mut draft.notes),
            groups: Groups::of(scope.own()),
        };
        settings::http(scope, &mut draft);
        servers::all(&http, scope, &mut draft);
        http.zones.rest(&mut draft);
    }
    settings::usual_real_ip(&main, &mut draft);
    if draft.routes.is_empty() {
        let file = path.display().to_string().into();
        let place = Place { file, line: 1 };
        let why = "there is nothing to serve; one stands there to be changed";
        draft.notes.lost(&place, "no server block", why);
    }
    Ok(draft)
}
