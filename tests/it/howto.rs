//! The how-tos, done: each page's own `proxy.toml` is run, asked as the page asks, and must answer
//! what the page shows.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::house::{Answer, Client, Tidegate, Upstream};
use crate::support::RedisServer;

struct Page {
    text: String,
}

impl Page {
    fn of(name: &str) -> Page {
        let path = format!("{}/docs/howto/{name}.md", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        Page { text }
    }

    /// A block of the page, by how it begins.
    fn block(&self, begin: &str) -> &str {
        let (_, rest) = self.text.split_once(begin).unwrap();
        rest.split_once("```").unwrap().0
    }

    /// A proxy on the page's file, but for its addresses, with one worker: what that tells the
    /// store comes there in order. Beside it stands a file of keys, and one of tiers if it is named.
    fn proxy(&self, upstream: &Upstream, redis: &RedisServer) -> Tidegate {
        self.changed_proxy(("", ""), upstream, redis)
    }

    /// The same with one word of it changed.
    fn changed_proxy(
        &self,
        (from, to): (&str, &str),
        upstream: &Upstream,
        redis: &RedisServer,
    ) -> Tidegate {
        let begin = match self.text.contains("```toml\n# proxy.toml\n") {
            true => "```toml\n# proxy.toml\n",
            false => "```toml\n",
        };
        let file = self.block(begin).replacen(from, to, 1);
        let file: String = file
            .lines()
            .filter(|line| !line.starts_with("listen ") && !line.starts_with("admin "))
            .map(|line| format!("{line}\n"))
            .collect();
        let store = format!("redis://127.0.0.1:{}", redis.port());
        let file = ["3000", "4000", "4010", "11434"]
            .iter()
            .fold(file, |file, port| {
                file.replace(
                    &format!("http://127.0.0.1:{port}\""),
                    &format!("{}\"", upstream.url()),
                )
            })
            .replace(
                "redis://127.0.0.1\"",
                &format!("{store}\"\ntimeout = \"5s\""),
            );
        let file = format!("{file}[server]\nworkers = 1\n");
        let folder = tempfile::tempdir().unwrap();
        if file.contains("tiers.txt") {
            let tiers = Page::of("plans").block("```text\n# key").to_owned();
            std::fs::write(folder.path().join("tiers.txt"), format!("# key{tiers}")).unwrap();
        }
        std::fs::write(folder.path().join("keys.txt"), "k-bob-1\n").unwrap();
        Tidegate::start_in(folder, &file, &[])
    }

    /// The part of the page below one heading.
    fn section(&self, heading: &str) -> Page {
        let (_, rest) = self.text.split_once(&format!("\n## {heading}")).unwrap();
        let text = rest.split_once("\n## ").unwrap().0.to_owned();
        Page { text }
    }

    /// The usage of each call in the page's transcript.
    fn usages(&self) -> Vec<Value> {
        let lines = self
            .text
            .lines()
            .filter(|line| line.starts_with("\"usage\":"));
        let parsed = lines.map(|line| serde_json::from_str::<Value>(&format!("{{{line}")).unwrap());
        parsed.map(|mut line| line["usage"].take()).collect()
    }

    #[track_caller]
    fn shows(&self, what: &str) {
        assert!(self.text.contains(what), "the page does not show: {what}");
    }
}

/// A request with a body.
fn post(client: &mut Client, path: &str, header: &str, body: &str) -> Answer {
    let length = body.len();
    client.ask(format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\n{header}\r\nContent-Length: {length}\r\n\r\n{body}"
    ))
}

/// As the pages show a row of answers.
fn statuses(answers: impl Iterator<Item = Answer>) -> String {
    let all: Vec<String> = answers.map(|answer| answer.status.to_string()).collect();
    all.join(" ")
}

