//! Failpoints: named places where a test makes the program panic.
//!
//! `failpoint!("server.accept")` does nothing until a test arms that name. Debug builds and tests
//! contain it, so both run the same code; a release build compiles it to nothing.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Panics here if a test has armed `name`, for any context or for this one.
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        $crate::failpoint!($name, "")
    };
    ($name:literal, $context:expr) => {
        if cfg!(debug_assertions) {
            $crate::failpoint::fire($name, &$context);
        }
    };
}

/// Spares the lock while no test has armed anything.
static ANY_ARMED: AtomicBool = AtomicBool::new(false);
static ARMED: Mutex<Vec<Armed>> = Mutex::new(Vec::new());

struct Armed {
    name: &'static str,
    /// Empty for any context.
    context: &'static str,
    /// How often it is still to panic.
    left: u32,
    fired: u32,
}

fn armed() -> MutexGuard<'static, Vec<Armed>> {
    ARMED.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn fire(name: &'static str, context: &dyn Display) {
    if !ANY_ARMED.load(Ordering::Acquire) {
        return;
    }
    let context = context.to_string();
    let mut all = armed();
    let found = all.iter_mut().find(|one| {
        one.name == name && one.left > 0 && (one.context.is_empty() || one.context == context)
    });
    let Some(one) = found else {
        return;
    };
    one.left -= 1;
    one.fired += 1;
    drop(all);
    // The diagnostics print a panic's message up to the colon.
    panic!("failpoint {name}: key=secret");
}

#[cfg(debug_assertions)]
pub mod control {
    use super::*;

    /// An armed failpoint; disarmed when dropped.
    #[derive(Debug)]
    pub struct Failure {
        name: &'static str,
        context: &'static str,
    }

    /// Lets `name` panic the next `times` times.
    pub fn arm(name: &'static str, times: u32) -> Failure {
        arm_for(name, "", times)
    }

    /// The same, only where the failpoint's context is `context`.
    pub fn arm_for(name: &'static str, context: &'static str, times: u32) -> Failure {
        armed().push(Armed {
            name,
            context,
            left: times,
            fired: 0,
        });
        ANY_ARMED.store(true, Ordering::Release);
        Failure { name, context }
    }

    impl Failure {
        pub fn left(&self) -> u32 {
            self.find(|one| one.left)
        }

        pub fn fired(&self) -> u32 {
            self.find(|one| one.fired)
        }

        fn find(&self, read: impl Fn(&Armed) -> u32) -> u32 {
            armed().iter().find(|one| self.matches(one)).map_or(0, read)
        }

        fn matches(&self, one: &Armed) -> bool {
            one.name == self.name && one.context == self.context
        }
    }

    impl Drop for Failure {
        fn drop(&mut self) {
            armed().retain(|one| !self.matches(one));
        }
    }
}
