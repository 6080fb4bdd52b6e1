//! Several logs as one: each line is taken when its time comes, whatever file it is in. So rotated
//! files may come in any order, and the logs of several servers are interleaved.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::entry::{Fault, LineFormat, LogEntry};
use super::formats::{LineReader, PlainLine};
use super::json_entry::HeaderFrom;
use super::log_file::{self, LogLines};
use super::text::WantedFields;

/// Bytes of an unopened log that are searched for its first time.
const HEAD_BYTES: u64 = 64 << 10;
/// Unreadable lines that a report shows of each kind.
const EXAMPLES: usize = 3;

/// How to read lines.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    /// The format of every line, if it is forced.
    pub format: Option<LineFormat>,
    pub headers: Vec<HeaderFrom>,
    pub wanted: WantedFields,
}

#[derive(Debug)]
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

#[derive(Debug)]
struct UnopenedLog {
    /// The index of its summary.
    number: usize,
    path: PathBuf,
    first_us: u64,
}

#[derive(Debug)]
struct OpenLog {
    /// The index of its summary.
    number: usize,
    lines: LogLines,
    reader: LineReader,
    /// The time of its next line.
    head_us: u64,
}

/// A line for the engine.
#[derive(Clone, Copy, Debug)]
pub enum LogLine<'e, 'l> {
    /// The engine may refuse it. It then comes again in full.
    Plain(&'e PlainLine<'l>),
    Full(&'e LogEntry<'l>),
}

/// The result of reading one log.
#[derive(Debug, Default)]
pub struct LogSummary {
    /// The path of the command line.
    pub name: String,
    /// All lines but empty ones.
    pub lines: u64,
    /// The format of the lines.
    pub format: Option<LineFormat>,
    /// Unreadable lines for each fault.
    pub unread: [u64; Fault::ALL.len()],
    pub examples: Vec<UnreadLine>,
    /// The error that ended the log early.
    pub error: Option<io::Error>,
}

/// A line that could not be read.
#[derive(Clone, Debug)]
pub struct UnreadLine {
    /// Its number in its log, from 1.
    pub line: u64,
    pub fault: Fault,
    /// The beginning of the line.
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
            if path == Path::new("-") {
                // Standard input cannot be read twice.
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
        let lines = LogLines::new(log_file::open(path, &self.read)?)?;
        let mut reader = LineReader::new(self.options.format, &self.options.headers);
        reader.wanted = self.options.wanted;
        self.open.push(OpenLog {
            number,
            lines,
            reader,
            head_us,
        });
        Ok(())
    }

    /// Calls `take` with every readable line, in the order of their times. It returns false for a
    /// plain line that it needs in full.
    pub fn each(&mut self, mut take: impl FnMut(LogLine<'_, '_>) -> bool) {
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
                summary.error = one.lines.error.take();
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
        take: &mut impl FnMut(LogLine<'_, '_>) -> bool,
    ) -> bool {
        while let Some(range) = self.lines.peek() {
            let end = range.end;
            let line = &self.lines.bytes()[range];
            if let Some(plain) = self.reader.read_plain(line)
                && plain.at_us <= until_us
                && take(LogLine::Plain(&plain))
            {
                summary.add_read(plain.format);
                self.lines.skip(end);
                continue;
            }
            if line.trim_ascii().is_empty() {
                self.lines.skip(end);
                continue;
            }
            match self.reader.read(line) {
                Ok((entry, _)) if entry.at_us > until_us => {
                    self.head_us = entry.at_us;
                    return true;
                }
                Ok((entry, format)) => {
                    summary.add_read(format);
                    take(LogLine::Full(&entry));
                }
                Err(fault) => summary.add_unread(fault, line),
            }
            self.lines.skip(end);
        }
        false
    }
}

impl LogSummary {
    fn add_read(&mut self, format: LineFormat) {
        self.lines += 1;
        if self.format != Some(format) {
            self.format = self.format.max(Some(format));
        }
    }

    fn add_unread(&mut self, fault: Fault, line: &[u8]) {
        self.lines += 1;
        let count = &mut self.unread[fault as usize];
        *count += 1;
        if *count <= EXAMPLES as u64 {
            self.examples.push(UnreadLine {
                line: self.lines,
                fault,
                text: log_file::excerpt(line),
            });
        }
    }
}

/// The time of the first line of a log that can be read.
fn first_time(path: &Path, options: &LogOptions) -> io::Result<Option<u64>> {
    let mut head = Vec::new();
    let from = log_file::open(path, &Arc::default())?;
    // A later error in the log is reported when its lines are read.
    let _ = from.take(HEAD_BYTES).read_to_end(&mut head);
    let mut reader = LineReader::new(options.format, &options.headers);
    let mut lines = head.split(|byte| *byte == b'\n');
    Ok(lines.find_map(|line| reader.read(line).ok().map(|(entry, _)| entry.at_us)))
}
