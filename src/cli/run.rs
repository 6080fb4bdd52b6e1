//! `tidegate run`: binds, reports the start, and serves until a signal ends it.

use std::io::{ErrorKind, IsTerminal};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustix::process::{Resource, getrlimit, setrlimit};

use super::admin_client::local_address;
use super::check::{explain_store_error, load_writable};
use super::output::{CommandError, print_error, print_warnings};
use super::signals::{self, SignalTargets};
use super::single_instance::{self, ProcessRole};
use crate::admin::Admin;
use crate::admin::gate::{keep_token, unnamed_admin};
use crate::config::diagnostic::Diagnostics;
use crate::config::{
    Config, Control, FlagConfig, Fleet, Listen, ServerSettings, SettingError, StoreKind,
    UpstreamServer,
};
use crate::server::claim::{Claim, PidFile};
use crate::server::echo::DemoSettings;
use crate::server::handover::Inherited;
use crate::server::listen::{ListenLines, Listeners, bind_alone};
use crate::server::listener::OpenedSocket;
use crate::server::{Reloads, ServerHandles};
use crate::store::fleet::ASSUMED;
use crate::store::redis::{ServerInfo, fetch_server_info};
use crate::{config, diagnostics, server, upstream};

/// How long the start report waits for the store, and for each upstream server.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
const OWN_DESCRIPTORS: u64 = 32;
const WORKER_DESCRIPTORS: u64 = 12;

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

pub(super) struct StartOptions {
    /// The file that reloads read.
    pub(super) path: Option<PathBuf>,
    pub(super) watch: bool,
    /// Other processes may run the same file or listen on the same addresses.
    pub(super) alongside: bool,
    pub(super) demo: Option<DemoOptions>,
}

pub(super) struct DemoOptions {
    pub(super) settings: DemoSettings,
    /// What to do if another process listens on an address of `listen`.
    pub(super) taken_advice: String,
}

/// A server whose sockets are open.
pub(super) struct Started<'s> {
    pub(super) server: &'s ServerHandles,
    pub(super) admin: Option<SocketAddr>,
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
        None => load_writable(file).map_err(|found| with_start_advice(found, file)),
    };
    let config = print_warnings(loaded)?;
    let options = StartOptions {
        path: args.to.is_none().then(|| file.to_owned()),
        watch: args.watch,
        alongside: args.alongside,
        demo: None,
    };
    let settings = config.server.clone();
    serve(config, options, |_| report_descriptors(&settings))
}

/// A user without a file may want to see the proxy work first.
fn with_start_advice(mut found: Diagnostics, file: &Path) -> Diagnostics {
    if let Some(first) = found.list.first_mut().filter(|_| !file.exists())
        && let Some(help) = &mut first.help
    {
        help.push_str(
            ". To see it work without a file: `tidegate demo`, or `tidegate run --to \
             http://127.0.0.1:3000`",
        );
    }
    found
}

