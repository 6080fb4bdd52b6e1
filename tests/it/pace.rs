//! How busy the machine is: what a test may grant to delays that are none of the proxy's.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(5);
/// What a thread may be late for its tick on any machine.
const USUAL: Duration = Duration::from_millis(1);

/// By how much a thread of this process that wants to wake at each tick has been late, in all.
fn late() -> Duration {
    static LATE: OnceLock<&'static AtomicU64> = OnceLock::new();
    let late = LATE.get_or_init(|| {
        let late: &'static AtomicU64 = Box::leak(Box::default());
        std::thread::spawn(|| {
            loop {
                let asleep = Instant::now();
                std::thread::sleep(TICK);
                let over = asleep.elapsed().saturating_sub(TICK + USUAL);
                late.fetch_add(over.as_micros() as u64, Ordering::Relaxed);
            }
        });
        late
    });
    Duration::from_micros(late.load(Ordering::Relaxed))
}

/// Delays that count from its making on.
#[derive(Clone, Copy, Debug)]
pub struct Pace(Duration);

impl Pace {
    pub fn begin() -> Pace {
        Pace(late())
    }

    /// What may be added to a time measured since then: half a second, and what the machine has
    /// kept everyone waiting. Several threads and processes take part in an answer.
    pub fn grants(self) -> Duration {
        Duration::from_millis(500) + 3 * (late() - self.0)
    }

    /// Whether the machine has kept nobody waiting for so long.
    pub fn is_steady(self, within: Duration) -> bool {
        late() - self.0 < within
    }
}
