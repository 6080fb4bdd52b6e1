//! Pages in place of error responses, by real sockets: from a file, from the configuration, by a
//! redirect, and from another server.

use std::io::Write as _;

use crate::house::{Answer, Client, Tidegate, Upstream};

const PAGE: &str = "HTTP/1.1 203 Non-Authoritative Information\r\ncontent-type: text/html\r\n\
                    x-ratelimit-limit: 7\r\nx-page: yes\r\ncontent-length: 8\r\n\
                    cache-control: max-age=600\r\netag: \"p\"\r\n\r\nthe page";
const BROKEN: &str = "HTTP/1.1 500 Internal Server Error\r\ncontent-type: text/x-own\r\n\
                      etag: \"x\"\r\nx-kept: yes\r\ncontent-length: 4\r\n\r\nours";

/// A port at which nothing listens.
const NOTHING: &str = "http://127.0.0.1:1";

fn start(lines: &str) -> Tidegate {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("50x.html"), "<h1>down</h1>").unwrap();
    Tidegate::start_in(directory, lines, &[])
}

fn told(answer: &Answer) -> (u16, String, String) {
    let content_type = answer.header("content-type").unwrap_or_default();
    (answer.status, content_type, answer.text())
}

#[test]
fn a_page_replaces_an_error_and_keeps_its_headers() {
    let proxy = start(&format!(
        "upstream = \"{NOTHING}\"\n[limit.default]\nrate = \"1/h\"\n\
         [error_page.down]\nstatus = [\"502\", \"503\"]\nfile = \"50x.html\"\n\
         [error_page.slow]\nstatus = [\"429\"]\nbody = \"slow down\"\n\
         [error_page.missing]\nstatus = [\"404\"]\nredirect = \"/home\"\n\
         [error_page.later]\nstatus = [\"5xx\"]\nbody = \"never\"\n\
         [[route]]\npath = \"/gone\"\nlimits = []\nrespond = {{ status = 404 }}\n\
         [[route]]\npath = \"/text\"\nlimits = []\nrespond = {{ status = 404, body = \"own\" }}\n\
         [[route]]\npath = \"/plain\"\nlimits = []\nerror_pages = []\n\
         [[route]]\npath = \"/later\"\nlimits = []\nerror_pages = [\"later\"]\n"
    ));
    let html = "text/html; charset=utf-8".to_owned();
    let down = proxy.get("/");
    assert_eq!(told(&down), (502, html, "<h1>down</h1>".to_owned()));
    assert_eq!(down.header("x-ratelimit-remaining").as_deref(), Some("0"));

    let denied = proxy.get_with("/", "Accept: text/html\r\n");
    let plain = "text/plain; charset=utf-8".to_owned();
    assert_eq!(told(&denied), (429, plain, "slow down".to_owned()));
    assert!(denied.header("retry-after").is_some(), "{denied:?}");
    assert_eq!(denied.header("cache-control").as_deref(), Some("no-store"));

    let gone = proxy.get("/gone");
    assert_eq!(told(&gone), (302, String::new(), String::new()));
    assert_eq!(gone.header("location").as_deref(), Some("/home"));
    assert_eq!(proxy.get("/text").text(), "own");
    assert_eq!(proxy.get("/later").text(), "never");
    let problem = proxy.get("/plain");
    assert_eq!(
        problem.header("content-type").as_deref(),
        Some("application/problem+json")
    );

    let mut client = proxy.connect();
    client.send("HEAD /later HTTP/1.1\r\nHost: test\r\n\r\n");
    let head = client.answer_to_head();
    assert_eq!(
        (head.status, head.header("content-length").as_deref()),
        (502, Some("5"))
    );
    // The connection goes on after it.
    assert_eq!(
        client
            .ask("GET /later HTTP/1.1\r\nHost: test\r\n\r\n")
            .text(),
        "never"
    );
}

