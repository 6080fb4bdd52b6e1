//! How gRPC calls end, as operators see it: HTTP says 200 of a denial, of a dead upstream and of a
//! call that failed, and the status of gRPC tells them apart in metrics, logs and views.

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use serde_json::Value;

use crate::admin::Looked;
use crate::backend::{Backend, Call, Manners};
use crate::house::{Tidegate, Upstream};
use crate::http2::client::{Http2, Reply, run};
use crate::probe::eventually;
use crate::support::free_port;

/// Answers with the status that the path ends with: in trailers, or in the head alone.
async fn server(mut call: Call) {
    let path = call.request.uri().path().to_owned();
    let (_, how) = path.rsplit_once('/').unwrap();
    let (kind, status) = how.split_once('-').unwrap();
    let head = || Response::builder().header("content-type", "application/grpc");
    let say = |call: &mut Call| {
        let mut stream = call.head(head().body(()).unwrap()).unwrap();
        let message = Bytes::from_static(b"\0\0\0\0\0");
        stream.send_data(message, kind == "without").unwrap();
        stream
    };
    match kind {
        "trailers" => {
            let trailers =
                HeaderMap::from_iter([("grpc-status".parse().unwrap(), status.parse().unwrap())]);
            say(&mut call).send_trailers(trailers).unwrap();
        }
        "head" => {
            let head = head().header("grpc-status", status).body(()).unwrap();
            call.respond.send_response(head, true).unwrap();
        }
        "cut" => {
            let mut stream = say(&mut call);
            call.read().await;
            stream.send_reset(h2::Reason::INTERNAL_ERROR);
        }
        "http" => {
            let head = Response::builder().status(status).body(()).unwrap();
            call.respond.send_response(head, true).unwrap();
        }
        "never" => std::future::pending().await,
        "open" => {
            let mut stream = say(&mut call);
            let _ = std::future::poll_fn(|context| stream.poll_reset(context)).await;
        }
        _ => _ = say(&mut call),
    }
}

fn call(path: &str) -> Request<()> {
    let request = Request::post(format!("http://test{path}"));
    let request = request.header("content-type", "application/grpc");
    request.header("te", "trailers").body(()).unwrap()
}

/// Calls one after the other; nothing for one that is broken off.
fn calls(looked: &Looked, paths: &[&str]) -> Vec<Option<Reply>> {
    run(async {
        let client = Http2::to(looked.tidegate.address).await;
        let mut replies = Vec::new();
        for path in paths {
            replies.push(client.ask(call(path)).await.ok());
        }
        replies
    })
}

fn start(backend: &Backend, more: &str) -> Looked {
    let dead = free_port();
    Looked::start(&format!(
        "[upstream.api]\nservers = [\"{}\"]\n[upstream.dead]\nservers = [\"h2c://127.0.0.1:{dead}\"]\n\
         [limit.tight]\nrate = \"1/h\"\nkey = \"global\"\n\
         [[route]]\nname = \"calls\"\npath = \"/calls/*\"\nupstream = \"api\"\nlimits = []\n\
         [[route]]\nname = \"tight\"\npath = \"/tight/*\"\nupstream = \"api\"\nlimits = [\"tight\"]\n\
         [[route]]\nname = \"dead\"\npath = \"/dead/*\"\nupstream = \"dead\"\nlimits = []\n{more}",
        backend.h2c_url()
    ))
}

#[test]
fn a_call_that_finds_no_server_is_given_back() {
    let backend = Backend::h2c(Manners::default(), server);
    let looked = start(
        &backend,
        "[limit.paid]\nrate = \"1/h\"\nkey = \"global\"\n\
         [[route]]\nname = \"paid\"\npath = \"/paid/*\"\nupstream = \"dead\"\nlimits = [\"paid\"]\n\
         refund = [\"5xx\"]\n\
         [[route]]\nname = \"failing\"\npath = \"/failing/*\"\nupstream = \"api\"\n\
         limits = [\"paid\"]\nrefund = [\"503\"]\n",
    );
    for path in ["/paid/a", "/paid/b", "/failing/head-14", "/failing/head-14"] {
        let reply = calls(&looked, &[path]).remove(0).unwrap();
        assert_eq!(reply.headers["grpc-status"], "14", "{path}");
    }
    let denied = calls(&looked, &["/failing/head-0", "/failing/head-14"]);
    let status = |reply: &Option<Reply>| reply.as_ref().unwrap().headers["grpc-status"].clone();
    assert_eq!([status(&denied[0]), status(&denied[1])], ["0", "8"]);
}

