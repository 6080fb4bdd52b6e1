//! A panic of a worker's link to Redis loses that link; another is made as after any other loss.

#![cfg(debug_assertions)]

use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::clock;
use crate::config::{Fleet, RedisAddress, RedisSettings, RedisTopology, StoreKind, StoreSettings};
use crate::failpoint::control::arm_for;
use crate::limit::{Algorithm, Charge, Key, KeyHash, Limit, LimitCheck, OnError, Rule};
use crate::store::{Backing, Store, StoreError};

const PATIENCE: Duration = Duration::from_secs(20);
const PORT: u16 = 7379;

/// A server on an address that no other process has.
struct Server {
    child: Child,
    address: Ipv4Addr,
    _directory: tempfile::TempDir,
}

impl Server {
    fn start(number: u8, more: &[&str]) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, 64 + high % 64 + 64 * (number % 3), middle, low);
        // Ends with this process, however that ends.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "redis-server", "--save", ""])
            .args(["--port", &PORT.to_string(), "--bind", &address.to_string()])
            .args(more)
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server {
            child,
            address,
            _directory: directory,
        };
        let began = clock::now();
        while server.run(&["PING"]).is_none() {
            assert!(began.elapsed() < PATIENCE, "no redis-server");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    fn run(&self, words: &[&str]) -> Option<redis::Value> {
        let client = redis::Client::open(format!("redis://{}:{PORT}/", self.address));
        let mut connection = client.unwrap().get_connection().ok()?;
        redis::cmd(words[0])
            .arg(&words[1..])
            .query(&mut connection)
            .ok()
    }

    fn address(&self) -> RedisAddress {
        RedisAddress::Tcp(self.address.to_string(), PORT)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn backing(topology: RedisTopology, prefix: &str) -> Backing {
    let server = RedisSettings {
        topology,
        database: 0,
        username: None,
        password: None,
        tls: None,
    };
    let settings = StoreSettings {
        kind: StoreKind::Redis(server),
        prefix: prefix.to_owned(),
        // So long that whoever waits for it shows.
        timeout: PATIENCE,
        on_error: OnError::Local,
        fleet: Fleet::Fixed(1),
        hash_key: None,
        file: None,
        known_keys: false,
        max_keys: 1000,
        max_memory: 1 << 20,
    };
    Backing::new(&settings, None).unwrap()
}

fn charge() -> Charge {
    let rule = Rule {
        algorithm: Algorithm::Log,
        units: 1_000_000,
        window_us: 3_600_000_000,
        precision_us: 1,
    };
    let limit = Limit::new("trapped", &[rule], Key::all_of([]));
    let item = LimitCheck {
        window: std::sync::Arc::clone(&limit.windows[0]),
        limit: std::sync::Arc::new(limit),
        tag: KeyHash([7; 16]),
        anchor: None,
        cost: 1,
        asker: None,
    };
    [item].into_iter().collect()
}

/// Asks until the store decides; how many units are used then.
async fn decided(store: &Store) -> u64 {
    let began = clock::now();
    loop {
        let generation = store.hash_key().generation;
        match store.charge(&charge(), generation, clock::now()).await {
            Ok(decision) => return decision.verdicts[0].used,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn panics_cost_the_link_and_no_more(backing: &Backing, prefix: &'static str) {
    let body = async {
        let store = backing.open();
        store.ready().await;
        let mut used = decided(&store).await;
        for times in 1..=3 {
            // And then, before it can be made anew, a few more.
            let connecting = arm_for("redis.connect", prefix, times);
            let _calling = arm_for("redis.call", prefix, 1);
            let asked = clock::now();
            let generation = store.hash_key().generation;
            let answer = store.charge(&charge(), generation, clock::now()).await;
            assert_eq!(answer.unwrap_err(), StoreError::Lost);
            let second = store.charge(&charge(), generation, clock::now()).await;
            assert_eq!(second.unwrap_err(), StoreError::Away);
            assert!(asked.elapsed() < PATIENCE / 2, "somebody waited");
            // Nothing of it was charged.
            let now_used = decided(&store).await;
            assert_eq!(now_used, used + 1);
            used = now_used;
            assert_eq!(connecting.left(), 0);
        }
        assert_eq!(backing.away_since(), None);
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(body);
}

#[test]
fn a_panic_on_the_way_to_redis_costs_its_connection() {
    let server = Server::start(0, &[]);
    let prefix = "panics-single:";
    let backing = backing(RedisTopology::Single(server.address()), prefix);
    panics_cost_the_link_and_no_more(&backing, prefix);
}

#[test]
fn a_panic_on_the_way_to_a_cluster_costs_its_connections() {
    let server = Server::start(1, &["--cluster-enabled", "yes", "--cluster-port", "17379"]);
    server.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let seeds = vec![server.address()];
    let prefix = "panics-cluster:";
    let backing = backing(RedisTopology::Cluster { seeds }, prefix);
    panics_cost_the_link_and_no_more(&backing, prefix);
}
