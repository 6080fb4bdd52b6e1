//! Answers that an upstream does not bring to their end: the client gets what came of them, and
//! logs, metrics and the health of the server tell.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use http::Response;
use hyper::body::Bytes;
use socket2::SockRef;

use crate::admin::Looked;
use crate::backend::{Backend, Call, Manners};
use crate::house::{Client, Tidegate, Upstream, find};
use crate::http2::raw::{DATA, HEADERS, REQUEST, RST_STREAM, Raw};
use crate::probe::eventually;

/// Answers that end before their end, after the head and `abc`.
const ANSWERS: [&str; 4] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-T: v\n\n",
    "HTTP/1.0 200 OK\r\nContent-Length: 10\r\n\r\nabc",
];
const TIMES: usize = 30;

/// An upstream that sends this, and closes at once or resets.
fn cutting(answer: &'static str, resets: bool) -> Upstream {
    Upstream::start(move |_, stream: &mut TcpStream| {
        let _ = stream.write_all(answer.as_bytes());
        if resets {
            let _ = SockRef::from(&*stream).set_linger(Some(Duration::ZERO));
        }
        false
    })
}

fn before(upstream: &Upstream) -> Tidegate {
    Tidegate::start(&format!("upstream = \"{}\"\n", upstream.url()))
}

/// The line of the access log with this in it.
fn logged(looked: &Looked, part: &str) -> String {
    let find = || {
        let text = looked.tidegate.stdout();
        let line = text.lines().find(|line| line.contains(part));
        line.map(str::to_owned)
    };
    eventually("it is logged", || find().is_some());
    find().unwrap()
}

#[test]
fn what_came_is_written_before_the_connection_ends() {
    for (answer, resets) in ANSWERS
        .map(|answer| [(answer, false), (answer, true)])
        .concat()
    {
        let upstream = cutting(answer, resets);
        let proxy = before(&upstream);
        // The first is plain, the second and third are hyper's.
        for request in [
            "GET / HTTP/1.1\r\nHost: test\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\nxyz",
            "GET / HTTP/1.0\r\nHost: test\r\n\r\n",
        ] {
            for time in 0..TIMES {
                let mut client = Client::to(proxy.address);
                client.send(request);
                let got = client.rest();
                let text = String::from_utf8_lossy(&got);
                let all = format!("{answer:?}, resets {resets}, {request:?}, {time}: {text:?}");
                assert!(text.contains(" 200 OK\r\n"), "{all}");
                assert!(find(&got, b"abc").is_some(), "{all}");
                assert!(!text.ends_with("0\r\n\r\n"), "it looks complete: {all}");
            }
        }
    }
}

#[test]
fn a_stream_of_http_2_is_reset_behind_what_came() {
    const INTERNAL_ERROR: u32 = 2;
    for answer in ANSWERS {
        let upstream = cutting(answer, false);
        let proxy = before(&upstream);
        let mut raw = Raw::to(proxy.address, &[]);
        for stream in (1..2 * TIMES as u32).step_by(2) {
            raw.ask(stream, &REQUEST);
            let mut kinds = [HEADERS, DATA, RST_STREAM].into_iter();
            let mut content = Vec::new();
            let mut expected = kinds.next();
            while let Some(kind) = expected {
                let frame = raw.until(&[HEADERS, DATA, RST_STREAM]).unwrap();
                assert_eq!((frame.stream, frame.flags & 1), (stream, 0), "{frame:?}");
                match (kind, frame.kind) {
                    (DATA, RST_STREAM) => {
                        assert_eq!(content, b"abc", "{answer:?}");
                        assert_eq!(frame.error(), INTERNAL_ERROR);
                        expected = None;
                    }
                    (DATA, DATA) => content.extend(frame.payload),
                    _ => {
                        assert_eq!(kind, frame.kind, "{answer:?}");
                        expected = kinds.next();
                    }
                }
            }
        }
    }
}

/// curl throws away a head that it reads together with the reset.
#[test]
fn curl_gets_what_came_over_http_2() {
    let upstream = cutting(ANSWERS[0], false);
    let proxy = before(&upstream);
    for time in 0..TIMES {
        let output = Command::new("curl")
            .args(["--silent", "--http2-prior-knowledge", "--max-time", "20"])
            .args(["--write-out", " %{http_code} %{size_download}"])
            .arg(format!("http://{}/", proxy.address))
            .output()
            .unwrap();
        assert!(
            !output.status.success(),
            "{time}: an answer cut short is an error"
        );
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "abc 200 3", "{time}");
    }
}

