//! The log lines of one test's thread.

use std::io;
use std::sync::{Arc, Mutex};

use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;

/// Log lines are collected until it is dropped.
pub struct LogLines {
    written: Written,
    _guard: DefaultGuard,
    _second: Dispatch,
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl LogLines {
    pub fn collect() -> LogLines {
        // While a process has one subscriber only, `tracing` asks the thread that first reaches a
        // log line whether the line is wanted, and keeps the answer. That may be the thread of
        // another test, which has no subscriber (tracing-core 0.1.36, `Rebuilder::JustOne`).
        let second = Dispatch::new(tracing_subscriber::registry());
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        LogLines {
            written,
            _guard: tracing::subscriber::set_default(subscriber),
            _second: second,
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.written.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
