//! The language that tests of the running proxy are written in: a real tidegate process, upstreams
//! on real sockets that remember what they saw, and a client that sends exactly the bytes it is
//! given.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::mortal;

/// More than anything here should ever take; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What is tested: this build, or the one that TIDEGATE_PROGRAM names.
pub fn program() -> String {
    let other = std::env::var("TIDEGATE_PROGRAM").ok();
    other.unwrap_or_else(|| env!("CARGO_BIN_EXE_tidegate").to_owned())
}

/// A line of diagnostics, and when the test read it.
struct Line {
    at: Instant,
    text: String,
}

/// A running tidegate.
pub struct Tidegate {
    child: Child,
    pub address: SocketAddr,
    pub directory: TempDir,
    lines: Receiver<Line>,
    /// Who reads its diagnostics, to their end.
    reading: JoinHandle<()>,
}

impl Tidegate {
    /// Starts it on `config`, in which `listen` is added, and waits until it listens.
    pub fn start(config: &str) -> Tidegate {
        let directory = tempfile::tempdir().unwrap();
        Self::start_in(directory, config, &[])
    }

    /// The same in a directory that the test has already put files into.
    pub fn start_in(directory: TempDir, config: &str, env: &[(&str, &str)]) -> Tidegate {
        Self::launch(directory, "127.0.0.1:0", config, env, &[])
    }

    /// On an address that others know already.
    pub fn start_listening(directory: TempDir, listen: &str, config: &str) -> Tidegate {
        Self::launch(directory, listen, config, &[], &[])
    }

    /// With at most `most` open files.
    pub fn start_with_descriptors(most: u32, config: &str) -> Tidegate {
        let prefix = ["prlimit".to_owned(), format!("--nofile={most}:{most}")];
        Self::launch(
            tempfile::tempdir().unwrap(),
            "127.0.0.1:0",
            config,
            &[],
            &prefix,
        )
    }

    /// With `--watch`.
    pub fn start_watching(config: &str) -> Tidegate {
        let words = ["sh", "-c", "exec \"$@\" --watch", "sh"];
        Self::launch(
            tempfile::tempdir().unwrap(),
            "127.0.0.1:0",
            config,
            &[],
            &words.map(str::to_owned),
        )
    }

    /// With another hosts file than the machine's.
    pub fn start_with_hosts(hosts: &std::path::Path, config: &str) -> Tidegate {
        let swap = format!(
            "mount --bind '{}' /etc/hosts && exec \"$0\" \"$@\"",
            hosts.display()
        );
        Self::start_after(&swap, config)
    }

    /// With a disk of its own at `folder`, which has room for 64 KiB.
    pub fn start_on_small_disk(folder: &str, config: &str) -> Tidegate {
        let mount = format!(
            "mkdir '{folder}' && mount -t tmpfs -o size=64k none '{folder}' && exec \"$0\" \"$@\""
        );
        Self::start_after(&mount, config)
    }

    /// On a network of its own, in which `script` turns into the proxy.
    pub fn start_on_a_network(script: &str, listen: &str, config: &str) -> Tidegate {
        let prefix = ["unshare", "--map-root-user", "--net", "sh", "-c", script];
        let directory = tempfile::tempdir().unwrap();
        Self::launch(directory, listen, config, &[], &prefix.map(str::to_owned))
    }

    /// With mounts of its own, which `script` makes before it turns into the proxy.
    fn start_after(script: &str, config: &str) -> Tidegate {
        let prefix = ["unshare", "--map-root-user", "--mount", "sh", "-c", script];
        Self::launch(
            tempfile::tempdir().unwrap(),
            "127.0.0.1:0",
            config,
            &[],
            &prefix.map(str::to_owned),
        )
    }

