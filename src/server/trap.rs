//! Places where tests have the house panic, none of which is in a program that is shipped; and what
//! becomes of it: a panic ends what it happened in, and no more.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};

use http::{Request, Response};

use crate::body::RequestBody;
use crate::config::Config;
use crate::proxy::body::Body;
use crate::proxy::flaw::Flaw;
use crate::proxy::{Downstream, Proxy};

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

/// What goes on beside the workers, and how often each is still to panic: in a test's own process.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Reloads,
    Control,
    Certificates,
    Acme,
}

static PARTS: [AtomicU32; 4] = [const { AtomicU32::new(0) }; 4];

pub(super) fn in_a_part(part: Part) {
    let one_less = |left: u32| left.checked_sub(1);
    let left = &PARTS[part as usize];
    let springs = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
    assert!(springs.is_err(), "a trap beside the workers");
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

    /// [`Proxy::handle`], and this behind it.
    pub(super) async fn handle(
        self,
        proxy: &Proxy,
        (request, response): (&mut Request<RequestBody>, &mut Response<Body>),
        downstream: &Downstream,
        more: (Option<Flaw>, Option<&mut Vec<u8>>),
    ) {
        proxy
            .handle((request, &mut *response), downstream, more)
            .await;
        assert!(!matches!(self, Trap::Handling), "a trap: key=secret");
        response.body_mut().trapped = matches!(self, Trap::Body);
    }
}

pub(crate) mod stage;

mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::time::Duration;

    use super::stage::{PATIENCE, Stage, on_a_runtime, plain, staged, told};
    use super::*;
    use crate::config::Control;
    use crate::server::control;
    use crate::{clock, telemetry};

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
        let stage = Stage::open("");
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
        stage.close().unwrap();
    }

    #[test]
    fn a_panic_ends_its_connection_and_nothing_else() {
        if let Some(output) =
            staged("server::trap::tests::a_panic_ends_its_connection_and_nothing_else")
        {
            assert_eq!(told(&output).len(), 2 * TIMES);
            return;
        }
        let stage = Stage::open("");
        for _ in 0..TIMES {
            for ip in [ON_A_CONNECTION, AT_THE_DOOR] {
                assert_eq!(stage.ask(ip, &plain("/")), "");
            }
        }
        stage.is_well();
        assert_eq!(stage.counted(), 0);
        stage.close().unwrap();
    }

    #[test]
    fn what_goes_on_beside_the_workers_begins_anew() {
        let name = "server::trap::tests::what_goes_on_beside_the_workers_begins_anew";
        if let Some(output) = staged(name) {
            assert_eq!(told(&output).len(), 4 * 5);
            return;
        }
        for part in &PARTS {
            part.store(5, Ordering::SeqCst);
        }
        let left = |part: Part| PARTS[part as usize].load(Ordering::SeqCst);
        let folder = tempfile::tempdir().unwrap();
        let file = tls_in(folder.path());
        let stage = Stage::open(&file);
        for more in (0..5).rev() {
            // Who asked has an answer, and that reload is lost.
            stage.reload(&file);
            assert_eq!(left(Part::Reloads), more);
        }
        let began = clock::now();
        while [Part::Control, Part::Certificates, Part::Acme].map(left) != [0; 3] {
            assert!(began.elapsed() < PATIENCE, "{PARTS:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        let socket = &control::places(&stage.file, &Control::Derived);
        let answered = || {
            let mut all = socket.iter().filter_map(|place| command(place).ok());
            all.find(|answer| !answer.is_empty())
        };
        let answer = loop {
            assert!(began.elapsed() < PATIENCE, "no control socket");
            if let Some(answer) = answered() {
                break answer;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(answer.contains("\"ok\":true"), "{answer}");
        stage.is_well();
        stage.close().unwrap();
    }

    /// A certificate for itself, and what a file says of it.
    fn tls_in(folder: &Path) -> String {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
        let (pem, key) = (folder.join("a.pem"), folder.join("a.key"));
        std::fs::write(&pem, cert.pem()).unwrap();
        std::fs::write(&key, signing_key.serialize_pem()).unwrap();
        let (pem, key) = (pem.display(), key.display());
        format!(
            "tls = {{ listen = \"127.0.0.1:0\", \
             certificates = {{ cert = \"{pem}\", key = \"{key}\" }} }}"
        )
    }

    /// What is answered to `tidegate reload`.
    fn command(socket: &Path) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let version = control::VERSION;
        writeln!(stream, "{{\"version\":{version},\"command\":\"reload\"}}")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    #[test]
    fn a_worker_that_is_lost_ends_the_house() {
        if let Some(output) = staged("server::trap::tests::a_worker_that_is_lost_ends_the_house") {
            assert_eq!(told(&output).len(), 1);
            return;
        }
        let stage = Stage::open("");
        stage.is_well();
        stage.reload(AT_A_RELOAD);
        on_a_runtime(stage.pulse.one_falls());
        assert_eq!(stage.close().unwrap_err().to_string(), "worker 0: a panic");
    }
}
