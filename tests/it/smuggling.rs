//! Request smuggling: over hundreds of streams that servers divide differently, and over thousands
//! of changes to them, an upstream that records every byte gets what was charged and answered, and
//! whoever reads that record, strictly or carelessly, reads the same requests.

mod readers;
mod streams;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::house::{Answer, Tidegate};
use crate::probe::{AFTER, eventually, statuses};
use crate::support::Chance;
use readers::{Reader, Request, Rest};

/// Changed streams, beside those that are tried as they are.
const MUTATED: usize = 700;

/// An upstream that keeps what came on each of its connections, and answers what it strictly is.
struct Recorder {
    address: SocketAddr,
    streams: Arc<Mutex<Vec<Stream>>>,
    /// In the order in which they came, whichever way.
    seen: Arc<Mutex<Vec<Request>>>,
}

#[derive(Clone, Debug, Default)]
struct Stream {
    bytes: Vec<u8>,
    has_ended: bool,
}

impl Recorder {
    fn start() -> Recorder {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let recorder = Recorder {
            address,
            streams: Arc::default(),
            seen: Arc::default(),
        };
        let (streams, seen) = (Arc::clone(&recorder.streams), Arc::clone(&recorder.seen));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let number = streams.lock().unwrap().len();
                streams.lock().unwrap().push(Stream::default());
                let (streams, seen) = (Arc::clone(&streams), Arc::clone(&seen));
                std::thread::spawn(move || {
                    record(stream, &seen, &|bytes| {
                        streams.lock().unwrap()[number].bytes.extend(bytes);
                    });
                    streams.lock().unwrap()[number].has_ended = true;
                });
            }
        });
        recorder
    }

    fn streams(&self) -> Vec<Stream> {
        self.streams.lock().unwrap().clone()
    }

    fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

