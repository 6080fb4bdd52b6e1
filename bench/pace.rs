//! Requests at a fixed rate over many connections, whatever the answers do. A request that is due
//! while its connection still waits for an answer is sent after it, and its time counts from when
//! it was due: all that came into a stall see it, and not just one (no coordinated omission).

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use socket2::{Domain, Socket, Type};

use crate::numbers::{Spread, percentile};

const SECOND_NS: u64 = 1_000_000_000;
/// How long a slice of a run is, whose percentiles are told apart from those of the others.
const SLICE_NS: u64 = SECOND_NS / 2;
/// How long answers are waited for when no more requests are sent.
const PATIENCE_NS: u64 = 10 * SECOND_NS;
const TIMER: u64 = u64::MAX;
/// Bytes in the longest head and body of an answer that are understood.
const LONGEST: usize = 128 << 10;

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub connections: usize,
    /// Requests in a second.
    pub rate: u64,
    /// How long it is measured, and how long it runs before that.
    pub seconds: f64,
    pub warm_seconds: f64,
    /// Clients that are named in turn, in `X-Client`.
    pub clients: usize,
}

/// What came back.
#[derive(Clone, Debug, Default)]
pub struct Paced {
    /// From when each request was due to the end of its answer, sorted, us.
    pub waits_us: Vec<u32>,
    /// The same of those that were due in each half second.
    pub slices_us: Vec<Vec<u32>>,
    pub statuses: BTreeMap<u16, u64>,
    /// Requests that had no answer at all.
    pub unanswered: u64,
}

/// Sends, and calls `begin` when the measured part begins.
pub fn run(address: SocketAddr, pace: Pace, begin: impl FnOnce()) -> Result<Paced, String> {
    // Only this thread's, and only for the time it has left: it is the measure's own.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut run = Run::new(address, pace)?;
    let result = run.all(begin);
    let _ = rustix::thread::set_current_timer_slack(None);
    result?;
    run.found.waits_us.sort_unstable();
    run.found
        .slices_us
        .iter_mut()
        .for_each(|slice| slice.sort_unstable());
    Ok(run.found)
}

impl Paced {
    /// The percentile of a usual half second: the middle one of those of each.
    pub fn usual(&self, share: f64) -> f64 {
        let each = self.slices_us.iter().filter(|slice| !slice.is_empty());
        let each = each.map(|slice| f64::from(percentile(slice, share)));
        Spread::of(each).map_or(f64::NAN, |spread| spread.median)
    }

    fn note(&mut self, slice: usize, wait_us: u32) {
        self.waits_us.push(wait_us);
        if self.slices_us.len() <= slice {
            self.slices_us.resize_with(slice + 1, Vec::new);
        }
        self.slices_us[slice].push(wait_us);
    }
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * SECOND_NS + now.tv_nsec.cast_unsigned()
}

struct Lane {
    stream: TcpStream,
    come: Vec<u8>,
    /// Since when the request under way counts.
    since_ns: Option<u64>,
    /// When those were due that wait for it.
    due_ns: VecDeque<u64>,
}

struct Run {
    pace: Pace,
    requests: Vec<Vec<u8>>,
    lanes: Vec<Lane>,
    epoll: OwnedFd,
    timer: OwnedFd,
    sent: usize,
    measured_ns: u64,
    found: Paced,
}

