//! Budgets of gateways for language models: the imported limits deny calls when the tokens are
//! used up that answers reported.

use std::fs;
use std::io::Write;

use tempfile::TempDir;

use super::{folder, run};
use crate::house::{Tidegate, Upstream};

/// A model server whose answers report as many tokens as the request's `X-Report` says: a quarter
/// of them input. Its path must be the one of the provider.
fn model(path: &'static str) -> Upstream {
    Upstream::start(move |seen, stream| {
        let tokens = seen.header("x-report").unwrap_or_default();
        let tokens: u64 = tokens.parse().unwrap_or(0);
        let (input, output) = (tokens / 4, tokens - tokens / 4);
        let status = if seen.is_for(path) {
            "200 OK"
        } else {
            "404 No"
        };
        let body = format!(
            "{{\"usage\":{{\"prompt_tokens\":{input},\"completion_tokens\":{output},\
             \"total_tokens\":{tokens},\"input_tokens\":{input},\"output_tokens\":{output}}}}}"
        );
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(answer.as_bytes()).is_ok()
    })
}

/// An imported configuration, with this upstream in place of its server.
struct Gateway {
    proxy: Tidegate,
    path: &'static str,
    /// The status of a denial.
    denied: u16,
}

/// Output that each call may have, tokens.
const MOST: u64 = 20;

/// What is changed in a result before it runs, as its notes say.
struct Change {
    from: &'static str,
    to: String,
}

impl Gateway {
    fn start(program: &str, name: &str, path: &'static str, changes: &[Change]) -> Gateway {
        let written = run(&folder(program), &["import", program, name]);
        assert!(written.status.success(), "{written:?}");
        let mut text = String::from_utf8(written.stdout).unwrap();
        for change in changes {
            assert!(text.contains(change.from), "{}\n{text}", change.from);
            text = text.replace(change.from, &change.to);
        }
        // The tests' proxies say themselves where they listen.
        let lines = text.lines().filter(|line| !line.starts_with("listen "));
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        let folder = tempfile::tempdir().unwrap();
        write_keys(&folder);
        Gateway {
            proxy: Tidegate::start_in(folder, &text, &[]),
            path,
            denied: 429,
        }
    }

    /// The status of a call whose answer reports so many tokens.
    fn call(&self, client: &str, report: u64) -> u16 {
        let body = format!("{{\"model\":\"m\",\"max_tokens\":{MOST}}}");
        let (path, length) = (self.path, body.len());
        let answer = self.proxy.connect().ask(format!(
            "POST {path} HTTP/1.1\r\nHost: ai.example.com\r\nContent-Type: application/json\r\n\
             X-Report: {report}\r\n{client}Content-Length: {length}\r\n\r\n{body}"
        ));
        answer.status
    }

    /// Uses up a budget of `budget` tokens: small answers give most of their reserves back, one
    /// large answer is charged in full.
    #[track_caller]
    fn uses_up(&self, client: &str, budget: u64) {
        for number in 0..12 {
            assert_eq!(self.call(client, 4), 200, "{client} call {number}");
        }
        assert_eq!(self.call(client, budget), 200, "{client}");
        assert_eq!(self.call(client, 4), self.denied, "{client}");
    }
}

/// The keys of the clients, as an operator writes them after an import.
fn write_keys(folder: &TempDir) {
    let keys = "k-ann ann ann\nk-bob bob gold\nk-cy cy\n";
    fs::write(folder.path().join("keys.txt"), keys).unwrap();
}

fn change(from: &'static str, to: impl Into<String>) -> Change {
    Change {
        from,
        to: to.into(),
    }
}

#[test]
fn tokens_of_kong_are_counted_by_address() {
    let model = model("/v1/chat/completions");
    let server = change("https://api.openai.com", model.url());
    let mut kong = Gateway::start("kong", "providers.yml", "/chat", &[server]);
    // Its `error_code`.
    kong.denied = 503;
    kong.uses_up("", 100);
}

