//! What a client reads of its limits: `X-RateLimit-*`, `RateLimit`, `RateLimit-Policy` and
//! `Retry-After`, all from the one decision that was made.
//!
//! Pure: numbers in, header values out. Every number is an integer and every wait is rounded up, so
//! that a client that obeys is not denied again. The IETF pair follows
//! draft-ietf-httpapi-ratelimit-headers-10, which may still rename its parameters: only this file
//! spells them.

mod status;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_EXPOSE_HEADERS, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};

use super::{Charge, CheckResult, Decided, Decision, LimitCheck, Retry, Verdict};
use status::LimitStatus;
pub use status::{RateLimitStatus, seconds_up};

/// `x-ratelimit-limit`: the tightest limit's units.
pub const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// `x-ratelimit-remaining`: its units that are left.
pub const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// `x-ratelimit-reset`: when it is whole again.
pub const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// `ratelimit`: what is left of every limit.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// `ratelimit-policy`: what every limit is.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// What a browser's script may read on a CORS response.
pub const EXPOSED: &str = "RateLimit, RateLimit-Policy, Retry-After, \
     X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset";

/// `[headers]`: which rate-limit headers a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderSettings {
    /// Send `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
    pub x_ratelimit: bool,
    /// Send `RateLimit` and `RateLimit-Policy`.
    pub ietf: bool,
    /// What `X-RateLimit-Reset` counts.
    pub reset: ResetForm,
    /// Extend `Access-Control-Expose-Headers` on CORS responses.
    pub cors_expose: bool,
    /// Keep the upstream's own rate-limit headers and merge ours in.
    pub pass_upstream: bool,
}

/// What `X-RateLimit-Reset` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetForm {
    /// The Unix second at which the budget is whole again.
    Epoch,
    /// Seconds until then.
    Delta,
}

/// Writes the rate-limit headers of a decision. What the upstream said under the same names is
/// replaced, or merged where the settings keep it.
pub fn write(
    headers: &mut HeaderMap,
    settings: HeaderSettings,
    charge: &Charge,
    status: &RateLimitStatus,
) {
    let room = Vec::with_capacity(TEXT_BYTES);
    write_behind(headers, settings, charge, status, room);
}

/// The same behind `room`, which is returned with all that was written. So a body and these headers
/// take one place on the heap.
pub fn write_behind(
    headers: &mut HeaderMap,
    settings: HeaderSettings,
    charge: &Charge,
    status: &RateLimitStatus,
    room: Vec<u8>,
) -> Bytes {
    let Some((item, state)) = status.tightest(charge) else {
        return room.into();
    };
    let keep = settings.pass_upstream;
    let mut texts = ValueTexts(room);
    let wait = status.wait.map(|seconds| texts.number(seconds));
    let ours = settings.x_ratelimit && !upstream_is_tighter(headers, settings, state);
    let trio = ours.then(|| (texts.number(state.remaining), texts.number(status.reset)));
    let pair = settings
        .ietf
        .then(|| (texts.policies(charge), texts.states(charge, status)));
    let texts = Bytes::from(texts.0);
    if let Some(wait) = wait {
        headers.insert(RETRY_AFTER, wait.value(&texts));
    }
    if let Some((remaining, reset)) = trio {
        headers.insert(X_LIMIT, item.window.wording.units.clone());
        headers.insert(X_REMAINING, remaining.value(&texts));
        headers.insert(X_RESET, reset.value(&texts));
    } else if !settings.x_ratelimit && !keep {
        for name in [X_LIMIT, X_REMAINING, X_RESET] {
            headers.remove(name);
        }
    }
    if let Some((policy, state)) = pair {
        list(headers, RATELIMIT_POLICY, policy.value(&texts), keep);
        list(headers, RATELIMIT, state.value(&texts), keep);
    } else if !keep {
        for name in [RATELIMIT_POLICY, RATELIMIT] {
            headers.remove(name);
        }
    }
    texts
}

/// Seconds as a header's value.
pub fn seconds_value(seconds: u64) -> HeaderValue {
    small(seconds).unwrap_or_else(|| HeaderValue::from(seconds))
}

/// Numbers that are told most take no place on the heap.
fn small(number: u64) -> Option<HeaderValue> {
    const PAIRS: &str = "0001020304050607080910111213141516171819\
        2021222324252627282930313233343536373839\
        4041424344454647484950515253545556575859\
        6061626364656667686970717273747576777879\
        8081828384858687888990919293949596979899";
    let end = usize::try_from(number).ok()?.checked_mul(2)? + 2;
    let digits = PAIRS.get(end - 1 - usize::from(number > 9)..end)?;
    Some(HeaderValue::from_static(digits))
}

