//! Bans of a replay, beside a model in a few lines.

use super::super::*;
use super::config_of;
use crate::bans::{BanCounts, BanTotals, RecordName};

const LIMITS: &str = "upstream = \"http://127.0.0.1:9\"\n\
    [limit.a]\nrate = \"2/10s\"\nexempt = [\"192.0.2.9\"]\n\
    ban = { after = \"3/20s\", for = \"15s\", again = 2, max_for = \"1min\" }\n\
    [[route]]\npath = \"/a\"\nlimits = [\"a\"]\n[[route]]\npath = \"/*\"\nlimits = []\n";

fn replayed(requests: impl Iterator<Item = (u64, &'static str, u8)>) -> Engine {
    let mut engine = Engine::new(config_of(LIMITS), "", 1000);
    for (second, path, client) in requests {
        engine.take(&LogEntry {
            at_us: 1_000_000_000 + second * 1_000_000,
            dates: Dated::End,
            peer: [192, 0, 2, client].into(),
            client: None,
            method: "GET".into(),
            target: path.into(),
            host: None,
            port: None,
            status: 200,
            duration_us: None,
            headers: crate::entry::Headers::new(),
            tokens: None,
        });
    }
    engine.finish();
    engine
}

#[test]
fn a_client_that_goes_on_is_banned_for_longer() {
    let engine = replayed((0..200).map(|second| (second, "/a", 1)));
    // The same by hand.
    let (mut admitted, mut denials): (Vec<u64>, Vec<u64>) = Default::default();
    let (mut until, mut remembered, mut length, mut bans) = (0, 0, 0, 0);
    let (mut banned, mut denied) = (0, 0);
    for now in 0..200 {
        if now < until {
            (banned, denied) = (banned + 1, denied + 1);
            continue;
        }
        admitted.retain(|at| at + 10 > now);
        denials.retain(|at| at + 20 > now);
        if admitted.len() < 2 {
            admitted.push(now);
            continue;
        }
        denied += 1;
        denials.push(now);
        if denials.len() == 3 {
            length = if now < remembered {
                60.min(2 * length)
            } else {
                15
            };
            (until, remembered) = (now + length, now + length + 150);
            denials.clear();
            bans += 1;
        }
    }
    assert!(bans > 2);
    let found = &engine.counts.bans;
    let counts = BanCounts {
        bans,
        denied: banned,
    };
    let banned: Vec<(&RecordName, &BanCounts)> = found.banned.iter().collect();
    assert_eq!((banned.len(), *banned[0].1), (1, counts));
    assert_eq!(engine.counts.totals.denied.own, denied);
}

#[test]
fn an_address_is_banned_on_every_route_and_an_exempt_one_on_none() {
    let denied = (0..5).map(|second| (second, "/a", 1));
    let free = [
        (5, "/free", 1),
        (6, "/free", 2),
        (7, "/free", 1),
        (40, "/free", 1),
    ];
    let exempt = (41..60).map(|second| (second, "/a", 9));
    let engine = replayed(denied.chain(free).chain(exempt));
    let totals = BanTotals { bans: 1, denied: 2 };
    assert_eq!(engine.counts.bans.totals, totals);
    assert_eq!(engine.counts.totals.denied.own, 5);
    assert_eq!(engine.counts.totals.outside[&Outside::Unlimited], 2);
}
