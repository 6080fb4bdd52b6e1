//! Lines on their way into a log: written whole, or counted as lost, whatever it is that keeps them
//! from being written: a full disk, or a mistake of ours.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::panics::REST;

/// Where the lines of one log go.
pub(super) struct Lines {
    out: Box<dyn Write + Send>,
    log: &'static str,
    lost: Arc<AtomicU64>,
    /// The last could not be written: told once.
    failed: bool,
    /// What was written ends within a line, which the next one must not go on with.
    torn: bool,
}

impl Lines {
    /// To `out`; `log` is what diagnostics call it, and what is lost is added to `lost`.
    pub(super) fn new(
        out: Box<dyn Write + Send>,
        log: &'static str,
        lost: &Arc<AtomicU64>,
    ) -> Lines {
        Lines {
            out,
            log,
            lost: Arc::clone(lost),
            failed: false,
            torn: false,
        }
    }

    /// Writes to `out` from now on.
    pub(super) fn go_on_in(&mut self, out: Box<dyn Write + Send>) {
        (self.out, self.torn, self.failed) = (out, false, false);
    }

    /// Writes `text`, which is lines.
    pub(super) fn write(&mut self, text: &[u8]) {
        let Lines {
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

/// What has not been written of a text; where that is the end of it, its lines are lost.
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

/// How many lines end in it.
pub(super) fn count(text: &[u8]) -> u64 {
    text.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// Runs a writer until it ends by itself: a panic in it is told, and it begins anew.
pub(super) fn endure(mut writer: impl FnMut()) {
    while catch_unwind(AssertUnwindSafe(&mut writer)).is_err() {
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
    fn what_is_not_written_whole_is_lost_and_counted() {
        let (file, lost) = (Faulty::with_room(20), Arc::default());
        let mut lines = Lines::new(Box::new(file.clone()), "log", &lost);
        lines.write(b"1234\n6789\n");
        assert_eq!(lost.load(Ordering::Relaxed), 0);
        lines.write(b"1234\n6789\n1234\n6789\n");
        assert_eq!(lost.load(Ordering::Relaxed), 2);
        lines.write(b"1234\n");
        assert_eq!(lost.load(Ordering::Relaxed), 3);
        assert_eq!(file.text(), "1234\n6789\n1234\n6789\n");
    }

    #[test]
    fn a_line_that_was_cut_spoils_no_other() {
        let (mut file, lost) = (Faulty::with_room(7), Arc::default());
        let mut lines = Lines::new(Box::new(file.clone()), "log", &lost);
        lines.write(b"1234\n6789\n");
        lines.write(b"none\n");
        assert_eq!(
            (file.text().as_str(), lost.load(Ordering::Relaxed)),
            ("1234\n67", 2)
        );
        file.room = 100;
        lines.out = Box::new(file.clone());
        lines.write(b"abcd\n");
        lines.write(b"efgh\n");
        assert_eq!(file.text(), "1234\n67\nabcd\nefgh\n");
        assert_eq!(lost.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_writer_that_panics_begins_anew() {
        let (file, lost) = (Faulty::with_room(1000), Arc::default());
        let mut lines = Lines::new(Box::new(file.clone()), "log", &lost);
        let mut texts = ["one\n", "trap\nwith it\n", "two\n"].into_iter();
        endure(|| {
            for text in texts.by_ref() {
                lines.write(text.as_bytes());
            }
        });
        assert_eq!(lost.load(Ordering::Relaxed), 2);
        assert_eq!(file.text(), "one\ntwo\n");
    }
}
