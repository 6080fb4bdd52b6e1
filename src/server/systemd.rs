//! The service manager (systemd): the sockets that it passes (`sd_listen_fds(3)`), and
//! notifications to it (`sd_notify(3)`). A manager that cannot be reached must never stop the
//! server.

use std::io;
use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use socket2::Socket;

use super::listener::{OpenedSocket, check_inherited};
use crate::config;

/// All workers serve, or a reload has ended.
pub fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// A reload begins; [`ready`] ends it.
pub fn reloading() {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        notify(&[NotifyState::Reloading, now]);
    }
}

pub fn stopping(status: &str) {
    notify(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Another process replaces this one.
pub fn successor(pid: u32) {
    notify(&[NotifyState::MainPid(pid)]);
}

/// All workers are alive.
pub fn alive() {
    notify(&[NotifyState::Watchdog]);
}

/// The longest time between two calls of [`alive`], if the manager expects any.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|time| !time.is_zero())
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager does not listen");
    }
}

pub(super) fn take_sockets() -> io::Result<Vec<OpenedSocket>> {
    let names = config::environment("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut passed = ListenFd::from_env();
    let mut sockets = Vec::new();
    for index in 0..passed.len() {
        let name = match names.next() {
            None | Some("" | "unknown") => format!("descriptor {}", index + 3),
            Some(name) => name.to_owned(),
        };
        let unusable = |error: io::Error| {
            let text = format!("the service manager passed {name}, which is not usable: {error}");
            io::Error::new(error.kind(), text)
        };
        let tcp = passed.take_tcp_listener(index).ok().flatten();
        let socket = match tcp {
            Some(socket) => Socket::from(socket),
            None => match passed.take_unix_listener(index).map_err(unusable)? {
                Some(socket) => Socket::from(socket),
                None => continue,
            },
        };
        let socket = check_inherited(socket).map_err(unusable)?;
        sockets.push(OpenedSocket {
            name,
            lent: true,
            socket,
        });
    }
    Ok(sockets)
}
