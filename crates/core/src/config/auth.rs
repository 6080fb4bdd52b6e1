//! `[auth.jwt]` and `[tier]`: the tokens that are trusted, and the tier of a client.

mod jwks_url;

use std::time::Duration;

use super::api_key::{KeyList, LineForm};
use super::limits;
use super::section::SectionsPresent;
use super::*;
use crate::limit::key::jwt::{JwtAlgorithm, JwtKey, JwtKeys, JwtRules};
use crate::limit::key::{Alternatives, Key, Part};
use crate::limit::tier::Tiers;

pub use jwks_url::JwksSettings;

/// Bytes of a good secret, at least: the length of the hash (RFC 7518, section 3.2).
const GOOD_SECRET: usize = 32;

/// `[auth.jwt]`
pub(super) struct AuthSettings {
    pub(super) rules: JwtRules,
    pub(super) jwks: Option<JwksSettings>,
}

pub(super) fn read(mut auth: Section<'_>) -> Option<AuthSettings> {
    let is_given = auth.has("jwt");
    let section = auth.section("jwt");
    let settings = jwt(section, is_given);
    auth.finish();
    settings
}

/// Where the keys of tokens are.
const SOURCES: [&str; 3] = ["jwks_file", "jwks_url", "secret_file"];

fn jwt(mut section: Section<'_>, is_given: bool) -> Option<AuthSettings> {
    let sources = SOURCES.into_iter().filter(|key| section.has(key));
    let sources: Vec<&str> = sources.collect();
    let by_pairs = section.has("jwks_file") || section.has("jwks_url");
    let jwks = section.text("jwks_file");
    let secret = section.secret(None, "secret_file");
    let fetched = jwks_url::read(&mut section);
    let algorithms = algorithms(&mut section, by_pairs);
    let issuers = words(&mut section, "issuer");
    let audiences = words(&mut section, "audience");
    let leeway = section.duration("leeway", Duration::ZERO..=Duration::from_secs(300));
    if is_given && sources.is_empty() {
        section.missing("jwks_file", "jwks_file = \"/etc/tidegate/jwks.json\"");
    }
    if let [first, second, ..] = sources[..] {
        contradiction(format!("`{}` has `{first}` and `{second}`", section.name()))
            .at(&section.key_span(second), "")
            .at(&section.key_span(first), "")
            .help("keep one: tokens are signed either by a key pair or by a shared secret")
            .report_to(section.reader);
    }
    let keys = match (jwks, &fetched, secret) {
        (Some(path), ..) => section.key_set("jwks_file", &path).map(JwtKeys::Fixed),
        (None, Some(fetched), _) => Some(fetched.keys()),
        (None, None, Some(secret)) => Some(JwtKeys::Fixed(vec![shared_key(&section, &secret)])),
        (None, None, None) => None,
    };
    section.finish();
    let rules = JwtRules {
        keys: keys?,
        algorithms,
        issuers,
        audiences,
        leeway_s: leeway.as_secs(),
    };
    Some(AuthSettings {
        rules,
        jwks: fetched,
    })
}

impl Section<'_> {
    fn key_set(&self, key: &str, path: &str) -> Option<Vec<JwtKey>> {
        let text = self.list_file(key, path)?;
        JwtKey::set(text.as_bytes())
            .inspect_err(|error| self.unusable_file(key, &error.to_string()))
            .ok()
    }
}

fn shared_key(section: &Section<'_>, secret: &[u8]) -> JwtKey {
    if secret.len() < GOOD_SECRET {
        Diagnostic::new(
            Code::ShortSecret,
            "the secret that signs tokens is too short",
        )
        .at(
            &section.value_span("secret_file"),
            "shorter than 32 bytes: a client that has a token can guess it",
        )
        .help("make one: `head -c 48 /dev/urandom | base64 > FILE`")
        .report_to(section.reader);
    }
    JwtKey::secret(secret)
}

