//! `tidegate demo`: the routes and limits of a file in front of a built-in echo server, with the
//! embedded store, a dashboard, and clients of its own. It prints commands to try next.
//!
//! Each of the clients sends from a loopback address of its own, so they use up no budget of the
//! user's client, which has 127.0.0.1 or `::1`. They send about 22 requests a second, for an hour
//! at most, and end with the server.

mod envoy;

use std::fs::DirBuilder;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use http::header::{HOST, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Empty};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::display::quoted;
use super::output::{CommandError, print_error, print_warnings};
use super::run::{DemoOptions, StartOptions, Started, serve};
use super::send::{RequestSender, open_http1};
use crate::config::{self, Config, Listen, LogTarget};
use crate::limit::key::Part;
use crate::limit::{EnforcedShare, Limit, Missing};
use crate::route::{CostSource, RouteQuery};
use crate::server::echo::{self, DemoSettings};
use crate::server::listen::bind_alone;
use crate::server::{Lifecycle, ServerHandles};
use crate::telemetry::panics::spawn_thread;
use crate::usage::settings::Quantity;

const BUILT_IN: &str = include_str!("../../proxy.toml");
/// Requests of the loop to try, at most.
const MAX_TRIES: u64 = 1000;
/// The port of the admin, unless another program has it.
const ADMIN_PORT: u16 = 9180;

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// The configuration whose routes and limits to show.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Decide for Envoy, which must be in the PATH, in place of serving clients.
    #[arg(long, conflicts_with_all = ["config", "no_traffic"])]
    envoy: bool,
    /// Send no requests of its own.
    #[arg(long)]
    no_traffic: bool,
}

/// Refuses to share a port: each of two processes would count only a part of the requests.
pub(super) fn demo(args: &DemoArgs) -> Result<u8, CommandError> {
    let upstream = echo::start()
        .map_err(|error| CommandError::signed(format!("cannot start the echo server: {error}")))?;
    let settings = DemoSettings {
        upstream,
        admin: free_admin_address(),
        access_log: None,
    };
    match args.envoy {
        true => envoy::run(settings),
        false => serve_clients(args, settings),
    }
}

fn serve_clients(args: &DemoArgs, settings: DemoSettings) -> Result<u8, CommandError> {
    let file = args.config.as_deref().unwrap_or(Path::new("proxy.toml"));
    let has_file = args.config.is_some() || file.exists();
    let (loaded, taken_advice) = match has_file {
        true => (
            config::load(file),
            format!("end it, or change `listen` in {}", file.display()),
        ),
        false => (
            config::parse("proxy.toml", &built_in(), &|_| None),
            "end it, or have `tidegate init` write a proxy.toml, and change `listen` there"
                .to_owned(),
        ),
    };
    let mut config = print_warnings(loaded)?;
    if !has_file {
        move_to_free_port(&mut config);
    }
    let log = (!args.no_traffic).then(DemoFolder::create).transpose()?;
    let settings = DemoSettings {
        access_log: log.as_ref().map(|log| log.0.join("access.log")),
        ..settings
    };
    settings.apply(&mut config);
    let access_log = match &config.log.access {
        LogTarget::File(path) => Some(path.clone()),
        _ => None,
    };
    let options = StartOptions {
        path: has_file.then(|| file.to_owned()),
        watch: true,
        alongside: false,
        demo: Some(DemoOptions {
            settings,
            taken_advice,
        }),
    };
    let tries = tries_until_denied(&config);
    serve(config, options, |started| {
        if !args.no_traffic {
            start_traffic(started);
        }
        let steps = NextSteps {
            program: program(),
            port: started
                .server
                .listeners
                .addresses()
                .first()
                .map(SocketAddr::port),
            admin: started.admin,
            file: args.config.as_deref(),
            has_file,
            access_log: access_log.as_deref(),
            tries,
            has_traffic: !args.no_traffic,
        };
        print_error(&steps.text());
    })
}

/// The folder of the demo's files. Its drop removes it.
struct DemoFolder(PathBuf);

