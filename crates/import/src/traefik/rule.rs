//! Parses the rules of routers: ``Host(`a`) && (PathPrefix(`/x`) || Path(`/y`))``.

use crate::draft::HeaderDraft;
use crate::patterns::{self, ImportedPath};
use crate::route::{HostPattern, PathPattern, method_of};

/// Alternatives of one rule, at most.
const MAX_ALTERNATIVES: usize = 64;
/// Parentheses within parentheses, at most.
const MAX_DEPTH: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matcher {
    pub(super) name: String,
    pub(super) args: Vec<String>,
}

pub(super) type Alternative = Vec<Matcher>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleSyntax {
    /// Hosts and paths may have patterns such as `{name:[a-z]+}`.
    V2,
    V3,
}

impl RuleSyntax {
    pub(super) fn parse(word: Option<&str>) -> RuleSyntax {
        match word {
            Some(word) if word.eq_ignore_ascii_case("v2") => RuleSyntax::V2,
            _ => RuleSyntax::V3,
        }
    }
}

/// Parses a rule as alternatives, one of which must match.
pub(super) fn parse_rule(text: &str, syntax: RuleSyntax) -> Result<Vec<Alternative>, String> {
    let mut parser = RuleParser { rest: text, syntax };
    let all = parser.parse_or(0)?;
    match parser.rest.trim_start() {
        "" => Ok(all),
        rest => Err(format!("`{rest}` is left over")),
    }
}

struct RuleParser<'t> {
    rest: &'t str,
    syntax: RuleSyntax,
}

impl RuleParser<'_> {
    /// Skips blanks and a word, if the word is there.
    fn take(&mut self, word: &str) -> bool {
        self.rest = self.rest.trim_start();
        let behind = self.rest.strip_prefix(word);
        self.rest = behind.unwrap_or(self.rest);
        behind.is_some()
    }

    fn parse_or(&mut self, depth: usize) -> Result<Vec<Alternative>, String> {
        if depth > MAX_DEPTH {
            return Err("it is nested too deep".to_owned());
        }
        let mut found = self.parse_and(depth)?;
        while self.take("||") {
            found.extend(self.parse_and(depth)?);
            check_count(&found)?;
        }
        Ok(found)
    }

    /// Parses `a && b` and multiplies it out.
    fn parse_and(&mut self, depth: usize) -> Result<Vec<Alternative>, String> {
        let mut found = self.parse_one(depth)?;
        while self.take("&&") {
            let more = self.parse_one(depth)?;
            let mut product = Vec::new();
            for left in &found {
                for right in &more {
                    product.push(left.iter().chain(right).cloned().collect());
                }
            }
            check_count(&product)?;
            found = product;
        }
        Ok(found)
    }

    fn parse_one(&mut self, depth: usize) -> Result<Vec<Alternative>, String> {
        if self.take("!") {
            return Err("`!`: a route cannot say what does not fit".to_owned());
        }
        if self.take("(") {
            let inner = self.parse_or(depth + 1)?;
            return match self.take(")") {
                true => Ok(inner),
                false => Err("a `)` is missing".to_owned()),
            };
        }
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric());
        let (name, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        if name.is_empty() || !self.take("(") {
            return Err("a matcher is missing".to_owned());
        }
        let name = name.to_owned();
        let mut args = Vec::new();
        while !self.take(")") {
            args.push(self.parse_argument()?);
            self.take(",");
        }
        // In version 2 of the syntax, each argument of these is an alternative.
        let several = ["Host", "HostRegexp", "Path", "PathPrefix", "Method"];
        if !several.contains(&name.as_str()) || args.is_empty() {
            return Ok(vec![vec![Matcher { name, args }]]);
        }
        let one = |arg| {
            Ok(vec![self.without_pattern(Matcher {
                name: name.clone(),
                args: vec![arg],
            })?])
        };
        args.into_iter().map(one).collect()
    }

    /// Writes a pattern of version 2 as an expression.
    fn without_pattern(&self, matcher: Matcher) -> Result<Matcher, String> {
        let [arg] = &matcher.args[..] else {
            return Ok(matcher);
        };
        let is_v2 = self.syntax == RuleSyntax::V2 || has_pattern(arg);
        let (name, regex) = match matcher.name.as_str() {
            "HostRegexp" if is_v2 => ("HostRegexp", format!("^{}$", pattern_regex(arg, "[^.]+")?)),
            "Path" if has_pattern(arg) && PathPattern::parse(arg).is_err() => {
                ("PathRegexp", format!("^{}$", pattern_regex(arg, "[^/]+")?))
            }
            "PathPrefix" if has_pattern(arg) => {
                ("PathRegexp", format!("^{}", pattern_regex(arg, "[^/]+")?))
            }
            _ => return Ok(matcher),
        };
        let (name, args) = (name.to_owned(), vec![regex]);
        Ok(Matcher { name, args })
    }

    fn parse_argument(&mut self) -> Result<String, String> {
        let quote = ["`", "\"", "'"].into_iter().find(|quote| self.take(quote));
        let quote = quote.ok_or("an argument has no quotes")?;
        let (argument, rest) = self.rest.split_once(quote).ok_or("a quote does not end")?;
        self.rest = rest;
        Ok(argument.to_owned())
    }
}

