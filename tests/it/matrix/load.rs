//! Honest clients who ask all the time, and what became of every request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::ClientConfig;

use crate::tls::stage::connect;

/// After which a request counts as hung.
pub const HUNG: Duration = Duration::from_secs(8);
/// Those who ask for what is hardly limited, on connections that they keep and on new ones.
const OPEN: usize = 3;
/// Requests of each client on one connection.
const TURNS: u64 = 4;
/// What all of them may still ask on connections that they have.
pub const KEPT: usize = (OPEN + 1) * TURNS as usize;
const PAUSE: Duration = Duration::from_millis(2);

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Status(u16),
    /// The connection ended without a whole answer.
    Cut,
    Hung,
}

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub at: Instant,
    pub took: Duration,
    pub said: Said,
    /// It was for what is tightly limited.
    pub tight: bool,
}

impl Sample {
    /// Served, or denied as it should be.
    pub fn is_good(&self) -> bool {
        matches!(self.said, Said::Status(200 | 429))
    }
}

/// How clients get to the proxy.
#[derive(Clone)]
pub enum Way {
    Plain(SocketAddr),
    Tls(SocketAddr, Arc<ClientConfig>),
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

impl Way {
    fn connect(&self) -> Option<Box<dyn Stream>> {
        match self {
            Way::Plain(address) => {
                let stream = TcpStream::connect_timeout(address, HUNG).ok()?;
                stream.set_nodelay(true).ok()?;
                stream.set_read_timeout(Some(HUNG)).ok()?;
                Some(Box::new(stream))
            }
            Way::Tls(address, config) => {
                let stream = connect(config, *address, "one.test");
                stream.sock.set_read_timeout(Some(HUNG)).ok()?;
                Some(Box::new(stream))
            }
        }
    }
}

/// Everything that was asked since its start.
pub struct Load {
    stop: Arc<AtomicBool>,
    samples: Arc<Mutex<Vec<Sample>>>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn on(way: &Way) -> Load {
        let (stop, samples) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let client = |number: usize| {
            let (way, stop, samples) = (way.clone(), Arc::clone(&stop), Arc::clone(&samples));
            std::thread::spawn(move || ask_on(&way, number, &stop, &samples))
        };
        let clients = (0..=OPEN).map(client).collect();
        Load {
            stop,
            samples,
            clients,
        }
    }

    pub fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap().clone()
    }

    pub fn end(mut self) -> Vec<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            client.join().expect("clients only ask");
        }
        self.samples()
    }
}

fn ask_on(way: &Way, number: usize, stop: &AtomicBool, samples: &Mutex<Vec<Sample>>) {
    let (tight, mut turn, mut kept) = (number == OPEN, 0_u64, None);
    let path = if tight { "/tight" } else { "/open" };
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nX-Key: {number}\r\n\r\n");
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        if turn.is_multiple_of(TURNS) {
            kept = None;
        }
        let at = Instant::now();
        let was_kept = kept.is_some();
        let mut said = ask(way, &mut kept, &request);
        // A connection may end while nothing is asked on it, and is replaced.
        if said == Said::Cut && was_kept {
            said = ask(way, &mut kept, &request);
        }
        let took = at.elapsed();
        samples.lock().unwrap().push(Sample {
            at,
            took,
            said,
            tight,
        });
        std::thread::sleep(PAUSE);
    }
}

fn ask(way: &Way, kept: &mut Option<Box<dyn Stream>>, request: &str) -> Said {
    let Some(mut stream) = kept.take().or_else(|| way.connect()) else {
        return Said::Cut;
    };
    match exchange(&mut *stream, request) {
        Ok((status, goes_on)) => {
            *kept = Some(stream).filter(|_| goes_on);
            Said::Status(status)
        }
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Said::Hung,
        Err(_) => Said::Cut,
    }
}

/// The status of an answer that came whole, and whether another may follow it.
fn exchange(stream: &mut dyn Stream, request: &str) -> std::io::Result<(u16, bool)> {
    let broken = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    stream.write_all(request.as_bytes())?;
    let (mut read, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut piece)?;
        read.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&read).to_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let value = |name: &str| head.split(name).nth(1)?.split("\r\n").next();
            let length = value("\r\ncontent-length: ").and_then(|text| text.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                let status = head.get(9..12).and_then(|digits| digits.parse().ok());
                return Ok((
                    status.ok_or_else(broken)?,
                    value("connection: close").is_none(),
                ));
            }
        }
        if count == 0 {
            return Err(broken());
        }
    }
}