#[test]
fn what_an_upstream_of_http_2_resets_arrives_as_far_as_it_came() {
    let backend = Backend::h2c(Manners::default(), |mut call: Call| async move {
        let mut stream = call.head(Response::new(())).unwrap();
        stream.send_data(Bytes::from("abc"), false).unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        stream.send_reset(h2::Reason::CANCEL);
    });
    let proxy = Tidegate::start(&format!("upstream = \"{}\"\n", backend.h2c_url()));
    for _ in 0..TIMES {
        let mut client = proxy.connect();
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        let text = String::from_utf8_lossy(&client.rest()).into_owned();
        assert!(
            text.contains(" 200 OK\r\n") && text.contains("abc"),
            "{text:?}"
        );
        assert!(!text.ends_with("0\r\n\r\n"), "it looks complete: {text:?}");
    }
}

#[test]
fn logs_and_metrics_tell_how_much_was_missing() {
    let upstream = cutting(ANSWERS[0], false);
    let log = "[log]\naccess = \"stdout\"\nformat = \"json\"\n";
    let looked = Looked::start(&format!("upstream = \"{}\"\n{log}", upstream.url()));
    let mut client = looked.tidegate.connect();
    client.send("GET /cut HTTP/1.1\r\nHost: test\r\n\r\n");
    client.rest();
    let line = logged(&looked, "/cut");
    for part in [
        "\"status\":200,\"bytes\":3,",
        "\"outcome\":\"truncated\",\"expected_bytes\":10,",
        "\"reason\":\"upstream_closed\"",
        &format!("\"server\":\"{}\",\"error\":\"", upstream.url()),
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let metrics = looked.get("/metrics").text();
    let labels = format!("upstream=\"{0}\",server=\"{0}\"", upstream.url());
    let sample = format!("tidegate_upstream_truncated_total{{{labels}}} 1\n");
    assert!(metrics.contains(&sample), "{metrics}");
    let told = looked.get("/api/v1/upstreams").text();
    assert!(told.contains("\"failures\":1"), "{told}");
    assert!(told.contains("\"truncated\":1"), "{told}");
}

#[test]
fn a_client_that_leaves_truncates_nothing() {
    let upstream = Upstream::start(|_, stream| {
        let _ = stream.write_all(ANSWERS[0].as_bytes());
        std::thread::park_timeout(crate::house::PATIENCE);
        false
    });
    let log = "[log]\naccess = \"stdout\"\nformat = \"json\"\nsample_allowed = 1.0\n";
    let looked = Looked::start(&format!("upstream = \"{}\"\n{log}", upstream.url()));
    let mut client = looked.tidegate.connect();
    client.send("GET /left HTTP/1.1\r\nHost: test\r\n\r\n");
    while !client.some().contains("abc") {}
    drop(client);
    let line = logged(&looked, "/left");
    assert!(line.contains("\"outcome\":\"unlimited\""), "{line}");
    let metrics = looked.get("/metrics").text();
    let count = metrics
        .lines()
        .find(|line| line.contains("truncated_total{"));
    assert!(count.is_some_and(|line| line.ends_with(" 0")), "{count:?}");
}

#[test]
fn a_server_that_truncates_is_left_alone() {
    let (bad, good) = (cutting(ANSWERS[0], false), Upstream::ok());
    let proxy = Tidegate::start(&format!(
        "[[route]]\npath = \"/*\"\nupstream = \"api\"\n[upstream.api]\n\
         servers = [\"{}\", \"{}\"]\neject = {{ failures = 3, for = \"60s\", max_for = \"60s\" }}\n",
        bad.url(),
        good.url()
    ));
    eventually("it is left alone", || {
        let mut client = proxy.connect();
        client.send("GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        client.rest();
        proxy
            .said()
            .iter()
            .any(|line| line.contains("gets no requests"))
    });
    let known = bad.seen().len();
    for _ in 0..20 {
        assert_eq!(proxy.get("/").text(), "ok");
    }
    assert_eq!(bad.seen().len(), known);
}

/// The requests under way go on with the settings from before.
#[test]
fn an_answer_that_is_cut_after_a_reload_is_counted() {
    let (go, wait) = mpsc::channel();
    let wait = Mutex::new(wait);
    let upstream = Upstream::start(move |_, stream: &mut TcpStream| {
        let _ = stream.write_all(ANSWERS[0].as_bytes());
        let _ = wait.lock().unwrap().recv();
        false
    });
    let url = upstream.url();
    let looked = Looked::start(&format!(
        "[[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n\
         [upstream.api]\nservers = [\"{url}\"]\ntimeout = \"50s\"\n"
    ));
    let mut client = looked.tidegate.connect();
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    let mut text = String::new();
    while !text.contains("abc") {
        text += &client.some();
    }
    let file = looked.tidegate.directory.path().join("proxy.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, config.replace("50s", "40s")).unwrap();
    looked.tidegate.signal("HUP");
    looked.tidegate.wait_for_line("reload: done");
    go.send(()).unwrap();
    client.rest();
    let sample =
        format!("tidegate_upstream_truncated_total{{upstream=\"api\",server=\"{url}\"}} 1\n");
    eventually("it is counted", || {
        looked.get("/metrics").text().contains(&sample)
    });
}
