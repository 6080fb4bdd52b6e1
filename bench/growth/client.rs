//! A client of many connections on one thread: lanes of connections that take turns, as fast as
//! they are answered or at a fixed rate, each request another one.

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::LocalSet;

use crate::process;

/// Connections from one address of the loopback network, each of which has its own ports.
const PER_ADDRESS: usize = 10_000;

/// What came back.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub took: Duration,
    pub allowed: u64,
    pub denied: u64,
    pub other: u64,
    /// Microseconds from when a request was due, or sent, to its answer.
    pub latencies_us: Vec<u32>,
    /// When those that were allowed were sent and answered, microseconds from the beginning; empty
    /// unless asked for.
    pub admissions: Vec<(u64, u64)>,
}

impl Report {
    pub fn requests(&self) -> u64 {
        self.allowed + self.denied + self.other
    }

    pub fn rate(&self) -> f64 {
        self.requests() as f64 / self.took.as_secs_f64()
    }

    /// The share `part` of all requests was answered within so many microseconds.
    pub fn quantile_us(&mut self, part: f64) -> u32 {
        self.latencies_us.sort_unstable();
        let last = self.latencies_us.len().saturating_sub(1);
        let at = (last as f64 * part).round() as usize;
        self.latencies_us.get(at).copied().unwrap_or_default()
    }

    pub fn add(&mut self, other: Report) {
        self.took = self.took.max(other.took);
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.other += other.other;
        self.latencies_us.extend(other.latencies_us);
        self.admissions.extend(other.admissions);
    }
}

/// How requests are sent.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub during: Duration,
    /// Requests a second of all lanes together; as fast as they are answered if there is none.
    pub rate: Option<f64>,
    pub note_admissions: bool,
}

impl Pace {
    pub fn closed(during: Duration) -> Pace {
        Pace {
            during,
            rate: None,
            note_admissions: false,
        }
    }

    pub fn at(rate: f64, during: Duration) -> Pace {
        Pace {
            rate: Some(rate),
            ..Pace::closed(during)
        }
    }
}

/// Runs this on a thread of its own, on one core if that is said, to its end.
pub fn on_thread<T, F>(core: Option<usize>, run: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        process::on_core(core, || LocalSet::new().block_on(&runtime, run()))
    };
    std::thread::spawn(work).join().unwrap()
}

/// So many connections, from as many addresses as their ports need.
pub async fn connect(to: SocketAddr, many: usize) -> Vec<TcpStream> {
    let mut streams = Vec::with_capacity(many);
    for index in 0..many {
        streams.push(connect_one(to, index).await);
    }
    streams
}

