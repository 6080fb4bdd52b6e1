//! The fast path beside the general one.

use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::config::{self, Config};
use crate::formats::LineReader;
use crate::plan;

const LIMITS: &str = "upstream = \"http://127.0.0.1:9\"\n\
    [client_ip]\nipv4_prefix = 31\n\
    [limit.known]\nrate = \"2/s\"\nkey = \"api_key or ip\"\ncandidate = \"1/s\"\n\
    [limit.twice]\nrate = [\"2/s\", \"3/2s\"]\nkey = \"ip\"\ncost = 2\n\
    [limit.place]\nrate = \"2/s\"\nkey = [\"ip\", \"path\"]\nshadow = true\n\
    [limit.rough]\nrate = \"4/5s\"\nkey = \"ip\"\nalgorithm = \"counter\"\n\
    [limit.spared]\nrate = \"1/s\"\nkey = \"ip\"\nexempt = [\"192.0.2.3\", \"secret-key\"]\n\
    tiers = { free = \"2/s\", staff = \"unlimited\" }\n\
    [limit.each]\nrate = \"3/2s\"\nkey = \"ip\"\ncounts = \"requests\"\n\
    [[route]]\npath = \"/a\"\nlimits = [\"known\", \"twice\"]\n\
    [[route]]\npath = \"/a\"\nmethods = [\"POST\"]\nlimits = [\"rough\", \"known\"]\n\
    refund = [\"5xx\"]\n\
    [[route]]\npath = \"/b/{id}\"\nlimits = [\"place\", \"rough\"]\n\
    [[route]]\npath = \"/c\"\nlimits = [\"spared\", \"known\"]\n\
    [[route]]\npath = \"/d/*\"\nlimits = []\n\
    [[route]]\npath = \"/e\"\nlimits = [\"each\", \"rough\"]\ncost = 2\n";

const TARGETS: [&str; 13] = [
    "/a",
    "/a?q=1",
    "/b/1",
    "/b/2#x",
    "/b/x/../1;",
    "/b/%31",
    "//a/",
    "/c",
    "/d/1",
    "/e",
    "/c?key=secret-key",
    "/a?key=k",
    "/none",
];

const TIERED: &str = "tiers = { free = \"2/s\", staff = \"unlimited\" }\n";

/// What says a client's tier, of which a line may have some.
const TIERS: [&str; 4] = [
    "",
    "[tier]\nfrom = \"header:x-tier\"\ndefault = \"free\"\n",
    "[tier]\nfrom = \"header:x-tier\"\ndefault = \"staff\"\n",
    "[tier]\nfrom = \"header:x-tier\"\n",
];

/// What a file may have beside its limits.
const MORE: [&str; 4] = [
    "[[bypass]]\npath = \"/b/{id}\"\n",
    "[[bypass]]\nip = [\"192.0.2.2/31\"]\npath = \"/a\"\n",
    "[[bypass]]\nip = [\"192.0.2.5\"]\n",
    "[api_key]\nfrom = [\"query:key\"]\nunknown = \"trust\"\n",
];

fn config_of(text: &str) -> Config {
    let (config, _) = config::parse("test", text, &|_| None).unwrap();
    config
}

/// Of a line: seconds since the one before (0 is one back), client, target, method, status, tail.
type Made = (u8, u8, usize, usize, bool, usize);

fn made() -> impl Strategy<Value = Made> {
    let gap = prop_oneof![8 => Just(1), 1 => Just(0), 4 => 2..4_u8];
    (
        gap,
        1..6_u8,
        0..TARGETS.len(),
        0..4_usize,
        any::<bool>(),
        0..6_usize,
    )
}

fn line(at_s: &mut u64, (gap, client, target, method, fails, tail): Made) -> String {
    *at_s = (*at_s + u64::from(gap)).saturating_sub(1);
    let target = TARGETS[target];
    let method = ["GET", "POST", "HEAD", "BREW"][method];
    let status = if fails { 503 } else { 200 };
    const TAILS: [&str; 6] = [
        "",
        " \"-\" \"agent\"",
        " \"http://x/\\\"\" \"a\"",
        " \"-\" \"a\" 0.5",
        " x",
        "\r",
    ];
    let tail = TAILS[tail];
    let mut line = String::new();
    let time = format!("{:02}:{:02}", *at_s / 60 % 60, *at_s % 60);
    let _ = write!(
        line,
        "192.0.2.{client} - - [20/Nov/2026:00:{time} +0000] \"{method} {target} HTTP/1.1\" \
         {status} 12{tail}"
    );
    line
}

/// All that an engine has counted.
fn counted(engine: &Engine) -> String {
    let mut text = format!(
        "{:?}\n",
        (engine.counts.totals.requests, engine.counts.totals.denied)
    );
    let mut outside: Vec<_> = engine.counts.totals.outside.iter().collect();
    outside.sort_unstable();
    let mut exempt: Vec<_> = engine.counts.totals.exempt.iter().collect();
    exempt.sort_unstable();
    let _ = writeln!(
        text,
        "{outside:?} {exempt:?} {:?}",
        engine.counts.totals.times
    );
    for seen in &engine.counts.rows {
        let _ = writeln!(
            text,
            "{:?}",
            (seen.asked, seen.denied, seen.minutes.clone().into_sorted())
        );
    }
    for meter in &engine.counts.meters {
        for one in meter.keys() {
            let known = (&one.name, one.asked, one.denied, one.hit, one.need, one.row);
            let _ = writeln!(text, "{known:?}");
        }
    }
    for space in 0..engine.plan.key_spaces.len() {
        let _ = writeln!(text, "{:?}", engine.key_spaces.carried(space));
    }
    for thing in 0..2 + engine.counts.rows.len() {
        let _ = writeln!(text, "{:?}", engine.counts.timeline.counts(thing));
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_fast_path_counts_what_the_general_one_does(
        trace in prop::collection::vec(made(), 1..150),
        trusted in any::<bool>(),
        keys in prop::sample::select(vec![1_000_000, 1]),
        more in prop::sample::subsequence(MORE.to_vec(), 0..=MORE.len()),
        tier in prop::sample::select(TIERS.to_vec()),
    ) {
        let mut text = String::new();
        if trusted {
            text += "trusted_proxies = \"192.0.2.4/31\"\n";
        }
        text += &LIMITS.replace(if tier.is_empty() { TIERED } else { "nothing" }, "");
        text += tier;
        text += &more.concat();
        let new = || Engine::new(config_of(&text), "", keys);
        let (mut quick, mut slow) = (new(), new());
        slow.route_cache = None;
        slow.fast_paths.clear();
        let (mut reader, mut other) = (LineReader::new(None, &[]), LineReader::new(None, &[]));
        reader.wanted = plan::ReplayPlan::new(&config_of(&text)).wanted_fields();
        let (mut at_s, mut short) = (60, 0);
        for made in trace {
            let line = line(&mut at_s, made);
            let plain = reader.read_plain(line.as_bytes());
            let taken = plain.is_some_and(|plain| quick.take_plain(&plain));
            short += usize::from(taken);
            if !taken && let Ok((entry, _)) = reader.read(line.as_bytes()) {
                quick.take(&entry);
            }
            if let Ok((entry, _)) = other.read(line.as_bytes()) {
                slow.take(&entry);
            }
        }
        prop_assert!(slow.counts.totals.requests < 100 || short > 0);
        prop_assert_eq!(counted(&quick), counted(&slow));
    }
}
