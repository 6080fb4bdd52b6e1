//! `[status]`: the path at which clients learn how much of their limits is left.

use std::borrow::Cow;

use http::Method;

use super::definitions::Definitions;
use super::*;
use crate::limit::key::{Key, Part};
use crate::path::{CanonicalPath, Case, fold};
use crate::route::{Route, RouteTable};

/// `[status]`
#[derive(Clone, Debug)]
pub struct StatusSettings {
    /// In canonical spelling, and in lower case if the file ignores letter case.
    pub path: String,
    /// Has the limits that are told. It takes no request.
    pub route: Box<Route>,
    /// Limits that need more than a status request has.
    pub not_told: Vec<Arc<str>>,
}

impl StatusSettings {
    /// Whether a request is for this path. As for routes, a slash at the end makes no other path.
    pub fn takes(&self, method: &Method, path: &str) -> bool {
        let path = in_case(path, self.route.case);
        let is_path = path == self.path || path.strip_suffix('/') == Some(&self.path);
        matches!(*method, Method::GET | Method::HEAD) && is_path
    }
}

fn in_case(path: &str, case: Case) -> Cow<'_, str> {
    match case {
        Case::Sensitive => Cow::Borrowed(path),
        Case::Insensitive => fold(path),
    }
}

/// `[status]` before the limits are known.
pub(super) struct DefinedStatus {
    path: Located<String>,
    /// `None` for all limits.
    limits: Option<Vec<Located<String>>>,
}

pub(super) fn read(top: &mut Section<'_>) -> Option<DefinedStatus> {
    if !top.reader.surroundings.forwards {
        return None;
    }
    let is_given = top.has("status");
    let mut section = top.section("status");
    if is_given {
        section.require("path", "path = \"/rate_limit\"");
    }
    let form = TextForm::new(Code::BadPattern, "a path");
    let path = section.parse("path", form, canonical);
    let path = path.map(|path| Located::new(path, &section.value_span("path")));
    let limits = section.texts("limits");
    section.finish();
    Some(DefinedStatus {
        path: path?,
        limits,
    })
}

fn canonical(text: &str) -> Result<String, &'static str> {
    const WANTED: &str = "write a path without parameters, for example `/rate_limit`";
    let is_plain = text.starts_with('/') && !text.contains(['{', '}', '*', '?', '#', ':']);
    let path = CanonicalPath::parse(text).ok().filter(|_| is_plain);
    path.map(|path| path.as_str().to_owned()).ok_or(WANTED)
}

/// Joins the section with the limits and routes of the file.
pub(super) fn compile(
    definitions: &Definitions<'_>,
    defined: DefinedStatus,
    table: &RouteTable,
) -> StatusSettings {
    let DefinedStatus { mut path, limits } = defined;
    let template = routes::without_settings(definitions);
    path.value = in_case(&path.value, template.case).into_owned();
    if let Some(route) = table
        .iter()
        .find(|route| route.path.to_string() == path.value)
    {
        contradiction("a route has the path of `[status]`")
            .at(
                &path.span,
                format!("route `{}` would get no request", route.name),
            )
            .help("give one of them another path")
            .report_to(definitions.reader);
    }
    let chosen: Vec<usize> = match &limits {
        Some(names) => names
            .iter()
            .filter_map(|name| {
                let index = definitions.find_limit(name)?;
                check_is_told(definitions, index, name);
                Some(index)
            })
            .collect(),
        None => (0..definitions.limits.len()).collect(),
    };
    let chosen = chosen.into_iter();
    let chosen = chosen.filter_map(|index| definitions.limits[index].limit.clone());
    let chosen = chosen.filter(|limit| !limit.is_concurrent() && !limit.shadow);
    let (told, not_told): (Vec<_>, Vec<_>) = chosen.partition(|limit| is_known(&limit.key));
    StatusSettings {
        path: path.value,
        route: Box::new(Route {
            name: "status".into(),
            limits: told,
            ..template
        }),
        not_told: not_told
            .iter()
            .map(|limit| Arc::clone(&limit.name))
            .collect(),
    }
}

/// Reports a named limit that no status request is told.
fn check_is_told(definitions: &Definitions<'_>, index: usize, name: &Located<String>) {
    let why = match &definitions.limits[index].limit {
        None => "is unlimited",
        Some(limit) if limit.is_concurrent() => "counts requests under way, which are not told",
        Some(limit) if limit.shadow => "is in shadow mode, and denies no client",
        Some(_) => return,
    };
    no_effect(format!("`[status]` never tells `limit.{}`", name.value))
        .at(&name.span, why)
        .help("leave it out")
        .report_to(definitions.reader);
}

/// Whether a status request has the same key as the requests that the limit counts.
fn is_known(key: &Key) -> bool {
    key.all().all(|part| match part {
        Part::Ip
        | Part::ApiKey
        | Part::Header(_)
        | Part::Query(_)
        | Part::Cookie(_)
        | Part::Host
        | Part::Global
        | Part::Tier
        | Part::Jwt(_)
        | Part::Tls(_)
        | Part::Custom(_) => true,
        Part::Path
        | Part::PathParam(_)
        | Part::Method
        | Part::Route
        | Part::Entry(_)
        | Part::Body(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use http::Method;

    use crate::config::parse;

    #[test]
    fn a_named_limit_that_is_never_told_is_a_warning() {
        let warned = |limit: &str| {
            let text = format!(
                "upstream = \"http://10.0.0.1:1\"\n[status]\npath = \"/rate_limit\"\n\
                 limits = [\"default\"]\n[limit.default]\n{limit}\n"
            );
            let (_, found) = parse("proxy.toml", &text, &|_| None).unwrap();
            let codes = found.list.iter().map(|one| one.code.as_str());
            codes.filter(|code| *code == "T245").count()
        };
        assert_eq!(warned("rate = \"9/h\""), 0);
        // Its key is not known, which clients are told.
        assert_eq!(warned("rate = \"9/h\"\nkey = \"path\""), 0);
        assert_eq!(warned("concurrent = 9"), 1);
        assert_eq!(warned("rate = \"9/h\"\nshadow = true"), 1);
        assert_eq!(warned("rate = \"unlimited\""), 1);
    }

    #[test]
    fn the_path_has_the_letter_case_of_the_file() {
        let takes = |case: &str, path: &str| {
            let text = format!(
                "case = \"{case}\"\nupstream = \"http://10.0.0.1:1\"\n\
                 [status]\npath = \"/Rate_Limit\"\n[limit.default]\nrate = \"9/h\"\n"
            );
            let (config, _) = parse("proxy.toml", &text, &|_| None).unwrap();
            config.status.unwrap().takes(&Method::GET, path)
        };
        assert!(takes("insensitive", "/RATE_LIMIT/") && takes("insensitive", "/rate_limit"));
        assert!(takes("sensitive", "/Rate_Limit") && !takes("sensitive", "/rate_limit"));
        let twice = "case = \"insensitive\"\nupstream = \"http://10.0.0.1:1\"\n\
                     [status]\npath = \"/RATE\"\n[limit.default]\nrate = \"9/h\"\n\
                     [[route]]\npath = \"/rate\"\n";
        assert!(parse("proxy.toml", twice, &|_| None).is_err());
    }
}
