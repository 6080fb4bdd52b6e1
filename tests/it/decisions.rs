//! The decision benchmark, quickly: what its table says of exactness and waits, where that does
//! not depend on the machine.

#[path = "../../bench/decisions/bench.rs"]
#[allow(
    dead_code,
    reason = "the benchmark's tables and longer plan are for its own main"
)]
mod bench;

use bench::QUICK;
use bench::bytes::Window;
use bench::contender::{Contender, Wait};
use bench::exactness::Exactness;
use bench::honesty::Waits;

use crate::support::RedisServer;

fn exactness(server: &RedisServer, contender: Contender) -> Exactness {
    bench::exactness::measure(server, contender, 0)
}

#[test]
fn ours_never_holds_more_than_its_limit_and_its_waits_are_true() {
    let server = RedisServer::start();
    let found = bench::measure(&server, Contender::Log, &QUICK);
    let exactness = found.exactness;
    assert!(exactness.at_once.unwrap() <= 100.0, "{exactness:?}");
    for percent in [exactness.boundary, exactness.instant, exactness.persistent] {
        assert_eq!(percent, 100.0, "{exactness:?}");
    }
    let honesty = found.honesty;
    for waits in [honesty.ones.unwrap(), honesty.mixed.unwrap()] {
        assert_eq!((waits.honest, waits.worst_us), (waits.denials, 0));
    }
    assert_eq!(honesty.above, Wait::Never);
    assert!(found.allowed.process_us > 0.0 && found.denied.script_us > 0.0);
}

#[test]
fn a_unit_of_ours_takes_eight_bytes_and_one_of_a_sorted_set_a_hundred() {
    let server = RedisServer::start();
    let window = Window {
        units: 1_000,
        window_us: bench::bytes::SHORT_US,
    };
    let bytes = |contender| bench::bytes::measure(&server, contender, window, 20_000);
    let ours = bytes(Contender::Log);
    assert!((8_000.0..11_000.0).contains(&ours), "{ours}");
    let sorted_set = bytes(Contender::VideoApi);
    assert!(sorted_set > 100_000.0, "{sorted_set}");
}

#[test]
fn our_counter_is_an_estimate_with_true_waits() {
    let server = RedisServer::start();
    let exactness = exactness(&server, Contender::Counter);
    assert!(
        (150.0..=200.0).contains(&exactness.boundary),
        "{exactness:?}"
    );
    let honesty = bench::honesty::measure(&server, Contender::Counter, QUICK.waits);
    for waits in [honesty.ones.unwrap(), honesty.mixed.unwrap()] {
        assert_eq!((waits.honest, waits.worst_us), (waits.denials, 0));
    }
}

#[test]
fn the_articles_limiters_have_the_faults_that_the_page_tells_of() {
    let server = RedisServer::start();
    // A client that keeps trying is locked out; one millisecond is one member.
    let multi_exec = exactness(&server, Contender::MultiExec);
    assert_eq!((multi_exec.persistent, multi_exec.instant), (0.0, 300.0));
    // Twice the limit at a boundary.
    for contender in [
        Contender::TwoCounters,
        Contender::Buckets,
        Contender::FixedWindow,
    ] {
        let exactness = exactness(&server, contender);
        assert!(exactness.boundary > 150.0, "{contender:?}: {exactness:?}");
    }
    // Two requests of one microsecond are one member; else it is exact.
    let production_ready = exactness(&server, Contender::ProductionReady);
    assert_eq!(
        (production_ready.boundary, production_ready.instant),
        (100.0, 300.0)
    );
}

#[test]
fn the_oldest_entrys_wait_is_true_for_a_cost_of_one_alone() {
    let server = RedisServer::start();
    let contender = Contender::VideoApi;
    assert_eq!(exactness(&server, contender).boundary, 100.0);
    let honesty = bench::honesty::measure(&server, contender, QUICK.waits);
    let dishonest = |waits: Waits| waits.denials - waits.honest;
    assert_eq!(honesty.ones.unwrap().worst_us, 0);
    assert!(dishonest(honesty.mixed.unwrap()) > 0);
    assert!(honesty.mixed.unwrap().worst_us > 1_000_000);
    // Told to come back, although it can never pass.
    assert_eq!(honesty.above, Wait::Us(1_000_000));
}

#[test]
fn every_contender_is_measured() {
    let server = RedisServer::start();
    let plan = bench::Plan {
        at_once: 0,
        ..QUICK
    };
    let found = bench::measure_all(&server, &plan);
    let own = bench::own(&server, &plan);
    let tables = bench::table::tables("a machine", &plan, &found, &own);
    for contender in bench::contender::ALL {
        let row = format!("\n| {} |", contender.name());
        assert_eq!(tables.matches(&row).count(), 4, "{tables}");
    }
    let page = bench::table::page_with(include_str!("../../docs/decisions.md"), &tables);
    assert!(page.contains(&tables));
}
