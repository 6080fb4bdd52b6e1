//! `[access]`, and `access` of a route: clients that are refused before they are counted.

use crate::house::{Answer, Tidegate, Upstream};
use crate::support::RedisServer;

fn proxy(upstream: &Upstream, access: &str, route: &str) -> Tidegate {
    Tidegate::start(&format!(
        "trusted_proxies = \"127.0.0.1\"\n{access}\n[limit.all]\nrate = \"2/day\"\nkey = \"global\"\n\
         [upstream.app]\nservers = \"{}\"\n\
         [[route]]\npath = \"/*\"\nupstream = \"app\"\nlimits = [\"all\"]\n{route}\n",
        upstream.url()
    ))
}

fn ask_as(proxy: &Tidegate, client: &str, path: &str) -> Answer {
    proxy.get_with(path, &format!("X-Forwarded-For: {client}\r\n"))
}

#[test]
fn refused_clients_are_neither_counted_nor_sent_on() {
    let upstream = Upstream::ok();
    let access = "[access]\nallow = [\"192.0.2.0/24\", \"2001:db8::/32\"]\ndeny = \"192.0.2.66\"";
    let proxy = proxy(&upstream, access, "");
    for client in [
        "198.51.100.1",
        "192.0.2.66",
        "2001:db9::1",
        "::ffff:192.0.2.66",
    ] {
        let refused = ask_as(&proxy, client, "/");
        assert_eq!(refused.status, 403, "{client}");
        assert!(refused.header("ratelimit").is_none(), "{client}");
        refused.assert_problem(403);
    }
    assert!(upstream.seen().is_empty());
    assert_eq!(ask_as(&proxy, "192.0.2.1", "/").status, 200);
    assert_eq!(ask_as(&proxy, "2001:db8::9", "/").status, 200);
    // The budget of two is used up. A refused client is still told that it is refused.
    assert_eq!(ask_as(&proxy, "192.0.2.1", "/").status, 429);
    assert_eq!(ask_as(&proxy, "192.0.2.66", "/").status, 403);
}

#[test]
fn a_client_must_pass_the_list_of_the_route_too() {
    let upstream = Upstream::ok();
    let route = "access = { allow = \"192.0.2.0/24\", deny = \"192.0.2.8/29\" }\n\
        [[route]]\npath = \"/open\"\nupstream = \"app\"\nlimits = []";
    let proxy = proxy(&upstream, "[access]\ndeny = \"192.0.2.1\"", route);
    let statuses = |path| {
        ["192.0.2.1", "192.0.2.2", "192.0.2.9", "198.51.100.1"]
            .map(|client| ask_as(&proxy, client, path).status)
    };
    assert_eq!(statuses("/"), [403, 200, 403, 403]);
    assert_eq!(statuses("/open"), [403, 200, 200, 200]);
}

#[test]
fn files_have_networks_and_an_empty_allow_list_serves_no_client() {
    let upstream = Upstream::ok();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("deny.txt");
    std::fs::write(&file, "# bad\n203.0.113.0/24\n\n198.51.100.7\n").unwrap();
    let from_file = proxy(
        &upstream,
        &format!("[access]\ndeny_file = \"{}\"", file.display()),
        "",
    );
    assert_eq!(ask_as(&from_file, "203.0.113.9", "/").status, 403);
    assert_eq!(ask_as(&from_file, "198.51.100.7", "/").status, 403);
    assert_eq!(ask_as(&from_file, "198.51.100.8", "/").status, 200);
    let closed = proxy(&upstream, "[access]\nallow = []", "");
    assert_eq!(ask_as(&closed, "198.51.100.8", "/").status, 403);
}

#[test]
fn a_refused_client_is_not_asked_for_its_body() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let proxy = Tidegate::start(&format!(
        "trusted_proxies = \"127.0.0.1\"\n[store]\nurl = \"redis://127.0.0.1:{}\"\n\
         [access]\ndeny = \"192.0.2.66\"\n\
         [limit.all]\nrate = \"9/day\"\nkey = \"body:user\"\n\
         [limit.every]\nrate = \"99/day\"\nkey = \"global\"\n\
         [upstream.app]\nservers = \"{}\"\n\
         [[route]]\npath = \"/*\"\nupstream = \"app\"\nlimits = [\"all\", \"every\"]\n",
        redis.port(),
        upstream.url()
    ));
    let mut client = proxy.connect();
    let head = "POST / HTTP/1.1\r\nHost: t\r\nX-Forwarded-For: 192.0.2.66\r\n\
                Content-Length: 20\r\nExpect: 100-continue\r\n\r\n";
    client.send(head);
    let answer = client.answer();
    assert_eq!(answer.status, 403);
    assert!(upstream.seen().is_empty());
}
