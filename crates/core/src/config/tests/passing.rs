//! What routes do with their requests on their way: paths, bodies.

use super::super::*;
use super::{check, codes, fine};
use crate::route::{Action, HeaderChange, HeaderText, RespondBody, Route, Target};

/// One route at `path`, with these settings.
fn with(path: &str, settings: &str) -> String {
    format!(
        "upstream = \"http://10.0.0.1\"\n[server]\nmax_body = \"1MiB\"\n\
         [[route]]\nname = \"it\"\npath = \"{path}\"\n{settings}\n"
    )
}

fn route(path: &str, settings: &str) -> Route {
    let config = fine(&with(path, settings));
    let route = config.routes.iter().find(|route| &*route.name == "it");
    route.unwrap().clone()
}

#[test]
fn a_prefix_is_what_the_path_begins_with() {
    let prefix = |path, settings| {
        let prefix = route(path, settings).strip_prefix;
        prefix.map(|prefix| prefix.as_str().to_owned())
    };
    let api = Some("/api".to_owned());
    assert_eq!(prefix("/api/*", ""), None);
    assert_eq!(prefix("/api/*", "strip_prefix = \"/api\""), api);
    assert_eq!(prefix("/api", "strip_prefix = \"/api/\""), api);
    assert_eq!(prefix("/api/{id}", "strip_prefix = \"/%61pi\""), api);
    let refused = |path, prefix| codes(&with(path, &format!("strip_prefix = \"{prefix}\"")));
    for (path, wrong) in [
        ("/*", "/api"),
        ("/apis/*", "/api"),
        ("/{any}/x", "/api"),
        ("/api", "/api/v1"),
    ] {
        assert_eq!(refused(path, wrong), ["T124"], "{path} {wrong}");
    }
    for malformed in ["api", "/", "/a/../b", "/a%2fb", "/{id}", "/*"] {
        assert_eq!(refused("/*", malformed), ["T115"], "{malformed}");
    }
    assert_eq!(codes(&with("/*", "strip_prefix = 1")), ["T103"]);
}

#[test]
fn a_prefix_that_is_not_there_is_shown_beside_the_path() {
    check(
        &with("/v2/*", "strip_prefix = \"/api\""),
        r#"error[T124]: not every path begins with this
 --> proxy.toml:7:16
  |
6 | path = "/v2/*"
  |        ------- paths of the route
7 | strip_prefix = "/api"
  |                ^^^^^^ is taken off
help: write for example `path = "/api/*"`
"#,
    );
}

#[test]
fn a_body_is_bounded_by_its_route_or_by_the_server() {
    let bound = |settings| route("/*", settings).body_limit;
    assert_eq!(bound(""), Some(1 << 20));
    assert_eq!(bound("body_limit = \"10MiB\""), Some(10 << 20));
    assert_eq!(bound("body_limit = 0"), Some(0));
    assert_eq!(bound("body_limit = \"unlimited\""), None);
    assert_eq!(codes(&with("/*", "body_limit = \"much\"")), ["T110"]);
    assert_eq!(codes(&with("/*", "body_limit = true")), ["T103"]);
}

#[test]
fn limits_alone_pass_nothing_on() {
    let limits = |settings: &str| {
        let text = format!("[limit.default]\nrate = \"1/s\"\n[[route]]\npath = \"/a\"\n{settings}");
        let found = parse_limits("limits.toml", &text, &|_| None).unwrap_err();
        let codes: Vec<_> = found.list.iter().map(|one| one.code.as_str()).collect();
        codes
    };
    assert_eq!(limits("strip_prefix = \"/a\""), ["T101"]);
    assert_eq!(limits("body_limit = 1"), ["T101"]);
}

/// What the headers of these changes become, as they are written.
fn changed(changes: &[HeaderChange]) -> Vec<String> {
    let text = |text: &HeaderText| match text {
        HeaderText::Fixed(value) => value.to_str().unwrap().to_owned(),
        HeaderText::Made(_) => "made".to_owned(),
    };
    let line = |change: &HeaderChange| match &change.action {
        Action::Set(value) => format!("{}={}", change.name, text(value)),
        Action::Add(value) => format!("+{}={}", change.name, text(value)),
        Action::Remove => format!("-{}", change.name),
    };
    changes.iter().map(line).collect()
}

#[test]
fn headers_are_set_added_and_removed() {
    let table = r#"{ X-A = "1", "+x-a" = " {host} ", x-b = false, x-c = "${RATE}", x-d = "" }"#;
    let wanted = ["x-a=1", "+x-a=made", "-x-b", "x-c=7/min", "x-d="];
    let up = route("/*", &format!("headers_up = {table}"));
    assert_eq!(changed(&up.headers_up), wanted);
    let down = route("/*", &format!("headers_down = {table}"));
    assert_eq!(changed(&down.headers_down), wanted);
}

