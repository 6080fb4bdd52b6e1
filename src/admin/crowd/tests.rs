//! What the crowd of clients looks like to its sketches.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::limit::{Algorithm, Key, Rule};

fn limit(name: &str) -> Limit {
    let rule = Rule {
        algorithm: Algorithm::Log,
        units: 100,
        window_us: 60_000_000,
        precision_us: 1,
    };
    Limit::new(name, &[rule], Key::parse(["ip"]).unwrap())
}

fn entry(client: u128, remaining: u32) -> TrailEntry {
    TrailEntry {
        tag: client.to_le_bytes(),
        limit: 0,
        denied: remaining == 0,
        again: false,
        remaining,
        units: 100,
    }
}

fn quarters(usage: LimitUse) -> [u64; 4] {
    [usage.q25, usage.q50, usage.q75, usage.q100]
}

#[test]
fn the_last_request_of_a_client_tells_its_use() {
    let mut crowd = Crowd::default();
    let tokens = limit("tokens");
    let use_at = |crowd: &Crowd, now| {
        let client = crowd.busiest("tokens", now).clients[0];
        (client.used, client.units)
    };
    crowd.record(&tokens, &entry(1, 10), 100);
    crowd.record(&tokens, &entry(1, 80), 101);
    assert_eq!(use_at(&crowd, 101), (20, 100));
    // Of several rates, the one that was used most.
    for (remaining, units, expected) in [(500, 1000, (500, 1000)), (990, 1000, (500, 1000))] {
        let other = TrailEntry {
            again: true,
            remaining,
            units,
            ..entry(1, 80)
        };
        crowd.record(&tokens, &other, 101);
        assert_eq!(use_at(&crowd, 101), expected);
    }
    // The sketch of the period before still knows it.
    assert_eq!(use_at(&crowd, 101 + SKETCH_PERIOD), (500, 1000));
    crowd.record(&tokens, &entry(1, 99), 101 + SKETCH_PERIOD);
    assert_eq!(use_at(&crowd, 101 + SKETCH_PERIOD), (1, 100));
}

#[test]
fn clients_are_recorded_by_limit() {
    let mut crowd = Crowd::default();
    let login = limit("login");
    for left in [90, 80, 70] {
        crowd.record(&login, &entry(1, left), 100);
    }
    crowd.record(&login, &entry(2, 0), 100);
    let BusiestClients { clients, requests } = crowd.busiest("login", 100);
    assert_eq!((clients.len(), requests), (2, 4));
    assert_eq!(
        (
            u128::from_le_bytes(clients[0].tag.0),
            clients[0].requests,
            clients[1].denied
        ),
        (1, 3, 1)
    );
    let usage = crowd.usage("login", 100);
    assert_eq!((usage.clients, usage.denied), (2, 1));
    assert_eq!(quarters(usage), [0, 1, 0, 1]);
    assert_eq!(crowd.headroom("login", 105), Some(0.0));
    assert_eq!(crowd.headroom("login", 200), Some(1.0));
    assert_eq!(crowd.headroom("other", 200), None);
    crowd.retain(|name| name != "login");
    assert!(crowd.busiest("login", 100).clients.is_empty());
}

#[test]
fn a_client_that_makes_nearly_all_requests_is_found() {
    let mut crowd = Crowd::default();
    let login = limit("login");
    for number in 0..100 {
        let client = if number % 20 == 0 { number } else { 1 };
        crowd.record(&login, &entry(client, 90), 100);
    }
    let found = |share, least| crowd.dominant("login", share, least, 100);
    assert_eq!(
        found(0.9, 100).map(|one| (u128::from_le_bytes(one.tag.0), one.requests)),
        Some((1, 95))
    );
    assert_eq!(found(0.96, 100), None);
    assert_eq!(found(0.9, 101), None);
    assert_eq!(crowd.dominant("other", 0.0, 0, 100), None);
}

#[test]
fn further_limits_are_not_recorded() {
    let mut crowd = Crowd::default();
    for number in 0..2 * MAX_LIMITS {
        crowd.record(&limit(&number.to_string()), &entry(1, 1), 100);
    }
    assert_eq!(crowd.limits.len(), MAX_LIMITS);
}

