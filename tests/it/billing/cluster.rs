//! The ledger in a Redis Cluster while a node is away, or a hash moves.

use super::{ask, start, wait_for};
use crate::cluster::faults::move_slot;
use crate::cluster::nodes::{RedisCluster, words};
use crate::house::Upstream;
use crate::look::command;
use crate::probe::eventually;

/// The hash of `acme` on a day, and its slot.
fn hash_of_acme(cluster: &RedisCluster, date: &str) -> (String, usize) {
    let tag = format!("ledger:{date}:11");
    let slot = cluster.nodes[0].run(&format!("CLUSTER KEYSLOT {tag}"));
    let slot: usize = redis::from_redis_value(slot).unwrap();
    (format!("tidegate:{{{tag}}}"), slot)
}

fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}

#[test]
fn a_master_that_is_away_keeps_only_its_own_hashes_from_the_ledger() {
    let upstream = Upstream::ok();
    let cluster = RedisCluster::start(false, &["--cluster-require-full-coverage", "no"]);
    let looked = start(&upstream, &cluster.url(), "");
    let (hash, slot) = hash_of_acme(&cluster, &today());
    let own = cluster.master_of(slot);
    let silent = (own + 1) % 3;
    cluster.nodes[silent].freeze();
    let requests = |cluster: &RedisCluster| {
        words(&cluster.nodes[own].run(&format!("HGET {hash} r:acme"))).join("")
    };
    assert_eq!(ask(&looked, "/", "k-acme").status, 200);
    eventually("acme is in the ledger", || requests(&cluster) == "1");
    let directory = looked.tidegate.directory.path();
    let usage = command(directory, &["usage", "--from", &today(), "--csv"]);
    let (table, errors) = (
        String::from_utf8(usage.stdout).unwrap(),
        String::from_utf8(usage.stderr).unwrap(),
    );
    assert_eq!(usage.status.code(), Some(1), "{errors}");
    assert!(table.contains("acme,client,"), "{table}");
    let name = format!(
        "on 127.0.0.1:{} (first: `tidegate:{{ledger:",
        cluster.port(silent)
    );
    assert!(errors.contains(&name), "{errors}");
    assert_eq!(looked.get("/api/v1/usage").status, 503);
    assert_eq!(ask(&looked, "/", "k-acme").status, 200);
    let mut tidegate = looked.tidegate;
    tidegate.signal("TERM");
    tidegate.wait();
    assert_eq!(requests(&cluster), "2");
    cluster.nodes[silent].thaw();
}

#[test]
fn a_hash_that_moves_makes_no_warning() {
    let (upstream, cluster) = (Upstream::ok(), RedisCluster::start(false, &[]));
    let looked = start(&upstream, &cluster.url(), "");
    assert_eq!(ask(&looked, "/", "k-acme").status, 200);
    wait_for(&looked, &[("acme", 1)]);
    let (_, slot) = hash_of_acme(&cluster, &today());
    move_slot(&cluster, slot, cluster.master_of(slot));
    assert_eq!(ask(&looked, "/", "k-acme").status, 200);
    wait_for(&looked, &[("acme", 2)]);
    let said = looked.tidegate.said();
    let warns = |line: &String| line.contains("the store takes no usage");
    assert!(!said.iter().any(warns), "{said:?}");
}