#[test]
fn what_frames_a_message_cannot_be_set() {
    for name in [
        "content-length",
        "Transfer-Encoding",
        "connection",
        "upgrade",
        "te",
        "trailer",
        "+keep-alive",
        "expect",
    ] {
        for (key, value) in [("headers_up", "\"1\""), ("headers_down", "\"1\"")] {
            let text = with("/*", &format!("{key} = {{ \"{name}\" = {value} }}"));
            assert_eq!(codes(&text), ["T116"], "{key} {name}");
        }
    }
    let removed = with("/*", "headers_up = { content-length = false }");
    assert_eq!(codes(&removed), ["T116"]);
    check(
        &with("/*", "headers_up = { host = \"b.example\" }"),
        r#"error[T116]: `host` cannot be changed here
 --> proxy.toml:7:16
  |
7 | headers_up = { host = "b.example" }
  |                ^^^^ an upstream is asked for its own host
help: write `host` in `[upstream.NAME]`
"#,
    );
}

#[test]
fn changes_that_cannot_be_made_are_refused() {
    for (settings, code) in [
        ("headers_up = { x-a = true }", "T103"),
        ("headers_up = { x-a = 1 }", "T103"),
        ("headers_up = { \"+x-a\" = false }", "T103"),
        ("headers_up = \"x-a\"", "T103"),
        ("headers_up = { \"x a\" = \"1\" }", "T116"),
        ("headers_up = { x-a = \"1\", X-A = \"2\" }", "T119"),
        ("headers_up = { x-a = \"a\\r\\nb\" }", "T125"),
        ("headers_up = { x-a = \"{hos}\" }", "T125"),
        ("headers_up = { x-a = \"{rest\" }", "T125"),
        ("headers_up = { x-a = \"{path:id}\" }", "T123"),
        ("headers_down = { x-a = \"{path:id}\" }", "T123"),
    ] {
        assert_eq!(codes(&with("/*", settings)), [code], "{settings}");
    }
    let exact = |text| {
        codes(&with(
            "/a/{id}",
            &format!("headers_up = {{ x-a = \"{text}\" }}"),
        ))
    };
    assert_eq!(exact("{path:id}"), [] as [&str; 0]);
    assert_eq!(exact("{rest}"), ["T123"]);
    let many: String = (0..65).map(|n| format!("x-{n} = \"1\", ")).collect();
    let many = with("/*", &format!("headers_up = {{ {many} }}"));
    assert_eq!(codes(&many), ["T105"]);
    let settles = "settle = \"response-header:x-cost\"\nlimits = [\"1/s\"]\n\
                   headers_down = { x-cost = false }";
    assert_eq!(codes(&with("/*", settles)), ["T124"]);
}

#[test]
fn a_path_gets_another_beginning() {
    let replaced = "replace_prefix = { from = \"/a/\", to = \"/b\", location = true }";
    let replacement = route("/a/*", replaced).replace_prefix.unwrap();
    assert_eq!((replacement.location, replacement.cookies), (true, false));
    for (path, settings, code) in [
        ("/c/*", replaced.to_owned(), "T124"),
        ("/a/*", format!("{replaced}\nstrip_prefix = \"/a\""), "T124"),
        ("/a/*", format!("{replaced}\nadd_prefix = \"/v1\""), "T124"),
        ("/*", "replace_prefix = { from = \"/\" }".to_owned(), "T104"),
        (
            "/*",
            "replace_prefix = { from = \"/\", to = \"/{id}\" }".to_owned(),
            "T115",
        ),
        ("/*", "replace_prefix = \"/a\"".to_owned(), "T103"),
    ] {
        assert_eq!(codes(&with(path, &settings)), [code], "{path} {settings}");
    }
}

#[test]
fn a_route_answers_by_itself() {
    let respond = |settings: &str| match route("/*", settings).target {
        Target::Respond(answer) => {
            let media = answer
                .content_type
                .map(|media| media.to_str().unwrap().to_owned());
            let body = match answer.body {
                RespondBody::Fixed(body) => String::from_utf8(body.to_vec()).unwrap(),
                RespondBody::Made(_) => "made".to_owned(),
            };
            (answer.status.as_u16(), body, media)
        }
        other => panic!("{other:?}"),
    };
    let plain = Some("text/plain; charset=utf-8".to_owned());
    assert_eq!(respond("respond = {}"), (200, String::new(), None));
    assert_eq!(
        respond("respond = { status = 404, body = \"{host}\" }"),
        (404, "{host}".to_owned(), plain)
    );
    let json = "respond = { body = \"{}\", content_type = \"application/json\" }";
    assert_eq!(respond(json).2.as_deref(), Some("application/json"));
    assert_eq!(
        respond("respond = { body = \"{host}\\n\", variables = true }").1,
        "made"
    );
    for (settings, code) in [
        ("respond = { body = \"{user}\", variables = true }", "T125"),
        (
            "respond = { body = \"{host:a}\", variables = true }",
            "T123",
        ),
        (
            "respond = { body = \"{path:id}\", variables = true }",
            "T123",
        ),
        (
            "respond = { body = \"{upstream_addr}\", variables = true }",
            "T124",
        ),
        (
            "respond = { body = \"a\", variables = true, status = 204 }",
            "T124",
        ),
        ("method_up = \"post\"", "T125"),
        ("method_up = \"HEAD\"", "T125"),
        ("method_up = \"{path:id}\"", "T123"),
        ("location_base = \"/a\"", "T125"),
        ("headers_success = { connection = \"close\" }", "T116"),
        ("headers_success = { x-a = \"{path:id}\" }", "T123"),
        ("expires = \"-1s\"", "T110"),
        ("expires_from = \"epoch\"", "T106"),
        ("location_base = \"https://{host:a}\"", "T125"),
        ("trailers_down = { x-a = \"{path:id}\" }", "T123"),
        ("trailers_down = { set-cookie = \"a\" }", "T116"),
        ("trailers_down = { x-a = false }", "T103"),
        ("respond = {}\nmethod_up = \"PUT\"", "T124"),
        ("respond = {}\npass_headers = false", "T124"),
        ("require_client_certificate = 500", "T105"),
        ("require_client_certificate = \"yes\"", "T103"),
        ("respond = {}\npass_body = true", "T124"),
        ("headers_up = { connection = \"keep-alive\" }", "T116"),
        ("headers_up = { connection = false }", "T116"),
        ("respond = 404", "T103"),
        ("respond = { status = 101 }", "T105"),
        ("respond = { status = 600 }", "T105"),
        ("respond = { status = 204, body = \"a\" }", "T124"),
        (
            "respond = { body = \"a\", content_type = \"a\\r\\nb/c\" }",
            "T116",
        ),
        ("respond = { text = \"a\" }", "T101"),
        ("respond = {}\nupstream = \"http://10.0.0.1\"", "T124"),
        ("respond = {}\nheaders_up = {}", "T124"),
        ("respond = {}\nredirect = \"/a\"", "T124"),
    ] {
        assert_eq!(codes(&with("/*", settings)), [code], "{settings}");
    }
}

