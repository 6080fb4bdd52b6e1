//! One log as a stream of lines: a file or standard input, plain or gzip, read ahead by a thread of
//! its own so that unpacking and reading have the other core.

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

/// Bytes that are read at once.
const CHUNK: usize = 256 << 10;
/// Chunks that are read ahead.
const AHEAD: usize = 4;
/// Of a line that is too long, so much is kept to show it.
const SHOWN: usize = 200;
/// How packed files begin, and what unpacks them.
const PACKED: [(&[u8], &str); 4] = [
    (b"\x28\xb5\x2f\xfd", "zstd -dc"),
    (b"BZh", "bzip2 -dc"),
    (b"\xfd7zXZ", "xz -dc"),
    (b"PK\x03\x04", "unzip -p"),
];

/// The lines of one log.
#[derive(Debug)]
pub struct Lines {
    chunks: Receiver<io::Result<Chunk>>,
    spent: SyncSender<Chunk>,
    chunk: Chunk,
    at: usize,
    /// What stopped it before its end.
    pub error: Option<io::Error>,
}

/// A piece of a log. Its bytes keep their length from piece to piece, so that they are set to zero
/// once and not for each.
#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// Bytes of it that say something.
    len: usize,
}

impl Chunk {
    fn said(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Begins anew with what was left over of the one before.
    fn begin(&mut self, rest: &[u8]) {
        if self.bytes.len() < rest.len() + CHUNK {
            self.bytes.resize(rest.len() + CHUNK, 0);
        }
        self.bytes[..rest.len()].copy_from_slice(rest);
        self.len = rest.len();
    }

    /// One read of a large piece, or as many small ones as fill it.
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

/// Opens a log: what it says, unpacked. `-` is standard input. `read` counts the bytes that come
/// from it.
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
    let mut raw = Counted {
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

/// Counts what comes through.
struct Counted {
    raw: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let bytes = self.raw.read(room)?;
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

impl Lines {
    /// Begins to read.
    pub fn new(from: Box<dyn Read + Send>) -> io::Result<Lines> {
        let (full, chunks) = sync_channel(AHEAD);
        let (spent, empty) = sync_channel(AHEAD + 2);
        let ahead = move || read_ahead(from, &full, &empty);
        std::thread::Builder::new()
            .name("log".into())
            .spawn(ahead)?;
        Ok(Lines {
            chunks,
            spent,
            chunk: Chunk::default(),
            at: 0,
            error: None,
        })
    }

    /// Where the next line is in [`Lines::bytes`], without its end; nothing after the last one.
    pub fn peek(&mut self) -> Option<Range<usize>> {
        while self.at >= self.chunk.len {
            match self.chunks.recv() {
                Ok(Ok(chunk)) => {
                    // If nobody takes it back, it is given up.
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
        let left = &self.chunk.said()[self.at..];
        let end = memchr(b'\n', left).unwrap_or(left.len());
        Some(self.at..self.at + end)
    }

    /// What ranges are of.
    pub fn bytes(&self) -> &[u8] {
        self.chunk.said()
    }

    /// Goes behind the line that ends there.
    pub fn pass(&mut self, end: usize) {
        self.at = end + 1;
    }
}

/// Sends chunks of whole lines until the end, an error, or nobody wants more.
fn read_ahead(
    mut from: Box<dyn Read + Send>,
    full: &SyncSender<io::Result<Chunk>>,
    empty: &Receiver<Chunk>,
) {
    let mut rest = Vec::new();
    // Within a line that is too long.
    let mut lost = false;
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
        if lost {
            let end = memchr(b'\n', chunk.said());
            lost = end.is_none();
            let said = end.map_or(chunk.len, |end| end + 1);
            chunk.bytes.copy_within(said..chunk.len, 0);
            chunk.len -= said;
        }
        if !is_end {
            match memrchr(b'\n', chunk.said()) {
                Some(end) => {
                    rest.extend_from_slice(&chunk.said()[end + 1..]);
                    chunk.len = end + 1;
                }
                None if chunk.len < MAX_LINE => {
                    rest.extend_from_slice(chunk.said());
                    continue;
                }
                None => {
                    lost = true;
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

/// As much of a line as reports show: printable, and not long.
pub fn excerpt(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]);
    let shown = text
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c });
    let mut shown: String = shown.collect();
    if line.len() > SHOWN {
        shown.push('…');
    }
    shown
}