/// Binds and serves. Calls `started` once the sockets are open.
pub(super) fn serve(
    config: Config,
    options: StartOptions,
    started: impl FnOnce(&Started<'_>),
) -> Result<u8, CommandError> {
    let _messages = diagnostics::init(config::environment("RUST_LOG").as_deref());
    raise_descriptor_limit(config.server.workers)?;
    let (file, sources) = (options.path.clone(), Arc::clone(&config.sources));
    let served = serve_until_stopped(config, options, started);
    served.map_err(|error| {
        CommandError::signed(SettingError::locate(error, file.as_deref(), &sources))
    })?;
    Ok(0)
}

fn serve_until_stopped(
    config: Config,
    options: StartOptions,
    started: impl FnOnce(&Started<'_>),
) -> std::io::Result<()> {
    let inherited = Inherited::take()?;
    let from = inherited.predecessor.as_ref().map(|one| one.pid);
    let role = match from {
        Some(pid) => ProcessRole::Successor(pid),
        None if options.alongside => ProcessRole::Alongside,
        None => ProcessRole::Alone,
    };
    let demo = options.demo.as_ref();
    let claim = claim_file(&options, &config, role)?;
    let Inherited {
        mut sockets,
        predecessor,
    } = inherited;
    let taken_advice = demo.map(|demo| demo.taken_advice.as_str());
    let listeners = listen(&config, &mut sockets, role, taken_advice)?;
    if let Some(claim) = claim.as_ref().filter(|claim| claim.is_held()) {
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
    let (mut server, controls) = ServerHandles::new(Arc::new(listeners), workers, options.path);
    server.predecessor = from;
    signals::spawn(SignalTargets {
        lifecycle: controls.lifecycle,
        server: server.clone(),
        predecessor,
        pid_file: pid_file.clone(),
        claim: claim.clone(),
    })?;
    let admin = start_admin(&config, server.clone(), &mut sockets, role)?;
    // The others are of addresses that `listen` and `admin` no longer name.
    drop(sockets);
    report_start(&config, &server, from);
    if let Some(admin) = &admin {
        let address = local_address(admin.address);
        // Only a terminal shows the token: other output may be stored in a file.
        let is_shown = demo.is_some() && std::io::stderr().is_terminal();
        let token = admin.own_token.as_ref().filter(|_| is_shown);
        let token = token.map(|token| format!("#token={}", String::from_utf8_lossy(token)));
        print_error(&format!(
            "dashboard  http://{address}/{}",
            token.unwrap_or_default()
        ));
    }
    started(&Started {
        server: &server,
        admin: admin.as_ref().map(|admin| local_address(admin.address)),
    });
    let reloads = Reloads {
        requests: controls.requests,
        watch: options.watch,
        claim,
        demo: options.demo.map(|demo| demo.settings),
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

fn claim_file(
    options: &StartOptions,
    config: &Config,
    role: ProcessRole,
) -> std::io::Result<Option<Arc<Claim>>> {
    let Some(file) = &options.path else {
        return Ok(None);
    };
    if options.demo.is_none() {
        return single_instance::claim(file, config, role).map(Some);
    }
    // The addresses alone decide whether a demo starts.
    let replaces = matches!(role, ProcessRole::Successor(_));
    let claim = Claim::new(file, &config.server.control, replaces);
    Ok(Some(Arc::new(claim)))
}

fn start_admin(
    config: &Config,
    server: ServerHandles,
    inherited: &mut Vec<OpenedSocket>,
    role: ProcessRole,
) -> std::io::Result<Option<Admin>> {
    let Some(settings) = &config.admin else {
        return Ok(None);
    };
    let file = server.file.as_deref().filter(|_| settings.is_from_file);
    let kept = match file {
        Some(file) => keep_token(file, &config.server.control),
        None => keep_token(&unnamed_admin(settings.address), &Control::Derived),
    };
    let token = match kept {
        Err(error) if settings.token.is_none() => {
            tracing::warn!(%error, "admin: no place to store a token, so the admin refuses all \
             changes");
            None
        }
        kept => kept.ok(),
    };
    Admin::spawn(
        settings,
        token,
        server,
        inherited,
        role != ProcessRole::Alone,
    )
    .map(Some)
}

/// Opens the sockets of `listen`, except those that this process inherited.
fn listen(
    config: &Config,
    sockets: &mut Vec<OpenedSocket>,
    role: ProcessRole,
    taken_advice: Option<&str>,
) -> std::io::Result<Listeners> {
    let lines = ListenLines::new(config);
    if let Some(advice) = taken_advice {
        listen_alone(lines, advice, sockets)?;
    }
    single_instance::bind(lines, config, role, sockets)?;
    let mut listeners = Listeners::open(lines, config.server.workers, sockets)?;
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
fn listen_alone(
    lines: ListenLines<'_>,
    advice: &str,
    sockets: &mut Vec<OpenedSocket>,
) -> std::io::Result<()> {
    let mut opened = Vec::new();
    let is_missing = |line: &&Listen| !sockets.iter().any(|one| one.is_for(line));
    for line in lines.all().filter(is_missing) {
        opened.extend(bind_alone(line).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => {
                let text = format!("another process listens on {line} already: {advice}");
                std::io::Error::new(ErrorKind::AddrInUse, text)
            }
            _ => lines.name_error(line, &error),
        })?);
    }
    sockets.append(&mut opened);
    Ok(())
}

/// Prints where the proxy listens, and whether the upstream servers and the store answer.
fn report_start(config: &Config, server: &ServerHandles, from: Option<u32>) {
    let (listeners, file) = (&server.listeners, server.file.as_deref());
    print_error(&format!(
        "listening  {}  ({} workers)",
        listeners.places().join(", "),
        config.server.workers
    ));
    if let Some(pid) = from {
        print_error(&format!("upgrade    from process {pid}"));
    }
    let probe = |server: &UpstreamServer| {
        let state = match upstream::try_connect(&server.address, PROBE_TIMEOUT) {
            Ok(()) => "up".to_owned(),
            Err(error) => format!("down ({error})"),
        };
        format!("{server} {state}")
    };
    for upstream in &config.upstreams {
        let servers: Vec<String> = upstream.servers.iter().map(probe).collect();
        print_error(&format!(
            "upstream   {}: {}",
            upstream.name,
            servers.join(", ")
        ));
    }
    match &config.store.kind {
        StoreKind::Memory => print_error(&match &config.store.file {
            Some(file) => format!("store      memory, calendar windows in {}", file.display()),
            None => "store      memory: counts live in this process only".to_owned(),
        }),
        StoreKind::Redis(redis) => {
            let info = fetch_server_info(redis, PROBE_TIMEOUT);
            if let Some(why) = info.as_ref().ok().and_then(ServerInfo::forgets) {
                tracing::warn!("redis: {why}");
            }
            let state = match info.map(|info| info.round_trip.unwrap_or_default()) {
                Ok(round_trip) => format!("up, {:.1} ms", round_trip.as_secs_f64() * 1e3),
                Err(error) => {
                    let url = file.map_or("`--redis`".to_owned(), |file| {
                        config::place_of("store.url", file, &config.sources)
                    });
                    let reason = explain_store_error(error, &redis.topology);
                    let shares = match config.store.fleet {
                        Fleet::Auto => format!(
                            ". Until then it counts as one of {ASSUMED} proxies; `fleet` sets \
                             another number"
                        ),
                        Fleet::Fixed(_) => String::new(),
                    };
                    format!(
                        "away ({reason}): start it, or correct {url}; trying again in the \
                         background{shares}"
                    )
                }
            };
            print_error(&format!("store      {}: {state}", redis.topology));
        }
    }
    if config.keys_are_untold() {
        print_error(
            "api keys   none is known: `[api_key] known` is not set, so a key changes nothing",
        );
    }
}

/// Raises the limit on open files to the maximum: each request in progress takes two.
///
/// # Errors
/// The maximum is too low for this number of workers.
fn raise_descriptor_limit(workers: usize) -> Result<(), CommandError> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
    let needed = descriptors_needed(workers);
    match getrlimit(Resource::Nofile).current {
        Some(allowed) if allowed < needed => Err(CommandError::signed(format!(
            "the limit on open files is {allowed}, and {workers} workers need {needed} before the \
             first connection. Raise it: `ulimit -n 65536`, or `LimitNOFILE=65536` in a unit"
        ))),
        _ => Ok(()),
    }
}

/// Says how many clients fit, if those are fewer than the configuration allows.
fn report_descriptors(settings: &ServerSettings) {
    let wanted = 2 * settings.max_connections as u64;
    if let Some(allowed) = getrlimit(Resource::Nofile)
        .current
        .filter(|one| *one < wanted)
    {
        print_error(&format!(
            "files      {allowed} may be open: room for about {} clients at once, and \
             `server.max_connections` is {}. Raise `ulimit -n`, or lower the setting",
            allowed.saturating_sub(descriptors_needed(settings.workers)) / 2,
            settings.max_connections
        ));
    }
}

/// What is open before the first connection, rounded up.
fn descriptors_needed(workers: usize) -> u64 {
    OWN_DESCRIPTORS + workers as u64 * WORKER_DESCRIPTORS
}
