//! What is told of a panic: each is a mistake of ours. It never ends more than what it happened in;
//! that is held by whoever runs it, who begins anew what has to go on (`contained`).
//!
//! Of its message only what we wrote ourselves is told: what follows is the value that something
//! was wrong with, which may be a client's key.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::JoinHandle;

/// What is rested after a panic: one that comes again and again must not take a processor.
pub const REST: Duration = Duration::from_millis(50);

/// Since the process was started.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// How many there were in this process.
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// What comes of a part of the program. Nothing where it panics, after a rest: whoever runs it may
/// then begin it anew, as often as it takes.
pub async fn contained<T>(part: impl Future<Output = T>) -> Option<T> {
    let came = AssertUnwindSafe(part).catch_unwind().await.ok();
    if came.is_none() {
        tokio::time::sleep(REST).await;
    }
    came
}

/// Runs a part of the program until it ends by itself, anew after each panic.
pub async fn endure<F: Future<Output = ()>>(part: impl Fn() -> F) {
    while contained(part()).await.is_none() {}
}

/// The same as a task.
pub fn spawn_enduring<F>(part: impl Fn() -> F + Send + 'static) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(endure(part))
}

/// From now on tells each in the diagnostics, and counts it. What had the stack written does so in
/// the same line (`RUST_BACKTRACE`).
pub fn tell() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        panic::set_hook(Box::new(|info| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            let thread = std::thread::current();
            let thread = thread.name().unwrap_or("(none)");
            let place = info.location().map(ToString::to_string);
            let place = place.unwrap_or_default();
            let message = harmless(text(info.payload()));
            let backtrace = Backtrace::capture();
            let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
            let backtrace = backtrace.as_ref().map(tracing::field::display);
            let mistake = format!("a panic, which is our mistake: {message}");
            tracing::error!(thread, place, backtrace, "{mistake}");
        }));
    });
}

fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or_default()
}

/// Values stand behind a colon or between quotation marks.
fn harmless(message: &str) -> &str {
    let end = message.find([':', '\'', '"', '`', '\n']);
    message[..end.unwrap_or(message.len())].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[tokio::test]
    async fn what_panics_again_and_again_takes_its_time() {
        let (began, mut times) = (clock::now(), 0);
        let mut part = async || {
            times += 1;
            assert!(times > 4, "a trap");
            times
        };
        let came = loop {
            if let Some(came) = contained(part()).await {
                break came;
            }
        };
        assert_eq!(came, 5);
        assert!(began.elapsed() >= 4 * REST);
    }

    #[test]
    fn values_are_not_told() {
        for (message, told) in [
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
            assert_eq!(harmless(message), told);
        }
    }
}
