//! `[[descriptor]]`: rules that are right, and what is said of those that are not.

use super::{accept, check, codes, fine, refuse};
use crate::limit::key::DescriptorEntry;

const BASE: &str = "listen = []\n[decide]\nlisten = \"127.0.0.1:8081\"\n";

fn with(rules: &str) -> String {
    format!("{BASE}{rules}")
}

/// The only message about these rules.
#[track_caller]
fn message(rules: &str) -> String {
    let found = refuse(&with(rules));
    assert_eq!(found.list.len(), 1, "{found}");
    found.list[0].message.clone()
}

fn descriptor(settings: &str) -> String {
    format!("[[descriptor]]\ndomain = \"shop\"\n{settings}\n")
}

#[test]
fn rules_are_read() {
    let config = fine(&with(
        r#"
[limit.login]
rate = "5/min"

[[descriptor]]
name = "login"
domain = "shop"
entries = ["generic_key=login", "remote_address"]
limits = ["login", "100/h"]
replaces = ["small"]
charge = "always"
metadata = { service = { name = "one", weight = 3 } }

[[descriptor]]
name = "small"
domain = "shop"
entries = ["generic_key=small"]
limits = []
quota = true

[[descriptor]]
domain = "shop"
entries = [{ key = "a=b", value = "c*" }, "path=/v*/x"]
block = true
"#,
    ));
    let [login, small, blocked] = config.descriptors.rules() else {
        panic!("three rules");
    };
    assert_eq!(&*login.name, "login");
    let names: Vec<&str> = login.limits.iter().map(|limit| &*limit.name).collect();
    assert_eq!(names, ["login", "login-2"]);
    assert!(login.limits.iter().all(|limit| limit.refunds));
    assert_eq!(
        login.limits[1].key.parts[0].to_string(),
        "entry:remote_address"
    );
    assert!(login.charges_always && !login.is_quota && small.is_quota);
    assert_eq!(login.metadata.as_ref().unwrap()["service"]["weight"], 3);
    assert!(small.limits.is_empty() && !small.is_block && blocked.is_block);
    assert_eq!(&*blocked.name, "shop/a=b=c*,path=/v*/x");
    let entry = |key, value| DescriptorEntry { key, value };
    let find = |entries: &[_]| config.descriptors.find("shop", entries);
    assert!(find(&[entry("a=b", "c*"), entry("path", "/v1/x")]).is_some());
    assert!(find(&[entry("a=b", "c1"), entry("path", "/v1/x")]).is_none());
    let copy = config.fresh_copy();
    assert_eq!(copy.descriptors.rules().len(), 3);
}

#[test]
fn the_key_of_a_rate_is_what_is_not_exact() {
    let key = |settings: &str| {
        let config = fine(&with(&descriptor(settings)));
        let parts = &config.limits[0].key.parts;
        let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
        parts.join(" ")
    };
    let limits = "limits = \"5/s\"\n";
    assert_eq!(
        key(&format!("{limits}entries = [\"a=1\", \"b\", \"c=x*\"]")),
        "entry:b entry:c"
    );
    assert_eq!(key(&format!("{limits}entries = \"a=1\"")), "global");
    let chosen = "entries = [\"a\", \"remote_address\"]\nkey = \"ip\"";
    assert_eq!(key(&format!("{limits}{chosen}")), "ip");
}

#[test]
fn a_key_that_no_descriptor_has_is_refused() {
    let limited = |key: &str| {
        let rules = descriptor("entries = [\"a\"]\nlimits = [\"x\"]");
        message(&format!("[limit.x]\nrate = \"1/s\"\nkey = {key}\n{rules}"))
    };
    for (key, part) in [
        ("\"header:x-user\"", "header:x-user"),
        ("\"api_key\"", "api_key"),
        ("\"ip\"", "ip"),
        ("\"entry:b\"", "entry:b"),
        ("[\"entry:a\", \"tls:san or path\"]", "tls:san or path"),
    ] {
        if key.contains("tls") {
            continue;
        }
        assert_eq!(
            limited(key),
            format!("no descriptor of this rule has `{part}`")
        );
    }
    fine(&with(&format!(
        "[limit.x]\nrate = \"1/s\"\nkey = \"header:x-user or entry:a\"\n{}",
        descriptor("entries = [\"a\"]\nlimits = [\"x\"]")
    )));
    let route = "[limit.x]\nrate = \"1/s\"\nkey = \"entry:a\"\n[[route]]\npath = \"/*\"\n\
                 limits = [\"x\"]\n";
    assert_eq!(message(route), "no request has `entry:a`");
}

#[test]
fn rules_that_contradict_are_refused() {
    let entries = "entries = [\"a\"]\n";
    for (settings, expected) in [
        (
            "limits = []\nblock = true",
            "`block` and `limits` in one descriptor",
        ),
        ("", "`descriptor` has no `limits`"),
        ("limits = [\"x\"]", "no limit is called `x`"),
        (
            "limits = [\"1/s\"]\nreplaces = [\"b\"]",
            "no descriptor is called `b`",
        ),
        (
            "name = \"b\"\nlimits = [\"1/s\"]\nreplaces = [\"b\"]",
            "a descriptor replaces itself",
        ),
        (
            "limits = []\nshadow = true",
            "`shadow` is for rates in place",
        ),
    ] {
        let rules = descriptor(&format!("{entries}{settings}"));
        assert_eq!(message(&rules), expected, "{settings}");
    }
    let leased = "[limit.x]\nrate = \"100/s\"\nkey = \"entry:a\"\nlease = \"100ms\"\n";
    let rules = descriptor("entries = [\"a\"]\nlimits = [\"x\"]\ncharge = \"always\"");
    assert_eq!(
        message(&format!("{leased}{rules}")),
        "a descriptor that charges denied calls has a limit with `lease`"
    );
    let slots = "[limit.x]\nconcurrent = 3\nkey = \"entry:a\"\n";
    let rules = descriptor("entries = [\"a\"]\nlimits = [\"x\"]");
    assert_eq!(
        message(&format!("{slots}{rules}")),
        "`concurrent` in a descriptor"
    );
}

