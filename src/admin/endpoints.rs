//! The API's endpoints: one table, by which requests are answered and the document
//! (`openapi.json`) is made.

use http::Method;
use serde_json::{Value, json};

use super::clients::{ClientsReport, MOST, USUAL};
use super::config::SecretMarks;
use super::denials::DenialList;
use super::health::Readiness;
use super::keys::KeyUsage;
use super::limits::LimitList;
use super::overrides::{ChangeDone, ChangeList, OverrideTexts};
use super::place::{AdminAction, ClientChange, Place};
use super::reload::ReloadDone;
use super::request_body::{
    BLOCK_BODY, BodyDoc, EMPTY_BODY, EXPLAIN_BODY, OVERRIDE_BODY, RESET_BODY,
};
use super::routes::RouteList;
use super::schema::{Components, Described};
use super::status::StatusReport;
use super::traffic::TrafficReport;
use super::upstreams::UpstreamList;
use crate::key_selector::percent_decoded as decoded;

/// One path of the API and what is said of it.
pub(super) struct ApiEndpoint {
    pub(super) path: &'static str,
    pub(super) action: AdminAction,
    pub(super) summary: &'static str,
    /// What a request for it means, given the path's parameters as they were written.
    place: fn(&[&str]) -> Option<Place>,
    /// Parameters of the query.
    pub(super) query: &'static [ParameterDoc],
    /// The schema of the body, if it takes one.
    pub(super) body: Option<BodyDoc>,
    /// The media types of an answer, each with the schema of its content.
    pub(super) answer: fn(&mut Components) -> Value,
    /// Refusals of this endpoint alone, or another meaning of one that all have.
    pub(super) refusals: &'static [RefusalDoc],
}

pub(super) struct ParameterDoc {
    pub(super) name: &'static str,
    pub(super) doc: &'static str,
    pub(super) schema: fn() -> Value,
}

pub(super) struct RefusalDoc {
    pub(super) status: u16,
    pub(super) doc: &'static str,
    pub(super) content: RefusalContent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalContent {
    Problem,
    Text,
    Readiness,
}

impl ApiEndpoint {
    /// The endpoint of a path, and what is asked for there.
    pub(super) fn find(path: &str) -> Option<(&'static ApiEndpoint, Place)> {
        ENDPOINTS.iter().find_map(|one| {
            let words = captures(one.path, path)?;
            Some((one, (one.place)(&words)?))
        })
    }

    /// The methods that it takes.
    pub(super) fn methods(&self) -> &'static str {
        match self.body {
            Some(_) => "POST",
            None => "GET, HEAD",
        }
    }

    pub(super) fn takes(&self, method: &Method) -> bool {
        match *method {
            Method::GET | Method::HEAD => self.body.is_none(),
            Method::POST => self.body.is_some(),
            _ => false,
        }
    }
}

/// The parts of a path that stand for the template's parameters.
fn captures<'p>(template: &str, path: &'p str) -> Option<Vec<&'p str>> {
    let mut words = Vec::new();
    let (mut wanted, mut found) = (template.split('/'), path.split('/'));
    loop {
        match (wanted.next(), found.next()) {
            (None, None) => return Some(words),
            (Some(name), Some(word)) if name.starts_with('{') => words.push(word),
            (Some(name), Some(word)) if name == word => {}
            _ => return None,
        }
    }
}

fn json_answer<T: Described>(components: &mut Components) -> Value {
    json!({ "application/json": { "schema": components.refer::<T>() } })
}

fn object_answer(_: &mut Components) -> Value {
    json!({ "application/json": { "schema": { "type": "object" } } })
}

fn text_answer(_: &mut Components) -> Value {
    json!({ "text/plain; charset=utf-8": { "schema": { "type": "string" } } })
}

fn text() -> Value {
    json!({ "type": "string" })
}

const fn refused(status: u16, doc: &'static str) -> RefusalDoc {
    RefusalDoc {
        status,
        doc,
        content: RefusalContent::Problem,
    }
}

const fn parameter(name: &'static str, doc: &'static str) -> ParameterDoc {
    ParameterDoc {
        name,
        doc,
        schema: text,
    }
}