    fn launch(
        directory: TempDir,
        listen: &str,
        config: &str,
        env: &[(&str, &str)],
        prefix: &[String],
    ) -> Tidegate {
        // One address, or a list as the file has it.
        let listen = match listen.starts_with("[\"") {
            true => listen.to_owned(),
            false => format!("\"{listen}\""),
        };
        let text = format!("listen = {listen}\n{config}");
        std::fs::write(directory.path().join("proxy.toml"), text).unwrap();
        let words = [prefix, &[program()]].concat();
        let mut child = mortal(&words[0])
            .args(&words[1..])
            .args(["run", "-c", "proxy.toml"])
            .envs(env.iter().copied())
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(directory.path().join("stdout")).unwrap())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (line, lines) = channel();
        let reading = std::thread::spawn(move || {
            for text in stderr.lines().map_while(Result::ok) {
                let at = Instant::now();
                if line.send(Line { at, text }).is_err() {
                    break;
                }
            }
        });
        let mut seen = String::new();
        let address = loop {
            let Line { text, .. } = lines
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|_| panic!("said: {seen}"));
            if let Some(rest) = text.strip_prefix("listening  http://") {
                break rest.split([' ', ',']).next().unwrap().parse().unwrap();
            }
            seen.push_str(&text);
            seen.push('\n');
        };
        Tidegate {
            child,
            address,
            directory,
            lines,
            reading,
        }
    }

    /// Waits for a line of its diagnostics.
    pub fn wait_for_line(&self, part: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Line { text: line, .. } = self
                .lines
                .recv_timeout(left)
                .unwrap_or_else(|_| panic!("never said {part}"));
            if line.contains(part) {
                return line;
            }
        }
    }

    /// When it said this, in the diagnostics since they were last looked at.
    pub fn said_at(&self, part: &str) -> Vec<Instant> {
        let lines = self.lines.try_iter();
        let lines = lines.filter(|line| line.text.contains(part));
        lines.map(|line| line.at).collect()
    }

    /// The diagnostics since they were last looked at.
    pub fn said(&self) -> Vec<String> {
        self.lines.try_iter().map(|line| line.text).collect()
    }

    /// A connection to it.
    pub fn connect(&self) -> Client {
        Client::to(self.address)
    }

    /// One request on a connection of its own.
    pub fn get(&self, path: &str) -> Answer {
        self.get_with(path, "")
    }

    /// One request with more header lines, each ended by CRLF.
    pub fn get_with(&self, path: &str, headers: &str) -> Answer {
        let mut client = self.connect();
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: test\r\n{headers}\r\n"
        ));
        client.answer()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name, for example `TERM`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([format!("-{name}"), self.pid().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Waits for its end, and until all that it has said can be looked at.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            let status = self.child.try_wait().unwrap();
            if let Some(status) = status.filter(|_| self.reading.is_finished()) {
                return status;
            }
            assert!(Instant::now() < until, "tidegate does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What it wrote to standard output.
    pub fn stdout(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("stdout")).unwrap()
    }
}

impl Drop for Tidegate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that sends bytes as they are.
pub struct Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

/// A response, as it was on the wire.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// A header's value; all lines of it joined.
    pub fn header(&self, name: &str) -> Option<String> {
        let lines = self.head.lines().skip(1).filter_map(|line| {
            let (found, value) = line.split_once(':')?;
            found
                .eq_ignore_ascii_case(name)
                .then(|| value.trim().to_owned())
        });
        lines.reduce(|all, next| format!("{all}, {next}"))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    pub fn to(address: SocketAddr) -> Client {
        Client::over(TcpStream::connect(address).unwrap())
    }

    /// The one at this end of a connection, whoever opened it.
    pub fn over(stream: TcpStream) -> Client {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client {
            stream,
            buffer: Vec::new(),
        }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The other side may rightly have closed already; what it said is read afterwards.
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Sends and reads one answer.
    pub fn ask(&mut self, bytes: impl AsRef<[u8]>) -> Answer {
        self.send(bytes);
        self.answer()
    }

    /// What comes next, as soon as anything does.
    pub fn some(&mut self) -> String {
        if self.buffer.is_empty() {
            assert!(self.fill() > 0, "the connection ended");
        }
        String::from_utf8_lossy(&self.take_buffered()).into_owned()
    }

    /// What has been read already beyond what was asked for.
    pub fn take_buffered(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    fn fill(&mut self) -> usize {
        let mut chunk = [0; 16 << 10];
        match self.stream.read(&mut chunk) {
            Ok(read) => {
                self.buffer.extend_from_slice(&chunk[..read]);
                read
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// Reads a head, up to and without its blank line; `None` at the connection's end.
    pub fn head(&mut self) -> Option<String> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                self.buffer.drain(..end + 4);
                return Some(head);
            }
            if self.fill() == 0 {
                return None;
            }
        }
    }

    /// Reads the next final answer and its body, by its framing.
    pub fn answer(&mut self) -> Answer {
        self.try_answer(false)
            .expect("the connection ended without an answer")
    }

    /// The same for a request whose answer has no body although its head may give a length.
    pub fn answer_to_head(&mut self) -> Answer {
        self.try_answer(true)
            .expect("the connection ended without an answer")
    }

    /// The next final answer; `None` if the connection ends first.
    pub fn try_answer(&mut self, bodiless: bool) -> Option<Answer> {
        loop {
            let head = self.head()?;
            let status: u16 = head.get(9..12)?.parse().ok()?;
            if (100..200).contains(&status) && status != 101 {
                continue;
            }
            let mut answer = Answer {
                status,
                head,
                body: Vec::new(),
            };
            let none = bodiless || matches!(status, 101 | 204 | 304);
            if none {
                return Some(answer);
            }
            if answer.header("transfer-encoding").is_some() {
                answer.body = self.chunks();
            } else if let Some(length) = answer.header("content-length") {
                answer.body = self.exactly(length.parse().unwrap());
            } else {
                answer.body = self.rest();
            }
            return Some(answer);
        }
    }

    fn exactly(&mut self, length: usize) -> Vec<u8> {
        let all = self.all_of(length);
        let came = self.buffer.len();
        all.unwrap_or_else(|| panic!("the body ended after {came} of {length}"))
    }

    /// Nothing if the connection ends before.
    fn all_of(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < length {
            if self.fill() == 0 {
                return None;
            }
        }
        Some(self.buffer.drain(..length).collect())
    }

    fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let size = usize::from_str_radix(line.split(';').next().unwrap().trim(), 16).unwrap();
            if size == 0 {
                while !self.line().is_empty() {}
                return body;
            }
            body.extend(self.exactly(size));
            assert_eq!(self.line(), "");
        }
    }

    fn line(&mut self) -> String {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                self.buffer.drain(..end + 2);
                return line;
            }
            assert!(self.fill() > 0, "the connection ended in a line");
        }
    }

    /// Everything until the other side ends the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.fill() > 0 {}
        std::mem::take(&mut self.buffer)
    }

    /// Whether the other side has ended the connection and sent nothing more.
    pub fn is_closed(&mut self) -> bool {
        self.rest().is_empty()
    }
}