impl DemoFolder {
    fn create() -> Result<DemoFolder, CommandError> {
        let name = format!("tidegate-demo-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // A process with the same id may have left one behind. This removes no link's target.
        let _ = std::fs::remove_dir_all(&path);
        let created = DirBuilder::new().mode(0o700).create(&path);
        created.map_err(|error| {
            let path = path.display();
            CommandError::signed(format!("cannot create the folder {path}: {error}"))
                .help("name another folder with TMPDIR, or use `--no-traffic`")
        })?;
        Ok(DemoFolder(path))
    }
}

impl Drop for DemoFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The quick start, with a second rate for `default`: the dashboard shows what that would deny.
fn built_in() -> String {
    let enforced = "rate = \"10/10s\"";
    BUILT_IN.replacen(enforced, &format!("{enforced}\ncandidate = \"5/10s\""), 1)
}

/// Has a demo without a file listen on a free port if another process has the port of the quick
/// start.
fn move_to_free_port(config: &mut Config) {
    for line in &mut config.listen {
        let Listen::Tcp(address) = line else { continue };
        let is_taken = bind_alone(&Listen::Tcp(*address))
            .is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
        let free = SocketAddr::new(address.ip(), 0);
        if let (true, Some(port)) = (is_taken, free_port(free)) {
            print_error(&format!(
                "demo       another process listens on port {}: the demo takes port {port}",
                address.port()
            ));
            address.set_port(port);
        }
    }
}

fn free_port(address: SocketAddr) -> Option<u16> {
    let listener = TcpListener::bind(address).ok()?;
    Some(listener.local_addr().ok()?.port())
}

/// The address has a port, also if another process has the usual one: the token of the demo is kept
/// by the address.
fn free_admin_address() -> SocketAddr {
    let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT));
    let free = || free_port(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    match TcpListener::bind(usual) {
        Ok(_) => usual,
        Err(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, free().unwrap_or_default())),
    }
}

fn start_traffic(started: &Started<'_>) {
    let summary = match start_clients(started.server) {
        Ok(summary) => format!("{summary}; `--no-traffic` leaves it out"),
        Err(error) => format!("none: {error}"),
    };
    print_error(&format!("traffic    {summary}"));
}

/// This program as a shell in this folder calls it.
fn program() -> String {
    let called = std::env::args_os().next().map(PathBuf::from);
    let called = called.unwrap_or_else(|| "tidegate".into());
    let folder = std::env::current_dir().unwrap_or_default();
    let path = called.strip_prefix(&folder).unwrap_or(&called);
    quoted(&path.display().to_string())
}

/// Requests of one client for `/` that no limit allows all; `None` if a user would wait for long.
pub(super) fn tries_until_denied(config: &Config) -> Option<u64> {
    let path = config.routes.read_path("/").ok()?;
    let headers = HeaderMap::new();
    let found = config.routes.find(&RouteQuery {
        host: "localhost",
        path: &path,
        method: &Method::GET,
        headers: &headers,
        query: None,
        port: 0,
    });
    let route = found?.route;
    let CostSource::Fixed(cost) = route.cost else {
        return None;
    };
    let has_key = |limit: &Limit| {
        let mut parts = limit.key.parts.iter();
        limit.missing == Missing::Ip || parts.all(|part| part.0.iter().any(Part::is_always_present))
    };
    let counts_requests = |limit: &Limit| match limit.counts {
        Quantity::Requests => true,
        Quantity::Costs => route.usage.is_none(),
        Quantity::Tokens | Quantity::Input | Quantity::Output | Quantity::Money => false,
    };
    let denies = |limit: &&Arc<Limit>| {
        let is_enforced = !limit.shadow && limit.enforce == EnforcedShare::ALL;
        let is_rate = !limit.is_concurrent() && limit.delay.is_none() && counts_requests(limit);
        is_enforced && is_rate && has_key(limit)
    };
    let allowed = route.limits.iter().filter(denies).flat_map(|limit| {
        let units = limit.units(cost);
        let windows = limit.windows.iter();
        windows.filter_map(move |window| window.rule.units.checked_div(units))
    });
    let tries = allowed.min()?.saturating_add(2);
    (tries <= MAX_TRIES).then_some(tries)
}

