//! Traces: whose are continued, what upstreams are told of them, and what a collector that is slow,
//! away or behind TLS costs. What spans say is read by a real collector (`tests/otlp`).

use std::net::TcpListener;
use std::time::{Duration, Instant};

use http::{HeaderMap, Response};

use crate::admin::Looked;
use crate::backend::{Backend, Call, secure};
use crate::house::{PATIENCE, Tidegate, Upstream};
use crate::probe::eventually;
use crate::topologies::certificates::Certificates;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SAID: &str = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
const STATE: &str = "tracestate: rojo=00f067aa0ba902b7\r\n";

/// What an upstream saw of the last request.
fn told(upstream: &Upstream) -> (Option<String>, Option<String>) {
    let seen = upstream.seen();
    let last = seen.last().unwrap();
    (last.header("traceparent"), last.header("tracestate"))
}

/// Trace and flags of a header.
fn parts(parent: &Option<String>) -> (String, String) {
    let parent = parent.as_ref().unwrap();
    let parts: Vec<&str> = parent.split('-').collect();
    assert_eq!((parent.len(), parts.len(), parts[0]), (55, 4, "00"));
    (parts[1].to_owned(), parts[3].to_owned())
}

/// The samples of `tidegate_spans_total`: exported, dropped, failed, refused.
fn fates(looked: &Looked) -> [u64; 4] {
    let text = looked.get("/metrics").text();
    ["exported", "dropped", "failed", "refused"].map(|outcome| {
        let start = format!("tidegate_spans_total{{outcome=\"{outcome}\"}} ");
        let line = text.lines().find(|line| line.starts_with(&start));
        line.unwrap()[start.len()..].parse().unwrap()
    })
}

#[test]
fn without_tracing_headers_pass_as_they_are() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!("upstream = \"{}\"\n", upstream.url()));
    assert_eq!(proxy.get_with("/", &format!("{SAID}{STATE}")).status, 200);
    let (parent, state) = told(&upstream);
    assert_eq!(parent.unwrap(), SAID[13..].trim_end());
    assert_eq!(state.unwrap(), STATE[12..].trim_end());
    let odd = "traceparent: nonsense\r\n";
    assert_eq!(proxy.get_with("/", odd).status, 200);
    assert_eq!(told(&upstream).0.as_deref(), Some("nonsense"));
    assert_eq!(proxy.get("/").status, 200);
    assert_eq!(told(&upstream), (None, None));
}

#[test]
fn strangers_and_nonsense_begin_a_trace_of_their_own() {
    let upstream = Upstream::ok();
    let proxy = |more: &str| {
        Tidegate::start(&format!(
            "upstream = \"{}\"\n{more}\n[log]\naccess = \"access.log\"\nformat = \"text\"\n\
             sample_allowed = 1.0\n",
            upstream.url()
        ))
    };
    let endpoint = "[tracing]\nendpoint = \"http://127.0.0.1:9\"\nsample = 0.0\n";
    let stranger = proxy(endpoint);
    assert_eq!(
        stranger.get_with("/", &format!("{SAID}{STATE}")).status,
        200
    );
    let (parent, state) = told(&upstream);
    let (trace, flags) = parts(&parent);
    assert!(trace != TRACE && flags == "00" && state.is_none());
    // The log names the trace, recorded or not.
    let path = stranger.directory.path().join("access.log");
    let log = || std::fs::read_to_string(&path).unwrap_or_default();
    eventually("the log names the trace", || {
        log().contains(&format!(" trace {trace}\n"))
    });
    let trusted = proxy(&format!("trusted_proxies = [\"127.0.0.1\"]\n{endpoint}"));
    let long = "x".repeat(600);
    for (lines, continues, passes) in [
        (format!("{SAID}{STATE}"), true, true),
        (format!("{SAID}tracestate: {long}={long}\r\n"), true, false),
        (format!("{SAID}{SAID}{STATE}"), false, false),
        (format!("traceparent: {long}\r\n{STATE}"), false, false),
        (STATE.to_owned(), false, false),
    ] {
        assert_eq!(trusted.get_with("/", &lines).status, 200);
        let (parent, state) = told(&upstream);
        let (trace, flags) = parts(&parent);
        assert_eq!(trace == TRACE, continues, "{lines}");
        assert_eq!(flags == "01", continues, "{lines}");
        assert_eq!(state.is_some(), passes, "{lines}");
    }
    let never = proxy(&format!(
        "trusted_proxies = [\"127.0.0.1\"]\n{endpoint}parent_sampled = false\n"
    ));
    assert_eq!(never.get_with("/", SAID).status, 200);
    assert_eq!(
        parts(&told(&upstream).0),
        (TRACE.to_owned(), "00".to_owned())
    );
}

