//! Panics: each is a mistake of ours, is logged and counted, and ends only the part of the program
//! in which it happens (`contained`). Parts that must go on are started again (`endure`).
//!
//! A message is logged up to the first value in it, because a value may be a client's key.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::JoinHandle;

/// The pause after a panic, so that repeated panics do not use a whole processor.
pub const REST: Duration = Duration::from_millis(50);

static PANICS: AtomicU64 = AtomicU64::new(0);

pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Runs a part of the program. `None` if it panics; returns after a pause then, so that the caller
/// can start the part again at once.
pub async fn contained<T>(part: impl Future<Output = T>) -> Option<T> {
    let result = AssertUnwindSafe(part).catch_unwind().await.ok();
    if result.is_none() {
        tokio::time::sleep(REST).await;
    }
    result
}

/// Runs a part of the program until it returns, again after each panic.
pub async fn endure<F: Future<Output = ()>>(part: impl Fn() -> F) {
    while contained(part()).await.is_none() {}
}

pub fn spawn_enduring<F>(part: impl Fn() -> F + Send + 'static) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(endure(part))
}

/// Runs a part of the program on a thread and a runtime of its own.
pub fn spawn_thread<T: Send + 'static, F: Future<Output = T>>(
    name: &str,
    start: impl FnOnce() -> F + Send + 'static,
) -> io::Result<thread::JoinHandle<T>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(move || runtime.block_on(start()))
}

/// Locks a mutex, also after a panic of the thread that held it.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs and counts panics from now on, with the stack if `RUST_BACKTRACE` asks for it.
pub fn log_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        panic::set_hook(Box::new(|info| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            let thread = thread::current();
            let thread = thread.name().unwrap_or("(none)");
            let place = info.location().map(ToString::to_string);
            let place = place.unwrap_or_default();
            let message = without_values(text(info.payload()));
            let backtrace = Backtrace::capture();
            let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
            let backtrace = backtrace.as_ref().map(tracing::field::display);
            let mistake = format!("panic, a bug in tidegate: {message}");
            tracing::error!(thread, place, backtrace, "{mistake}");
        }));
    });
}

fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or_default()
}

/// The part of a message before its first value. Values follow a colon or a quotation mark.
fn without_values(message: &str) -> &str {
    let end = message.find([':', '\'', '"', '`', '\n']);
    message[..end.unwrap_or(message.len())].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[tokio::test]
    async fn repeated_panics_take_their_time() {
        let (began, mut times) = (clock::now(), 0);
        let mut part = async || {
            times += 1;
            assert!(times > 4, "a trap");
            times
        };
        let result = loop {
            if let Some(came) = contained(part()).await {
                break came;
            }
        };
        assert_eq!(result, 5);
        assert!(began.elapsed() >= 4 * REST);
    }

    #[test]
    fn values_are_not_logged() {
        for (message, logged) in [
            ("the table has it", "the table has it"),
            (
                "range end index 9 out of range for slice of length 5",
                "range end index 9 out of range for slice of length 5",
            ),
            ("it is whole: Utf8Error { key: 5 }", "it is whole"),
            (
                "start byte index 1 is not a char boundary; it is inside 'é' of `sé`",
                "start byte index 1 is not a char boundary; it is inside",
            ),
            ("`secret` is odd", ""),
        ] {
            assert_eq!(without_values(message), logged);
        }
    }
}