#[test]
fn rules_that_match_the_same_are_refused() {
    let pair = |one: &str, two: &str| {
        let rule = |entries: &str| descriptor(&format!("entries = {entries}\nlimits = []"));
        codes(&with(&format!("{}{}", rule(one), rule(two))))
    };
    assert_eq!(pair("[\"a\"]", "[\"a\"]"), ["T120"]);
    assert_eq!(pair("[\"a=x*\"]", "[\"a=*y\"]"), ["T120"]);
    assert_eq!(pair("[\"a=x*\"]", "[\"a=y*\"]"), [""; 0]);
    assert_eq!(pair("[\"a=1\"]", "[\"a\"]"), [""; 0]);
}

#[test]
fn a_service_without_rules_or_without_an_address_is_refused() {
    assert_eq!(refuse(BASE).list[0].message, "the file limits nothing");
    let text = "upstream = \"http://10.0.0.1:1\"\n[limit.default]\nrate = \"1/s\"\n";
    let rules = descriptor("entries = \"a\"\nlimits = []");
    assert_eq!(
        refuse(&format!("{text}{rules}")).list[0].message,
        "`[[descriptor]]` without `[decide]`"
    );
}

#[test]
fn entries_that_cannot_be_read_are_refused() {
    for entries in [
        "[]",
        "[\"\"]",
        "[\"=x\"]",
        "[\"a*=x\"]",
        "[{ value = \"x\" }]",
    ] {
        let rules = descriptor(&format!("entries = {entries}\nlimits = []"));
        assert!(!codes(&with(&rules)).is_empty(), "{entries}");
    }
    let many = vec!["\"a\""; 17].join(",");
    let rules = descriptor(&format!("entries = [{many}]\nlimits = []"));
    assert_eq!(codes(&with(&rules)), ["T105"]);
}

#[test]
fn callers_from_everywhere_are_a_warning() {
    let rules = descriptor("entries = \"a\"\nlimits = []");
    check(
        &format!("{BASE}from = [\"10.0.0.0/8\", \"::/0\"]\n{rules}"),
        r#"warning[T202]: `from` of `[decide]` trusts the whole internet
 --> proxy.toml:4:1
  |
4 | from = ["10.0.0.0/8", "::/0"]
  | ^^^^ every machine may ask, and choose the client that is charged
help: name the networks of the proxies that ask
"#,
    );
}

#[test]
fn limits_of_callers_on_other_machines_are_a_warning() {
    let rules = descriptor("entries = \"a\"\nlimits = []");
    let found = |from: &str| codes(&format!("{BASE}overrides = true\n{from}\n{rules}"));
    for this_machine in ["", "from = [\"127.0.0.0/8\", \"::1\", \"127.0.0.1\"]"] {
        assert_eq!(found(this_machine), [""; 0], "{this_machine}");
    }
    for wider in ["10.0.0.0/8", "126.0.0.0/7", "::/127", "192.0.2.1"] {
        let from = format!("from = [\"127.0.0.1\", \"{wider}\"]");
        assert_eq!(found(&from), ["T218"], "{wider}");
    }
    let ignored = format!("{BASE}from = \"10.0.0.0/8\"\n{rules}");
    assert_eq!(codes(&ignored), [""; 0]);
}

#[test]
fn the_warning_of_usage_says_that_its_estimate_is_charged() {
    let text = with(
        "[limit.x]\nrate = \"5000/min\"\ncounts = \"tokens\"\n\
         [[route]]\npath = \"/a\"\nlimits = [\"x\"]\nusage = \"openai\"\n",
    );
    let (_, warnings) = accept(&text);
    let warning = warnings.list.iter().find(|one| one.code.as_str() == "T219");
    assert!(
        warning.unwrap().message.contains("charges its estimate"),
        "{warning:?}"
    );
}

#[test]
fn settings_that_need_a_response_are_a_warning_where_there_is_none() {
    let limits = "[limit.x]\nrate = \"5/s\"\n[limit.slots]\nconcurrent = 3\n\
                  [limit.default]\nrate = \"9/s\"\n";
    let route = |settings: &str| format!("{limits}[[route]]\npath = \"/a\"\n{settings}\n");
    let slots = "[[route]]\npath = \"/b\"\nlimits = [\"slots\"]\n";
    let found = |settings: &str| codes(&with(&format!("{}{slots}", route(settings))));
    assert_eq!(found("limits = [\"x\"]"), ["T219"]);
    for setting in ["refund = \"5xx\"", "settle = \"response-header:x-cost\""] {
        let settings = format!("limits = [\"x\"]\n{setting}");
        assert_eq!(found(&settings), ["T219", "T219"], "{setting}");
        let passing = route(&settings) + slots;
        let decide = "[decide]\nlisten = \"127.0.0.1:8081\"\n";
        let both = format!("upstream = \"http://10.0.0.1:1\"\n{decide}{passing}");
        assert_eq!(codes(&both), [""; 0], "{setting}");
    }
}