const NO_LIMIT: RefusalDoc = refused(404, "There is no such limit.");
const NOTHING_TO_REMOVE: RefusalDoc = refused(
    404,
    "There is no such limit, or there is nothing to remove.",
);
const FULL: RefusalDoc = refused(409, "There are as many as there may be.");
const NO_FILE: RefusalDoc = refused(409, "The proxy was started by flags: there is no file.");
const MISTAKES: RefusalDoc = refused(422, "The file has mistakes: nothing was changed.");

fn clients_count() -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": MOST, "default": USUAL })
}

/// Which denials are wanted.
const DENIAL_FILTER: &[ParameterDoc] = &[
    parameter("limit", "Only denials by this limit."),
    parameter("route", "Only denials on this route."),
    parameter(
        "key",
        "Only denials of this client: its `id` as logs and lists show it, or at least its first \
         four characters.",
    ),
    parameter("request_id", "Only the denial of the request with this id."),
    ParameterDoc {
        name: "shadow",
        doc: "`false` leaves out limits in shadow mode.",
        schema: || json!({ "type": "boolean", "default": true }),
    },
];

/// An endpoint that is read, without parameters of its own.
const READ: ApiEndpoint = ApiEndpoint {
    path: "",
    action: AdminAction::Read,
    summary: "",
    place: |_| None,
    query: &[],
    body: None,
    answer: object_answer,
    refusals: &[],
};

/// An endpoint that changes one client.
const CHANGE: ApiEndpoint = ApiEndpoint {
    action: AdminAction::Write,
    answer: json_answer::<ChangeDone>,
    body: Some(BLOCK_BODY),
    refusals: &[NOTHING_TO_REMOVE, FULL],
    ..READ
};

