//! Several logs as one: each line comes when its time has come, whichever file it is in. Rotated
//! files so follow each other whatever their order, and those of several servers are interleaved.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::entry::{Entry, Fault, Format};
use super::file::{self, Lines};
use super::formats::Reader;
use super::plain::Plain;
use super::structured::HeaderFrom;
use super::text::Wanted;

/// Of an unopened log so much is looked at to find its first time, bytes.
const LOOK: u64 = 64 << 10;
/// Unread lines that are shown of each kind.
const EXAMPLES: usize = 3;

/// How lines are to be read.
#[derive(Clone, Debug, Default)]
pub struct Forms {
    /// Every line has this format.
    pub format: Option<Format>,
    /// Members that are headers.
    pub headers: Vec<HeaderFrom>,
    /// What anybody asks of them.
    pub wanted: Wanted,
}

/// Every log, opened or not.
#[derive(Debug)]
pub struct Logs {
    forms: Forms,
    /// Not opened yet, whoever comes last first.
    waiting: Vec<Waiting>,
    active: Vec<Active>,
    /// What was found in each, as they were given.
    pub found: Vec<Found>,
    /// Bytes that were read of all, as they are on disk.
    pub read: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Waiting {
    place: usize,
    path: PathBuf,
    first_us: u64,
}

#[derive(Debug)]
struct Active {
    place: usize,
    lines: Lines,
    reader: Reader,
    /// The time of its next line.
    head_us: u64,
}

/// A line, as it is told.
#[derive(Clone, Copy, Debug)]
pub enum Line<'e, 'l> {
    /// It may be taken or not.
    Plain(&'e Plain<'l>),
    /// It is to be taken.
    Whole(&'e Entry<'l>),
}

/// What was found in one log.
#[derive(Debug, Default)]
pub struct Found {
    /// Its path as it was given.
    pub name: String,
    /// Its lines, the unread ones included; empty ones are none.
    pub lines: u64,
    /// The format of most of them that were read.
    pub format: Option<Format>,
    /// Lines that could not be read, for each kind of reason.
    pub unread: [u64; Fault::ALL.len()],
    /// Some of them.
    pub examples: Vec<Unread>,
    /// What stopped it before its end.
    pub error: Option<io::Error>,
}

/// A line that could not be read.
#[derive(Clone, Debug)]
pub struct Unread {
    /// Its number in its log, from 1.
    pub line: u64,
    /// Why.
    pub fault: Fault,
    /// As much of it as is shown.
    pub text: String,
}

impl Logs {
    /// These files, in this order where they begin at one time. `-` is standard input.
    ///
    /// # Errors
    /// The first that cannot be opened, with its path.
    pub fn open(paths: &[PathBuf], forms: &Forms) -> Result<Logs, (PathBuf, io::Error)> {
        let mut logs = Logs {
            forms: forms.clone(),
            waiting: Vec::new(),
            active: Vec::new(),
            found: Vec::new(),
            read: Arc::default(),
        };
        for (place, path) in paths.iter().enumerate() {
            logs.found.push(Found {
                name: path.display().to_string(),
                ..Found::default()
            });
            let fail = |error| (path.clone(), error);
            if path == Path::new("-") {
                // What is read from it cannot be read again.
                logs.activate(place, path, 0).map_err(fail)?;
                continue;
            }
            let first_us = first_time(path, forms).map_err(fail)?;
            logs.waiting.push(Waiting {
                place,
                path: path.clone(),
                first_us: first_us.unwrap_or(0),
            });
        }
        logs.waiting
            .sort_by_key(|one| std::cmp::Reverse((one.first_us, one.place)));
        Ok(logs)
    }

    fn activate(&mut self, place: usize, path: &Path, head_us: u64) -> io::Result<()> {
        let lines = Lines::new(file::open(path, &self.read)?)?;
        let mut reader = Reader::new(self.forms.format, &self.forms.headers);
        reader.wanted = self.forms.wanted;
        self.active.push(Active {
            place,
            lines,
            reader,
            head_us,
        });
        Ok(())
    }

    /// Tells `take` every line that can be read, in the order of their times: plain ones as such,
    /// and in full if it does not take them.
    pub fn each(&mut self, mut take: impl FnMut(Line<'_, '_>) -> bool) {
        loop {
            let head_us = self.active.iter().map(|one| one.head_us).min();
            let next_us = self.waiting.last().map(|one| one.first_us);
            if next_us.is_some_and(|next| head_us.is_none_or(|head| next <= head))
                && let Some(next) = self.waiting.pop()
            {
                if let Err(error) = self.activate(next.place, &next.path, next.first_us) {
                    self.found[next.place].error = Some(error);
                }
                continue;
            }
            let current = (0..self.active.len()).min_by_key(|at| self.active[*at].head_us);
            let Some(current) = current else {
                return;
            };
            let mut one = self.active.swap_remove(current);
            let others = self.active.iter().map(|other| other.head_us);
            let until_us = others.chain(next_us).min().unwrap_or(u64::MAX);
            let found = &mut self.found[one.place];
            if one.run(until_us, found, &mut take) {
                self.active.push(one);
            } else {
                found.error = one.lines.error.take();
            }
        }
    }
}

impl Active {
    /// Reads lines up to this time; whether there are more.
    fn run(
        &mut self,
        until_us: u64,
        found: &mut Found,
        take: &mut impl FnMut(Line<'_, '_>) -> bool,
    ) -> bool {
        while let Some(range) = self.lines.peek() {
            let end = range.end;
            let line = &self.lines.bytes()[range];
            if let Some(plain) = self.reader.plain(line)
                && plain.at_us <= until_us
                && take(Line::Plain(&plain))
            {
                found.has(plain.format);
                self.lines.pass(end);
                continue;
            }
            if line.trim_ascii().is_empty() {
                self.lines.pass(end);
                continue;
            }
            match self.reader.read(line) {
                Ok((entry, _)) if entry.at_us > until_us => {
                    self.head_us = entry.at_us;
                    return true;
                }
                Ok((entry, format)) => {
                    found.has(format);
                    take(Line::Whole(&entry));
                }
                Err(fault) => found.note(fault, line),
            }
            self.lines.pass(end);
        }
        false
    }
}

impl Found {
    /// One more line that was read.
    fn has(&mut self, format: Format) {
        self.lines += 1;
        if self.format != Some(format) {
            self.format = self.format.max(Some(format));
        }
    }

    fn note(&mut self, fault: Fault, line: &[u8]) {
        self.lines += 1;
        let count = &mut self.unread[fault as usize];
        *count += 1;
        if *count <= EXAMPLES as u64 {
            self.examples.push(Unread {
                line: self.lines,
                fault,
                text: file::excerpt(line),
            });
        }
    }
}

/// The time of the first line of a log that can be read.
fn first_time(path: &Path, forms: &Forms) -> io::Result<Option<u64>> {
    let mut head = Vec::new();
    let from = file::open(path, &Arc::default())?;
    // What is packed badly further on is a matter for later.
    let _ = from.take(LOOK).read_to_end(&mut head);
    let mut reader = Reader::new(forms.format, &forms.headers);
    let mut lines = head.split(|byte| *byte == b'\n');
    Ok(lines.find_map(|line| reader.read(line).ok().map(|(entry, _)| entry.at_us)))
}
