//! How keys are written: `ip`, `api_key or ip`, `header:x-user`.

use std::fmt;

use http::HeaderName;

use super::{Alternatives, ApiKeySource, ApiKeySources, Credential, Key, Part};

/// Alternatives in one part, parts in one key, and sources of API keys, at most.
pub const MAX_CHOICES: usize = 8;

/// A text that is not a key. The configuration's author is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    Empty,
    /// More than [`MAX_CHOICES`] parts, alternatives or sources.
    TooMany,
    /// This word stands where `or` should.
    OrMissing(String),
    Unknown {
        part: String,
        /// The known part that looks most like it.
        nearest: Option<&'static str>,
    },
    /// A part such as `header` without its `:NAME`.
    NameMissing(&'static str),
    /// A part such as `ip` with a `:NAME`.
    NameNotTaken(&'static str),
    /// No header, cookie or path parameter can have this name.
    Name(String),
    /// A certificate has no such field.
    Credential(String),
    /// The alternative before this one is always present, so this one is never taken.
    Unreachable(String),
}

/// Whether `:NAME` follows a part's word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    Never,
    Optional,
    Required,
}

/// A word that a part or a source begins with.
type KeyWord = (&'static str, Name);

const PARTS: &[KeyWord] = &[
    ("ip", Name::Never),
    ("api_key", Name::Never),
    ("header", Name::Required),
    ("query", Name::Required),
    ("cookie", Name::Required),
    ("path", Name::Optional),
    ("method", Name::Never),
    ("host", Name::Never),
    ("route", Name::Never),
    ("global", Name::Never),
    ("tier", Name::Never),
    ("jwt", Name::Required),
    ("tls", Name::Required),
];

const SOURCES: &[KeyWord] = &[
    ("header", Name::Required),
    ("bearer", Name::Never),
    ("query", Name::Required),
    ("cookie", Name::Required),
];

impl Key {
    /// Reads a key: one text, or several that are combined.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, KeyError> {
        let parts = parse_all(texts, Self::parse_part)?;
        Ok(Self { parts })
    }

    /// Reads one part: `ip`, or `api_key or ip`.
    pub fn parse_part(text: &str) -> Result<Alternatives, KeyError> {
        let mut parts: Vec<Part> = Vec::new();
        let mut words = text.split_whitespace();
        loop {
            let part = Part::parse(words.next().unwrap_or_default())?;
            if parts.len() == MAX_CHOICES {
                return Err(KeyError::TooMany);
            }
            if parts.contains(&part) || parts.last().is_some_and(Part::is_always_present) {
                return Err(KeyError::Unreachable(part.to_string()));
            }
            parts.push(part);
            match words.next() {
                None => return Ok(Alternatives(parts)),
                Some("or") => {}
                Some(word) => return Err(KeyError::OrMissing(word.to_owned())),
            }
        }
    }
}

impl Part {
    /// Reads one alternative: `ip`, `header:x-user`, `path:id`.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let (word, name) = word_and_name(text, PARTS)?;
        Ok(match (word, name) {
            ("ip", _) => Self::Ip,
            ("api_key", _) => Self::ApiKey,
            ("header", Some(name)) => Self::Header(header_name(name)?),
            ("query", Some(name)) => Self::Query(name.to_owned()),
            ("cookie", Some(name)) => Self::Cookie(token(name)?),
            ("path", None) => Self::Path,
            ("path", Some(name)) => Self::PathParam(token(name)?),
            ("method", _) => Self::Method,
            ("host", _) => Self::Host,
            ("route", _) => Self::Route,
            ("global", _) => Self::Global,
            ("tier", _) => Self::Tier,
            ("jwt", Some(name)) => Self::Jwt(name.to_owned()),
            ("tls", Some(name)) => Self::Tls(credential(name)?),
            _ => return Err(unknown(word, PARTS)),
        })
    }
}

impl ApiKeySource {
    /// Reads `header:x-api-key`, `bearer`, `query:api_key` or `cookie:key`.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let (word, name) = word_and_name(text, SOURCES)?;
        Ok(match (word, name) {
            ("header", Some(name)) => Self::Header(header_name(name)?),
            ("bearer", _) => Self::Bearer,
            ("query", Some(name)) => Self::Query(name.to_owned()),
            ("cookie", Some(name)) => Self::Cookie(token(name)?),
            _ => return Err(unknown(word, SOURCES)),
        })
    }
}

