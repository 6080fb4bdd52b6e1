//! What a server reports about itself, over a connection of its own: for `check` and for the admin,
//! never on the path of a request.

use std::sync::Arc;
use std::time::Duration;

use super::access::Access;
use super::link::within;
use crate::clock;
use crate::config::RedisSettings;
use crate::store::{ServerTrouble, StoreError};

/// See the file's head. A field is `None` if the server does not show it to this user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// `redis 7.2.4`, `valkey 8.0.1`.
    pub version: Option<String>,
    /// `master` or `slave`.
    pub role: Option<String>,
    /// Which keys it forgets when memory is short.
    pub maxmemory_policy: Option<String>,
    /// How long its answer took.
    pub round_trip: Option<Duration>,
    /// By how much its clock is ahead of this machine's, at least, microseconds.
    pub clock_ahead_us: Option<i64>,
}

impl ServerInfo {
    /// Why its counts are not safe when memory is short; `None` if they are. Every policy but
    /// `noeviction` forgets keys whose windows still run. The `volatile-` policies do so too, since
    /// all of our keys expire.
    pub fn forgets(&self) -> Option<String> {
        let policy = self.maxmemory_policy.as_deref()?;
        (policy != "noeviction").then(|| {
            format!(
                "`maxmemory-policy` is `{policy}`. When Redis is full it evicts counts, and \
                 limited clients get a new budget. Set `noeviction`"
            )
        })
    }
}

/// Asks a server about itself, and waits for it.
pub fn fetch_server_info(
    server: &RedisSettings,
    patience: Duration,
) -> Result<ServerInfo, StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|_| StoreError::Refused)?;
    runtime.block_on(server_info(server, patience))
}

pub async fn server_info(
    server: &RedisSettings,
    patience: Duration,
) -> Result<ServerInfo, StoreError> {
    let access = Arc::new(Access::new(server)?);
    let asking = async {
        let mut link = access.open().await?;
        let asked = clock::now();
        redis::cmd("PING")
            .query_async::<()>(link.connection())
            .await?;
        let round_trip = clock::now().saturating_duration_since(asked);
        // An ACL that leaves these out is no mistake.
        let before_us = clock::unix_us();
        let time = redis::cmd("TIME")
            .query_async::<(u64, u64)>(link.connection())
            .await;
        let after_us = clock::unix_us();
        let info = redis::cmd("INFO")
            .query_async::<String>(link.connection())
            .await;
        let info = info.unwrap_or_default();
        check_kind(&info, access.is_cluster())?;
        Ok(ServerInfo {
            round_trip: Some(round_trip),
            clock_ahead_us: time.ok().map(|(seconds, us)| {
                let shown_us = seconds.saturating_mul(1_000_000).saturating_add(us);
                ahead_us(before_us, shown_us, after_us)
            }),
            ..parse(&info)
        })
    };
    within(patience, asking).await
}

/// A server that answers is of no use as a cluster if it is none. An ACL may hide that. A cluster
/// of one node also works as a server.
fn check_kind(info: &str, is_cluster: bool) -> Result<(), StoreError> {
    match is_cluster && value_of(info, "cluster_enabled") == Some("0") {
        true => Err(StoreError::Server(ServerTrouble::NoCluster)),
        false => Ok(()),
    }
}

fn value_of<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    let mut lines = info.lines().filter_map(|line| line.trim().split_once(':'));
    lines.find_map(|(known, value)| (known == name).then_some(value))
}

/// By how much a clock is ahead, at least, that showed `shown_us` at some time between two.
fn ahead_us(before_us: u64, shown_us: u64, after_us: u64) -> i64 {
    let beyond = |one: u64, other: u64| i64::try_from(one.saturating_sub(other)).unwrap_or(0);
    beyond(shown_us, after_us) - beyond(before_us, shown_us)
}

fn parse(info: &str) -> ServerInfo {
    let value_of = |name| value_of(info, name).map(str::to_owned);
    let valkey = value_of("valkey_version").map(|version| format!("valkey {version}"));
    ServerInfo {
        version: valkey
            .or_else(|| value_of("redis_version").map(|version| format!("redis {version}"))),
        role: value_of("role"),
        maxmemory_policy: value_of("maxmemory_policy"),
        ..ServerInfo::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_that_evicts_forgets_counts() {
        let said = |policy: &str| parse(&format!("maxmemory_policy:{policy}\r\n")).forgets();
        assert_eq!(said("noeviction"), None);
        assert_eq!(parse("").forgets(), None, "an ACL hides it");
        for policy in [
            "allkeys-lru",
            "allkeys-lfu",
            "allkeys-random",
            "volatile-lru",
            "volatile-lfu",
            "volatile-random",
            "volatile-ttl",
        ] {
            let why = said(policy).expect(policy);
            assert!(why.contains(policy) && why.ends_with("Set `noeviction`"));
        }
    }

    #[test]
    fn a_server_of_another_kind_than_configured_is_told() {
        let said = |info: &str, is_cluster| check_kind(info, is_cluster).err();
        let (lone, node) = (
            "# Cluster\r\ncluster_enabled:0\r\n",
            "cluster_enabled:1\r\n",
        );
        let trouble = StoreError::Server(ServerTrouble::NoCluster);
        assert_eq!(said(lone, true), Some(trouble));
        let accepted = [(lone, false), (node, true), (node, false), ("", true)];
        for (info, is_cluster) in accepted {
            assert_eq!(said(info, is_cluster), None, "{info} {is_cluster}");
        }
        for (text, kind, hint) in [
            (
                "ERR DB index is out of range",
                "no_database",
                "number in `store.url`",
            ),
            (
                "ERR This instance has cluster support disabled",
                "no_cluster",
                "`redis://`",
            ),
            ("MOVED 7 10.0.0.1:6379", "cluster", "has no `+cluster`"),
        ] {
            let error = StoreError::Server(ServerTrouble::parse(text));
            assert_eq!(error.label(), kind);
            assert!(error.to_string().contains(hint), "{error}");
        }
    }

    #[test]
    fn a_clock_is_off_only_by_what_the_journey_cannot_explain() {
        let ahead_us = |shown_us| ahead_us(10_000_000, shown_us, 10_500_000);
        assert_eq!(ahead_us(10_200_000), 0);
        assert_eq!(ahead_us(12_000_000), 1_500_000);
        assert_eq!(ahead_us(7_000_000), -3_000_000);
    }
}
