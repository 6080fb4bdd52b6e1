//! What `[limit.NAME]` can say: rates, precision, tiers, slots, exemptions; and what it cannot.

use super::{accept, check, codes, fine, refuse};
use crate::limit::{Algorithm, Limit};

const BASE: &str = "upstream = \"http://10.0.0.1:3000\"\n";

/// The default limit of a file that says this of it.
#[track_caller]
fn limit(lines: &str) -> std::sync::Arc<Limit> {
    let config = fine(&format!("{BASE}[limit.default]\n{lines}\n"));
    config.limits[0].clone()
}

#[track_caller]
fn wrong(lines: &str) -> Vec<&'static str> {
    codes(&format!("{BASE}[limit.default]\n{lines}\n"))
}

fn rules(limit: &Limit) -> Vec<(&str, u64, u64, u64)> {
    let windows = limit.windows.iter();
    let plain = windows.map(|window| {
        let rule = &window.rule;
        (
            &*window.policy,
            rule.units,
            rule.window_us / 1_000,
            rule.precision_us,
        )
    });
    plain.collect()
}

#[test]
fn a_limit_may_have_several_rates() {
    let limit = limit("rate = [\"10/s\", \"1000/h\"]");
    let expected = [
        ("default/s", 10, 1_000, 1),
        ("default/h", 1000, 3_600_000, 1),
    ];
    assert_eq!(rules(&limit), expected);
    assert_eq!(wrong("rate = [\"5/s\", \"9/1000ms\"]"), ["T119"]);
    assert_eq!(wrong("rate = [\"5/s\", \"unlimited\"]"), ["T124"]);
    assert_eq!(wrong("rate = []"), ["T105"]);
    assert_eq!(wrong("rate = [\"5/s\", 9]"), ["T103"]);
}

#[test]
fn a_rate_that_another_always_precedes_is_pointed_at() {
    check(
        &format!("{BASE}[limit.default]\nrate = [\"10/s\", \"100/h\", \"1000/min\"]\n"),
        r#"warning[T201]: `1000/min` of `limit.default` can never deny
 --> proxy.toml:3:26
  |
3 | rate = ["10/s", "100/h", "1000/min"]
  |         ------           ^^^^^^^^^^
  |         |
  |         this rate always denies first
"#,
    );
    assert_eq!(wrong("rate = [\"10/s\", \"599/min\"]"), Vec::<&str>::new());
    assert_eq!(wrong("rate = [\"10/s\", \"600/min\"]"), ["T201"]);
    // A coarse log counts units for longer than its window: it may still deny.
    let coarse = "rate = [\"10/s\", \"600/min\"]\nprecision = \"100ms\"";
    assert_eq!(wrong(coarse), Vec::<&str>::new());
}

#[test]
fn the_size_of_a_rate_chooses_its_precision() {
    let precision = |lines: &str| limit(lines).windows[0].rule.precision_us;
    assert_eq!(precision("rate = \"1000/min\""), 1);
    assert_eq!(precision("rate = \"1001/min\""), 60_000);
    assert_eq!(precision("rate = \"1001/min\"\nalgorithm = \"log\""), 1);
    assert_eq!(
        precision("rate = \"1001/min\"\nprecision = \"1s\""),
        1_000_000
    );
    let counter = limit("rate = \"100000/s\"\nalgorithm = \"counter\"");
    assert_eq!(counter.windows[0].rule.algorithm, Algorithm::Counter);
    assert_eq!(counter.windows[0].rule.precision_us, 1);
}

#[test]
fn a_precision_divides_every_window() {
    check(
        &format!("{BASE}[limit.default]\nrate = [\"10/s\", \"100/min\"]\nprecision = \"7s\"\n"),
        r#"error[T124]: `limit.default.precision` must divide the window
 --> proxy.toml:4:13
  |
3 | rate = ["10/s", "100/min"]
  |         ------ is no multiple of it
4 | precision = "7s"
  |             ^^^^
help: nearest is `"1s"`
"#,
    );
    let found = refuse(&format!(
        "{BASE}[limit.default]\nrate = \"10/min\"\nprecision = \"7s\"\n"
    ));
    let help = found.list[0].help.as_deref();
    assert_eq!(help, Some("nearest are `\"6s\"` and `\"7500ms\"`"));
    assert_eq!(wrong("rate = \"10/s\"\nprecision = \"0s\""), ["T105"]);
    assert_eq!(wrong("rate = \"10/s\"\nprecision = 1"), ["T103"]);
    let counter = "rate = \"10/s\"\nprecision = \"1s\"\nalgorithm = \"counter\"";
    assert_eq!(wrong(counter), ["T124"]);
}