/// What to try while a demo runs.
struct NextSteps<'a> {
    program: String,
    port: Option<u16>,
    admin: Option<SocketAddr>,
    /// The file that `-c` named.
    file: Option<&'a Path>,
    has_file: bool,
    access_log: Option<&'a Path>,
    /// Requests for `/` of which the last is denied; `None` if that is not known.
    tries: Option<u64>,
    has_traffic: bool,
}

impl NextSteps<'_> {
    fn text(&self) -> String {
        let (program, port) = (&self.program, self.port.unwrap_or_default());
        let named = self.file.map(|file| quoted(&file.display().to_string()));
        let config = named
            .as_ref()
            .map_or(String::new(), |file| format!(" -c {file}"));
        let file = named.unwrap_or_else(|| "proxy.toml".to_owned());
        let try_it = |tries| {
            format!(
                "\nTry it, until it says 429:\n\n    \
                 for i in $(seq {tries}); do curl -i http://localhost:{port}/; done\n"
            )
        };
        let mut text = self.tries.map(try_it).unwrap_or_default();
        let edit = match self.has_file {
            true => format!("${{EDITOR:-vi}} {file}"),
            false => format!("{program} init && ${{EDITOR:-vi}} {file}"),
        };
        let then = match self.has_file {
            true => "The demo follows the file",
            false => "Then start the demo again",
        };
        text += &format!("\nChange a rate. {then}:\n\n    {edit}\n    {program} check{config}\n");
        if let Some(admin) = self.admin.filter(|_| !self.has_traffic) {
            text += &format!("\nFollow the denials:\n\n    {program} tap --admin {admin}\n");
        } else if let Some(admin) = self.admin {
            text += &format!(
                "\nSee why a client is denied, and follow the denials:\n\n    \
                 {program} explain GET http://localhost:{port}/ --ip {CRAWLER} --live \
                 --admin {admin}{config}\n    \
                 {program} tap --admin {admin}\n\
                 \nSee the usage of that client, and set it to zero:\n\n    \
                 {program} limits show default {CRAWLER} --admin {admin}{config}\n    \
                 {program} limits reset default {CRAWLER} --admin {admin}{config}\n"
            );
        }
        if let Some(log) = self.access_log {
            let log = quoted(&log.display().to_string());
            text += &format!(
                "\nSee what another rate would have done to the requests so far:\n\n    \
                 {program} replay --limit 20/min --key ip {log}\n"
            );
        }
        text + "\nCtrl-C stops.\n"
    }
}

/// A client that is denied most of the time.
const CRAWLER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 31);
const POLLER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 32);
const GUESSER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 33);
const BATCH: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 34);
/// Visitors keep to ten requests in ten seconds.
const VISITORS: u8 = 12;
const FIRST_VISITOR: u8 = 11;

const MAX_TIME: Duration = Duration::from_secs(3600);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a request that got no answer.
const ERROR_PAUSE: Duration = Duration::from_secs(1);
/// The longest wait that a client obeys.
const MAX_WAIT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
struct TrafficClient {
    address: Ipv4Addr,
    agent: &'static str,
    method: Method,
    paths: &'static [&'static str],
    every: Duration,
    /// After a denial it waits as long as `Retry-After` says.
    obeys: bool,
}

fn clients() -> Vec<TrafficClient> {
    let client = |address, agent, paths, every_ms| TrafficClient {
        address,
        agent,
        method: Method::GET,
        paths,
        every: Duration::from_millis(every_ms),
        obeys: false,
    };
    let pages = &["/", "/products", "/products/7", "/search?q=tea", "/cart"];
    let mut clients = vec![
        client(
            CRAWLER,
            "crawler",
            &["/products/1", "/products/2", "/products/3"],
            125,
        ),
        client(POLLER, "poller", &["/api/orders"], 400),
        TrafficClient {
            method: Method::POST,
            ..client(GUESSER, "guesser", &["/login"], 500)
        },
        TrafficClient {
            obeys: true,
            ..client(BATCH, "batch", &["/api/report", "/api/stock"], 200)
        },
    ];
    clients.extend((0..VISITORS).map(|number| {
        let address = Ipv4Addr::new(127, 0, 0, FIRST_VISITOR + number);
        client(address, "visitor", pages, 1250)
    }));
    clients
}

