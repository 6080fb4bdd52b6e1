//! `tidegate run`: load, bind, say what is up, serve until told to stop.

mod second;

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::signals::{self, SignalTargets};
use super::{BAD_CONFIGURATION, DID_NOT_WORK, RunArgs};
use crate::admin::{self, Admin};
use crate::config::diagnostic::{Code, Diagnostics};
use crate::config::{Config, FlagConfig, Listen, StoreKind, UpstreamServer, render};
use crate::server::inherit::{Inherited, Predecessor};
use crate::server::listen::{ListenLines, Listeners, bind_alone};
use crate::server::listener::OpenedSocket;
use crate::server::pid_file::PidFile;
use crate::server::{Reloads, ServerHandles};
use crate::store::redis::{ServerInfo, fetch_server_info};
use crate::{config, server, telemetry, upstream};
use second::ProcessRole;

/// How long the opening lines wait for a store or an upstream that does not answer.
const LOOK: Duration = Duration::from_millis(500);

/// What else there is to know of a start.
pub(super) struct Start {
    /// The file that is read again when that is asked for,
    pub(super) path: Option<PathBuf>,
    /// or also when it changes.
    pub(super) watch: bool,
    /// Where no other process may listen, which would have a part of the requests and counts of its
    /// own: what to do about one that does.
    pub(super) alone: Option<String>,
    /// Whether another process may run the same file or listen on the same addresses.
    pub(super) alongside: bool,
}