async fn connect_one(to: SocketAddr, index: usize) -> TcpStream {
    let from = [127, 0, 1, u8::try_from(index / PER_ADDRESS + 1).unwrap()];
    for _ in 0..50 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        if let Ok(stream) = socket.connect(to).await {
            stream.set_nodelay(true).unwrap();
            return stream;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{to} does not accept connection {index}");
}

/// Sends requests on all lanes: each has one request under way, and its connections take turns.
/// `request` writes the head of the n-th request of a lane.
pub async fn drive(
    lanes: Vec<Vec<TcpStream>>,
    pace: Pace,
    request: impl Fn(&mut Vec<u8>, usize, u64) + 'static,
) -> (Report, Vec<TcpStream>) {
    let many = lanes.len();
    let request = Rc::new(request);
    let begun = Instant::now();
    let mut tasks = Vec::new();
    for (number, streams) in lanes.into_iter().enumerate() {
        let request = Rc::clone(&request);
        let every = pace
            .rate
            .map(|rate| Duration::from_secs_f64(many as f64 / rate));
        let first = every.map_or(Duration::ZERO, |every| {
            every.mul_f64(number as f64 / many as f64)
        });
        let lane = Lane {
            streams,
            begun,
            first,
            every,
            pace,
        };
        tasks.push(tokio::task::spawn_local(async move {
            lane.run(|out, n| request(out, number, n)).await
        }));
    }
    let mut all = Report::default();
    let mut streams = Vec::new();
    for task in tasks {
        let (report, used) = task.await.unwrap();
        all.add(report);
        streams.extend(used);
    }
    all.took = begun.elapsed();
    (all, streams)
}

/// Connections dealt out to lanes.
pub fn deal(streams: Vec<TcpStream>, lanes: usize) -> Vec<Vec<TcpStream>> {
    let mut dealt: Vec<Vec<TcpStream>> = Vec::new();
    dealt.resize_with(lanes.min(streams.len()), Vec::new);
    let many = dealt.len();
    for (index, stream) in streams.into_iter().enumerate() {
        dealt[index % many].push(stream);
    }
    dealt
}

struct Lane {
    streams: Vec<TcpStream>,
    begun: Instant,
    first: Duration,
    every: Option<Duration>,
    pace: Pace,
}

impl Lane {
    async fn run(mut self, request: impl Fn(&mut Vec<u8>, u64)) -> (Report, Vec<TcpStream>) {
        let mut report = Report::default();
        let (mut out, mut scratch) = (Vec::new(), Vec::new());
        for turn in 0.. {
            let mut due = Instant::now();
            if let Some(every) = self.every {
                due = self.begun + self.first + every.mul_f64(turn as f64);
                tokio::time::sleep_until(due.into()).await;
            }
            if self.begun.elapsed() >= self.pace.during {
                break;
            }
            let at = usize::try_from(turn).unwrap() % self.streams.len();
            out.clear();
            request(&mut out, turn);
            let sent = self.begun.elapsed();
            let status = ask(&mut self.streams[at], &out, &mut scratch).await;
            let us = u32::try_from(due.elapsed().as_micros()).unwrap_or(u32::MAX);
            report.latencies_us.push(us);
            match status {
                200..300 => report.allowed += 1,
                429 => report.denied += 1,
                _ => report.other += 1,
            }
            if self.pace.note_admissions && (200..300).contains(&status) {
                let us = |time: Duration| u64::try_from(time.as_micros()).unwrap();
                report.admissions.push((us(sent), us(self.begun.elapsed())));
            }
        }
        (report, self.streams)
    }
}

/// Sends one request and reads its answer to the end: its status, or 0 if the connection ends.
pub async fn ask(stream: &mut TcpStream, request: &[u8], scratch: &mut Vec<u8>) -> u16 {
    if stream.write_all(request).await.is_err() {
        return 0;
    }
    scratch.clear();
    loop {
        if stream.read_buf(scratch).await.unwrap_or(0) == 0 {
            return 0;
        }
        let Some(head) = head_length(scratch) else {
            continue;
        };
        let whole = head + body_length(&scratch[..head]);
        while scratch.len() < whole {
            if stream.read_buf(scratch).await.unwrap_or(0) == 0 {
                return 0;
            }
        }
        let status = std::str::from_utf8(&scratch[9..12]).unwrap_or_default();
        return status.parse().unwrap_or(0);
    }
}

fn head_length(bytes: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, b"\r\n\r\n").map(|at| at + 4)
}

fn body_length(head: &[u8]) -> usize {
    let name = b"content-length: ";
    let mut lines = head.split(|byte| *byte == b'\n');
    let line = lines.find(|line| {
        line.get(..name.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(name))
    });
    let text = line.map(|line| String::from_utf8_lossy(&line[name.len()..]).into_owned());
    text.map_or(0, |text| text.trim().parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Answers whatever comes: every third request with 429, all in two pieces.
    fn server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = |mut stream: std::net::TcpStream| {
            let (mut request, mut turn) = ([0; 1024], 0);
            while stream.read(&mut request).is_ok_and(|read| read > 0) {
                let status = if turn % 3 == 2 { 429 } else { 200 };
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 3\r\n\r\nb");
                stream.write_all(head.as_bytes()).unwrap();
                stream.write_all(b"dy").unwrap();
                turn += 1;
            }
        };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                std::thread::spawn(move || serve(stream.unwrap()));
            }
        });
        address
    }

    #[test]
    fn lanes_take_turns_and_answers_are_read_to_their_end() {
        let address = server();
        let (report, streams) = on_thread(None, move || async move {
            let lanes = deal(connect(address, 4).await, 2);
            let pace = Pace {
                rate: Some(1000.0),
                note_admissions: true,
                ..Pace::closed(Duration::from_millis(60))
            };
            drive(lanes, pace, |out, lane, turn| {
                let head = format!("GET /{lane}/{turn} HTTP/1.1\r\n\r\n");
                out.extend_from_slice(head.as_bytes());
            })
            .await
        });
        assert_eq!((streams.len(), report.other), (4, 0));
        assert!(report.allowed >= 2, "{report:?}");
        assert_eq!(report.admissions.len() as u64, report.allowed);
        assert_eq!(report.latencies_us.len() as u64, report.requests());
    }
}
