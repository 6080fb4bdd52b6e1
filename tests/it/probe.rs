//! More of the tests' language, for probes: what became of raw bytes on both sides of the proxy,
//! counts read back from it, waits that are bounded by patience and by nothing else.

use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use crate::house::{Answer, Client, PATIENCE, Seen, Tidegate, Upstream};

/// What follows a probe on its connection: whether it is answered tells what became of the bytes
/// before it.
pub const AFTER: &str = "GET /after HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";

/// A proxy in front of an upstream; every request counts against one wide budget, so that charges
/// can be read back.
pub struct Probe {
    pub proxy: Tidegate,
    pub upstream: Upstream,
}

/// What happened on the two sides of the proxy.
#[derive(Debug)]
pub struct Observed<T> {
    /// What the client made of it.
    pub client: T,
    /// What the upstream saw, in order.
    pub seen: Vec<Seen>,
    /// How many units were charged.
    pub charged: u64,
}

impl Probe {
    /// In front of an upstream that answers 200 to everything. `settings` begins at the top of the
    /// file and may end in sections. Where it names `$UPSTREAM`, only its own routes lead there.
    pub fn start(settings: &str) -> Probe {
        Probe::before(Upstream::ok(), settings)
    }

    pub fn before(upstream: Upstream, settings: &str) -> Probe {
        let settings = if settings.contains("$UPSTREAM") {
            settings.replace("$UPSTREAM", &upstream.url())
        } else {
            format!("upstream = \"{}\"\n{settings}", upstream.url())
        };
        let budget = "[limit.default]\nrate = \"1_000_000/day\"\nkey = \"global\"\n";
        let proxy = Tidegate::start(&format!("{settings}\n{budget}"));
        Probe { proxy, upstream }
    }

    fn remaining(&self) -> u64 {
        let answer = self.proxy.get("/meter");
        let remaining = answer.header("x-ratelimit-remaining");
        remaining
            .unwrap_or_else(|| panic!("no remaining: {answer:?}"))
            .parse()
            .unwrap()
    }

    /// Watches both sides while `act` does something.
    pub fn observe<T>(&self, act: impl FnOnce(&Tidegate) -> T) -> Observed<T> {
        let before = self.remaining();
        let known = self.upstream.seen().len();
        let client = act(&self.proxy);
        let charged = before - self.remaining() - 1;
        let mut seen = self.upstream.seen();
        let seen = seen
            .drain(known..)
            .filter(|seen| !seen.is_for("/meter"))
            .collect();
        Observed {
            client,
            seen,
            charged,
        }
    }

    /// Sends bytes and [`AFTER`] on one connection and reads everything that is answered.
    pub fn send(&self, bytes: &[u8], pace: Pace) -> Observed<Vec<Answer>> {
        self.observe(|proxy| {
            let mut client = proxy.connect();
            let all = [bytes, AFTER.as_bytes()].concat();
            match pace {
                Pace::Whole => client.send(all),
                Pace::Bytewise => all.chunks(1).for_each(|byte| client.send(byte)),
            }
            client.answers()
        })
    }
}

/// How bytes are put on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// In one write.
    Whole,
    /// A packet for each byte.
    Bytewise,
}

impl Client {
    /// Every answer until the other side ends the connection; nothing may be left over.
    pub fn answers(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        while let Some(answer) = self.try_answer(false) {
            answers.push(answer);
        }
        let rest = self.rest();
        assert!(
            rest.is_empty(),
            "no answer: {:?}",
            String::from_utf8_lossy(&rest)
        );
        answers
    }

    /// Sends the end of stream; answers can still be read.
    pub fn end_writing(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Writes as long as the other side reads, at most `most` bytes of `pattern`. Whether all of it
    /// could be written.
    pub fn pour(&mut self, pattern: &[u8], most: usize) -> bool {
        let pieces = most / pattern.len() + 1;
        (0..pieces).all(|_| self.stream.write_all(pattern).is_ok())
    }
}

impl Answer {
    /// A problem that the proxy itself tells, with an id to quote.
    #[track_caller]
    pub fn assert_problem(&self, status: u16) {
        assert_eq!(self.status, status, "{self:?}");
        let media = self.header("content-type");
        assert_eq!(
            media.as_deref(),
            Some("application/problem+json"),
            "{self:?}"
        );
        let text = self.text();
        assert!(text.contains(&format!("\"status\":{status}")), "{text}");
        assert!(text.contains("\"request_id\":\""), "{text}");
    }
}

impl Seen {
    /// Whether its target is this.
    pub fn is_for(&self, target: &str) -> bool {
        self.head.split(' ').nth(1) == Some(target)
    }
}

/// Statuses of answers, in order.
pub fn statuses(answers: &[Answer]) -> Vec<u16> {
    answers.iter().map(|answer| answer.status).collect()
}

/// Waits until `true`, and fails if that takes more than any patience.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "it never came to pass: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Tries every row of a table, and fails with the names of all that fail.
#[track_caller]
pub fn try_all<T>(rows: &[T], name: impl Fn(&T) -> String, check: impl Fn(&T)) {
    let fails =
        |row: &&T| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(row))).is_err();
    let failed: Vec<String> = rows.iter().filter(fails).map(name).collect();
    assert!(failed.is_empty(), "see above: {failed:#?}");
}