/// Waits until `/metrics` has this sample with this value: a call is counted when it has ended.
fn counted(looked: &Looked, sample: &str, value: u64) {
    let line = format!("{sample} {value}");
    let read = || looked.get("/metrics").text();
    let text = std::cell::RefCell::new(String::new());
    let found = || {
        *text.borrow_mut() = read();
        text.borrow().lines().any(|one| one == line)
    };
    eventually(&format!("{line} is counted"), found);
}

#[test]
fn calls_are_counted_by_the_status_of_grpc() {
    let backend = Backend::h2c(Manners::default(), server);
    let looked = start(&backend, "");
    let sample = |route: &str, status: &str| {
        format!("tidegate_grpc_requests_total{{route=\"{route}\",grpc_status=\"{status}\"}}")
    };
    let text = looked.get("/metrics").text();
    for status in ["0", "4", "8", "12", "13", "14", "none"] {
        assert!(
            text.contains(&format!("{} 0\n", sample("calls", status))),
            "{status}"
        );
    }
    let paths = [
        "/calls/trailers-0",
        "/calls/trailers-14",
        "/calls/head-13",
        "/calls/head-99",
        "/calls/without-status",
        "/calls/http-503",
        "/tight/trailers-0",
        "/tight/trailers-0",
        "/dead/trailers-0",
        "/nowhere/trailers-0",
    ];
    let replies = calls(&looked, &paths);
    let http = replies.iter().flatten().map(|reply| reply.status);
    assert_eq!(
        http.filter(|status| *status == 200).count(),
        9,
        "{replies:?}"
    );
    for (route, status, times) in [
        ("calls", "0", 1),
        ("calls", "14", 2),
        ("calls", "13", 1),
        ("calls", "other", 1),
        ("calls", "none", 1),
        ("tight", "0", 1),
        ("tight", "8", 1),
        ("dead", "14", 1),
        ("(none)", "12", 1),
    ] {
        counted(&looked, &sample(route, status), times);
    }
    let upstream = "tidegate_upstream_grpc_requests_total{upstream=\"api\",grpc_status=\"14\"}";
    counted(&looked, upstream, 2);
    counted(
        &looked,
        "tidegate_http_requests_total{route=\"dead\",method=\"POST\",code=\"200\"}",
        1,
    );
}

#[test]
fn a_trial_is_judged_by_the_trailers_and_not_by_the_head() {
    let failing = Backend::h2c(Manners::default(), |mut call: Call| async move {
        let head = Response::builder().header("content-type", "application/grpc");
        let mut stream = call.head(head.body(()).unwrap()).unwrap();
        let unavailable =
            HeaderMap::from_iter([("grpc-status".parse().unwrap(), "14".parse().unwrap())]);
        let _ = stream.send_trailers(unavailable);
    });
    let good = Backend::h2c(Manners::default(), server);
    let mut proxy = Tidegate::start(&format!(
        "[server]\nworkers = 1\n[[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n\
         [upstream.api]\nservers = [\"{}\", \"{}\"]\nbalance = \"round-robin\"\n\
         eject = {{ failures = 1, for = \"100ms\", status = [\"503\"] }}\n",
        failing.h2c_url(),
        good.h2c_url()
    ));
    run(async {
        let client = Http2::to(proxy.address).await;
        while failing.seen().len() < 4 {
            let _ = client.ask(call("/calls/trailers-0")).await;
        }
    });
    proxy.signal("TERM");
    proxy.wait();
    let said = proxy.said().join("\n");
    assert!(said.contains("gets no requests for 100ms"), "{said}");
    assert!(!said.contains("is back"), "{said}");
}

#[test]
fn requests_that_are_no_calls_make_no_series_of_grpc() {
    let backend = crate::house::Upstream::ok();
    let looked = Looked::start(&format!("upstream = \"{}\"\n", backend.url()));
    assert_eq!(looked.tidegate.get("/").status, 200);
    let text = looked.get("/metrics").text();
    assert!(!text.contains("grpc_status="), "{text}");
}

