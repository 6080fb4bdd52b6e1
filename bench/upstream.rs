//! The server behind all proxies: answers that are made before, one thread, one loop over epoll, so
//! that it takes little of the core that it shares with what sends the requests. `bench upstream`
//! runs it as a process of its own, whose CPU time is nobody else's.
//!
//! `/` is a small answer, `/64k` one of 64 KiB; the body of a request is read and answered.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::stage::{Server, Stage};
use crate::support::free_port;

/// Bytes in the answer to `/`.
pub const SMALL: usize = 24;
/// Bytes in the answer to `/64k`.
pub const LARGE: usize = 64 << 10;
/// Bytes that are read at once.
const READ: usize = 32 << 10;
const LISTENER: u64 = u64::MAX;

/// Starts it, on one core if that is said.
pub fn start(stage: &Stage, core: Option<usize>) -> (SocketAddr, Server) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["upstream", &address.to_string()]);
    let mut server = stage.start(&stage.folder("upstream"), core, command);
    server.listens(address).unwrap();
    (address, server)
}

/// The same on a thread of this process, as tests are no program that could be started again.
#[cfg(test)]
pub fn start_thread() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || serve(&listener));
    address
}

/// Serves until it is killed.
pub fn run(words: &[String]) {
    let listener = TcpListener::bind(words[0].as_str()).unwrap();
    serve(&listener);
}

fn serve(listener: &TcpListener) -> ! {
    listener.set_nonblocking(true).unwrap();
    let answers = Answers::new();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(
        &epoll,
        listener,
        EventData::new_u64(LISTENER),
        EventFlags::IN,
    )
    .unwrap();
    let mut connections = HashMap::new();
    let mut events = Vec::with_capacity(256);
    let mut next = 0;
    loop {
        events.clear();
        match epoll::wait(&epoll, spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("{error}"),
        }
        for event in &events {
            let place = event.data.u64();
            if place == LISTENER {
                accept(listener, &epoll, &mut connections, &mut next);
            } else if let Some(connection) = connections.get_mut(&place)
                && connection.turn(&epoll, &answers).is_none()
            {
                connections.remove(&place);
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    epoll: &OwnedFd,
    connections: &mut HashMap<u64, Connection>,
    next: &mut u64,
) {
    while let Ok((stream, _)) = listener.accept() {
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
        epoll::add(epoll, &stream, EventData::new_u64(*next), EventFlags::IN).unwrap();
        let connection = Connection::new(stream, *next);
        connections.insert(*next, connection);
        *next += 1;
    }
}

/// Heads and bodies, ready to be sent.
struct Answers {
    small: Vec<u8>,
    large: Vec<u8>,
}

impl Answers {
    fn new() -> Answers {
        let answer = |body: &[u8]| {
            let mut answer = format!(
                "HTTP/1.1 200 OK\r\nserver: upstream\r\ndate: Sat, 01 Nov 2025 12:00:00 GMT\r\n\
                 content-type: text/plain\r\ncontent-length: {}\r\n\r\n",
                body.len()
            )
            .into_bytes();
            answer.extend_from_slice(body);
            answer
        };
        let small = b"hello from the upstream\n";
        assert_eq!(small.len(), SMALL);
        Answers {
            small: answer(small),
            large: answer(&[b'u'; LARGE]),
        }
    }
}

struct Connection {
    stream: TcpStream,
    place: u64,
    /// What has come of the next head.
    come: Vec<u8>,
    /// Bytes of a request's body that are still to come.
    body: usize,
    /// Whether the answer is the large one, and how much of it has been sent, while it is not all.
    sending: Option<(bool, usize)>,
    /// Whether it waits for room to write.
    full: bool,
}

impl Connection {
    fn new(stream: TcpStream, place: u64) -> Connection {
        Connection {
            stream,
            place,
            come: Vec::new(),
            body: 0,
            sending: None,
            full: false,
        }
    }

    /// Reads and writes what can be now; `None` at its end.
    fn turn(&mut self, epoll: &OwnedFd, answers: &Answers) -> Option<()> {
        let mut buffer = [0; READ];
        loop {
            if self.sending.is_some() && !self.send(answers)? {
                return self.wait_for(epoll, EventFlags::OUT);
            }
            match (&self.stream).read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.take(&buffer[..count])?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
            // The next request comes after the answer: nothing is left to read then.
            if self.sending.is_some() && self.send(answers)? {
                break;
            }
        }
        self.wait_for(epoll, EventFlags::IN)
    }

    fn wait_for(&mut self, epoll: &OwnedFd, what: EventFlags) -> Option<()> {
        let full = what == EventFlags::OUT;
        if full != self.full {
            self.full = full;
            epoll::modify(epoll, &self.stream, EventData::new_u64(self.place), what).ok()?;
        }
        Some(())
    }

    /// Whether all of the answer is gone.
    fn send(&mut self, answers: &Answers) -> Option<bool> {
        while let Some((large, sent)) = self.sending {
            let answer = if large {
                &answers.large
            } else {
                &answers.small
            };
            match (&self.stream).write(&answer[sent..]) {
                Ok(count) if sent + count == answer.len() => self.sending = None,
                Ok(count) => self.sending = Some((large, sent + count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        Some(true)
    }

    /// Takes bytes of one request; `None` is something that this server does not speak.
    fn take(&mut self, mut bytes: &[u8]) -> Option<()> {
        if self.body > 0 {
            let part = self.body.min(bytes.len());
            self.body -= part;
            bytes = &bytes[part..];
            if self.body == 0 {
                self.sending = Some((false, 0));
            }
        }
        if bytes.is_empty() {
            return Some(());
        }
        self.come.extend_from_slice(bytes);
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        let httparse::Status::Complete(head) = request.parse(&self.come).ok()? else {
            return Some(());
        };
        let large = request.path == Some("/64k");
        let named = |name: &str| {
            let mut headers = request.headers.iter();
            headers.find(|header| header.name.eq_ignore_ascii_case(name))
        };
        if named("transfer-encoding").is_some() {
            return None;
        }
        let length = named("content-length").map_or(Some(0), |header| {
            std::str::from_utf8(header.value).ok()?.parse().ok()
        })?;
        let rest = self.come.len() - head;
        self.body = usize::checked_sub(length, rest)?;
        self.come.clear();
        if self.body == 0 {
            self.sending = Some((large, 0));
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(stream: &mut TcpStream, request: &str, length: usize) -> String {
        stream.write_all(request.as_bytes()).unwrap();
        let mut all = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "it closes");
            all.extend_from_slice(&buffer[..count]);
            let text = String::from_utf8_lossy(&all);
            if let Some(at) = text.find("\r\n\r\n")
                && text.len() >= at + 4 + length
            {
                assert_eq!(text.len(), at + 4 + length);
                return text.into_owned();
            }
        }
    }

    #[test]
    fn requests_are_answered_one_after_another() {
        let mut stream = TcpStream::connect(start_thread()).unwrap();
        let small = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let ok = "HTTP/1.1 200 OK\r\n";
        assert!(answer(&mut stream, small, SMALL).starts_with(ok));
        let large = "GET /64k HTTP/1.1\r\nHost: a\r\n\r\n";
        assert!(answer(&mut stream, large, LARGE).starts_with(ok));
        let head = "POST / HTTP/1.1\r\nHost: a\r\ncontent-LENGTH: 70000\r\n\r\n";
        let post = head.to_owned() + &"x".repeat(70_000);
        assert!(answer(&mut stream, &post, SMALL).starts_with(ok));
        assert!(answer(&mut stream, small, SMALL).starts_with(ok));
    }
}
