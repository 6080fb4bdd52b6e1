//! The tests' language: servers that come up on free ports and go away with the test.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate::config::{RedisAddress, RedisSettings, RedisTopology, StoreKind, StoreSettings};
use tidegate::limit::{
    Algorithm, Calendar, CalendarSettings, CalendarUnit, Charge, Key, KeyHash, Limit, LimitCheck,
    OnError, Rule, Window,
};

/// A command whose process the kernel kills as soon as the thread that started it is gone. Servers
/// are killed when they are dropped, but a test binary that is itself killed drops nothing, and one
/// that panics between start and keeping drops too little.
pub fn mortal(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// A real redis-server of this test alone; killed when it is dropped.
#[derive(Debug)]
pub struct RedisServer {
    program: PathBuf,
    child: Option<Child>,
    port: u16,
    directory: TempDir,
    arguments: Vec<String>,
    /// Its environment beyond ours.
    environment: Vec<(String, String)>,
}

impl RedisServer {
    /// Starts one on a free port, without persistence.
    pub fn start() -> RedisServer {
        RedisServer::start_with(&[])
    }

    /// The same, with more arguments (`--name value`).
    pub fn start_with(arguments: &[&str]) -> RedisServer {
        RedisServer::down().launch(arguments)
    }

    /// Another program that speaks like Redis.
    pub fn start_program(program: PathBuf, arguments: &[&str]) -> RedisServer {
        let mut server = RedisServer::down();
        server.program = program;
        server.launch(arguments)
    }

    fn launch(mut self, arguments: &[&str]) -> RedisServer {
        self.arguments = arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect();
        for _ in 0..20 {
            if self.try_restart() {
                return self;
            }
            // Someone else was given the port meanwhile.
            self.port = free_port();
        }
        panic!("{self:?} does not start; is it installed?");
    }

    /// A server that is not running yet; `restart` starts it.
    pub fn down() -> RedisServer {
        let directory = TempDir::new().expect("a temporary directory");
        // TIDEGATE_TEST_SERVER: the same tests against another server, such as Valkey.
        let program = std::env::var_os("TIDEGATE_TEST_SERVER").map(PathBuf::from);
        RedisServer {
            program: program.unwrap_or_else(|| "redis-server".into()),
            child: None,
            port: free_port(),
            directory,
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// More arguments and variables, from its next start on.
    pub fn will_have(&mut self, arguments: &[&str], environment: &[(&str, &str)]) {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        self.arguments = arguments.collect();
        let environment = environment.iter();
        self.environment = environment
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
    }

    /// Where it keeps its files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The unix socket it listens on too.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }

    /// Starts it again, empty, on the same port.
    pub fn restart(&mut self) {
        assert!(self.try_restart(), "redis-server does not start again");
    }

    fn try_restart(&mut self) -> bool {
        self.kill();
        let child = mortal(&self.program)
            .args([
                "--port",
                &self.port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
            ])
            .args(["--appendonly", "no", "--dir"])
            .arg(self.directory.path())
            .arg("--unixsocket")
            .arg(self.socket())
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        self.child = Some(child);
        let patience = Instant::now() + Duration::from_secs(20);
        while Instant::now() < patience {
            let exited = self
                .child
                .as_mut()
                .is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_some()));
            if exited {
                return false;
            }
            if let Ok(mut connection) = self.try_connect() {
                // Any answer is a sign of life, also the demand for a password.
                let _ = redis::cmd("PING").query::<()>(&mut connection);
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    fn try_connect(&self) -> redis::RedisResult<redis::Connection> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port()))?;
        client.get_connection_with_timeout(Duration::from_secs(20))
    }

    /// A plain connection of the test's own.
    pub fn connect(&self) -> redis::Connection {
        self.try_connect().expect("the test's own connection")
    }

    /// Runs one command given as words.
    pub fn run(&self, words: &str) -> redis::Value {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().expect("a command"));
        words.for_each(|word| {
            command.arg(word);
        });
        command
            .query(&mut self.connect())
            .unwrap_or(redis::Value::Nil)
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Freezes it.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        let status = Command::new("kill")
            .args([signal, &pid])
            .status()
            .expect("kill");
        assert!(status.success());
    }

    /// Settings of a store that keeps its counts here.
    pub fn settings(&self) -> StoreSettings {
        let server = RedisSettings {
            topology: RedisTopology::Single(RedisAddress::Tcp("127.0.0.1".to_owned(), self.port())),
            database: 0,
            username: None,
            password: None,
            tls: None,
        };
        StoreSettings {
            kind: StoreKind::Redis(server),
            ..memory_settings()
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Ports below those that the kernel hands out by itself (`ip_local_port_range`): whoever connects or
/// binds to port 0 between this and the start of a server can't take them.
const PORTS: std::ops::Range<u32> = 10_240..32_000;

/// A port that nobody has, and that no other test gets.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Another run of these tests beside this one begins elsewhere.
    let (first, many) = (std::process::id().wrapping_mul(97), PORTS.end - PORTS.start);
    loop {
        let turn = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(first);
        let port = u16::try_from(PORTS.start + turn % many).expect("within PORTS");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Settings of an embedded store.
pub fn memory_settings() -> StoreSettings {
    StoreSettings {
        kind: StoreKind::Memory,
        prefix: "t:".to_owned(),
        timeout: Duration::from_millis(25),
        on_error: OnError::Local,
        fleet: tidegate::config::Fleet::Fixed(1),
        hash_key: None,
        file: None,
        known_keys: false,
        max_keys: 1_000_000,
        max_memory: 1 << 30,
    }
}

/// A log rule with a precision of 1 us.
pub fn log_rule(units: u64, window: Duration) -> Rule {
    let window_us = u64::try_from(window.as_micros()).unwrap();
    Rule {
        algorithm: Algorithm::Log,
        units,
        window_us,
        precision_us: 1,
    }
}

/// A limit of that name; same name, same counts.
pub fn limit(name: &str, rule: Rule) -> Arc<Limit> {
    let key = Key::all_of([]);
    Arc::new(Limit::new(name, &[rule], key))
}

/// A limit with one calendar window in UTC.
pub fn calendar_limit(name: &str, unit: CalendarUnit, units: u64) -> Arc<Limit> {
    let rule = Rule {
        algorithm: Algorithm::Calendar,
        units,
        window_us: unit.longest_us(),
        precision_us: 1,
    };
    let calendar = Calendar::new(unit, Arc::new(CalendarSettings::default()));
    let mut limit = Limit::clone(&limit(name, rule));
    limit.windows = vec![Arc::new(Window {
        calendar: Some(Arc::new(calendar)),
        ..limit.windows[0].deep_copy()
    })];
    Arc::new(limit)
}

/// One item: `who`'s budget.
pub fn item(limit: &Arc<Limit>, who: u64, cost: u64) -> LimitCheck {
    let digest = blake3::hash(&who.to_le_bytes());
    let tag = KeyHash(digest.as_bytes()[..16].try_into().unwrap());
    LimitCheck {
        limit: Arc::clone(limit),
        window: Arc::clone(&limit.windows[0]),
        tag,
        anchor: None,
        cost,
        asker: None,
    }
}

/// A request of one item.
pub fn one(limit: &Arc<Limit>, who: u64, cost: u64) -> Charge {
    [item(limit, who, cost)].into_iter().collect()
}

/// Runs a test body on a runtime like a worker's.
pub fn on_a_worker<F: Future>(body: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(body)
}

/// A small random source (splitmix64): the same trace for the same seed, everywhere.
#[derive(Debug)]
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// At least 0, below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

#[test]
fn a_server_that_nobody_drops_ends_with_its_test() {
    let starting = std::thread::spawn(|| {
        let server = RedisServer::start();
        let port = server.port();
        std::mem::forget(server);
        port
    });
    let port = starting.join().unwrap();
    let patience = Instant::now() + Duration::from_secs(20);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
        assert!(Instant::now() < patience, "it is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}