#[test]
fn a_collector_that_never_answers_costs_spans_and_no_request() {
    // Connections wait here, and nobody takes them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = Upstream::ok();
    let mut looked = Looked::start(&format!(
        "upstream = \"{}\"\n[log]\naccess = \"off\"\n[tracing]\n\
         endpoint = \"http://{}\"\nsample = 1.0\nqueue = 16\nbatch = 4\nevery = \"10ms\"\n\
         timeout = \"1s\"\n",
        upstream.url(),
        silent.local_addr().unwrap()
    ));
    assert_eq!(fates(&looked), [0; 4]);
    let mut client = looked.tidegate.connect();
    // Two spans of each: the request, and its one attempt. No more than 16 wait, of each worker.
    eventually("spans are dropped", || {
        for _ in 0..50 {
            let answer = client.ask("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
            assert_eq!(answer.status, 200);
        }
        fates(&looked)[1] > 300
    });
    drop(client);
    let began = Instant::now();
    looked.tidegate.signal("TERM");
    assert!(looked.tidegate.wait().success());
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "it waited for the collector"
    );
    let said = looked.tidegate.said().join("\n");
    assert!(said.contains("spans were lost"), "{said}");
}

#[test]
fn a_reload_moves_traces_to_another_collector() {
    let (upstream, one, other) = (Upstream::ok(), Upstream::ok(), Upstream::ok());
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("headers"),
        "authorization: Bearer 7\n",
    )
    .unwrap();
    let text = |endpoint: &str| {
        let tracing = match endpoint {
            "" => String::new(),
            url => format!(
                "[tracing]\nendpoint = \"{url}/own/path\"\nsample = 1.0\nevery = \"10ms\"\n\
                 headers_file = \"headers\"\n"
            ),
        };
        format!("upstream = \"{}\"\n{tracing}", upstream.url())
    };
    let proxy = Tidegate::start_in(directory, &text(""), &[]);
    let reload = |endpoint: &str, line: &str| {
        let listen = format!("listen = \"{}\"\n{}", proxy.address, text(endpoint));
        std::fs::write(proxy.directory.path().join("proxy.toml"), listen).unwrap();
        proxy.signal("HUP");
        proxy.wait_for_line(line);
    };
    assert_eq!(proxy.get("/").status, 200);
    reload(&one.url(), "reload: tracing: endpoint");
    assert_eq!(proxy.get("/first").status, 200);
    eventually("an export", || !one.seen().is_empty());
    reload(&other.url(), "reload: tracing: endpoint");
    assert_eq!(proxy.get("/second").status, 200);
    eventually("an export", || !other.seen().is_empty());
    for (collector, path) in [(&one, "/first"), (&other, "/second")] {
        let seen = collector.seen();
        let export = &seen[0];
        assert!(
            export.head.starts_with("POST /own/path HTTP/1.1\r\n"),
            "{}",
            export.head
        );
        assert_eq!(export.header("authorization").as_deref(), Some("Bearer 7"));
        assert_eq!(
            export.header("content-type").as_deref(),
            Some("application/x-protobuf")
        );
        let body = String::from_utf8_lossy(&export.body);
        assert!(body.contains(path) && body.contains("tidegate"), "{body}");
    }
    reload("", "is no longer set");
    assert_eq!(proxy.get("/third").status, 200);
    assert_eq!(told(&upstream), (None, None));
}

/// Takes every export, as gRPC has it.
async fn take(mut call: Call) {
    let response = Response::builder().header("content-type", "application/grpc");
    if let Some(mut stream) = call.head(response.body(()).unwrap()) {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        let _ = stream.send_trailers(trailers);
    }
}

#[test]
fn a_collector_behind_tls_is_verified() {
    let certificates = Certificates::new();
    let offers = secure(&certificates, "good", &[b"h2"], false);
    let collector = Backend::https(offers, take);
    let upstream = Upstream::ok();
    let start = |ca: &str| {
        Looked::start(&format!(
            "upstream = \"{}\"\n[tracing]\nendpoint = \"{}\"\nprotocol = \"grpc\"\nsample = 1.0\n\
             every = \"10ms\"\n[tracing.tls]\nca = \"{}\"\n",
            upstream.url(),
            collector.https_url(),
            certificates.path(ca).display()
        ))
    };
    let stranger = start("stranger.pem");
    assert_eq!(stranger.tidegate.get("/").status, 200);
    stranger
        .tidegate
        .wait_for_line("is signed by an unknown authority");
    assert!(collector.seen().is_empty());
    let trusted = start("ca.pem");
    assert_eq!(trusted.tidegate.get("/").status, 200);
    trusted.wait_until("spans are exported", |looked| fates(looked)[0] == 2);
    let seen = collector.seen();
    let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    assert_eq!(seen[0].uri().path(), path);
    assert_eq!(seen[0].headers()["te"], "trailers");
}

#[test]
fn what_a_collector_refuses_is_counted_and_told_once() {
    let refusing = Upstream::saying("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
    let upstream = Upstream::ok();
    let looked = Looked::start(&format!(
        "upstream = \"{}\"\n[tracing]\nendpoint = \"{}\"\nsample = 1.0\nevery = \"10ms\"\n",
        upstream.url(),
        refusing.url()
    ));
    let until = Instant::now() + PATIENCE;
    // Nothing is sent twice: it would not go better.
    for requests in 1..=3 {
        assert_eq!(looked.tidegate.get("/").status, 200);
        while fates(&looked)[3] < 2 * requests {
            assert!(Instant::now() < until, "{:?}", fates(&looked));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let exports = refusing.seen().len() as u64;
    assert!((3..=6).contains(&exports), "{exports}");
    let said = looked.tidegate.said();
    let told = said
        .iter()
        .filter(|line| line.contains("does not accept spans"));
    assert_eq!(told.count(), 1, "{said:?}");
}
