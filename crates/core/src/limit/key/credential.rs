//! What a client's certificate can be counted by. Whoever has such a certificate was let in by an
//! authority that the configuration names: its text is no claim of the client's own.

use super::Facts;
use super::value::{Carried, Value};
use crate::certificate::AltName;

/// One thing that a certificate says of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Credential {
    /// Its subject, as RFC 4514 writes it.
    Subject,
    /// The first of its alternative names.
    San,
    /// Its own SHA-256: another one after each renewal.
    Fingerprint,
}

impl Credential {
    const ALL: [Credential; 3] = [
        Credential::Subject,
        Credential::San,
        Credential::Fingerprint,
    ];

    /// As keys write it, and part of identities: never to be changed.
    pub fn word(self) -> &'static str {
        match self {
            Credential::Subject => "subject",
            Credential::San => "san",
            Credential::Fingerprint => "fingerprint",
        }
    }

    /// Reads the word.
    pub fn parse(word: &str) -> Option<Credential> {
        Credential::ALL.into_iter().find(|one| one.word() == word)
    }

    /// What the request's certificate says; an empty text is none.
    pub(super) fn find<'r>(self, facts: &Facts<'r>) -> Carried<'r> {
        let Some(certificate) = facts.certificate else {
            return Carried::Nothing;
        };
        let text = match self {
            Credential::Subject => certificate.subject.as_str(),
            Credential::Fingerprint => certificate.fingerprint.as_str(),
            Credential::San => match certificate.names.first() {
                Some(AltName::Dns(text) | AltName::Uri(text) | AltName::Email(text)) => text,
                Some(AltName::Ip(ip)) => {
                    return Carried::One(Value::Made(ip.to_string().as_bytes().into()));
                }
                None => "",
            },
        };
        match text {
            "" => Carried::Nothing,
            text => Carried::One(Value::Sent(text.as_bytes())),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};

    use super::*;
    use crate::certificate::Certificate;
    use crate::limit::Missing;
    use crate::limit::key::{ApiKeys, Derived, Given, HashSecret, Key, KeyHash, Part};
    use crate::path::CanonicalPath;

    const SECRET: HashSecret = HashSecret::from_bytes([7; 32]);

    fn derived(key: &str, certificate: Option<&Certificate>) -> Derived {
        let facts = Facts {
            ip: "1.2.3.4".parse().unwrap(),
            api_key: &ApiKeys::default(),
            standing: None,
            method: &Method::GET,
            host: "example.com",
            path: &CanonicalPath::parse("/").unwrap(),
            query: None,
            headers: &HeaderMap::new(),
            route: "r",
            params: &[],
            claims: None,
            tier: None,
            certificate,
            extensions: None,
        };
        let key = Key::parse([key]).unwrap();
        key.derive(&facts, Missing::Deny, &SECRET)
    }

    fn of(subject: &str, names: Vec<AltName>) -> Certificate {
        Certificate {
            subject: subject.to_owned(),
            names,
            not_before_s: 0,
            not_after_s: 1,
            fingerprint: "ab".repeat(32),
        }
    }

    fn given(part: &str, text: &str) -> KeyHash {
        Given::tag(&[Given::text(Part::parse(part).unwrap(), text)], &SECRET)
    }

    #[test]
    fn a_client_is_who_its_certificate_says() {
        let uri = AltName::Uri("spiffe://x/y".to_owned());
        let worker = of("CN=worker", vec![uri, AltName::Dns("w".to_owned())]);
        for (part, text) in [
            ("tls:subject", "CN=worker"),
            ("tls:san", "spiffe://x/y"),
            ("tls:fingerprint", &"ab".repeat(32)),
        ] {
            let tag = given(part, text);
            assert_eq!(derived(part, Some(&worker)), Derived::Hash(tag), "{part}");
        }
        let address = of("", vec![AltName::Ip("::1".parse().unwrap())]);
        let tag = given("tls:san", "::1");
        assert_eq!(derived("tls:san", Some(&address)), Derived::Hash(tag));
    }

    #[test]
    fn identities_never_change_from_version_to_version() {
        let tag = given("tls:subject", "CN=worker").to_string();
        assert_eq!(tag, "60N6yG0f7xlh2dTyOuKcbQ");
    }

    #[test]
    fn who_shows_none_or_one_that_says_nothing_has_no_key() {
        assert_eq!(derived("tls:subject", None), Derived::Denied);
        let nameless = of("", Vec::new());
        assert_eq!(derived("tls:subject", Some(&nameless)), Derived::Denied);
        assert_eq!(derived("tls:san", Some(&nameless)), Derived::Denied);
    }
}
