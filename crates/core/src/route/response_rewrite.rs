//! What a route rewrites in responses: places that they send clients to, and cookies.

use http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION, REFRESH, SET_COOKIE};

use super::regex::{MARK, Regex};

/// `rewrite_down` of a route. Of several rules for one value, the first that fits counts.
#[derive(Clone, Debug, Default)]
pub struct ResponseRewrites {
    /// Of `Location`, and of the URL in `Refresh`.
    pub locations: Vec<TextRewrite>,
    pub cookie_domains: Vec<TextRewrite>,
    pub cookie_paths: Vec<TextRewrite>,
    pub cookie_flags: Vec<CookieFlags>,
}

/// Another text in place of one that fits.
#[derive(Clone, Debug)]
pub struct TextRewrite {
    from: Pattern,
    /// Groups of an expression are `${1}`.
    to: Box<str>,
}

#[derive(Clone, Debug)]
enum Pattern {
    /// The rest of the text stays.
    Beginning(Box<str>),
    /// A domain without a dot at its beginning. That dot stays.
    Domain(Box<str>),
    /// It replaces the whole text.
    Expression(Regex),
}

/// Flags of the cookies with one name.
#[derive(Clone, Debug)]
pub struct CookieFlags {
    name: Regex,
    flags: Vec<CookieFlag>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CookieFlag {
    /// `Secure`, `HttpOnly` or `SameSite`.
    attribute: &'static str,
    /// The attribute as it is sent; `None` removes it.
    sent: Option<&'static str>,
}

/// Attributes as they are sent.
const ATTRIBUTES: &str = "Secure HttpOnly SameSite=Strict SameSite=Lax SameSite=None";
/// The words of the configuration for flags.
const WORDS: &str = "secure, nosecure, httponly, nohttponly, samesite=strict, samesite=lax, \
                     samesite=none, nosamesite";

impl CookieFlag {
    fn parse(word: &str) -> Option<CookieFlag> {
        let removed = word.strip_prefix("no");
        ATTRIBUTES.split(' ').find_map(|sent| {
            let attribute = sent.split('=').next()?;
            let is_sent = sent.to_ascii_lowercase() == word;
            let is_removed = removed == Some(&attribute.to_ascii_lowercase());
            let sent = is_sent.then_some(sent);
            (is_sent || is_removed).then_some(CookieFlag { attribute, sent })
        })
    }
}

impl TextRewrite {
    /// Reads a rule for the beginning of a text. `regex:..` is an expression for the whole text,
    /// whose groups are `{1}` or `{NAME}` in the new text.
    pub fn of_beginning(from: &str, to: &str) -> Result<TextRewrite, String> {
        let pattern = match from.strip_prefix(MARK) {
            Some(expression) => Pattern::Expression(parse(expression)?),
            None => Pattern::Beginning(from.into()),
        };
        TextRewrite::with(pattern, to)
    }

    /// Reads a rule for a cookie's domain. Letter case and a dot at its beginning do not matter.
    pub fn of_domain(from: &str, to: &str) -> Result<TextRewrite, String> {
        match from.strip_prefix(MARK) {
            Some(expression) => {
                let expression = parse(&format!("(?i){expression}"))?;
                TextRewrite::with(Pattern::Expression(expression), to)
            }
            None => {
                let name = from.trim_start_matches('.').into();
                TextRewrite::with(Pattern::Domain(name), to.trim_start_matches('.'))
            }
        }
    }

    fn with(from: Pattern, to: &str) -> Result<TextRewrite, String> {
        if to.chars().any(|c| c.is_control() || c == ';') {
            return Err("the new text is a part of a header".to_owned());
        }
        let to = match &from {
            Pattern::Expression(regex) => with_groups(regex, to)?,
            _ if to.contains('{') => return Err("only an expression has groups".to_owned()),
            _ => to.to_owned(),
        };
        let to = to.into();
        Ok(TextRewrite { from, to })
    }

