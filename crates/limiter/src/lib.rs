//! Rate limits that are exact, and say honestly when to come back.
//!
//! A [`Limiter`] counts requests, logins, jobs or tokens by key. No window is ever overfull, a
//! denial costs nothing, and a call is charged to all of its limits or to none. It counts in this
//! process, or in Redis together with other programs and with tidegate, the proxy.
//!
//! ```
//! use tidegate_limiter::{Limits, Rate};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tidegate_limiter::LimitsError> {
//! let limiter = Limits::new()
//!     .limit("login", Rate::per_minute(5))
//!     .limit("burst", Rate::per_second(2))
//!     .build()?;
//!
//! let first = limiter.check("alice", 1).await;
//! assert!(first.is_allowed());
//!
//! limiter.check("alice", 1).await;
//! let third = limiter.check("alice", 1).await;
//! assert!(!third.is_allowed());
//! assert!(third.retry_after().is_some_and(|wait| wait.as_secs_f64() <= 1.0));
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `tower`, [`Limiter::layer`] puts the same limits before any HTTP service: axum,
//! tonic, hyper. With `toml`, limits come from a file. With `redis`, the counts are shared.
#![cfg_attr(all(feature = "tower", feature = "toml"), doc = include_str!("../docs/library.md"))]
#![warn(missing_docs)]

mod decision;
#[cfg(feature = "tower")]
mod layer;
mod limiter;
mod limits;

pub use decision::{Decision, LimitStatus};
#[cfg(feature = "tower")]
pub use layer::{LimitLayer, Limited, LimitedBody, PeerOf};
pub use limiter::Limiter;
pub use limits::{KeyRequest, Limits, LimitsError, OnError, Rate};
