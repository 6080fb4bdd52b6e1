//! Reads the beginning of a request's body before the decision: keys count by its members, and
//! budgets by what it asks of a model. What was read is sent on like the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use http::Request;
use http::header::CONTENT_LENGTH;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::{Proxy, ProxyExchange};
use crate::body::{BodyError, RequestBody};
use crate::route::Route;
use crate::upstream::UpstreamError;
use crate::usage::request::{RequestReader, RequestTable};
use tidegate_core::exchange::rejection::{NoAnswer, Rejection};
use tidegate_core::exchange::reserve::ReadBody;
use tidegate_core::exchange::uploaded::UploadedBytes;
use tidegate_core::limit::key::BodyFacts;

/// The bytes of bodies that the process holds before their decisions. All workers share them, and
/// they outlive a configuration.
#[derive(Clone, Debug, Default)]
pub struct BodyMemory(Arc<AtomicUsize>);

/// A part of the memory. A drop returns it.
#[derive(Debug)]
pub(super) struct HeldMemory {
    memory: BodyMemory,
    bytes: usize,
}

impl BodyMemory {
    /// Takes bytes, if no more than `most` are held then.
    fn take(&self, bytes: usize, most: usize) -> Option<HeldMemory> {
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        let taken = HeldMemory {
            memory: self.clone(),
            bytes,
        };
        (before + bytes <= most).then_some(taken)
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Proxy {
    /// Reads the body as far as the decision needs it. Returns the memory that it takes. A request
    /// that is denied anyway is refused before.
    pub(super) async fn read_body<'c>(
        &'c self,
        x: &mut ProxyExchange<'c>,
    ) -> Result<Option<HeldMemory>, Rejection> {
        let Some(route) = self.stages.route_that_reads(x) else {
            return Ok(None);
        };
        let Some(table) = &route.reads_body else {
            return Ok(None);
        };
        let refused = |x: &mut ProxyExchange<'c>, why| self.stages.refuse_at(x, route, why);
        bound_body(x.request, route.body_limit).map_err(|why| refused(x, why))?;
        if !x.request.body().is_end_stream() {
            self.stages.deny_before_body(x)?;
        }
        // Many servers ignore `Content-Encoding` of a request, so it hides no member here. Bytes
        // that are compressed are no JSON, and have no members.
        let most = route.body_read;
        let announced = x.request.body().size_hint().exact();
        let held = match announced.map(|length| usize::try_from(length).unwrap_or(usize::MAX)) {
            Some(0) => None,
            length => {
                let bytes = length.unwrap_or(most).min(most);
                let held = self.body_memory.take(bytes, self.max_body_memory);
                Some(held.ok_or_else(|| refused(x, Rejection::BodyMemory))?)
            }
        };
        let until = match announced {
            // The length of the body decides its cost.
            None if route.usage.is_some() => ReadUntil::End,
            _ => ReadUntil::Members,
        };
        let left = x.record.time_left(route.timeout);
        let read = read(x.request.body_mut(), table, until, most);
        let read = within(left, read).await;
        let read = read.map_err(|error| refused(x, unreadable(error)))?;
        let longest = || route.body_limit.unwrap_or(u64::from(u32::MAX));
        let uploaded = (announced.is_none() && !read.is_whole).then(|| {
            let uploaded = UploadedBytes::default();
            uploaded.add(read.bytes);
            x.request.body_mut().count_into(uploaded.clone());
            uploaded
        });
        x.body = Some(Box::new(ReadBody {
            facts: read.facts,
            length: match announced {
                Some(length) => length,
                None if read.is_whole => read.bytes,
                None => longest(),
            },
            uploaded,
        }));
        Ok(held)
    }
}

/// Refuses a body whose announced length is too long, and bounds any other.
pub(super) fn bound_body(
    request: &mut Request<RequestBody>,
    most: Option<u64>,
) -> Result<(), Rejection> {
    let Some(most) = most else {
        return Ok(());
    };
    if request.body().size_hint().lower() > most {
        return Err(Rejection::BodyTooLarge);
    }
    request.body_mut().limit(most);
    Ok(())
}

/// Reads the body to its end, and leaves it out of the request. The upstream is asked after it, so
/// that a body that breaks, is too long or too slow is refused as elsewhere.
pub(super) async fn drop_body(x: &mut ProxyExchange<'_>, route: &Route) -> Result<(), Rejection> {
    let left = x.record.time_left(route.timeout);
    let mut body = std::mem::take(x.request.body_mut());
    let reading = async {
        while let Some(frame) = body.frame().await {
            frame?;
        }
        Ok(())
    };
    let read = within(left, reading).await;
    x.request.headers_mut().remove(CONTENT_LENGTH);
    read.map_err(unreadable)
}

fn unreadable(error: BodyError) -> Rejection {
    Rejection::Upstream(NoAnswer::from(UpstreamError::Request(error)))
}

/// A client that is too slow gets 408, since no server was asked.
async fn within<T>(
    left: Option<Duration>,
    reading: impl Future<Output = Result<T, BodyError>>,
) -> Result<T, BodyError> {
    match left {
        None => reading.await,
        Some(left) => timeout(left, reading)
            .await
            .unwrap_or(Err(BodyError::TimedOut)),
    }
}

struct BodyStart {
    facts: BodyFacts,
    bytes: u64,
    /// Whether the body has ended.
    is_whole: bool,
}

/// How far a body is read, if it is short enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadUntil {
    /// Until all members are known.
    Members,
    End,
}

/// Reads at most about `most` bytes, and puts them back.
async fn read(
    body: &mut RequestBody,
    table: &Arc<RequestTable>,
    until: ReadUntil,
    most: usize,
) -> Result<BodyStart, BodyError> {
    let mut reader = RequestReader::new(table);
    let (mut start, mut trailers) = (BytesMut::new(), None);
    let mut bytes = 0;
    while bytes < most && (until == ReadUntil::End || !reader.is_done()) {
        let Some(frame) = body.frame().await else {
            break;
        };
        match frame?.into_data() {
            Ok(data) => {
                reader.read(&data[..data.len().min(most - bytes)]);
                bytes += data.len();
                // One frame for all, since a client may send a byte at a time.
                match start.is_empty() {
                    true => start = data.into(),
                    false => start.extend_from_slice(&data),
                }
            }
            Err(frame) => trailers = Some(frame),
        }
    }
    let is_whole = body.is_end_stream();
    let start = (!start.is_empty()).then(|| Frame::data(start.freeze()));
    body.put_back(start.into_iter().chain(trailers));
    Ok(BodyStart {
        facts: BodyFacts {
            table: Arc::clone(table),
            members: reader.finish(),
        },
        bytes: bytes as u64,
        is_whole,
    })
}