impl ApiKeySources {
    /// Reads `[api_key] from`.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, KeyError> {
        parse_all(texts, ApiKeySource::parse).map(Self)
    }
}

fn parse_all<'a, T>(
    texts: impl IntoIterator<Item = &'a str>,
    parse: impl Fn(&'a str) -> Result<T, KeyError>,
) -> Result<Vec<T>, KeyError> {
    let all = texts
        .into_iter()
        .map(parse)
        .collect::<Result<Vec<_>, _>>()?;
    match all.len() {
        0 => Err(KeyError::Empty),
        1..=MAX_CHOICES => Ok(all),
        _ => Err(KeyError::TooMany),
    }
}

fn word_and_name<'t>(
    text: &'t str,
    known: &'static [KeyWord],
) -> Result<(&'static str, Option<&'t str>), KeyError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(KeyError::Empty);
    }
    let (word, name) = match text.split_once(':') {
        Some((word, name)) => (word, Some(name)),
        None => (text, None),
    };
    let found = known.iter().find(|(known, _)| *known == word);
    let (word, named) = *found.ok_or_else(|| unknown(word, known))?;
    match (named, name) {
        (Name::Never, Some(_)) => Err(KeyError::NameNotTaken(word)),
        (Name::Required, None) | (_, Some("")) => Err(KeyError::NameMissing(word)),
        _ => Ok((word, name)),
    }
}

fn unknown(word: &str, known: &'static [KeyWord]) -> KeyError {
    let lower = word.to_ascii_lowercase().replace('-', "_");
    let distances = known
        .iter()
        .map(|(name, _)| (*name, strsim::osa_distance(&lower, name)));
    // At most one slip for every three letters: a wilder suggestion misleads.
    let most = (lower.len().saturating_sub(1) / 3).max(1);
    let near = distances.filter(|(_, distance)| *distance <= most);
    let nearest = near
        .min_by_key(|(_, distance)| *distance)
        .map(|(name, _)| name);
    KeyError::Unknown {
        part: word.to_owned(),
        nearest,
    }
}

fn header_name(name: &str) -> Result<HeaderName, KeyError> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| KeyError::Name(name.to_owned()))
}

fn credential(name: &str) -> Result<Credential, KeyError> {
    Credential::parse(name).ok_or_else(|| KeyError::Credential(name.to_owned()))
}

/// Reads a token of RFC 9110, the form of names of cookies and path parameters.
fn token(name: &str) -> Result<String, KeyError> {
    let fits = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b));
    match fits {
        true => Ok(name.to_owned()),
        false => Err(KeyError::Name(name.to_owned())),
    }
}

impl Part {
    const fn word(&self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::ApiKey => "api_key",
            Self::Header(_) => "header",
            Self::Query(_) => "query",
            Self::Cookie(_) => "cookie",
            Self::Path | Self::PathParam(_) => "path",
            Self::Method => "method",
            Self::Host => "host",
            Self::Route => "route",
            Self::Global => "global",
            Self::Tier => "tier",
            Self::Jwt(_) => "jwt",
            Self::Tls(_) => "tls",
            Self::Custom(_) => "custom",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.word(), self.name()) {
            (word, "") => f.write_str(word),
            (word, name) => write!(f, "{word}:{name}"),
        }
    }
}

impl fmt::Display for Alternatives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.0.iter().enumerate() {
            let or = if index == 0 { "" } else { " or " };
            write!(f, "{or}{part}")?;
        }
        Ok(())
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a key is missing; write for example `ip`"),
            Self::OrMissing(word) => write!(
                f,
                "`{word}` stands where `or` should; parts that are counted together are an array"
            ),
            Self::TooMany => write!(f, "at most {MAX_CHOICES} are possible"),
            Self::Unknown { part, nearest } => {
                write!(f, "`{part}` is nothing to count by")?;
                match nearest {
                    Some(nearest) => write!(f, "; did you mean `{nearest}`?"),
                    None => Ok(()),
                }
            }
            Self::NameMissing(word) => write!(f, "`{word}` needs a name: `{word}:NAME`"),
            Self::NameNotTaken(word) => write!(f, "`{word}` takes no name"),
            Self::Name(name) => write!(f, "`{name}` is not a possible name"),
            Self::Credential(name) => write!(
                f,
                "`tls` has no `{name}`; write `tls:subject`, `tls:san` or `tls:fingerprint`"
            ),
            Self::Unreachable(part) => {
                write!(
                    f,
                    "`{part}` is never used: what stands before it is always present"
                )
            }
        }
    }
}

