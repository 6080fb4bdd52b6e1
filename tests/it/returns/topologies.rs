//! The same where the store is several servers: behind sentinels, and a Cluster.
//!
//! Replication is asynchronous: a replica that takes over lacks the units that its master had not
//! passed on. Each proxy knows the units that were admitted through it, and keeps to its share
//! until it has charged them again. So the bound is the limit, with no addition for what was lost.

use std::time::{Duration, Instant};

use super::{LIMIT, LOADS, PROXIES, RedisServer, Tidegate, Upstream, admissions, counted, fleet};
use super::{eventually, fullest, fullest_window};
use crate::cluster::nodes::{RedisCluster, words};
use crate::topologies::sentinels::Constellation;

/// The limit is used up, and hardly half of it is.
const USED_UP: [u64; PROXIES] = LOADS[0].paces;
const HALF_USED: [u64; PROXIES] = LOADS[1].paces;

/// A proxy has left the old master so long, at most, before it has found the new one.
const TO_CONNECT: Duration = Duration::from_millis(100);

/// Whether a server is a master, as it says itself.
fn is_master(server: &RedisServer) -> bool {
    words(&server.run("ROLE")).first().map(String::as_str) == Some("master")
}

/// Whether a server holds the count of the limit.
fn holds_the_count(server: &RedisServer) -> bool {
    !words(&server.run("KEYS tidegate:{*}default.*")).is_empty()
}

fn behind_sentinels(upstream: &Upstream) -> (Constellation, Vec<Tidegate>, u16) {
    let constellation = Constellation::start();
    let first = constellation.master().expect("a master");
    let master = constellation.server(first);
    let proxies = fleet(&constellation.url(), upstream, || counted(master));
    (constellation, proxies, first)
}

/// On a busy machine sentinels may replace the new master as well, by a replica that has nothing of
/// it. `docs/outages.md` concedes that. It is another world, so this tries again.
fn a_killed_master_is_replaced(paces: [u64; PROXIES]) {
    let name = format!("Sentinel, master killed, {paces:?}");
    for _ in 0..3 {
        let upstream = Upstream::ok();
        let (mut constellation, proxies, first) = behind_sentinels(&upstream);
        let mut second = None;
        let most = fullest_window(&name, &proxies, paces, || {
            let away = Instant::now();
            constellation.kill(first);
            let (at, port) = constellation.agreed(first);
            second = Some(port);
            (away, at)
        });
        if constellation.master() == second {
            assert!(most <= LIMIT, "{name}: {most}");
            return;
        }
        println!("{name}: replaced twice");
    }
    panic!("{name}: replaced twice, three times");
}

#[test]
fn no_window_is_overfull_when_sentinels_replace_a_killed_master_of_a_used_up_limit() {
    a_killed_master_is_replaced(USED_UP);
}

#[test]
fn no_window_is_overfull_when_sentinels_replace_a_killed_master_of_a_half_used_limit() {
    a_killed_master_is_replaced(HALF_USED);
}

#[test]
fn no_window_is_overfull_when_sentinels_are_asked_for_a_failover() {
    let upstream = Upstream::ok();
    let (constellation, proxies, first) = behind_sentinels(&upstream);
    let name = "Sentinel, asked to go";
    let admissions = admissions(name, &proxies, HALF_USED, || {
        let away = Instant::now();
        (away, constellation.fail_over(first).0)
    });
    // A proxy that has left the old master does not hear what the others use there. It may admit its
    // part of these units too: `docs/outages.md` concedes that.
    let moves =
        (proxies.iter()).flat_map(|proxy| proxy.said_at("redis: connected to a new master"));
    let moves: Vec<Instant> = moves.collect();
    let (first, last) = (moves.iter().min().unwrap(), moves.iter().max().unwrap());
    let meanwhile = admissions.within(*first - TO_CONNECT, *last);
    let most = fullest(&admissions.passed);
    println!(
        "{name}: {meanwhile} while proxies moved, in {:?}",
        *last - *first
    );
    assert!(most <= LIMIT + meanwhile, "{most}, {meanwhile}");
}

/// What becomes of the master of the limit's count after it was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Replaced,
    ReturnsWithItsData,
    ReturnsEmpty,
}

fn a_master_of_a_cluster_is_lost(then: Then, paces: [u64; PROXIES]) {
    let keeps = ["--appendonly", "yes", "--appendfsync", "always"];
    let options: &[&str] = match then {
        Then::ReturnsWithItsData => &keeps,
        _ => &[],
    };
    let options = [options, &["--cluster-require-full-coverage", "no"]].concat();
    let mut cluster = RedisCluster::start(then == Then::Replaced, &options);
    let upstream = Upstream::ok();
    let proxies = fleet(&cluster.url(), &upstream, || {
        let masters = cluster.nodes[..3].iter();
        masters.map(counted).max().unwrap_or(0)
    });
    let name = format!("Cluster, master lost, {then:?}, {paces:?}");
    let most = fullest_window(&name, &proxies, paces, || {
        let masters = &cluster.nodes[..3];
        let lost = masters.iter().position(holds_the_count).expect("a count");
        let away = Instant::now();
        cluster.nodes[lost].kill();
        match then {
            Then::Replaced => eventually("a replica takes over", || {
                is_master(&cluster.nodes[lost + 3])
            }),
            Then::ReturnsWithItsData | Then::ReturnsEmpty => {
                let [one, other] = [(lost + 1) % 3, (lost + 2) % 3];
                eventually("the others know that it is lost", || {
                    [one, other].iter().all(|node| {
                        let nodes = words(&cluster.nodes[*node].run("CLUSTER NODES"));
                        nodes.join("").contains("master,fail ")
                    })
                });
                cluster.nodes[lost].restart();
            }
        }
        (away, Instant::now())
    });
    assert!(most <= LIMIT, "{name}: {most}");
}

#[test]
fn no_window_is_overfull_when_a_replica_takes_over_in_a_cluster_from_a_used_up_limit() {
    a_master_of_a_cluster_is_lost(Then::Replaced, USED_UP);
}

#[test]
fn no_window_is_overfull_when_a_replica_takes_over_in_a_cluster_from_a_half_used_limit() {
    a_master_of_a_cluster_is_lost(Then::Replaced, HALF_USED);
}

#[test]
fn no_window_is_overfull_when_a_master_of_a_cluster_returns_with_its_data() {
    a_master_of_a_cluster_is_lost(Then::ReturnsWithItsData, HALF_USED);
}

/// The sum of the shares is the limit.
#[test]
fn no_window_is_overfull_when_a_master_of_a_cluster_returns_empty() {
    a_master_of_a_cluster_is_lost(Then::ReturnsEmpty, HALF_USED);
}