/// Reads `algorithms`. The default is every algorithm for keys of this kind.
fn algorithms(section: &mut Section<'_>, by_pairs: bool) -> Vec<JwtAlgorithm> {
    let words = JwtAlgorithm::ALL.map(|(word, _)| word);
    section.declare("algorithms", || ValueKind::Words(words.to_vec()));
    let Some(texts) = section.counted_texts("algorithms", 1..=usize::MAX, "one or more") else {
        let all = JwtAlgorithm::ALL
            .into_iter()
            .map(|(_, algorithm)| algorithm);
        return all
            .filter(|algorithm| match by_pairs {
                true => !algorithm.is_symmetric(),
                false => *algorithm == JwtAlgorithm::Hs256,
            })
            .collect();
    };
    let mut found = Vec::new();
    for text in texts {
        let mut known = JwtAlgorithm::ALL.iter();
        let known = known.find(|(name, _)| *name == text.value);
        let Some((name, algorithm)) = known else {
            unknown_algorithm(section, &text);
            continue;
        };
        if algorithm.is_symmetric() == by_pairs {
            let source = match section.has("jwks_url") {
                true => "jwks_url",
                false => "jwks_file",
            };
            let (kind, why) = match by_pairs {
                true => (
                    source,
                    "any client could sign a token with the public key as the secret",
                ),
                false => ("secret_file", "is for key pairs"),
            };
            contradiction(format!("`{name}` does not go with `{kind}`"))
                .at(&text.span, why)
                .report_to(section.reader);
        }
        found.push(*algorithm);
    }
    found
}

fn unknown_algorithm(section: &Section<'_>, text: &Located<String>) {
    let names = JwtAlgorithm::ALL.map(|(name, _)| name);
    let message = format!("`{}` is not an algorithm for tokens", text.value);
    let otherwise = format!("there are {}", names.join(", "));
    let help = match text.value.as_str() {
        "none" => otherwise,
        text => did_you_mean(text, names, otherwise),
    };
    Diagnostic::new(Code::UnknownWord, message)
        .at(&text.span, "")
        .help(help)
        .report_to(section.reader);
}

fn words(section: &mut Section<'_>, key: &'static str) -> Vec<String> {
    let Some(texts) = section.texts(key) else {
        return Vec::new();
    };
    if texts.is_empty() || texts.iter().any(|text| text.value.is_empty()) {
        section.out_of_range(key, "one or more texts; leave it out for any");
    }
    values(texts)
}

/// Reads `[tier]`. Adds the keys of its `keys_file` to `keys`: their lines may name tiers as well.
pub(super) fn read_tier(
    top: &mut Section<'_>,
    present: SectionsPresent,
    keys: &mut KeyList,
) -> Option<Tiers> {
    let mut section = top.section("tier");
    let from = section.located_text("from");
    let file = section.text("keys_file");
    let default = section.located_text("default");
    if let Some(default) = &default {
        section.check_name(default, "a tier");
    }
    if present.tier && !section.has("keys_file") && !keys.is_named() {
        section.require("from", "from = \"jwt:plan\"");
    }
    if from.is_some() && file.is_some() {
        contradiction("`tier` has `from` and `keys_file`")
            .at(&section.value_span("keys_file"), "")
            .at(&section.value_span("from"), "")
            .help("keep one: a client has one tier")
            .report_to(section.reader);
    }
    let from = match (from, file) {
        (Some(from), _) => tier_source(&section, from, present),
        (None, Some(file)) => {
            keys.add_file(&section, "keys_file", &file, LineForm::Tiers);
            None
        }
        (None, None) => None,
    };
    section.finish();
    // A file of keys may name tiers after any reload, even if it names none now.
    let by_key = keys.is_named();
    (from.is_some() || by_key || default.is_some()).then(|| Tiers {
        from,
        by_key,
        default: default.map(|name| name.value.into()),
    })
}

/// Reads `from`: the client must not be able to choose its tier.
fn tier_source(
    section: &Section<'_>,
    text: Located<String>,
    present: SectionsPresent,
) -> Option<Alternatives> {
    let form = TextForm::new(Code::BadKey, "what says a tier");
    let parts = section.parse_text("from", text, form, Key::parse_part)?;
    let is_trusted = |part: &&Part| matches!(part, Part::Jwt(_) | Part::Header(_));
    for part in parts.value.0.iter().filter(|part| !is_trusted(part)) {
        Diagnostic::new(Code::BadKey, format!("`{part}` cannot give a tier"))
            .at(&parts.span, "clients choose it")
            .help("use `jwt:CLAIM`, `header:NAME` (from trusted proxies) or `keys_file`")
            .report_to(section.reader);
    }
    limits::check_sections(section, &parts.value, &parts.span, present);
    Some(parts.value)
}