pub(super) const ENDPOINTS: &[ApiEndpoint] = &[
    ApiEndpoint {
        path: "/healthz",
        action: AdminAction::Probe,
        summary: "Whether the process should live.",
        place: |_| Some(Place::Healthz),
        answer: text_answer,
        refusals: &[RefusalDoc {
            status: 503,
            doc: "A worker does not run any more.",
            content: RefusalContent::Text,
        }],
        ..READ
    },
    ApiEndpoint {
        path: "/readyz",
        action: AdminAction::Probe,
        summary: "Whether the process should get requests.",
        place: |_| Some(Place::Readyz),
        answer: json_answer::<Readiness>,
        refusals: &[RefusalDoc {
            status: 503,
            doc: "Not ready.",
            content: RefusalContent::Readiness,
        }],
        ..READ
    },
    ApiEndpoint {
        path: "/metrics",
        action: AdminAction::Probe,
        summary: "All metrics, for Prometheus.",
        place: |_| Some(Place::Metrics),
        answer: |_| {
            let media = "text/plain; version=0.0.4; charset=utf-8";
            json!({ media: { "schema": { "type": "string" } } })
        },
        ..READ
    },
    ApiEndpoint {
        path: "/openapi.json",
        action: AdminAction::Probe,
        summary: "This document.",
        place: |_| Some(Place::OpenApi),
        ..READ
    },
    ApiEndpoint {
        path: "/api/v1/status",
        summary: "The process, its configuration, its store, and what it found.",
        place: |_| Some(Place::Status),
        answer: json_answer::<StatusReport>,
        ..READ
    },
    ApiEndpoint {
        path: "/api/v1/traffic",
        summary: "The requests of the last quarter of an hour.",
        place: |_| Some(Place::Traffic),
        answer: json_answer::<TrafficReport>,
        ..READ
    },
    ApiEndpoint {
        path: "/api/v1/limits",
        summary: "Every limit, and what it decided.",
        place: |_| Some(Place::Limits),
        answer: json_answer::<LimitList>,
        ..READ
    },
    ApiEndpoint {
        path: "/api/v1/limits/{name}/clients",
        summary: "The busiest clients of a limit in the last five to ten minutes.",
        place: |words| Some(Place::Clients(decoded(words[0])?)),
        query: &[ParameterDoc {
            name: "top",
            doc: "How many.",
            schema: clients_count,
        }],
        answer: json_answer::<ClientsReport>,
        refusals: &[NO_LIMIT],
        ..READ
    },
    ApiEndpoint {
        path: "/api/v1/limits/{name}/keys/{key}",
        summary: "What one client has used of a limit.",
        place: |words| {
            // `&` between the words: one within a word is written `%26`.
            let key = words[1].split('&').map(decoded).collect::<Option<_>>()?;
            Some(Place::Key(decoded(words[0])?, key))
        },
        query: &[ParameterDoc {
            name: "by",
            doc: "`id` if the key is its hash, as logs show it.",
            schema: || json!({ "enum": ["id"] }),
        }],
        answer: json_answer::<KeyUsage>,
        refusals: &[
            NO_LIMIT,
            refused(
                409,
                "Several clients have such a hash; the detail lists them.",
            ),
        ],
        ..READ
    },
    ApiEndpoint {
        path: "/api/v1/routes",
        summary: "What each route answered in the last minute, and how long that took.",
        place: |_| Some(Place::Routes),
        answer: json_answer::<RouteList>,
        ..READ
    },
    ApiEndpoint {
        path: "/api/v1/upstreams",
        summary: "Every upstream and the state of its servers.",
        place: |_| Some(Place::Upstreams),
        answer: json_answer::<UpstreamList>,
        ..READ
    },
    ApiEndpoint {
        path: "/api/v1/denials",
        summary: "The last denials, newest first.",
        place: |_| Some(Place::Denials),
        query: DENIAL_FILTER,
        answer: json_answer::<DenialList>,
        ..READ
    },
    ApiEndpoint {
        path: "/api/v1/denials/stream",
        summary: "Denials as they happen: one data line of JSON for each. An event `dropped` \
            counts those that the stream left out.",
        place: |_| Some(Place::DenialStream),
        query: DENIAL_FILTER,
        answer: |_| json!({ "text/event-stream": { "schema": { "type": "string" } } }),
        refusals: &[refused(429, "There are as many streams as there may be.")],
        ..READ
    },
    ApiEndpoint {
        path: "/api/v1/config",
        summary: "The configuration in effect, with every default and without secrets: TOML, or \
            JSON for `Accept: application/json`.",
        place: |_| Some(Place::Config),
        answer: |_| {
            json!({
                "application/toml": { "schema": { "type": "string" } },
                "application/json": { "schema": { "type": "object" } },
            })
        },
        ..READ
    },
    ApiEndpoint {
        path: "/api/v1/config/secrets",
        action: AdminAction::Write,
        summary: "The mark that stands for each secret of the configuration.",
        place: |_| Some(Place::Secrets),
        body: Some(EMPTY_BODY),
        answer: json_answer::<SecretMarks>,
        refusals: &[NO_FILE, MISTAKES],
        ..READ
    },
    ApiEndpoint {
        path: "/api/v1/overrides",
        summary: "Every override and block in force.",
        place: |_| Some(Place::Overrides),
        answer: json_answer::<OverrideTexts>,
        ..READ
    },
    ApiEndpoint {
        path: "/api/v1/changes",
        summary: "The last 1000 changes of overrides and blocks, and resets, newest first.",
        place: |_| Some(Place::Changes),
        answer: json_answer::<ChangeList>,
        ..READ
    },
    ApiEndpoint {
        path: "/api/v1/limits/{name}/reset",
        summary: "Forgets what one client has used of a limit.",
        place: |words| Some(Place::Change(Some(decoded(words[0])?), ClientChange::Reset)),
        body: Some(RESET_BODY),
        ..CHANGE
    },
    ApiEndpoint {
        path: "/api/v1/limits/{name}/override",
        summary: "Gives one client another rate, or the rate of all others again.",
        place: |words| {
            Some(Place::Change(
                Some(decoded(words[0])?),
                ClientChange::Override,
            ))
        },
        body: Some(OVERRIDE_BODY),
        ..CHANGE
    },
    ApiEndpoint {
        path: "/api/v1/limits/{name}/block",
        summary: "Blocks one client of a limit, or removes its block.",
        place: |words| Some(Place::Change(Some(decoded(words[0])?), ClientChange::Block)),
        ..CHANGE
    },
    ApiEndpoint {
        path: "/api/v1/block",
        summary: "Blocks one client: by its address, its API key, or any key of a limit.",
        place: |_| Some(Place::Change(None, ClientChange::Block)),
        refusals: &[refused(404, "There is nothing to remove."), FULL],
        ..CHANGE
    },
    ApiEndpoint {
        path: "/api/v1/explain",
        summary: "What would happen to a request, and why. Nothing is charged.",
        place: |_| Some(Place::Explain),
        body: Some(EXPLAIN_BODY),
        ..READ
    },
    ApiEndpoint {
        path: "/api/v1/reload",
        action: AdminAction::Write,
        summary: "Reads the configuration again.",
        place: |_| Some(Place::Reload),
        body: Some(EMPTY_BODY),
        answer: json_answer::<ReloadDone>,
        refusals: &[NO_FILE, MISTAKES],
        ..READ
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_selector::KeySelector;
    use crate::limit::key::{Derived, Facts, HashSecret};
    use crate::path::CanonicalPath;

    fn find(path: &str) -> Option<Place> {
        ApiEndpoint::find(path).map(|(_, place)| place)
    }

    #[test]
    fn paths_are_read() {
        assert_eq!(find("/api/v1/nothing"), None);
        assert_eq!(find("*"), None);
        let clients = find("/api/v1/limits/GET%20%2Fa/clients");
        assert_eq!(clients, Some(Place::Clients("GET /a".to_owned())));
        assert_eq!(find("/api/v1/limits/%ff/clients"), None);
        let words = |words: &[&str]| {
            let words = words.iter().map(|word| (*word).to_owned());
            Some(Place::Key("a".to_owned(), words.collect()))
        };
        let key = |key: &str| find(&format!("/api/v1/limits/a/keys/{key}"));
        assert_eq!(key("192.0.2.7"), words(&["192.0.2.7"]));
        assert_eq!(
            key("api_key=a%26b+c&path=%2Fx"),
            words(&["api_key=a&b+c", "path=/x"])
        );
        assert_eq!(key("a/b"), None);
        assert_eq!(find("/api/v1/limits/%4/clients"), None);
    }

    proptest::proptest! {
        /// Logs spell a client so that an operator can ask for it.
        #[test]
        fn a_key_as_logs_spell_it_names_whoever_has_it(
            user in proptest::collection::vec(0x20_u8..=255, 0..20),
            ip: [u8; 16],
            is_v4: bool,
            path in "(/[a-z&=%?#. ]{0,5}){1,3}",
        ) {
            const SECRET: HashSecret = HashSecret::from_bytes([7; 32]);
            let text = "upstream = \"http://127.0.0.1:1\"\n[limit.login]\nrate = \"5/min\"\n\
                key = [\"header:x-user or ip\", \"path\"]\n";
            let (config, _) = crate::config::parse("proxy.toml", text, &|_| None).unwrap();
            let limit = &config.limits[0];
            let ip = match is_v4 {
                true => std::net::IpAddr::from([ip[0], ip[1], ip[2], ip[3]]),
                false => std::net::IpAddr::from(ip).to_canonical(),
            };
            let mut headers = http::HeaderMap::new();
            // Nobody can name a value that is no text.
            if let (Ok(value), Ok(_)) =
                (http::HeaderValue::from_bytes(&user), std::str::from_utf8(&user))
            {
                headers.append("x-user", value);
            }
            let Ok(path) = CanonicalPath::parse(&path) else { return Ok(()) };
            let facts = Facts {
                ip: config.client_ip.group(ip),
                api_key: &config.api_key,
                standing: None,
                method: &http::Method::GET,
                host: "a.test",
                path: &path,
                query: None,
                headers: &headers,
                route: "r",
                params: &[],
                claims: None,
                tier: None,
                certificate: None,
            };
            let spelled = limit.key.spell(&facts, limit.missing).unwrap();
            proptest::prop_assert!(spelled.bytes().all(|byte| byte.is_ascii_graphic()));
            let place = find(&format!("/api/v1/limits/login/keys/{spelled}"));
            let Some(Place::Key(_, words)) = place else { panic!("{spelled}: {place:?}") };
            let eyes = KeySelector {
                client_ip: &config.client_ip,
                api_key: &config.api_key,
                hash_key: &SECRET,
                records: &[],
                known: &[],
            };
            let whom = eyes.select(&words, Some(limit), &[]);
            let tag = whom.map(|whom| Derived::Hash(whom.tag));
            let derived = limit.key.derive(&facts, limit.missing, &SECRET);
            proptest::prop_assert_eq!(tag, Ok(derived), "{}", spelled);
        }
    }
}