/// Bytes that the values of one limit take, with some to spare.
const TEXT_BYTES: usize = 128;

/// The values that are made for one response: slices of one allocation, whatever their number.
struct ValueTexts(Vec<u8>);

/// One of them.
enum ValueText {
    Ready(HeaderValue),
    /// From here to there in what was written.
    Written(usize, usize),
}

impl ValueTexts {
    fn number(&mut self, number: u64) -> ValueText {
        small(number).map_or_else(
            || {
                let start = self.0.len();
                write_number(&mut self.0, number);
                ValueText::Written(start, self.0.len())
            },
            ValueText::Ready,
        )
    }

    fn policies(&mut self, charge: &Charge) -> ValueText {
        if let [only] = charge.as_slice() {
            return ValueText::Ready(only.window.wording.policy.clone());
        }
        let start = self.0.len();
        for item in charge {
            write_policy(&mut self.0, item);
        }
        self.list_from(start)
    }

    fn states(&mut self, charge: &Charge, status: &RateLimitStatus) -> ValueText {
        let start = self.0.len();
        write_states(&mut self.0, charge, status);
        self.list_from(start)
    }

    /// Of elements that each end with a separator; the last one's is left out.
    fn list_from(&self, start: usize) -> ValueText {
        ValueText::Written(start, self.0.len().saturating_sub(2).max(start))
    }
}

impl ValueText {
    fn value(self, texts: &Bytes) -> HeaderValue {
        match self {
            ValueText::Ready(value) => value,
            ValueText::Written(start, end) => {
                HeaderValue::from_maybe_shared(texts.slice(start..end))
                    .expect("digits, names and separators are visible ASCII")
            }
        }
    }
}

/// Our list behind the upstream's, or instead of it.
fn list(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue, keep: bool) {
    if keep {
        headers.append(name, value);
    } else {
        headers.insert(name, value);
    }
}

/// Adds the rate-limit headers to what a browser's script may read, if this is a CORS response.
pub fn expose_to_scripts(headers: &mut HeaderMap) {
    if headers.contains_key(http::header::ACCESS_CONTROL_ALLOW_ORIGIN) {
        // A list header: a second line is the same as a longer first one.
        headers.append(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static(EXPOSED),
        );
    }
}

/// Whether the upstream's own trio is kept because it leaves the client less.
fn upstream_is_tighter(headers: &HeaderMap, settings: HeaderSettings, state: LimitStatus) -> bool {
    if !settings.pass_upstream {
        return false;
    }
    let theirs = headers
        .get(X_REMAINING)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    theirs.is_some_and(|remaining: u64| remaining < state.remaining)
}

/// `"login";q=5;w=60, `
fn write_policy(room: &mut Vec<u8>, item: &LimitCheck) {
    room.extend_from_slice(item.window.wording.policy.as_bytes());
    room.extend_from_slice(b", ");
}

fn write_states(room: &mut Vec<u8>, charge: &Charge, status: &RateLimitStatus) {
    for (item, state) in status.states(charge) {
        if state.known {
            write_state(room, item, state);
        }
    }
}

/// `"login";r=0;t=11, `; no `t` where nothing is counted, since no more can become free.
fn write_state(room: &mut Vec<u8>, item: &LimitCheck, state: LimitStatus) {
    // Of `[a-z0-9_/-]`: nothing in a policy's name needs an escape.
    room.push(b'"');
    room.extend_from_slice(item.window.policy.as_bytes());
    room.extend_from_slice(b"\";r=");
    write_number(room, state.remaining);
    if state.next > 0 {
        room.extend_from_slice(b";t=");
        write_number(room, state.next);
    }
    room.extend_from_slice(b", ");
}