#[test]
fn a_page_with_variables_tells_the_request_and_the_attempts() {
    let upstream = Upstream::saying(BROKEN);
    let directory = tempfile::tempdir().unwrap();
    let page = "<p>{header:x-tag}, {request_id}, {response_header:x-kept}\n</p>";
    std::fs::write(directory.path().join("made.html"), page).unwrap();
    let lines = format!(
        "[headers]\nrequest_id = \"x-request-id\"\n\
         [error_page.down]\nstatus = [\"502\"]\nvariables = true\n\
         body = \"{{upstream_addr}} {{upstream_status}} {{header:x-tag}}\"\n\
         [error_page.broken]\nstatus = [\"500\"]\nvariables = true\nupstream_errors = true\n\
         file = \"made.html\"\n\
         [error_page.missing]\nstatus = [\"404\"]\nvariables = true\nbody = \"{{host}}\"\n\
         [[route]]\npath = \"/down/*\"\nupstream = \"{NOTHING}\"\n\
         [[route]]\npath = \"/broken\"\nupstream = \"{}\"\n",
        upstream.url()
    );
    let proxy = Tidegate::start_in(directory, &lines, &[]);
    const TAG: &str = "X-Tag: <b>\r\n";
    let down = proxy.get_with("/down/a", TAG);
    assert_eq!(down.status, 502);
    assert_eq!(down.text(), "127.0.0.1:1 502 <b>");
    let broken = proxy.get_with("/broken", TAG);
    let id = broken.header("x-request-id").unwrap_or_default();
    assert_eq!(broken.text(), format!("<p>&lt;b&gt;, {id}, yes\n</p>"));
    // It has no route, so the page has no variables.
    let missing = proxy.get("/missing");
    assert_eq!(missing.status, 404);
    assert!(missing.text().contains("\"status\":404"), "{missing:?}");
}

#[test]
fn errors_of_upstreams_are_replaced_where_the_page_says_so() {
    let upstream = Upstream::saying(BROKEN);
    let proxy = start(&format!(
        "upstream = \"{}\"\n\
         [error_page.ours]\nstatus = [\"500\"]\nbody = \"proxy\"\n\
         [error_page.theirs]\nstatus = [\"500\"]\nbody = '{{\"error\": 1}}'\n\
         content_type = \"application/json\"\nanswer = 200\nupstream_errors = true\n\
         [[route]]\npath = \"/own/*\"\nerror_pages = [\"ours\"]\n",
        upstream.url()
    ));
    let replaced = proxy.get("/");
    let json = "application/json".to_owned();
    assert_eq!(told(&replaced), (200, json, "{\"error\": 1}".to_owned()));
    assert_eq!(replaced.header("x-kept").as_deref(), Some("yes"));
    assert_eq!(replaced.header("etag"), None);
    let kept = proxy.get("/own/x");
    assert_eq!(
        told(&kept),
        (500, "text/x-own".to_owned(), "ours".to_owned())
    );
}

#[test]
fn a_server_is_asked_for_the_page() {
    let pages = Upstream::saying(PAGE);
    let proxy = start(&format!(
        "upstream = \"{NOTHING}\"\n[limit.default]\nrate = \"100/h\"\n\
         [error_page.fixed]\nstatus = [\"502\"]\nupstream = \"{url}\"\npath = \"/pages/502\"\n\
         [error_page.same]\nstatus = [\"502\"]\nupstream = \"{url}\"\nanswer = \"upstream\"\n\
         [error_page.dead]\nstatus = [\"502\"]\nupstream = \"{NOTHING}\"\n\
         [[route]]\npath = \"/same/*\"\nerror_pages = [\"same\"]\n\
         [[route]]\npath = \"/dead/*\"\nerror_pages = [\"dead\"]\n",
        url = pages.url()
    ));
    let mut client = proxy.connect();
    let post = |path: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: test\r\nX-Secret: 1\r\nContent-Length: 4\r\n\r\nbody"
        )
    };
    let fixed = client.ask(post("/a"));
    let html = "text/html".to_owned();
    assert_eq!(told(&fixed), (502, html.clone(), "the page".to_owned()));
    assert_eq!(fixed.header("x-page").as_deref(), Some("yes"));
    // An error of the proxy is for one client, whatever the page's server says.
    assert_eq!(fixed.header("cache-control").as_deref(), Some("no-store"));
    assert_eq!(fixed.header("etag"), None);
    // The limits are those of the proxy.
    assert_eq!(fixed.header("x-ratelimit-limit").as_deref(), Some("100"));

    let same = client.ask(post("/same/b?c=d"));
    assert_eq!(told(&same), (203, html, "the page".to_owned()));
    let dead = client.ask(post("/dead/x"));
    assert_eq!(
        dead.header("content-type").as_deref(),
        Some("application/problem+json")
    );
    let seen = pages.seen();
    let heads: Vec<&str> = seen
        .iter()
        .map(|one| one.head.lines().next().unwrap())
        .collect();
    assert_eq!(
        heads,
        ["GET /pages/502 HTTP/1.1", "GET /same/b?c=d HTTP/1.1"]
    );
    assert!(seen.iter().all(|one| one.header("x-secret").is_none()));
    assert!(seen.iter().all(|one| one.body.is_empty()));
}