#[test]
fn tiers_have_rates_of_their_own() {
    let config = fine(&format!(
        "{BASE}{}",
        r#"
        [auth.jwt]
        jwks_file = "src/config/tests/jwks.json"
        [tier]
        from = "jwt:plan"
        default = "free"
        [limit.default]
        rate = "unlimited"
        [limit.default.tiers]
        pro = "200/s"
        free = ["10/s", "1000/h"]
        internal = "unlimited"
        x-note = 1
        x-pro = "300/s"
        "#
    ));
    let limit = &config.limits[0];
    assert!(limit.windows.is_empty());
    let tiers: Vec<_> = (limit.tiers.iter())
        .map(|tier| {
            let policies = tier.windows.iter().map(|window| &*window.policy);
            (&*tier.name, policies.collect::<Vec<_>>())
        })
        .collect();
    assert_eq!(
        tiers,
        [
            ("pro", vec!["default"]),
            ("free", vec!["default/s", "default/h"]),
            ("internal", vec![]),
            ("x-pro", vec!["default"])
        ]
    );
    check(
        &format!("{BASE}[limit.default]\nrate = \"10/s\"\ntiers = {{ pro = \"20/s\" }}\n"),
        r#"error[T124]: `limit.default.tiers` needs `[tier]`
 --> proxy.toml:4:1
  |
4 | tiers = { pro = "20/s" }
  | ^^^^^ no setting gives the tier of a client
help: write for example `[tier]` with `from = "jwt:plan"`
"#,
    );
    assert_eq!(wrong("rate = \"9/s\"\nkey = \"tier or ip\""), ["T124"]);
    let tier = "[tier]\nfrom = \"header:x-plan\"\n";
    let with = |tiers: &str| {
        let text = format!("trusted_proxies = \"10.0.0.1\"\n{BASE}{tier}[limit.default]\n{tiers}");
        codes(&text)
    };
    assert_eq!(with("rate = \"9/s\"\ntiers = { Pro = \"9/s\" }"), ["T112"]);
    assert_eq!(with("rate = \"9/s\"\ntiers = { pro = 9 }"), ["T103"]);
    assert_eq!(with("rate = \"9/s\"\ntiers = \"pro\""), ["T103"]);
    assert_eq!(
        with("rate = \"9/s\"\ncost = 5\ntiers = { pro = \"4/s\" }"),
        ["T121"]
    );
    let route = "[[route]]\npath = \"/a\"\ncost = 5\n";
    let text = format!("rate = \"9/s\"\ntiers = {{ pro = \"4/s\" }}\n{route}");
    assert_eq!(with(&text), ["T121"]);
}

#[test]
fn a_candidate_is_counted_beside_the_rate() {
    let limit = limit("rate = \"100/min\"\ncandidate = \"60/min\"\nshadow = true");
    assert!(limit.shadow && limit.candidate[0].rule.units == 60);
    assert_ne!(limit.candidate[0].identity, limit.windows[0].identity);
    assert_eq!(wrong("rate = \"9/s\"\ncandidate = \"9\""), ["T109"]);
}

#[test]
fn slots_are_held_and_have_no_window() {
    let limit = limit("concurrent = 50\nhold = \"30s\"\nslot = \"checkout\"");
    let rule = limit.windows[0].rule;
    assert_eq!((rule.algorithm, rule.units), (Algorithm::Slots, 50));
    assert_eq!(rule.window_us, 30_000_000);
    assert_eq!(limit.slot.as_deref(), Some("checkout"));
    check(
        &format!("{BASE}[limit.default]\nconcurrent = 5\nrate = \"9/s\"\n"),
        r#"error[T124]: `limit.default` has `concurrent` and `rate`
 --> proxy.toml:4:1
  |
3 | concurrent = 5
  |              - is for requests at one time
4 | rate = "9/s"
  | ^^^^ is for requests over time
help: make two limits of them: a route may have both
"#,
    );
    for key in [
        "algorithm = \"log\"",
        "precision = \"1s\"",
        "candidate = \"9/s\"",
        "lease = \"10ms\"",
    ] {
        assert_eq!(wrong(&format!("concurrent = 5\n{key}")), ["T124"], "{key}");
    }
    assert_eq!(wrong("rate = \"9/s\"\nhold = \"30s\""), ["T124"]);
    assert_eq!(wrong("concurrent = 0"), ["T105"]);
    assert_eq!(wrong("concurrent = \"5\""), ["T103"]);
    assert_eq!(wrong("concurrent = 5\ncost = 6"), ["T121"]);
    assert_eq!(wrong("rate = \"9/s\"\nslot = \"{a}\""), ["T112"]);
}

