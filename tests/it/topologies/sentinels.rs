//! A master, its replicas and their sentinels, each a real process.

use std::fs::File;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::probe::eventually;
use crate::support::{RedisServer, free_port};

/// What sentinels call the master.
pub const NAME: &str = "main";
/// A server that is silent for so long is down for a sentinel.
const DOWN_AFTER_MS: u64 = 1_000;

/// A redis-server in sentinel mode; killed when it is dropped.
pub struct Sentinel {
    child: Child,
    pub port: u16,
    _folder: TempDir,
}

impl Sentinel {
    /// Watches the master on that port. `more` are lines of its configuration, in which `$PORT` is
    /// its own.
    pub fn start(master: u16, quorum: usize, more: &str) -> Sentinel {
        let mut ports = (0..20).map(|_| free_port());
        let started = ports.find_map(|port| Sentinel::start_on(port, master, quorum, more));
        started.expect("a sentinel")
    }

    /// The same on a port that others know already; nothing if somebody else has it.
    pub fn start_on(port: u16, master: u16, quorum: usize, more: &str) -> Option<Sentinel> {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("sentinel.conf");
        let more = more.replace("$PORT", &port.to_string());
        let plain_port = if more.contains("tls-port") { 0 } else { port };
        let text = format!(
            "port {plain_port}\nbind 127.0.0.1\ndir {}\n\
             sentinel monitor {NAME} 127.0.0.1 {master} {quorum}\n\
             sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}\n\
             sentinel failover-timeout {NAME} 3000\n\
             sentinel parallel-syncs {NAME} 2\n{more}\n",
            folder.path().display()
        );
        std::fs::write(&config, text).unwrap();
        Some(Sentinel {
            child: launch(&config, port)?,
            port,
            _folder: folder,
        })
    }

    fn connect(&self) -> redis::RedisResult<redis::Connection> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port))?;
        client.get_connection_with_timeout(Duration::from_secs(20))
    }

    /// What it says of the master: one field.
    fn field(&self, name: &str) -> Option<String> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("MASTER").arg(NAME);
        let all: Vec<(String, String)> = command.query(&mut self.connect().ok()?).ok()?;
        all.into_iter()
            .find_map(|(field, value)| (field == name).then_some(value))
    }

    /// The port of the server it calls the master.
    fn master(&self) -> Option<u16> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(NAME);
        let (_, port): (String, u16) = command.query(&mut self.connect().ok()?).ok()?;
        Some(port)
    }

    /// Asks for a failover although the master is well.
    fn fail_over(&self) -> bool {
        let mut command = redis::cmd("SENTINEL");
        command.arg("FAILOVER").arg(NAME);
        self.connect()
            .and_then(|mut connection| command.exec(&mut connection))
            .is_ok()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts it, and gives nothing if somebody else has its port.
fn launch(config: &Path, port: u16) -> Option<Child> {
    let log = File::create(config.with_extension("log")).unwrap();
    let mut child = Command::new("redis-server")
        .arg(config)
        .arg("--sentinel")
        .stdout(Stdio::from(log))
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed");
    let patience = Instant::now() + Duration::from_secs(20);
    while Instant::now() < patience {
        if child.try_wait().is_ok_and(|status| status.is_some()) {
            return None;
        }
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Some(child);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// One master, two replicas, three sentinels.
pub struct Constellation {
    servers: Vec<RedisServer>,
    sentinels: Vec<Sentinel>,
    /// Where nobody listens: proxies are told of it as if it were a sentinel too.
    nobody: u16,
}

impl Constellation {
    /// Waits until all know of each other.
    pub fn start() -> Constellation {
        // Not to a socket: that waits for more replicas to come.
        let copy = ["--repl-diskless-sync", "no"];
        let master = RedisServer::start_with(&copy);
        let of = master.port().to_string();
        let replica = || {
            let words = ["--replicaof", "127.0.0.1", &of];
            RedisServer::start_with(&[&copy[..], &words[..]].concat())
        };
        let servers = vec![replica(), replica(), master];
        eventually("the replicas follow", || {
            info(&servers[2], "connected_slaves") == Some(2)
        });
        let all = Constellation {
            sentinels: (0..3)
                .map(|_| Sentinel::start(servers[2].port(), 2, ""))
                .collect(),
            servers,
            nobody: free_port(),
        };
        eventually("the sentinels know everybody", || {
            all.sentinels.iter().all(|sentinel| {
                sentinel.field("num-slaves").as_deref() == Some("2")
                    && sentinel.field("num-other-sentinels").as_deref() == Some("2")
            })
        });
        all
    }

    /// The store's URL; its first sentinel is dead.
    pub fn url(&self) -> String {
        let ports = self.sentinels.iter().map(|sentinel| sentinel.port);
        let all: Vec<String> = [self.nobody]
            .into_iter()
            .chain(ports)
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        format!("redis+sentinel://{}/{NAME}", all.join(","))
    }

    /// The server that most sentinels call the master.
    pub fn master(&self) -> Option<u16> {
        let named: Vec<u16> = self.sentinels.iter().filter_map(Sentinel::master).collect();
        named
            .iter()
            .find(|port| named.iter().filter(|other| other == port).count() >= 2)
            .copied()
    }

    /// The server on that port.
    pub fn server(&self, port: u16) -> &RedisServer {
        let mut all = self.servers.iter();
        all.find(|server| server.port() == port)
            .expect("one of ours")
    }

    /// Kills it for good.
    pub fn kill(&mut self, port: u16) {
        self.servers.retain(|server| server.port() != port);
    }

    /// Waits until the replicas have everything that the master has.
    pub fn replicated(&self, master: u16) {
        let offset = info(self.server(master), "master_repl_offset");
        eventually("the replicas have it all", || {
            let mut replicas = self.servers.iter().filter(|one| one.port() != master);
            replicas.all(|one| {
                // The load goes on meanwhile: what was there when we asked is there.
                let has = info(one, "slave_repl_offset");
                info(one, "master_sync_in_progress") == Some(0) && has >= offset
            })
        });
    }

    /// Waits until most sentinels name another master, and gives when and which.
    pub fn agreed(&self, before: u16) -> (Instant, u16) {
        let mut now = None;
        eventually("the sentinels agree", || {
            now = self.master().filter(|port| *port != before);
            now.is_some()
        });
        (Instant::now(), now.unwrap())
    }

    /// A failover that an operator asks for. A sentinel that does not know yet that a replica is fit
    /// refuses or gives up, so this asks again. Returns when most sentinels named the new master, and
    /// which.
    pub fn fail_over(&self, before: u16) -> (Instant, u16) {
        let (mut asked, mut now) = (None::<Instant>, None);
        eventually("a failover succeeds", || {
            // Not sooner: another failover would replace the new master too.
            let is_due = asked.is_none_or(|at| at.elapsed() > Duration::from_secs(8));
            if is_due && self.sentinels.iter().any(Sentinel::fail_over) {
                asked = Some(Instant::now());
            }
            now = self.master().filter(|port| *port != before);
            now.is_some()
        });
        (Instant::now(), now.unwrap())
    }
}

/// A number of `INFO replication`.
fn info(server: &RedisServer, field: &str) -> Option<u64> {
    let redis::Value::BulkString(text) = server.run("INFO replication") else {
        return None;
    };
    let text = String::from_utf8(text).ok()?;
    let begin = format!("{field}:");
    text.lines()
        .find_map(|line| line.strip_prefix(&begin)?.parse().ok())
}