/// Runs until a signal ends it (`signals.rs`). Returns the exit code.
pub(super) fn run(args: &RunArgs) -> u8 {
    let file = args.config.clone().unwrap_or_else(|| "proxy.toml".into());
    let path = args.to.is_none().then_some(file);
    let loaded = match &args.to {
        Some(to) => config::from_flags(&FlagConfig {
            to: to.clone(),
            listen: args.listen.clone(),
            limit: args.limit.clone(),
            key: args.key.clone(),
            redis: args.redis.clone(),
        }),
        None => config::load(path.as_deref().unwrap_or("proxy.toml".as_ref())),
    };
    match accept(loaded) {
        Ok(config) => {
            let watch = args.watch;
            let start = Start {
                path,
                watch,
                alone: None,
                alongside: args.alongside,
            };
            serve(config, start, |_| {})
        }
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
            // Other notes are for whoever asks: `tidegate check`.
            let mut found = warnings;
            found.notes.retain(|one| one.code == Code::NothingLimited);
            if !found.notes.is_empty() {
                say(&render::notes(&found, colour));
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
pub(super) fn serve(config: Config, start: Start, opened: impl FnOnce(SocketAddr)) -> u8 {
    telemetry::init(config::environment("RUST_LOG").as_deref());
    raise_descriptor_limit();
    match serve_until_stopped(config, start, opened) {
        Ok(()) => 0,
        Err(error) => fail(&error),
    }
}

fn serve_until_stopped(
    config: Config,
    start: Start,
    opened: impl FnOnce(SocketAddr),
) -> std::io::Result<()> {
    let workers = config.server.workers;
    let inherited = Inherited::take()?;
    let from = inherited.predecessor.as_ref().map(Predecessor::pid);
    let role = match from {
        Some(pid) => ProcessRole::Successor(pid),
        None if start.alongside => ProcessRole::Alongside,
        None => ProcessRole::Alone,
    };
    let claim = match &start.path {
        Some(file) => Some(second::claim(file, &config, role)?),
        None => None,
    };
    let (listeners, predecessor) = listen(&config, inherited, role, start.alone.as_deref())?;
    if let Some(claim) = &claim {
        claim.tell(&listeners.places());
    }
    let Start { path, watch, .. } = start;
    let pid_file = config.server.pid_file.clone();
    let pid_file = pid_file.map(|path| Arc::new(PidFile::new(path)));
    if let (Some(file), None) = (&pid_file, from) {
        second::write(file, role, claim.as_deref())?;
    }
    if role == ProcessRole::Alongside && listeners.shares_ports() {
        tracing::warn!(
            "another process listens on the same port: of the connections to one address each \
             gets a part, and what is counted in memory is each one's own"
        );
    }
    let (server, controls) = ServerHandles::new(Arc::new(listeners), workers, path);
    signals::spawn(SignalTargets {
        lifecycle: controls.lifecycle,
        server: server.clone(),
        predecessor,
        pid_file: pid_file.clone(),
        claim: claim.clone(),
    })?;
    let admin = start_admin(&config, server.clone(), role != ProcessRole::Alone)?;
    report_start(&config, &server.listeners, from);
    if let Some(admin) = &admin {
        say(&format!("dashboard  http://{}/", near(admin.address())));
    }
    if let Some(&address) = server.listeners.addresses().first() {
        opened(address);
    }
    let reloads = Reloads {
        requests: controls.requests,
        watch,
        claim,
    };
    let served = server::run(config, server, reloads);
    if let Some(admin) = admin {
        admin.end();
    }
    if let Some(file) = &pid_file {
        file.remove();
    }
    served
}

/// Starts the admin, if there is to be one.
fn start_admin(
    config: &Config,
    server: ServerHandles,
    replaces: bool,
) -> std::io::Result<Option<Admin>> {
    let Some(settings) = &config.admin else {
        return Ok(None);
    };
    let file = server.file.as_deref();
    let kept = file.map(|file| admin::token::keep(file, &config.server.control));
    let own_token = match kept {
        Some(Err(error)) if settings.token.is_none() => {
            tracing::warn!(%error, "admin: no place for a token: nothing can be changed there");
            None
        }
        kept => kept.and_then(Result::ok),
    };
    Admin::spawn(settings, own_token, server, replaces).map(Some)
}

/// Opens all sockets: those that this process was started with, and others.
fn listen(
    config: &Config,
    inherited: Inherited,
    role: ProcessRole,
    alone: Option<&str>,
) -> std::io::Result<(Listeners, Option<Predecessor>)> {
    let Inherited {
        mut sockets,
        predecessor,
    } = inherited;
    let lines = ListenLines::of(config);
    if let Some(advice) = alone {
        listen_alone(lines.all(), advice, &mut sockets)?;
    }
    second::bind(lines.all(), config, role, &mut sockets)?;
    let listeners = Listeners::open(lines, config.server.workers, &mut sockets)?;
    let listeners = listeners.joining(role == ProcessRole::Alongside);
    // What an older process of ours listened on and `listen` no longer names is closed. What a
    // service manager holds would take connections that nobody serves.
    match sockets.iter().find(|unused| unused.is_lent()) {
        Some(unused) => Err(std::io::Error::other(format!(
            "the service manager listens on {unused}, which `listen` does not name"
        ))),
        None => Ok((listeners, predecessor)),
    }
}

/// Opens those of which there is none yet, where nobody else listens; where somebody does,
/// `advice` says what to do.
fn listen_alone<'l>(
    lines: impl Iterator<Item = &'l Listen>,
    advice: &str,
    sockets: &mut Vec<OpenedSocket>,
) -> std::io::Result<()> {
    let mut opened = Vec::new();
    for line in lines.filter(|line| !sockets.iter().any(|one| one.is_for(line))) {
        opened.extend(bind_alone(line).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => {
                let text = format!("another process listens on {line} already: {advice}");
                std::io::Error::new(ErrorKind::AddrInUse, text)
            }
            _ => error,
        })?);
    }
    sockets.append(&mut opened);
    Ok(())
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
fn report_start(config: &Config, listeners: &Listeners, from: Option<u32>) {
    say(&format!(
        "listening  {}  ({} workers)",
        listeners.places().join(", "),
        config.server.workers
    ));
    if let Some(pid) = from {
        say(&format!("upgrade    from process {pid}"));
    }
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
            let asked = fetch_server_info(redis, LOOK);
            if let Some(why) = asked.as_ref().ok().and_then(ServerInfo::forgets) {
                tracing::warn!("redis: {why}");
            }
            let round_trip = asked.map(|info| info.round_trip.unwrap_or_default());
            let state = match round_trip {
                Ok(round_trip) => format!("up, {:.1} ms", round_trip.as_secs_f64() * 1e3),
                Err(error) => format!("away ({error}); trying again in the background"),
            };
            say(&format!("store      {}: {state}", redis.topology));
        }
    }
    if config.keys_are_untold() {
        say(
            "api keys   not told apart: `[api_key] known` names none, so clients with keys are \
             limited as those without",
        );
    }
}

/// An address under which this machine reaches what listens there.
fn near(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, address.port())
}

fn look_at(server: &UpstreamServer) -> String {
    let state = if upstream::accepts_connections(&server.address, LOOK) {
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