/// Whether a text has `{name}` or `{name:regex}`, which is neither `{2,3}` nor `\p{Greek}`.
fn has_pattern(text: &str) -> bool {
    text.match_indices('{').any(|(at, _)| {
        let is_class = text[..at].ends_with(r"\p") || text[..at].ends_with(r"\P");
        !is_class && text[at + 1..].starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    })
}

/// Writes a text with patterns as an expression. `any` stands for `{name}`.
fn pattern_regex(text: &str, any: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, pattern)) = rest.split_once('{') {
        let mut depth = 1;
        let end = pattern.find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        let end = end.ok_or("a `}` is missing")?;
        let regex = pattern[..end]
            .split_once(':')
            .map_or(any, |(_, regex)| regex);
        out.push_str(&format!("{}(?:{regex})", patterns::escape_regex(before)));
        rest = &pattern[end + 1..];
    }
    out.push_str(&patterns::escape_regex(rest));
    Ok(out)
}

fn check_count(found: &[Alternative]) -> Result<(), String> {
    match found.len() > MAX_ALTERNATIVES {
        true => Err("it has too many alternatives".to_owned()),
        false => Ok(()),
    }
}

#[derive(Default)]
pub(super) struct RouteMatch {
    pub(super) host: Option<String>,
    pub(super) path: Option<String>,
    pub(super) methods: Vec<String>,
    pub(super) headers: Vec<HeaderDraft>,
    /// How the path matches other requests than Traefik's.
    pub(super) differs: Option<String>,
}

impl RouteMatch {
    /// Translates the matchers. A route that denies may match more than they do.
    pub(super) fn parse(matchers: &Alternative, denies: bool) -> Result<RouteMatch, String> {
        let mut found = RouteMatch::default();
        for matcher in matchers {
            let arg = matcher.args.first().map_or("", String::as_str);
            let path = match matcher.name.as_str() {
                "Host" if found.host.is_none() && HostPattern::parse(arg).is_ok() => {
                    found.host = Some(arg.to_ascii_lowercase());
                    continue;
                }
                "HostRegexp" if found.host.is_none() && patterns::regex_host(arg).is_ok() => {
                    found.host = Some(format!("regex:{arg}"));
                    continue;
                }
                "Method" if method_of(arg).is_ok() => {
                    found.methods.push(arg.to_owned());
                    continue;
                }
                "Header" | "Headers" if matcher.args.len() == 2 => {
                    found.headers.push(HeaderDraft {
                        name: arg.to_ascii_lowercase(),
                        value: Some(matcher.args[1].clone()),
                    });
                    continue;
                }
                "Query" if matches!(matcher.args.len(), 1 | 2) && !arg.contains('=') => {
                    found.headers.push(HeaderDraft {
                        name: format!("query:{arg}"),
                        value: matcher.args.get(1).cloned(),
                    });
                    continue;
                }
                "Path" => ImportedPath::parse(arg.to_owned())?,
                "PathPrefix"
                    if denies && PathPattern::parse(arg).is_ok() && !arg.ends_with('/') =>
                {
                    patterns::text_prefix_path(arg)?
                }
                "PathPrefix" => {
                    patterns::prefix_path(arg).or_else(|_| patterns::text_prefix_path(arg))?
                }
                "PathRegexp" => patterns::plain_regex_path(arg)
                    .or_else(|_| ImportedPath::parse(format!("regex:{arg}")))?,
                _ if denies => continue,
                name => return Err(format!("no route can say {name}(`{arg}`)")),
            };
            if found.path.replace(path.pattern).is_some() {
                return Err("it wants two paths at once".to_owned());
            }
            found.differs = path.differs;
        }
        match found.methods.len() > 1 {
            true => Err("it wants two methods at once".to_owned()),
            false => Ok(found),
        }
    }
}