impl Run {
    fn new(address: SocketAddr, pace: Pace) -> Result<Run, String> {
        let said = |error: std::io::Error| format!("{address}: {error}");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).unwrap();
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN).unwrap();
        let mut lanes = Vec::new();
        for place in 0..pace.connections as u64 {
            let stream = TcpStream::connect(address).map_err(said)?;
            stream.set_nodelay(true).map_err(said)?;
            stream.set_nonblocking(true).map_err(said)?;
            epoll::add(&epoll, &stream, EventData::new_u64(place), EventFlags::IN).unwrap();
            lanes.push(Lane {
                stream,
                come: Vec::new(),
                since_ns: None,
                due_ns: VecDeque::new(),
            });
        }
        Ok(Run {
            pace,
            requests: (0..pace.clients)
                .map(|client| request(address, client))
                .collect(),
            lanes,
            epoll,
            timer,
            sent: 0,
            measured_ns: 0,
            found: Paced::default(),
        })
    }

    fn all(&mut self, begin: impl FnOnce()) -> Result<(), String> {
        let ns = |seconds: f64| (seconds * SECOND_NS as f64) as u64;
        let start_ns = now_ns();
        self.measured_ns = start_ns + ns(self.pace.warm_seconds);
        let end_ns = self.measured_ns + ns(self.pace.seconds);
        let (mut begin, mut next) = (Some(begin), 0);
        let mut events = Vec::with_capacity(64);
        loop {
            let now = now_ns();
            if now >= self.measured_ns
                && let Some(begin) = begin.take()
            {
                begin();
            }
            let mut due_ns = start_ns + next * SECOND_NS / self.pace.rate;
            while due_ns <= now && due_ns < end_ns {
                let lane = next as usize % self.lanes.len();
                self.due(lane, due_ns)?;
                next += 1;
                due_ns = start_ns + next * SECOND_NS / self.pace.rate;
            }
            let over = due_ns >= end_ns;
            if over && (self.idle() || now > end_ns + PATIENCE_NS) {
                break;
            }
            self.wake_at(if over { end_ns + PATIENCE_NS } else { due_ns });
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
            }
            for event in &events {
                match event.data.u64() {
                    TIMER => {}
                    place => self.readable(place as usize)?,
                }
            }
        }
        let waiting = |lane: &Lane| lane.due_ns.len() as u64 + u64::from(lane.since_ns.is_some());
        self.found.unanswered = self.lanes.iter().map(waiting).sum();
        Ok(())
    }

    fn idle(&self) -> bool {
        self.lanes.iter().all(|lane| lane.since_ns.is_none())
    }

    /// Setting it also takes back that it has fired.
    fn wake_at(&self, at_ns: u64) {
        let spec = |ns: u64| Timespec {
            tv_sec: (ns / SECOND_NS).cast_signed(),
            tv_nsec: (ns % SECOND_NS).cast_signed(),
        };
        let value = Itimerspec {
            it_interval: spec(0),
            it_value: spec(at_ns),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &value).unwrap();
    }

    fn due(&mut self, lane: usize, due_ns: u64) -> Result<(), String> {
        if self.lanes[lane].since_ns.is_some() {
            self.lanes[lane].due_ns.push_back(due_ns);
            return Ok(());
        }
        // That we ourselves woke late is nothing that the proxy did.
        self.send(lane, now_ns())
    }

    fn send(&mut self, lane: usize, since_ns: u64) -> Result<(), String> {
        let request = &self.requests[self.sent % self.requests.len()];
        self.sent += 1;
        let lane = &mut self.lanes[lane];
        lane.since_ns = Some(since_ns);
        // One that is answered has taken all that was sent: there is room.
        let sent = (&lane.stream).write_all(request);
        sent.map_err(|error| format!("a request could not be sent: {error}"))
    }

    fn readable(&mut self, place: usize) -> Result<(), String> {
        let mut buffer = [0; 16 << 10];
        let lane = &mut self.lanes[place];
        match (&lane.stream).read(&mut buffer) {
            Ok(0) => return Err("a connection was closed".to_owned()),
            Ok(count) => lane.come.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
        let Some((status, length)) = answer(&lane.come)? else {
            return Ok(());
        };
        if lane.come.len() > length {
            return Err("more came than was asked for".to_owned());
        }
        lane.come.clear();
        let since_ns = lane.since_ns.take().ok_or("an answer to nothing")?;
        if since_ns >= self.measured_ns {
            let wait_us = (now_ns() - since_ns) / 1_000;
            let slice = (since_ns - self.measured_ns) / SLICE_NS;
            let wait_us = u32::try_from(wait_us).unwrap_or(u32::MAX);
            self.found.note(slice as usize, wait_us);
            *self.found.statuses.entry(status).or_default() += 1;
        }
        match self.lanes[place].due_ns.pop_front() {
            Some(due_ns) => self.send(place, due_ns),
            None => Ok(()),
        }
    }
}

