//! One log as a stream of lines: a file or standard input, plain or gzip. A thread reads and
//! unpacks ahead on another core.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use flate2::bufread::MultiGzDecoder;
use memchr::{memchr, memrchr};

use super::formats::MAX_LINE;

/// Bytes of one read.
const CHUNK: usize = 256 << 10;
/// Chunks that are read ahead.
const AHEAD: usize = 4;
/// Bytes of an unreadable line in a report.
const SHOWN: usize = 200;
/// The first bytes of packed files, and the commands that unpack them.
const PACKED: [(&[u8], &str); 4] = [
    (b"\x28\xb5\x2f\xfd", "zstd -dc"),
    (b"BZh", "bzip2 -dc"),
    (b"\xfd7zXZ", "xz -dc"),
    (b"PK\x03\x04", "unzip -p"),
];

#[derive(Debug)]
pub struct LogLines {
    chunks: Receiver<io::Result<Chunk>>,
    spent: SyncSender<Chunk>,
    chunk: Chunk,
    at: usize,
    /// The error that ended the log early.
    pub error: Option<io::Error>,
}

/// A piece of a log. Pieces are reused and `bytes` never shrinks, so that it is zeroed only once.
#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// The used bytes.
    len: usize,
}

impl Chunk {
    fn used(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Begins with the rest of the piece before.
    fn begin(&mut self, rest: &[u8]) {
        if self.bytes.len() < rest.len() + CHUNK {
            self.bytes.resize(rest.len() + CHUNK, 0);
        }
        self.bytes[..rest.len()].copy_from_slice(rest);
        self.len = rest.len();
    }

    /// Reads until the piece is full or the log ends.
    fn fill(&mut self, from: &mut dyn Read) -> io::Result<()> {
        while self.len < self.bytes.len() {
            match from.read(&mut self.bytes[self.len..]) {
                Ok(0) => return Ok(()),
                Ok(read) => self.len += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Opens a log, unpacked. `-` is standard input. `read` counts the packed bytes.
pub fn open(path: &Path, read: &Arc<AtomicU64>) -> io::Result<Box<dyn Read + Send>> {
    let raw: Box<dyn Read + Send> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(io::Error::other("is a directory"));
        }
        Box::new(file)
    };
    let mut raw = CountedReader {
        raw,
        read: Arc::clone(read),
    };
    let mut magic = Vec::new();
    raw.by_ref().take(6).read_to_end(&mut magic)?;
    for (packed, command) in PACKED {
        if magic.starts_with(packed) {
            let name = path.display();
            let advice = format!("is packed; try `{command} {name} | tidegate replay -`");
            return Err(io::Error::other(advice));
        }
    }
    let is_gzip = magic.starts_with(&[0x1f, 0x8b]);
    let whole = Cursor::new(magic).chain(raw);
    Ok(match is_gzip {
        true => Box::new(MultiGzDecoder::new(BufReader::with_capacity(CHUNK, whole))),
        false => Box::new(whole),
    })
}

struct CountedReader {
    raw: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
}

impl Read for CountedReader {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let bytes = self.raw.read(room)?;
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

impl LogLines {
    pub fn new(from: Box<dyn Read + Send>) -> io::Result<LogLines> {
        let (full, chunks) = sync_channel(AHEAD);
        let (spent, empty) = sync_channel(AHEAD + 2);
        let ahead = move || read_ahead(from, &full, &empty);
        std::thread::Builder::new()
            .name("log".into())
            .spawn(ahead)?;
        Ok(LogLines {
            chunks,
            spent,
            chunk: Chunk::default(),
            at: 0,
            error: None,
        })
    }

    /// The range of the next line in [`LogLines::bytes`], without its newline. `None` at the end.
    pub fn peek(&mut self) -> Option<Range<usize>> {
        while self.at >= self.chunk.len {
            match self.chunks.recv() {
                Ok(Ok(chunk)) => {
                    // The reading thread may have ended. Then the piece is dropped.
                    let _ = self
                        .spent
                        .try_send(std::mem::replace(&mut self.chunk, chunk));
                    self.at = 0;
                }
                Ok(Err(error)) => {
                    self.error = Some(error);
                    return None;
                }
                Err(_) => return None,
            }
        }
        let left = &self.chunk.used()[self.at..];
        let end = memchr(b'\n', left).unwrap_or(left.len());
        Some(self.at..self.at + end)
    }

    /// The current piece.
    pub fn bytes(&self) -> &[u8] {
        self.chunk.used()
    }

    /// Skips the line that ends at `end`.
    pub fn skip(&mut self, end: usize) {
        self.at = end + 1;
    }
}

/// Sends chunks of whole lines until the log ends, reading fails, or the receiver is gone.
fn read_ahead(
    mut from: Box<dyn Read + Send>,
    full: &SyncSender<io::Result<Chunk>>,
    empty: &Receiver<Chunk>,
) {
    let mut rest = Vec::new();
    let mut in_long_line = false;
    loop {
        let mut chunk = empty.try_recv().unwrap_or_default();
        chunk.begin(&rest);
        rest.clear();
        let before = chunk.len;
        if let Err(error) = chunk.fill(&mut from) {
            let _ = full.send(Ok(chunk)).and_then(|()| full.send(Err(error)));
            return;
        }
        let is_end = chunk.len == before;
        if in_long_line {
            let end = memchr(b'\n', chunk.used());
            in_long_line = end.is_none();
            let skipped = end.map_or(chunk.len, |end| end + 1);
            chunk.bytes.copy_within(skipped..chunk.len, 0);
            chunk.len -= skipped;
        }
        if !is_end {
            match memrchr(b'\n', chunk.used()) {
                Some(end) => {
                    rest.extend_from_slice(&chunk.used()[end + 1..]);
                    chunk.len = end + 1;
                }
                None if chunk.len < MAX_LINE => {
                    rest.extend_from_slice(chunk.used());
                    continue;
                }
                None => {
                    in_long_line = true;
                    chunk.bytes.resize(chunk.bytes.len().max(MAX_LINE + 1), 0);
                    chunk.bytes[MAX_LINE] = b'\n';
                    chunk.len = MAX_LINE + 1;
                }
            }
        }
        if full.send(Ok(chunk)).is_err() || is_end {
            return;
        }
    }
}

/// The beginning of a line for a report, without control characters.
pub fn excerpt(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]);
    let mut shown = printable(&text);
    if line.len() > SHOWN {
        shown.push('…');
    }
    shown
}

/// Replaces control characters, which could move a terminal's cursor.
pub fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}
