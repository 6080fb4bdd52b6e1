//! `tidegate run` and `tidegate demo`: bind, report the start, and serve until a signal ends it.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::admin_client::local_address;
use super::output::{CommandError, print_warnings, say};
use super::signals::{self, SignalTargets};
use super::single_instance::{self, ProcessRole};
use crate::admin::{self, Admin};
use crate::config::{Config, FlagConfig, Listen, ServerAddress, StoreKind, UpstreamServer};
use crate::server::claim::PidFile;
use crate::server::handover::Inherited;
use crate::server::listen::{ListenLines, Listeners, bind_alone};
use crate::server::listener::OpenedSocket;
use crate::server::{Reloads, ServerHandles, echo};
use crate::store::redis::{ServerInfo, fetch_server_info};
use crate::{config, diagnostics, server, upstream};

/// How long the start report waits for the store, and for each upstream server.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
const BUILT_IN: &str = include_str!("../../proxy.toml");

/// Either a file, or everything on the command line.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The configuration to run.
    #[arg(short, long, value_name = "FILE", conflicts_with = "to")]
    config: Option<PathBuf>,
    /// Read the configuration again when it, or a file that it names, changes.
    #[arg(long, conflicts_with = "to")]
    watch: bool,
    /// Start even if another process runs this file or listens on its addresses. Each process gets
    /// a part of the requests. With `memory:` each has its own counts.
    #[arg(long)]
    alongside: bool,
    /// Run without a file, and forward requests to this URL.
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// The address that clients connect to.
    #[arg(long, value_name = "ADDRESS", requires = "to")]
    listen: Option<String>,
    /// The rate of each client, for example 100/min.
    #[arg(long, value_name = "RATE", requires = "to")]
    limit: Option<String>,
    /// The key that requests are counted by, for example `ip`.
    #[arg(long, value_name = "KEY", requires = "limit")]
    key: Option<String>,
    /// The Redis that shares the counts with other proxies; without it, counts stay in this
    /// process.
    #[arg(long, value_name = "URL", requires = "to")]
    redis: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// The configuration with the routes and limits to try.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Default)]
struct StartOptions {
    /// The file that reloads read.
    path: Option<PathBuf>,
    watch: bool,
    /// Other processes may run the same file or listen on the same addresses.
    alongside: bool,
    /// Refuse to start if another process listens on an address; this says what to do then.
    taken_advice: Option<String>,
}

/// Runs until a signal ends it (`signals.rs`).
pub(super) fn run(args: &RunArgs) -> Result<u8, CommandError> {
    let file = args.config.as_deref().unwrap_or(Path::new("proxy.toml"));
    let loaded = match &args.to {
        Some(to) => config::from_flags(&FlagConfig {
            to: to.clone(),
            listen: args.listen.clone(),
            limit: args.limit.clone(),
            key: args.key.clone(),
            redis: args.redis.clone(),
        }),
        None => config::load(file),
    };
    let config = print_warnings(loaded)?;
    let options = StartOptions {
        path: args.to.is_none().then(|| file.to_owned()),
        watch: args.watch,
        alongside: args.alongside,
        taken_advice: None,
    };
    serve(config, options, |_| {})
}

/// Serves the routes and limits of a file in front of a built-in echo server, with the embedded
/// store. Refuses to share a port: each of two processes would count only a part of the requests.
pub(super) fn demo(args: &DemoArgs) -> Result<u8, CommandError> {
    let file = args.config.as_deref().unwrap_or(Path::new("proxy.toml"));
    let has_file = args.config.is_some() || file.exists();
    let (loaded, advice) = match has_file {
        true => (
            config::load(file),
            format!("end it, or change `listen` in {}", file.display()),
        ),
        false => (
            config::parse("proxy.toml", BUILT_IN, &|_| None),
            "end it, or have `tidegate init` write a proxy.toml, and change `listen` there"
                .to_owned(),
        ),
    };
    let mut config = print_warnings(loaded)?;
    let upstream = echo::start()
        .map_err(|error| CommandError::signed(format!("cannot start the echo server: {error}")))?;
    config.store.kind = StoreKind::Memory;
    for settings in &mut config.upstreams {
        let server = ServerAddress::Http(upstream.ip().to_string(), upstream.port());
        settings.servers = vec![server.into()];
    }
    let options = StartOptions {
        taken_advice: Some(advice),
        ..StartOptions::default()
    };
    serve(config, options, |address| {
        let port = address.port();
        say(&format!(
            "\nTry it, until it says 429:\n\n    \
             for i in $(seq 12); do curl -i http://localhost:{port}/; done\n\n\
             Then change a rate in proxy.toml, and start again. Ctrl-C stops.\n"
        ));
    })
}

/// Binds and serves. Calls `listening` with the first address once the socket is open.
fn serve(
    config: Config,
    options: StartOptions,
    listening: impl FnOnce(SocketAddr),
) -> Result<u8, CommandError> {
    diagnostics::init(config::environment("RUST_LOG").as_deref());
    raise_descriptor_limit();
    serve_until_stopped(config, options, listening).map_err(CommandError::signed)?;
    Ok(0)
}

