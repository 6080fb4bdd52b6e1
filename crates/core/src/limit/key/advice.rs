//! Sentences for a client whose request has no key, or several: what to send.

use http::HeaderName;

use super::value::{Carried, bearer};
use super::{Alternatives, ApiKeySource, ApiKeySources, Facts, Key, Part};
use crate::usage::request::BodyMember;

/// A token that a request lacks for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LackingToken {
    /// The request carries none, or one without the claim.
    Absent,
    /// The token that it carries is not valid.
    Invalid,
}

impl Key {
    /// Whether a token could be the part of this key that a request lacks.
    pub fn lacking_token(&self, facts: &Facts<'_>) -> Option<LackingToken> {
        let part = self.part_that(facts, |carried| *carried == Carried::Nothing)?;
        if !part.0.iter().any(|one| matches!(one, Part::Jwt(_))) {
            return None;
        }
        match bearer(facts.headers) {
            Carried::One(_) if facts.claims.is_none() => Some(LackingToken::Invalid),
            Carried::One(_) | Carried::Nothing => Some(LackingToken::Absent),
            Carried::Several | Carried::Unknown => None,
        }
    }

    /// What a request that lacks this key must send.
    pub fn missing_advice(&self, facts: &Facts<'_>) -> String {
        let part = self.part_that(facts, |carried| *carried == Carried::Nothing);
        let wanted = part.map(|part| part.0.iter().filter_map(|one| one.to_send(facts)));
        let wanted: Vec<String> = wanted.into_iter().flatten().collect();
        match (wanted.is_empty(), part) {
            (false, _) => format!("Send {}", wanted.join(", or ")),
            (true, Some(part)) => {
                format!("the request lacks the key that its limit counts by: `{part}`")
            }
            (true, None) => "the request lacks the key that its limit counts by".to_owned(),
        }
    }

    /// What a request with several different values for this key must send.
    pub fn several_advice(&self, facts: &Facts<'_>) -> String {
        let part = self.part_that(facts, |carried| *carried == Carried::Several);
        let part = part.and_then(|part| part.take(facts).part);
        match part {
            None => "The request has several different keys. Send one.".to_owned(),
            Some(Part::ApiKey) => "The request has several API keys. Send one.".to_owned(),
            Some(part) => match part.name() {
                "" => format!("The request has several values of `{part}`. Send one."),
                name => format!("The request has several values of `{name}`. Send one."),
            },
        }
    }

    fn part_that(
        &self,
        facts: &Facts<'_>,
        is_wanted: impl Fn(&Carried<'_>) -> bool,
    ) -> Option<&Alternatives> {
        let mut parts = self.parts.iter();
        parts.find(|part| is_wanted(&part.take(facts).carried))
    }
}

impl Part {
    /// What a client sends to have this part; `None` if it is not the client's to send.
    fn to_send(&self, facts: &Facts<'_>) -> Option<String> {
        Some(match self {
            Part::ApiKey => format!("your API key {}", places(&facts.api_key.from)),
            Part::Header(name) => format!("the header `{}`", title_case(name)),
            Part::Query(name) => format!("the query parameter `{name}`"),
            Part::Cookie(name) => format!("the cookie `{name}`"),
            Part::Jwt(claim) => format!("a token with the claim `{claim}`"),
            Part::Tls(_) => "a client certificate".to_owned(),
            Part::Body(BodyMember::Path(_)) => {
                format!("the member `{}` in a JSON body", self.name())
            }
            Part::Body(BodyMember::McpMethod) => "a JSON-RPC request with a `method`".to_owned(),
            Part::Body(BodyMember::McpTool) => "a call of an MCP tool".to_owned(),
            Part::Body(BodyMember::GraphqlOperation) => {
                "a GraphQL request that names its operation".to_owned()
            }
            Part::Ip | Part::Path | Part::PathParam(_) | Part::Method | Part::Host => return None,
            Part::Route | Part::Global | Part::Tier | Part::Custom(_) => return None,
            Part::Entry(_) => return None,
        })
    }
}

fn places(sources: &ApiKeySources) -> String {
    let place = |source: &ApiKeySource| match source {
        ApiKeySource::Header(name) => format!("in the header `{}`", title_case(name)),
        ApiKeySource::Bearer => "as `Authorization: Bearer KEY`".to_owned(),
        ApiKeySource::Query(name) => format!("in the query parameter `{name}`"),
        ApiKeySource::Cookie(name) => format!("in the cookie `{name}`"),
    };
    let places: Vec<String> = sources.0.iter().map(place).collect();
    places.join(" or ")
}

/// `X-Api-Key`, as people write the names of headers.
fn title_case(name: &HeaderName) -> String {
    let word = |word: &str| match word.split_at_checked(1) {
        Some((first, rest)) => first.to_ascii_uppercase() + rest,
        None => String::new(),
    };
    let words: Vec<String> = name.as_str().split('-').map(word).collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};

    use super::super::{ApiKeys, Derived, HashSecret};
    use super::*;
    use crate::limit::Missing;
    use crate::path::CanonicalPath;

    #[test]
    fn a_request_without_the_key_is_told_what_to_send() {
        let advice = |key: &[&str], headers: &[(HeaderName, &str)], query| {
            let headers: HeaderMap = (headers.iter().cloned())
                .map(|(name, value)| (name, value.parse().unwrap()))
                .collect();
            let facts = Facts {
                ip: "192.0.2.7".parse().unwrap(),
                api_key: &ApiKeys::trusting(ApiKeySources::default()),
                standing: None,
                registered: None,
                method: &Method::GET,
                host: "h.example",
                path: &CanonicalPath::parse("/a").unwrap(),
                query: Some(query),
                headers: &headers,
                route: "r",
                params: &[],
                claims: None,
                tier: None,
                certificate: None,
                extensions: None,
                body: None,
            };
            let key = Key::parse(key.iter().copied()).unwrap();
            match key.derive(&facts, Missing::Deny, &HashSecret::from_bytes([0; 32])) {
                Derived::Ambiguous => key.several_advice(&facts),
                _ => key.missing_advice(&facts),
            }
        };
        for (key, wanted) in [
            ("header:x-account", "Send the header `X-Account`"),
            ("query:user", "Send the query parameter `user`"),
            (
                "api_key",
                "Send your API key in the header `X-Api-Key` or as `Authorization: Bearer KEY`",
            ),
            ("body:account", "Send the member `account` in a JSON body"),
            (
                "header:x-account or cookie:account",
                "Send the header `X-Account`, or the cookie `account`",
            ),
            (
                "tier",
                "the request lacks the key that its limit counts by: `tier`",
            ),
        ] {
            assert_eq!(advice(&["ip", key], &[], ""), wanted);
        }
        let several = "The request has several values of `user`. Send one.";
        assert_eq!(advice(&["query:user"], &[], "user=a&user=b"), several);
        let name = HeaderName::from_static("authorization");
        let both = [
            (HeaderName::from_static("x-api-key"), "a,b"),
            (name, "Bearer a"),
        ];
        let several = "The request has several API keys. Send one.";
        assert_eq!(advice(&["api_key"], &both, ""), several);
    }
}
