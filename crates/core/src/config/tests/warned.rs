//! Files that can be used and that are probably not meant so.

use super::{accept, check, codes};

const BASE: &str = "upstream = \"http://10.0.0.1:3000\"\n";

#[test]
fn a_limit_that_can_never_deny() {
    check(
        r#"upstream = "http://10.0.0.1:3000"
[limit.second]
rate = "10/s"
[limit.minute]
rate = "1000/min"
[[route]]
path = "/*"
limits = ["second", "minute"]
"#,
        r#"warning[T201]: `limit.minute` can never deny
 --> proxy.toml:5:8
  |
3 | rate = "10/s"
  |        ------ `limit.second` always denies first
4 | [limit.minute]
5 | rate = "1000/min"
  |        ^^^^^^^^^^
note: both count by the same key, on the same routes
"#,
    );
}

#[test]
fn a_limit_denies_when_it_is_used_without_the_tighter_one() {
    let limits = "[limit.a]\nrate = \"10/s\"\n[limit.b]\nrate = \"1000/min\"\n";
    let both = "[[route]]\npath = \"/*\"\nlimits = [\"a\", \"b\"]\n";
    let alone = "[[route]]\npath = \"/x\"\nlimits = [\"b\"]\n";
    assert_eq!(
        codes(&format!("{BASE}{limits}{both}{alone}")),
        Vec::<&str>::new()
    );
    // 10/s allows up to 600 a minute: 599 may deny.
    let close = limits.replace("1000/min", "599/min");
    assert_eq!(codes(&format!("{BASE}{close}{both}")), Vec::<&str>::new());
    let exact = limits.replace("1000/min", "600/min");
    assert_eq!(codes(&format!("{BASE}{exact}{both}")), ["T201"]);
    let other_key = limits.replace("\"10/s\"", "\"10/s\"\nkey = \"global\"");
    assert_eq!(
        codes(&format!("{BASE}{other_key}{both}")),
        Vec::<&str>::new()
    );
    // The counter admits more than it says, so it proves nothing.
    let counter = limits.replace("\"10/s\"", "\"10/s\"\nalgorithm = \"counter\"");
    assert_eq!(codes(&format!("{BASE}{counter}{both}")), Vec::<&str>::new());
}

#[test]
fn of_two_equal_limits_one_is_superfluous() {
    let text = format!(
        "{BASE}[limit.a]\nrate = \"10/s\"\n[limit.b]\nrate = \"10/s\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"a\", \"b\"]\n"
    );
    let (_, warnings) = accept(&text);
    assert_eq!(warnings.list.len(), 1);
    assert_eq!(warnings.list[0].message, "`limit.b` can never deny");
}

#[test]
fn the_whole_internet_is_trusted_in_parts() {
    for parts in ["\"0.0.0.0/1\", \"128.0.0.0/1\"", "\"::/1\", \"8000::/1\""] {
        let text = format!("{BASE}trusted_proxies = [{parts}]\n");
        assert_eq!(codes(&text), ["T202"], "{parts}");
        let decide = format!("[decide]\nlisten = \"127.0.0.1:81\"\nfrom = [{parts}]\n");
        assert_eq!(codes(&format!("{BASE}{decide}")), ["T202"], "{parts}");
    }
    let half = format!("{BASE}trusted_proxies = [\"0.0.0.0/1\"]\n");
    assert_eq!(codes(&half), [""; 0]);
}

