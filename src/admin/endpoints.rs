//! The endpoints of the API: one table, by which requests are answered and the document
//! (`openapi.json`) is made.

use std::sync::LazyLock;

use http::{StatusCode, header};
use serde_json::{Value, json};

use super::billing::BY_SCHEMA_WORDS;
use super::denials::DenialFilter;
use super::limits::{DEFAULT_BUSIEST, MAX_BUSIEST, busiest, limits, promotions};
use super::openapi::{
    ApiEndpoint, RefusalDoc, document, json_content, object_content, probe, read, refusal,
    text_content, write,
};
use super::operator_store::ClientChange;
use super::overrides::{change, changes, overrides, usage};
use super::request::ApiRequest;
use super::response::{ApiResult, now, now_s, with_type};
use super::schema::Components;
use super::status::{Readiness, config, healthz, readyz, reload, secrets, status, upstreams};
use super::{billing, clients, explain, prometheus};
use crate::telemetry::metrics::text::TextFormat;

pub(super) static ENDPOINTS: LazyLock<Vec<ApiEndpoint>> = LazyLock::new(|| {
    let mut endpoints = probes();
    endpoints.extend(limit_reads());
    endpoints.extend(ledger_reads());
    endpoints.extend(proxy_reads());
    endpoints.extend(client_changes());
    endpoints.extend(configuration());
    endpoints
});

/// `/openapi.json`, as it is sent.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let document = document(&ENDPOINTS);
    serde_json::to_string_pretty(&document).unwrap_or_default()
});

const BY_ID: &str = "`id` if the key is its hash, as logs show it.";
const SEVERAL: RefusalDoc = refusal(
    409,
    "Several clients have such a hash; the detail lists them.",
);
const NO_LIMIT: RefusalDoc = refusal(404, "There is no such limit.");
const NOTHING_TO_REMOVE: RefusalDoc = refusal(
    404,
    "There is no such limit, or there is nothing to remove.",
);
const FULL: RefusalDoc = refusal(409, "There are as many as there may be.");
const NO_FILE: RefusalDoc = refusal(409, "The proxy was started by flags: there is no file.");
const MISTAKES: RefusalDoc = refusal(422, "The file has mistakes: nothing was changed.");

fn probes() -> Vec<ApiEndpoint> {
    vec![
        probe("/healthz", "Whether the process should live.")
            .respond(text_content, |request| Ok(healthz(&request.state)))
            .refuses(&[RefusalDoc {
                content: text_content,
                ..refusal(503, "A worker does not run any more.")
            }]),
        probe("/readyz", "Whether the process should get requests.")
            .respond(json_content::<Readiness>, |request| {
                Ok(readyz(&request.state))
            })
            .refuses(&[RefusalDoc {
                content: json_content::<Readiness>,
                ..refusal(503, "Not ready.")
            }]),
        probe("/metrics", "All metrics, for Prometheus.").respond(metrics_content, metrics),
        probe("/openapi.json", "This document.").respond(object_content, |_| {
            let text = DOCUMENT.as_str();
            Ok(with_type(StatusCode::OK, "application/json", text))
        }),
    ]
}

fn metrics_content(_: &mut Components) -> Value {
    let media = "text/plain; version=0.0.4; charset=utf-8";
    json!({ media: { "schema": { "type": "string" } } })
}

fn metrics(request: &ApiRequest) -> ApiResult {
    let format = TextFormat::negotiate(request.header(header::ACCEPT));
    let state = &request.state;
    let text = state.inspect(|snapshot| prometheus::write(state, snapshot, format))?;
    Ok(with_type(StatusCode::OK, format.media_type(), text))
}

