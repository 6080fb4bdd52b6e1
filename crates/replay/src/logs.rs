//! Reads logs: finds the format of each line, and takes the lines of several logs in the order of
//! their times. So rotated files may come in any order, and the logs of several servers are
//! interleaved.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use memchr::memchr;

use super::entry::{Fault, LineFormat, LogEntry};
use super::json::{self, MemberMapping};
use super::text::{self, DayCount, LastDate};

/// Bytes of a line, at most.
const MAX_LINE: usize = 1 << 20;
/// Bytes of one read.
const CHUNK: usize = 256 << 10;
/// Bytes of an unopened log that are searched for its first time.
const HEAD_BYTES: u64 = 64 << 10;
/// Unreadable lines that a report shows of each kind.
const EXAMPLES: usize = 3;
/// Bytes of an unreadable line in a report.
const SHOWN: usize = 200;
/// The first bytes of packed files, and the commands that unpack them.
const PACKED: [(&[u8], &str); 4] = [
    (b"\x28\xb5\x2f\xfd", "zstd -dc"),
    (b"BZh", "bzip2 -dc"),
    (b"\xfd7zXZ", "xz -dc"),
    (b"PK\x03\x04", "unzip -p"),
];

#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    /// The format of every line, if it is forced.
    pub format: Option<LineFormat>,
    pub mapping: MemberMapping,
}

pub struct Logs {
    options: LogOptions,
    /// The log that begins first is the last one.
    unopened: Vec<UnopenedLog>,
    open: Vec<OpenLog>,
    /// In the order of the command line.
    pub summaries: Vec<LogSummary>,
    /// Bytes of all logs that were read, as they are on disk.
    pub read: Arc<AtomicU64>,
}

struct UnopenedLog {
    number: usize,
    path: PathBuf,
    first_us: u64,
}

struct OpenLog {
    number: usize,
    from: Box<dyn BufRead>,
    line: Vec<u8>,
    /// `line` was read before its time came.
    is_early: bool,
    reader: LineReader,
    /// The time of its next line.
    head_us: u64,
    /// The error that ended the log early.
    error: Option<io::Error>,
}

#[derive(Debug, Default)]
pub struct LogSummary {
    pub name: String,
    /// All lines but empty ones.
    pub lines: u64,
    /// Lines of denials, which have status 429.
    pub denials: u64,
    pub format: Option<LineFormat>,
    /// Unreadable lines for each fault.
    pub unread: [u64; Fault::ALL.len()],
    pub examples: Vec<UnreadLine>,
    /// The error that ended the log early.
    pub error: Option<io::Error>,
}

#[derive(Clone, Debug)]
pub struct UnreadLine {
    /// Its number in its log, from 1.
    pub line: u64,
    pub fault: Fault,
    pub text: String,
}

impl Logs {
    /// Opens logs. Their order counts only where they begin at one time. `-` is standard input.
    ///
    /// # Errors
    /// The first log that cannot be opened, with its path.
    pub fn open(paths: &[PathBuf], options: &LogOptions) -> Result<Logs, (PathBuf, io::Error)> {
        let mut logs = Logs {
            options: options.clone(),
            unopened: Vec::new(),
            open: Vec::new(),
            summaries: Vec::new(),
            read: Arc::default(),
        };
        for (number, path) in paths.iter().enumerate() {
            logs.summaries.push(LogSummary {
                name: path.display().to_string(),
                ..LogSummary::default()
            });
            let fail = |error| (path.clone(), error);
            if !path.is_file() {
                // Standard input and pipes cannot be read twice.
                logs.activate(number, path, 0).map_err(fail)?;
                continue;
            }
            let first_us = first_time(path, options).map_err(fail)?;
            logs.unopened.push(UnopenedLog {
                number,
                path: path.clone(),
                first_us: first_us.unwrap_or(0),
            });
        }
        logs.unopened
            .sort_by_key(|one| std::cmp::Reverse((one.first_us, one.number)));
        Ok(logs)
    }

    fn activate(&mut self, number: usize, path: &Path, head_us: u64) -> io::Result<()> {
        self.open.push(OpenLog {
            number,
            from: open(path, &self.read)?,
            line: Vec::new(),
            is_early: false,
            reader: LineReader::new(&self.options),
            head_us,
            error: None,
        });
        Ok(())
    }

