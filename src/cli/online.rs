//! `tidegate check --online`: whether the store answers and keeps what it stores, whether servers
//! can be reached, and whether addresses are free. It connects, and changes nothing.

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use super::DID_NOT_WORK;
use super::check::{CheckArgs, CheckFormat};
use super::output::{CommandError, load, print};
use crate::config::{Config, Listen, StoreKind};
use crate::store::redis::{ServerInfo, fetch_server_info};
use crate::upstream;

/// How long to wait for each answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The result of one check.
#[derive(Debug, PartialEq, Eq)]
enum Probe {
    Fine(String),
    Doubtful(String),
    Wrong(String),
}

/// Checks the environment of a file that is fine itself.
pub(super) fn check(args: &CheckArgs) -> Result<u8, CommandError> {
    let Ok(config) = load(&args.config) else {
        return Ok(DID_NOT_WORK);
    };
    let mut probes = probe_store(&config);
    probes.extend(probe_servers(&config));
    probes.extend(probe_listeners(&config));
    let mut failed = false;
    for probe in &probes {
        let (word, text) = match probe {
            Probe::Fine(text) => ("ok", text),
            Probe::Doubtful(text) => ("warning", text),
            Probe::Wrong(text) => ("error", text),
        };
        failed |= word == "error" || word == "warning" && args.deny_warnings;
        let line = match args.format {
            CheckFormat::Human => format!("{word:<7}  {text}\n"),
            CheckFormat::Json => {
                format!(
                    "{}\n",
                    serde_json::json!({"severity": word, "message": text})
                )
            }
            CheckFormat::Github if word == "ok" => String::new(),
            CheckFormat::Github => format!("::{word}::{text}\n"),
        };
        print(line);
    }
    Ok(if failed { DID_NOT_WORK } else { 0 })
}

fn probe_store(config: &Config) -> Vec<Probe> {
    let StoreKind::Redis(redis) = &config.store.kind else {
        let text = "store memory: counts live in the proxy's process only";
        return vec![Probe::Fine(text.to_owned())];
    };
    let place = redis.topology.to_string();
    match fetch_server_info(redis, PROBE_TIMEOUT) {
        Err(error) => vec![Probe::Wrong(format!("store {place}: {error}"))],
        Ok(info) => judge_store(&place, &info),
    }
}

/// Judges whether this store keeps counts reliably.
fn judge_store(place: &str, info: &ServerInfo) -> Vec<Probe> {
    let version = info.version.as_deref().unwrap_or("of an unknown version");
    let mut probes = vec![Probe::Fine(format!("store {place}: up, {version}"))];
    if let Some(why) = info.forgets() {
        probes.push(Probe::Doubtful(format!("store {place}: {why}")));
    }
    if info.role.as_deref() == Some("slave") {
        probes.push(Probe::Wrong(format!(
            "store {place}: it is a replica, and takes no writes; name its master, or use \
             `redis+sentinel://`"
        )));
    }
    let major = info.version.as_deref().and_then(|version| {
        let number = version.rsplit(' ').next()?.split('.').next()?;
        number.parse::<u32>().ok()
    });
    if major.is_some_and(|major| major < 6) {
        probes.push(Probe::Doubtful(format!(
            "store {place}: version {version} is older than what is tested (Redis 6.2)"
        )));
    }
    probes
}

fn probe_servers(config: &Config) -> Vec<Probe> {
    let mut probes = Vec::new();
    for upstream in &config.upstreams {
        for server in &upstream.servers {
            let name = &upstream.name;
            let named = match server.to_string() {
                text if *text == **name => format!("upstream {text}"),
                text => format!("upstream {name}: {text}"),
            };
            probes.push(
                match upstream::accepts_connections(&server.address, PROBE_TIMEOUT) {
                    true => Probe::Fine(format!("{named} can be reached")),
                    false => Probe::Wrong(format!("{named} cannot be reached")),
                },
            );
        }
    }
    probes
}

fn probe_listeners(config: &Config) -> Vec<Probe> {
    let secure = config.tls.iter().flat_map(|tls| &tls.listen);
    let probe = |listen: &Listen| match listen {
        Listen::Tcp(address) => match TcpListener::bind(address) {
            Ok(_) => Probe::Fine(format!("listen {listen} is free")),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Probe::Doubtful(format!(
                "listen {listen} is taken: by this proxy, if it runs, or by another program"
            )),
            Err(error) => Probe::Wrong(format!("listen {listen}: {error}")),
        },
        Listen::Unix(path) => match path.parent().filter(|folder| !folder.is_dir()) {
            Some(folder) if !folder.as_os_str().is_empty() => Probe::Wrong(format!(
                "listen {listen}: there is no folder {}",
                folder.display()
            )),
            _ => Probe::Fine(format!("listen {listen}")),
        },
    };
    config.listen.iter().chain(secure).map(probe).collect()
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
        let fine = judge_store("r", &info("noeviction", "master", "redis 7.2.4"));
        assert_eq!(fine.len(), 1, "{fine:?}");
        let evicts = judge_store("r", &info("allkeys-lru", "master", "valkey 8.0.1"));
        assert!(matches!(&evicts[1], Probe::Doubtful(text) if text.contains("allkeys-lru")));
        let volatile = judge_store("r", &info("volatile-ttl", "master", "redis 7.2.4"));
        assert!(matches!(&volatile[1], Probe::Doubtful(text) if !text.contains("or `volatile")));
        let replica = judge_store("r", &info("noeviction", "slave", "redis 7.2.4"));
        assert!(matches!(&replica[1], Probe::Wrong(text) if text.contains("replica")));
        let old = judge_store("r", &info("noeviction", "master", "redis 5.0.1"));
        assert!(matches!(&old[1], Probe::Doubtful(text) if text.contains("older")));
    }
}
