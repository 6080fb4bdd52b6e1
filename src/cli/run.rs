//! `tidegate run`: load, bind, say what is up, serve until told to stop.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::{BAD_CONFIGURATION, DID_NOT_WORK, RunArgs};
use crate::config::diagnostic::{Code, Diagnostics};
use crate::config::{Config, FlagConfig, ServerAddress, StoreKind, render};
use crate::server::listen::Listeners;
use crate::{config, server, store, telemetry, upstream};

/// How long the opening lines wait for a store or an upstream that does not answer.
const LOOK: Duration = Duration::from_millis(500);

/// Runs until SIGTERM or SIGINT. Returns the exit code.
pub(super) fn run(args: &RunArgs) -> u8 {
    let loaded = match &args.to {
        Some(to) => config::from_flags(&FlagConfig {
            to: to.clone(),
            listen: args.listen.clone(),
            limit: args.limit.clone(),
            key: args.key.clone(),
            redis: args.redis.clone(),
        }),
        None => config::load(args.config.as_deref().unwrap_or("proxy.toml".as_ref())),
    };
    match accept(loaded) {
        Ok(config) => serve(config, |_| {}),
        Err(code) => code,
    }
}

/// Prints what was found in a configuration; only errors keep it from running.
pub(super) fn accept(loaded: Result<(Config, Diagnostics), Diagnostics>) -> Result<Config, u8> {
    let colour = super::colour(&std::io::stderr());
    match loaded {
        Ok((config, warnings)) => {
            if !warnings.is_empty() {
                say(&render::human(&warnings, colour));
            }
            Ok(config)
        }
        Err(found) => {
            say(&render::human(&found, colour));
            let unreadable = found.list.iter().any(|one| one.code == Code::Unreadable);
            Err(if unreadable {
                DID_NOT_WORK
            } else {
                BAD_CONFIGURATION
            })
        }
    }
}

/// Binds and serves. `opened` is told the first address once it listens.
pub(super) fn serve(config: Config, opened: impl FnOnce(SocketAddr)) -> u8 {
    telemetry::init(config::environment("RUST_LOG").as_deref());
    raise_descriptor_limit();
    let workers = config.server.workers;
    let listeners = match Listeners::bind(&config.listen, workers) {
        Ok(listeners) => listeners,
        Err(error) => return fail(&error),
    };
    let (stop, shutdown) = watch::channel(false);
    if let Err(error) = spawn_signals(stop) {
        return fail(&error);
    }
    open(&config, &listeners);
    if let Some(&address) = listeners.addresses().first() {
        opened(address);
    }
    let mut configs: Vec<Config> = (1..workers).map(|_| config.fresh_copy()).collect();
    configs.push(config);
    match server::run(configs, listeners, &shutdown) {
        Ok(()) => 0,
        Err(error) => fail(&error),
    }
}

fn fail(error: &std::io::Error) -> u8 {
    say(&format!("tidegate: {error}"));
    DID_NOT_WORK
}

/// Writes a line to standard error; where that is closed there is nobody to tell.
pub(super) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The opening lines: listening where, upstreams up or down, the store and its round trip.
fn open(config: &Config, listeners: &Listeners) {
    let mut places: Vec<String> = listeners
        .addresses()
        .iter()
        .map(|address| format!("http://{address}"))
        .collect();
    places.extend(
        listeners
            .paths()
            .iter()
            .map(|path| format!("unix:{}", path.display())),
    );
    say(&format!(
        "listening  {}  ({} workers)",
        places.join(", "),
        config.server.workers
    ));
    for upstream in &config.upstreams {
        let looked: Vec<String> = upstream.servers.iter().map(look_at).collect();
        say(&format!(
            "upstream   {}: {}",
            upstream.name,
            looked.join(", ")
        ));
    }
    match &config.store.kind {
        StoreKind::Memory => {
            say("store      memory: counts live in this process only");
        }
        StoreKind::Redis(redis) => {
            let looked = store::redis::look(redis, LOOK);
            let state = match looked {
                Ok(round_trip) => format!("up, {:.1} ms", round_trip.as_secs_f64() * 1e3),
                Err(error) => format!("away ({error}); trying again in the background"),
            };
            say(&format!("store      {}: {state}", redis.topology));
        }
    }
}

fn look_at(server: &ServerAddress) -> String {
    let state = if upstream::look(server, LOOK) {
        "up"
    } else {
        "down"
    };
    format!("{server} {state}")
}

/// Two descriptors per request under way: as many as the machine lets this process have.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
}

/// SIGTERM and SIGINT ask for an orderly end; a second one ends at once.
fn spawn_signals(stop: watch::Sender<bool>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (mut terminate, mut interrupt) = {
        let _entered = runtime.enter();
        (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        )
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            runtime.block_on(async move {
                for first in [true, false] {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                    }
                    if first {
                        tracing::info!("draining");
                        stop.send_replace(true);
                    }
                }
                std::process::exit(i32::from(DID_NOT_WORK));
            });
        })?;
    Ok(())
}
