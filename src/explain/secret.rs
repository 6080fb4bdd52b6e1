//! Masks API keys, tokens, cookies and passwords: at most the first four characters appear, so that
//! their owner can tell one from another.

use std::collections::BTreeSet;

use http::{HeaderMap, HeaderValue, Uri};

use super::explanation::Pairs;
use crate::config::Config;
use crate::config::secrets::sounds_secret;
use crate::limit::key::{ApiKeySource, Part};
use crate::usage::request::BodyMember;

/// Characters of a secret that appear, at most.
const SHOWN: usize = 4;

/// The headers and query parameters that the configuration makes secret.
#[derive(Default)]
pub(super) struct Secrets {
    headers: BTreeSet<String>,
    queries: BTreeSet<String>,
}

impl Secrets {
    pub(super) fn new(config: &Config) -> Secrets {
        let mut secrets = Secrets::default();
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
        let bypass = config.bypass.iter().filter_map(|rule| rule.header.as_ref());
        let bypass = bypass.map(|(name, _)| name.as_str().to_owned());
        secrets.headers.extend(bypass);
        secrets
    }

    /// The value of a header, as an explanation may show it.
    pub(super) fn mask_header(&self, name: &str, value: &str) -> String {
        match self.is_secret_header(name) {
            true => mask_credentials(value),
            false => value.to_owned(),
        }
    }

    pub(super) fn mask_query(&self, name: &str, value: &str) -> String {
        match self.is_secret_query(name) {
            true => mask(value),
            false => value.to_owned(),
        }
    }

    pub(super) fn mask_headers(&self, headers: &HeaderMap) -> Pairs {
        let shown = headers.iter().map(|(name, value)| {
            let text = self.mask_header(name.as_str(), &header_text(Some(value)));
            (name.as_str().to_owned(), text)
        });
        shown.collect()
    }

    /// Path and query.
    pub(super) fn mask_target(&self, uri: &Uri) -> String {
        let Some(query) = uri.query() else {
            return uri.path().to_owned();
        };
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, value)) if self.is_secret_query(name) => {
                format!("{name}={}", mask(value))
            }
            _ => pair.to_owned(),
        });
        let pairs: Vec<String> = pairs.collect();
        format!("{}?{}", uri.path(), pairs.join("&"))
    }

    pub(super) fn mask_part(&self, part: &Part, value: &str) -> String {
        let is_secret = match part {
            Part::ApiKey | Part::Cookie(_) => true,
            Part::Header(name) => self.is_secret_header(name.as_str()),
            Part::Query(name) => self.is_secret_query(name),
            Part::Body(BodyMember::Path(path)) => sounds_secret(path.as_str()),
            _ => false,
        };
        match is_secret {
            true => mask_credentials(value),
            false => value.to_owned(),
        }
    }

    fn is_secret_header(&self, name: &str) -> bool {
        self.headers.contains(name) || sounds_secret(name)
    }

    fn is_secret_query(&self, name: &str) -> bool {
        self.queries.contains(name) || sounds_secret(name)
    }
}

pub(super) fn header_text(value: Option<&HeaderValue>) -> String {
    let bytes = value.map_or(&b""[..], HeaderValue::as_bytes);
    String::from_utf8_lossy(bytes).into_owned()
}

/// `abcd…`; a short secret shows only a third of its characters.
fn mask(text: &str) -> String {
    let shown = SHOWN.min(text.chars().count() / 3);
    let start: String = text.chars().take(shown).collect();
    format!("{start}\u{2026}")
}

/// Like `mask`, but keeps the scheme of an `Authorization` header.
fn mask_credentials(text: &str) -> String {
    match text.split_once(' ') {
        Some((scheme, rest)) if ["bearer", "basic"].contains(&&*scheme.to_ascii_lowercase()) => {
            format!("{scheme} {}", mask(rest))
        }
        _ => mask(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn no_more_than_four_characters_of_a_secret_are_shown() {
        assert_eq!(mask("abcdefghijklmnop"), "abcd\u{2026}");
        assert_eq!(mask("abcdef"), "ab\u{2026}");
        assert_eq!(mask("ab"), "\u{2026}");
        assert_eq!(
            mask_credentials("Bearer abcdefghijkl"),
            "Bearer abcd\u{2026}"
        );
        let text = "upstream = \"http://127.0.0.1:1\"\n[api_key]\nfrom = [\"query:k\"]\n";
        let (config, _) = config::parse("proxy.toml", text, &|_| None).unwrap();
        let secrets = Secrets::new(&config);
        let uri: Uri = "/a?k=0123456789abc&access_token=0123456789abc&q=1"
            .parse()
            .unwrap();
        assert_eq!(
            secrets.mask_target(&uri),
            "/a?k=0123\u{2026}&access_token=0123\u{2026}&q=1"
        );
        let mut headers = HeaderMap::new();
        for name in ["cookie", "x-api-key", "x-auth", "x-plain"] {
            headers.insert(name, HeaderValue::from_static("0123456789abcdef"));
        }
        let shown = secrets.mask_headers(&headers);
        let whole: Vec<_> = shown.iter().filter(|(_, value)| value.len() > 8).collect();
        assert_eq!(whole.len(), 1, "{shown:?}");
    }

    #[test]
    fn what_a_route_asks_for_is_no_more_than_hinted_at() {
        let text = "upstream = \"http://127.0.0.1:1\"\n[[route]]\npath = \"/a\"\n\
                    headers = { x-api-key = \"hushhushhush\" }\n\
                    query = { token = \"hushhushhush\" }\n";
        let (config, _) = config::parse("proxy.toml", text, &|_| None).unwrap();
        let mut asked = crate::explain::RequestDescription {
            method: "GET".to_owned(),
            url: "/a".to_owned(),
            headers: Vec::new(),
            ip: crate::explain::EXAMPLE_PEER,
            body: None,
        };
        for sent in [None, Some("otherotherother")] {
            let header = sent.map(|value| ("x-api-key".to_owned(), value.to_owned()));
            asked.headers = header.into_iter().collect();
            let explained = crate::explain::explain(&config, &asked, None).unwrap();
            let why = &explained.near[0].why;
            assert!(why.contains("x-api-key: hush\u{2026}"), "{why}");
            assert!(why.contains("token = hush\u{2026}"), "{why}");
            assert!(!why.contains("hushh") && !why.contains("othero"), "{why}");
        }
    }
}