fn limit_reads() -> Vec<ApiEndpoint> {
    vec![
        read("/api/v1/limits", "Every limit, and what it decided.")
            .json(|request| limits(&request.state)),
        read(
            "/api/v1/limits/{name}/clients",
            "The busiest clients of a limit in the last five to ten minutes.",
        )
        .query(
            "top",
            "How many.",
            &json!({
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_BUSIEST,
                "default": DEFAULT_BUSIEST,
            }),
        )
        .json(busiest)
        .refuses(&[NO_LIMIT]),
        read(
            "/api/v1/limits/{name}/keys/{key}",
            "The usage of one client of a limit.",
        )
        .query("by", BY_ID, &json!({ "enum": ["id"] }))
        .json_async(usage)
        .refuses(&[NO_LIMIT, SEVERAL]),
        read(
            "/api/v1/limits/{name}/promotions",
            "The patch of the file that enforces a limit in shadow mode, or its candidate.",
        )
        .json(promotions)
        .refuses(&[NO_LIMIT, NO_FILE]),
        read(
            "/api/v1/clients/{key}",
            "One client in every limit that counts it, with its last quarter of an hour. A key \
             that fits several limits may name several clients.",
        )
        .query("by", BY_ID, &json!({ "enum": ["id"] }))
        .json_async(clients::find)
        .refuses(&[refusal(404, "No such client is known."), SEVERAL]),
        filtered(read("/api/v1/denials", "The last denials, newest first.")).json(|request| {
            let filter = DenialFilter::parse(|name| request.parameter(name))?;
            request.state.collect();
            Ok(request.state.denials.list(&filter))
        }),
        filtered(read(
            "/api/v1/denials/stream",
            "Denials as they happen: one data line of JSON for each. An event `dropped` counts \
             those that the stream left out.",
        ))
        .respond(
            |_| json!({ "text/event-stream": { "schema": { "type": "string" } } }),
            |request| {
                let filter = DenialFilter::parse(|name| request.parameter(name))?;
                request.state.denials.stream(filter)
            },
        )
        .refuses(&[refusal(429, "There are as many streams as there may be.")]),
        read("/api/v1/overrides", "Every override and block in force.").json_async(overrides),
        read(
            "/api/v1/changes",
            "The last 1000 changes of overrides and blocks, and resets, newest first.",
        )
        .json_async(changes),
    ]
}

fn ledger_reads() -> Vec<ApiEndpoint> {
    vec![
        read(
            "/api/v1/usage",
            "What each client used, by day, from the ledger. At most 200000 rows.",
        )
        .query(
            "from",
            "The first day. The default is the first of the month of `to`.",
            &day_schema(),
        )
        .query(
            "to",
            "The last day, included. The default is today in the zone of the ledger.",
            &day_schema(),
        )
        .query(
            "by",
            "What a row is for: `client`, `day` or `month`, or two of them with a comma.",
            &json!({ "type": "string", "default": BY_SCHEMA_WORDS }),
        )
        .json_async(billing::usage)
        .refuses(&[refusal(404, "The configuration has no ledger.")]),
    ]
}

fn day_schema() -> Value {
    json!({ "type": "string", "format": "date" })
}

/// Adds the parameters of [`DenialFilter`].
fn filtered(endpoint: ApiEndpoint) -> ApiEndpoint {
    let text = json!({ "type": "string" });
    endpoint
        .query("limit", "Only denials by this limit.", &text)
        .query("route", "Only denials on this route.", &text)
        .query(
            "key",
            "Only denials of this client: its `id` as logs and lists show it, or at least its \
             first four characters.",
            &text,
        )
        .query(
            "request_id",
            "Only the denial of the request with this id.",
            &text,
        )
        .query(
            "until",
            "Only denials up to this time, seconds since the Unix epoch.",
            &json!({ "type": "number", "minimum": 0 }),
        )
        .query(
            "shadow",
            "`false` leaves out limits in shadow mode.",
            &json!({ "type": "boolean", "default": true }),
        )
}

fn proxy_reads() -> Vec<ApiEndpoint> {
    vec![
        read(
            "/api/v1/status",
            "The process, its configuration, its store, and what it found.",
        )
        .json(|request| status(&request.state)),
        read(
            "/api/v1/traffic",
            "The requests of the last quarter of an hour.",
        )
        .json(|request| Ok(request.state.record().history.report(now()))),
        read(
            "/api/v1/routes",
            "The responses of each route in the last minute, and their times.",
        )
        .json(|request| {
            let state = &request.state;
            let started = state.server.introspection.started_us / 1_000_000;
            state.inspect(|snapshot| state.record().routes.report(snapshot, started, now_s()))
        }),
        read(
            "/api/v1/upstreams",
            "Every upstream and the state of its servers.",
        )
        .json(|request| upstreams(&request.state)),
        read(
            "/api/v1/explain",
            "Shows what happens to a request, and why. Charges nothing.",
        )
        .body(&explain::body_schema(), &explain::body_example())
        .respond_async(object_content, explain::answer),
        read(
            "/api/v1/explain/call",
            "Shows what happens to a call of the rate limit service, and why. Charges nothing.",
        )
        .body(&explain::call_schema(), &explain::call_example())
        .respond_async(object_content, explain::answer_call),
    ]
}