impl std::error::Error for KeyError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> KeyError {
        Key::parse_part(text).unwrap_err()
    }

    #[test]
    fn every_part_reads_back_as_written() {
        for text in [
            "ip",
            "api_key or ip",
            "header:x-user or cookie:session or query:k or global",
            "path",
            "path:id or path",
            "method",
            "host",
            "route",
            "jwt:org.id or tier or ip",
        ] {
            assert_eq!(Key::parse_part(text).unwrap().to_string(), text);
        }
        assert_eq!(
            Key::parse_part("  header:X-User   or  ip ")
                .unwrap()
                .to_string(),
            "header:x-user or ip"
        );
    }

    #[test]
    fn mistakes_come_with_a_suggestion() {
        for (text, nearest) in [
            ("api-key", Some("api_key")),
            ("apikey", Some("api_key")),
            ("IP", Some("ip")),
            ("headers:x", Some("header")),
            ("cokie:x", Some("cookie")),
            ("jwtt:sub", Some("jwt")),
            ("teir", Some("tier")),
            ("bearer", None),
        ] {
            let part = text.split(':').next().unwrap().to_owned();
            assert_eq!(error(text), KeyError::Unknown { part, nearest }, "{text}");
        }
        assert_eq!(error(""), KeyError::Empty);
        assert_eq!(error("ip or"), KeyError::Empty);
        assert_eq!(
            error("ip, path"),
            KeyError::Unknown {
                part: "ip,".into(),
                nearest: Some("ip")
            }
        );
        assert_eq!(error("api_key ip"), KeyError::OrMissing("ip".into()));
        assert_eq!(error("header"), KeyError::NameMissing("header"));
        assert_eq!(error("path:"), KeyError::NameMissing("path"));
        assert_eq!(error("ip:x"), KeyError::NameNotTaken("ip"));
        assert_eq!(error("tls:cn"), KeyError::Credential("cn".into()));
        assert_eq!(error("header:a(b"), KeyError::Name("a(b".into()));
        assert_eq!(error("cookie:a=b"), KeyError::Name("a=b".into()));
        assert_eq!(
            error("ip or api_key"),
            KeyError::Unreachable("api_key".into())
        );
        assert_eq!(
            error("api_key or api_key"),
            KeyError::Unreachable("api_key".into())
        );
    }

    #[test]
    fn numbers_of_parts_are_bounded() {
        let many: Vec<String> = (0..9).map(|n| format!("query:{n}")).collect();
        let parts = many.iter().map(String::as_str);
        assert_eq!(error(&many.join(" or ")), KeyError::TooMany);
        assert_eq!(Key::parse(parts.clone()), Err(KeyError::TooMany));
        assert_eq!(Key::parse(parts.take(8)).unwrap().parts.len(), 8);
        assert_eq!(Key::parse([]), Err(KeyError::Empty));
    }

    #[test]
    fn sources_of_api_keys_are_read_and_checked() {
        let sources = ApiKeySources::parse(["header:X-API-Key", "bearer"]).unwrap();
        assert_eq!(sources, ApiKeySources::default());
        let given = ["query:api_key", "cookie:key"];
        assert_eq!(
            ApiKeySources::parse(given).unwrap().0,
            [
                ApiKeySource::Query("api_key".into()),
                ApiKeySource::Cookie("key".into())
            ]
        );
        let unknown = |part: &str, nearest| {
            Err(KeyError::Unknown {
                part: part.into(),
                nearest,
            })
        };
        assert_eq!(ApiKeySources::parse(["ip"]), unknown("ip", None));
        assert_eq!(
            ApiKeySources::parse(["bearrer"]),
            unknown("bearrer", Some("bearer"))
        );
        assert_eq!(ApiKeySources::parse([]), Err(KeyError::Empty));
    }

    #[test]
    fn headers_that_clients_choose_are_known() {
        let chosen = |text| Part::parse(text).unwrap().is_chosen_by_client();
        assert!(chosen("header:X-Forwarded-For") && chosen("header:user-agent"));
        assert!(!chosen("header:x-api-key") && !chosen("ip"));
    }

    #[test]
    fn path_parameters_are_listed() {
        let key = Key::parse(["path:id or ip", "path:name", "path"]).unwrap();
        assert_eq!(key.path_params().collect::<Vec<_>>(), ["id", "name"]);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,30}") {
            let _ = Key::parse_part(&text);
            let _ = ApiKeySource::parse(&text);
        }
    }
}
