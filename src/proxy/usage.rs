//! Reads the usage that an answer reports, while the answer passes, and settles its request at the
//! end. The client gets every byte as it came.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use flate2::write::{MultiGzDecoder, ZlibDecoder};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::route::{Route, Settle};
use crate::telemetry::metrics::usage::UsageOutcome;
use crate::upstream::body::UpstreamBody;
use crate::usage::answer::AnswerReader;
use crate::usage::format::{AnswerFormat, AnswerTable, JsonPaths, TextCount, header_tokens};
use crate::usage::framing::Framing;
use crate::usage::paths::MemberPath;
use crate::usage::settings::AbortedUsage;
use crate::usage::tokens::ReportedTokens;
use tidegate_core::exchange::access_record::AccessRecord;
use tidegate_core::exchange::admit::Admission;
use tidegate_core::exchange::limiter::Limiter;
use tidegate_core::exchange::reserve::{FinalCost, UsageReserve};
use tidegate_core::exchange::usage::UsageEnd;

/// Answers that one worker unpacks at once, at most. Each takes about 44 KiB.
const DECODERS: usize = 1000;
/// Answers that one worker reads to their end at once, although their clients have left.
const DRAINS: usize = 256;

/// The bounds of one worker for answers that decide a cost.
#[derive(Clone, Debug)]
pub(super) struct UsageBounds {
    decoders: Arc<Semaphore>,
    drains: Arc<Semaphore>,
}

impl Default for UsageBounds {
    fn default() -> UsageBounds {
        UsageBounds {
            decoders: Arc::new(Semaphore::new(DECODERS)),
            drains: Arc::new(Semaphore::new(DRAINS)),
        }
    }
}

impl UsageBounds {
    /// Waits until no answer is read to its end any more.
    pub(super) async fn finish_drains(&self) {
        // The semaphore is never closed.
        let _ = self.drains.acquire_many(DRAINS as u32).await;
    }
}

/// A request whose answer decides its cost.
#[derive(Debug)]
pub(super) struct UsageMeter {
    limiter: Arc<Limiter>,
    admission: Admission,
    route: usize,
    cost: AnswerCost,
    /// The tokens that the head of the answer says.
    head_tokens: Option<ReportedTokens>,
    answer: AnswerBytes,
    /// The place of a decoder.
    _decoder: Option<OwnedSemaphorePermit>,
    drains: Arc<Semaphore>,
    end: AnswerEnd,
    /// Bytes of the announced length that have not come yet.
    missing: Option<u64>,
}

/// How far an answer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerEnd {
    Open,
    /// The server has broken it off.
    Broken,
    Whole,
}

/// Where an answer says its cost.
#[derive(Debug)]
enum AnswerCost {
    /// `usage` of the route.
    Usage(Box<UsageReserve>),
    /// `settle = "response-json:PATH"`
    Json(Arc<AnswerTable>),
    /// `settle = "response-trailer:NAME"`, and its value.
    Trailer {
        name: HeaderName,
        units: Option<u64>,
    },
}

/// The bytes of an answer on their way to its reader.
#[expect(
    clippy::large_enum_variant,
    reason = "most answers are plain, and each is in the box of its meter"
)]
enum AnswerBytes {
    Plain(AnswerReader),
    Gzip(Box<MultiGzDecoder<AnswerSink>>),
    Deflate(Box<ZlibDecoder<AnswerSink>>),
    /// Its encoding or its type cannot be read.
    Unread(UnreadAnswer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnreadAnswer {
    Encoded,
    OtherType,
}

/// An answer whose client has left, and which is read to its end. A drop settles its request, also
/// if the worker ends before.
struct Draining {
    meter: Box<UsageMeter>,
    record: Option<Box<AccessRecord>>,
    is_drained: bool,
    _permit: OwnedSemaphorePermit,
}

impl Draining {
    async fn run(mut self, upstream: UpstreamBody, most: Duration) {
        let drained = timeout(most, self.meter.drain(upstream)).await;
        self.is_drained = drained.unwrap_or(false);
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        self.meter.settle(self.is_drained, self.record.take());
    }
}

/// Takes what a decoder writes, and keeps nothing.
struct AnswerSink(AnswerReader);

impl Write for AnswerSink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.read(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for AnswerBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            AnswerBytes::Plain(_) => "Plain",
            AnswerBytes::Gzip(_) => "Gzip",
            AnswerBytes::Deflate(_) => "Deflate",
            AnswerBytes::Unread(_) => "Unread",
        })
    }
}

