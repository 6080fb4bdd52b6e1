//! A panic of the thread that listens for signals loses that signal, and no other.

#![cfg(debug_assertions)]

use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

use super::{SignalTargets, spawn};
use crate::clock;
use crate::server::harness::{PATIENCE, panics_in, run_alone};
use crate::server::listen::{ListenLines, Listeners};
use crate::server::{Lifecycle, ServerHandles};
use tidegate_core::failpoint::control::arm;

fn signal_that_panics(signal: Signal, name: &'static str) {
    let failure = arm(name, 1);
    kill_process(getpid(), signal).unwrap();
    let began = clock::now();
    while failure.left() > 0 {
        assert!(began.elapsed() < PATIENCE, "nobody listens");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs in a process of its own, so that the signals reach no other test.
#[test]
fn a_panic_loses_no_signal_but_its_own_and_no_end() {
    let name = "cli::signals::panics::a_panic_loses_no_signal_but_its_own_and_no_end";
    if let Some(output) = run_alone(name) {
        assert_eq!(panics_in(&output).len(), 3);
        return;
    }
    let none = ListenLines {
        plain: &[],
        secure: &[],
        decide: &[],
    };
    let listeners = Listeners::open(none, 1, &mut Vec::new()).unwrap();
    let (server, controls) = ServerHandles::new(Arc::new(listeners), 1, None);
    let mut shutdown = server.shutdown.clone();
    spawn(SignalTargets {
        lifecycle: controls.lifecycle,
        server,
        predecessor: None,
        pid_file: None,
        claim: None,
    })
    .unwrap();
    signal_that_panics(Signal::HUP, "signals.reload");
    signal_that_panics(Signal::HUP, "signals.reload");
    assert_eq!(*shutdown.borrow_and_update(), Lifecycle::Serve);
    signal_that_panics(Signal::TERM, "signals.stop");
    let began = clock::now();
    while *shutdown.borrow_and_update() == Lifecycle::Serve {
        assert!(began.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(*shutdown.borrow(), Lifecycle::Stop { yields: false });
}
