//! Where tests have the thread panic that listens for signals; none of it is shipped.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Event;

/// How many more signals it panics at.
static TRAPS: AtomicU32 = AtomicU32::new(0);

/// At a reload, and at an end once that has begun.
pub(super) fn spring(event: &Event) {
    let one_less = |left: u32| left.checked_sub(1);
    let order = Ordering::SeqCst;
    let springs = matches!(event, Event::Reload | Event::Serving)
        && TRAPS.fetch_update(order, order, one_less).is_ok();
    assert!(!springs, "a trap at a signal");
}

mod tests {
    use std::process::Command;
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use super::super::{Door, spawn};
    use super::*;
    use crate::clock;
    use crate::server::listen::Listeners;
    use crate::server::pulse::Pulse;
    use crate::server::{Course, reload};

    const STAGED: &str = "TIDEGATE_TEST_TRAPS";
    const PATIENCE: Duration = Duration::from_secs(20);

    fn signal_that_panics(signal: Signal) {
        TRAPS.store(1, Ordering::SeqCst);
        kill_process(getpid(), signal).unwrap();
        let began = clock::now();
        while TRAPS.load(Ordering::SeqCst) > 0 {
            assert!(began.elapsed() < PATIENCE, "nobody listens");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// In a process of its own: whoever has this one's signals is not this test.
    #[test]
    fn a_panic_loses_no_signal_but_its_own_and_no_end() {
        if std::env::var_os(STAGED).is_none() {
            let name = "cli::signals::trap::tests::a_panic_loses_no_signal_but_its_own_and_no_end";
            let staged = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "--nocapture", name])
                .env(STAGED, "1")
                .output()
                .unwrap();
            assert!(staged.status.success(), "{staged:?}");
            assert!(String::from_utf8_lossy(&staged.stdout).contains("1 passed"));
            return;
        }
        let listeners = Listeners::open((&[], &[]), 1, &mut Vec::new()).unwrap();
        let (course, mut shutdown) = tokio::sync::watch::channel(Course::Serve);
        let (reload, _requests) = reload::channel();
        let door = Door {
            course,
            reload,
            listeners: Arc::new(listeners),
            pulse: Arc::new(Pulse::new(1)),
            predecessor: None,
            pid_file: None,
            claim: None,
        };
        spawn(door).unwrap();
        signal_that_panics(Signal::HUP);
        signal_that_panics(Signal::HUP);
        assert_eq!(*shutdown.borrow_and_update(), Course::Serve);
        signal_that_panics(Signal::TERM);
        let began = clock::now();
        while *shutdown.borrow_and_update() == Course::Serve {
            assert!(began.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(*shutdown.borrow(), Course::Stop { yields: false });
    }
}
