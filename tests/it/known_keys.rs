//! Keys that clients invent: a random key for each request earns nothing, unless the file says that
//! every key is believed.

use http::Request;
use http_body_util::Empty;
use tidegate_limiter::Limiter;
use tower::{Layer, ServiceExt, service_fn};

use crate::admin::Looked;
use crate::bypass::guarded;
use crate::house::{Tidegate, Upstream};
use crate::look::command;
use crate::reload::Gate;
use crate::support::on_a_worker;

/// Requests with a key of their own each.
const INVENTED: usize = 60;
const LIMIT: &str = "[limit.default]\nrate = \"10/h\"\nkey = \"api_key or ip\"\n";

fn invented(proxy: &Tidegate) -> Vec<u16> {
    let ask = |number| {
        let header = format!("X-Api-Key: {number:08x}-made-up\r\n");
        proxy.get_with("/", &header).status
    };
    (0..INVENTED).map(ask).collect()
}

fn count(statuses: &[u16], status: u16) -> usize {
    statuses.iter().filter(|one| **one == status).count()
}

/// A proxy with a file of keys.
fn knowing(upstream: &Upstream, keys: &str, rules: &str) -> Tidegate {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("keys.txt"), keys).unwrap();
    let config = format!("upstream = \"{}\"\n{rules}", upstream.url());
    Tidegate::start_in(directory, &config, &[])
}

fn status(proxy: &Tidegate, key: &str) -> u16 {
    let header = format!("X-Api-Key: {key}\r\n");
    proxy.get_with("/", &header).status
}

#[test]
fn a_key_counts_also_with_underscores_in_the_name_of_its_header() {
    let upstream = Upstream::ok();
    let rules = "[api_key]\nknown = \"keys.txt\"\n\
                 [limit.default]\nrate = \"2/h\"\nkey = \"api_key or ip\"\n";
    let proxy = knowing(&upstream, "k1 acme\n", rules);
    let ask = |headers: &str| proxy.get_with("/", headers).status;
    assert_eq!(ask("X_Api_Key: k1\r\n"), 200);
    assert_eq!(ask("X-Api-Key: k1\r\nX_API-KEY: k1\r\n"), 200);
    for other in ["X-Api-Key", "X_Api_Key", "X_Api-Key"] {
        assert_eq!(ask(&format!("{other}: k1\r\n")), 429, "{other}");
    }
    assert_eq!(ask("X-Api-Key: k2\r\nX_Api_Key: k1\r\n"), 400);
    assert_eq!(ask(""), 200, "nothing has counted by the address");
}

#[test]
fn invented_keys_share_the_budget_of_their_address() {
    let upstream = Upstream::ok();
    let untold = guarded(&upstream, LIMIT);
    untold.wait_for_line("api keys   none is known");
    let known = format!("[api_key]\nknown = \"keys.txt\"\n{LIMIT}");
    for proxy in [untold, knowing(&upstream, "k1 acme\n", &known)] {
        let statuses = invented(&proxy);
        assert_eq!((count(&statuses, 200), count(&statuses, 429)), (10, 50));
        assert_eq!(proxy.get("/").status, 429, "it is the address's");
    }
    let proxy = knowing(&upstream, "k1 acme\n", &known);
    assert_eq!(count(&invented(&proxy), 200), 10);
    for _ in 0..10 {
        assert_eq!(status(&proxy, "k1"), 200, "it has a budget of its own");
    }
    assert_eq!(status(&proxy, "k1"), 429);
}

#[test]
fn unknown_keys_are_refused_or_believed_where_the_file_says_so() {
    let upstream = Upstream::ok();
    let unknown = |word: &str| {
        let rules = format!("[api_key]\nknown = \"keys.txt\"\nunknown = \"{word}\"\n{LIMIT}");
        knowing(&upstream, "k1 acme\n", &rules)
    };
    let proxy = unknown("deny");
    assert_eq!(count(&invented(&proxy), 401), INVENTED);
    let answer = proxy.get_with("/", "X-Api-Key: made-up\r\n");
    let type_of = answer.header("content-type");
    assert_eq!(type_of.as_deref(), Some("application/problem+json"));
    assert!(answer.header("www-authenticate").is_some());
    assert!(answer.text().contains("the API key is not known"));
    // Nothing was counted: the key's budget and the address's are whole.
    for _ in 0..10 {
        assert_eq!((status(&proxy, "k1"), proxy.get("/").status), (200, 200));
    }
    assert_eq!((status(&proxy, "k1"), proxy.get("/").status), (429, 429));
    assert_eq!(upstream.seen().len(), 20);

    let proxy = unknown("trust");
    assert_eq!(count(&invented(&proxy), 200), INVENTED);

    let unlimited = "[limit.default]\nrate = \"unlimited\"\nkey = \"api_key or ip\"\n";
    let rules = format!("[api_key]\nknown = \"keys.txt\"\nunknown = \"deny\"\n{unlimited}");
    let proxy = knowing(&upstream, "k1 acme\n", &rules);
    let statuses = [
        status(&proxy, "k1"),
        status(&proxy, "made-up"),
        proxy.get("/").status,
    ];
    assert_eq!(statuses, [200, 401, 200]);
}