#[test]
fn settings_that_other_settings_make_pointless() {
    let limit = "[limit.default]\nrate = \"9/s\"\n";
    for (text, expected) in [
        (format!("{limit}missing = \"deny\""), true),
        (
            format!("{limit}missing = \"deny\"\nkey = \"header:a or ip\""),
            true,
        ),
        (
            format!("{limit}missing = \"deny\"\nkey = [\"ip\", \"header:a\"]"),
            false,
        ),
        (format!("{limit}enforce = \"10%\"\nkey = \"global\""), true),
        (format!("{limit}enforce = \"10%\""), false),
        ("[server]\nwaiting = 7".to_owned(), true),
        (
            format!("{limit}delay = \"1s\"\n[server]\nwaiting = 7"),
            false,
        ),
        ("[server]\nhttp2 = false\nmax_streams = 7".to_owned(), true),
        ("[server]\nmax_streams = 7".to_owned(), false),
        (
            "[headers]\nx_ratelimit = false\nreset = \"delta\"".to_owned(),
            true,
        ),
        (
            "[headers]\nx_ratelimit = false\nreset = \"epoch\"".to_owned(),
            false,
        ),
        ("[store]\ntimeout = \"9ms\"".to_owned(), true),
        (
            "[store]\ntimeout = \"9ms\"\nurl = \"redis://h\"".to_owned(),
            false,
        ),
        (
            "[store]\ntimeout = \"9ms\"\nurl = \"${X:-memory:}\"".to_owned(),
            false,
        ),
        (
            "[access]\nallow = \"10.0.0.0/8\"\ndeny = \"0.0.0.0/0\"".to_owned(),
            true,
        ),
        (
            "[access]\nallow = \"10.0.0.0/8\"\ndeny = \"10.1.0.0/16\"".to_owned(),
            false,
        ),
        ("[[route]]\npath = \"regex:^login\"".to_owned(), true),
        (
            "[[route]]\npath = \"/\"\ntrailing_slash = false".to_owned(),
            true,
        ),
        (
            "[[route]]\npath = \"/\"\ntrailing_slash = true".to_owned(),
            false,
        ),
    ] {
        let found = codes(&format!("{BASE}{text}\n"));
        assert_eq!(found.contains(&"T245"), expected, "{text}: {found:?}");
    }
}

#[test]
fn a_header_that_names_clients_needs_trusted_proxies() {
    let header = "[client_ip]\nheader = \"cf-connecting-ip\"\n";
    check(
        &format!("{BASE}{header}"),
        r#"warning[T245]: `client_ip.header` changes nothing
 --> proxy.toml:3:1
  |
3 | header = "cf-connecting-ip"
  | ^^^^^^ read from trusted proxies only
help: name the proxies that send it in `trusted_proxies`
"#,
    );
    let trusted = "trusted_proxies = [\"10.0.0.0/8\"]\n";
    assert_eq!(codes(&format!("{BASE}{trusted}{header}")), [""; 0]);
}

#[test]
fn the_whole_internet_is_trusted() {
    check(
        &format!("{BASE}trusted_proxies = [\"10.0.0.0/8\", \"::/0\"]\n"),
        r#"warning[T202]: `trusted_proxies` trusts the whole internet
 --> proxy.toml:2:1
  |
2 | trusted_proxies = ["10.0.0.0/8", "::/0"]
  | ^^^^^^^^^^^^^^^ every client could then choose the address that it counts as
help: name the proxies in front of this one, or leave it out
"#,
    );
}

#[test]
fn a_warning_hides_no_other() {
    let text = format!(
        "{BASE}trusted_proxies = [\"::/0\"]\n\
         [[route]]\npath = \"/a\"\nmethods = [\"POTS\"]\nlimits = [\"5/s\"]\n"
    );
    assert_eq!(codes(&text), ["T202", "T244"]);
}

#[test]
fn what_covers_every_request_and_what_nobody_may_send() {
    let bypass = |rule: &str| codes(&format!("{BASE}[[bypass]]\n{rule}\n"));
    assert_eq!(bypass("path = \"/*\""), ["T211"]);
    assert_eq!(bypass("ip = [\"10.0.0.0/8\", \"::/0\"]"), ["T211"]);
    assert_eq!(bypass("path = \"/a/*\"\nip = \"0.0.0.0/0\""), [""; 0]);
    assert_eq!(bypass("path = \"/*\"\nkey = \"k\""), [""; 0]);
    let route = "[[route]]\npath = \"/*\"\ncost = \"header:x-cost\"\nlimits = [\"9/s\"]\n";
    assert_eq!(codes(&format!("{BASE}{route}")), ["T209"]);
    let trusting = "trusted_proxies = [\"10.0.0.0/8\"]\n";
    assert_eq!(codes(&format!("{BASE}{trusting}{route}")), [""; 0]);
}