/// A path of a route, and the prefix that is taken off it; empty for none.
pub(super) struct StrippedPath {
    pub(super) path: String,
    pub(super) prefix: String,
}

impl StrippedPath {
    pub(super) fn whole(path: &str) -> StrippedPath {
        StrippedPath {
            path: path.to_owned(),
            prefix: String::new(),
        }
    }
}

/// Splits a path by the first prefix of the list that its requests begin with. The error says why
/// routes cannot.
pub(super) fn stripped_paths(
    prefixes: &[String],
    path: &str,
) -> Result<Vec<StrippedPath>, &'static str> {
    let is_below = |path: &str, prefix: &str| {
        let rest = path.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mut found: Vec<StrippedPath> = Vec::new();
    for prefix in prefixes.iter().map(|one| one.trim_end_matches('/')) {
        let mut paths = StrippedPath::whole(path);
        prefix.clone_into(&mut paths.prefix);
        if is_below(path, prefix) {
            found.push(paths);
            return Ok(found);
        }
        let base = path.strip_suffix("/*");
        // An earlier prefix of the list wins.
        let is_hidden = found.iter().any(|one| is_below(prefix, &one.prefix));
        if base.is_some_and(|base| is_below(prefix, base)) && !is_hidden {
            let below = patterns::prefix_path(&format!("{prefix}/"));
            paths.path = below.map_err(|_| "no route can have this path")?.pattern;
            found.push(paths);
        }
    }
    if !prefixes.is_empty() && (path.starts_with("regex:") || path.contains('{')) {
        return Err("a route can take off only what its own path begins with");
    }
    found.push(StrippedPath::whole(path));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Result<Vec<String>, String> {
        let one = |one: &Matcher| format!("{}:{}", one.name, one.args.join("="));
        let all = |all: &Alternative| all.iter().map(one).collect::<Vec<_>>().join("&");
        let found = parse_rule(text, RuleSyntax::V3);
        found.map(|found| found.iter().map(all).collect())
    }

    #[test]
    fn rules_are_multiplied_out() {
        for (text, expected) in [
            ("Host(`a`)", &["Host:a"][..]),
            ("Host(`a`) && Path(`/x`)", &["Host:a&Path:/x"]),
            ("Host(`a`, `b`)", &["Host:a", "Host:b"]),
            (
                "Host(`a`) && (PathPrefix(`/x`) || Path(\"/y\"))",
                &["Host:a&PathPrefix:/x", "Host:a&Path:/y"],
            ),
            (
                "HostRegexp(`a.b`, `{x:[a-z]{2}}.c.d`, `^e{2}$`)",
                &[
                    "HostRegexp:a.b",
                    r"HostRegexp:^(?:[a-z]{2})\.c\.d$",
                    "HostRegexp:^e{2}$",
                ],
            ),
            (
                "PathPrefix(`/a/{id:[0-9]+}`, `/b`) || Path(`/c/{id:a|b}/d`, `/e/{id}`)",
                &[
                    "PathRegexp:^/a/(?:[0-9]+)",
                    "PathPrefix:/b",
                    "PathRegexp:^/c/(?:a|b)/d$",
                    "Path:/e/{id}",
                ],
            ),
            (
                "Header(`X-V`,`2`)||Method(`GET`)",
                &["Header:X-V=2", "Method:GET"],
            ),
        ] {
            assert_eq!(shown(text).unwrap(), expected, "{text}");
        }
        for text in [
            "",
            "Host(`a`",
            "Host(a)",
            "!Host(`a`)",
            "Host(`a`) x",
            "(Host(`a`)",
        ] {
            assert!(shown(text).is_err(), "{text}");
        }
        let old = parse_rule("HostRegexp(`a.b`)", RuleSyntax::V2).unwrap();
        assert_eq!(old[0][0].args, [r"^a\.b$"]);
        let one = "(Host(`a`)||Host(`b`)||Host(`c`)||Host(`d`))";
        assert!(shown(&[one; 8].join("&&")).is_err());
        assert!(shown(&"(".repeat(10_000)).is_err());
    }
}
