//! The writers of logs: a thread behind a bounded queue, and lines that are written whole or
//! counted as lost. A full disk or a panic can lose lines.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::panics::REST;
use crate::clock;

/// How long the end of a log waits for its output. The reader of a pipe may have stopped reading.
const LAST_WAIT: Duration = Duration::from_secs(3);
const CHECK_EVERY: Duration = Duration::from_millis(1);

/// A thread that writes what it is sent. Dropping this waits until all of it is written, for
/// [`LAST_WAIT`] at most.
#[derive(Debug)]
pub struct WriterThread<T> {
    queue: Option<SyncSender<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> WriterThread<T> {
    /// Starts a thread that calls `write` until it returns, and again after a panic. `capacity`
    /// bounds the queue.
    pub fn spawn(
        name: &str,
        capacity: usize,
        mut write: impl FnMut(&Receiver<T>) + Send + 'static,
    ) -> io::Result<WriterThread<T>> {
        let (queue, received) = sync_channel(capacity);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || restart_after_panics(|| write(&received)))?;
        Ok(WriterThread {
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    /// Queues `item` without waiting. Returns it if that is impossible.
    pub fn try_send(&self, item: T) -> Result<(), T> {
        match &self.queue {
            Some(queue) => queue.try_send(item).map_err(|refused| match refused {
                TrySendError::Full(item) | TrySendError::Disconnected(item) => item,
            }),
            None => Err(item),
        }
    }
}

impl<T> WriterThread<T> {
    /// Waits until everything in the queue is written. Returns false if the output takes nothing.
    pub fn finish(&mut self) -> bool {
        drop(self.queue.take());
        let Some(thread) = self.thread.take() else {
            return true;
        };
        let until = clock::now() + LAST_WAIT;
        while !thread.is_finished() {
            if clock::now() >= until {
                return false;
            }
            std::thread::sleep(CHECK_EVERY);
        }
        // Its panic is already logged, and nothing can be saved.
        let _ = thread.join();
        true
    }

    /// The same, and says if lines are lost.
    pub(super) fn end(&mut self) {
        if !self.finish() {
            tracing::warn!("the last lines of a log are lost: its output takes nothing");
        }
    }
}

impl<T> Drop for WriterThread<T> {
    fn drop(&mut self) {
        self.end();
    }
}

pub(super) struct LineWriter {
    out: Box<dyn Write + Send>,
    log: &'static str,
    lost: Arc<AtomicU64>,
    /// Whether the last write failed. Only the first failure is logged.
    failed: bool,
    /// Whether the output ends within a line. The next write ends that line first.
    torn: bool,
}

impl LineWriter {
    /// Lost lines are added to `lost`.
    pub(super) fn new(
        out: Box<dyn Write + Send>,
        log: &'static str,
        lost: &Arc<AtomicU64>,
    ) -> LineWriter {
        LineWriter {
            out,
            log,
            lost: Arc::clone(lost),
            failed: false,
            torn: false,
        }
    }

    pub(super) fn reopen(&mut self, out: Box<dyn Write + Send>) {
        (self.out, self.torn, self.failed) = (out, false, false);
    }

    /// Writes `text`, which consists of whole lines.
    pub(super) fn write(&mut self, text: &[u8]) {
        let LineWriter {
            out, lost, torn, ..
        } = self;
        let mut left = Unwritten { text, lost };
        let result = end_line(&mut **out, torn).and_then(|()| left.write_to(&mut **out));
        let written = &text[..text.len() - left.text.len()];
        *torn = written.last().map_or(*torn, |&byte| byte != b'\n');
        drop(left);
        if let (Err(error), false) = (&result, self.failed) {
            tracing::error!(%error, "the {} cannot be written", self.log);
        }
        self.failed = result.is_err();
    }
}

/// The part of a text that is not written yet. Its lines are lost when this is dropped, also by a
/// panic.
struct Unwritten<'t> {
    text: &'t [u8],
    lost: &'t AtomicU64,
}

impl Unwritten<'_> {
    fn write_to(&mut self, out: &mut dyn Write) -> io::Result<()> {
        while !self.text.is_empty() {
            match out.write(self.text) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.text = self.text.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        out.flush()
    }
}

impl Drop for Unwritten<'_> {
    fn drop(&mut self) {
        self.lost.fetch_add(count(self.text), Ordering::Relaxed);
    }
}

fn end_line(out: &mut dyn Write, torn: &mut bool) -> io::Result<()> {
    if *torn {
        out.write_all(b"\n")?;
        *torn = false;
    }
    Ok(())
}

pub(super) fn count(text: &[u8]) -> u64 {
    text.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// Calls `write` until it returns without a panic.
fn restart_after_panics(mut write: impl FnMut()) {
    while catch_unwind(AssertUnwindSafe(&mut write)).is_err() {
        std::thread::sleep(REST);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A file that takes `room` bytes and then errs, and in which the word `trap` panics.
    #[derive(Clone)]
    pub(crate) struct Faulty {
        pub(crate) text: Arc<Mutex<Vec<u8>>>,
        pub(crate) room: usize,
    }

    impl Faulty {
        pub(crate) fn with_room(room: usize) -> Faulty {
            let text = Arc::default();
            Faulty { text, room }
        }

        pub(crate) fn text(&self) -> String {
            let text = self.text.lock().unwrap();
            String::from_utf8(text.clone()).unwrap()
        }
    }

    impl Write for Faulty {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            assert!(!bytes.windows(4).any(|word| word == b"trap"), "a trap");
            let mut text = self.text.lock().unwrap();
            let taken = bytes.len().min(self.room - text.len()).min(10);
            text.extend_from_slice(&bytes[..taken]);
            match taken {
                0 => Err(io::ErrorKind::StorageFull.into()),
                taken => Ok(taken),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_are_not_written_whole_are_counted() {
        let (file, lost) = (Faulty::with_room(20), Arc::default());
        let mut writer = LineWriter::new(Box::new(file.clone()), "log", &lost);
        writer.write(b"1234\n6789\n");
        assert_eq!(lost.load(Ordering::Relaxed), 0);
        writer.write(b"1234\n6789\n1234\n6789\n");
        assert_eq!(lost.load(Ordering::Relaxed), 2);
        writer.write(b"1234\n");
        assert_eq!(lost.load(Ordering::Relaxed), 3);
        assert_eq!(file.text(), "1234\n6789\n1234\n6789\n");
    }

    #[test]
    fn a_line_that_was_cut_spoils_no_other() {
        let (mut file, lost) = (Faulty::with_room(7), Arc::default());
        let mut writer = LineWriter::new(Box::new(file.clone()), "log", &lost);
        writer.write(b"1234\n6789\n");
        writer.write(b"none\n");
        assert_eq!(
            (file.text().as_str(), lost.load(Ordering::Relaxed)),
            ("1234\n67", 2)
        );
        file.room = 100;
        writer.out = Box::new(file.clone());
        writer.write(b"abcd\n");
        writer.write(b"efgh\n");
        assert_eq!(file.text(), "1234\n67\nabcd\nefgh\n");
        assert_eq!(lost.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_writer_that_panics_begins_anew() {
        let (file, lost) = (Faulty::with_room(1000), Arc::default());
        let mut writer = LineWriter::new(Box::new(file.clone()), "log", &lost);
        let mut texts = ["one\n", "trap\nwith it\n", "two\n"].into_iter();
        restart_after_panics(|| {
            for text in texts.by_ref() {
                writer.write(text.as_bytes());
            }
        });
        assert_eq!(lost.load(Ordering::Relaxed), 2);
        assert_eq!(file.text(), "one\ntwo\n");
    }
}