    fn apply(&self, text: &[u8]) -> Option<Vec<u8>> {
        let to = self.to.as_bytes();
        match &self.from {
            Pattern::Beginning(from) => {
                let rest = text.strip_prefix(from.as_bytes())?;
                Some([to, rest].concat())
            }
            Pattern::Domain(from) => {
                let (dot, name) = text.split_at(usize::from(text.starts_with(b".")));
                let is_same = name.eq_ignore_ascii_case(from.as_bytes());
                is_same.then(|| [dot, to].concat())
            }
            Pattern::Expression(regex) => regex.expand(text, &self.to),
        }
    }

    /// The new text of a place. Its rest is what a client asked for, so it begins with one slash,
    /// unless the rule or the server names another host itself.
    fn place(&self, text: &[u8]) -> Option<Vec<u8>> {
        let mut place = self.apply(text)?;
        let slashes = count_slashes(&place);
        if slashes > 1 && !self.to.starts_with("//") && !text.starts_with(b"//") {
            place.drain(1..slashes);
        }
        Some(place)
    }

    fn first(rules: &[TextRewrite], text: &[u8]) -> Option<Vec<u8>> {
        rules.iter().find_map(|rule| rule.apply(text))
    }
}

fn parse(expression: &str) -> Result<Regex, String> {
    Regex::parse(expression).map_err(|error| error.0.to_owned())
}

/// Returns a text whose groups are `{1}` with the groups as [`Regex::expand`] reads them.
fn with_groups(regex: &Regex, to: &str) -> Result<String, String> {
    let (mut new, mut left) = (String::new(), to);
    while let Some((before, rest)) = left.split_once('{') {
        let (group, rest) = rest.split_once('}').ok_or("a `{` is not closed")?;
        if !regex.has_group(group) {
            return Err(format!("the expression has no group `{group}`"));
        }
        new.push_str(&before.replace('$', "$$"));
        new.push_str(&format!("${{{group}}}"));
        left = rest;
    }
    new.push_str(&left.replace('$', "$$"));
    Ok(new)
}

impl CookieFlags {
    /// Reads the words of the flags. The name is a text or `regex:..`, in any letter case.
    pub fn parse(name: &str, words: &[String]) -> Result<CookieFlags, String> {
        let name = match name.strip_prefix(MARK) {
            Some(expression) => format!("(?i){expression}"),
            None => format!("(?i)^{}$", regex::escape(name)),
        };
        let flag = |word: &String| {
            CookieFlag::parse(word).ok_or_else(|| format!("`{word}` is none of {WORDS}"))
        };
        Ok(CookieFlags {
            name: parse(&name)?,
            flags: words.iter().map(flag).collect::<Result<_, _>>()?,
        })
    }
}

impl ResponseRewrites {
    pub fn is_empty(&self) -> bool {
        let cookies = self.cookie_domains.len() + self.cookie_paths.len() + self.cookie_flags.len();
        self.locations.is_empty() && cookies == 0
    }

    /// Returns whether a rule fits `Location`.
    pub fn apply(&self, headers: &mut HeaderMap) -> bool {
        rewrite_lines(headers, &SET_COOKIE, |text| self.cookie(text));
        let location = |text: &[u8]| self.locations.iter().find_map(|rule| rule.place(text));
        !self.locations.is_empty() && rewrite_places(headers, location)
    }

    /// The new line of a cookie, if it changes. Its name and its value stay.
    fn cookie(&self, line: &[u8]) -> Option<Vec<u8>> {
        let paths = |path: &[u8]| TextRewrite::first(&self.cookie_paths, path);
        let domains = |domain: &[u8]| TextRewrite::first(&self.cookie_domains, domain);
        let mut new = rewrite_cookie(line, "path", paths);
        let with_domain = rewrite_cookie(new.as_deref().unwrap_or(line), "domain", domains);
        new = with_domain.or(new);
        let with_flags = self.cookie_with_flags(new.as_deref().unwrap_or(line));
        with_flags.or(new)
    }