#[test]
fn a_limit_by_address_beside_holds_where_every_key_is_believed() {
    let upstream = Upstream::ok();
    let rules = format!(
        "[api_key]\nunknown = \"trust\"\n{LIMIT}[limit.ip]\nrate = \"30/h\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"default\", \"ip\"]\n"
    );
    let statuses = invented(&guarded(&upstream, &rules));
    assert_eq!((count(&statuses, 200), count(&statuses, 429)), (30, 30));
}

#[test]
fn a_reload_adds_and_removes_keys_at_once() {
    let gate = Gate::start("upstream = \"$UPSTREAM\"\n");
    let folder = gate.proxy.directory.path().to_owned();
    let keys = |text: &str| std::fs::write(folder.join("keys.txt"), text).unwrap();
    let file = "upstream = \"$UPSTREAM\"\n[api_key]\nknown = \"keys.txt\"\n[limit.default]\n\
                rate = \"2/h\"\nkey = \"api_key or ip\"\n";
    keys("k1 acme\n");
    gate.reload(file);
    // One connection, whose head is remembered once it was denied.
    let mut client = gate.proxy.connect();
    let mut ask = |key: &str| {
        let head = format!("GET / HTTP/1.1\r\nHost: test\r\nX-Api-Key: {key}\r\n\r\n");
        client.ask(head).status
    };
    assert_eq!([(); 5].map(|()| ask("k2")), [200, 200, 429, 429, 429]);
    assert_eq!(ask("k1"), 200, "known from the beginning");
    keys("k1 acme\nk2\n");
    let said = gate.hang_up();
    assert!(
        said.iter().any(|line| line.contains("keys.txt")),
        "{said:?}"
    );
    assert_eq!([(); 3].map(|()| ask("k2")), [200, 200, 429]);
    assert_eq!([(); 3].map(|()| ask("k2")), [429; 3], "remembered");
    keys("k1 acme\n");
    gate.hang_up();
    assert_eq!(ask("k2"), 429, "by its address again, which is used up");
    assert_eq!(ask("k1"), 200, "its count went on");
    assert_eq!(ask("k1"), 429);
    // A file with a mistake changes nothing.
    keys("k1 acme pro anchor=32\n");
    let said = gate.hang_up();
    assert!(
        said.iter().any(|line| line.contains("nothing was changed")),
        "{said:?}"
    );
}

#[test]
fn a_line_of_known_keys_says_a_tier() {
    let upstream = Upstream::ok();
    let rules = "[api_key]\nknown = \"keys.txt\"\n[limit.default]\nrate = \"1/h\"\n\
                 key = \"api_key or ip\"\ntiers = { pro = \"3/h\" }\n";
    let hashed = "sha256:b9f195c5cc7ef6afadbfbc42892ad47d3b24c6bc94bb510c4564a90a14e8b799";
    let keys = format!("k1 acme pro\nk2 - pro\nk3 small\n{hashed} hashed pro\n");
    let proxy = knowing(&upstream, &keys, rules);
    let passes = |key: &str| (0..5).filter(|_| status(&proxy, key) == 200).count();
    let keys = ["k1", "k2", "k3", "swordfish", "made-up", "made-up-2"];
    assert_eq!(keys.map(passes), [3, 3, 1, 3, 1, 0]);
}

#[test]
fn several_keys_are_refused_however_they_are_written() {
    let upstream = Upstream::ok();
    let proxy = knowing(
        &upstream,
        "k1\nk2\n",
        &format!("[api_key]\nknown = \"keys.txt\"\n{LIMIT}"),
    );
    for (headers, expected) in [
        ("X-Api-Key: k1\r\n", 200),
        ("X-Api-Key: k1, k1\r\n", 200),
        ("X-Api-Key: k1,k2\r\n", 400),
        ("X-Api-Key: k1\r\nX-Api-Key: k2\r\n", 400),
        ("Authorization: Bearer k1, Bearer k2\r\n", 400),
        (
            "Authorization: Bearer k1\r\nAuthorization: Bearer k1\r\n",
            400,
        ),
        (
            "Authorization: Basic eDp5\r\nAuthorization: Bearer k1\r\n",
            400,
        ),
        ("X-Api-Key: made-up\r\nAuthorization: Bearer k1\r\n", 200),
    ] {
        assert_eq!(proxy.get_with("/", headers).status, expected, "{headers}");
    }
    let open = guarded(&upstream, "");
    let two = "Authorization: Basic eDp5\r\nAuthorization: Basic eDp5\r\n";
    assert_eq!(
        open.get_with("/", two).status,
        400,
        "without a limit as well"
    );
}

