//! HTTP/2 to upstreams, for clients that speak HTTP/1.1: how heads and bodies are translated, how
//! requests share connections, and what becomes of them when a server leaves or refuses.

mod dead;
mod pace;
mod through;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, Response};

use crate::backend::{Backend, Call, Manners};
use crate::house::{Answer, Client, PATIENCE, Tidegate};

const LIMIT: &str = "[limit.default]\nrate = \"1_000_000/day\"\nkey = \"global\"\n";

fn proxy(backend: &Backend, more: &str) -> Tidegate {
    Tidegate::start(&format!(
        "[log]\naccess = \"stdout\"\n[server]\nworkers = 1\n{LIMIT}\
         [[route]]\npath = \"/*\"\nupstream = \"api\"\n\
         [upstream.api]\nservers = [\"{}\"]\n{more}\n",
        backend.h2c_url()
    ))
}

fn polite() -> Manners {
    Manners::default()
}

/// Says back what it is sent.
async fn echo(mut call: Call) {
    let (content, _) = call.read().await;
    call.say(&String::from_utf8(content).unwrap());
}

/// `count` clients that ask at once, each `times` on a connection of its own.
fn ask_at_once(proxy: &Tidegate, count: usize, times: usize, request: &str) -> Vec<Answer> {
    let address = proxy.address;
    let ask = || {
        let mut client = Client::to(address);
        (0..times).map(|_| client.ask(request)).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..count).map(|_| scope.spawn(ask)).collect();
        asking
            .into_iter()
            .flat_map(|one| one.join().unwrap())
            .collect()
    })
}

#[test]
fn a_head_is_translated_both_ways() {
    let backend = Backend::h2c(polite(), |mut call: Call| async move {
        let response = Response::builder()
            .status(201)
            .header("x-many", "1")
            .header("x-many", "2")
            .header("set-cookie", "a=1")
            .header("set-cookie", "b=2")
            .header("content-length", "2")
            .body(())
            .unwrap();
        let mut stream = call.head(response).unwrap();
        stream.send_data(Bytes::from("ok"), true).unwrap();
    });
    let proxy = proxy(&backend, "");
    let mut client = proxy.connect();
    let answer = client.ask(
        "GET /a%2Fb?c=d&e HTTP/1.1\r\nHost: api.test:8080\r\nConnection: keep-alive, x-hop\r\n\
         X-Hop: 1\r\nKeep-Alive: 5\r\nTE: trailers, gzip\r\nCookie: a=b\r\nX-Kept: yes\r\n\r\n",
    );
    assert_eq!((answer.status, answer.text().as_str()), (201, "ok"));
    assert!(answer.head.starts_with("HTTP/1.1 201"), "{}", answer.head);
    assert_eq!(answer.header("x-many").as_deref(), Some("1, 2"));
    assert_eq!(answer.header("set-cookie").as_deref(), Some("a=1, b=2"));
    assert_eq!(answer.header("content-length").as_deref(), Some("2"));
    let via = answer.header("via").unwrap();
    assert!(via.starts_with("2.0 tidegate-"), "{via}");
    let seen = backend.seen().remove(0);
    assert_eq!(seen.uri(), "http://api.test:8080/a%2Fb?c=d&e");
    let headers = seen.headers();
    for name in [
        "host",
        "connection",
        "x-hop",
        "keep-alive",
        "transfer-encoding",
    ] {
        assert!(!headers.contains_key(name), "{name}");
    }
    assert_eq!(headers["te"], "trailers");
    assert_eq!(headers["cookie"], "a=b");
    assert_eq!(headers["x-kept"], "yes");
    assert_eq!(headers["x-forwarded-for"], "127.0.0.1");
    // HTTP/1.0 knows no host.
    client.send("GET / HTTP/1.0\r\n\r\n");
    assert!(client.rest().starts_with(b"HTTP/1."));
    let seen = backend.seen().remove(1);
    assert_eq!(
        seen.uri().authority().unwrap().as_str(),
        backend.address.to_string()
    );
}

