//! The trace of a request: W3C Trace Context, read as strictly as specified, and the rule that
//! decides which traces are recorded.
//!
//! Every client can send a `traceparent`. A client that the operator does not trust must not cause
//! recording, and must not write into a foreign trace.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// The header that names the trace and the parent span of a request.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The header with the data of tracing systems.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// `00-` TRACE `-` SPAN `-` FLAGS
const LENGTH: usize = 55;
/// The most bytes of `tracestate` that are passed on. The standard requires as many.
const MAX_STATE: usize = 512;
const MAX_MEMBERS: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(pub [u8; 16]);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    pub trace: TraceId,
    pub span: SpanId,
    /// Whether the trace is recorded.
    pub sampled: bool,
}

/// The peers whose traces are continued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Continue {
    #[default]
    Trusted,
    All,
    Never,
}

/// `[tracing]`: which traces are recorded, and which are continued.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingRules {
    /// The share of recorded traces, 0 to 1.
    pub sample: f64,
    pub continues: Continue,
    /// Whether a trusted peer decides about the recording of its traces.
    pub obeys: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    pub own: TraceContext,
    /// The sender's span in the same trace.
    pub parent: Option<SpanId>,
    /// The sender's span in a trace that is not continued.
    pub left: Option<TraceContext>,
}

impl TraceId {
    /// A new id that clients cannot predict.
    pub fn made() -> TraceId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&random().to_be_bytes());
        bytes[8..].copy_from_slice(&random().to_be_bytes());
        TraceId(bytes)
    }

    /// The bits that decide about recording, as in other tracing systems.
    fn lot(self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1
    }
}

impl SpanId {
    pub fn made() -> SpanId {
        SpanId(random().to_be_bytes())
    }
}

/// A number that is unique in this process and never 0. Each worker has its own counter and secret.
fn random() -> u64 {
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
        static SECRET: RandomState = RandomState::new();
    }
    let number = NEXT.replace(NEXT.get().wrapping_add(1));
    SECRET.with(|secret| secret.hash_one(number)).max(1)
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = [0; 32];
        write_hex(&self.0, &mut digits);
        f.write_str(str::from_utf8(&digits).unwrap_or_default())
    }
}

const PAIRS: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    pairs
};

fn write_hex(bytes: &[u8], digits: &mut [u8]) {
    let (places, _) = digits.as_chunks_mut();
    for (byte, place) in bytes.iter().zip(places) {
        *place = PAIRS[usize::from(*byte)];
    }
}

/// Reads lower-case digits, as the specification demands.
fn read_hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4) | digit(pair[1])?;
    }
    Some(bytes)
}

impl TraceContext {
    pub fn from_headers(headers: &HeaderMap) -> Option<TraceContext> {
        let mut lines = headers.get_all(TRACEPARENT).iter();
        let line = lines.next()?;
        match lines.next() {
            None => TraceContext::parse(line.as_bytes()),
            Some(_) => None,
        }
    }

    /// Reads `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`. Later versions may have
    /// more text, which is ignored.
    pub fn parse(text: &[u8]) -> Option<TraceContext> {
        let (head, rest) = text.split_at_checked(LENGTH)?;
        let [version] = read_hex(&head[..2])?;
        match version {
            0xff => return None,
            0 if !rest.is_empty() => return None,
            _ if !rest.is_empty() && rest[0] != b'-' => return None,
            _ => {}
        }
        if head[2] != b'-' || head[35] != b'-' || head[52] != b'-' {
            return None;
        }
        let (trace, span) = (read_hex(&head[3..35])?, read_hex(&head[36..52])?);
        let [flags] = read_hex(&head[53..])?;
        let nothing = trace == [0; 16] || span == [0; 8];
        (!nothing).then_some(TraceContext {
            trace: TraceId(trace),
            span: SpanId(span),
            sampled: flags & 1 == 1,
        })
    }

    pub fn with(self, span: SpanId) -> TraceContext {
        TraceContext { span, ..self }
    }

    pub fn value(&self) -> HeaderValue {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&self.trace.0, &mut text[3..35]);
        write_hex(&self.span.0, &mut text[36..52]);
        text[54] = b'0' + u8::from(self.sampled);
        // Digits and dashes are a valid header value.
        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static(""))
    }
}

