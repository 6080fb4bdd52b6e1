//! A route that gives a path another beginning, and the way back for what answers name.
//!
//! The beginning is a text, as in nginx: it may end within a segment. The upstream must read the
//! new path as the new beginning and the rest of the counted path, and as nothing else.

use std::borrow::Cow;

use super::response_rewrite::count_slashes;
use crate::path::{CanonicalPath, Case, fold};

/// `/a` in place of `/b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// In canonical spelling, but with its slash at the end; folded if `case` is insensitive.
    from: Box<str>,
    to: Box<str>,
    case: Case,
    /// `from` as the configuration writes it, for answers.
    shown: Box<str>,
    /// Whether the paths in `Location` and in cookies get the client's beginning back.
    pub location: bool,
    pub cookies: bool,
}

impl Replacement {
    pub fn new(from: &str, to: &str, case: Case) -> Result<Replacement, &'static str> {
        let (from, to) = (beginning(from)?, beginning(to)?);
        Ok(Replacement {
            shown: from.as_str().into(),
            from: match case {
                Case::Sensitive => from.into(),
                Case::Insensitive => fold(&from).into(),
            },
            to: to.into(),
            case,
            location: false,
            cookies: false,
        })
    }

    /// The segments that all paths begin with.
    pub fn from(&self) -> &str {
        self.from.trim_end_matches('/')
    }

    /// The path for the upstream, in its fullest canonical spelling. Segments with a `;` keep the
    /// client's spelling (`sent` is the whole path) if it means the same. `None` if some reading of
    /// the path does not begin so, or if the canonical path would have several readings.
    pub fn apply(&self, path: &CanonicalPath<'_>, sent: &str) -> Option<String> {
        let whole = |text: &str| match sent.ends_with('/') && text != "/" {
            true => self.replace(&format!("{text}/")),
            false => self.replace(text),
        };
        let new = whole(path.as_str())?;
        let others: Option<Vec<String>> = path.others().map(|one| self.replace(one)).collect();
        let others = others?;
        let counted = CanonicalPath::parse(&new)
            .ok()
            .filter(CanonicalPath::is_plain)?;
        if new != counted.as_str() && new.strip_suffix('/') != Some(counted.as_str()) {
            return None;
        }
        if path.is_plain() && !sent.contains(';') {
            return Some(new);
        }
        let kept = self.rest(sent).filter(|_| sent.contains(';'));
        let kept = kept.map(|rest| join(&self.to, rest));
        let same = |text: &String| {
            CanonicalPath::parse(text).is_ok_and(|read| {
                let is_known = |one: &str| others.iter().any(|other| other == one);
                read.as_str() == counted.as_str() && read.others().all(is_known)
            })
        };
        let mut fuller = [kept, whole(path.fullest())].into_iter().flatten();
        fuller.find(same).or(Some(new))
    }

    /// The client's path for a path of the upstream, which may have a query; `None` for others.
    pub fn undo(&self, path: &str) -> Option<String> {
        let end = path.find(['?', '#']).unwrap_or(path.len());
        let (path, query) = path.split_at(end);
        let bare = self.to.trim_end_matches('/');
        let rest = path.strip_prefix(bare)?;
        let is_below = rest.is_empty() || rest.starts_with('/');
        if !is_below || path.is_empty() || path.starts_with("//") {
            return None;
        }
        let from = match self.to.ends_with('/') && rest.is_empty() && !self.from().is_empty() {
            true => self.from(),
            false => &self.shown,
        };
        let mut new = join(from, rest);
        let slashes = count_slashes(new.as_bytes());
        new.replace_range(1..slashes.max(1), "");
        Some(new + query)
    }

    fn replace(&self, path: &str) -> Option<String> {
        if let Some(rest) = self.rest(path) {
            return Some(join(&self.to, rest));
        }
        // A path has no slash at its end, and the beginning may have one.
        let is_whole = self.from.strip_suffix('/') == Some(&*self.folded(path));
        let to = self.to.strip_suffix('/').unwrap_or(&self.to);
        is_whole.then(|| if to.is_empty() { "/" } else { to }.to_owned())
    }

    fn rest<'p>(&self, path: &'p str) -> Option<&'p str> {
        if self.case == Case::Sensitive {
            return path.strip_prefix(&*self.from);
        }
        // A letter and its folded form may differ in length, by at most the escapes of a character.
        let longest = path.len().min(self.from.len().saturating_mul(12));
        let mut parts = (0..=longest).filter_map(|end| path.split_at_checked(end));
        let (_, rest) = parts.find(|(beginning, _)| fold(beginning) == *self.from)?;
        Some(rest)
    }

    fn folded<'p>(&self, path: &'p str) -> Cow<'p, str> {
        match self.case {
            Case::Sensitive => Cow::Borrowed(path),
            Case::Insensitive => fold(path),
        }
    }
}

/// Joins two parts of a path, with one slash between them at most.
fn join(beginning: &str, rest: &str) -> String {
    match beginning.ends_with('/') {
        true => format!("{beginning}{}", rest.trim_start_matches('/')),
        false => format!("{beginning}{rest}"),
    }
}