impl AnswerBytes {
    /// `room` is a place for a decoder.
    fn new(table: &Arc<AnswerTable>, headers: &HeaderMap, has_room: bool) -> AnswerBytes {
        let framing = single(headers, &CONTENT_TYPE).and_then(Framing::of_content_type);
        let Some(framing) = framing else {
            return AnswerBytes::Unread(UnreadAnswer::OtherType);
        };
        let reader = AnswerReader::new(table, framing);
        match single(headers, &CONTENT_ENCODING) {
            None if !headers.contains_key(CONTENT_ENCODING) => AnswerBytes::Plain(reader),
            Some(name) if name.eq_ignore_ascii_case("identity") => AnswerBytes::Plain(reader),
            Some(name) if has_room && is_gzip(name) => {
                AnswerBytes::Gzip(Box::new(MultiGzDecoder::new(AnswerSink(reader))))
            }
            Some(name) if has_room && name.eq_ignore_ascii_case("deflate") => {
                AnswerBytes::Deflate(Box::new(ZlibDecoder::new(AnswerSink(reader))))
            }
            _ => AnswerBytes::Unread(UnreadAnswer::Encoded),
        }
    }

    fn read(&mut self, bytes: &[u8]) {
        let decoded = match self {
            AnswerBytes::Plain(reader) => {
                reader.read(bytes);
                Ok(())
            }
            AnswerBytes::Gzip(decoder) => decoder.write_all(bytes),
            AnswerBytes::Deflate(decoder) => decoder.write_all(bytes),
            AnswerBytes::Unread(_) => Ok(()),
        };
        if decoded.is_err() {
            self.give_up();
        }
    }

    /// Nothing more can be unpacked. An answer that has said its usage keeps it.
    fn give_up(&mut self) {
        if !self.reader().is_some_and(AnswerReader::is_final) {
            *self = AnswerBytes::Unread(UnreadAnswer::Encoded);
        }
    }

    /// The answer has come to its regular end.
    fn finish(&mut self) {
        let flushed = match self {
            AnswerBytes::Gzip(decoder) => decoder.try_finish(),
            AnswerBytes::Deflate(decoder) => decoder.try_finish(),
            AnswerBytes::Plain(_) | AnswerBytes::Unread(_) => Ok(()),
        };
        if flushed.is_err() {
            self.give_up();
        }
        if let Some(reader) = self.reader_mut() {
            reader.finish();
        }
    }

    fn reader_mut(&mut self) -> Option<&mut AnswerReader> {
        match self {
            AnswerBytes::Plain(reader) => Some(reader),
            AnswerBytes::Gzip(decoder) => Some(&mut decoder.get_mut().0),
            AnswerBytes::Deflate(decoder) => Some(&mut decoder.get_mut().0),
            AnswerBytes::Unread(_) => None,
        }
    }

    fn reader(&self) -> Option<&AnswerReader> {
        match self {
            AnswerBytes::Plain(reader) => Some(reader),
            AnswerBytes::Gzip(decoder) => Some(&decoder.get_ref().0),
            AnswerBytes::Deflate(decoder) => Some(&decoder.get_ref().0),
            AnswerBytes::Unread(_) => None,
        }
    }
}

/// RFC 9110 has two names for it.
fn is_gzip(coding: &str) -> bool {
    coding.eq_ignore_ascii_case("gzip") || coding.eq_ignore_ascii_case("x-gzip")
}

/// The only line of a header, if it is text.
fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next().filter(|_| lines.next().is_none())?;
    Some(line.to_str().ok()?.trim())
}

impl UsageMeter {
    /// `None` if the body of this response decides nothing. `headers` are those of the server.
    pub(super) fn new(
        limiter: Arc<Limiter>,
        bounds: &UsageBounds,
        route: &Route,
        mut admission: Admission,
        headers: &HeaderMap,
    ) -> Option<UsageMeter> {
        let reserve = admission.reserve.take();
        let cost = match (reserve, &route.settle) {
            (Some(reserve), _) => AnswerCost::Usage(reserve),
            (None, Some(Settle::Json(path))) => AnswerCost::Json(path_table(path)),
            (None, Some(Settle::Trailer(name))) => AnswerCost::Trailer {
                name: name.clone(),
                units: None,
            },
            (None, Some(Settle::Header(_)) | None) => return None,
        };
        let is_encoded = headers.contains_key(CONTENT_ENCODING);
        let decoder = is_encoded.then(|| Arc::clone(&bounds.decoders).try_acquire_owned().ok());
        let decoder = decoder.flatten();
        let answer = match &cost {
            AnswerCost::Usage(reserve) => {
                AnswerBytes::new(&reserve.settings.table, headers, decoder.is_some())
            }
            AnswerCost::Json(table) => AnswerBytes::new(table, headers, decoder.is_some()),
            AnswerCost::Trailer { .. } => AnswerBytes::Unread(UnreadAnswer::OtherType),
        };
        let head_tokens = match &cost {
            AnswerCost::Usage(reserve) => head_tokens(reserve, headers),
            AnswerCost::Json(_) | AnswerCost::Trailer { .. } => None,
        };
        Some(UsageMeter {
            limiter,
            admission,
            route: route.number,
            cost,
            head_tokens,
            answer,
            _decoder: decoder,
            drains: Arc::clone(&bounds.drains),
            end: AnswerEnd::Open,
            missing: single(headers, &CONTENT_LENGTH).and_then(|text| text.parse().ok()),
        })
    }