#[test]
fn a_lease_lies_well_within_its_window() {
    assert_eq!(limit("rate = \"9/s\"\nlease = \"10ms\"").lease_us, 10_000);
    assert_eq!(wrong("rate = \"9/20ms\"\nlease = \"10ms\""), ["T124"]);
    assert_eq!(wrong("rate = \"9/h\"\nlease = \"2s\""), ["T105"]);
    let counter = "rate = \"9/s\"\nlease = \"10ms\"\nalgorithm = \"counter\"";
    assert_eq!(wrong(counter), ["T124"]);
}

#[test]
fn exempt_are_addresses_networks_and_keys() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        file.path(),
        "# partners\n192.0.2.7  # Ann\n\nother-key\t# a#b\npartner\n",
    )
    .unwrap();
    let limit = limit(&format!(
        "rate = \"9/s\"\nexempt = [\"10.1.2.3/8\", \"2001:db8::/32\", \"partner\"]\n\
         exempt_file = \"{}\"",
        file.path().display()
    ));
    let nets: Vec<String> = limit
        .exempt
        .nets
        .iter()
        .map(|net| net.to_string())
        .collect();
    assert_eq!(nets, ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"]);
    let keys = ["partner", "other-key"].map(str::as_bytes);
    assert_eq!(limit.exempt.keys, keys.into_iter().collect());
    for slip in ["10.0.0.0/33", "10.0.0", "::g::1/64", ""] {
        let found = wrong(&format!("rate = \"9/s\"\nexempt = [\"{slip}\"]"));
        let is_key = slip.contains('g');
        assert_eq!(found, if is_key { vec![] } else { vec!["T113"] }, "{slip}");
    }
    std::fs::write(file.path(), "10.0.0.0/33\nfine\n").unwrap();
    let found = refuse(&format!(
        "{BASE}[limit.default]\nrate = \"9/s\"\nexempt_file = \"{}\"\n",
        file.path().display()
    ));
    let said = found.to_string();
    assert!(
        said.contains("T108") && said.contains("line 1: a prefix"),
        "{said}"
    );
}

#[test]
fn routes_give_units_back() {
    let limits = "[limit.a]\nrate = \"9/s\"\n[limit.b]\nrate = \"9/s\"\nkey = \"global\"\n\
         [limit.c]\nconcurrent = 5\n";
    let route = "[[route]]\npath = \"/a\"\nsettle = \"response-header:X-Cost\"\n\
         refund = [\"5xx\", \"404\"]\n";
    let other = "[[route]]\npath = \"/b\"\nlimits = [\"b\"]\n";
    let config = fine(&format!(
        "{BASE}{limits}{route}limits = [\"a\", \"c\"]\n{other}"
    ));
    let refunds = |name: &str| {
        let limit = config.limits.iter().find(|limit| &*limit.name == name);
        limit.unwrap().refunds
    };
    assert_eq!(["a", "b", "c"].map(refunds), [true, false, false]);
    let route_a = config
        .routes
        .iter()
        .find(|route| &*route.name == "/a")
        .unwrap();
    assert_eq!(route_a.settle_header().unwrap(), "x-cost");
    let status = |code| http::StatusCode::from_u16(code).unwrap();
    assert!(route_a.refund.contains(status(503)) && !route_a.refund.contains(status(403)));

    let bad = |route: &str, line: &str| codes(&format!("{BASE}{limits}{other}{route}{line}"));
    let only = "[[route]]\npath = \"/a\"\nlimits = [\"c\"]\nrefund = \"5xx\"\n";
    assert_eq!(bad(only, ""), ["T124"]);
    let route = "[[route]]\npath = \"/a\"\nlimits = [\"a\", \"c\"]\n";
    assert_eq!(bad(route, "refund = [\"6xx\"]"), ["T116"]);
    assert_eq!(bad(route, "refund = []"), ["T105"]);
    assert_eq!(bad(route, "settle = \"header:x-cost\""), ["T111"]);
}

