//! How keys are written: `ip`, `api_key or ip`, `header:x-user`.

use std::fmt;

use http::HeaderName;
use http::header::HOST;

use super::{Alternatives, ApiKeySource, ApiKeySources, Credential, Key, Part};
use crate::usage::paths::MemberPath;
use crate::usage::request::BodyMember;

/// Alternatives in one part, parts in one key, and sources of API keys, at most.
pub const MAX_CHOICES: usize = 8;

/// Why a text is not a key. The configuration's author is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyError {
    message: String,
    /// The text is empty, or begins with a word that is not close to any known one.
    pub names_nothing: bool,
}

impl KeyError {
    fn new(message: impl Into<String>) -> KeyError {
        KeyError {
            message: message.into(),
            names_nothing: false,
        }
    }

    fn empty() -> KeyError {
        KeyError {
            names_nothing: true,
            ..KeyError::new("a key is missing; write for example `ip`")
        }
    }

    fn too_many() -> KeyError {
        KeyError::new(format!("at most {MAX_CHOICES} are possible"))
    }

    fn name(name: &str) -> KeyError {
        KeyError::new(format!("`{name}` is not a possible name"))
    }

    fn name_missing(word: &str) -> KeyError {
        KeyError::new(format!("`{word}` needs a name: `{word}:NAME`"))
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for KeyError {}

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
    ("entry", Name::Required),
    ("body", Name::Required),
    ("mcp", Name::Required),
    ("graphql", Name::Required),
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
        Ok(Self::new(parts))
    }

    pub fn parse_part(text: &str) -> Result<Alternatives, KeyError> {
        let mut parts: Vec<Part> = Vec::new();
        let mut words = text.split_whitespace();
        loop {
            let part = Part::parse(words.next().unwrap_or_default())?;
            if parts.len() == MAX_CHOICES {
                return Err(KeyError::too_many());
            }
            if parts.contains(&part) || parts.last().is_some_and(Part::is_always_present) {
                return Err(KeyError::new(format!(
                    "`{part}` is never used: what stands before it is always present"
                )));
            }
            parts.push(part);
            match words.next() {
                None => return Ok(Alternatives(parts)),
                Some("or") => {}
                Some(word) => {
                    return Err(KeyError::new(format!(
                        "`{word}` stands where `or` should; parts that are counted together are \
                         an array"
                    )));
                }
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
            ("header", Some(name)) => Self::Header(key_header(name)?),
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
            ("entry", Some(name)) => Self::Entry(name.to_owned()),
            ("body", Some(name)) => Self::Body(member_path(name)?),
            ("mcp", Some(name)) => Self::Body(mcp_member(name)?),
            ("graphql", Some(name)) => Self::Body(graphql_member(name)?),
            _ => return Err(unknown(word, PARTS)),
        })
    }
}

/// A regular expression for one alternative of a key. It allows some names that are not possible.
pub fn part_pattern() -> String {
    each_part(|word, named| match named {
        Name::Never => word.to_owned(),
        Name::Optional => format!("{word}(:\\S+)?"),
        Name::Required => format!("{word}:\\S+"),
    })
    .join("|")
}

/// Every form of an alternative, for messages: `ip, api_key, header:NAME`.
pub fn part_forms() -> String {
    each_part(|word, named| match named {
        Name::Never => word.to_owned(),
        Name::Optional => format!("{word}, {word}:NAME"),
        Name::Required => format!("{word}:NAME"),
    })
    .join(", ")
}

/// The alternatives without a name.
pub fn part_words() -> Vec<&'static str> {
    let bare = PARTS.iter().filter(|(_, named)| *named != Name::Required);
    bare.map(|(word, _)| *word).collect()
}

fn each_part(form: impl Fn(&str, Name) -> String) -> Vec<String> {
    PARTS
        .iter()
        .map(|(word, named)| form(word, *named))
        .collect()
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
        0 => Err(KeyError::empty()),
        1..=MAX_CHOICES => Ok(all),
        _ => Err(KeyError::too_many()),
    }
}

fn word_and_name<'t>(
    text: &'t str,
    known: &'static [KeyWord],
) -> Result<(&'static str, Option<&'t str>), KeyError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(KeyError::empty());
    }
    let (word, name) = match text.split_once(':') {
        Some((word, name)) => (word, Some(name)),
        None => (text, None),
    };
    let found = known.iter().find(|(known, _)| *known == word);
    let (word, named) = *found.ok_or_else(|| unknown(word, known))?;
    match (named, name) {
        (Name::Never, Some(_)) => Err(KeyError::new(format!("`{word}` takes no name"))),
        (Name::Required, None) | (_, Some("")) => Err(KeyError::name_missing(word)),
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
    let hint = nearest.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
    KeyError {
        message: format!("`{word}` is nothing to count by{hint}"),
        names_nothing: nearest.is_none(),
    }
}

