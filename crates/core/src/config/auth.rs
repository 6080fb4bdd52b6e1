//! `[auth.jwt]`: which tokens are believed.

use std::time::Duration;

use super::diagnostic::{Code, Diagnostic};
use super::reader::At;
use super::section::Section;
use super::slip::nearest;
use crate::limit::key::jwt::{JwtAlgorithm, JwtKey, JwtRules};

/// A good secret, bytes: as long as the hash at least (RFC 7518, section 3.2).
const GOOD_SECRET: usize = 32;

/// `[auth]`, in which there is only `jwt`.
pub(super) fn read(mut auth: Section<'_>) -> Option<JwtRules> {
    let given = auth.peek("jwt").is_some();
    let section = auth.section("jwt");
    let rules = jwt(section, given);
    auth.finish();
    rules
}

fn jwt(mut section: Section<'_>, given: bool) -> Option<JwtRules> {
    let jwks = section.text("jwks_file");
    let named = section.peek("jwks_file").is_some();
    let shared = section.peek("secret_file").is_some();
    let secret = section.secret(None, "secret_file");
    let algorithms = algorithms(&mut section, named);
    let issuers = words(&mut section, "issuer");
    let audiences = words(&mut section, "audience");
    let leeway = Duration::ZERO..=Duration::from_secs(300);
    let leeway = section.duration("leeway", leeway, Duration::from_secs(30));
    if given && !named && !shared {
        section.missing("jwks_file", "jwks_file = \"/etc/tidegate/jwks.json\"");
    }
    if named && shared {
        let message = format!("`{}` has `jwks_file` and `secret_file`", section.name());
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(&section.key_span("secret_file"), "")
            .at(&section.key_span("jwks_file"), "")
            .help("keep one: tokens are signed either by a key pair or by a shared secret");
        section.reader.report(diagnostic);
    }
    let keys = match (jwks, secret) {
        (Some(path), _) => section.key_set("jwks_file", &path)?,
        (None, Some(secret)) => vec![shared_key(&section, &secret)],
        (None, None) => {
            section.finish();
            return None;
        }
    };
    section.finish();
    Some(JwtRules {
        keys,
        algorithms,
        issuers,
        audiences,
        leeway_s: leeway.as_secs(),
    })
}

impl Section<'_> {
    /// The keys of a JSON Web Key Set.
    fn key_set(&self, key: &str, path: &At<String>) -> Option<Vec<JwtKey>> {
        let text = self.list_file(key, path)?;
        match JwtKey::set(text.as_bytes()) {
            Ok(keys) => Some(keys),
            Err(error) => {
                let message = format!("the file of `{}` cannot be used", self.full(key));
                let diagnostic = Diagnostic::new(Code::SecretFile, message);
                self.reader.report(diagnostic.because(&path.span, &error));
                None
            }
        }
    }
}

fn shared_key(section: &Section<'_>, secret: &At<Vec<u8>>) -> JwtKey {
    if secret.value.len() < GOOD_SECRET {
        let diagnostic = Diagnostic::new(Code::ShortSecret, "a short secret signs the tokens")
            .at(
                &secret.span,
                "shorter than 32 bytes: whoever has a token can guess it",
            )
            .help("make one: `head -c 48 /dev/urandom | base64 > FILE`");
        section.reader.report(diagnostic);
    }
    JwtKey::secret(&secret.value)
}

/// `algorithms`; else all that keys of this kind have.
fn algorithms(section: &mut Section<'_>, by_pairs: bool) -> Vec<JwtAlgorithm> {
    let Some(texts) = section.texts("algorithms") else {
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
    if texts.value.is_empty() {
        section.out_of_range_at("algorithms", &texts, "one or more");
    }
    let mut found = Vec::new();
    for text in texts.value {
        let known = JwtAlgorithm::ALL.iter();
        let known = known.clone().find(|(name, _)| *name == text.value);
        let Some((name, algorithm)) = known else {
            unknown_algorithm(section, &text);
            continue;
        };
        if algorithm.is_symmetric() == by_pairs {
            let (kind, why) = match by_pairs {
                true => (
                    "jwks_file",
                    "anybody could sign with a public key as the secret",
                ),
                false => ("secret_file", "is for key pairs"),
            };
            let message = format!("`{name}` does not go with `{kind}`");
            let diagnostic = Diagnostic::new(Code::Contradiction, message).at(&text.span, why);
            section.reader.report(diagnostic);
        }
        found.push(*algorithm);
    }
    found
}

fn unknown_algorithm(section: &Section<'_>, text: &At<String>) {
    let names = JwtAlgorithm::ALL.map(|(name, _)| name);
    let message = format!("`{}` is not an algorithm for tokens", text.value);
    let near = nearest(&text.value, names).filter(|_| text.value != "none");
    let help = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are {}", names.join(", ")),
    };
    let diagnostic = Diagnostic::new(Code::UnknownWord, message).at(&text.span, "");
    section.reader.report(diagnostic.help(help));
}

/// Texts, none of them empty.
fn words(section: &mut Section<'_>, key: &'static str) -> Vec<String> {
    let Some(texts) = section.texts(key) else {
        return Vec::new();
    };
    if texts.value.is_empty() || texts.value.iter().any(|text| text.value.is_empty()) {
        section.out_of_range_at(key, &texts, "one or more texts; leave it out for any");
    }
    texts.value.into_iter().map(|text| text.value).collect()
}