#[test]
fn a_limit_holds_requests_where_it_knows_when_they_may_pass() {
    let held = limit("rate = \"1/100ms\"\ndelay = \"2s\"");
    let delay = held.delay.unwrap();
    assert_eq!((delay.longest_us, delay.queue), (2_000_000, 100));
    assert!(held.refunds, "clients leave while they wait");
    let queue = limit("rate = \"1/s\"\ndelay = \"1min\"\ndelay_queue = 7");
    assert_eq!(queue.delay.unwrap().queue, 7);
    assert_eq!(limit("rate = \"1/s\"").delay, None);
    assert_eq!(wrong("concurrent = 5\ndelay = \"2s\""), ["T132"]);
    assert_eq!(
        wrong("rate = \"5/s\"\nalgorithm = \"counter\"\ndelay = \"2s\""),
        ["T132"]
    );
    assert_eq!(wrong("rate = \"5/s\"\ndelay_queue = 7"), ["T124"]);
    assert_eq!(
        wrong("rate = \"5/s\"\nlease = \"10ms\"\ndelay = \"2s\""),
        ["T124"]
    );
    assert_eq!(wrong("rate = \"5/s\"\ndelay = \"31min\""), ["T105"]);

    let beside = "[limit.a]\nrate = \"9/s\"\ndelay = \"1s\"\n[limit.b]\nrate = \"9/s\"\n\
         key = \"global\"\n[[route]]\npath = \"/a\"\nlimits = [\"a\", \"b\"]\n";
    let config = fine(&format!("{BASE}{beside}"));
    assert!(config.limits.iter().all(|limit| limit.refunds));
}

#[test]
fn a_ban_has_defaults_and_bounds() {
    let ban = |lines: &str| format!("rate = \"5/min\"\nban = {{ {lines} }}");
    let read = |lines: &str| limit(&ban(lines)).ban.unwrap();
    let hour = 3_600_000_000;
    let first = read("after = \"20/10min\", for = \"1h\"");
    assert_eq!((first.after, first.window_us), (20, hour / 6));
    assert_eq!(
        (first.first_us, first.again, first.max_us),
        (hour, 2, 24 * hour)
    );
    assert_eq!(read("after = \"20/h\", for = \"2d\"").max_us, 48 * hour);
    let own = read("after = \"9/s\", for = \"1s\", again = 1, max_for = \"1s\"");
    assert_eq!((own.again, own.max_us), (1, 1_000_000));
    assert!(limit("rate = \"5/min\"").ban.is_none());
    for (lines, codes) in [
        ("after = \"20/10min\"", vec!["T104"]),
        ("for = \"1h\"", vec!["T104"]),
        ("after = \"1001/h\", for = \"1h\"", vec!["T134"]),
        ("after = \"20/week\", for = \"1h\"", vec!["T134"]),
        (
            "after = \"20/h\", for = \"1h\", max_for = \"59min\"",
            vec!["T134"],
        ),
        ("after = \"20/h\", for = \"1h\", again = 0", vec!["T105"]),
        ("after = \"unlimited\", for = \"1h\"", vec!["T109"]),
        (
            "after = \"20/h\", for = \"1h\", until = \"noon\"",
            vec!["T101"],
        ),
        ("after = \"4/h\", for = \"1h\"", vec!["T235"]),
    ] {
        assert_eq!(wrong(&ban(lines)), codes, "{lines}");
    }
    let shared = "key = \"global\"\nban = { after = \"20/h\", for = \"1h\" }";
    assert_eq!(wrong(&format!("rate = \"5/min\"\n{shared}")), ["T234"]);
}

#[test]
fn no_limit_has_the_name_of_a_block() {
    assert_eq!(
        codes(&format!("{BASE}[limit.block]\nrate = \"9/s\"\n")),
        ["T112"]
    );
    let route = "[[route]]\npath = \"/block\"\nlimits = [\"9/s\"]\n";
    let (config, _) = accept(&format!("{BASE}{route}"));
    assert_eq!(&*config.limits[0].name, "block-2");
}