    /// Reads the next piece of the answer.
    pub(super) fn read(&mut self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            self.missing = self
                .missing
                .map(|bytes| bytes.saturating_sub(data.len() as u64));
            self.answer.read(data);
        }
        if let (AnswerCost::Trailer { name, units }, Some(trailers)) =
            (&mut self.cost, frame.trailers_ref())
        {
            *units = single(trailers, name).and_then(|text| text.parse().ok());
        }
    }

    /// The server has broken the answer off.
    pub(super) fn note_break(&mut self) {
        self.end = AnswerEnd::Broken;
    }

    /// Settles the request, and writes its record. `upstream` has the rest of the answer.
    pub(super) fn end(
        mut self: Box<Self>,
        is_whole: bool,
        upstream: Option<UpstreamBody>,
        record: Option<Box<AccessRecord>>,
    ) {
        // The end of an HTTP/2 stream may come in a frame of its own. No client waits for it.
        if is_whole || self.missing == Some(0) {
            self.finish();
        }
        if let (Some(time), Some(upstream)) = (self.drain_time(), upstream)
            && let Ok(permit) = Arc::clone(&self.drains).try_acquire_owned()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let draining = Draining {
                meter: self,
                record,
                is_drained: false,
                _permit: permit,
            };
            runtime.spawn(draining.run(upstream, time));
            return;
        }
        self.settle(false, record);
    }

    /// Reads an answer to its end. Returns whether it has come.
    async fn drain(&mut self, mut upstream: UpstreamBody) -> bool {
        while let Some(frame) = upstream.frame().await {
            match frame {
                Ok(frame) => self.read(&frame),
                Err(_) => {
                    self.note_break();
                    return false;
                }
            }
        }
        self.finish();
        true
    }

    fn finish(&mut self) {
        self.end = AnswerEnd::Whole;
        self.answer.finish();
    }

    /// How long the rest of an answer may be read, if its client has left.
    fn drain_time(&self) -> Option<Duration> {
        let AnswerCost::Usage(reserve) = &self.cost else {
            return None;
        };
        let is_final = self.answer.reader().is_some_and(AnswerReader::is_final);
        let is_known = is_final || self.head_tokens.is_some();
        match reserve.settings.abort {
            AbortedUsage::Drain(time) if self.end == AnswerEnd::Open && !is_known => Some(time),
            _ => None,
        }
    }

    fn settle(&self, is_drained: bool, record: Option<Box<AccessRecord>>) {
        let mut record = record;
        self.adjust(is_drained, record.as_deref_mut());
        if let Some(mut record) = record {
            record.write();
        }
    }

    fn adjust(&self, is_drained: bool, record: Option<&mut AccessRecord>) {
        let (limiter, admission) = (&self.limiter, &self.admission);
        let reader = self.answer.reader();
        let reported = reader.and_then(AnswerReader::tokens);
        let units = match &self.cost {
            AnswerCost::Trailer { units, .. } => *units,
            AnswerCost::Json(_) => {
                let reported = reported.filter(|_| self.end == AnswerEnd::Whole);
                reported.and_then(|tokens| tokens.output)
            }
            AnswerCost::Usage(reserve) => {
                let is_final = reader.is_some_and(AnswerReader::is_final);
                let is_cut = reader.is_some_and(AnswerReader::is_cut);
                let is_whole = self.end == AnswerEnd::Whole && !is_cut;
                let reported = reported.filter(|_| is_whole || is_final);
                let reported = self.head_tokens.or(reported);
                let end = UsageEnd {
                    reserve,
                    outcome: self.outcome(reported.is_some(), is_drained),
                    reported,
                    reported_so_far: reader.and_then(AnswerReader::tokens_so_far),
                    text_bytes: reader.map(AnswerReader::text_bytes),
                    model: reader.and_then(AnswerReader::model),
                    route: self.route,
                };
                return limiter.settle_usage(admission, end, record);
            }
        };
        if let Some(units) = units {
            limiter.settle(admission, FinalCost::Units(units), record);
        }
    }

    fn outcome(&self, is_known: bool, is_drained: bool) -> UsageOutcome {
        match (is_known, self.end) {
            (true, _) if is_drained => UsageOutcome::Drained,
            (true, _) => UsageOutcome::Exact,
            (false, AnswerEnd::Open) => UsageOutcome::Aborted,
            (false, _) => match self.answer {
                AnswerBytes::Unread(UnreadAnswer::Encoded) => UsageOutcome::Encoded,
                _ => UsageOutcome::Missing,
            },
        }
    }
}

/// The tokens in the head of an answer. Only Bedrock has them there.
fn head_tokens(reserve: &UsageReserve, headers: &HeaderMap) -> Option<ReportedTokens> {
    let is_bedrock = reserve.settings.format == Some(AnswerFormat::Bedrock);
    let read = |name: &str| single(headers, &HeaderName::try_from(name).ok()?);
    is_bedrock.then(|| header_tokens(read)).flatten()
}

/// The table of a path that has the cost.
fn path_table(path: &MemberPath) -> Arc<AnswerTable> {
    let paths = JsonPaths {
        total: Some(path.clone()),
        ..JsonPaths::default()
    };
    Arc::new(AnswerTable::of_paths(&paths, TextCount::Ignored))
}