fn client_changes() -> Vec<ApiEndpoint> {
    let endpoint = |path, summary, kind: ClientChange| {
        write(path, summary)
            .body(&kind.schema(), &kind.example())
            .json_async(move |request| change(request, kind))
    };
    let of_limit = [NOTHING_TO_REMOVE, FULL];
    vec![
        endpoint(
            "/api/v1/limits/{name}/reset",
            "Sets the counts of one client of a limit to zero.",
            ClientChange::Reset,
        )
        .refuses(&of_limit),
        endpoint(
            "/api/v1/limits/{name}/override",
            "Gives one client another rate, or the rate of all others again.",
            ClientChange::Override,
        )
        .refuses(&of_limit),
        endpoint(
            "/api/v1/limits/{name}/block",
            "Blocks one client of a limit, or removes its block.",
            ClientChange::Block,
        )
        .refuses(&of_limit),
        endpoint(
            "/api/v1/block",
            "Blocks one client: by its address, its API key, or any key of a limit.",
            ClientChange::Block,
        )
        .refuses(&[refusal(404, "There is nothing to remove."), FULL]),
    ]
}

fn configuration() -> Vec<ApiEndpoint> {
    vec![
        read(
            "/api/v1/config",
            "The configuration in effect, with every default and without secrets: TOML, or JSON \
             for `Accept: application/json`.",
        )
        .respond(
            |_| {
                json!({
                    "application/toml": { "schema": { "type": "string" } },
                    "application/json": { "schema": { "type": "object" } },
                })
            },
            config,
        ),
        write(
            "/api/v1/config/secrets",
            "The mark that stands for each secret of the configuration.",
        )
        .json(secrets)
        .refuses(&[NO_FILE, MISTAKES]),
        write("/api/v1/reload", "Reads the configuration again.")
            .json_async(reload)
            .refuses(&[NO_FILE, MISTAKES]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::openapi::find;
    use crate::key_selector::KeySelector;
    use crate::limit::key::{Derived, Facts, HashSecret};
    use crate::path::CanonicalPath;

    #[test]
    fn openapi_json_is_what_is_answered() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/admin/openapi.json");
        let text = format!("{}\n", *DOCUMENT);
        if std::env::var_os("TIDEGATE_ACCEPT").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert!(
            std::fs::read_to_string(path).unwrap() == text,
            "{path} is stale: TIDEGATE_ACCEPT=1 cargo test --lib -- openapi"
        );
    }

    proptest::proptest! {
        /// Logs spell a client so that an operator can ask for it.
        #[test]
        fn a_key_as_logs_spell_it_names_its_client(
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
            // An operator can only write values that are text.
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
                registered: None,
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
                extensions: None,
                body: None,
            };
            let spelled = limit.key.spell(&facts, limit.missing).unwrap();
            proptest::prop_assert!(spelled.bytes().all(|byte| byte.is_ascii_graphic()));
            let asked = format!("/api/v1/limits/login/keys/{spelled}");
            let (_, parameters) = find(&ENDPOINTS, &asked).expect(&spelled);
            let eyes = KeySelector {
                client_ip: &config.client_ip,
                api_key: &config.api_key,
                hash_key: &SECRET,
                records: &[],
                known: &[],
            };
            let whom = eyes.select(&parameters.key, Some(limit), &[]);
            let tag = whom.map(|whom| Derived::Hash(whom.tag));
            let derived = limit.key.derive(&facts, limit.missing, &SECRET);
            proptest::prop_assert_eq!(tag, Ok(derived), "{}", spelled);
        }
    }
}
