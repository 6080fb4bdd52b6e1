//! Files that are wrong, and what is said of them.

use super::{check, codes, refuse};
use crate::config::render::human;

const BASE: &str = "upstream = \"http://10.0.0.1:3000\"\n";

#[test]
fn an_unknown_key_is_pointed_at() {
    check(
        r#"upstream = "http://10.0.0.1:3000"


[limit.per_ip]
rate = "5/min"
kye  = ["ip"]
"#,
        r#"error[T101]: unknown key `kye` in `limit.per_ip`
 --> proxy.toml:6:1
  |
6 | kye  = ["ip"]
  | ^^^ not a setting here
help: did you mean `key`?
"#,
    );
}

#[test]
fn the_help_names_a_form_that_is_right() {
    for (text, help) in [
        (
            "[[route]]\npath = \"/\"\nlimits = [\"10 per minute\"]\n",
            "help: write `10/min`",
        ),
        (
            "[[route]]\npath = \"/\"\nlimits = [\"per minute\"]\n",
            "help: a rate is a count, `/` and a window: `100/min`",
        ),
        (
            "[tls]\ncert = \"a.pem\"\n",
            "help: a certificate has a section: `[[tls.certificates]]` with `cert` and `key`",
        ),
        (
            "[store]\nredis = \"localhost\"\n",
            "help: write the address of Redis as a URL: `url = \"redis://HOST:6379\"`",
        ),
        (
            "[[route]]\npath = \"/\"\non_eror = \"deny\"\n",
            "help: did you mean `on_error`? It is a setting of `",
        ),
        (
            "[server]\nport = 80\n",
            "help: it stands at the top of the file: `listen = \":8080\"`",
        ),
        ("[server]\nthreads = 4\n", "help: did you mean `workers`?"),
        (
            "[limit.a]\nrate = \"5/s\"\nkey = \"client\"\n",
            "`tls:FIELD`, `body:PATH`, `mcp:method`, `mcp:tool`, `graphql:operation`, `entry:NAME`",
        ),
    ] {
        let told = human(&refuse(&format!("{BASE}{text}")), false);
        assert!(told.contains(help), "no `{help}` in\n{told}");
    }
    let several = "upstream = [\"http://10.0.0.1:3000\", \"http://10.0.0.2:3000\"]\n";
    let told = human(&refuse(several), false);
    assert!(
        told.contains("help: several servers have a section: `[upstream.api]`"),
        "{told}"
    );
}

#[test]
fn all_mistakes_are_told_at_once() {
    check(
        r#"listen = 8080
upsteam = "x"

[store]
url = "redys://h"
timeout = "25"
on_error = "alow"

[limit.Login]
rate = "5/mim"
key = ["ip", "jwt:sub", "headr:x"]

[[route]]
path = "login"
limits = ["logn"]
"#,
        include_str!("expected/all_at_once.txt"),
    );
}

#[test]
fn several_syntax_errors_are_told_at_once() {
    check(
        r#"listen = :8080
upstream = "http://10.0.0.1:3000"
[limit.default]
rate = 100/min
rate = "5/min"
kye = "ip"
"#,
        r#"error[T102]: not TOML: string values must be quoted
 --> proxy.toml:1:10
  |
1 | listen = :8080
  |          ^^^^^
help: write `":8080"`

error[T102]: not TOML: string values must be quoted
 --> proxy.toml:4:8
  |
4 | rate = 100/min
  |        ^^^^^^^
help: write `"100/min"`

error[T102]: not TOML: `rate` is there twice
 --> proxy.toml:5:1
  |
4 | rate = 100/min
  | ---- first here
5 | rate = "5/min"
  | ^^^^
help: keep one of them

error[T101]: unknown key `kye` in `limit.default`
 --> proxy.toml:6:1
  |
6 | kye = "ip"
  | ^^^ not a setting here
help: did you mean `key`?
"#,
    );
}

#[test]
fn a_default_upstream_and_tables_of_upstreams_exclude_each_other() {
    let text = format!("{BASE}[upstream.api]\nservers = \"http://a\"\n");
    let found = refuse(&text);
    let help = found.list[0].help.as_deref();
    assert!(help.is_some_and(|help| help.contains("either")), "{found}");
}

