//! The limiter: limits with their counts.

use std::fmt;
use std::sync::Arc;

use tidegate_core::clock;
use tidegate_core::config::{self, Config, StoreKind};
use tidegate_core::exchange::admit::{Admission, CheckedClient};
use tidegate_core::exchange::limiter::StoreHandle;
use tidegate_core::exchange::shadow::ShadowChecks;
use tidegate_core::exchange::stages::Stages;
use tidegate_core::limit::Limit;
use tidegate_core::limit::key::custom_hash;
use tidegate_core::telemetry::access::AccessLog;
use tokio::runtime::Handle;

use crate::{Decision, LimitsError};

/// Limits with their counts. Clones count together.
#[derive(Clone)]
pub struct Limiter {
    pub(crate) stages: Arc<Stages>,
    limits: Arc<[Arc<Limit>]>,
    warnings: Arc<str>,
}

impl Limiter {
    /// Reads limits in the format of `proxy.toml`. Error messages name the text by `name`, such as
    /// `limits.toml`. `${NAME}` in the text is read from the environment. With Redis, call this on
    /// a tokio runtime, which owns the connection.
    ///
    /// # Errors
    /// Every mistake in the text at once, or a store that cannot be used.
    #[cfg(feature = "toml")]
    pub fn from_toml(name: &str, text: &str) -> Result<Limiter, LimitsError> {
        let read = config::parse_limits(name, text, &config::environment);
        let (limits, warnings) =
            read.map_err(|mistakes| LimitsError::Invalid(mistakes.to_string()))?;
        Limiter::open(limits, warnings.to_string())
    }

    /// Reads a file as [`from_toml`](Limiter::from_toml) reads a text.
    ///
    /// # Errors
    /// The same, or a file that cannot be read.
    #[cfg(feature = "toml")]
    pub fn load(path: impl AsRef<std::path::Path>) -> Result<Limiter, LimitsError> {
        let read = config::load_limits(path.as_ref());
        let (limits, warnings) =
            read.map_err(|mistakes| LimitsError::Invalid(mistakes.to_string()))?;
        Limiter::open(limits, warnings.to_string())
    }

    pub(crate) fn open(config: Config, warnings: String) -> Result<Limiter, LimitsError> {
        if !matches!(config.store.kind, StoreKind::Memory) && Handle::try_current().is_err() {
            return Err(LimitsError::Store(std::io::Error::other(
                "limits counted in Redis need a tokio runtime",
            )));
        }
        let limits = config.limits.clone().into();
        let store = StoreHandle::new(&config)
            .map_err(LimitsError::Store)?
            .open();
        // The log takes no lines: it counts what shadow limits would have denied.
        let log = Arc::new(AccessLog::off()).buffer();
        Ok(Limiter {
            stages: Arc::new(Stages::new(config, store, &log, None)),
            limits,
            warnings: warnings.into(),
        })
    }

    /// Charges `cost` units of `key` to every limit, or to none of them. `key` names the client,
    /// the user or the job; a cost of 0 looks at what is left.
    ///
    /// It waits for Redis, if that is the store, at most as long as the store's timeout. A
    /// caller that drops the future may have been charged.
    pub async fn check(&self, key: &str, cost: u32) -> Decision {
        self.charge(&self.limits, key, cost).await
    }

    /// Charges one limit by its name. `None` if there is no such limit.
    pub async fn check_limit(&self, limit: &str, key: &str, cost: u32) -> Option<Decision> {
        let found = self.limits.iter().find(|one| *one.name == *limit)?;
        Some(self.charge(std::slice::from_ref(found), key, cost).await)
    }

    async fn charge(&self, limits: &[Arc<Limit>], key: &str, cost: u32) -> Decision {
        let limiter = &self.stages.limiter;
        let secret = limiter.hash_key();
        let mut admission = Admission::default();
        admission.generation = secret.generation;
        let tag = custom_hash(key, &secret.key);
        for limit in limits {
            let cost = u64::from(cost).saturating_mul(limit.cost);
            let client = CheckedClient { tag, anchor: None };
            admission.add(limit, &limit.windows, client, cost, None);
        }
        let shadow = std::mem::take(&mut admission.shadow);
        let shadow = ShadowChecks::start(limiter, shadow, secret.generation);
        let admitted = limiter.admit(&mut admission, clock::now()).await;
        Decision::new(admission, admitted, shadow)
    }

    /// Warnings about limits that were read from a text or a file; empty if there are none.
    pub fn warnings(&self) -> &str {
        &self.warnings
    }

    /// Waits until the first attempt to reach Redis has ended, well or badly; half a second at
    /// most. A program that serves only then does not open with decisions of its own.
    pub async fn ready(&self) {
        self.stages.limiter.ready().await;
    }

    /// Waits until Redis knows the released permits and has all corrections: units that are given
    /// back, and units that a request used beyond its charge. Takes the timeout of the store or a
    /// quarter of a second at most. Call it before the program ends; otherwise permits are free
    /// when their lease ends, and corrections may be lost.
    pub async fn flush(&self) {
        self.stages.limiter.flush().await;
    }

    /// Limits before an HTTP service. `peer` finds the address of the connection among a request's
    /// extensions; a request that has none is answered 500, since it could not be limited.
    #[cfg(feature = "tower")]
    pub fn layer(&self, peer: crate::PeerOf) -> crate::LimitLayer {
        crate::LimitLayer::new(Arc::clone(&self.stages), peer)
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.limits.iter().map(|limit| &limit.name);
        f.debug_tuple("Limiter")
            .field(&names.collect::<Vec<_>>())
            .finish()
    }
}
