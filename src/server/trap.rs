//! Places where tests have the house panic, none of which is in a program that is shipped; and what
//! becomes of it: a panic ends what it happened in, and no more.

use std::net::{IpAddr, Ipv4Addr};

use http::{Request, Response};

use crate::config::Config;
use crate::proxy::body::Body;
use crate::upstream::body::RequestBody;

/// Whose connection panics as it is accepted, and whose as it begins.
const AT_THE_DOOR: Ipv4Addr = Ipv4Addr::new(127, 66, 0, 1);
const ON_A_CONNECTION: Ipv4Addr = Ipv4Addr::new(127, 66, 0, 2);
/// What a file says that no worker can serve by.
const AT_A_RELOAD: &str = "# trap: reload";

pub(super) fn at_the_door(ip: IpAddr) {
    assert!(ip != AT_THE_DOOR, "a trap at the door");
}

pub(super) fn on_a_connection(ip: IpAddr) {
    assert!(ip != ON_A_CONNECTION, "a trap on a connection");
}

pub(super) fn at_a_reload(config: &Config) {
    let says = config.written.text.contains(AT_A_RELOAD);
    assert!(!says, "a trap at a reload");
}

/// Where a request panics: its path tells.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trap {
    Nowhere,
    /// Behind the decision, before there is an answer.
    Handling,
    /// As its answer's content is asked for.
    Body,
}

impl Trap {
    pub(super) fn for_request(request: &Request<RequestBody>) -> Trap {
        match request.uri().path() {
            "/trap/handling" => Trap::Handling,
            "/trap/body" => Trap::Body,
            _ => Trap::Nowhere,
        }
    }

    pub(super) async fn around(
        self,
        handling: impl Future<Output = Response<Body>>,
    ) -> Response<Body> {
        let mut answer = handling.await;
        assert!(!matches!(self, Trap::Handling), "a trap: key=secret");
        answer.body_mut().trapped = matches!(self, Trap::Body);
        answer
    }
}

mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpStream};
    use std::path::PathBuf;
    use std::process::{Command, Output};
    use std::sync::Arc;
    use std::thread::JoinHandle;
    use std::time::Duration;

    use socket2::{Domain, Socket, Type};
    use tokio::sync::watch;

    use super::*;
    use crate::server::listen::Listeners;
    use crate::server::pulse::Pulse;
    use crate::server::reload::Reload;
    use crate::server::sight::Sight;
    use crate::server::{Course, Source, reload};
    use crate::telemetry::metrics::Unanswered;
    use crate::{config, server, telemetry};

    const PATIENCE: Duration = Duration::from_secs(20);
    /// Says that this process is the one that panics.
    const STAGED: &str = "TIDEGATE_TEST_TRAPS";
    /// One worker, which a panic would take from all; few connections and a single slot, which
    /// panics would use up if they kept them.
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

    /// A house in this process.
    struct Stage {
        address: SocketAddr,
        file: PathBuf,
        course: watch::Sender<Course>,
        reload: Reload,
        pulse: Arc<Pulse>,
        sight: Arc<Sight>,
        listeners: Arc<Listeners>,
        serving: JoinHandle<std::io::Result<()>>,
        _directory: tempfile::TempDir,
    }

    impl Stage {
        fn open() -> Stage {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("proxy.toml");
            std::fs::write(&file, FILE).unwrap();
            let (config, _) = config::load(&file).unwrap();
            let listeners = (config.listen.as_slice(), &[][..]);
            let listeners = Listeners::open(listeners, 1, &mut Vec::new()).unwrap();
            let listeners = Arc::new(listeners);
            let address = listeners.addresses()[0];
            let (course, shutdown) = watch::channel(Course::Serve);
            let (reload, requests) = reload::channel();
            let (pulse, sight) = (Arc::new(Pulse::new(1)), Arc::<Sight>::default());
            let source = Source {
                path: Some(file.clone()),
                reload: reload.clone(),
                requests,
                watch: false,
            };
            let seen = (Arc::clone(&pulse), Arc::clone(&sight));
            let sockets = Arc::clone(&listeners);
            let serving =
                std::thread::spawn(move || server::run(config, sockets, (&shutdown, source), seen));
            Stage {
                address,
                file,
                course,
                reload,
                pulse,
                sight,
                listeners,
                serving,
                _directory: directory,
            }
        }

        fn connect_from(&self, ip: Ipv4Addr) -> TcpStream {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::from((ip, 0)).into()).unwrap();
            socket.connect(&self.address.into()).unwrap();
            let stream = TcpStream::from(socket);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream
        }

        /// Whatever comes until the connection ends.
        fn ask(&self, ip: Ipv4Addr, request: &str) -> String {
            let mut stream = self.connect_from(ip);
            let mut answer = Vec::new();
            // A connection that is lost may be reset.
            let _ = stream.write_all(request.as_bytes());
            match stream.read_to_end(&mut answer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    panic!("hung: {request}")
                }
                _ => String::from_utf8(answer).unwrap(),
            }
        }

        fn is_well(&self) {
            let answer = self.ask(Ipv4Addr::LOCALHOST, &plain("/"));
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        }

        /// Requests that were answered with 500 for a panic.
        fn counted(&self) -> u64 {
            let panic = Unanswered::Panic as usize;
            let count = self.sight.look(|view| {
                let all = view.proxies().map(|proxy| proxy.meter().all_unanswered());
                all.map(|counted| counted[panic]).sum()
            });
            count.unwrap()
        }
    }

    /// What is served without hyper.
    fn plain(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
    }

    /// What is not.
    fn odd(path: &str) -> String {
        format!(
            "POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab"
        )
    }

    /// The statuses of streams of one connection; 0 is one that was lost, whole or in its content.
    async fn over_http2(stream: TcpStream, paths: &[&str]) -> Vec<u16> {
        stream.set_nonblocking(true).unwrap();
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        let driver = tokio::spawn(connection);
        let mut statuses = Vec::new();
        for path in paths {
            let mut sender = sender.clone().ready().await.unwrap();
            let request = Request::get(format!("http://test{path}")).body(()).unwrap();
            let (response, _) = sender.send_request(request, true).unwrap();
            let status = async {
                let response = response.await.ok()?;
                let status = response.status().as_u16();
                let mut body = response.into_body();
                while let Some(data) = body.data().await {
                    data.ok()?;
                }
                Some(status)
            };
            statuses.push(status.await.unwrap_or(0));
        }
        driver.abort();
        statuses
    }

    fn on_a_runtime<T>(body: impl Future<Output = T>) -> T {
        let bounded = async { tokio::time::timeout(PATIENCE, body).await.unwrap() };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(bounded)
    }

    /// This test in a process of its own, where panics are told as in the program.
    fn staged(name: &str) -> Option<Output> {
        if std::env::var_os(STAGED).is_some() {
            telemetry::init(None);
            return None;
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", name])
            .env(STAGED, "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        Some(output)
    }

    /// The panics that the diagnostics tell.
    fn told(output: &Output) -> Vec<String> {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!text.contains("secret"), "{text}");
        let is_told = |line: &&str| line.contains("a panic, which is our mistake: a trap");
        text.lines().filter(is_told).map(str::to_owned).collect()
    }

    const TIMES: usize = 20;

    #[test]
    fn a_panic_ends_its_request_and_nothing_else() {
        if let Some(output) =
            staged("server::trap::tests::a_panic_ends_its_request_and_nothing_else")
        {
            let told = told(&output);
            assert_eq!(told.len(), 3 * TIMES + 2 * TIMES + 1, "{told:?}");
            assert!(told[0].contains("worker-0") && told[0].contains("trap.rs"));
            return;
        }
        let stage = Stage::open();
        stage.is_well();
        let local = Ipv4Addr::LOCALHOST;
        let mut other = stage.connect_from(local);
        for _ in 0..TIMES {
            for request in [plain("/trap/handling"), odd("/trap/handling")] {
                let answer = stage.ask(local, &request);
                assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
                assert!(answer.contains("problem+json"), "{answer}");
            }
            // Its head may have gone; its content never ends as if it were whole.
            for request in [plain("/trap/body"), odd("/trap/body")] {
                let answer = stage.ask(local, &request);
                assert!(!answer.ends_with("ok"), "{answer}");
            }
            let paths = ["/trap/handling", "/"];
            let stream = stage.connect_from(local);
            assert_eq!(on_a_runtime(over_http2(stream, &paths)), [500, 200]);
        }
        let stream = stage.connect_from(local);
        let statuses = on_a_runtime(over_http2(stream, &["/trap/body", "/"]));
        assert_eq!(statuses, [0, 200], "only the stream is lost");
        assert_eq!(stage.counted(), 3 * TIMES as u64);
        assert_eq!(telemetry::panics::panics(), 5 * TIMES as u64 + 1);
        other.write_all(plain("/").as_bytes()).unwrap();
        let mut answer = String::new();
        other.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        stage.course.send_replace(Course::Stop { yields: false });
        stage.serving.join().unwrap().unwrap();
    }

    #[test]
    fn a_panic_ends_its_connection_and_nothing_else() {
        if let Some(output) =
            staged("server::trap::tests::a_panic_ends_its_connection_and_nothing_else")
        {
            assert_eq!(told(&output).len(), 2 * TIMES);
            return;
        }
        let stage = Stage::open();
        for _ in 0..TIMES {
            for ip in [ON_A_CONNECTION, AT_THE_DOOR] {
                assert_eq!(stage.ask(ip, &plain("/")), "");
            }
        }
        stage.is_well();
        assert_eq!(stage.counted(), 0);
        stage.course.send_replace(Course::Stop { yields: false });
        stage.serving.join().unwrap().unwrap();
    }

    #[test]
    fn a_worker_that_is_lost_ends_the_house() {
        if let Some(output) = staged("server::trap::tests::a_worker_that_is_lost_ends_the_house") {
            assert_eq!(told(&output).len(), 1);
            return;
        }
        let stage = Stage::open();
        stage.is_well();
        std::fs::write(&stage.file, format!("{FILE}{AT_A_RELOAD}\n")).unwrap();
        on_a_runtime(async {
            let (_, ()) = tokio::join!(stage.reload.ask(), stage.pulse.one_falls());
        });
        // As the thread does that listens for signals.
        stage.listeners.close();
        stage.course.send_replace(Course::Stop { yields: false });
        let ended = stage.serving.join().unwrap();
        assert_eq!(ended.unwrap_err().to_string(), "worker 0: a panic");
    }
}
