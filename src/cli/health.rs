//! `tidegate health`: whether the running proxy is well, as the health check of a container asks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use clap::Args;

use super::admin_client::{AdminArgs, AdminClient, Failed, runtime};
use super::run::say;
use super::trouble::Trouble;
use crate::config::{self, Config, Listen};

#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Ask whether it should be sent requests (/readyz), not only whether it lives (/healthz).
    #[arg(long)]
    ready: bool,
    /// How long it may take, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = seconds)]
    timeout: u64,
}

fn seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().filter(|one| (1..=60).contains(one));
    seconds.ok_or_else(|| "1 to 60 seconds".to_owned())
}

/// Returns the exit code: 0 where it is well.
pub(super) fn health(args: &HealthArgs) -> u8 {
    match ask(args) {
        Ok(()) => 0,
        Err(trouble) => trouble.say(),
    }
}

fn ask(args: &HealthArgs) -> Result<(), Trouble> {
    let patience = Duration::from_secs(args.timeout);
    let has_admin = config::admin_of(&args.admin.config).is_ok_and(|place| place.address.is_some());
    if args.admin.admin.is_none() && !has_admin && !args.ready {
        return knock(args, patience);
    }
    let client = AdminClient::of(&args.admin)?;
    let path = if args.ready { "/readyz" } else { "/healthz" };
    let late = |_| Failed::Away(format!("no answer within {} s", args.timeout));
    let asked = runtime()?.block_on(async {
        let answer = tokio::time::timeout(patience, client.open(path)).await;
        answer.map_err(late)?.map(drop)
    });
    asked.map_err(|failed| client.trouble(&failed))
}

/// Without an admin: whether anybody listens where the file says. Nothing is asked there, since
/// every request counts.
fn knock(args: &HealthArgs, patience: Duration) -> Result<(), Trouble> {
    let file = args.admin.config.display();
    let (config, _) = config::load(&args.admin.config)
        .map_err(|_| Trouble::failed(format!("`{file}` cannot be used: tidegate check")))?;
    let Some(listen) = first(&config) else {
        return Err(Trouble::failed(format!("{file} listens nowhere")));
    };
    let knocked = match &listen {
        Listen::Tcp(address) => TcpStream::connect_timeout(&here(*address), patience).map(drop),
        Listen::Unix(path) => UnixStream::connect(path).map(drop),
    };
    knocked.map_err(|error| {
        say("nobody was asked: the file has no `admin`; only its `listen` was tried");
        Trouble::failed(format!("nobody listens: {error}"))
    })
}

fn first(config: &Config) -> Option<Listen> {
    let tls = config.tls.iter().flat_map(|tls| tls.listen.iter());
    config.listen.iter().chain(tls).next().cloned()
}

/// Where a listener on every address is reached from here.
fn here(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        // It takes IPv4 too, and a machine may have nothing else.
        IpAddr::V6(ip) if ip == Ipv6Addr::UNSPECIFIED => IpAddr::V4(Ipv4Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