impl SamplingRules {
    /// Begins the span of a request with these headers.
    pub fn begin(&self, headers: &HeaderMap, trusted: bool) -> Begun {
        let sender = TraceContext::from_headers(headers);
        let continues = match self.continues {
            Continue::Trusted => trusted,
            Continue::All => true,
            Continue::Never => false,
        };
        let parent = sender.filter(|_| continues);
        let trace = parent.map_or_else(TraceId::made, |parent| parent.trace);
        let sampled = match parent {
            Some(parent) if trusted && self.obeys => parent.sampled,
            // The client chooses the trace id, so the id must not decide about recording.
            Some(_) if !trusted => self.samples(TraceId::made()),
            _ => self.samples(trace),
        };
        Begun {
            own: TraceContext {
                trace,
                span: SpanId::made(),
                sampled,
            },
            parent: parent.map(|parent| parent.span),
            left: sender.filter(|_| !continues),
        }
    }

    /// Whether a trace is recorded. Equal shares give equal answers in all processes.
    fn samples(&self, trace: TraceId) -> bool {
        const ALL: u64 = 1 << 63;
        let most = (self.sample * ALL as f64) as u64;
        trace.lot() < most.min(ALL)
    }
}

/// Whether the `tracestate` of these headers is valid and short enough to be passed on.
pub fn is_state_fit(headers: &HeaderMap) -> bool {
    let (mut bytes, mut members) = (0, 0);
    for line in headers.get_all(TRACESTATE) {
        bytes += line.len() + 1;
        for member in line.as_bytes().split(|byte| *byte == b',') {
            let member = member.trim_ascii();
            members += usize::from(!member.is_empty());
            if !member.is_empty() && !is_member(member) {
                return false;
            }
        }
    }
    bytes <= MAX_STATE + 1 && members <= MAX_MEMBERS
}

