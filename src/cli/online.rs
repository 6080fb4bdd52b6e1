//! `tidegate check --online`: what a file cannot say: whether the store answers and keeps what it
//! is given, whether servers can be reached, and whether addresses are free. It connects, and
//! changes nothing.

use std::io::{self, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use super::check::{FAILED, FINE, Format};
use crate::config::{self, Config, Listen, RedisSettings, StoreKind};
use crate::store::redis::{ServerInfo, fetch_server_info};
use crate::upstream;

/// How long anybody has to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What was found.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Fine(String),
    Doubt(String),
    Wrong(String),
}

/// Asks what the file at `path`, which is fine, cannot say.
pub(super) fn check(path: &Path, format: Format, deny_warnings: bool) -> u8 {
    let Ok((config, _)) = config::load(path) else {
        return FAILED;
    };
    match look(&config, format, &mut io::stdout()) {
        (0, 0) => FINE,
        (0, _) if !deny_warnings => FINE,
        _ => FAILED,
    }
}

/// Writes what it finds; returns how many things are wrong, and how many doubtful.
fn look(config: &Config, format: Format, out: &mut dyn Write) -> (usize, usize) {
    let mut found = store(config);
    found.extend(servers(config));
    found.extend(ports(config));
    let (mut wrong, mut doubts) = (0, 0);
    for one in &found {
        let (word, text) = match one {
            Found::Fine(text) => ("ok", text),
            Found::Doubt(text) => ("warning", text),
            Found::Wrong(text) => ("error", text),
        };
        wrong += usize::from(word == "error");
        doubts += usize::from(word == "warning");
        let line = match format {
            Format::Human { .. } => format!("{word:<7}  {text}\n"),
            Format::Json => {
                serde_json::json!({"severity": word, "message": text}).to_string() + "\n"
            }
            Format::Github if word == "ok" => String::new(),
            Format::Github => format!("::{word}::{text}\n"),
        };
        // Nobody to tell where it is closed.
        let _ = out.write_all(line.as_bytes());
    }
    (wrong, doubts)
}

fn store(config: &Config) -> Vec<Found> {
    match &config.store.kind {
        StoreKind::Memory => vec![Found::Fine(
            "store memory: counts live in the proxy's process only".to_owned(),
        )],
        StoreKind::Redis(redis) => redis_server(redis),
    }
}

fn redis_server(redis: &RedisSettings) -> Vec<Found> {
    let place = redis.topology.to_string();
    match fetch_server_info(redis, PATIENCE) {
        Err(error) => vec![Found::Wrong(format!("store {place}: {error}"))],
        Ok(info) => judge(&place, &info),
    }
}

/// What the store says of itself, and what that means for counts.
fn judge(place: &str, info: &ServerInfo) -> Vec<Found> {
    let version = info.version.as_deref().unwrap_or("of an unknown version");
    let mut found = vec![Found::Fine(format!("store {place}: up, {version}"))];
    if let Some(why) = info.forgets() {
        found.push(Found::Doubt(format!("store {place}: {why}")));
    }
    if info.role.as_deref() == Some("slave") {
        found.push(Found::Wrong(format!(
            "store {place}: it is a replica, and takes no writes; name its master, or use \
             `redis+sentinel://`"
        )));
    }
    let major = info.version.as_deref().and_then(|version| {
        let number = version.rsplit(' ').next()?.split('.').next()?;
        number.parse::<u32>().ok()
    });
    if major.is_some_and(|major| major < 6) {
        found.push(Found::Doubt(format!(
            "store {place}: version {version} is older than what is tested (Redis 6.2)"
        )));
    }
    found
}

fn servers(config: &Config) -> Vec<Found> {
    let of_all = config.upstreams.iter().flat_map(|upstream| {
        let servers = upstream.servers.iter();
        servers.map(move |server| (&upstream.name, server))
    });
    let look = |(name, server): (&std::sync::Arc<str>, &crate::config::UpstreamServer)| {
        let named = match server.to_string() {
            text if *text == **name => format!("upstream {text}"),
            text => format!("upstream {name}: {text}"),
        };
        match upstream::accepts_connections(&server.address, PATIENCE) {
            true => Found::Fine(format!("{named} can be reached")),
            false => Found::Wrong(format!("{named} cannot be reached")),
        }
    };
    of_all.map(look).collect()
}

fn ports(config: &Config) -> Vec<Found> {
    let secure = config.tls.as_ref().map_or(&[][..], |tls| &tls.listen);
    let all = config.listen.iter().chain(secure);
    let free = |listen: &Listen| match listen {
        Listen::Tcp(address) => match TcpListener::bind(address) {
            Ok(_) => Found::Fine(format!("listen {listen} is free")),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Found::Doubt(format!(
                "listen {listen} is taken: by this proxy, if it runs, or by another program"
            )),
            Err(error) => Found::Wrong(format!("listen {listen}: {error}")),
        },
        Listen::Unix(path) => match path.parent().filter(|folder| !folder.is_dir()) {
            Some(folder) if !folder.as_os_str().is_empty() => Found::Wrong(format!(
                "listen {listen}: there is no folder {}",
                folder.display()
            )),
            _ => Found::Fine(format!("listen {listen}")),
        },
    };
    all.map(free).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(policy: &str, role: &str, version: &str) -> ServerInfo {
        ServerInfo {
            version: Some(version.to_owned()),
            role: Some(role.to_owned()),
            maxmemory_policy: Some(policy.to_owned()),
            ..ServerInfo::default()
        }
    }

    #[test]
    fn what_a_store_says_of_itself_is_judged() {
        let fine = judge("r", &info("noeviction", "master", "redis 7.2.4"));
        assert_eq!(fine.len(), 1, "{fine:?}");
        let evicts = judge("r", &info("allkeys-lru", "master", "valkey 8.0.1"));
        assert!(matches!(&evicts[1], Found::Doubt(text) if text.contains("allkeys-lru")));
        let volatile = judge("r", &info("volatile-ttl", "master", "redis 7.2.4"));
        assert!(matches!(&volatile[1], Found::Doubt(text) if !text.contains("or `volatile")));
        let replica = judge("r", &info("noeviction", "slave", "redis 7.2.4"));
        assert!(matches!(&replica[1], Found::Wrong(text) if text.contains("replica")));
        let old = judge("r", &info("noeviction", "master", "redis 5.0.1"));
        assert!(matches!(&old[1], Found::Doubt(text) if text.contains("older")));
    }
}
