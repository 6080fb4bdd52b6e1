//! What a server says of itself, asked once over a connection of its own. It blocks: for `check`,
//! never on the path of a request.

use std::sync::Arc;
use std::time::Duration;

use super::link::{Access, kind_of};
use crate::config::RedisSettings;
use crate::store::StoreError;

/// See the file's head; nothing where the server may not or will not say it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// `redis 7.2.4`, `valkey 8.0.1`.
    pub version: Option<String>,
    /// `master` or `slave`.
    pub role: Option<String>,
    /// What it forgets when memory is short.
    pub maxmemory_policy: Option<String>,
}

/// Asks a server about itself.
pub fn ask_about(server: &RedisSettings, within: Duration) -> Result<About, StoreError> {
    let access = Arc::new(Access::new(server)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|_| StoreError::Refused)?;
    let asking = async {
        let mut link = access.open().await?;
        redis::cmd("PING")
            .query_async::<()>(&mut link.connection)
            .await
            .map_err(|error| kind_of(&error))?;
        // An ACL that leaves `INFO` out is no mistake.
        let info = redis::cmd("INFO")
            .query_async::<String>(&mut link.connection)
            .await;
        Ok(read(&info.unwrap_or_default()))
    };
    runtime.block_on(async {
        let asked = tokio::time::timeout(within, asking).await;
        asked.unwrap_or(Err(StoreError::Timeout))
    })
}

fn read(info: &str) -> About {
    let of = |name: &str| {
        let mut lines = info.lines().filter_map(|line| line.trim().split_once(':'));
        let found = lines.find(|(known, _)| *known == name);
        found.map(|(_, value)| value.to_owned())
    };
    let valkey = of("valkey_version").map(|version| format!("valkey {version}"));
    About {
        version: valkey.or_else(|| of("redis_version").map(|version| format!("redis {version}"))),
        role: of("role"),
        maxmemory_policy: of("maxmemory_policy"),
    }
}
