//! Admin: where operators look in. Health, metrics, an API and the dashboard, on an address of
//! their own.
//!
//! ```text
//! spawn      binds, and starts a thread with a runtime of its own: never on a worker
//! connection bounded in number, in the time for a head and in the size of a body
//! gate       who may ask at all: the name asked for, the token
//! answer     what is asked for, and the headers that keep browsers from harm
//! ```
//!
//! It reads what the workers count and never makes one of them wait. What it keeps itself (the
//! history of the last minutes) is bounded, and gone with the process. It listens from before the
//! first request until all connections of clients have ended; after an upgrade the new process has
//! the address. A panic costs a request or one look, and nothing else of it.

mod answer;
mod bind;
mod body;
mod clients;
mod config;
mod connection;
mod crowd;
mod dashboard;
mod denials;
mod endpoints;
mod explain;
mod findings;
mod gate;
mod health;
mod history;
mod keys;
mod limits;
mod openapi;
mod operator_store;
mod overrides;
#[cfg(test)]
mod panics;
mod place;
mod process;
mod prometheus;
mod reload;
mod request_body;
mod respond;
mod routes;
mod schema;
mod status;
mod time;
pub mod token;
mod traffic;
mod upstreams;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::config::AdminSettings;
use crate::server::{Lifecycle, ServerHandles, Shutdown};
use crate::telemetry::panics::contained;
use connection::Connections;
use crowd::Crowd;
use denials::Followed;
use findings::Findings;
use gate::Pass;
use health::Beats;
use history::History;
use routes::Recent;
use tidegate_core::failpoint;

/// How often it looks at what the workers have counted.
const TICK: Duration = Duration::from_secs(1);
/// How often it takes what they tell of single clients.
const DRAIN_EVERY: Duration = Duration::from_millis(100);

/// How often it asks the store about itself.
const ASK_EVERY: Duration = Duration::from_secs(15);
/// Connections to the store that are made at once for what operators ask.
const WAYS: usize = 4;

/// What every request of an operator needs.
#[derive(Debug)]
struct AdminState {
    server: ServerHandles,
    /// Where it listens, and who may ask.
    pass: ArcSwap<Pass>,
    /// The token where no file of the configuration says it.
    own_token: Option<Vec<u8>>,
    history: Mutex<History>,
    /// What each route answered in the last minute.
    recent: Mutex<Recent>,
    /// What single clients do.
    crowd: Mutex<Crowd>,
    followed: Followed,
    beats: Mutex<Beats>,
    findings: Mutex<Findings>,
    /// Connections to the store that operators may have made at once.
    ways: Semaphore,
}

/// A running admin.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Admin {
    /// Listens where `settings` say; `own_token` is what is asked for where they name no token.
    /// `replaces` says that an older process of ours may still have the address.
    ///
    /// # Errors
    /// The address cannot be bound, or the thread cannot be started.
    pub fn spawn(
        settings: &AdminSettings,
        own_token: Option<Vec<u8>>,
        server: ServerHandles,
        replaces: bool,
    ) -> io::Result<Admin> {
        let listener = bind::bind(settings.address, replaces)?;
        let address = listener.local_addr()?;
        let state = Arc::new(AdminState {
            pass: ArcSwap::from_pointee(Pass::new(settings, own_token.as_deref())),
            history: Mutex::new(History::new(server.introspection.started_us())),
            recent: Mutex::default(),
            crowd: Mutex::default(),
            followed: Followed::default(),
            beats: Mutex::default(),
            findings: Mutex::default(),
            ways: Semaphore::new(WAYS),
            own_token,
            server,
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || runtime.block_on(serve(state, listener, ended)))?;
        Ok(Admin {
            address,
            end,
            thread,
        })
    }

    /// Where it listens, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it; what is being answered is cut off.
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
    let listener = TcpListener::from_std(listener)
        .inspect_err(|error| tracing::error!(%error, "admin: cannot listen"))
        .ok();
    let mut door = Door {
        listener,
        connections: Connections::default(),
        changes: state.server.introspection.changes(),
        shutdown: state.server.shutdown.clone(),
    };
    let attending = async { while contained(door.attend(&state)).await.is_none() {} };
    let parts = async {
        tokio::join!(
            attending,
            every(TICK, || state.tick()),
            every(DRAIN_EVERY, || state.drain()),
            every(ASK_EVERY, || findings::ask_store(&state)),
        )
    };
    tokio::select! {
        _ = end => {}
        _ = parts => {}
    }
}

/// Does something at once, and then so often; a panic costs one time.
async fn every(period: Duration, act: impl Fn()) {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        contained(async { act() }).await;
    }
}

/// Where operators come in.
struct Door {
    /// Nothing once another process has the address, or nobody is to come.
    listener: Option<TcpListener>,
    connections: Connections,
    changes: watch::Receiver<u64>,
    shutdown: Shutdown,
}

impl Door {
    async fn attend(&mut self, state: &Arc<AdminState>) {
        let Door {
            listener, shutdown, ..
        } = self;
        loop {
            tokio::select! {
                stream = accept(listener.as_ref()) => self.connections.serve(stream, state),
                Ok(()) = self.changes.changed() => {
                    failpoint!("admin.look");
                    state.renew(listener);
                    findings::ask_store(state);
                }
                // The next process has the address.
                Ok(_) = shutdown.wait_for(|lifecycle| *lifecycle == Lifecycle::HandOver),
                    if listener.is_some() => *listener = None,
            }
        }
    }
}

/// The next connection. Where there is no listener, and where accepting fails, it takes its time.
async fn accept(listener: Option<&TcpListener>) -> tokio::net::TcpStream {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // Out of descriptors, as a rule.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

impl AdminState {
    /// Another configuration may want it elsewhere, or other names and tokens.
    fn renew(&self, listener: &mut Option<TcpListener>) {
        let settings = self
            .server
            .introspection
            .inspect(|snapshot| snapshot.config.admin.clone());
        let Some(settings) = settings else { return };
        let Some(settings) = settings else {
            if listener.take().is_some() {
                tracing::info!("reload: admin: nobody listens any more");
            }
            return;
        };
        let own_token = self.own_token.as_deref();
        let pass = Pass::new(&settings, own_token);
        let moves = pass.wanted != self.pass.load().wanted;
        if moves || (listener.is_none() && *self.server.shutdown.borrow() == Lifecycle::Serve) {
            let bound = bind::bind(settings.address, false).and_then(TcpListener::from_std);
            match bound {
                Ok(bound) => {
                    tracing::info!(address = %settings.address, "reload: admin: listening");
                    *listener = Some(bound);
                }
                Err(error) => {
                    let address = settings.address;
                    tracing::error!(%address, %error, "reload: admin: stays where it is");
                    return;
                }
            }
        }
        self.pass.store(Arc::new(pass));
    }
}
