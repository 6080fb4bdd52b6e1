//! Forward-auth: another proxy asks, and tidegate decides as if the request had come to it.

use std::net::SocketAddr;

use crate::house::{Answer, Client, Tidegate, Upstream};
use crate::support::{RedisServer, free_port};

struct Decider {
    tidegate: Tidegate,
    address: SocketAddr,
}

impl Decider {
    fn start(config: &str) -> Decider {
        let upstream = Upstream::ok();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let tidegate = Tidegate::start(&format!(
            "upstream = \"{}\"\ntrusted_proxies = [\"10.9.9.9\"]\n{config}\n\
             [decide]\nlisten = \"{address}\"\n",
            upstream.url()
        ));
        Decider { tidegate, address }
    }

    fn ask(&self, path: &str, headers: &str) -> Answer {
        let head = format!("GET {path} HTTP/1.1\r\nHost: decide\r\n{headers}\r\n");
        Client::to(self.address).ask(head)
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
}