pub fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// A request, as an upstream saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub head: String,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<String> {
        Answer {
            status: 0,
            head: self.head.clone(),
            body: Vec::new(),
        }
        .header(name)
    }
}

/// An upstream on a real socket: `respond` gets each request and its connection.
pub struct Upstream {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<Mutex<usize>>,
}

impl Upstream {
    /// Answers every request with the same bytes.
    pub fn saying(response: &'static str) -> Upstream {
        Upstream::start(move |_, stream| stream.write_all(response.as_bytes()).is_ok())
    }

    /// Answers 200 with a short body.
    pub fn ok() -> Upstream {
        Upstream::saying("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    }

    /// `respond` writes what it likes; it returns whether the connection goes on.
    pub fn start(
        respond: impl Fn(&Seen, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(Mutex::new(0));
        let (log, count, respond) = (seen.clone(), connections.clone(), Arc::new(respond));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                *count.lock().unwrap() += 1;
                let (log, respond) = (log.clone(), respond.clone());
                std::thread::spawn(move || {
                    let mut client = Client {
                        stream,
                        buffer: Vec::new(),
                    };
                    let _ = client.stream.set_nodelay(true);
                    while let Some(request) = read_request(&mut client) {
                        log.lock().unwrap().push(request.clone());
                        if !respond(&request, &mut client.stream) {
                            break;
                        }
                    }
                });
            }
        });
        Upstream {
            address,
            seen,
            connections,
        }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn read_request(client: &mut Client) -> Option<Seen> {
    let head = client.head()?;
    let mut seen = Seen {
        head,
        body: Vec::new(),
    };
    if seen.header("transfer-encoding").is_some() {
        let whole = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client.chunks()));
        seen.body = whole.ok()?;
    } else {
        let length = seen.header("content-length");
        // No panic for clients that leave: what it prints costs more than their requests.
        seen.body = client.all_of(length.map_or(0, |text| text.parse().unwrap()))?;
    }
    Some(seen)
}