fn record(mut stream: TcpStream, seen: &Mutex<Vec<Request>>, keep: &dyn Fn(&[u8])) {
    let (mut unread, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(read @ 1..) = stream.read(&mut piece) {
        keep(&piece[..read]);
        unread.extend_from_slice(&piece[..read]);
        let (requests, _) = Reader::Strict.all(&unread);
        unread.drain(..requests.last().map_or(0, |last| last.end));
        let answers = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".repeat(requests.len());
        seen.lock().unwrap().extend(requests);
        let _ = stream.write_all(&answers);
    }
}

fn told(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

struct Probed {
    proxy: Tidegate,
    upstream: Recorder,
    /// What had been seen, and charged, when all was quiet.
    seen: usize,
    left: u64,
}

impl Probed {
    fn start() -> Probed {
        let upstream = Recorder::start();
        let proxy = Tidegate::start(&format!(
            "upstream = \"http://{}\"\n[limit.default]\nrate = \"1_000_000/day\"\nkey = \"global\"\n\
             [[route]]\npath = \"/meter\"\nrespond = {{ status = 200 }}\n[[route]]\npath = \"/*\"\n",
            upstream.address
        ));
        let mut probed = Probed {
            proxy,
            upstream,
            seen: 0,
            left: 0,
        };
        probed.left = probed.meter();
        probed
    }

    fn meter(&self) -> u64 {
        let answer = self.proxy.get("/meter");
        answer
            .header("x-ratelimit-remaining")
            .unwrap()
            .parse()
            .unwrap()
    }

    /// What is answered to a stream, and to whatever follows it.
    fn answers(&self, bytes: &[u8]) -> Vec<Answer> {
        let mut client = self.proxy.connect();
        client.send(bytes);
        client.send(AFTER);
        let _ = client.stream.shutdown(Shutdown::Write);
        client.answers()
    }

    fn check(&mut self, bytes: &[u8]) {
        let answers = self.answers(bytes);
        let left = self.meter();
        // The meter itself is one.
        let charged = usize::try_from(self.left - left - 1).unwrap();
        self.left = left;
        let seen = self.upstream.seen().split_off(self.seen);
        self.seen += seen.len();
        let all = format!(
            "{}\nanswered {:?}, charged {charged}, seen {seen:?}",
            told(bytes),
            statuses(&answers)
        );
        let served = answers.iter().filter(|answer| answer.status == 200).count();
        assert_eq!(seen.len(), served, "seen is not what was answered: {all}");
        // One whose body breaks has been charged and is not answered with 200; nothing follows it.
        assert!((served..=served + 1).contains(&charged), "{all}");
        // What the client meant, read strictly, is what arrived; behind another request of one read
        // some things are forgiven.
        let sent = [bytes, AFTER.as_bytes()].concat();
        let readings = [Reader::Strict, Reader::Forgiving].map(|reader| reader.all(&sent).0);
        let is_meant = |meant: &Vec<Request>| {
            let mut arrived = seen.iter();
            let mut pairs = answers.iter().zip(meant.iter().map(Some).chain([None]));
            let fits = pairs.all(|(answer, meant)| {
                answer.status != 200 || meant.is_some_and(|it| it.is(arrived.next().unwrap()))
            });
            fits && arrived.next().is_none()
        };
        assert!(readings.iter().any(is_meant), "nobody sent that: {all}");
    }
}

#[test]
fn what_an_upstream_gets_is_what_was_charged_and_answered() {
    let many = std::env::var("TIDEGATE_STREAMS")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = std::env::var("TIDEGATE_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let (many, seed) = (many.unwrap_or(MUTATED), seed.unwrap_or(7));
    let mut probed = Probed::start();
    let ambiguous = streams::ambiguous();
    for bytes in &ambiguous {
        probed.check(bytes);
    }
    let mut chance = Chance(seed);
    for number in 0..many {
        let bytes = streams::mutated(&mut chance, &ambiguous);
        let checked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| probed.check(&bytes)));
        assert!(
            checked.is_ok(),
            "stream {number} of seed {seed}: {}",
            told(&bytes)
        );
    }
    let rest = |stream: &Stream| Reader::Strict.all(&stream.bytes).1;
    eventually("what was only begun has ended", || {
        let streams = probed.upstream.streams();
        streams
            .iter()
            .all(|one| one.has_ended || rest(one) == Rest::Nothing)
    });
    let streams = probed.upstream.streams();
    for stream in &streams {
        let rest = rest(stream);
        assert!(
            !matches!(rest, Rest::Bad(_)),
            "{rest:?}: {}",
            told(&stream.bytes)
        );
    }
    let begun = streams.iter().filter(|one| rest(one) == Rest::Part).count();
    let whole = probed.upstream.seen().len();
    println!(
        "{} streams: {whole} whole, {begun} begun",
        ambiguous.len() + many
    );
    for reader in [Reader::Careless, Reader::LengthFirst] {
        for stream in &streams {
            let strict = Reader::Strict.all(&stream.bytes).0;
            assert_eq!(reader.all(&stream.bytes).0, strict, "{reader:?}");
        }
    }
    // A real server may refuse one of them, and never reads it otherwise.
    let each: Vec<_> = streams.iter().flat_map(singly).collect();
    let by_node = nodes(each.iter().map(|(_, bytes)| bytes.as_slice()));
    let mut taken = 0;
    for ((request, bytes), by_node) in each.iter().zip(&by_node) {
        let strict = (
            request.method.clone(),
            request.target.clone(),
            request.body.clone(),
        );
        let sentinel = ("GET".to_owned(), "/sentinel".to_owned(), Vec::new());
        let is_same = *by_node == [strict, sentinel];
        assert!(
            is_same || by_node.is_empty(),
            "node reads {}: {by_node:?}",
            told(bytes)
        );
        taken += usize::from(is_same);
    }
    assert!(
        2 * taken > each.len(),
        "node takes {taken} of {}",
        each.len()
    );
}

/// Each request that came on a connection, with another behind it. Not those for an upgrade: what
/// follows them is no request to node.
fn singly(stream: &Stream) -> Vec<(Request, Vec<u8>)> {
    let (mut all, mut at) = (Vec::new(), 0);
    for request in Reader::Strict.all(&stream.bytes).0 {
        let of_this = &stream.bytes[at..request.end];
        at = request.end;
        if !of_this.windows(9).any(|part| part == b"upgrade: ") {
            let behind = b"GET /sentinel HTTP/1.1\r\nHost: test\r\n\r\n";
            all.push((request, [of_this, behind].concat()));
        }
    }
    all
}

type ByNode = Vec<(String, String, Vec<u8>)>;

/// What node's server makes of each of them.
fn nodes<'s>(streams: impl Iterator<Item = &'s [u8]>) -> Vec<ByNode> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/smuggling/node.mjs");
    let mut node = Command::new("node")
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("node is installed");
    let streams: Vec<String> = streams.map(|bytes| BASE64.encode(bytes)).collect();
    let input = serde_json::json!({ "streams": streams }).to_string();
    let mut stdin = node.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = node.wait_with_output().unwrap();
    let told: Vec<Vec<(String, String, String)>> = serde_json::from_slice(&output.stdout).unwrap();
    let decoded = |one: (String, String, String)| (one.0, one.1, BASE64.decode(one.2).unwrap());
    let of_stream = |all: Vec<_>| all.into_iter().map(decoded).collect();
    told.into_iter().map(of_stream).collect()
}
