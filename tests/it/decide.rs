//! Forward-auth: another proxy asks, and tidegate decides as if the request had come to it.

mod calls;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::house::{Answer, Client, Tidegate, Upstream};
use crate::probe::eventually;
use crate::support::{RedisServer, free_port};

/// `{"alg":"RS256","kid":"k"}`
const HEAD_OF_TOKEN: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImsifQ";
/// `{"sub":"x","exp":4102444800}`
const CLAIMS_OF_TOKEN: &str = "eyJzdWIiOiJ4IiwiZXhwIjo0MTAyNDQ0ODAwfQ";

struct Decider {
    tidegate: Tidegate,
    address: SocketAddr,
}

impl Decider {
    fn start(config: &str) -> Decider {
        Decider::start_with("", config)
    }

    /// With more settings of `[decide]`.
    fn start_with(settings: &str, config: &str) -> Decider {
        let upstream = Upstream::ok();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let tidegate = Tidegate::start(&format!(
            "upstream = \"{}\"\ntrusted_proxies = [\"10.9.9.9\"]\n{config}\n\
             [decide]\nlisten = \"{address}\"\n{settings}\n",
            upstream.url()
        ));
        Decider { tidegate, address }
    }

    fn ask(&self, path: &str, headers: &str) -> Answer {
        let head = format!("GET {path} HTTP/1.1\r\nHost: decide\r\n{headers}\r\n");
        Client::to(self.address).ask(head)
    }

