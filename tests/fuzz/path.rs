//! Paths: a decoded path and its re-encoded spellings belong to one route, and whatever reading of a
//! path an upstream may have, it is one that we counted.

use http::{HeaderMap, Method};
use tidegate::config::Config;
use tidegate::path::CanonicalPath;
use tidegate::route::RouteQuery;

use crate::both_texts;

const WORDS: &[&str] = &[
    "/",
    "//",
    ".",
    "..",
    "...",
    "%2e",
    "%2E",
    "%2f",
    "%5c",
    "\\",
    ";",
    ";a=b",
    "%3b",
    "%25",
    "%252f",
    "%2",
    "%",
    "%00",
    "%c0%af",
    "%e2%82%ac",
    "\u{20ac}",
    "a",
    "b",
    "login",
    "api",
    "users",
    "7",
    "%61",
    "~",
    "%7e",
    " ",
    "%20",
    "+",
    "%2B",
    "!",
    "(",
    "[",
    "%5B",
    "?",
    "#",
    "@",
    ":",
    "%3a",
];

fn routes() -> Config {
    let text = "upstream = \"http://127.0.0.1:1\"\n\
                [[route]]\npath = \"/login\"\n[[route]]\npath = \"/api/*\"\n\
                [[route]]\npath = \"/api/users/{id}\"\n[[route]]\npath = \"/a/b\"\n\
                [[route]]\npath = \"/a.b/{x}/7\"\n[[route]]\npath = \"/*\"\n";
    let none = |_: &str| None;
    let Ok((config, _)) = tidegate::config::parse("routes", text, &none) else {
        panic!("the routes are wrong");
    };
    config
}

#[test]
fn a_path_and_its_spellings_are_one_route() {
    let config = routes();
    bolero::check!(name = "path")
        .with_max_len(64)
        .for_each(|input: &[u8]| both_texts(input, WORDS, |raw| check(&config, raw)));
}

fn check(config: &Config, raw: &str) {
    let Ok(path) = CanonicalPath::parse(raw) else {
        return;
    };
    let canonical = path.as_str();
    let segments = canonical.strip_prefix('/').expect("it begins with a slash");
    assert!(
        segments.is_empty()
            || segments
                .split('/')
                .all(|one| !matches!(one, "" | "." | "..")),
        "{raw:?} -> {canonical:?}"
    );
    for again in [canonical.to_owned()]
        .into_iter()
        .chain(spellings(canonical))
    {
        let parsed = CanonicalPath::parse(&again);
        let parsed = parsed.unwrap_or_else(|error| panic!("{again:?}: {error}"));
        assert_eq!(parsed.as_str(), canonical, "{again:?}");
        assert!(parsed.is_plain(), "{again:?}");
        assert_eq!(
            route(config, &parsed),
            route(config, &of(canonical)),
            "{again:?}"
        );
    }
    check_readings(raw, &path);
}

fn of(canonical: &str) -> CanonicalPath<'_> {
    CanonicalPath::parse(canonical).unwrap()
}

fn route(config: &Config, path: &CanonicalPath<'_>) -> usize {
    let ask = RouteQuery {
        host: "h",
        path,
        method: &Method::GET,
        headers: &HeaderMap::new(),
        query: None,
        port: 0,
    };
    config
        .routes
        .find(&ask)
        .expect("`/*` takes all")
        .route
        .number
}

/// Other spellings of a canonical path that mean the same to everybody.
fn spellings(canonical: &str) -> [String; 6] {
    let escaped = |upper: bool| {
        let (mut out, mut rest) = (String::new(), canonical.bytes());
        while let Some(byte) = rest.next() {
            match byte {
                b'/' => out.push('/'),
                b'%' => {
                    let digits = [rest.next().unwrap(), rest.next().unwrap()];
                    let digits = std::str::from_utf8(&digits).unwrap().to_owned();
                    out.push('%');
                    out += &if upper { digits } else { digits.to_lowercase() };
                }
                byte if upper => out += &format!("%{byte:02X}"),
                byte => out += &format!("%{byte:02x}"),
            }
        }
        out
    };
    let slash = if canonical == "/" { "" } else { "/" };
    [
        escaped(true),
        escaped(false),
        canonical.replace('/', "//"),
        canonical.replace('/', "/./"),
        format!("{canonical}{slash}"),
        canonical
            .replace('/', ";v=1/")
            .trim_start_matches(";v=1")
            .to_owned()
            + ";v=2",
    ]
}

type Segments = Vec<Vec<u8>>;

/// What upstreams of three kinds make of a path, beside our two readings of it. Of parameters and
/// backslashes they think too differently to be asked.
fn check_readings(raw: &str, path: &CanonicalPath<'_>) {
    let lower = raw.to_lowercase();
    if [";", "%3b", "\\", "%5c"]
        .iter()
        .any(|odd| lower.contains(odd))
    {
        return;
    }
    let resolved = split(path.as_str().as_bytes(), decoded);
    let others: Vec<Segments> = path
        .others()
        .map(|text| {
            let back = |segment: &[u8]| decoded(segment).iter().map(slash_for_backslash).collect();
            split(text.as_bytes(), back)
        })
        .collect();
    let counted = |reading: &Segments| *reading == resolved || others.contains(reading);
    // Decodes first: nginx.
    let first = climbed(split(&decoded(raw.as_bytes()), <[u8]>::to_vec));
    // Splits first, and climbs: most frameworks.
    let then = climbed(split(raw.as_bytes(), decoded));
    // Splits first, and takes `..` for a name.
    let never: Segments = split(raw.as_bytes(), decoded);
    // Splits first, climbs, and drops dots and spaces at a segment's end: Windows. Or drops first.
    let last = then.clone().map(trimmed);
    let before = climbed(trimmed(never.clone()));
    for reading in [first, then, Some(never), last, before]
        .into_iter()
        .flatten()
    {
        assert!(
            counted(&reading),
            "{raw:?} is {path:?}, and to some {reading:?}"
        );
    }
}

fn slash_for_backslash(byte: &u8) -> u8 {
    if *byte == b'\\' { b'/' } else { *byte }
}

fn decoded(text: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let digits = text
            .get(at + 1..at + 3)
            .and_then(|it| std::str::from_utf8(it).ok());
        match digits.and_then(|it| u8::from_str_radix(it, 16).ok()) {
            Some(byte) if text[at] == b'%' => {
                out.push(byte);
                at += 3;
            }
            _ => {
                out.push(text[at]);
                at += 1;
            }
        }
    }
    out
}

/// Segments without those that are nothing or a dot.
fn split(text: &[u8], read: impl Fn(&[u8]) -> Vec<u8>) -> Segments {
    let all = text.split(|byte| *byte == b'/').map(read);
    all.filter(|segment| !matches!(segment.as_slice(), b"" | b"."))
        .collect()
}

/// Without dots and spaces at the end of segments; those that are nothing then are left out.
fn trimmed(segments: Segments) -> Segments {
    let trim = |mut segment: Vec<u8>| {
        if segment != b".." {
            while matches!(segment.last(), Some(b'.' | b' ')) {
                segment.pop();
            }
        }
        segment
    };
    let all = segments.into_iter().map(trim);
    all.filter(|segment| !segment.is_empty()).collect()
}

/// Nothing if it climbs above the root.
fn climbed(segments: Segments) -> Option<Segments> {
    let mut out = Segments::new();
    for segment in segments {
        if segment == b".." {
            out.pop()?;
        } else {
            out.push(segment);
        }
    }
    Some(out)
}