#[test]
fn a_setting_that_changes_nothing() {
    let server = |settings: &str| codes(&format!("{BASE}{settings}"));
    let port = "[[route]]\npath = \"/a\"\nport = 9090\n";
    assert_eq!(server(port), ["T245"]);
    let listens = format!("listen = [\":8080\", \":9090\"]\n{BASE}");
    assert_eq!(codes(&format!("{listens}{port}")), [""; 0]);
    assert_eq!(codes(&format!("listen = \":0\"\n{BASE}{port}")), [""; 0]);
    let odd = "[server]\nunderscores_in_headers = false\n[api_key]\nfrom = \"header:x_key\"\n";
    assert_eq!(server(odd), ["T245"]);
    assert_eq!(server(&odd.replace("x_key", "x-key")), [""; 0]);
    let refund = "[[route]]\npath = \"/a\"\nlimits = []\nrefund = [\"5xx\"]\n";
    assert_eq!(server(refund), ["T245"]);
    assert_eq!(server(&refund.replace("[]", "[\"9/s\"]")), [""; 0]);
    let by = |key: &str| format!("[limit.default]\nrate = \"9/s\"\nkey = \"{key}\"\n");
    let deny = "[api_key]\nunknown = \"deny\"\n";
    assert_eq!(server(deny), ["T245"]);
    assert_eq!(server(&format!("{deny}{}", by("ip"))), ["T245"]);
    assert_eq!(server(&format!("{deny}{}", by("api_key or ip"))), ["T216"]);
    let jwt = "[auth.jwt]\njwks_url = \"https://a.example/keys\"\n";
    assert_eq!(server(jwt), ["T245"]);
    assert_eq!(server(&format!("{jwt}{}", by("jwt:sub or ip"))), [""; 0]);
    assert_eq!(server(&format!("{jwt}{}", by("api_key or ip"))), [""; 0]);
    let cost = "[[route]]\npath = \"/a\"\nlimits = []\ncost = 2\n";
    assert_eq!(server(cost), ["T245"]);
    assert_eq!(server(&cost.replace("[]", "[\"9/s\"]")), [""; 0]);
    assert_eq!(server(&cost.replace("= 2", "= 1")), [""; 0]);
    let settle = cost.replace("cost = 2", "settle = \"response-header:x-cost\"");
    assert_eq!(server(&settle), ["T245"]);
    let usage = "[usage.chat]\nformat = \"openai\"\n";
    assert_eq!(server(usage), ["T245"]);
    let used = "[[route]]\npath = \"/a\"\nusage = \"chat\"\nlimits = []\n";
    assert_eq!(server(&format!("{usage}{used}")), [""; 0]);
    let expires = "[[route]]\npath = \"/a\"\nexpires_from = \"modified\"\n";
    assert_eq!(server(expires), ["T245"]);
    assert_eq!(server(&format!("{expires}expires = \"1h\"\n")), [""; 0]);
    let ban = "[limit.default]\nrate = \"unlimited\"\nban = { after = \"9/min\", for = \"1h\" }\n";
    assert_eq!(server(ban), ["T245"]);
    assert_eq!(server("[server]\nhttps_port = 443\n"), ["T246"]);
    let trusting = "trusted_proxies = \"10.0.0.1\"\n[server]\nhttps_port = 443\n";
    assert_eq!(server(trusting), [""; 0]);
    let base = "[[route]]\npath = \"/a\"\nlocation_base = \"https://{host}\"\n";
    assert_eq!(server(base), ["T245"]);
    let made = "replace_prefix = { from = \"/a\", to = \"/b\", location = true }\n";
    assert_eq!(server(&format!("{base}{made}")), [""; 0]);
    let page = |name: &str, status: &str| {
        format!("[error_page.{name}]\nstatus = \"{status}\"\nbody = \"x\"\n")
    };
    let pages = page("a", "5xx") + &page("b", "502");
    assert_eq!(server(&pages), ["T245"]);
    assert_eq!(server(&format!("{pages}upstream_errors = true\n")), [""; 0]);
    assert_eq!(server(&(page("a", "502") + &page("b", "5xx"))), [""; 0]);
    let alone = "[[route]]\npath = \"/a\"\nerror_pages = [\"b\"]\n";
    assert_eq!(server(&format!("{pages}{alone}")), [""; 0]);
}