    /// A call of the rate limit service as JSON: its status, and the units that are left.
    fn call(&self, headers: &str, message: &str) -> (u16, Option<u64>) {
        let length = message.len();
        let answer = Client::to(self.address).ask(format!(
            "POST /json HTTP/1.1\r\nHost: decide\r\n{headers}Content-Length: {length}\r\n\r\n\
             {message}"
        ));
        let json: Option<serde_json::Value> = serde_json::from_str(&answer.text()).ok();
        let left = json.map(|json| json["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0));
        (answer.status, left)
    }

    /// The units that are left to this descriptor. Charges nothing.
    fn left(&self, entry: &str) -> Option<u64> {
        let look = descriptor(entry, ", \"hitsAddend\": 0");
        self.call("", &message(&[look])).1
    }

    /// Asks about `METHOD URI` of a client, as Caddy does.
    fn ask_for(&self, path: &str, request: &str, client: &str) -> Answer {
        self.ask(path, &described(request, client))
    }
}

fn described(request: &str, client: &str) -> String {
    let (method, uri) = request.split_once(' ').unwrap();
    format!(
        "X-Forwarded-Method: {method}\r\nX-Forwarded-Uri: {uri}\r\nX-Forwarded-Host: shop\r\n\
         X-Forwarded-For: {client}\r\nX-Forwarded-Proto: https\r\n"
    )
}

/// A descriptor of one entry `KEY=VALUE`, with further fields.
fn descriptor(entry: &str, fields: &str) -> String {
    let (key, value) = entry.split_once('=').unwrap();
    format!("{{\"entries\": [{{\"key\": \"{key}\", \"value\": \"{value}\"}}]{fields}}}")
}

fn message(descriptors: &[String]) -> String {
    let descriptors = descriptors.join(",");
    format!("{{\"domain\": \"shop\", \"descriptors\": [{descriptors}]}}")
}

fn decision(answer: &Answer) -> String {
    let decision = answer.header("x-decision").unwrap_or_default();
    format!("{} {decision}", answer.status)
}

const LIMITS: &str = "[limit.default]\nrate = \"2/min\"\n\
     [limit.login]\nrate = \"1/min\"\n\
     [limit.user]\nrate = \"1/min\"\nkey = \"header:x-user\"\nmissing = \"deny\"\n\
     [[route]]\npath = \"/login\"\nmethods = [\"POST\"]\nlimits = [\"login\"]\n\
     [[route]]\npath = \"/user\"\nlimits = [\"user\"]\n";

#[test]
fn a_question_is_decided_as_the_request_it_describes() {
    let decider = Decider::start(LIMITS);
    let ask = |request, client| decider.ask_for("/auth", request, client);
    let allowed = ask("POST /login?next=1", "192.0.2.1");
    assert_eq!(decision(&allowed), "200 allow");
    assert_eq!(allowed.header("x-ratelimit-remaining").unwrap(), "0");
    assert!(allowed.body.is_empty());
    let denied = ask("POST //login", "192.0.2.1");
    assert_eq!(decision(&denied), "429 deny");
    assert_eq!(denied.header("retry-after").unwrap(), "60");
    assert!(
        denied.text().contains("quota-exceeded"),
        "{}",
        denied.text()
    );
    // Another method, another client.
    assert_eq!(decision(&ask("GET /login", "192.0.2.1")), "200 allow");
    assert_eq!(decision(&ask("POST /login", "192.0.2.2")), "200 allow");
}

#[test]
fn a_question_and_a_request_use_one_budget() {
    let decider = Decider::start(LIMITS);
    assert_eq!(decider.tidegate.get("/any").status, 200);
    let ask = || decider.ask_for("/auth", "GET /any", "127.0.0.1");
    assert_eq!(decision(&ask()), "200 allow");
    assert_eq!(decision(&ask()), "429 deny");
    assert_eq!(decider.tidegate.get("/any").status, 429);
}

#[test]
fn each_proxy_gets_the_status_that_it_understands() {
    let decider = Decider::start(LIMITS);
    let nginx = |client| decider.ask_for("/auth/nginx", "POST /login", client);
    assert_eq!(decision(&nginx("192.0.2.1")), "200 allow");
    let denied = nginx("192.0.2.1");
    assert_eq!(decision(&denied), "403 deny");
    assert_eq!(denied.header("retry-after").unwrap(), "60");
    assert_eq!(decision(&nginx("nonsense")), "403 deny");
    let envoy = |path: &str, headers: &str| {
        let headers = format!("X-Forwarded-For: 192.0.2.7\r\n{headers}");
        decider.ask(&format!("/auth/envoy{path}"), &headers)
    };
    assert_eq!(decision(&envoy("/user", "X-User: a\r\n")), "200 allow");
    assert_eq!(decision(&envoy("/user", "X-User: a\r\n")), "429 deny");
    assert_eq!(decision(&envoy("/user", "")), "400 deny");
    assert_eq!(
        decision(&envoy("/user", "X-User: b,c\r\n")),
        "400 deny",
        "it came twice"
    );
    assert_eq!(decision(&envoy("", "")), "200 allow");
    let without = decider.ask("/auth/envoy/any", "");
    assert_eq!(decision(&without), "400 deny", "all clients would be one");
}

#[test]
fn a_head_that_cannot_be_read_is_denied() {
    let decider = Decider::start(LIMITS);
    let described = described("POST /login", "192.0.2.1");
    let many: String = (0..120).map(|n| format!("X-{n}: 1\r\n")).collect();
    let long = format!("X-Long: {}\r\n", "x".repeat(40 << 10));
    let endless = format!("X-Long: {}\r\n", "x".repeat(90 << 10));
    for (headers, expected) in [
        ("X-Control: a\u{1}b\r\n", "403 deny"),
        (&*many, "403 deny"),
        (&*long, "400 deny"),
        (&*endless, "403 deny"),
    ] {
        let headers = format!("{described}{headers}");
        // nginx takes other statuses for a failure, and may then let the request pass.
        let nginx = decider.ask("/auth/nginx", &headers);
        assert_eq!(decision(&nginx), "403 deny");
        assert_eq!(decision(&decider.ask("/auth", &headers)), expected);
    }
}

#[test]
fn a_made_up_token_makes_no_proxy_wait_too_long() {
    // It never answers.
    let keys = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = keys.local_addr().unwrap();
    let decider = Decider::start(&format!(
        "[auth.jwt]\njwks_url = \"http://{url}/keys\"\n\
         [limit.user]\nrate = \"9/min\"\nkey = \"jwt:sub or ip\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"user\"]\n"
    ));
    let signature = "A".repeat(342);
    let token = format!("{HEAD_OF_TOKEN}.{CLAIMS_OF_TOKEN}.{signature}");
    let described = described("GET /", "192.0.2.1");
    let headers = format!("{described}Authorization: Bearer {token}\r\n");
    let begin = Instant::now();
    assert_eq!(decision(&decider.ask("/auth", &headers)), "200 allow");
    assert!(begin.elapsed() < Duration::from_millis(900));
}

#[test]
fn what_a_client_forges_changes_nothing() {
    let decider = Decider::start(LIMITS);
    let twice = "X-Forwarded-Uri: /user\r\n";
    for headers in [
        described("POST /login", "192.0.2.1") + twice,
        described("POST /login", "192.0.2.1") + "X-Forwarded-For: 192.0.2.9\r\n",
        described("POST /login", "192.0.2.1, nonsense"),
        described("P(ST /login", "192.0.2.1"),
        described("POST login", "192.0.2.1"),
        described("POST /free#/../login", "192.0.2.1"),
        "X-Original-URI: /login\r\n".to_owned(),
    ] {
        assert_eq!(
            decision(&decider.ask("/auth", &headers)),
            "400 deny",
            "{headers}"
        );
    }
    // Traefik writes this for WebSockets.
    let websocket = described("POST /login", "192.0.2.4").replace("https", "wss");
    assert_eq!(decision(&decider.ask("/auth", &websocket)), "200 allow");
    // The address that the asking proxy saw is the last one.
    let ask = |client| decision(&decider.ask_for("/auth", "POST /login", client));
    assert_eq!(ask("198.51.100.1, 192.0.2.1"), "200 allow");
    assert_eq!(ask("198.51.100.2, 192.0.2.1"), "429 deny");
    // Unless a trusted proxy is there: then the one before it.
    assert_eq!(ask("192.0.2.3, 10.9.9.9"), "200 allow");
    assert_eq!(ask("192.0.2.3"), "429 deny");
}

#[test]
fn without_the_store_each_proxy_still_gets_an_answer_of_the_limiter() {
    let mut redis = RedisServer::start();
    let decider = Decider::start(&format!(
        "[store]\nurl = \"redis://127.0.0.1:{}\"\n\
         [limit.strict]\nrate = \"5/min\"\non_error = \"deny\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"strict\"]\n",
        redis.port()
    ));
    let ask = |path| decision(&decider.ask_for(path, "GET /x", "192.0.2.1"));
    assert_eq!(ask("/auth"), "200 allow");
    redis.kill();
    assert_eq!(ask("/auth"), "503 deny");
    assert_eq!(ask("/auth/nginx"), "403 deny");
    assert_eq!(
        ask("/auth/envoy/x"),
        "429 deny",
        "Envoy takes a 5xx for a failure"
    );
}

#[test]
fn other_paths_and_other_addresses_get_no_decision() {
    let decider = Decider::start(LIMITS);
    let health = decider.ask("/healthcheck", "");
    assert_eq!((health.status, health.text().as_str()), (200, "OK\n"));
    let other = decider.ask_for("/authx", "GET /", "192.0.2.1");
    assert_eq!(decision(&other), "404 ");
    assert_eq!(decision(&decider.ask("/auth", "")), "400 deny");
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let _elsewhere = Tidegate::start(&format!(
        "upstream = \"http://127.0.0.1:9\"\n{LIMITS}\
         [decide]\nlisten = \"{address}\"\nfrom = [\"192.0.2.0/24\"]\n"
    ));
    let head = "GET /auth HTTP/1.1\r\nHost: decide\r\n\r\n";
    assert_eq!(decision(&Client::to(address).ask(head)), "403 ");
}

#[test]
fn questions_are_counted_by_their_door() {
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let decider = Decider::start(&format!("admin = \"{admin}\"\n{LIMITS}"));
    decider.ask_for("/auth", "POST /login", "192.0.2.1");
    decider.ask_for("/auth", "POST /login", "192.0.2.1");
    decider.ask("/auth/nginx", "");
    let head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let text = Client::to(admin).ask(head).text();
    for sample in [
        "{door=\"auth\",code=\"ok\"} 1",
        "{door=\"auth\",code=\"over_limit\"} 1",
        "{door=\"auth_nginx\",code=\"error\"} 1",
        "{door=\"auth_envoy\",code=\"ok\"} 0",
    ] {
        let line = format!("tidegate_decide_requests_total{sample}");
        assert!(text.contains(&line), "{line}\n{text}");
    }
    eventually("the missing headers are found", || {
        let text = Client::to(admin).ask(head).text();
        text.contains("tidegate_findings{id=\"decide-headers\"} 1")
    });
}

#[test]
fn the_type_of_a_client_s_content_says_nothing_of_the_question() {
    let decider = Decider::start(LIMITS);
    let typed = |content_type: &str| {
        let described = described("POST /login", "192.0.2.1");
        decider.ask(
            "/auth",
            &format!("{described}Content-Type: {content_type}\r\n"),
        )
    };
    assert_eq!(decision(&typed("application/grpc")), "200 allow");
    let denied = typed("application/grpc");
    assert_eq!(decision(&denied), "429 deny");
    assert_eq!(denied.header("grpc-status"), None);
    assert_eq!(decision(&typed("application/grpc-web")), "429 deny");
    // A method of gRPC needs its type and HTTP/2.
    let method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    assert_eq!(decision(&decider.ask(method, "")), "415 ");
    let typed = decider.ask(method, "Content-Type: application/grpc\r\n");
    assert_eq!(decision(&typed), "505 ");
}

#[test]
fn a_doubled_key_gets_no_budget_of_its_own() {
    let decider = Decider::start(LIMITS);
    let ask = |path: &str, keys: &[&str]| {
        let lines: String = keys
            .iter()
            .map(|key| format!("X-User: {key}\r\n"))
            .collect();
        let headers = match path {
            "/auth" => described("GET /user", "192.0.2.1"),
            _ => "X-Forwarded-For: 192.0.2.1\r\n".to_owned(),
        };
        decision(&decider.ask(path, &format!("{headers}{lines}")))
    };
    assert_eq!(ask("/auth", &["ann"]), "200 allow");
    for path in ["/auth", "/auth/envoy/user"] {
        assert_eq!(ask(path, &["ann"]), "429 deny", "{path}");
        assert_eq!(ask(path, &["ann", "ann"]), "429 deny", "one key, {path}");
        for keys in [["ann", "bob"], ["bob", "ann"], ["bob", "eve"]] {
            assert_eq!(ask(path, &keys), "400 deny", "{path}, {keys:?}");
        }
    }
    // Envoy joins the lines of a header.
    assert_eq!(ask("/auth/envoy/user", &["ann,bob"]), "400 deny");
    assert_eq!(ask("/auth/envoy/user", &["bob"]), "200 allow");
}

const RULES: &str = "[limit.client]\nrate = \"2/min\"\n\
     [[descriptor]]\ndomain = \"shop\"\nentries = \"remote_address\"\nlimits = \"client\"\n\
     [[descriptor]]\ndomain = \"shop\"\nentries = \"user\"\nlimits = \"9/min\"\n";

#[test]
fn the_client_of_a_call_is_in_its_descriptors_alone() {
    let decider = Decider::start(RULES);
    let call = message(&[descriptor("remote_address=192.0.2.1", "")]);
    let forged = |ip: &str| format!("X-Forwarded-For: {ip}\r\nX-Real-IP: {ip}\r\n");
    assert_eq!(decider.call(&forged("10.9.9.9"), &call), (200, Some(1)));
    assert_eq!(decider.call(&forged("192.0.2.7"), &call), (200, Some(0)));
    assert_eq!(decider.call(&forged("192.0.2.8"), &call).0, 429);
    assert_eq!(decider.left("remote_address=192.0.2.7"), Some(2));
}

#[test]
fn what_a_call_can_make_large_is_bounded_before_it_is_charged() {
    let bounds = "max_message = \"1KiB\"\nmax_descriptors = 2";
    let decider = Decider::start_with(bounds, RULES);
    let ann = || descriptor("user=ann", "");
    assert_eq!(decider.call("", &message(&[ann(), ann()])), (200, Some(7)));
    let many = message(&[ann(), ann(), ann()]);
    assert_eq!(decider.call("", &many), (400, None));
    let long = message(&[ann(), descriptor(&format!("user={}", "x".repeat(1024)), "")]);
    assert_eq!(decider.call("", &long), (413, None));
    let chunked = format!(
        "POST /json HTTP/1.1\r\nHost: decide\r\nTransfer-Encoding: chunked\r\n\r\n\
                           {:x}\r\n{long}\r\n0\r\n\r\n",
        long.len()
    );
    assert_eq!(Client::to(decider.address).ask(chunked).status, 413);
    let entry = "{\"key\": \"user\", \"value\": \"a\"}";
    let entries = vec![entry; 17].join(",");
    let deep = message(&[ann(), format!("{{\"entries\": [{entries}]}}")]);
    assert_eq!(decider.call("", &deep), (400, None));
    assert_eq!(decider.left("user=ann"), Some(7));
}

#[test]
fn a_call_whose_deadline_has_passed_is_not_charged() {
    let decider = Decider::start(RULES);
    let call = message(&[descriptor("user=ann", "")]);
    assert_eq!(decider.call("grpc-timeout: 1n\r\n", &call), (408, None));
    assert_eq!(decider.left("user=ann"), Some(9));
    // A client's header says nothing of the time that the proxy waits.
    let described = described("GET /any", "192.0.2.1") + "grpc-timeout: 1n\r\n";
    assert_eq!(decision(&decider.ask("/auth", &described)), "200 allow");
}

#[test]
fn the_decision_log_has_the_trace_of_a_call() {
    let decider = Decider::start(&format!(
        "[tracing]\nendpoint = \"http://127.0.0.1:9\"\n\
         [log]\ndecisions = \"decisions.jsonl\"\n{RULES}"
    ));
    decider.call("", &message(&[descriptor("user=ann", "")]));
    let path = decider.tidegate.directory.path().join("decisions.jsonl");
    eventually("the decision is logged", || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.contains("\"trace_id\"")
    });
}

#[test]
fn limits_of_callers_count_only_where_they_are_believed() {
    let brought = ", \"limit\": {\"requestsPerUnit\": 100, \"unit\": \"HOUR\"}";
    let call = message(&[descriptor("user=ann", brought)]);
    assert_eq!(Decider::start(RULES).call("", &call), (200, Some(8)));
    let believing = Decider::start_with("overrides = true", RULES);
    assert_eq!(believing.call("", &call), (200, Some(99)));
    assert_eq!(
        believing.left("user=ann"),
        Some(9),
        "the rule's own is apart"
    );
}

#[test]
fn without_the_store_a_call_still_gets_an_answer_of_the_limiter() {
    let mut redis = RedisServer::start();
    let limit = |word: &str| {
        format!(
            "[limit.{word}]\nrate = \"1/min\"\nkey = \"entry:{word}\"\non_error = \"{word}\"\n\
             [[descriptor]]\ndomain = \"shop\"\nentries = \"{word}\"\nlimits = \"{word}\"\n"
        )
    };
    let limits = ["deny", "allow", "local"].map(limit).concat();
    let store = format!("[store]\nurl = \"redis://127.0.0.1:{}\"\n", redis.port());
    let decider = Decider::start(&(store + &limits));
    let call = |entry: &str| decider.call("", &message(&[descriptor(entry, "")])).0;
    assert_eq!(call("deny=a"), 200);
    redis.kill();
    assert_eq!([call("deny=b"), call("deny=b")], [429, 429]);
    assert_eq!([call("allow=a"), call("allow=a")], [200, 200]);
    assert_eq!([call("local=a"), call("local=a")], [200, 429]);
}

#[test]
fn denials_of_questions_and_calls_begin_bans() {
    let ban = "ban = { after = \"2/h\", for = \"1h\" }";
    let decider = Decider::start(&format!(
        "[limit.default]\nrate = \"1/h\"\n{ban}\n\
         [limit.user]\nrate = \"1/h\"\nkey = \"entry:user\"\n{ban}\n\
         [[descriptor]]\ndomain = \"shop\"\nentries = \"user\"\nlimits = \"user\"\n"
    ));
    let ask = |client| decider.ask_for("/auth", "GET /any", client);
    let answers: Vec<_> = (0..4).map(|_| ask("192.0.2.1")).collect();
    let problem = "abnormal-usage-detected";
    assert_eq!(decision(&answers[0]), "200 allow");
    assert!(!answers[2].text().contains(problem));
    assert_eq!(decision(&answers[3]), "429 deny");
    assert!(answers[3].text().contains(problem), "{}", answers[3].text());
    assert_eq!(decision(&ask("192.0.2.2")), "200 allow");
    let call = |user: &str| decider.call("", &message(&[descriptor(&format!("user={user}"), "")]));
    let statuses: Vec<u16> = (0..4).map(|_| call("a").0).collect();
    assert_eq!(statuses, [200, 429, 429, 429]);
    let message = message(&[descriptor("user=a", "")]);
    let length = message.len();
    let banned = Client::to(decider.address).ask(format!(
        "POST /json HTTP/1.1\r\nHost: decide\r\nContent-Length: {length}\r\n\r\n{message}"
    ));
    let answer: serde_json::Value = serde_json::from_str(&banned.text()).unwrap();
    let headers = answer["responseHeadersToAdd"].as_array().unwrap();
    let is_wait = |one: &&serde_json::Value| one.to_string().to_lowercase().contains("retry-after");
    let wait = headers.iter().find(is_wait).unwrap().to_string();
    let is_told = ["3600", "3599", "3598"]
        .iter()
        .any(|left| wait.contains(left));
    assert!(is_told, "{answer}");
    assert_eq!(call("b").0, 200);
}

#[test]
fn what_a_route_answers_by_itself_is_no_request_to_let_pass() {
    let decider = Decider::start(
        "[limit.default]\nrate = \"9/min\"\n\
         [[route]]\npath = \"regex:/[.]git\"\nrespond = { status = 404 }\n\
         [[route]]\npath = \"/closed\"\nrespond = { status = 444 }\n\
         [[route]]\npath = \"/healthy\"\nrespond = { status = 204 }\n\
         [[route]]\npath = \"/old/*\"\nredirect = \"/new/{rest}\"\n\
         [[route]]\npath = \"/*\"\n",
    );
    let ask = |door, uri: &str| decider.ask_for(door, &format!("GET {uri}"), "192.0.2.1");
    assert_eq!(decision(&ask("/auth", "/.git/config")), "404 deny");
    assert_eq!(decision(&ask("/auth/nginx", "/.git/config")), "403 deny");
    assert_eq!(decision(&ask("/auth", "/closed")), "403 deny");
    let moved = ask("/auth", "/old/x");
    assert_eq!(decision(&moved), "302 deny");
    assert_eq!(moved.header("location").as_deref(), Some("/new/x"));
    for uri in ["/healthy", "/other"] {
        assert_eq!(decision(&ask("/auth", uri)), "200 allow", "{uri}");
    }
}