#[test]
fn a_client_that_leaves_has_cancelled_its_call() {
    let backend = Backend::h2c(Manners::default(), server);
    let looked = start(&backend, "");
    run(async {
        let client = Http2::to(looked.tidegate.address).await;
        let (response, mut stream) = client.begin(call("/calls/open-stream")).await;
        stream.send_data(Bytes::new(), true).unwrap();
        let answer = response.await.unwrap();
        assert_eq!(answer.status(), 200);
        stream.send_reset(h2::Reason::CANCEL);
    });
    let sample = "tidegate_grpc_requests_total{route=\"calls\",grpc_status=\"1\"}";
    counted(&looked, sample, 1);
}

#[test]
fn a_client_that_leaves_before_the_answer_has_cancelled_its_call() {
    let backend = Backend::h2c(Manners::default(), server);
    let looked = start(&backend, "");
    run(async {
        let client = Http2::to(looked.tidegate.address).await;
        let (_response, mut stream) = client.begin(call("/calls/never-answered")).await;
        let until = tokio::time::Instant::now() + crate::house::PATIENCE;
        while backend.seen().is_empty() {
            assert!(tokio::time::Instant::now() < until, "the call never came");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        stream.send_reset(h2::Reason::CANCEL);
    });
    let sample = "tidegate_grpc_requests_total{route=\"calls\",grpc_status=\"1\"}";
    counted(&looked, sample, 1);
}

#[test]
fn the_access_log_has_the_status_in_each_format() {
    let backend = Backend::h2c(Manners::default(), server);
    for (format, denied, failed) in [
        ("json", "\"status\":200,", "\"grpc_status\":13"),
        ("text", " 200 ", " grpc_status 13"),
        ("combined", "\" 200 ", "\"-\" grpc_status=13"),
    ] {
        let log =
            format!("[log]\naccess = \"stdout\"\nformat = \"{format}\"\nsample_allowed = 1.0\n");
        let looked = start(&backend, &log);
        calls(
            &looked,
            &["/calls/trailers-13", "/calls/without-status", "/dead/x-0"],
        );
        eventually("three lines are written", || {
            looked.tidegate.stdout().lines().count() == 3
        });
        let text = looked.tidegate.stdout();
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].contains(failed) && lines[0].contains(denied),
            "{text}"
        );
        let without = match format {
            "json" => "\"grpc_status\":null",
            "text" => "grpc_status none",
            _ => "grpc_status=none",
        };
        assert!(lines[1].contains(without), "{text}");
        assert!(lines[2].contains("14"), "{text}");
    }
}

#[test]
fn an_answer_that_its_server_breaks_off_has_no_status() {
    let backend = Backend::h2c(Manners::default(), server);
    let looked = start(&backend, "");
    run(async {
        let client = Http2::to(looked.tidegate.address).await;
        let (response, mut stream) = client.begin(call("/calls/cut-off")).await;
        let mut answer = response.await.unwrap().into_body();
        answer.data().await.unwrap().unwrap();
        stream.send_data(Bytes::new(), true).unwrap();
        assert!(answer.data().await.is_none_or(|next| next.is_err()));
    });
    let sample = "tidegate_grpc_requests_total{route=\"calls\",grpc_status=\"none\"}";
    counted(&looked, sample, 1);
    let sample = "tidegate_upstream_grpc_requests_total{upstream=\"api\",grpc_status=\"none\"}";
    counted(&looked, sample, 1);
}

/// The only server of the upstream of this name, in the API.
fn server_of(looked: &Looked, upstream: &str) -> Value {
    let told = looked.json("/api/v1/upstreams");
    let mut upstreams = told["upstreams"].as_array().unwrap().iter();
    let found = upstreams.find(|one| one["name"] == upstream).unwrap();
    found["servers"][0].clone()
}