/// Starts the clients on a thread of their own. Returns what they send, in words.
fn start_clients(server: &ServerHandles) -> io::Result<String> {
    let server = server.clone();
    let target = target(&server).ok_or_else(|| {
        io::Error::other("`listen` has no plain IPv4 address that the clients could reach")
    })?;
    let clients = clients();
    for client in &clients {
        // Other systems than Linux have only 127.0.0.1.
        std::net::TcpListener::bind((client.address, 0)).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("no address {}: {error}", client.address),
            )
        })?;
    }
    // The client that obeys waits most of the time.
    let steady = clients.iter().filter(|client| !client.obeys);
    let rate: f64 = steady.map(|client| 1.0 / client.every.as_secs_f64()).sum();
    let count = clients.len();
    spawn_thread("traffic", move || run_clients(clients, server))?;
    Ok(format!(
        "{count} clients, about {rate:.0} requests/s to http://{target}"
    ))
}

async fn run_clients(clients: Vec<TrafficClient>, server: ServerHandles) {
    let mut tasks = JoinSet::new();
    for (index, client) in (0..).zip(clients) {
        let server = server.clone();
        tasks.spawn(async move {
            // Not all at the same instant.
            sleep(client.every * index / 16).await;
            client.run(&server).await;
        });
    }
    let mut shutdown = server.shutdown.clone();
    tokio::select! {
        _ = shutdown.wait_for(|lifecycle| *lifecycle != Lifecycle::Serve) => {}
        () = sleep(MAX_TIME) => print_error("traffic    ended after an hour: start the demo again"),
    }
}

/// The address where clients of IPv4 reach the server. A reload may change it.
fn target(server: &ServerHandles) -> Option<SocketAddr> {
    let address = server.listeners.plain_address()?;
    let ip = match address.ip() {
        ip if ip.is_unspecified() => IpAddr::from(Ipv4Addr::LOCALHOST),
        ip => ip,
    };
    ip.is_ipv4().then(|| SocketAddr::new(ip, address.port()))
}

impl TrafficClient {
    async fn run(&self, server: &ServerHandles) {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut connection = None;
        for path in self.paths.iter().cycle() {
            ticks.tick().await;
            let sent = timeout(ANSWER_TIMEOUT, self.send(&mut connection, path, server)).await;
            match sent {
                Ok(Ok(answer)) if self.obeys => sleep(wait_of(&answer)).await,
                Ok(Ok(_)) => {}
                // A reload may have closed the address.
                _ => {
                    connection = None;
                    sleep(ERROR_PAUSE).await;
                }
            }
        }
    }

    async fn send(
        &self,
        connection: &mut Option<RequestSender>,
        path: &str,
        server: &ServerHandles,
    ) -> io::Result<Response<()>> {
        let target = target(server).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut open = match connection.take() {
            Some(open) if open.is_ready() => open,
            _ => {
                let socket = TcpSocket::new_v4()?;
                socket.bind((self.address, 0).into())?;
                open_http1(socket.connect(target).await?).await?
            }
        };
        let request = Request::builder()
            .method(&self.method)
            .uri(path)
            .header(HOST, "localhost")
            .header(USER_AGENT, format!("tidegate-demo {}", self.agent))
            .header("x-api-key", format!("demo-{}-{}", self.agent, self.address))
            .body(Empty::new())
            .map_err(io::Error::other)?;
        let answer = open.send_request(request).await.map_err(io::Error::other)?;
        let (head, body) = answer.into_parts();
        body.collect().await.map_err(io::Error::other)?;
        *connection = Some(open);
        Ok(Response::from_parts(head, ()))
    }
}

fn wait_of(answer: &Response<()>) -> Duration {
    let seconds = answer.headers().get(RETRY_AFTER);
    let seconds = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
    Duration::from_secs(seconds.unwrap_or_default()).min(MAX_WAIT)
}