#[test]
fn unknown_limits_and_upstreams_have_suggestions() {
    check(
        r#"[upstream.api]
servers = "http://10.0.0.1:3000"
[limit.login]
rate = "5/min"
[[route]]
path = "/login"
upstream = "apy"
limits = ["logn", "per_client"]
"#,
        r#"error[T118]: no upstream is called `apy`
 --> proxy.toml:7:12
  |
7 | upstream = "apy"
  |            ^^^^^
help: did you mean `api`?

error[T117]: no limit is called `logn`
 --> proxy.toml:8:11
  |
8 | limits = ["logn", "per_client"]
  |           ^^^^^^
help: did you mean `login`?

error[T117]: no limit is called `per_client`
 --> proxy.toml:8:19
  |
8 | limits = ["logn", "per_client"]
  |                   ^^^^^^^^^^^^
help: define it: `[limit.per_client]`, or write a rate such as `100/min`
"#,
    );
}

#[test]
fn variables_that_are_not_set_are_pointed_at() {
    check(
        "upstream = \"http://${HOST}:${PORT:-3000}\"\n",
        r#"error[T107]: `${HOST}` cannot be filled in
 --> proxy.toml:1:20
  |
1 | upstream = "http://${HOST}:${PORT:-3000}"
  |                    ^^^^^^^ not set, and no default is given
help: `${VAR:-default}` gives a default; `$$` is a dollar sign
"#,
    );
}

#[test]
fn what_variables_hold_is_not_shown_of_a_store() {
    let found = refuse(&format!("{BASE}[store]\nurl = \"${{STORE}}:x\"\n"));
    assert!(!found.to_string().contains("secret"), "{found}");
}

#[test]
fn routes_in_conflict_are_both_shown() {
    check(
        r#"upstream = "http://10.0.0.1:3000"
[[route]]
path = "/users/{id}"
[[route]]
path = "/users/{name}/"
"#,
        r#"error[T120]: two routes match the same requests
 --> proxy.toml:5:8
  |
3 | path = "/users/{id}"
  |        ------------- and this one
4 | [[route]]
5 | path = "/users/{name}/"
  |        ^^^^^^^^^^^^^^^^ this route
help: tell them apart by `host`, `path`, `methods` or `headers`, or remove one
"#,
    );
}

#[test]
fn a_pattern_is_pointed_into() {
    check(
        &format!("{BASE}[[route]]\npath = \"/files/*/x\"\n"),
        r#"error[T115]: `route.path` is not a path pattern
 --> proxy.toml:3:16
  |
3 | path = "/files/*/x"
  |                ^^^ `*` can only be the whole last segment, as in `/search/*`
help: write `/files/{name}/x`
"#,
    );
}

#[test]
fn keys_of_later_versions_are_refused_and_say_so() {
    check(
        &format!("{BASE}[store]\nconnections = 2\n"),
        r#"error[T101]: unknown key `connections` in `store`
 --> proxy.toml:3:1
  |
3 | connections = 2
  | ^^^^^^^^^^^ not a setting here
note: planned; this version does not have it yet
"#,
    );
}

#[test]
fn an_admin_that_others_can_reach_needs_a_token() {
    check(
        &format!("{BASE}admin = \":9180\"\n"),
        r#"error[T126]: `admin` is open to others, and has no token
 --> proxy.toml:2:9
  |
2 | admin = ":9180"
  |         ^^^^^^^ other machines can reach this address
help: name a file in `admin_token_file`, or write `admin = "127.0.0.1:9180"`
"#,
    );
    let lonely = format!("{BASE}admin_hosts = \"proxy.internal\"\n");
    assert_eq!(codes(&lonely), ["T124"]);
    let odd = format!("{BASE}admin = \"[::1]:9180\"\nadmin_hosts = \"a:1\"\n");
    assert_eq!(codes(&odd), ["T112"]);
    let twice = format!("listen = \"127.0.0.1:1\"\nadmin = \"127.0.0.1:1\"\n{BASE}");
    assert_eq!(codes(&twice), ["T119"]);
}