/// Reads the beginning of a path. Its slash at the end stays.
fn beginning(text: &str) -> Result<String, &'static str> {
    let path = CanonicalPath::parse(text).map_err(|error| error.0)?;
    if !path.is_plain() || text.contains([';', '{', '}', '*', '?', '#']) {
        return Err("the beginning of a path is plain, such as `/api` or `/api/`");
    }
    let mut beginning = path.as_str().to_owned();
    if text.ends_with('/') && beginning != "/" {
        beginning.push('/');
    }
    Ok(beginning)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sent(from: &str, to: &str, path: &str) -> Option<String> {
        let replacement = Replacement::new(from, to, Case::Sensitive).unwrap();
        replacement.apply(&CanonicalPath::parse(path).ok()?, path)
    }

    #[test]
    fn the_beginning_is_a_text() {
        for (from, to, path, new) in [
            ("/a/", "/b/", "/a/x", "/b/x"),
            ("/a/", "/b/", "/a/", "/b/"),
            ("/a/", "/b/", "/a", "/b"),
            ("/a/", "/", "/a/x/", "/x/"),
            ("/a/", "/", "/a", "/"),
            ("/a", "/b", "/abc", "/bbc"),
            ("/a", "/b", "/a/x", "/b/x"),
            ("/a", "/", "/a/x", "/x"),
            ("/a/", "/b", "/a/x", "/bx"),
            ("/a", "/b/", "/a", "/b/"),
            ("/x", "/y/z.html", "/x", "/y/z.html"),
            ("/", "/b/", "/x", "/b/x"),
            ("/", "/b", "/", "/b"),
            ("/a/", "/b/", "/a//x/./%7ey/../z", "/b/x/z"),
            ("/a/", "/b/", "/%61/%2fevil", "/b/evil"),
            ("/a/", "/b/", "/a/x;v=1/y", "/b/x;v=1/y"),
            ("/a/", "/b/", "/a//J.R./x%3by/", "/b/J.R./x%3By/"),
            ("/a/", "/b/", "/a/c/../x%20", "/b/x%20"),
            ("/a/", "/b/", "/a/x.%2fy", "/b/x./y"),
            ("/a", "/", "/a..;/x", "/x"),
        ] {
            let found = sent(from, to, path);
            let is_refused = found.is_none() && CanonicalPath::parse(path).is_err();
            assert!(
                is_refused || found.as_deref() == Some(new),
                "{from} {to} {path}: {found:?}"
            );
        }
        assert_eq!(sent("/a/", "/b/", "/ab"), None);
        assert_eq!(sent("/a", "/b", "/c/../a"), None);
        for odd in ["", "a", "/a;b", "/{id}", "/a?b", "/a%2fb"] {
            assert!(
                Replacement::new(odd, "/", Case::Sensitive).is_err(),
                "{odd}"
            );
            assert!(
                Replacement::new("/", odd, Case::Sensitive).is_err(),
                "{odd}"
            );
        }
    }

    #[test]
    fn letter_case_may_not_matter() {
        let replacement = Replacement::new("/\u{c4}b/", "/New/", Case::Insensitive).unwrap();
        for (path, new) in [("/\u{e4}B/Xy", "/New/Xy"), ("/%C3%84B", "/New")] {
            let parsed = CanonicalPath::parse(path).unwrap();
            assert_eq!(replacement.apply(&parsed, path).as_deref(), Some(new));
        }
        assert_eq!(replacement.undo("/New/q").as_deref(), Some("/%C3%84b/q"));
    }

    #[test]
    fn paths_of_answers_get_the_beginning_back() {
        let undo = |from: &str, to: &str, path: &str| {
            Replacement::new(from, to, Case::Sensitive)
                .unwrap()
                .undo(path)
        };
        for (from, to, path, back) in [
            ("/a/", "/b/", "/b/x?/b/", Some("/a/x?/b/")),
            ("/a/", "/b/", "/b", Some("/a")),
            ("/a", "/b", "/b?q", Some("/a?q")),
            ("/a", "/b", "/bc", None),
            ("/a/", "/", "/", Some("/a/")),
            ("/a/", "/", "/x", Some("/a/x")),
            ("/a/", "/", "//evil.example", None),
            ("/a", "/", "/x", Some("/a/x")),
            ("/a/", "/", "?q", None),
            ("/", "/b/", "/b", Some("/")),
            ("/", "/b/", "/b?/b", Some("/?/b")),
            ("/", "/b", "/b/x", Some("/x")),
            ("/", "/b/", "/b//\\evil.example", Some("/evil.example")),
            ("/", "/b", "/b/\t/evil.example", Some("/evil.example")),
            ("/a", "/b", "/b/\\x", Some("/a/\\x")),
        ] {
            assert_eq!(undo(from, to, path).as_deref(), back, "{from} {to} {path}");
        }
    }

    proptest! {
        #[test]
        fn the_upstream_reads_the_rest_of_the_counted_path(
            path in "/[a/.;%2fFe\\\\ ]{0,12}",
            from in "/a?/?",
            to in "(/b)?/?",
        ) {
            let to = if to.is_empty() { "/" } else { &to };
            prop_assume!(!from.contains("//") && !to.contains("//"));
            let replacement = Replacement::new(&from, to, Case::Sensitive).unwrap();
            if let Ok(counted) = CanonicalPath::parse(&path)
                && let Some(new) = replacement.apply(&counted, &path)
            {
                let read = CanonicalPath::parse(&new).unwrap();
                let wanted = replacement.replace(counted.as_str()).unwrap();
                let bare = wanted.strip_suffix('/').filter(|bare| !bare.is_empty());
                let wanted = bare.unwrap_or(&wanted);
                prop_assert_eq!(read.as_str(), wanted);
            }
        }
    }
}
