//! The admin: health, metrics, an API and the dashboard for operators, on an address of their own.
//!
//! ```text
//! listener   binds the address and serves connections
//! gate       checks the name in `Host`, and the token
//! answer     finds the endpoint (`endpoints`), and adds headers that protect browsers
//! state      keeps what the endpoints report
//! ```
//!
//! It runs on a thread of its own, reads the counters of the workers, and never makes a worker
//! wait. It listens until all connections of clients have ended; after an upgrade the new process
//! has the socket. A panic costs one request, or one reading of the counters.

mod answer;
pub(crate) mod billing;
pub(crate) mod client_history;
pub(crate) mod clients;
mod crowd;
pub(crate) mod denials;
mod endpoints;
pub(crate) mod explain;
pub(crate) mod findings;
pub mod gate;
pub(crate) mod history;
pub(crate) mod known_keys;
pub(crate) mod limits;
mod listener;
mod openapi;
pub(crate) mod operator_store;
pub(crate) mod overrides;
#[cfg(test)]
mod panics;
mod prometheus;
mod request;
mod response;
mod route_history;
pub(crate) mod schema;
mod state;
pub(crate) mod status;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval};

use crate::config::AdminSettings;
use crate::server::ServerHandles;
use crate::server::listener::OpenedSocket;
use crate::telemetry::panics::contained;
use listener::{AdminListener, open};
use state::{AdminState, check_store};

/// How often the counters of the workers are read.
const TICK: Duration = Duration::from_secs(1);
/// How often decisions and denials of single clients are collected.
const COLLECT_EVERY: Duration = Duration::from_millis(100);
const CHECK_STORE_EVERY: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub struct Admin {
    /// With the real port.
    pub address: SocketAddr,
    /// The token that the proxy made, if that is the token.
    pub own_token: Option<Vec<u8>>,
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Admin {
    /// Listens at the address in `settings`, with its socket among `inherited` if there is one.
    /// `own_token` is the token if they name none. `replaces` says that an older process of ours
    /// may still have the address.
    ///
    /// # Errors
    /// The address cannot be bound, or the thread cannot be started.
    pub fn spawn(
        settings: &AdminSettings,
        own_token: Option<Vec<u8>>,
        server: ServerHandles,
        inherited: &mut Vec<OpenedSocket>,
        replaces: bool,
    ) -> io::Result<Admin> {
        let listener = open(settings.address, inherited, replaces)?;
        let address = listener.local_addr()?;
        let shown = own_token.clone().filter(|_| settings.token.is_none());
        let state = Arc::new(AdminState::new(settings, own_token, server));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || runtime.block_on(serve(state, listener, ended)))?;
        Ok(Admin {
            address,
            own_token: shown,
            end,
            thread,
        })
    }

    /// Ends the admin. Answers that are being sent are cut off, after an upgrade one second later.
    pub fn end(self) {
        drop(self.end);
        if self.thread.join().is_err() {
            tracing::error!("the admin thread panicked");
        }
    }
}

async fn serve(
    state: Arc<AdminState>,
    listener: std::net::TcpListener,
    end: oneshot::Receiver<()>,
) {
    let mut listener = AdminListener::new(listener, &state);
    let listening = async { while contained(listener.run(&state)).await.is_none() {} };
    let parts = async {
        tokio::join!(
            listening,
            every(TICK, || state.tick()),
            every(COLLECT_EVERY, || state.collect()),
            every(CHECK_STORE_EVERY, || check_store(&state)),
        )
    };
    tokio::select! {
        _ = end => {}
        _ = parts => {}
    }
    listener.end().await;
}

/// Calls `act` at once and then once a period. A panic costs one call.
async fn every(period: Duration, act: impl Fn()) {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        contained(async { act() }).await;
    }
}