#[test]
fn what_a_limit_cannot_keep_is_refused() {
    let with = |limit: &str, route: &str| {
        codes(&format!(
            "{BASE}[limit.default]\n{limit}\n[[route]]\npath = \"/u/{{user}}\"\n{route}"
        ))
    };
    assert_eq!(with("rate = \"5/min\"\ncost = 6", ""), ["T121"]);
    assert_eq!(with("rate = \"5/min\"", "cost = 6"), ["T121"]);
    assert_eq!(with("rate = \"5/min\"\ncost = 2", "cost = 3"), ["T121"]);
    assert_eq!(with("rate = \"5/min\"", "cost = 5"), Vec::<&str>::new());
    assert_eq!(
        with("rate = \"1737/30d\"\nalgorithm = \"counter\"", ""),
        Vec::<&str>::new()
    );
    assert_eq!(
        with("rate = \"1738/30d\"\nalgorithm = \"counter\"", ""),
        ["T122"]
    );
    assert_eq!(
        with(
            "rate = \"5/min\"\n[limit.u]\nrate = \"1/s\"\nkey = \"path:id\"",
            "limits = \"u\""
        ),
        ["T206", "T123"][1..]
    );
}

#[test]
fn a_parameter_that_the_path_lacks_is_named() {
    check(
        r#"[limit.per_user]
rate = "1/s"
key = ["ip", "path:usr"]
[[route]]
path = "/u/{user}"
upstream = "http://10.0.0.1"
limits = ["per_user"]
"#,
        r#"error[T123]: the path has no `{usr}` to count by
 --> proxy.toml:7:11
  |
3 | key = ["ip", "path:usr"]
  |       ------------------ asked for here
...
7 | limits = ["per_user"]
  |           ^^^^^^^^^^ `limit.per_user` is for paths with `{usr}`
help: did you mean `path:user`?
"#,
    );
}

#[test]
fn things_said_twice_are_refused() {
    let limit = "[limit.a]\nrate = \"5/s\"\n";
    let route = "[[route]]\npath = \"/a\"\n";
    for text in [
        format!("{BASE}{limit}{route}limits = [\"a\", \"a\"]\n"),
        format!("{BASE}{route}name = \"x\"\n[[route]]\npath = \"/b\"\nname = \"x\"\n"),
        format!("{BASE}{route}methods = [\"GET\", \"GET\"]\n"),
        format!("{BASE}{route}headers = {{ x-a = true, X-A = \"1\" }}\n"),
        format!("{BASE}listen = [\":80\", \"[::]:80\"]\n"),
        format!(
            "[upstream.a]\nservers = [\"http://a\", \"http://A:80\"]\n{route}upstream = \"a\"\n"
        ),
    ] {
        assert_eq!(codes(&text), ["T119"], "{text}");
    }
}

#[test]
fn secrets_given_twice_or_for_nothing_are_refused() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "hush").unwrap();
    let file = format!("password_file = \"{}\"", secret.path().display());
    for store in [
        format!("url = \"redis://:pw@h\"\n{file}").as_str(),
        "username = \"u\"",
        "url = \"memory:\"\nusername = \"u\"",
    ] {
        let found = refuse(&format!("{BASE}[store]\n{store}\n"));
        assert!(
            found.list.iter().any(|one| one.code.as_str() == "T124"),
            "{found}"
        );
    }
    assert_eq!(codes(&format!("{BASE}[[bypass]]\nkey = \"\"\n")), ["T124"]);
    assert_eq!(
        codes(&format!("{BASE}[store]\npassword_file = \"/nowhere/x\"\n")),
        ["T108"]
    );
}

#[test]
fn values_out_of_their_range_are_refused() {
    for text in [
        "[store]\ntimeout = \"0s\"",
        "[store]\ntimeout = \"1min\"",
        "[store]\nfleet = 0",
        "[store]\nfleet = -1",
        "[store]\nmax_memory = \"1KiB\"",
        "[server]\nheader_timeout = \"0ms\"",
        "[server]\nmax_header_bytes = 100",
        "[server]\nhandover_timeout = \"2d\"",
        "[log]\nsample_allowed = 1.5",
        "[client_ip]\nipv6_prefix = 200",
        "[deny]\nstatus = 200",
        "listen = []",
    ] {
        assert_eq!(codes(&format!("{BASE}{text}\n")), ["T105"], "{text}");
    }
}