#[test]
fn a_server_that_fails_calls_is_failing_in_every_view() {
    let backend = Backend::h2c(Manners::default(), server);
    for (upstream, path) in [
        ("api", "/calls/trailers-14"),
        ("api", "/calls/head-13"),
        ("dead", "/dead/trailers-0"),
    ] {
        let looked = start(&backend, "");
        assert_eq!(server_of(&looked, upstream)["state"], "up");
        calls(&looked, &[path; 3]);
        eventually("the server is failing", || {
            server_of(&looked, upstream)["state"] == "failing"
        });
        let server = server_of(&looked, upstream);
        assert_eq!(
            (&server["up"], &server["failures"]),
            (&false.into(), &3.into())
        );
        let name = server["server"].as_str().unwrap();
        let labels = format!("{{upstream=\"{upstream}\",server=\"{name}\"}}");
        counted(&looked, &format!("tidegate_upstream_server_up{labels}"), 0);
        counted(
            &looked,
            &format!("tidegate_upstream_server_failures_total{labels}"),
            3,
        );
        let address = looked.address.to_string();
        let words = ["status", "--admin", &address];
        let told = crate::look::command(looked.tidegate.directory.path(), &words);
        let page = String::from_utf8(told.stdout).unwrap();
        let mut lines = page.lines();
        let line = lines.find(|line| line.contains(name)).unwrap_or_default();
        assert!(line.contains("failing"), "{page}");
    }
    let looked = start(&backend, "");
    calls(&looked, &["/calls/trailers-14"; 3]);
    // A status that is the client's fault, or a denial of the server's own, is an answer as well.
    calls(&looked, &["/calls/trailers-5"]);
    eventually("it is up again", || {
        server_of(&looked, "api")["state"] == "up"
    });
}

#[test]
fn a_server_that_fails_calls_is_ejected_as_with_an_http_status() {
    let backends = [(); 2].map(|()| Backend::h2c(Manners::default(), server));
    let [one, other] = backends.each_ref().map(Backend::h2c_url);
    let looked = Looked::start(&format!(
        "[upstream.api]\nservers = [\"{one}\", \"{other}\"]\n\
         [upstream.api.eject]\nfailures = 2\nstatus = [\"503\"]\n\
         [[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n"
    ));
    calls(&looked, &["/calls/trailers-14"; 12]);
    eventually("one is ejected", || {
        let told = looked.json("/api/v1/upstreams");
        let mut servers = told["upstreams"][0]["servers"].as_array().unwrap().iter();
        servers.any(|server| server["state"] == "ejected")
    });
}

/// The attribute of a span, as OTLP over HTTP has it: a key, and a value that is a number.
fn status_attribute(code: u8) -> Vec<u8> {
    let key = b"rpc.grpc.status_code";
    let mut bytes = vec![0x0a, u8::try_from(key.len()).unwrap()];
    bytes.extend(key);
    bytes.extend([0x12, 2, 0x18, code]);
    bytes
}

#[test]
fn spans_tell_the_status_of_a_call() {
    let collector = Upstream::ok();
    let backend = Backend::h2c(Manners::default(), server);
    let tracing = format!(
        "[tracing]\nendpoint = \"{}\"\nsample = 1.0\nevery = \"10ms\"\n",
        collector.url()
    );
    let looked = start(&backend, &tracing);
    for code in [0, 7, 14] {
        calls(&looked, &[&format!("/calls/trailers-{code}")]);
        let wanted = status_attribute(code);
        eventually("a span has the status", || {
            let seen = collector.seen();
            let has = |body: &Vec<u8>| body.windows(wanted.len()).any(|part| part == wanted);
            seen.iter().any(|export| has(&export.body))
        });
    }
}

/// Counts as an answer of HTTP, whatever the client calls its own content.
#[test]
fn an_answer_without_grpc_is_judged_by_http() {
    let plain = Upstream::ok();
    let broken = Upstream::saying("HTTP/1.1 500 Oops\r\ncontent-length: 5\r\n\r\ninner");
    let looked = Looked::start(&format!(
        "[upstream.api]\nservers = [\"{}\"]\n[upstream.broken]\nservers = [\"{}\"]\n\
         [error_page.own]\nstatus = [\"5xx\"]\nupstream_errors = true\nbody = \"the page\"\n\
         [[route]]\npath = \"/broken\"\nupstream = \"broken\"\nlimits = []\n\
         [[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n",
        plain.url(),
        broken.url()
    ));
    calls(&looked, &["/a"; 5]);
    let server = server_of(&looked, "api");
    assert_eq!(
        (&server["state"], &server["failures"]),
        (&"up".into(), &0.into())
    );
    let reply = calls(&looked, &["/broken"]).remove(0).unwrap();
    assert_eq!(reply.status, 500);
    assert_eq!(&reply.body[..], b"the page");
}