/// `key=value` or `key@system=value`
fn is_member(member: &[u8]) -> bool {
    let Some(at) = member.iter().position(|byte| *byte == b'=') else {
        return false;
    };
    let (key, value) = (&member[..at], &member[at + 1..]);
    let in_key =
        |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(byte);
    let in_value = |byte: &u8| (b' '..=b'~').contains(byte) && *byte != b'=';
    (1..=256).contains(&key.len())
        && (1..=256).contains(&value.len())
        && key.iter().all(in_key)
        && value.iter().all(in_value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(lines: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn rules(sample: f64, continues: Continue, obeys: bool) -> SamplingRules {
        SamplingRules {
            sample,
            continues,
            obeys,
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let context = TraceContext::parse(PARENT.as_bytes()).unwrap();
        assert!(context.sampled);
        assert_eq!(context.value(), PARENT);
        assert_eq!(context.trace.to_string(), &PARENT[3..35]);
        let not = TraceContext {
            sampled: false,
            ..context
        };
        assert_eq!(TraceContext::parse(not.value().as_bytes()), Some(not));
    }

    #[test]
    fn what_is_malformed_is_nothing() {
        let ids = &PARENT[2..53];
        let wrong = [
            String::new(),
            PARENT[..54].to_owned(),
            PARENT.to_uppercase(),
            format!("{PARENT}0"),
            format!("{PARENT}-more"),
            format!(" {PARENT}"),
            format!("ff{ids}01"),
            format!("0g{ids}01"),
            format!("00{ids}0g"),
            PARENT.replace('-', "_"),
            PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            PARENT.replace("00f067aa0ba902b7", &"0".repeat(16)),
            "0".repeat(10_000),
        ];
        for text in wrong {
            assert_eq!(TraceContext::parse(text.as_bytes()), None, "{text}");
        }
        let twice = headers(&[(TRACEPARENT, PARENT), (TRACEPARENT, PARENT)]);
        assert_eq!(TraceContext::from_headers(&twice), None);
        let later = format!("cc{ids}01");
        assert!(TraceContext::parse(later.as_bytes()).is_some());
        assert!(TraceContext::parse(format!("{later}-what-is-new").as_bytes()).is_some());
        assert!(TraceContext::parse(format!("{later}x").as_bytes()).is_none());
        // Only one flag means something here, and only that one is passed on.
        let flags = TraceContext::parse(format!("00{ids}fe").as_bytes()).unwrap();
        assert!(!flags.sampled);
        assert!(flags.value().as_bytes().ends_with(b"-00"));
    }

    #[test]
    fn only_whom_one_trusts_decides_what_is_recorded() {
        let said = headers(&[(TRACEPARENT, PARENT)]);
        let before = TraceContext::from_headers(&said).unwrap();
        let never = rules(0.0, Continue::Trusted, true);
        let stranger = never.begin(&said, false);
        assert!(!stranger.own.sampled);
        assert_ne!(stranger.own.trace, before.trace);
        assert_eq!((stranger.parent, stranger.left), (None, Some(before)));
        let trusted = never.begin(&said, true);
        assert!(trusted.own.sampled);
        assert_eq!(trusted.own.trace, before.trace);
        assert_eq!((trusted.parent, trusted.left), (Some(before.span), None));
        assert_ne!(trusted.own.span, before.span);
        let all = rules(0.0, Continue::All, true).begin(&said, false);
        assert_eq!((all.own.trace, all.own.sampled), (before.trace, false));
        let deaf = rules(0.0, Continue::Trusted, false).begin(&said, true);
        assert_eq!((deaf.own.trace, deaf.own.sampled), (before.trace, false));
        let alone = rules(1.0, Continue::Never, true).begin(&said, true);
        assert!(alone.own.sampled && alone.own.trace != before.trace);
        let unsaid = rules(1.0, Continue::All, true).begin(&HeaderMap::new(), true);
        assert!(unsaid.own.sampled && unsaid.left.is_none() && unsaid.parent.is_none());
    }

    #[test]
    fn a_stranger_who_tries_one_trace_again_and_again_has_no_more_of_them_recorded() {
        // By its number this one would be recorded at any share.
        let low = "00-4bf92f3577b34da60000000000000000-00f067aa0ba902b7-01";
        let said = headers(&[(TRACEPARENT, low)]);
        let rules = rules(0.1, Continue::All, true);
        let recorded = (0..10_000)
            .filter(|_| rules.begin(&said, false).own.sampled)
            .count();
        assert!((800..1200).contains(&recorded), "{recorded}");
    }

    #[test]
    fn a_tenth_is_a_tenth_and_the_same_tenth_everywhere() {
        let rules = rules(0.1, Continue::Trusted, false);
        let traces: Vec<TraceId> = (0..100_000).map(|_| TraceId::made()).collect();
        let recorded: Vec<bool> = traces.iter().map(|one| rules.samples(*one)).collect();
        let count = recorded.iter().filter(|one| **one).count();
        // Three hundred is more than three standard deviations.
        assert!((9_700..10_300).contains(&count), "{count}");
        let again: Vec<bool> = traces.iter().map(|one| rules.samples(*one)).collect();
        assert_eq!(recorded, again);
        // Whatever a smaller share records, a larger one does too.
        let more = SamplingRules {
            sample: 0.5,
            ..rules
        };
        assert!(
            traces
                .iter()
                .zip(recorded)
                .all(|(one, was)| !was || more.samples(*one))
        );
        let full = SamplingRules {
            sample: 1.0,
            ..rules
        };
        assert!(full.samples(TraceId([0xff; 16])));
        let none = SamplingRules {
            sample: 0.0,
            ..rules
        };
        assert!(!none.samples(TraceId([0; 16])));
    }

    #[test]
    fn a_state_is_bounded_and_well_formed() {
        let fit = |lines: &[&str]| {
            let lines: Vec<_> = lines.iter().map(|line| (TRACESTATE, *line)).collect();
            is_state_fit(&headers(&lines))
        };
        assert!(fit(&[]));
        assert!(fit(&["rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"]));
        assert!(fit(&["a=1", "b@c=2, ,d=3"]));
        assert!(fit(&[&format!("a={}", "x".repeat(200))]));
        for wrong in ["a", "=1", "A=1", "a=", "a=b=c"] {
            assert!(!fit(&[wrong]), "{wrong}");
        }
        assert!(!fit(&[&vec!["a=1"; 33].join(",")]));
        let long = format!("a={}", "x".repeat(250));
        assert!(fit(&[&long, &long]) && !fit(&[&long, &long, &long]));
    }

    proptest::proptest! {
        #[test]
        fn what_is_taken_of_a_damaged_header_means_the_same_when_it_is_written(
            changes in proptest::collection::vec((0..PARENT.len() + 2, 0_u8..255), 0..4)
        ) {
            let mut text = PARENT.as_bytes().to_vec();
            for (at, byte) in changes {
                match text.get_mut(at) {
                    Some(old) => *old = byte,
                    None => text.push(byte),
                }
            }
            if let Some(read) = TraceContext::parse(&text) {
                let written = read.value();
                proptest::prop_assert_eq!(TraceContext::parse(written.as_bytes()), Some(read));
                proptest::prop_assert_eq!(&written.as_bytes()[3..52], &text[3..52]);
            }
        }
    }

    #[test]
    fn no_two_are_alike() {
        let spans: std::collections::HashSet<_> = (0..1000).map(|_| SpanId::made()).collect();
        assert_eq!(spans.len(), 1000);
    }
}