/// A client would choose by its version of HTTP whether it has the header `host`.
fn key_header(name: &str) -> Result<HeaderName, KeyError> {
    match header_name(name)? {
        HOST => Err(KeyError::new(
            "requests of HTTP/2 have no header `host`; write `host`",
        )),
        name => Ok(name),
    }
}

fn header_name(name: &str) -> Result<HeaderName, KeyError> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| KeyError::name(name))
}

fn credential(name: &str) -> Result<Credential, KeyError> {
    Credential::parse(name).ok_or_else(|| {
        KeyError::new(format!(
            "`tls` has no `{name}`; write `tls:subject`, `tls:san` or `tls:fingerprint`"
        ))
    })
}

/// Reads the name of `body:PATH`.
fn member_path(name: &str) -> Result<BodyMember, KeyError> {
    let path = MemberPath::parse(name).map_err(|error| KeyError::new(error.to_string()))?;
    Ok(BodyMember::Path(path))
}

/// Reads the name of `mcp:NAME`.
fn mcp_member(name: &str) -> Result<BodyMember, KeyError> {
    match name {
        "method" => Ok(BodyMember::McpMethod),
        "tool" => Ok(BodyMember::McpTool),
        _ => Err(KeyError::new(format!(
            "`mcp` has no `{name}`; write `mcp:method` or `mcp:tool`"
        ))),
    }
}

/// Reads the name of `graphql:NAME`.
fn graphql_member(name: &str) -> Result<BodyMember, KeyError> {
    match name {
        "operation" => Ok(BodyMember::GraphqlOperation),
        _ => Err(KeyError::new(format!(
            "`graphql` has no `{name}`; write `graphql:operation`"
        ))),
    }
}

/// Reads a token of RFC 9110, the form of names of cookies and path parameters.
fn token(name: &str) -> Result<String, KeyError> {
    let fits = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b));
    match fits {
        true => Ok(name.to_owned()),
        false => Err(KeyError::name(name)),
    }
}

/// The word of each part, by its [`Part::kind`].
const WORDS: [&str; 20] = [
    "missing", "ip", "api_key", "header", "query", "cookie", "path", "path", "method", "host",
    "route", "global", "tier", "jwt", "tls", "custom", "entry", "body", "mcp", "graphql",
];

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (WORDS[usize::from(self.kind())], self.name()) {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> String {
        Key::parse_part(text).unwrap_err().to_string()
    }

    /// The message for a word that is no part.
    fn unknown(part: &str, nearest: Option<&str>) -> String {
        let hint = nearest.map_or_else(String::new, |one| format!("; did you mean `{one}`?"));
        format!("`{part}` is nothing to count by{hint}")
    }

    const EMPTY: &str = "a key is missing; write for example `ip`";
    const TOO_MANY: &str = "at most 8 are possible";

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
            let part = text.split(':').next().unwrap();
            assert_eq!(error(text), unknown(part, nearest), "{text}");
            let names_nothing = Key::parse_part(text).unwrap_err().names_nothing;
            assert_eq!(names_nothing, nearest.is_none(), "{text}");
        }
        assert!(Key::parse_part("").unwrap_err().names_nothing);
        for (text, message) in [
            ("", EMPTY),
            ("ip or", EMPTY),
            ("ip, path", &unknown("ip,", Some("ip"))),
            (
                "api_key ip",
                "`ip` stands where `or` should; parts that are counted together are an array",
            ),
            ("header", "`header` needs a name: `header:NAME`"),
            ("path:", "`path` needs a name: `path:NAME`"),
            ("ip:x", "`ip` takes no name"),
            (
                "tls:cn",
                "`tls` has no `cn`; write `tls:subject`, `tls:san` or `tls:fingerprint`",
            ),
            ("header:a(b", "`a(b` is not a possible name"),
            ("cookie:a=b", "`a=b` is not a possible name"),
            (
                "ip or api_key",
                "`api_key` is never used: what stands before it is always present",
            ),
            (
                "api_key or api_key",
                "`api_key` is never used: what stands before it is always present",
            ),
        ] {
            assert_eq!(error(text), message, "{text}");
        }
    }

    #[test]
    fn numbers_of_parts_are_bounded() {
        let many: Vec<String> = (0..9).map(|n| format!("query:{n}")).collect();
        let parts = many.iter().map(String::as_str);
        assert_eq!(error(&many.join(" or ")), TOO_MANY);
        assert_eq!(Key::parse(parts.clone()).unwrap_err().to_string(), TOO_MANY);
        assert_eq!(Key::parse(parts.take(8)).unwrap().parts.len(), 8);
        assert_eq!(Key::parse([]).unwrap_err().to_string(), EMPTY);
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
        let error = |text| ApiKeySources::parse([text]).unwrap_err().to_string();
        assert_eq!(error("ip"), unknown("ip", None));
        assert_eq!(error("bearrer"), unknown("bearrer", Some("bearer")));
        assert_eq!(ApiKeySources::parse([]).unwrap_err().to_string(), EMPTY);
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