#[test]
fn a_response_that_cannot_be_a_page_leaves_the_error() {
    let pages = Upstream::saying("HTTP/1.1 304 Not Modified\r\ncontent-length: 8\r\n\r\n");
    let proxy = start(&format!(
        "upstream = \"{NOTHING}\"\n\
         [error_page.page]\nstatus = [\"502\"]\nupstream = \"{}\"\n",
        pages.url()
    ));
    let mut client = proxy.connect();
    for _ in 0..2 {
        let answer = client.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(answer.status, 502);
        assert!(answer.text().contains("Bad Gateway"), "{answer:?}");
    }
    assert_eq!(pages.seen().len(), 2);
}

#[test]
fn pages_that_lead_back_to_the_proxy_end() {
    let directory = tempfile::tempdir().unwrap();
    let port = crate::support::free_port();
    let proxy = Tidegate::start_listening(
        directory,
        &format!("127.0.0.1:{port}"),
        &format!(
            "upstream = \"{NOTHING}\"\n\
             [error_page.loop]\nstatus = [\"502\"]\nupstream = \"http://localhost:{port}\"\n"
        ),
    );
    let mut client = Client::to(proxy.address);
    let answer = client.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(answer.status, 502);
}

#[test]
fn a_page_in_place_of_an_upstreams_error_leaves_its_connection_open() {
    let upstream = Upstream::saying(BROKEN);
    let proxy = start(&format!(
        "upstream = \"{}\"\n[server]\nworkers = 1\n\
         [error_page.ours]\nstatus = [\"500\"]\nbody = \"page\"\nanswer = 200\n\
         upstream_errors = true\n",
        upstream.url()
    ));
    let ask = || {
        let page = proxy.get("/");
        assert_eq!(page.text(), "page");
        assert!(
            page.head.starts_with("HTTP/1.1 200 OK\r\n"),
            "{}",
            page.head
        );
        upstream.connections()
    };
    assert_eq!(ask(), ask());
}

#[test]
fn the_page_of_a_server_holds_the_slot_and_has_no_removed_headers() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\nserver: secret\r\ncontent-length: 100000000\r\n\r\n";
    let pages = Upstream::start(|_, stream| {
        let piece = vec![b'x'; 1 << 20];
        let sent = stream.write_all(HEAD.as_bytes());
        sent.is_ok() && (0..95).all(|_| stream.write_all(&piece).is_ok())
    });
    let proxy = start(&format!(
        "upstream = \"{NOTHING}\"\n[limit.one]\nconcurrent = 1\nkey = \"global\"\n\
         [error_page.large]\nstatus = [\"502\"]\nupstream = \"{}\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"one\"]\nheaders_down = {{ server = false }}\n",
        pages.url()
    ));
    let mut first = proxy.connect();
    first.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    let head = first.head().unwrap();
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert!(!head.contains("secret"), "{head}");
    assert_eq!(proxy.get("/").status, 429);
}