#[test]
fn operators_are_told_that_a_key_is_not_known() {
    let upstream = Upstream::ok();
    let rules = format!("admin = \"127.0.0.1:0\"\n[api_key]\nknown = \"keys.txt\"\n{LIMIT}");
    let proxy = knowing(&upstream, "k1 acme\n", &rules);
    let folder = proxy.directory.path();
    let explained = |key: &str| {
        let header = format!("x-api-key: {key}");
        let output = command(folder, &["explain", "GET", "/", "-H", &header]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let known = explained("k1-but-not-really");
    assert!(known.contains("by api_key or ip: ip = "), "{known}");
    assert!(known.contains("the API key is not known"), "{known}");
    let known = explained("k1");
    assert!(known.contains("known as acme"), "{known}");
}

#[test]
fn a_layer_knows_the_same_keys() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "k1\n").unwrap();
    for (source, expected) in [
        (String::new(), (10, 0)),
        (format!("known = \"{}\"\n", keys.display()), (10, 0)),
        (
            format!("known = \"{}\"\nunknown = \"deny\"\n", keys.display()),
            (0, INVENTED),
        ),
        ("unknown = \"trust\"\n".to_owned(), (INVENTED, 0)),
    ] {
        let text = format!("[api_key]\n{source}{LIMIT}");
        on_a_worker(async {
            let limiter = Limiter::from_toml("limits.toml", &text).unwrap();
            let layer = limiter.layer(|_| Some([127, 0, 0, 1].into()));
            let service = layer.layer(service_fn(|_: Request<Empty<bytes::Bytes>>| async {
                Ok::<_, std::convert::Infallible>(http::Response::new(Empty::<bytes::Bytes>::new()))
            }));
            let mut statuses = Vec::new();
            for number in 0..INVENTED {
                let request = Request::get("/")
                    .header("host", "test")
                    .header("x-api-key", format!("made-up-{number}"))
                    .body(Empty::new())
                    .unwrap();
                let response = service.clone().oneshot(request).await.unwrap();
                statuses.push(response.status().as_u16());
            }
            let counted = (count(&statuses, 200), count(&statuses, 401));
            assert_eq!(counted, expected, "{source}");
            let two = Request::get("/")
                .header("host", "test")
                .header("authorization", "Bearer k1")
                .header("authorization", "Bearer k1")
                .body(Empty::new())
                .unwrap();
            let refused = service.clone().oneshot(two).await.unwrap();
            assert_eq!(refused.status().as_u16(), 400, "{source}");
        });
    }
}

#[test]
fn the_metrics_tell_how_many_keys_are_known_and_whether_their_file_was_read() {
    let upstream = Upstream::ok();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keys.txt");
    std::fs::write(&file, "k1 acme\nk2 bolt\n").unwrap();
    let looked = Looked::start(&format!(
        "upstream = \"{}\"\n[api_key]\nknown = \"{}\"\n{LIMIT}",
        upstream.url(),
        file.display()
    ));
    let sample = |name: &str| {
        let text = looked.get("/metrics").text();
        let line = text.lines().find(|line| line.starts_with(name));
        line.map(|line| line[name.len()..].trim().to_owned())
    };
    let successful = "tidegate_config_last_reload_successful ";
    assert_eq!(sample("tidegate_known_keys ").as_deref(), Some("2"));
    std::fs::write(&file, "k1 acme\nk2 bolt\nk3 crew\n").unwrap();
    looked.tidegate.signal("HUP");
    looked.wait_until("the file is read again", |_| {
        sample("tidegate_known_keys ").as_deref() == Some("3")
    });
    std::fs::write(&file, "k1 acme one two three four\n").unwrap();
    looked.tidegate.signal("HUP");
    looked.wait_until("the failure is told", |_| {
        sample(successful).as_deref() == Some("0")
    });
    assert_eq!(sample("tidegate_known_keys ").as_deref(), Some("3"));
    let none = Looked::start(&format!("upstream = \"{}\"\n", upstream.url()));
    assert!(!none.get("/metrics").text().contains("tidegate_known_keys"));
}

#[test]
fn an_empty_hash_removes_no_key() {
    let directory = tempfile::tempdir().unwrap();
    let words = ["keys", "remove", "acme", "--id", ""];
    let refused = crate::look::command(directory.path(), &words);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}
