//! Clients that never rest, and count what was lost: every request that was not answered with 200
//! and a whole body.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use h2::Reason;

use crate::house::PATIENCE;
use crate::http2::client::{Http2, Reply, get};
use crate::support::{Chance, on_a_worker};

/// Where clients go.
#[derive(Clone, Debug)]
pub enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Whether connections are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    KeepAlive,
    NewConnections,
    /// Several requests at once on one connection, until it is said to end.
    Http2,
}

/// What all clients saw.
#[derive(Debug, Default)]
pub struct Outcome {
    pub requests: u64,
    pub connections: u64,
    pub failures: Vec<String>,
    pub slowest: Duration,
    /// Streams of HTTP/2 that the proxy said it had not begun.
    pub again: u64,
    /// Those that took more than half a second.
    pub slow: u64,
}

/// Clients at work, until [`Load::end`].
pub struct Load {
    stop: Arc<AtomicBool>,
    outcome: Arc<Mutex<Outcome>>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts one thread for each.
    pub fn start(clients: &[(Place, Habit)]) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let outcome = Arc::new(Mutex::new(Outcome::default()));
        let start = |(index, (place, habit)): (usize, &(Place, Habit))| {
            let (stop, outcome) = (Arc::clone(&stop), Arc::clone(&outcome));
            let (place, habit) = (place.clone(), *habit);
            std::thread::spawn(move || {
                let mut chance = Chance(index as u64);
                let mut connection = None;
                if let (Place::Tcp(address), Habit::Http2) = (&place, habit) {
                    return streams(*address, &stop, &outcome);
                }
                while !stop.load(Ordering::Relaxed) {
                    one(&place, habit, &mut connection, &outcome);
                    std::thread::sleep(Duration::from_micros(chance.below(8_000)));
                }
            })
        };
        let clients = clients.iter().enumerate().map(start).collect();
        Load {
            stop,
            outcome,
            clients,
        }
    }

    /// How many requests have been answered.
    pub fn requests(&self) -> u64 {
        self.outcome.lock().unwrap().requests
    }

    pub fn end(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().unwrap();
        }
        std::mem::take(&mut self.outcome.lock().unwrap())
    }
}

trait Wire: Read + Write + Send {}
impl<T: Read + Write + Send> Wire for T {}

/// One connection, and what was read ahead.
struct Connection {
    wire: Box<dyn Wire>,
    answered: u64,
}

fn one(place: &Place, habit: Habit, connection: &mut Option<Connection>, outcome: &Mutex<Outcome>) {
    let began = Instant::now();
    let fresh = connection.is_none();
    let result = connect(place, connection).and_then(ask);
    let took = began.elapsed();
    let mut outcome = outcome.lock().unwrap();
    outcome.requests += 1;
    outcome.connections += u64::from(fresh);
    outcome.slowest = outcome.slowest.max(took);
    outcome.slow += u64::from(took > Duration::from_millis(500));
    match result {
        Ok(goes_on) if goes_on && habit == Habit::KeepAlive => {}
        Ok(_) => *connection = None,
        Err(error) => {
            let answered = connection
                .take()
                .map_or(0, |connection| connection.answered);
            let text = format!("{place:?} {habit:?} after {answered} answers: {error}");
            outcome.failures.push(text);
        }
    }
}

fn connect<'c>(
    place: &Place,
    connection: &'c mut Option<Connection>,
) -> io::Result<&'c mut Connection> {
    if connection.is_none() {
        let wire: Box<dyn Wire> = match place {
            Place::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, PATIENCE)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                Box::new(stream)
            }
            Place::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                Box::new(stream)
            }
        };
        *connection = Some(Connection { wire, answered: 0 });
    }
    Ok(connection.as_mut().unwrap())
}

/// HTTP/2 with prior knowledge. A connection that says it ends before a request is begun is none
/// that lost one.
fn streams(address: SocketAddr, stop: &AtomicBool, outcome: &Mutex<Outcome>) {
    const AT_ONCE: usize = 3;
    on_a_worker(async {
        let mut connection = None;
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            let open = match connection.take() {
                Some(open) => open,
                None => {
                    outcome.lock().unwrap().connections += 1;
                    Http2::to(address).await
                }
            };
            let Ok(()) = open.is_ready().await else {
                continue;
            };
            let asked = futures_util::future::join_all((0..AT_ONCE).map(|_| open.ask(get("/"))));
            let replies = asked.await;
            let took = began.elapsed();
            note(&mut outcome.lock().unwrap(), replies, took);
            connection = Some(open);
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
    });
}

fn note(outcome: &mut Outcome, replies: Vec<Result<Reply, h2::Error>>, took: Duration) {
    outcome.requests += replies.len() as u64;
    outcome.slowest = outcome.slowest.max(took);
    outcome.slow += u64::from(took > Duration::from_millis(500));
    for reply in replies {
        match reply {
            Ok(reply) if reply.status == 200 && &*reply.body == b"ok" => {}
            // It was never begun, and is asked again (RFC 9113 section 6.8): the h2 library
            // begins streams even after the first warning.
            Err(error) if error.is_go_away() && error.reason() == Some(Reason::NO_ERROR) => {
                outcome.again += 1;
            }
            other => outcome.failures.push(format!("HTTP/2: {other:?}")),
        }
    }
}

/// One request and its answer. Whether the connection goes on.
fn ask(connection: &mut Connection) -> io::Result<bool> {
    let wrong = |text: String| Err(io::Error::other(text));
    connection
        .wire
        .write_all(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")?;
    let mut answer = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let read = connection.wire.read(&mut chunk)?;
        if read == 0 {
            return wrong(format!("ended after {} bytes", answer.len()));
        }
        answer.extend_from_slice(&chunk[..read]);
        // Every answer of the upstream has the same short body.
        if answer.ends_with(b"\r\n\r\nok") {
            break;
        }
        if answer.len() > 64 << 10 {
            return wrong("an endless answer".to_owned());
        }
    }
    let head = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    if !head.starts_with("http/1.1 200 ") {
        return wrong(head);
    }
    connection.answered += 1;
    Ok(!head.contains("connection: close"))
}
