//! The lines of one request in the logs of its route, `[access_log.NAME]`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;

use crate::clock;
use crate::route::RouteLog;
use crate::route::template::{LateText, ResponseTime, SentResponse, TemplateFacts};
use crate::telemetry::access::Buffer;
use crate::telemetry::spans::AttemptLog;

#[derive(Debug)]
pub(super) struct NamedLines {
    lines: Vec<NamedLine>,
    /// Those of the response; empty if no line tells one.
    headers: HeaderMap,
    attempts: Option<Arc<AttemptLog>>,
    /// Bytes of the response with its head; `None` if only the body's are known.
    sent: Option<u64>,
}

#[derive(Debug)]
struct NamedLine {
    log: Arc<RouteLog>,
    text: LateText,
    condition: Option<LateText>,
}

impl NamedLine {
    fn new(log: &Arc<RouteLog>, facts: &TemplateFacts<'_>) -> NamedLine {
        NamedLine {
            log: Arc::clone(log),
            text: log.line.fill(facts),
            condition: log.condition.as_ref().map(|one| one.fill(facts)),
        }
    }

    fn tells(&self, what: fn(&LateText) -> bool) -> bool {
        what(&self.text) || self.condition.as_ref().is_some_and(what)
    }
}

impl NamedLines {
    pub(super) fn new(logs: &[Arc<RouteLog>], facts: &TemplateFacts<'_>) -> Box<NamedLines> {
        let lines = logs.iter().map(|log| NamedLine::new(log, facts));
        Box::new(NamedLines {
            lines: lines.collect(),
            headers: HeaderMap::new(),
            attempts: None,
            sent: None,
        })
    }

    fn tells(&self, what: fn(&LateText) -> bool) -> bool {
        self.lines.iter().any(|line| line.tells(what))
    }

    /// Chooses the log of the attempts to send the request: the one that is kept already, or a new
    /// one if a line tells them.
    pub(super) fn keep_attempts(
        &mut self,
        kept: Option<Arc<AttemptLog>>,
    ) -> Option<Arc<AttemptLog>> {
        if !self.tells(LateText::tells_attempts) {
            return kept;
        }
        self.attempts = Some(kept.unwrap_or_else(|| AttemptLog::new(None)));
        self.attempts.clone()
    }

    /// Keeps the headers of the response if a line tells them.
    pub(super) fn note_headers(&mut self, headers: &HeaderMap) {
        if self.tells(LateText::tells_headers) {
            self.headers.clone_from(headers);
        }
    }

    pub(super) fn add_sent(&mut self, bytes: usize) {
        *self.sent.get_or_insert_default() += bytes as u64;
    }

    /// Writes the lines of a request that began at this time, and whose response has ended.
    /// `sent` has the bytes of the body alone.
    pub(super) fn write(&self, log: &Buffer, began: Instant, sent: SentResponse) {
        let sent = SentResponse {
            bytes: self.sent.unwrap_or(sent.body_bytes),
            ..sent
        };
        let time = || ResponseTime {
            took: clock::now().saturating_duration_since(began),
            unix: Duration::from_micros(clock::unix_us()),
        };
        let attempts = |variable| {
            let attempts = self.attempts.as_ref();
            attempts
                .map(|log| log.variable_text(variable))
                .unwrap_or_default()
        };
        let fill = |text: &LateText| text.fill(&self.headers, sent, time, attempts);
        for line in &self.lines {
            let holds = |condition| !matches!(&fill(condition)[..], b"" | b"0");
            if line.log.takes_status(sent.status) && line.condition.as_ref().is_none_or(holds) {
                log.record_named(line.log.place, &fill(&line.text));
            }
        }
    }
}