fn write_number(room: &mut Vec<u8>, number: u64) {
    room.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use smallvec::smallvec;

    use super::*;
    use crate::limit::{Algorithm, Key, KeyHash, Limit, Rule};

    #[test]
    fn every_number_of_seconds_is_written_as_it_is() {
        for seconds in (0..=200).chain([u64::MAX]) {
            assert_eq!(seconds_value(seconds), seconds.to_string());
        }
    }

    pub(super) const ALL: HeaderSettings = HeaderSettings {
        x_ratelimit: true,
        ietf: true,
        reset: ResetForm::Epoch,
        cors_expose: true,
        pass_upstream: false,
    };

    pub(super) fn item(name: &str, units: u64, window_us: u64) -> LimitCheck {
        let rule = Rule {
            algorithm: Algorithm::Log,
            units,
            window_us,
            precision_us: 1,
        };
        let limit = Limit::new(name, &[rule], Key::parse(["ip"]).unwrap());
        LimitCheck {
            window: Arc::clone(&limit.windows[0]),
            limit: Arc::new(limit),
            tag: KeyHash([0; 16]),
            cost: 1,
            asker: None,
        }
    }

    pub(super) fn verdict(remaining: u64, retry: Retry, next_us: u64) -> Verdict {
        Verdict {
            used: 0,
            remaining,
            retry,
            reset_us: 59_000_001,
            next_us,
            stamp: 0,
        }
    }

    pub(super) fn denied() -> (Charge, Decision) {
        let charge = smallvec![
            item("login", 5, 60_000_000),
            item("per_client", 600, 60_000_000)
        ];
        let verdicts = smallvec![
            verdict(0, Retry::After(10_000_001), 10_000_001),
            verdict(563, Retry::Now, 3_500_000)
        ];
        (
            charge,
            Decision {
                allowed: false,
                at_us: 0,
                verdicts,
            },
        )
    }

    fn say(
        headers: &mut HeaderMap,
        settings: HeaderSettings,
        (charge, decision): (&Charge, &Decision),
        unix_us: u64,
    ) {
        let status = RateLimitStatus::of(Decided { charge, decision }, settings.reset, unix_us);
        write(headers, settings, charge, &status);
    }

    fn get(headers: &HeaderMap, name: HeaderName) -> Vec<&str> {
        headers
            .get_all(name)
            .iter()
            .map(|value| value.to_str().unwrap())
            .collect()
    }

    #[test]
    fn the_denying_limit_is_shown_and_every_wait_is_rounded_up() {
        let (charge, decision) = denied();
        let mut headers = HeaderMap::new();
        say(
            &mut headers,
            ALL,
            (&charge, &decision),
            1_000_000_000_000_000,
        );
        assert_eq!(get(&headers, X_LIMIT), ["5"]);
        assert_eq!(get(&headers, X_REMAINING), ["0"]);
        assert_eq!(get(&headers, X_RESET), ["1000000060"]);
        assert_eq!(
            get(&headers, RATELIMIT_POLICY),
            [r#""login";q=5;w=60, "per_client";q=600;w=60"#]
        );
        assert_eq!(
            get(&headers, RATELIMIT),
            [r#""login";r=0;t=11, "per_client";r=563;t=4"#]
        );
    }

    #[test]
    fn among_limits_that_allow_the_smallest_share_is_shown() {
        let charge: Charge = smallvec![item("wide", 1000, 1), item("narrow", 10, 1)];
        let verdicts = smallvec![verdict(200, Retry::Now, 1), verdict(1, Retry::Now, 1)];
        let mut headers = HeaderMap::new();
        let decision = Decision {
            allowed: true,
            at_us: 0,
            verdicts,
        };
        say(&mut headers, ALL, (&charge, &decision), 0);
        assert_eq!(get(&headers, X_LIMIT), ["10"]);
    }

    #[test]
    fn the_upstreams_headers_are_replaced_or_merged() {
        let (charge, decision) = denied();
        let theirs = || {
            let mut headers = HeaderMap::new();
            headers.insert(RATELIMIT, HeaderValue::from_static(r#""theirs";r=1"#));
            headers.insert(X_LIMIT, HeaderValue::from_static("9"));
            headers.insert(X_REMAINING, HeaderValue::from_static("7"));
            headers
        };
        let mut replaced = theirs();
        say(&mut replaced, ALL, (&charge, &decision), 0);
        assert_eq!(get(&replaced, RATELIMIT).len(), 1);
        let mut merged = theirs();
        let keep = HeaderSettings {
            pass_upstream: true,
            ..ALL
        };
        say(&mut merged, keep, (&charge, &decision), 0);
        assert_eq!(get(&merged, RATELIMIT).len(), 2);
        assert_eq!(get(&merged, X_LIMIT), ["5"], "ours leaves the client less");

        let allowed = Decision {
            allowed: true,
            at_us: 0,
            verdicts: smallvec![verdict(8, Retry::Now, 1), verdict(600, Retry::Now, 1)],
        };
        let mut merged = theirs();
        say(&mut merged, keep, (&charge, &allowed), 0);
        assert_eq!(
            get(&merged, X_LIMIT),
            ["9"],
            "theirs leaves the client less"
        );
    }

    #[test]
    fn only_cors_responses_expose_headers() {
        let mut headers = HeaderMap::new();
        expose_to_scripts(&mut headers);
        assert!(headers.is_empty());
        headers.insert("access-control-allow-origin", HeaderValue::from_static("*"));
        expose_to_scripts(&mut headers);
        assert!(headers.contains_key(ACCESS_CONTROL_EXPOSE_HEADERS));
    }
}