    fn cookie_with_flags(&self, line: &[u8]) -> Option<Vec<u8>> {
        let pair = line.split(|byte| *byte == b';').next()?;
        let name = pair.split(|byte| *byte == b'=').next()?.trim_ascii();
        let rule = self
            .cookie_flags
            .iter()
            .find(|rule| rule.name.is_in(name))?;
        let parts = line.split(|byte| *byte == b';').skip(1);
        let mut parts: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
        for flag in &rule.flags {
            parts.retain(|part| !is_attribute(part, flag.attribute));
            parts.extend(flag.sent.map(|sent| format!(" {sent}").into_bytes()));
        }
        parts.insert(0, pair.to_vec());
        Some(parts.join(&b';'))
    }
}

/// Whether a part of a cookie's line is this attribute, with or without a value.
fn is_attribute(part: &[u8], name: &str) -> bool {
    let word = part.split(|byte| *byte == b'=').next().unwrap_or_default();
    word.trim_ascii().eq_ignore_ascii_case(name.as_bytes())
}

/// Gives an attribute of a cookie's line another value. `None` if no value changes.
pub(crate) fn rewrite_cookie(
    line: &[u8],
    attribute: &str,
    new: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let mut is_changed = false;
    let parts = line.split(|byte| *byte == b';').enumerate();
    let parts: Vec<Vec<u8>> = parts
        .map(|(at, part)| {
            let equals = part.iter().position(|byte| *byte == b'=');
            let Some(equals) = equals.filter(|_| at > 0 && is_attribute(part, attribute)) else {
                return part.to_vec();
            };
            let (name, value) = part.split_at(equals + 1);
            match new(value.trim_ascii()) {
                Some(value) => {
                    is_changed = true;
                    [name, &value].concat()
                }
                None => part.to_vec(),
            }
        })
        .collect();
    is_changed.then(|| parts.join(&b';'))
}

/// Counts the bytes at the beginning of a place that browsers read as slashes, or leave out: a path
/// with two slashes is another host (RFC 3986 section 4.2).
pub(super) fn count_slashes(place: &[u8]) -> usize {
    let slashes = place.iter().take_while(|byte| b"/\\\t ".contains(byte));
    slashes.count()
}

/// Gives the places in `Location` and `Refresh` another text. `None` keeps a place. Returns whether
/// `Location` gets one.
pub(crate) fn rewrite_places(
    headers: &mut HeaderMap,
    new: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> bool {
    rewrite_lines(headers, &REFRESH, |text| {
        let at = text.to_ascii_lowercase();
        let at = at.windows(4).position(|part| part == b"url=")? + 4;
        let (before, url) = text.split_at(at);
        let quote = url.first().filter(|byte| b"\"'".contains(byte));
        let (opening, url) = url.split_at(usize::from(quote.is_some()));
        let end = url.iter().position(|byte| Some(byte) == quote);
        let (url, rest) = url.split_at(end.unwrap_or(url.len()));
        Some([before, opening, &new(url)?, rest].concat())
    });
    rewrite_lines(headers, &LOCATION, new)
}

/// Gives the lines of a header another value. `None` keeps a line. Returns whether a line gets one.
pub(crate) fn rewrite_lines(
    headers: &mut HeaderMap,
    name: &HeaderName,
    new: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> bool {
    let lines = headers.iter_mut().filter(|(known, _)| *known == name);
    let mut is_rewritten = false;
    for (_, line) in lines {
        let value = new(line.as_bytes()).map(HeaderValue::try_from);
        if let Some(Ok(value)) = value {
            *line = value;
            is_rewritten = true;
        }
    }
    is_rewritten
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_cookies_get_new_texts() {
        let beginning = |from: &str, to: &str| TextRewrite::of_beginning(from, to).unwrap();
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<String>>();
        let rewrites = ResponseRewrites {
            locations: vec![
                beginning("http://in.test:81/a/", "/$/"),
                beginning("regex:(?i)^(?P<all>.+)/old/([^/]+)", "{all}/{2}.html"),
            ],
            cookie_domains: vec![
                TextRewrite::of_domain("in.test", ".example.com").unwrap(),
                TextRewrite::of_domain(r"regex:^(.+)\.test$", "{1}.org").unwrap(),
            ],
            cookie_paths: vec![beginning("/app/", "/")],
            cookie_flags: vec![
                CookieFlags::parse("a", &words("secure nohttponly samesite=lax")).unwrap(),
                CookieFlags::parse("regex:^B", &words("httponly")).unwrap(),
            ],
        };
        for (name, value, new) in [
            (LOCATION, "http://in.test:81/a/b", "/$/b"),
            (LOCATION, "http://in.test:81/A/b", "http://in.test:81/A/b"),
            (LOCATION, "/x/OLD/y/z", "/x/y.html"),
            (REFRESH, "7; URL=http://in.test:81/a/", "7; URL=/$/"),
            (REFRESH, "7;url=\"/x/old/y/z\" q", "7;url=\"/x/y.html\" q"),
            (REFRESH, "7;url='http://in.test:81/a/", "7;url='/$/"),
            (
                SET_COOKIE,
                "c=Path=/app/; Domain=.IN.test",
                "c=Path=/app/; Domain=.example.com",
            ),
            (
                SET_COOKIE,
                "c=1; domain=b.test; path=/app/x",
                "c=1; domain=b.org; path=/x",
            ),
            (
                SET_COOKIE,
                "a=1; httponly;samesite=none",
                "a=1; Secure; SameSite=Lax",
            ),
            (SET_COOKIE, "bc=1", "bc=1; HttpOnly"),
            (
                SET_COOKIE,
                "a=\u{e9}; path=/app/",
                "a=\u{e9}; path=/; Secure; SameSite=Lax",
            ),
            (
                SET_COOKIE,
                "c=1; path=/other; domain",
                "c=1; path=/other; domain",
            ),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(&name, HeaderValue::try_from(value).unwrap());
            rewrites.apply(&mut headers);
            assert_eq!(headers[&name].as_bytes(), new.as_bytes(), "{value}");
        }
    }

    #[test]
    fn no_client_makes_another_host_of_a_path() {
        let place = |from: &str, to: &str, text: &str| {
            let rule = TextRewrite::of_beginning(from, to).unwrap();
            rule.place(text.as_bytes())
                .and_then(|new| String::from_utf8(new).ok())
        };
        let inner = "http://in.test/";
        for (from, to, text, new) in [
            (
                inner,
                "/",
                "http://in.test//evil.example/a//b",
                "/evil.example/a//b",
            ),
            (inner, "/", "http://in.test/\\evil.example", "/evil.example"),
            (
                inner,
                "/",
                "http://in.test/\t/evil.example",
                "/evil.example",
            ),
            (
                "regex:^http://in.test(.*)",
                "{1}",
                "http://in.test//evil",
                "/evil",
            ),
            (
                inner,
                "//cdn.example/",
                "http://in.test/a",
                "//cdn.example/a",
            ),
            (
                "regex:^(//[^/]+)/old",
                "{1}/new",
                "//cdn.example/old",
                "//cdn.example/new",
            ),
            (inner, "", "http://in.test/", ""),
        ] {
            assert_eq!(
                place(from, to, text).as_deref(),
                Some(new),
                "{from} {to} {text}"
            );
        }
    }

    #[test]
    fn a_rule_names_its_own_groups() {
        for (from, to) in [
            ("/a", "{1}"),
            ("regex:^/a", "{1}"),
            ("regex:^(/a)", "{2}"),
            ("regex:(", "/"),
            ("/a", "/b\r\nx: y"),
        ] {
            assert!(TextRewrite::of_beginning(from, to).is_err(), "{from} {to}");
        }
        assert!(CookieFlags::parse("a", &["lax".to_owned()]).is_err());
    }
}