#[test]
fn a_setting_of_an_upstream_that_changes_nothing() {
    let upstream = |settings: &str| {
        codes(&format!(
            "[upstream.a]\nservers = \"http://a\"\n{settings}\n\
             [[route]]\npath = \"/*\"\nupstream = \"a\"\n"
        ))
    };
    assert_eq!(upstream("queue_timeout = \"1s\""), ["T245"]);
    assert_eq!(upstream("queue_timeout = \"1s\"\nqueue = 9"), [""; 0]);
    let slow = "slow_start = \"9s\"\nbalance = \"hash:ip\"";
    assert_eq!(upstream(slow), ["T245"]);
    assert_eq!(upstream(&slow.replace("hash:ip", "p2c")), [""; 0]);
    for (settings, other) in [
        ("dns_every = \"9s\"", None),
        (
            "retries = { attempts = 2, on = [\"503\"] }",
            Some("retries = { attempts = 2, on = [\"503\"], same_server = true }"),
        ),
        (
            "eject = { status = \"5xx\" }",
            Some("eject = { for = \"9s\" }"),
        ),
    ] {
        let with = |servers: &str, settings: &str| {
            codes(&format!(
                "[upstream.a]\nservers = [{servers}]\n{settings}\n\
                 [[route]]\npath = \"/*\"\nupstream = \"a\"\n"
            ))
        };
        assert_eq!(
            with("\"http://10.0.0.1\"", settings),
            ["T245"],
            "{settings}"
        );
        assert_eq!(
            with("\"http://[::1]:80\"", settings),
            ["T245"],
            "{settings}"
        );
        assert_eq!(
            upstream(settings),
            [""; 0],
            "{settings}: a name may have several"
        );
        let other = other.unwrap_or("");
        assert_eq!(with("\"http://10.0.0.1\"", other), [""; 0], "{other}");
    }
}

#[test]
fn a_version_of_http_chooses_no_key_and_no_route() {
    let key = "[limit.default]\nrate = \"5/s\"\nkey = \"header:host\"\n";
    let route = "[[route]]\npath = \"/a\"\nheaders = { Host = \"a\" }\n";
    for (text, code) in [(key, "T111"), (route, "T116")] {
        let found = super::refuse(&format!("{BASE}{text}"));
        assert_eq!(found.list[0].code.as_str(), code, "{found:?}");
    }
}

#[test]
fn clients_choose_their_key() {
    check(
        &format!("{BASE}[limit.default]\nrate = \"5/s\"\nkey = \"header:X-Forwarded-For\"\n"),
        r#"warning[T203]: clients choose what `limit.default` counts them by
 --> proxy.toml:4:7
  |
4 | key = "header:X-Forwarded-For"
  |       ^^^^^^^^^^^^^^^^^^^^^^^^ the client chooses the value of `header:x-forwarded-for`
help: use `key = "ip"`, and name your proxies in `trusted_proxies`
"#,
    );
}

