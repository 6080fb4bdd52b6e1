//! What the service manager is told (`sd_notify(3)`), where there is one: `NOTIFY_SOCKET` says so.
//! It must never fail the house: a manager that does not listen is none.

use std::time::Duration;

use sd_notify::NotifyState;

/// All workers serve; also the end of a reload.
pub fn ready(status: &str) {
    say(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// A reload begins; [`ready`] ends it.
pub fn reloading() {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        say(&[NotifyState::Reloading, now]);
    }
}

/// What it does, for `systemctl status`.
pub fn status(status: &str) {
    say(&[NotifyState::Status(status)]);
}

/// The end has begun.
pub fn stopping(status: &str) {
    say(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Another process takes the place of this one.
pub fn successor(pid: u32) {
    say(&[NotifyState::MainPid(pid)]);
}

/// Every worker is alive.
pub fn alive() {
    say(&[NotifyState::Watchdog]);
}

/// How long the manager waits for [`alive`], if it does.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|time| !time.is_zero())
}

fn say(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager does not listen");
    }
}
