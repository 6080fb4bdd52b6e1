//! A real Redis Cluster of this test alone, on free ports of loopback.

use std::time::{Duration, Instant};

use redis::Value;
use tidegate::config::{RedisAddress, RedisSettings, RedisTopology, StoreKind, StoreSettings};

use crate::house::PATIENCE;
use crate::support::{RedisServer, free_port, memory_settings};
use crate::topologies::certificates::Certificates;

/// Masters first, then a replica of each if there are any.
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
    masters: usize,
    /// Where each speaks TLS, if they do.
    tls: Vec<u16>,
}

impl RedisCluster {
    /// Three masters, and as many replicas if `replicated`; `arguments` for each node. Who is
    /// silent for a second is down.
    pub fn start(replicated: bool, arguments: &[&str]) -> RedisCluster {
        RedisCluster::build(replicated, arguments, Vec::new())
    }

    /// Three masters that speak TLS, also to each other; the test itself goes in beside it.
    pub fn start_over_tls(certificates: &Certificates) -> RedisCluster {
        let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let mut words = certificates.server("good", 0);
        words.drain(..2);
        words.extend(["--tls-auth-clients", "no", "--tls-cluster", "yes"].map(str::to_owned));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        RedisCluster::build(false, &words, ports)
    }

    fn build(replicated: bool, arguments: &[&str], tls: Vec<u16>) -> RedisCluster {
        let masters = 3;
        let count = if replicated { 2 * masters } else { masters };
        let node = |index: usize| {
            let secure = tls.get(index).map(u16::to_string);
            let bus = free_port().to_string();
            let mut words = vec!["--cluster-enabled", "yes", "--cluster-port", &bus];
            words.extend([
                "--cluster-node-timeout",
                "1000",
                "--repl-diskless-sync-delay",
                "0",
            ]);
            words.extend(arguments);
            if let Some(port) = &secure {
                words.extend(["--tls-port", port]);
            }
            RedisServer::start_with(&words)
        };
        let starting: Vec<_> = (0..count)
            .map(|index| std::thread::scope(|_| node(index)))
            .collect();
        let cluster = RedisCluster {
            nodes: starting,
            masters,
            tls,
        };
        for (index, share) in cluster.shares().enumerate() {
            let node = &cluster.nodes[index];
            node.run(&format!("CLUSTER ADDSLOTSRANGE {} {}", share.0, share.1));
            node.run(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
        }
        // Everyone meets everyone: to wait for gossip would take seconds.
        for node in &cluster.nodes {
            for (index, other) in cluster.nodes.iter().enumerate() {
                let bus = other.run("CONFIG GET cluster-port");
                let bus = words(&bus)[1].clone();
                let port = cluster.port(index);
                node.run(&format!("CLUSTER MEET 127.0.0.1 {port} {bus}"));
            }
        }
        cluster.until("all know each other", |node| {
            info(node, "cluster_known_nodes") == count.to_string()
        });
        for replica in masters..count {
            let id = cluster.id(replica - masters);
            let follow = format!("CLUSTER REPLICATE {id}");
            eventually("a replica", || {
                matches!(cluster.nodes[replica].run(&follow), Value::Okay)
            });
        }
        cluster.until("in order", |node| info(node, "cluster_state") == "ok");
        for replica in masters..count {
            eventually("a replica in step", || {
                let role = cluster.nodes[replica].run("ROLE");
                words(&role).contains(&"connected".to_owned())
            });
        }
        cluster
    }

    /// Where clients and the other nodes find a node.
    pub fn port(&self, index: usize) -> u16 {
        let plain = self.nodes[index].port();
        self.tls.get(index).copied().unwrap_or(plain)
    }

    /// First and last slot of each master.
    fn shares(&self) -> impl Iterator<Item = (usize, usize)> {
        let masters = self.masters;
        let begin = move |index: usize| 16_384 * index / masters;
        (0..masters).map(move |index| (begin(index), begin(index + 1) - 1))
    }

    /// Which master a slot was given to.
    pub fn master_of(&self, slot: usize) -> usize {
        let mut shares = self.shares();
        shares
            .position(|(first, last)| (first..=last).contains(&slot))
            .unwrap()
    }

    pub fn id(&self, node: usize) -> String {
        words(&self.nodes[node].run("CLUSTER MYID"))[0].clone()
    }

    pub fn until(&self, what: &str, holds: impl Fn(&RedisServer) -> bool) {
        eventually(what, || self.nodes.iter().all(&holds));
    }

    /// What all nodes have counted of an error.
    pub fn errors(&self, kind: &str) -> u64 {
        let mark = format!("errorstat_{kind}:count=");
        let of = |node: &RedisServer| {
            let stats = words(&node.run("INFO errorstats")).join("\n");
            let count = stats.split_once(&mark).map_or("0", |(_, rest)| rest);
            count
                .split(['\r', '\n', ','])
                .next()
                .unwrap()
                .parse()
                .unwrap_or(0)
        };
        self.nodes.iter().map(of).sum()
    }

    pub fn seeds(&self) -> Vec<RedisAddress> {
        let at = |node: &RedisServer| RedisAddress::Tcp("127.0.0.1".to_owned(), node.port());
        self.nodes[..self.masters].iter().map(at).collect()
    }

    /// The URL that names all masters.
    pub fn url(&self) -> String {
        let ports: Vec<String> = (0..self.masters)
            .map(|index| format!("127.0.0.1:{}", self.port(index)))
            .collect();
        let scheme = if self.tls.is_empty() {
            "redis"
        } else {
            "rediss"
        };
        format!("{scheme}+cluster://{}", ports.join(","))
    }

    /// Settings of a store that keeps its counts here.
    pub fn settings(&self, timeout: Duration) -> StoreSettings {
        let seeds = self.seeds();
        let server = RedisSettings {
            topology: RedisTopology::Cluster { seeds },
            database: 0,
            username: None,
            password: None,
            tls: None,
        };
        StoreSettings {
            kind: StoreKind::Redis(server),
            timeout,
            ..memory_settings()
        }
    }
}

/// A line of CLUSTER INFO.
pub fn info(node: &RedisServer, name: &str) -> String {
    let text = words(&node.run("CLUSTER INFO")).join("\n");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_default().trim().to_owned()
}

/// Every word of an answer.
pub fn words(value: &Value) -> Vec<String> {
    match value {
        Value::BulkString(bytes) => vec![String::from_utf8_lossy(bytes).into_owned()],
        Value::SimpleString(text) => vec![text.clone()],
        Value::VerbatimString { text, .. } => vec![text.clone()],
        Value::Array(values) => values.iter().flat_map(words).collect(),
        Value::Map(pairs) => pairs
            .iter()
            .flat_map(|(a, b)| [words(a), words(b)].concat())
            .collect(),
        _ => Vec::new(),
    }
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