#[test]
fn bodies_and_trailers_pass_both_ways() {
    let backend = Backend::h2c(polite(), |mut call: Call| async move {
        let (content, trailers) = call.read().await;
        let sum = trailers.map_or("none".to_owned(), |trailers| {
            trailers["x-in"].to_str().unwrap().to_owned()
        });
        let response = Response::builder().header("trailer", "x-sum").body(());
        let mut stream = call.head(response.unwrap()).unwrap();
        stream.send_data(content.into(), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", sum.parse().unwrap());
        stream.send_trailers(trailers).unwrap();
    });
    let proxy = proxy(&backend, "");
    let mut client = proxy.connect();
    client.send(
        "POST /row HTTP/1.1\r\nHost: test\r\nTE: trailers\r\nTrailer: X-In\r\n\
         Transfer-Encoding: chunked\r\nConnection: close, TE\r\n\r\n2\r\nhi\r\n0\r\nX-In: 7\r\n\r\n",
    );
    let text = String::from_utf8(client.rest()).unwrap().to_lowercase();
    assert!(text.ends_with("2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n"), "{text}");
    let mut client = proxy.connect();
    let answer = client.ask("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(answer.text(), "hello");
    assert_eq!(backend.seen()[1].headers()["content-length"], "5");
    assert!(!backend.seen()[0].headers().contains_key("content-length"));
}

#[test]
fn answers_without_content_are_framed_rightly() {
    let backend = Backend::h2c(polite(), |mut call: Call| async move {
        let (status, length) = match call.request.uri().path() {
            "/204" => (204, None),
            "/304" => (304, Some("9")),
            "/head" => (200, Some("9")),
            _ => (200, None),
        };
        let mut response = Response::builder().status(status);
        if let Some(length) = length {
            response = response.header("content-length", length);
        }
        let _ = call.respond.send_response(response.body(()).unwrap(), true);
    });
    let proxy = proxy(&backend, "");
    let mut client = proxy.connect();
    client.send("HEAD /head HTTP/1.1\r\nHost: test\r\n\r\n");
    let head = client.answer_to_head();
    assert_eq!(
        (head.status, head.header("content-length").as_deref()),
        (200, Some("9"))
    );
    for (path, status) in [("/204", 204), ("/304", 304), ("/", 200)] {
        let answer = client.ask(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
        assert_eq!(
            (answer.status, answer.body.len()),
            (status, 0),
            "{answer:?}"
        );
    }
}

#[test]
fn many_requests_share_one_connection() {
    let backend = Backend::h2c(polite(), echo);
    let proxy = proxy(&backend, "");
    let request = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\nhi";
    let answers = ask_at_once(&proxy, 60, 20, request);
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert_eq!(backend.seen().len(), 1200);
    assert_eq!(backend.connections(), 1);
}

#[test]
fn a_server_gets_no_more_streams_than_it_takes() {
    let most = Arc::new(AtomicUsize::new(0));
    let (now, seen) = (Arc::new(AtomicUsize::new(0)), most.clone());
    let manners = Manners {
        streams: Some(4),
        ..polite()
    };
    let backend = Backend::h2c(manners, move |mut call: Call| {
        let (now, seen) = (now.clone(), seen.clone());
        async move {
            seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // None is answered until all are there, but for those that never come.
            let until = Instant::now() + PATIENCE / 2;
            while seen.load(Ordering::SeqCst) < 16 && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            now.fetch_sub(1, Ordering::SeqCst);
            call.say("ok");
        }
    });
    let proxy = proxy(&backend, "");
    let answers = ask_at_once(&proxy, 16, 1, "GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    assert!(answers.iter().all(|answer| answer.status == 200));
    // None waited for another: there were connections for all.
    assert_eq!(most.load(Ordering::SeqCst), 16);
    assert_eq!(backend.connections(), 4);
}

#[test]
fn a_goodbye_fails_no_request() {
    let manners = Manners {
        goodbye_after: Some(25),
        ..polite()
    };
    let backend = Backend::h2c(manners, echo);
    let proxy = proxy(&backend, "");
    let request = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\nhi";
    let answers = ask_at_once(&proxy, 8, 100, request);
    let failed = answers.iter().filter(|answer| answer.status != 200).count();
    assert_eq!((answers.len(), failed), (800, 0));
    assert_eq!(backend.seen().len(), 800);
    assert!(
        backend.connections() >= 800 / 50,
        "{}",
        backend.connections()
    );
}

#[test]
fn what_a_server_refuses_is_sent_again_with_its_body_and_charged_once() {
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    let backend = Backend::h2c(polite(), move |mut call: Call| {
        let count = count.clone();
        async move {
            if count.fetch_add(1, Ordering::SeqCst) == 1 {
                let _ = call.request.body_mut().data().await;
                call.respond.send_reset(Reason::REFUSED_STREAM);
            } else {
                echo(call).await;
            }
        }
    });
    let proxy = proxy(&backend, "");
    let mut client = proxy.connect();
    let mut ask = |body: &str| {
        client.ask(format!(
            "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    };
    assert_eq!(ask("hi").status, 200);
    let first = ask("not idempotent at all");
    assert_eq!(
        (first.status, first.text().as_str()),
        (200, "not idempotent at all")
    );
    let second = ask("hi");
    let left = |answer: &Answer| -> u64 {
        answer
            .header("x-ratelimit-remaining")
            .unwrap()
            .parse()
            .unwrap()
    };
    assert_eq!(left(&first) - left(&second), 1, "charged once");
    assert_eq!(refused.load(Ordering::SeqCst), 4);
    assert_eq!(backend.connections(), 2, "not on the same one");
}

#[test]
fn a_refused_request_is_sent_again_only_as_a_retry() {
    let backend = Backend::h2c(polite(), |mut call: Call| async move {
        call.respond.send_reset(Reason::REFUSED_STREAM);
    });
    let get = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
    let never = proxy(&backend, "retries = 0");
    for _ in 0..20 {
        never.connect().ask(get).assert_problem(502);
    }
    assert_eq!((backend.seen().len(), backend.connections()), (20, 1));
    // Once at the same server, on another connection.
    let twice = proxy(&backend, "retries = 2\neject = false");
    twice.connect().ask(get).assert_problem(502);
    assert_eq!((backend.seen().len(), backend.connections()), (22, 3));
}

#[test]
fn a_reset_for_another_reason_is_no_invitation_to_send_again() {
    let backend = Backend::h2c(polite(), |mut call: Call| async move {
        let reason = match call.request.uri().path() {
            "/cancel" => Reason::CANCEL,
            "/calm" => Reason::ENHANCE_YOUR_CALM,
            _ => Reason::INTERNAL_ERROR,
        };
        call.respond.send_reset(reason);
    });
    let proxy = proxy(&backend, "");
    for (tried, path) in ["/cancel", "/calm", "/error"].iter().enumerate() {
        let post = format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n");
        proxy.connect().ask(post).assert_problem(502);
        assert_eq!(backend.seen().len(), tried + 1);
    }
    assert_eq!(backend.connections(), 1, "the connection is not to blame");
}

#[test]
fn an_answer_that_is_reset_is_never_complete() {
    let backend = Backend::h2c(polite(), |mut call: Call| async move {
        let mut stream = call.head(Response::new(())).unwrap();
        stream.send_data(Bytes::from("part of"), false).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        // Also with the one reason that sounds harmless.
        stream.send_reset(Reason::NO_ERROR);
    });
    let proxy = proxy(&backend, "");
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    let text = String::from_utf8(client.rest()).unwrap();
    assert!(
        text.contains("part of") && !text.ends_with("0\r\n\r\n"),
        "{text}"
    );
}

#[test]
fn an_answer_whose_stream_ends_in_a_frame_of_its_own_settles_its_request() {
    let backend = Backend::h2c(polite(), |mut call: Call| async move {
        let json = "{\"cost\":5}";
        let response = Response::builder()
            .header("content-type", "application/json")
            .header("content-length", json.len())
            .body(());
        let mut stream = call.head(response.unwrap()).unwrap();
        stream.send_data(Bytes::from(json), false).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let _ = stream.send_data(Bytes::new(), true);
    });
    let settling = Tidegate::start(&format!(
        "[server]\nworkers = 1\n{LIMIT}\
         [[route]]\npath = \"/*\"\nupstream = \"api\"\nsettle = \"response-json:cost\"\n\
         [upstream.api]\nservers = [\"{}\"]\n",
        backend.h2c_url()
    ));
    let left = || {
        let answer = settling.get("/");
        let left = answer.header("x-ratelimit-remaining").unwrap();
        left.parse::<u64>().unwrap()
    };
    assert_eq!([left(), left(), left()], [999_999, 999_994, 999_989]);
}