/// A connection that has had one answer and is idle.
pub fn idle(address: SocketAddr, client: usize) -> std::io::Result<TcpStream> {
    let mut stream = from_its_own(address)?;
    stream.set_read_timeout(Some(Duration::from_nanos(PATIENCE_NS)))?;
    stream.write_all(&request(address, client))?;
    let (mut come, mut buffer) = (Vec::new(), [0; 2048]);
    while !matches!(answer(&come), Ok(Some((200, _)))) {
        match stream.read(&mut buffer)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => come.extend_from_slice(&buffer[..count]),
        }
        if answer(&come).is_err_and(|_| !come.is_empty()) {
            return Err(ErrorKind::InvalidData.into());
        }
    }
    Ok(stream)
}

/// Connects from an address that is for this server alone: all of one address have only so many
/// ports, and those of closed connections are not free for a minute.
fn from_its_own(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    let [high, low] = address.port().to_be_bytes();
    let own = SocketAddr::from(([127, 1, high, low], 0));
    socket.bind(&own.into())?;
    socket.connect(&address.into())?;
    Ok(socket.into())
}

fn request(address: SocketAddr, client: usize) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {address}\r\nX-Client: c{client}\r\n\r\n").into_bytes()
}

/// The status and the length of a whole answer, if it is whole.
fn answer(come: &[u8]) -> Result<Option<(u16, usize)>, String> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(come).map_err(|error| error.to_string())?;
    let httparse::Status::Complete(head) = parsed else {
        return Ok(None);
    };
    let named = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("content-length");
    let length = response.headers.iter().find(named);
    let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok());
    let length: usize = length.ok_or("an answer of unknown length")?;
    if head + length > LONGEST {
        return Err(format!("an answer of {length} bytes"));
    }
    let whole = come.len() >= head + length;
    Ok(whole.then_some((response.code.unwrap_or(0), head + length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const PACE: Pace = Pace {
        connections: 1,
        rate: 100,
        seconds: 0.5,
        warm_seconds: 0.0,
        clients: 3,
    };

    /// A server that sleeps once, before its tenth answer.
    fn stalls(stall: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 1024];
            for answered in 0.. {
                if stream.read(&mut buffer).unwrap_or(0) == 0 {
                    return;
                }
                if answered == 10 {
                    std::thread::sleep(stall);
                }
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
            }
        });
        address
    }

    #[test]
    fn a_stall_is_in_the_time_of_all_that_were_due_in_it() {
        let found = run(stalls(Duration::from_millis(200)), PACE, || {}).unwrap();
        assert_eq!(found.statuses[&200], 50);
        assert_eq!(found.unanswered, 0);
        // 20 were due while it slept; half of them waited for more than 100 ms.
        let long = found.waits_us.iter().filter(|wait| **wait > 90_000).count();
        assert!(long >= 8, "{:?}", found.waits_us);
    }

    #[test]
    fn a_pause_is_in_the_percentiles_of_its_own_half_second() {
        let mut found = Paced::default();
        for slice in 0..5 {
            for wait in 1..=100 {
                let paused = if slice == 3 { 10_000 } else { 0 };
                found.note(slice, wait + paused);
            }
        }
        assert_eq!(found.usual(0.99), 99.0);
        found.waits_us.sort_unstable();
        assert!(percentile(&found.waits_us, 0.99) > 10_000);
        assert!(Paced::default().usual(0.99).is_nan());
    }

    #[test]
    fn an_answer_is_whole_or_not_yet() {
        let whole = b"HTTP/1.1 429 Too Many\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(answer(whole), Ok(Some((429, whole.len()))));
        assert_eq!(answer(&whole[..whole.len() - 1]), Ok(None));
        assert_eq!(answer(&whole[..20]), Ok(None));
        assert!(answer(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
