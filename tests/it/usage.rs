//! Bodies that are read before a decision: whose denial does not need them, and the memory that
//! they take.

use std::io::Write as _;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::admin::Looked;
use crate::house::{Client, PATIENCE, Tidegate, Upstream};
use crate::probe::eventually;
use crate::reload::Gate;
use crate::support::RedisServer;

const SAID: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 55\r\n\r\n\
                    {\"usage\":{\"prompt_tokens\":60,\"completion_tokens\": 40}}\n";
const BODY: &str = "{\"model\":\"small\",\"max_tokens\":40}";

/// A proxy before a model, with one limit.
fn model(limit: &str, store: &str) -> (Upstream, Looked) {
    let upstream = Upstream::saying(SAID);
    let looked = Looked::start(&format!(
        "upstream = \"{}\"\n{store}\n[log]\naccess = \"stdout\"\nsample_allowed = 1.0\n\
         [usage.chat]\nformat = \"openai\"\n[limit.one]\nkey = \"header:x-key\"\n{limit}\n\
         [[route]]\nname = \"chat\"\npath = \"/*\"\nlimits = [\"one\"]\nusage = \"chat\"\n\
         headers_down = {{ x-route = \"chat\" }}\n",
        upstream.url()
    ));
    (upstream, looked)
}

fn head(key: &str, length: usize, more: &str) -> String {
    format!(
        "POST / HTTP/1.1\r\nHost: test\r\nX-Key: {key}\r\nContent-Length: {length}\r\n{more}\r\n"
    )
}

fn whole(key: &str) -> String {
    head(key, BODY.len(), "") + BODY
}

/// The count of decisions with this result and source.
fn decisions(looked: &Looked, decision: &str, source: &str) -> u64 {
    let line = format!(
        "tidegate_decisions_total{{limit=\"one\",decision=\"{decision}\",source=\"{source}\"}} "
    );
    let text = looked.get("/metrics").text();
    let mut counts = text.lines().filter_map(|one| one.strip_prefix(&line));
    counts.next().map_or(0, |count| count.parse().unwrap())
}

/// Asks without a body, and returns the first head that comes: `100 Continue`, or an answer.
fn first_head(client: &mut Client, head: &str) -> String {
    client.send(head);
    client.head().unwrap()
}

const WAITS: &str = "Expect: 100-continue\r\n";

#[test]
fn a_denial_that_needs_no_body_comes_before_it_without_100_continue() {
    let (upstream, looked) = model("rate = \"100/h\"\ncounts = \"tokens\"", "");
    let proxy = &looked.tidegate;
    assert_eq!(proxy.connect().ask(whole("a")).status, 200);
    // The answer has used all of it.
    looked.wait_for_settlement();
    let usual = proxy.connect().ask(whole("a"));
    assert_eq!(usual.status, 429);
    let mut client = proxy.connect();
    let first = first_head(&mut client, &head("a", 1 << 20, WAITS));
    assert!(first.starts_with("HTTP/1.1 429 "), "{first}");
    // A client that sends its body slowly is answered too.
    let mut slow = proxy.connect();
    slow.send(head("a", 1 << 20, "") + "{\"model\"");
    let early = slow.answer();
    assert_eq!(early.status, 429);
    for name in [
        "content-type",
        "ratelimit-policy",
        "x-route",
        "cache-control",
    ] {
        assert_eq!(early.header(name), usual.header(name), "{name}");
    }
    let seconds: u64 = early.header("retry-after").unwrap().parse().unwrap();
    assert!((3500..=3700).contains(&seconds), "{seconds}");
    assert!(early.text().contains("\"violated-policies\":[\"one\"]"));
    assert_eq!(decisions(&looked, "denied", "store"), 3);
    assert_eq!(decisions(&looked, "allowed", "store"), 1);
    assert_eq!(upstream.seen().len(), 1);
    let lines = looked.wait_for_lines(4);
    let denied = |line: &&String| line.contains("\"denied_by\":[{\"limit\":\"one\"");
    assert_eq!(lines.iter().filter(denied).count(), 3, "{lines:#?}");
    // Another client is asked for its body.
    let mut client = proxy.connect();
    let first = first_head(&mut client, &head("b", BODY.len(), WAITS));
    assert!(first.starts_with("HTTP/1.1 100 "), "{first}");
    assert_eq!(client.ask(BODY).status, 200);
    assert_eq!(decisions(&looked, "allowed", "store"), 2);
}

#[test]
fn a_call_that_may_fit_has_its_body_read() {
    let (_upstream, looked) = model("rate = \"150/h\"\ncounts = \"tokens\"", "");
    let proxy = &looked.tidegate;
    assert_eq!(proxy.connect().ask(whole("a")).status, 200);
    // 50 tokens are left. A call of 11 and 40 tokens does not fit, and one of 11 and 1 would.
    looked.wait_for_settlement();
    let mut client = proxy.connect();
    let first = first_head(&mut client, &head("a", BODY.len(), WAITS));
    assert!(first.starts_with("HTTP/1.1 100 "), "{first}");
    let answer = client.ask(BODY);
    assert_eq!(answer.status, 429);
    // A body of 150 bytes alone has 50 tokens, and its answer one more.
    let mut client = proxy.connect();
    let first = first_head(&mut client, &head("a", 150, WAITS));
    assert!(first.starts_with("HTTP/1.1 429 "), "{first}");
}

#[test]
fn a_request_that_asks_no_model_costs_no_tokens() {
    let limit =
        "rate = \"9000/h\"\ncounts = \"money\"\n[prices]\nsmall = { input = 1, output = 10 }";
    let (upstream, looked) = model(limit, "");
    let proxy = &looked.tidegate;
    for method in ["GET", "DELETE", "OPTIONS", "GET"] {
        let head = head("a", 0, "").replace("POST", method);
        let answer = proxy.connect().ask(head);
        assert_eq!(answer.status, 200, "{method}");
        let left = answer.header("ratelimit").unwrap();
        assert!(left.contains(";r=9000"), "{method}: {left}");
    }
    let count = head("a", 0, "").replacen('/', "/v1/responses/input_tokens", 1);
    let answer = proxy.connect().ask(&count);
    let left = answer.header("ratelimit").unwrap();
    assert!(left.contains(";r=9000"), "it only counts: {left}");
    for other in ["input_tokens/x", "%2finput_tokens"] {
        let answer = proxy.connect().ask(count.replace("input_tokens", other));
        assert_ne!(answer.status, 200, "{other}");
    }
    // One that opens a tunnel may ask a model in it.
    let upgrade = head("a", 0, "Connection: upgrade\r\nUpgrade: websocket\r\n");
    let answer = proxy.connect().ask(upgrade.replace("POST", "GET"));
    assert_eq!(answer.status, 400, "it names no model with a price");
    let answer = proxy.connect().ask(whole("a"));
    let left = answer.header("ratelimit").unwrap();
    assert!(
        left.contains(";r=8589"),
        "11 and 40 tokens are reserved: {left}"
    );
    looked.wait_for_settlement();
    let lines = looked.wait_for_lines(9);
    let used = lines.iter().filter(|line| line.contains("\"usage\":"));
    assert_eq!(used.count(), 1, "{lines:#?}");
    assert_eq!(upstream.seen().len(), 6);
}

#[test]
fn a_key_in_the_body_needs_the_body() {
    let upstream = Upstream::ok();
    let gate = Gate::before(
        upstream,
        "upstream = \"$UPSTREAM\"\n[limit.one]\nrate = \"1/h\"\nkey = \"body:user\"\n\
         [limit.all]\nrate = \"3/h\"\nkey = \"global\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"one\", \"all\"]\n",
    );
    let ask = |user: &str| {
        let body = format!("{{\"user\":\"{user}\"}}");
        let mut client = gate.proxy.connect();
        let first = first_head(&mut client, &head("", body.len(), WAITS));
        match first.starts_with("HTTP/1.1 100 ") {
            true => (100, client.ask(body).status),
            false => (first[9..12].parse().unwrap(), 0),
        }
    };
    assert_eq!(ask("a"), (100, 200));
    assert_eq!(ask("a"), (100, 429));
    assert_eq!(["b", "c"].map(ask), [(100, 200); 2]);
    // Now the limit of all is full, whoever asks.
    assert_eq!(ask("d"), (429, 0));
}

#[test]
fn a_denial_of_redis_is_known_without_a_call_and_without_the_body() {
    let redis = RedisServer::start();
    let store = format!(
        "[store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"5s\"",
        redis.port()
    );
    let upstream = Upstream::ok();
    let looked = Looked::start(&format!(
        "upstream = \"{}\"\n{store}\n[limit.user]\nrate = \"9/h\"\nkey = \"body:user\"\n\
         [limit.one]\nrate = \"1/day\"\nkey = \"global\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"user\", \"one\"]\n",
        upstream.url()
    ));
    // One connection stays with one worker.
    let mut client = looked.tidegate.connect();
    assert_eq!(client.ask(whole("a")).status, 200);
    assert_eq!(client.ask(whole("a")).status, 429);
    redis.freeze();
    let first = first_head(&mut client, &head("a", 1 << 20, WAITS));
    redis.thaw();
    assert!(first.starts_with("HTTP/1.1 429 "), "{first}");
    assert_eq!(decisions(&looked, "denied", "store"), 1);
    assert_eq!(decisions(&looked, "denied", "cache"), 1);
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn body_memory_is_for_all_workers_and_goes_on_after_a_reload() {
    const PART: usize = 256 << 10;
    let config = |memory: &str| {
        format!(
            "upstream = \"$UPSTREAM\"\n[server]\nworkers = 4\nbody_memory = \"{memory}\"\n\
             [limit.one]\nrate = \"1000/h\"\nkey = \"body:user\"\n\
             [limit.all]\nrate = \"1000/h\"\nkey = \"global\"\n\
             [[route]]\npath = \"/*\"\nlimits = [\"one\", \"all\"]\nbody_read = \"1MiB\"\n"
        )
    };
    let gate = Gate::start(&config("1MiB"));
    // `100 Continue` comes when the memory is taken.
    let ask = || {
        let mut client = gate.proxy.connect();
        let first = first_head(&mut client, &head("", PART, WAITS));
        (client, first[9..12].parse::<u16>().unwrap())
    };
    let mut held: Vec<Client> = Vec::new();
    for _ in 0..4 {
        let (client, status) = ask();
        assert_eq!(status, 100);
        held.push(client);
    }
    let refused = |count| (0..count).map(|_| ask().1).collect::<Vec<u16>>();
    assert_eq!(refused(8), [503; 8]);
    held.pop();
    let until = Instant::now() + PATIENCE;
    let fifth = loop {
        let (client, status) = ask();
        if status == 100 {
            break client;
        }
        assert!(Instant::now() < until, "the memory is not returned");
        std::thread::sleep(Duration::from_millis(20));
    };
    gate.reload(&config("2MiB"));
    for _ in 0..4 {
        let (client, status) = ask();
        assert_eq!(status, 100);
        held.push(client);
    }
    assert_eq!(refused(8), [503; 8]);
    gate.reload(&config("1MiB"));
    assert_eq!(refused(8), [503; 8]);
    drop((held, fifth));
}

impl Looked {
    /// Waits until a call is settled, for which its client does not wait.
    fn wait_for_settlement(&self) {
        let line = "tidegate_usage_settlements_total{route=\"chat\",outcome=\"exact\"} 1";
        self.wait_until("the call is settled", |looked| {
            looked.get("/metrics").text().contains(line)
        });
    }

    fn wait_for_lines(&self, count: usize) -> Vec<String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = self.tidegate.stdout();
            if text.lines().count() >= count {
                return text.lines().map(str::to_owned).collect();
            }
            assert!(Instant::now() < until, "only: {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn the_timeout_of_a_route_includes_the_body_that_is_read_before_the_decision() {
    let upstream = Upstream::saying(SAID);
    let proxy = Tidegate::start(&format!(
        "[limit.one]\nrate = \"1000/h\"\nkey = \"ip\"\ncounts = \"tokens\"\n\
         [upstream.app]\nservers = \"{}\"\n[[route]]\npath = \"/*\"\nupstream = \"app\"\n\
         limits = [\"one\"]\nusage = \"openai\"\ntimeout = \"600ms\"\n",
        upstream.url()
    ));
    let mut slow = proxy.connect();
    slow.send(head("a", BODY.len(), "") + "{\"model\"");
    // `body_timeout` is 30 s, and a test waits for an answer for less.
    assert_eq!(slow.answer().status, 408);
    assert!(upstream.seen().is_empty());
}

#[test]
fn members_count_whatever_the_head_says_of_the_body() {
    let gate = Gate::before(
        Upstream::ok(),
        "upstream = \"$UPSTREAM\"\n[limit.one]\nrate = \"1/h\"\nkey = \"body:user\"\n\
         missing = \"skip\"\nvalues = { \"body:user\" = [\"a\"] }\n\
         [[route]]\npath = \"/*\"\nlimits = [\"one\"]\n",
    );
    let body = "{\"id\":NaN,\"user\":\"a\"}";
    let ask = |more: &str, body: &str| {
        let head = head("", body.len(), more);
        gate.proxy.connect().ask(head + body).status
    };
    assert_eq!(ask("", body), 200);
    for coding in ["identity", "gzip", "x"] {
        let more = format!("Content-Encoding: {coding}\r\n");
        assert_eq!(ask(&more, body), 429, "{coding}");
    }
    assert_eq!(ask("Content-Encoding: gzip\r\n", "\x1f\x08 no JSON"), 200);
}

#[test]
fn an_array_that_its_server_cuts_costs_what_it_has_reported() {
    const CUT: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
                       Content-Length: 900\r\n\r\n[{\"usageMetadata\":{\
                       \"promptTokenCount\":60,\"candidatesTokenCount\":4000}},";
    let upstream = Upstream::start(|_, stream| {
        let sent = stream.write_all(CUT.as_bytes());
        sent.is_err()
    });
    let looked = Looked::start(&format!(
        "upstream = \"{}\"\n[log]\naccess = \"stdout\"\nsample_allowed = 1.0\n\
         [limit.one]\nrate = \"9000/h\"\nkey = \"ip\"\ncounts = \"tokens\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"one\"]\nusage = \"gemini\"\n",
        upstream.url()
    ));
    let mut client = looked.tidegate.connect();
    client.send(whole("a"));
    let lines = looked.wait_for_lines(1);
    let kept = "\"charged\":4060,\"outcome\":\"missing\"";
    assert!(lines[0].contains(kept), "{lines:#?}");
}

#[test]
fn a_stream_that_ends_before_its_last_counts_costs_at_least_its_reserve() {
    let upstream = Upstream::start(|seen, stream| {
        let (event, more) = match seen.head.split(' ').nth(1).unwrap() {
            "/anthropic" => (
                "\"message\":{\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}",
                "",
            ),
            "/whole" => ("\"usage\":{\"input_tokens\":10,\"output_tokens\":1}", ""),
            _ => (
                "\"candidates\":[{}],\"usageMetadata\":{\"promptTokenCount\":10}",
                "data: {\"candidates\":[{}]}\n\n",
            ),
        };
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
        let _ = write!(stream, "{head}data: {{{event}}}\n\n{more}");
        false
    });
    let looked = Looked::start(&format!(
        "upstream = \"{}\"\n[log]\naccess = \"stdout\"\nsample_allowed = 1.0\n\
         [limit.one]\nrate = \"9000/h\"\nkey = \"ip\"\ncounts = \"tokens\"\n\
         [[route]]\npath = \"/gemini\"\nlimits = [\"one\"]\nusage = \"gemini\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"one\"]\nusage = \"anthropic\"\n",
        upstream.url()
    ));
    for (count, (path, charged)) in (1..).zip([
        ("/anthropic", "\"charged\":51,\"outcome\":\"missing\""),
        ("/gemini", "\"outcome\":\"missing\""),
        ("/whole", "\"charged\":11,\"outcome\":\"exact\""),
    ]) {
        let request = whole("a").replacen('/', path, 1);
        assert_eq!(looked.tidegate.connect().ask(request).status, 200);
        let lines = looked.wait_for_lines(count);
        assert!(lines[count - 1].contains(charged), "{path} {lines:#?}");
    }
}

#[test]
fn a_wrong_end_of_gzip_changes_nothing_that_was_said() {
    let said = SAID.split_once("\r\n\r\n").unwrap().1;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(said.as_bytes()).unwrap();
    let whole_body = encoder.finish().unwrap();
    let upstream = Upstream::start(move |seen, stream| {
        let (coding, cut, more) = match seen.head.split(' ').nth(1).unwrap() {
            "/whole" => ("X-Gzip", 0, 0),
            "/short" => ("gzip", 4, 0),
            "/long" => ("gzip", 0, 12),
            _ => ("gzip", 30, 0),
        };
        let mut body = whole_body[..whole_body.len() - cut].to_vec();
        body.resize(body.len() + more, 0);
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: {coding}\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).is_ok() && stream.write_all(&body).is_ok()
    });
    let looked = Looked::start(&format!(
        "upstream = \"{}\"\n[log]\naccess = \"stdout\"\nsample_allowed = 1.0\n\
         [limit.one]\nrate = \"9000/h\"\nkey = \"ip\"\ncounts = \"tokens\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"one\"]\nusage = \"openai\"\n",
        upstream.url()
    ));
    for (count, path) in (1..).zip(["/whole", "/short", "/long", "/cut"]) {
        let request = whole("a").replacen('/', path, 1);
        assert_eq!(looked.tidegate.connect().ask(request).status, 200);
        let lines = looked.wait_for_lines(count);
        let is_exact = lines[count - 1].contains("\"charged\":100,\"outcome\":\"exact\"");
        assert_eq!(is_exact, path != "/cut", "{lines:#?}");
    }
}

#[test]
fn limits_in_shadow_mode_get_back_what_a_denied_call_reserved() {
    let upstream = Upstream::saying(SAID);
    let looked = Looked::start(&format!(
        "upstream = \"{}\"\n\
         [limit.one]\nkey = \"ip\"\nrate = \"200/h\"\ncounts = \"tokens\"\nshadow = true\n\
         [limit.calls]\nkey = \"ip\"\nrate = \"1/day\"\ncounts = \"requests\"\n\
         [[route]]\nname = \"chat\"\npath = \"/*\"\nlimits = [\"one\", \"calls\"]\nusage = \"openai\"\n",
        upstream.url()
    ));
    // The first call costs 100 tokens. Each of the others reserves 51.
    assert_eq!(looked.tidegate.connect().ask(whole("a")).status, 200);
    looked.wait_for_settlement();
    for _ in 0..6 {
        assert_eq!(looked.tidegate.connect().ask(whole("a")).status, 429);
    }
    eventually("all are counted", || {
        decisions(&looked, "allowed", "store") == 7
    });
    assert_eq!(decisions(&looked, "shadow_denied", "store"), 0);
}

#[test]
fn usage_is_read_in_the_head_as_the_server_sent_it() {
    let upstream = Upstream::saying(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\
         X-Amzn-Bedrock-Input-Token-Count: 60\r\nX-Amzn-Bedrock-Output-Token-Count: 40\r\n\r\n{}",
    );
    let looked = Looked::start(&format!(
        "upstream = \"{}\"\n[log]\naccess = \"stdout\"\nsample_allowed = 1.0\n\
         [limit.one]\nrate = \"1000/h\"\nkey = \"ip\"\ncounts = \"tokens\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"one\"]\nusage = \"bedrock\"\n\
         headers_down = {{ x-amzn-bedrock-input-token-count = false, \
         x-amzn-bedrock-output-token-count = false, content-type = \"text/plain\" }}\n",
        upstream.url()
    ));
    let answer = looked.tidegate.connect().ask(whole("a"));
    assert_eq!(answer.header("x-amzn-bedrock-input-token-count"), None);
    let lines = looked.wait_for_lines(1);
    let exact = "\"charged\":100,\"outcome\":\"exact\"";
    assert!(lines[0].contains(exact), "{lines:#?}");
}