#[test]
fn values_of_the_wrong_kind_are_refused() {
    for text in [
        "listen = true",
        "limit = 5",
        "limit.a = 5",
        "route = \"x\"",
        "[store]\ntimeout = 25",
        "[server]\ndrain_idle = 1",
        "[server]\npid_file = true",
        "[headers]\nietf = \"yes\"",
        "[headers]\nietf = 10",
        "store = \"redis://x\"",
        "[[route]]\npath = \"/a\"\nlimits = 5",
        "[[route]]\npath = \"/a\"\nheaders = { x-a = false }",
    ] {
        assert_eq!(codes(&format!("{BASE}{text}\n")), ["T103"], "{text}");
    }
    assert_eq!(codes("upstream = 3000\n"), ["T103"]);
}

#[test]
fn the_form_of_the_ietf_headers_is_one_of_two() {
    check(
        &format!("{BASE}[headers]\nietf = \"nest\"\n"),
        r#"error[T106]: `headers.ietf` must be `"10"` or `"next"`
 --> proxy.toml:3:8
  |
3 | ietf = "nest"
  |        ^^^^^^ not one of these
help: did you mean `next`?
"#,
    );
}

#[test]
fn a_number_where_a_time_belongs_says_what_to_write() {
    check(
        &format!("{BASE}[server]\nidle_timeout = 60\n"),
        r#"error[T103]: `server.idle_timeout` must be a string
 --> proxy.toml:3:16
  |
3 | idle_timeout = 60
  |                ^^ this is a whole number
help: write `"60s"` for seconds
"#,
    );
}

#[test]
fn incomplete_sections_are_refused() {
    for text in [
        format!("{BASE}[limit.a]\nkey = \"ip\"\n[[route]]\npath = \"/a\"\nlimits = \"a\"\n"),
        format!("{BASE}[[route]]\nname = \"a\"\n"),
        format!("{BASE}[[bypass]]\n"),
        format!("{BASE}[[bypass]]\nheader = \"x-a\"\n"),
        format!("{BASE}[[bypass]]\nip = \"10.0.0.1\"\nvalue = \"x\"\n"),
        "[[route]]\npath = \"/a\"\n".to_owned(),
        "[upstream.a]\n[[route]]\npath = \"/a\"\nupstream = \"a\"\n".to_owned(),
        "listen = \":80\"\n".to_owned(),
        String::new(),
    ] {
        assert_eq!(codes(&text), ["T104"], "{text}");
    }
}

#[test]
fn a_top_level_key_within_a_section_is_recognised() {
    let text = format!("{BASE}[headers]\nlisten = \":80\"\n");
    let found = refuse(&text);
    let help = found.list[0].help.as_deref();
    assert_eq!(
        help,
        Some("`listen` belongs at the top of the file, before the first `[..]`")
    );
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_reader_stumble(text in "(?s).{0,200}") {
        let _ = super::super::parse("x", &text, &|_| None).map_err(|found| found.to_string());
    }

    #[test]
    fn no_half_a_file_makes_the_reader_stumble(
        cut in 0..16_000usize,
        junk in "[\\[\\]{}\"'=.#$\n a]{0,6}",
    ) {
        let text = include_str!("../../../proxy.reference.toml");
        let cut = (0..=cut.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap();
        let text = format!("{}{junk}{}", &text[..cut], &text[cut..]);
        let _ = super::super::parse("x", &text, &|_| None).map_err(|found| found.to_string());
    }
}

#[test]
fn a_proxy_protocol_needs_somebody_to_believe() {
    check(
        "upstream = \"http://a\"\nproxy_protocol = \"required\"\n",
        "error[T124]: `proxy_protocol` without `trusted_proxies`
 --> proxy.toml:2:1
  |
2 | proxy_protocol = \"required\"
  | ^^^^^^^^^^^^^^ no proxy is trusted to send the PROXY header
help: name the proxies that send it: `trusted_proxies = [\"10.0.0.0/8\"]`
",
    );
    let trusted = "upstream = \"http://a\"\ntrusted_proxies = \"10.0.0.1\"\n";
    let wrong = refuse(&format!("{trusted}proxy_protocol = \"on\"\n")).to_string();
    assert!(wrong.contains("optional"), "{wrong}");
    for wrong in ["max_streams = 0", "max_streams = 10_001", "http2 = \"on\""] {
        refuse(&format!("{trusted}[server]\n{wrong}\n"));
    }
}
