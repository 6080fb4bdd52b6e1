//! What must not be shown: API keys, tokens, cookies and passwords, of which at most the first four
//! characters appear, so that their owner can tell one from another.

use std::collections::BTreeSet;

use http::{HeaderMap, HeaderValue, Uri};

use super::story::Pairs;
use crate::config::Config;
use crate::limit::key::{ApiKeySource, Part};

/// Characters that are shown of a secret, at most.
const SHOWN: usize = 4;

/// Words in a name whose value is a secret.
const WORDS: [&str; 8] = [
    "auth",
    "cookie",
    "key",
    "passw",
    "secret",
    "session",
    "signature",
    "token",
];

/// Which values of a request are secrets.
pub(super) struct Secrets {
    headers: BTreeSet<String>,
    queries: BTreeSet<String>,
}

impl Secrets {
    pub(super) fn of(config: &Config) -> Secrets {
        let mut secrets = Secrets {
            headers: BTreeSet::new(),
            queries: BTreeSet::new(),
        };
        for source in &config.api_key.from.0 {
            match source {
                ApiKeySource::Header(name) => {
                    secrets.headers.insert(name.as_str().to_owned());
                }
                ApiKeySource::Query(name) => {
                    secrets.queries.insert(name.clone());
                }
                ApiKeySource::Bearer | ApiKeySource::Cookie(_) => {}
            }
        }
        let of_bypass = config.bypass.iter().filter_map(|rule| rule.header.as_ref());
        secrets
            .headers
            .extend(of_bypass.map(|(name, _)| name.as_str().to_owned()));
        secrets
    }

    pub(super) fn headers(&self, headers: &HeaderMap) -> Pairs {
        let shown = headers.iter().map(|(name, value)| {
            let text = header_text(Some(value));
            let text = match self.is_secret_header(name.as_str()) {
                true => masked_credentials(&text),
                false => text,
            };
            (name.as_str().to_owned(), text)
        });
        shown.collect()
    }

    /// Path and query, with secrets of the query masked.
    pub(super) fn target(&self, uri: &Uri) -> String {
        let Some(query) = uri.query() else {
            return uri.path().to_owned();
        };
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, value)) if self.queries.contains(name) || sounds_secret(name) => {
                format!("{name}={}", masked(value))
            }
            _ => pair.to_owned(),
        });
        let pairs: Vec<String> = pairs.collect();
        format!("{}?{}", uri.path(), pairs.join("&"))
    }

    /// A key's value as it may be shown.
    pub(super) fn value(&self, part: &Part, value: &str) -> String {
        let secret = match part {
            Part::ApiKey | Part::Cookie(_) => true,
            Part::Header(name) => self.is_secret_header(name.as_str()),
            Part::Query(name) => self.queries.contains(name) || sounds_secret(name),
            _ => false,
        };
        match secret {
            true => masked_credentials(value),
            false => value.to_owned(),
        }
    }

    fn is_secret_header(&self, name: &str) -> bool {
        self.headers.contains(name) || sounds_secret(name)
    }
}

fn sounds_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    WORDS.iter().any(|word| name.contains(word))
}

pub(super) fn header_text(value: Option<&HeaderValue>) -> String {
    value.map_or_else(String::new, |value| {
        String::from_utf8_lossy(value.as_bytes()).into_owned()
    })
}

/// `abcd…`; of short ones less, since four characters would be most of them.
pub(super) fn masked(text: &str) -> String {
    let shown = SHOWN.min(text.chars().count() / 3);
    let start: String = text.chars().take(shown).collect();
    format!("{start}\u{2026}")
}

/// The same, with the scheme of an Authorization kept.
fn masked_credentials(text: &str) -> String {
    match text.split_once(' ') {
        Some((scheme, rest)) if ["bearer", "basic"].contains(&&*scheme.to_ascii_lowercase()) => {
            format!("{scheme} {}", masked(rest))
        }
        _ => masked(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn no_more_than_four_characters_of_a_secret_are_shown() {
        assert_eq!(masked("abcdefghijklmnop"), "abcd\u{2026}");
        assert_eq!(masked("abcdef"), "ab\u{2026}");
        assert_eq!(masked("ab"), "\u{2026}");
        assert_eq!(
            masked_credentials("Bearer abcdefghijkl"),
            "Bearer abcd\u{2026}"
        );
        let text = "upstream = \"http://127.0.0.1:1\"\n[api_key]\nfrom = [\"query:k\"]\n";
        let (config, _) = config::parse("proxy.toml", text, &|_| None).unwrap();
        let secrets = Secrets::of(&config);
        let uri: Uri = "/a?k=0123456789abc&access_token=0123456789abc&q=1"
            .parse()
            .unwrap();
        assert_eq!(
            secrets.target(&uri),
            "/a?k=0123\u{2026}&access_token=0123\u{2026}&q=1"
        );
        let mut headers = HeaderMap::new();
        for name in ["cookie", "x-api-key", "x-auth", "x-plain"] {
            headers.insert(name, HeaderValue::from_static("0123456789abcdef"));
        }
        let shown = secrets.headers(&headers);
        let whole: Vec<_> = shown.iter().filter(|(_, value)| value.len() > 8).collect();
        assert_eq!(whole.len(), 1, "{shown:?}");
    }
}
