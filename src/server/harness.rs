//! A server with one worker, for tests that arm failpoints. Such a test runs once more in a process
//! of its own, so that the test can read its panics and diagnostics.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tokio::sync::watch;

use crate::diagnostics;
use crate::server::listen::{ListenLines, Listeners};
use crate::server::{Lifecycle, Reloads, ServerHandles};
use crate::telemetry::metrics::Unanswered;
use crate::{config, server};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Set in the process that runs one test alone.
const ALONE: &str = "TIDEGATE_TEST_ALONE";
/// One worker, few connections and one slot. A panic that keeps one of them would be noticed at
/// once.
const FILE: &str = r#"
    listen = "127.0.0.1:0"
    [server]
    workers = 1
    max_connections = 6
    [limit.one]
    concurrent = 1
    key = "global"
    [[route]]
    path = "/*"
    limits = ["one"]
    respond = { body = "ok" }
"#;

pub(crate) struct Harness {
    pub(crate) address: SocketAddr,
    pub(crate) file: PathBuf,
    pub(crate) handles: ServerHandles,
    lifecycle: watch::Sender<Lifecycle>,
    serving: JoinHandle<std::io::Result<()>>,
    _directory: tempfile::TempDir,
}

impl Harness {
    /// Starts a server with `more` at the head of its file.
    pub(crate) fn open(more: &str) -> Harness {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("proxy.toml");
        std::fs::write(&file, format!("{more}\n{FILE}")).unwrap();
        let (config, _) = config::load(&file).unwrap();
        let listeners = Listeners::open(ListenLines::new(&config), 1, &mut Vec::new()).unwrap();
        let address = listeners.addresses()[0];
        let (handles, controls) = ServerHandles::new(Arc::new(listeners), 1, Some(file.clone()));
        let reloads = Reloads {
            requests: controls.requests,
            watch: false,
            claim: None,
            demo: None,
        };
        let run = handles.clone();
        Harness {
            address,
            file,
            handles,
            lifecycle: controls.lifecycle,
            serving: std::thread::spawn(move || server::run(config, run, reloads)),
            _directory: directory,
        }
    }

    /// Reloads with `more` at the head of the file.
    pub(crate) fn reload(&self, more: &str) {
        std::fs::write(&self.file, format!("{more}\n{FILE}")).unwrap();
        on_a_runtime(async { drop(self.handles.reload.request().await) });
    }

    /// Stops the server as the signal thread does.
    pub(crate) fn close(self) -> std::io::Result<()> {
        self.handles.listeners.close();
        self.lifecycle
            .send_replace(Lifecycle::Stop { yields: false });
        self.serving.join().unwrap()
    }

    pub(crate) fn connect_from(&self, ip: Ipv4Addr) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((ip, 0)).into()).unwrap();
        socket.connect(&self.address.into()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a request, and returns all bytes until the connection ends.
    pub(crate) fn send(&self, ip: Ipv4Addr, request: &str) -> String {
        exchange(self.connect_from(ip), request)
    }

    pub(crate) fn is_well(&self) {
        let answer = self.send(Ipv4Addr::LOCALHOST, &plain("/"));
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }

    /// The number of requests that were answered with 500 for a panic.
    pub(crate) fn counted(&self) -> u64 {
        let panic = Unanswered::Panic as usize;
        let count = self.handles.introspection.inspect(|snapshot| {
            let all = snapshot
                .proxies()
                .map(|proxy| proxy.meter().all_unanswered());
            all.map(|counted| counted[panic]).sum()
        });
        count.unwrap()
    }
}

/// Sends a request on a connection, and returns all bytes until it ends.
pub(crate) fn exchange(mut stream: TcpStream, request: &str) -> String {
    let mut answer = Vec::new();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may reset the connection.
    let _ = stream.write_all(request.as_bytes());
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            panic!("hung: {request}")
        }
        _ => String::from_utf8(answer).unwrap(),
    }
}

/// A request without content.
pub(crate) fn plain(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
}

pub(crate) fn on_a_runtime<T>(body: impl Future<Output = T>) -> T {
    let bounded = async { tokio::time::timeout(PATIENCE, body).await.unwrap() };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(bounded)
}

/// Runs this test in a process of its own, with the diagnostics of the program. Returns the output
/// of that process. Within the process it returns `None`.
pub(crate) fn run_alone(name: &str) -> Option<Output> {
    if std::env::var_os(ALONE).is_some() {
        drop(diagnostics::init(None));
        return None;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", name])
        .env(ALONE, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(output)
}

/// The lines about panics in the diagnostics.
pub(crate) fn panics_in(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains("secret"), "{text}");
    let is_panic = |line: &&str| line.contains("panic, a bug in tidegate: failpoint");
    text.lines().filter(is_panic).map(str::to_owned).collect()
}