fn serve_until_stopped(
    config: Config,
    options: StartOptions,
    listening: impl FnOnce(SocketAddr),
) -> std::io::Result<()> {
    let inherited = Inherited::take()?;
    let from = inherited.predecessor.as_ref().map(|one| one.pid);
    let role = match from {
        Some(pid) => ProcessRole::Successor(pid),
        None if options.alongside => ProcessRole::Alongside,
        None => ProcessRole::Alone,
    };
    let claim = match &options.path {
        Some(file) => Some(single_instance::claim(file, &config, role)?),
        None => None,
    };
    let Inherited {
        sockets,
        predecessor,
    } = inherited;
    let listeners = listen(&config, sockets, role, options.taken_advice.as_deref())?;
    if let Some(claim) = &claim {
        claim.write_addresses(&listeners.places());
    }
    let pid_file = config.server.pid_file.clone();
    let pid_file = pid_file.map(|path| Arc::new(PidFile::new(path)));
    if let (Some(file), None) = (&pid_file, from) {
        single_instance::write_pid_file(file, role, claim.as_deref())?;
    }
    if role == ProcessRole::Alongside && listeners.shares_ports() {
        tracing::warn!(
            "another process listens on the same port: each process gets a part of the \
             connections, and counts in memory are separate"
        );
    }
    let workers = config.server.workers;
    let (server, controls) = ServerHandles::new(Arc::new(listeners), workers, options.path);
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
        let address = local_address(admin.address);
        say(&format!("dashboard  http://{address}/"));
    }
    if let Some(&address) = server.listeners.addresses().first() {
        listening(address);
    }
    let reloads = Reloads {
        requests: controls.requests,
        watch: options.watch,
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

fn start_admin(
    config: &Config,
    server: ServerHandles,
    replaces: bool,
) -> std::io::Result<Option<Admin>> {
    let Some(settings) = &config.admin else {
        return Ok(None);
    };
    let file = server.file.as_deref();
    let token = match file.map(|file| admin::gate::keep_token(file, &config.server.control)) {
        Some(Err(error)) if settings.token.is_none() => {
            tracing::warn!(%error, "admin: no place to store a token, so the admin refuses all \
             changes");
            None
        }
        kept => kept.and_then(Result::ok),
    };
    Admin::spawn(settings, token, server, replaces).map(Some)
}

/// Opens the sockets of `listen`, except those that this process inherited.
fn listen(
    config: &Config,
    mut sockets: Vec<OpenedSocket>,
    role: ProcessRole,
    taken_advice: Option<&str>,
) -> std::io::Result<Listeners> {
    let lines = ListenLines::of(config);
    if let Some(advice) = taken_advice {
        listen_alone(lines.all(), advice, &mut sockets)?;
    }
    single_instance::bind(lines.all(), config, role, &mut sockets)?;
    let mut listeners = Listeners::open(lines, config.server.workers, &mut sockets)?;
    listeners.joins = role == ProcessRole::Alongside;
    // A socket of an older process is closed if `listen` no longer names it. The service manager's
    // sockets stay open, and their connections would get no answer.
    match sockets.iter().find(|unused| unused.lent) {
        Some(unused) => Err(std::io::Error::other(format!(
            "the service manager listens on {unused}, which `listen` does not name"
        ))),
        None => Ok(listeners),
    }
}

/// Opens the missing sockets. If another process listens on an address, fails with `advice`.
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

/// Prints where the proxy listens, and whether the upstream servers and the store answer.
fn report_start(config: &Config, listeners: &Listeners, from: Option<u32>) {
    say(&format!(
        "listening  {}  ({} workers)",
        listeners.places().join(", "),
        config.server.workers
    ));
    if let Some(pid) = from {
        say(&format!("upgrade    from process {pid}"));
    }
    let probe = |server: &UpstreamServer| match upstream::accepts_connections(
        &server.address,
        PROBE_TIMEOUT,
    ) {
        true => format!("{server} up"),
        false => format!("{server} down"),
    };
    for upstream in &config.upstreams {
        let servers: Vec<String> = upstream.servers.iter().map(probe).collect();
        say(&format!(
            "upstream   {}: {}",
            upstream.name,
            servers.join(", ")
        ));
    }
    match &config.store.kind {
        StoreKind::Memory => say("store      memory: counts live in this process only"),
        StoreKind::Redis(redis) => {
            let info = fetch_server_info(redis, PROBE_TIMEOUT);
            if let Some(why) = info.as_ref().ok().and_then(ServerInfo::forgets) {
                tracing::warn!("redis: {why}");
            }
            let state = match info.map(|info| info.round_trip.unwrap_or_default()) {
                Ok(round_trip) => format!("up, {:.1} ms", round_trip.as_secs_f64() * 1e3),
                Err(error) => format!("away ({error}); trying again in the background"),
            };
            say(&format!("store      {}: {state}", redis.topology));
        }
    }
    if config.keys_are_untold() {
        say("api keys   none is known: `[api_key] known` is not set, so a key changes nothing");
    }
}

/// Raises the limit on open files to the maximum: each request in progress takes two.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
}