    /// Calls `take` with every readable line, in the order of their times.
    pub fn each(&mut self, mut take: impl FnMut(&LogEntry<'_>)) {
        loop {
            let head_us = self.open.iter().map(|one| one.head_us).min();
            let next_us = self.unopened.last().map(|one| one.first_us);
            if next_us.is_some_and(|next| head_us.is_none_or(|head| next <= head))
                && let Some(next) = self.unopened.pop()
            {
                if let Err(error) = self.activate(next.number, &next.path, next.first_us) {
                    self.summaries[next.number].error = Some(error);
                }
                continue;
            }
            let current = (0..self.open.len()).min_by_key(|at| self.open[*at].head_us);
            let Some(current) = current else {
                return;
            };
            let mut one = self.open.swap_remove(current);
            let others = self.open.iter().map(|other| other.head_us);
            let until_us = others.chain(next_us).min().unwrap_or(u64::MAX);
            let summary = &mut self.summaries[one.number];
            if one.run(until_us, summary, &mut take) {
                self.open.push(one);
            } else {
                summary.error = one.error;
            }
        }
    }
}

impl OpenLog {
    /// Takes lines up to this time. Returns whether there are more.
    fn run(
        &mut self,
        until_us: u64,
        summary: &mut LogSummary,
        take: &mut impl FnMut(&LogEntry<'_>),
    ) -> bool {
        while std::mem::take(&mut self.is_early) || self.read_line() {
            if self.line.trim_ascii().is_empty() {
                continue;
            }
            match self.reader.read(&self.line) {
                Ok((entry, _)) if entry.at_us > until_us => {
                    self.head_us = entry.at_us;
                    self.is_early = true;
                    return true;
                }
                Ok((entry, format)) => {
                    summary.lines += 1;
                    summary.denials += u64::from(entry.status == 429);
                    summary.format = summary.format.max(Some(format));
                    take(&entry);
                }
                Err(fault) => summary.add_unread(fault, &self.line),
            }
        }
        false
    }

    /// Reads the next line. Returns false at the end of the log. Skips what is too long of a line.
    fn read_line(&mut self) -> bool {
        if self.error.is_some() {
            return false;
        }
        self.line.clear();
        loop {
            let buffer = match self.from.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.error = Some(error);
                    break;
                }
            };
            if buffer.is_empty() {
                break;
            }
            // `memchr` is faster than the search of `read_until`.
            let end = memchr(b'\n', buffer);
            let part = &buffer[..end.unwrap_or(buffer.len())];
            let room = MAX_LINE - self.line.len();
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            let read = part.len() + usize::from(end.is_some());
            self.from.consume(read);
            if end.is_some() {
                return true;
            }
        }
        !self.line.is_empty()
    }
}

impl LogSummary {
    fn add_unread(&mut self, fault: Fault, line: &[u8]) {
        self.lines += 1;
        let count = &mut self.unread[fault as usize];
        *count += 1;
        if *count <= EXAMPLES as u64 {
            self.examples.push(UnreadLine {
                line: self.lines,
                fault,
                text: excerpt(line),
            });
        }
    }
}

/// The time of the first line of a log that can be read.
fn first_time(path: &Path, options: &LogOptions) -> io::Result<Option<u64>> {
    let mut head = Vec::new();
    let from = open(path, &Arc::default())?;
    // A later error in the log is reported when its lines are read.
    let _ = from.take(HEAD_BYTES).read_to_end(&mut head);
    let mut reader = LineReader::new(options);
    let mut lines = head.split(|byte| *byte == b'\n');
    Ok(lines.find_map(|line| reader.read(line).ok().map(|(entry, _)| entry.at_us)))
}

/// Reads the lines of one log. Finds the format of each line by how the line begins: a log may
/// change its format halfway.
#[derive(Debug)]
pub struct LineReader {
    options: LogOptions,
    days: DayCount,
    last_date: LastDate,
}

impl LineReader {
    pub fn new(options: &LogOptions) -> LineReader {
        LineReader {
            options: options.clone(),
            days: DayCount::default(),
            last_date: LastDate::default(),
        }
    }

    pub fn read<'l>(&mut self, line: &'l [u8]) -> Result<(LogEntry<'l>, LineFormat), Fault> {
        if line.len() >= MAX_LINE {
            return Err(Fault::Long);
        }
        // Some programs of Windows write a byte order mark before the first line.
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let line = line.trim_ascii_end();
        let (is_object, is_own) = match self.options.format {
            None => (line.first() == Some(&b'{'), text::is_own(line)),
            Some(LineFormat::Common | LineFormat::Combined) => (false, false),
            Some(LineFormat::OwnText) => (false, true),
            Some(LineFormat::Json | LineFormat::Caddy | LineFormat::Own) => (true, false),
        };
        if is_object {
            json::read(line, &self.options.mapping)
        } else if is_own {
            let entry = text::read_own(line, &mut self.days)?;
            Ok((entry, LineFormat::OwnText))
        } else {
            text::read_common(line, &mut self.last_date)
        }
    }
}

/// Opens a log, unpacked. `-` is standard input. `read` counts the packed bytes.
fn open(path: &Path, read: &Arc<AtomicU64>) -> io::Result<Box<dyn BufRead>> {
    let raw: Box<dyn Read> = if path == Path::new("-") {
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
    let whole = BufReader::with_capacity(CHUNK, whole);
    Ok(match is_gzip {
        true => Box::new(BufReader::with_capacity(CHUNK, MultiGzDecoder::new(whole))),
        false => Box::new(whole),
    })
}

struct CountedReader {
    raw: Box<dyn Read>,
    read: Arc<AtomicU64>,
}

impl Read for CountedReader {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let bytes = self.raw.read(room)?;
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
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

#[cfg(test)]
mod tests;