#[test]
fn the_upstream_is_the_proxy() {
    check(
        "listen = \":8080\"\nupstream = \"http://127.0.0.1:8080\"\n",
        r#"warning[T204]: an upstream is this proxy itself
 --> proxy.toml:2:12
  |
1 | listen = ":8080"
  |          ------- the proxy listens here
2 | upstream = "http://127.0.0.1:8080"
  |            ^^^^^^^^^^^^^^^^^^^^^^^ every request would come back in a loop
help: give the upstream another port
"#,
    );
    assert_eq!(codes("upstream = \"http://localhost:8080\"\n"), ["T204"]);
    assert_eq!(codes("upstream = \"http://[::1]:8080\"\n"), ["T204"]);
    assert_eq!(
        codes("upstream = \"http://10.0.0.1:8080\"\n"),
        Vec::<&str>::new()
    );
    assert_eq!(
        codes("listen = \"127.0.0.2:80\"\nupstream = \"http://127.0.0.1:80\"\n"),
        Vec::<&str>::new()
    );
}

#[test]
fn a_login_is_open_while_the_store_is_away() {
    check(
        r#"upstream = "http://10.0.0.1:3000"
store.url = "redis://10.0.0.2"
[limit.guesses]
rate = "5/min"
on_error = "allow"
[[route]]
path = "/login"
limits = ["guesses"]
"#,
        r#"warning[T205]: `limit.guesses` does not protect a login while the store is away
 --> proxy.toml:5:12
  |
5 | on_error = "allow"
  |            ^^^^^^^ during an outage every guess passes
help: use `on_error = "local"` or `"deny"`
"#,
    );
}

#[test]
fn what_nobody_uses_is_named() {
    check(
        r#"[limit.search]
rate = "30/10s"
[upstream.api]
servers = "http://10.0.0.1:3000"
[upstream.old]
servers = "http://10.0.0.2:3000"
[[route]]
path = "/*"
upstream = "api"
"#,
        r#"warning[T206]: no route uses `limit.search`
 --> proxy.toml:1:8
  |
1 | [limit.search]
  |        ^^^^^^ it limits nothing
help: add it to a route: `limits = ["search"]`

warning[T207]: no route uses `upstream.old`
 --> proxy.toml:5:11
  |
5 | [upstream.old]
  |           ^^^ nothing is sent there
help: add it to a route: `upstream = "old"`
"#,
    );
}

#[test]
fn a_log_that_takes_megabytes() {
    let text = format!("{BASE}[limit.default]\nrate = \"10_000_000/day\"\nalgorithm = \"log\"\n");
    assert_eq!(codes(&text), ["T208"]);
    let bounded = text.replace("algorithm = \"log\"", "");
    assert_eq!(codes(&bounded), Vec::<&str>::new());
    let fine = text.replace("algorithm = \"log\"", "precision = \"1ms\"");
    assert_eq!(codes(&fine), ["T208"]);
}

#[test]
fn a_route_that_answers_by_itself_gives_nothing_back() {
    let route = |settings: &str| {
        codes(&format!(
            "{BASE}[limit.default]\nrate = \"5/min\"\n[[route]]\npath = \"/*\"\n{settings}\n"
        ))
    };
    let none: [&str; 0] = [];
    let settle = "settle = \"response-header:x-cost\"";
    assert_eq!(route(settle), none);
    assert_eq!(
        route(&format!("{settle}\nrespond = {{ status = 404 }}")),
        ["T245"]
    );
    assert_eq!(
        route("refund = \"5xx\"\nredirect = \"https://a.test/\""),
        ["T245"]
    );
    assert_eq!(route("refund = \"4xx\"\nrespond = { status = 404 }"), none);
}

#[test]
fn a_word_that_no_value_replaces_is_named() {
    let body = |text: &str| codes(&format!("{BASE}[deny.body]\nhtml = '{text}'\n"));
    let none: [&str; 0] = [];
    assert_eq!(
        body("<style>b{color:red} i{}</style>{title} {retry_after}"),
        none
    );
    assert_eq!(body("{retry}"), ["T245"]);
    assert_eq!(body("{{detail} {limits}"), ["T245"]);
}