/// `"name";r=left` of each limit, without when more is free.
fn left(value: &str) -> Vec<String> {
    let parts = value.split(", ").map(|part| {
        let words = part.split(';').filter(|word| !word.starts_with("t="));
        words.collect::<Vec<_>>().join(";")
    });
    parts.collect()
}

/// What the page shows behind `ratelimit: `, in the page's order.
fn shown(page: &Page) -> Vec<Vec<String>> {
    let lines = page.text.lines();
    let lines = lines.filter_map(|line| line.strip_prefix("ratelimit: "));
    lines.map(left).collect()
}

fn told(answer: &Answer) -> Vec<String> {
    left(&answer.header("ratelimit").unwrap())
}

#[test]
fn only_wrong_passwords_count() {
    let page = Page::of("login");
    let upstream = Upstream::start(|request, stream| {
        let status = match request.body.ends_with(b"=right") {
            true => "200 OK",
            false => "401 No",
        };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(answer.as_bytes()).is_ok()
    });
    let redis = RedisServer::start();
    let proxy = page.proxy(&upstream, &redis);
    let mut client = proxy.connect();
    let mut login = |word: &str| {
        let body = format!("password={word}");
        post(&mut client, "/login", "x-account: ann", &body)
    };
    page.shows(&format!("\n{}\n", statuses((0..3).map(|_| login("right")))));
    page.shows(&format!("\n{}\n", statuses((0..6).map(|_| login("wrong")))));
    let denied = login("right");
    assert_eq!(denied.status, 429);
    assert_eq!(told(&denied), shown(&page)[0]);
    page.shows(&denied.header("ratelimit-policy").unwrap());
}

#[test]
fn every_plan_has_its_rates_and_keys_made_up_have_one_budget() {
    let page = Page::of("plans");
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let proxy = page.proxy(&upstream, &redis);
    for key in ["k-bob-1", "k-ann-1"] {
        let answer = proxy.get_with("/", &format!("x-api-key: {key}\r\n"));
        let policy = answer.header("ratelimit-policy").unwrap();
        page.shows(&format!(
            "{key}' localhost:8080/ | grep -i ratelimit-policy\nratelimit-policy: {policy}\n"
        ));
    }
    let unlimited = proxy.get_with("/", "x-api-key: k-ops-1\r\n");
    assert_eq!(unlimited.header("ratelimit-policy"), None);
    // A slow machine takes longer for seven requests than a second.
    let slowly = ("[\"2/s\", \"100/d\"]", "[\"2/h\", \"100/d\"]");
    let proxy = page.changed_proxy(slowly, &upstream, &redis);
    let made_up = (0..7).map(|key| proxy.get_with("/", &format!("x-api-key: made-up-{key}\r\n")));
    page.shows(&format!("`{}`", statuses(made_up)));
}

/// An answer of a model that used 200 tokens.
const ANSWER: &str = r#"{"choices":[],"usage":{"prompt_tokens":22,"completion_tokens":178}}"#;

#[test]
fn tokens_are_settled_and_requests_counted() {
    let page = Page::of("tokens");
    let upstream = Upstream::start(|_, stream| {
        let length = ANSWER.len();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
        let answer = format!("{head}Content-Length: {length}\r\n\r\n{ANSWER}");
        stream.write_all(answer.as_bytes()).is_ok()
    });
    let redis = RedisServer::start();
    let proxy = page.proxy(&upstream, &redis);
    let mut client = proxy.connect();
    let mut ask = |body: &str| {
        let path = "/v1/chat/completions";
        post(&mut client, path, "x-api-key: k-bob-1", body)
    };
    let body = page.block("$ DATA='").split_once('\'').unwrap().0;
    for shown in &shown(&page)[..2] {
        let answer = ask(body);
        assert_eq!((answer.status, &told(&answer)), (200, shown));
    }
    let denied = ask(&body.replace("1000", "10000"));
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("retry-after"), None);
    let (policy, detail) = (
        "\"violated-policies\":[\"tokens/min\"]",
        "more than \\\"tokens/min\\\" ever allows at once (10000/min)\"",
    );
    for part in [policy, detail] {
        assert!(denied.text().contains(part), "{}", denied.text());
        page.shows(part);
    }
}