#[test]
fn consumers_and_groups_of_kong_have_their_own_budgets() {
    let model = model("/v1/messages");
    let changes = [
        change("http://127.0.0.1:3000", model.url()),
        change("\n[api_key]\n", "\n[api_key]\nknown = \"keys.txt\"\n"),
    ];
    let kong = Gateway::start("kong", "consumers.yml", "/v1/messages", &changes);
    assert_eq!(kong.call("apikey: unknown\r\n", 1), 401);
    // 50 tokens of both kinds for ann, 100 of output for cy, 5000 for the group of bob.
    assert_eq!(kong.call("apikey: k-ann\r\n", 40), 200);
    assert_eq!(kong.call("apikey: k-ann\r\n", 40), 429);
    assert_eq!(kong.call("apikey: k-cy\r\n", 40), 200);
    assert_eq!(kong.call("apikey: k-cy\r\n", 80), 200);
    assert_eq!(kong.call("apikey: k-cy\r\n", 4), 429);
    for _ in 0..5 {
        assert_eq!(kong.call("apikey: k-bob\r\n", 1000), 200);
    }
    assert_eq!(kong.call("apikey: k-bob\r\n", 2000), 200);
    assert_eq!(kong.call("apikey: k-bob\r\n", 4), 429);
}

#[test]
fn money_of_kong_is_counted_by_its_prices() {
    let model = model("/v1/chat/completions");
    let changes = [
        change("https://api.openai.com", model.url()),
        change("\"gpt-4o\" =", "\"m\" ="),
    ];
    let kong = Gateway::start("kong", "providers.yml", "/v1/chat/completions", &changes);
    let client = "X-Team: a\r\n";
    // 2.5 and 10 for a million tokens: 4 million tokens, a quarter of them input, cost 32.5.
    assert_eq!(kong.call(client, 2_000_000), 200);
    assert_eq!(kong.call(client, 2_000_000), 200);
    assert_eq!(kong.call(client, 4), 503);
    assert_eq!(kong.call("X-Team: b\r\n", 4), 200);
}

#[test]
fn rules_of_apisix_count_by_their_keys() {
    let model = model("/v1/chat/completions");
    let server = change("http://127.0.0.1:3000", model.url());
    let path = "/v1/chat/completions";
    let apisix = Gateway::start("apisix", "apisix.yaml", path, &[server]);
    apisix.uses_up("X-User: ann\r\n", 100);
    assert_eq!(apisix.call("X-User: bob\r\n", 4), 200);
    // A rule is not for requests without its key.
    for _ in 0..5 {
        assert_eq!(apisix.call("", 100), 200);
    }
}

#[test]
fn expressions_of_apisix_weigh_tokens() {
    let model = model("/v1/messages");
    let server = change("https://api.anthropic.com", model.url());
    let apisix = Gateway::start("apisix", "apisix.yaml", "/v1/messages", &[server]);
    // 100,000 units, where a quarter of the tokens counts 1 and the others 5.
    assert_eq!(apisix.call("", 25_000), 200);
    assert_eq!(apisix.call("", 4), 429);
}

#[test]
fn costs_of_envoy_ai_gateway_are_counted_for_each_user() {
    let model = model("/v1/chat/completions");
    let server = change("http://127.0.0.1:3000", model.url());
    let path = "/v1/chat/completions";
    let envoy = Gateway::start("envoy-ai", "tokens.yaml", path, &[server]);
    envoy.uses_up("X-User-Id: ann\r\n", 100);
    assert_eq!(envoy.call("X-User-Id: bob\r\n", 4), 200);
}

#[test]
fn quotas_of_tyk_are_counted_by_key() {
    let model = model("/v2/things");
    let changes = [
        change("http://127.0.0.1:3000", model.url()),
        change("\n[api_key]\n", "\n[api_key]\nknown = \"keys.txt\"\n"),
        // The tiers of the tests' keys.
        change("\"free\" =", "\"gold\" ="),
        change("\"gold-plan\" =", "\"ann\" ="),
    ];
    let tyk = Gateway::start("tyk", "orders.json", "/orders/things", &changes);
    assert_eq!(tyk.call("Authorization: unknown\r\n", 1), 401);
    for key in ["k-bob", "Bearer k-bob", "k-bob"] {
        assert_eq!(tyk.call(&format!("Authorization: {key}\r\n"), 1), 200);
    }
    assert_eq!(tyk.call("Authorization: k-bob\r\n", 1), 429);
    assert_eq!(tyk.call("Authorization: k-ann\r\n", 1), 200);
}