#[test]
fn a_route_sends_clients_elsewhere() {
    let status = |settings: &str| match route("/old/*", settings).target {
        Target::Redirect(redirect) => redirect.status.as_u16(),
        other => panic!("{other:?}"),
    };
    assert_eq!(status("redirect = \"/new/{rest}\""), 302);
    assert_eq!(
        status("redirect = { to = \"https://{host}{uri}\", status = 308 }"),
        308
    );
    for (settings, code) in [
        ("redirect = { status = 308 }", "T104"),
        ("redirect = { to = \"/a\", status = 300 }", "T105"),
        ("redirect = { to = \"/a\", status = 304 }", "T105"),
        ("redirect = 308", "T103"),
        ("redirect = \"//evil.example\"", "T125"),
        ("redirect = \"https://a.example{rest}\"", "T125"),
        ("redirect = \"/{path:id}\"", "T123"),
        ("redirect = \"/a\"\nstrip_prefix = \"/old\"", "T124"),
    ] {
        assert_eq!(codes(&with("/old/*", settings)), [code], "{settings}");
    }
}

#[test]
fn a_file_may_answer_everything_by_itself() {
    let config = fine("[[route]]\npath = \"/*\"\nrespond = { status = 503 }\n");
    assert!(config.upstreams.is_empty());
}

#[test]
fn requests_have_ids_if_a_header_is_named_for_them() {
    let id = |settings: &str| {
        let config = fine(&format!("upstream = \"http://10.0.0.1\"\n{settings}\n"));
        config.request_id.map(|name| name.as_str().to_owned())
    };
    assert_eq!(id(""), None);
    assert_eq!(id("[headers]\nrequest_id = false"), None);
    let named = id("[headers]\nrequest_id = \"X-Request-Id\"");
    assert_eq!(named.as_deref(), Some("x-request-id"));
    for (value, code) in [
        ("true", "T103"),
        ("\"x request\"", "T116"),
        ("\"content-length\"", "T116"),
        ("\"host\"", "T116"),
        ("\"via\"", "T116"),
    ] {
        let text = format!("upstream = \"http://10.0.0.1\"\n[headers]\nrequest_id = {value}\n");
        assert_eq!(codes(&text), [code], "{value}");
    }
    let limits = "[limit.default]\nrate = \"1/s\"\n[headers]\nrequest_id = \"x-request-id\"\n";
    assert!(parse_limits("limits.toml", limits, &|_| None).is_err());
}

#[test]
fn servers_are_asked_for_the_host_that_is_chosen() {
    let with = |host: &str| {
        format!(
            "[upstream.api]\nservers = \"http://10.0.0.1:3000\"\n{host}\n\
             [[route]]\npath = \"/*\"\nupstream = \"api\"\n"
        )
    };
    let host = |text: &str| fine(&with(text)).upstreams[0].host.clone();
    assert_eq!(host(""), HostHeader::Pass);
    assert_eq!(host("host = \"pass\""), HostHeader::Pass);
    assert_eq!(host("host = \"rewrite\""), HostHeader::Rewrite);
    let fixed = HostHeader::Fixed("api.internal:8080".into());
    assert_eq!(host("host = \"api.internal:8080\""), fixed);
    for bad in ["a b", "a/b", "user@a", "http://a", "a\\r\\nb", ""] {
        assert_eq!(
            codes(&with(&format!("host = \"{bad}\""))),
            ["T116"],
            "{bad}"
        );
    }
}