proptest! {
    #[test]
    fn its_bounds_hold_for_any_crowd(
        tags in proptest::collection::vec((0u32..2000, 0u32..4), 1..4000),
    ) {
        let (mut crowd, login) = (Crowd::default(), limit("login"));
        let mut truth: HashMap<u128, (u64, u64)> = HashMap::new();
        for (wide, narrow) in &tags {
            // A few clients with many requests, many with few.
            let tag = u128::from(if *narrow == 0 { *wide } else { *narrow });
            let denied = wide % 5 == 0;
            crowd.record(&login, &entry(tag, u32::from(!denied)), 1000);
            let counts = truth.entry(tag).or_default();
            counts.0 += 1;
            counts.1 += u64::from(denied);
        }
        let BusiestClients { clients, requests: all } = crowd.busiest("login", 1000);
        prop_assert_eq!(all, tags.len() as u64);
        prop_assert!(clients.len() <= MAX_BUSIEST);
        for client in &clients {
            let (requests, denied) = truth[&u128::from_le_bytes(client.tag.0)];
            prop_assert!(client.requests >= requests);
            prop_assert!(client.requests - client.error <= requests);
            prop_assert!(client.denied <= denied);
            prop_assert!(client.error <= all / MAX_BUSIEST as u64);
        }
        for (tag, (requests, _)) in truth {
            let found = clients.iter().any(|client| client.tag.0 == tag.to_le_bytes());
            prop_assert!(found || requests <= all / MAX_BUSIEST as u64);
        }
    }
}

#[test]
fn a_client_whose_tag_is_zero_keeps_its_place() {
    let (mut crowd, login) = (Crowd::default(), limit("login"));
    for tag in [0, 7, 0] {
        crowd.record(&login, &entry(tag, 1), 1000);
    }
    let clients = crowd.busiest("login", 1000).clients;
    assert_eq!((clients.len(), clients[0].requests), (2, 2));
}

#[test]
fn old_requests_are_forgotten() {
    let (mut crowd, login) = (Crowd::default(), limit("login"));
    let at = |periods: u64| 1000 + periods * SKETCH_PERIOD;
    crowd.record(&login, &entry(1, 1), at(0));
    crowd.record(&login, &entry(2, 1), at(1));
    assert_eq!(crowd.busiest("login", at(1)).clients.len(), 2);
    assert_eq!(crowd.busiest("login", at(2)).clients.len(), 1);
    assert_eq!(crowd.busiest("login", at(3)), BusiestClients::default());
    crowd.record(&login, &entry(3, 0), at(9));
    let BusiestClients { clients, requests } = crowd.busiest("login", at(9));
    assert_eq!((clients.len(), clients[0].denied, requests), (1, 1, 1));
}

/// As evenly spread as hashes are.
fn hash(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn request(number: u64, used: f32, denied: bool) -> SampledRequest {
    let hash = hash(number);
    SampledRequest { hash, used, denied }
}

#[test]
fn few_clients_are_counted_exactly() {
    let mut sample = ClientSample::new(60);
    for number in 0..100 {
        let used = number as f32 / 100.0;
        sample.record(request(number, used, number % 10 == 0), 1000);
    }
    let usage = sample.counts(1000);
    assert_eq!((usage.clients, usage.denied), (100, 10));
    assert_eq!(quarters(usage), [26, 25, 25, 24]);
    assert_eq!(sample.counts(1061), LimitUse::default());
}

#[test]
fn many_are_estimated_in_fixed_memory() {
    for many in [5_000, 100_000] {
        let mut sample = ClientSample::new(60);
        for number in 0..many {
            let used = if number % 4 == 0 { 0.9 } else { 0.1 };
            sample.record(request(number, used, false), 1000);
            assert!(sample.clients.len() <= MAX_SAMPLE);
        }
        let usage = sample.counts(1000);
        let off = usage.clients.abs_diff(many) as f64 / many as f64;
        assert!(off < 0.2, "{usage:?}");
        let high = usage.q100 as f64 / usage.clients as f64;
        assert!((high - 0.25).abs() < 0.08, "{usage:?}");
    }
}

#[test]
fn the_sample_grows_again_after_a_crowd() {
    let mut sample = ClientSample::new(60);
    (0..50_000).for_each(|number| sample.record(request(number, 0.5, false), 1000));
    let low = sample.bound;
    for second in 0..20 {
        (0..2000).for_each(|number| {
            let number = 1_000_000 + second * 2000 + number;
            sample.record(request(number, 0.5, false), 2000 + second * 100);
        });
    }
    assert!(sample.bound > low);
    let clients = sample.counts(3900).clients;
    assert!((1400..2600).contains(&clients), "{clients}");
}
