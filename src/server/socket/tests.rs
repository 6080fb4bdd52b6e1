//! The socket as hyper reads it: what it gives and when, and that it wakes its reader.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

use super::*;
use crate::clock::Sweep;
use crate::config;

/// Counts how often a task is woken.
#[derive(Default)]
struct WakeCount(AtomicUsize);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A socket in the place where hyper reads it.
struct SocketReader {
    socket: Socket,
    phase: Arc<Phase>,
    client: UnixStream,
    wakes: Arc<WakeCount>,
}

impl SocketReader {
    /// Of a connection on which `bytes` have come.
    async fn of(bytes: &str) -> SocketReader {
        let file = "listen = \"127.0.0.1:0\"\nupstream = \"http://127.0.0.1:1\"\n";
        let (config, _) = config::parse("proxy.toml", file, &|_| None).unwrap();
        let phase = Phase::new(Sweep::new().alarm(), &config.server);
        let (near, mut client) = UnixStream::pair().unwrap();
        client.write_all(bytes.as_bytes()).await.unwrap();
        let opened = PrefixedStream {
            stream: Stream::Unix(near),
            prefix: Bytes::new(),
        };
        SocketReader {
            socket: Socket::new(opened, Arc::clone(&phase), &config.server),
            phase,
            client,
            wakes: Arc::default(),
        }
    }

    /// Reads at most `most` bytes; nothing if none are given now.
    fn read(&mut self, most: usize) -> Option<String> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        let mut room = vec![0; most];
        let mut buf = ReadBuf::new(&mut room);
        let context = &mut Context::from_waker(&waker);
        match Pin::new(&mut self.socket).poll_read(context, &mut buf) {
            Poll::Ready(read) => {
                read.unwrap();
                Some(String::from_utf8(buf.filled().to_vec()).unwrap())
            }
            Poll::Pending => None,
        }
    }

    /// The same once the stream has them, and the runtime lets this task read.
    async fn read_soon(&mut self, most: usize) -> String {
        loop {
            if let Some(read) = self.read(most) {
                return read;
            }
            tokio::task::yield_now().await;
        }
    }

    fn wakes(&self) -> usize {
        self.wakes.0.load(Ordering::Relaxed)
    }
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const LENGTH: &str = "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";
const CHUNKS: &str = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n";

#[tokio::test]
async fn bytes_behind_a_request_are_given_once_it_is_answered_and_its_reader_is_woken() {
    for first in [GET, LENGTH, CHUNKS] {
        let mut reader = SocketReader::of(&[first, LENGTH, GET].concat()).await;
        assert_eq!(reader.read_soon(4096).await, first);
        reader.phase.begin_request(first != GET);
        if first != GET {
            // As if its content had been read.
            reader.phase.body.restart(false);
        }
        assert_eq!(reader.read(4096), None, "{first:?}");
        let before = reader.wakes();
        reader.phase.end_response();
        assert_eq!(reader.wakes(), before + 1, "{first:?}");
        assert_eq!(reader.read(4096).as_deref(), Some(LENGTH), "{first:?}");
        reader.phase.begin_request(false);
        reader.phase.end_response();
        assert_eq!(reader.read(4096).as_deref(), Some(GET), "{first:?}");
        // No one asked meanwhile, so no one had to be woken.
        assert_eq!(reader.wakes(), before + 1, "{first:?}");
    }
}

#[tokio::test]
async fn every_request_is_given_by_itself_however_little_room_there_is() {
    let behind_a_blank_line = format!("\r\n{GET}");
    let all = [
        GET,
        LENGTH,
        CHUNKS,
        LENGTH,
        &behind_a_blank_line,
        CHUNKS,
        GET,
    ];
    for room in [1, 2, 7, 30, 50, 4096] {
        let mut reader = SocketReader::of(&all.concat()).await;
        for expected in all {
            let mut given = String::new();
            while given.len() < expected.len() {
                given += &reader.read_soon(room).await;
            }
            assert_eq!(given, expected, "{room}");
            reader.phase.begin_request(false);
            assert_eq!(reader.read(room), None, "{room}");
            reader.phase.end_response();
        }
    }
}

#[tokio::test]
async fn content_is_not_taken_out_of_the_way_of_its_reader() {
    let (head, content) = LENGTH.split_at(LENGTH.len() - 3);
    let mut reader = SocketReader::of(head).await;
    assert_eq!(reader.read_soon(4096).await, head);
    // An earlier body was thrown away to its end only now.
    reader.phase.begin_request(false);
    assert_eq!(reader.read(4096), None);
    reader.client.write_all(content.as_bytes()).await.unwrap();
    let waker = Waker::noop();
    for _ in 0..2 {
        let context = &mut Context::from_waker(waker);
        assert!(Pin::new(&mut reader.socket).poll_flush(context).is_ready());
    }
    assert!(reader.socket.ahead.is_empty());
    assert_eq!(reader.read_soon(4096).await, content);
}