/// An answer as a server of a section tells its usage.
fn model_answer(section: &str, usage: &Value) -> String {
    let number = |name: &str| usage[name].as_u64().unwrap();
    let (input, output, cached) = (number("input"), number("output"), number("cached"));
    let fresh = input - cached;
    match section {
        "OpenAI" => json!({"usage": {"prompt_tokens": input, "completion_tokens": output}}),
        "Anthropic" => json!({"usage": {"input_tokens": fresh, "cache_read_input_tokens": cached,
            "output_tokens": output}}),
        "Gemini" => json!({"usageMetadata": {"promptTokenCount": input,
            "candidatesTokenCount": output}}),
        "Ollama" => json!({"done": true, "prompt_eval_count": input, "eval_count": output}),
        _ => json!({"usage": {"inputTokens": input, "outputTokens": output}}),
    }
    .to_string()
}

/// The calls of a transcript: `curl` with a header perhaps, a path and a body.
fn ask_as_shown(client: &mut Client, call: &str) -> Answer {
    let (_, path) = call.split_once("localhost:8080").unwrap();
    let path = path.split([' ', '\'']).next().unwrap();
    let body = call
        .split("-d '")
        .nth(1)
        .unwrap()
        .split('\'')
        .next()
        .unwrap();
    let key = call.split("-H '").find(|part| part.contains("api-key: "));
    let key = key.map_or("X-Other: 1", |part| part.split('\'').next().unwrap());
    post(client, path, key, body)
}

#[test]
fn each_server_is_settled_as_its_transcript_shows() {
    for name in ["OpenAI", "Anthropic", "Gemini", "Ollama", "Bedrock"] {
        let redis = RedisServer::start();
        let section = Page::of("tokens").section(name);
        let usages = section.usages();
        let answers: Vec<String> = usages
            .iter()
            .map(|usage| model_answer(name, usage))
            .collect();
        let asked = AtomicUsize::new(0);
        let upstream = Upstream::start(move |_, stream| {
            let answer = &answers[asked.fetch_add(1, Ordering::Relaxed)];
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
            let length = answer.len();
            let answer = format!("{head}Content-Length: {length}\r\n\r\n{answer}");
            stream.write_all(answer.as_bytes()).is_ok()
        });
        let proxy = section.proxy(&upstream, &redis);
        let mut client = proxy.connect();
        let calls: Vec<&str> = section.text.split("\n$ curl -si").collect();
        let calls = &calls[calls.len() - usages.len()..];
        for call in calls {
            let answer = ask_as_shown(&mut client, call);
            let shown = call
                .lines()
                .find_map(|line| line.strip_prefix("ratelimit: "));
            assert_eq!(
                (answer.status, told(&answer)),
                (200, left(shown.unwrap())),
                "{name}"
            );
        }
    }
}

#[test]
fn what_one_limit_denies_the_others_do_not_count() {
    let page = Page::of("several");
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let proxy = page.proxy(&upstream, &redis);
    page.shows(&format!(
        "\n{}\n",
        statuses((0..13).map(|_| proxy.get("/search")))
    ));
    let denied = proxy.get("/search");
    page.shows(&denied.header("ratelimit-policy").unwrap());
    // What counts by the second is as fast as the machine is.
    let lasting = |told: Vec<String>| -> Vec<String> {
        let brief = ["\"client/s\"", "\"everyone\""];
        let lasts = |one: &String| !brief.iter().any(|name| one.starts_with(name));
        told.into_iter().filter(lasts).collect()
    };
    assert_eq!(lasting(told(&denied)), lasting(shown(&page).remove(0)));
    assert_eq!(proxy.get("/").status, 200);
}
