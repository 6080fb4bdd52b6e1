//! TLS to the store: how what went wrong there becomes an error of the store's.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::RedisError;
use tokio_rustls::TlsStream;

use crate::config::ClientTls;
use crate::store::StoreError;
use crate::tls::{TlsClient, TlsTrouble};
use crate::wire::Stream;

/// What makes connections; one for all workers, so that sessions are resumed.
pub(super) fn new(settings: &ClientTls) -> Result<TlsClient, StoreError> {
    TlsClient::new(settings, &[]).map_err(StoreError::Tls)
}

/// Shakes hands with the server at `host`.
pub(super) async fn over(
    tls: &TlsClient,
    stream: Stream,
    host: &str,
) -> Result<Stream, StoreError> {
    let secure = tls.over(stream, host).await.map_err(|error| {
        tracing::debug!(%error, host, "redis: no TLS");
        TlsTrouble::within(&error).map_or(StoreError::Lost, StoreError::Tls)
    })?;
    Ok(Stream::Tls(Box::new(TlsStream::Client(secure))))
}

/// What is wrong with TLS, if that is what became of a server's refusal after the handshake.
pub(super) fn trouble(error: &RedisError) -> Option<TlsTrouble> {
    let source = error.source()?;
    let inner = source.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    TlsTrouble::within(inner.downcast_ref::<io::Error>()?)
}
