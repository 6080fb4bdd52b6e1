//! The rate-limit headers of an answer: `X-RateLimit-*`, `RateLimit`, `RateLimit-Policy` and
//! `Retry-After`, all from one decision.
//!
//! Pure: numbers in, header values out. Every number is an integer and every wait is rounded up, so
//! that an obedient client is not denied again. The headers of the IETF follow
//! draft-ietf-httpapi-ratelimit-headers-10, or the text that its authors plan to be the next one.
//! Only this file and `headers/ietf.rs` spell them.

mod ietf;

use bytes::Bytes;
use http::StatusCode;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, HeaderMap, HeaderName, HeaderValue,
    RETRY_AFTER,
};
use smallvec::SmallVec;

pub use ietf::{IetfForm, RATELIMIT_PARTITION};

use super::{
    Calendar, CalendarSpan, Charge, CheckResult, Decided, Decision, LimitCheck, Retry, Verdict,
};

/// The units of the tightest limit.
pub const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// The units that are left of the tightest limit.
pub const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// When the tightest limit is whole again.
pub const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// What is left of every limit.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The rate of every limit.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The headers that a browser's script may read on a CORS response.
pub const EXPOSED: &str = "RateLimit, RateLimit-Policy, Retry-After, \
     X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset";
/// The same for [`IetfForm::Next`].
pub const EXPOSED_NEXT: &str = "RateLimit, RateLimit-Partition, RateLimit-Policy, Retry-After, \
     X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset";

const SECOND_US: u64 = 1_000_000;
/// Bytes that the values of one limit need, with some to spare.
const TEXT_BYTES: usize = 128;

/// `[headers]`: which rate-limit headers a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderSettings {
    pub x_ratelimit: bool,
    /// `None` sends no headers of the IETF.
    pub ietf: Option<IetfForm>,
    pub reset: ResetForm,
    /// Extend `Access-Control-Expose-Headers` on CORS responses.
    pub cors_expose: bool,
    /// Keep the upstream's own rate-limit headers and merge ours in.
    pub pass_upstream: bool,
}

impl HeaderSettings {
    /// The settings for a response with this status. A redirection has no headers of the next
    /// draft: a client could wait before it follows.
    pub fn for_status(self, status: StatusCode) -> HeaderSettings {
        let is_left_out = self.ietf == Some(IetfForm::Next) && status.is_redirection();
        HeaderSettings {
            ietf: self.ietf.filter(|_| !is_left_out),
            ..self
        }
    }
}

/// What `X-RateLimit-Reset` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetForm {
    /// The Unix second at which the budget is whole again.
    Epoch,
    /// Seconds until then.
    Delta,
}

/// The numbers of a decision that a client reads. Whole seconds, every wait rounded up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitStatus {
    /// `Retry-After`, seconds; `None` where the request is allowed, or no wait would help.
    pub wait: Option<u64>,
    /// `X-RateLimit-Reset`, in the configured form.
    pub reset: u64,
    /// The index of the check that the `X-RateLimit-*` headers are about.
    tightest: usize,
    /// The index of the check with the longest wait.
    longest: usize,
    /// When the window of `longest` ends, microseconds since the Unix epoch, if it is one of a
    /// calendar.
    ends_us: Option<u64>,
    states: SmallVec<[LimitStatus; 2]>,
}

/// The state of one limit after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStatus {
    pub remaining: u64,
    /// Seconds until there are more; 0 where none are counted.
    pub next: u64,
    pub denies: bool,
    /// False where the store did not ask this limit.
    pub known: bool,
    /// The length of a calendar window, seconds.
    window: Option<u64>,
}

impl RateLimitStatus {
    /// The status of a decision at wall-clock time `unix_us`.
    pub fn new(decided: Decided<'_>, reset: ResetForm, unix_us: u64) -> RateLimitStatus {
        let decision = decided.decision;
        let results = || decided.results().enumerate();
        let Some((tightest, first)) = results().reduce(|best, next| {
            if is_tighter(next.1, best.1) {
                next
            } else {
                best
            }
        }) else {
            return RateLimitStatus::default();
        };
        let longest = results().max_by_key(|(_, result)| match result.verdict.retry {
            Retry::Now | Retry::Booked(_) | Retry::Unasked => 0,
            Retry::Released => 1,
            Retry::After(us) => us.max(1),
            Retry::Never => u64::MAX,
        });
        let state = |result: CheckResult<'_>| LimitStatus {
            remaining: result.verdict.remaining,
            next: seconds_up(result.verdict.next_us),
            denies: result.verdict.retry.denies(),
            known: result.verdict.retry != Retry::Unasked,
            window: calendar_span(result, unix_us)
                .map(|span| seconds_up(span.end_us.saturating_sub(span.start_us))),
        };
        let end_us = |result: CheckResult<'_>| {
            let span = calendar_span(result, unix_us);
            span.map(|span| span.end_us)
        };
        let whole_us = |result: CheckResult<'_>| {
            let end_us = end_us(result);
            end_us.unwrap_or_else(|| unix_us.saturating_add(result.verdict.reset_us))
        };
        RateLimitStatus {
            wait: (!decision.allowed).then(|| retry_after(decision)).flatten(),
            reset: match reset {
                ResetForm::Epoch => seconds_up(whole_us(first)),
                ResetForm::Delta => seconds_up(first.verdict.reset_us),
            },
            tightest,
            longest: longest.map_or(0, |(place, _)| place),
            ends_us: longest.and_then(|(_, result)| end_us(result)),
            states: decided.results().map(state).collect(),
        }
    }

    /// When the limit with the longest wait is whole again, as RFC 3339 in its zone. `None` where
    /// it has no calendar, and where no wait helps.
    pub fn resets_at(&self, charge: &Charge) -> Option<String> {
        let calendar = self.longest(charge)?.window.calendar.as_ref()?;
        let end_us = self.ends_us.filter(|_| self.wait.is_some())?;
        Some(calendar.text(end_us))
    }

    /// The limit that matters most to the client: one that denies, else the one with the smallest
    /// remaining share. The longest wait decides between equals.
    pub fn tightest<'c>(&self, charge: &'c Charge) -> Option<(&'c LimitCheck, LimitStatus)> {
        Some((charge.get(self.tightest)?, *self.states.get(self.tightest)?))
    }

    pub fn longest<'c>(&self, charge: &'c Charge) -> Option<&'c LimitCheck> {
        charge.get(self.longest)
    }

    pub fn states<'c>(
        &self,
        charge: &'c Charge,
    ) -> impl Iterator<Item = (&'c LimitCheck, LimitStatus)> {
        charge.iter().zip(self.states.iter().copied())
    }
}

/// The calendar window that a result is about. Inlined: most windows slide.
#[inline]
pub fn calendar_span(result: CheckResult<'_>, unix_us: u64) -> Option<CalendarSpan> {
    let calendar = result.check.window.calendar.as_ref()?;
    Some(span_of(calendar, result, unix_us))
}

#[cold]
fn span_of(calendar: &Calendar, result: CheckResult<'_>, unix_us: u64) -> CalendarSpan {
    let (check, verdict) = (result.check, result.verdict);
    let end_us = verdict.calendar_end_us(unix_us);
    // Now by the clock of the counts: it is this process's clock that may be off.
    let store_us = end_us.saturating_sub(verdict.reset_us);
    calendar.span_ending(check.anchor, store_us, end_us)
}

pub fn seconds_up(us: u64) -> u64 {
    us.div_ceil(SECOND_US)
}

/// `Retry-After` of a denial: the longest wait of the limits that deny, at least 1 second. `None`
/// where the request's cost is above a limit, since no wait would help.
fn retry_after(decision: &Decision) -> Option<u64> {
    let mut longest = 0;
    for verdict in &decision.verdicts {
        match verdict.retry {
            Retry::Now | Retry::Booked(_) | Retry::Released | Retry::Unasked => {}
            Retry::After(us) => longest = longest.max(us),
            Retry::Never => return None,
        }
    }
    Some(seconds_up(longest).max(1))
}

fn is_tighter(left: CheckResult<'_>, right: CheckResult<'_>) -> bool {
    let denies = |result: CheckResult<'_>| result.verdict.retry.denies();
    if denies(left) != denies(right) {
        return denies(left);
    }
    // Compares remaining / units crosswise. Both stay below 2^48.
    let share = |one: CheckResult<'_>, other: CheckResult<'_>| {
        u128::from(one.verdict.remaining) * u128::from(other.check.window.rule.units)
    };
    let (left_share, right_share) = (share(left, right), share(right, left));
    if left_share != right_share {
        return left_share < right_share;
    }
    wait(left.verdict) > wait(right.verdict)
}

fn wait(verdict: &Verdict) -> u64 {
    match verdict.retry {
        Retry::Now | Retry::Booked(_) | Retry::Released | Retry::Unasked => verdict.reset_us,
        Retry::After(us) => us,
        Retry::Never => u64::MAX,
    }
}

/// Writes the rate-limit headers of a decision. They replace those of the upstream, or are merged
/// with them where the settings keep these.
pub fn write(
    headers: &mut HeaderMap,
    settings: HeaderSettings,
    charge: &Charge,
    status: &RateLimitStatus,
) {
    let buffer = Vec::with_capacity(TEXT_BYTES);
    write_appending(headers, settings, charge, status, buffer);
}

/// Does the same, and appends the values to `buffer`, which it returns. So a body and these headers
/// share one allocation.
pub fn write_appending(
    headers: &mut HeaderMap,
    settings: HeaderSettings,
    charge: &Charge,
    status: &RateLimitStatus,
    buffer: Vec<u8>,
) -> Bytes {
    let Some((item, state)) = status.tightest(charge) else {
        return buffer.into();
    };
    let keep = settings.pass_upstream;
    let mut texts = ValueTexts(buffer);
    let wait = status.wait.map(|seconds| texts.number(seconds));
    let ours = settings.x_ratelimit && !upstream_is_tighter(headers, settings, state);
    let trio = ours.then(|| (texts.number(state.remaining), texts.number(status.reset)));
    let pair = settings.ietf.map(|form| {
        (
            texts.policies(charge, status),
            texts.states(charge, status, form),
        )
    });
    let is_next = settings.ietf == Some(IetfForm::Next);
    let partitions = is_next.then(|| texts.partitions(charge));
    let texts = Bytes::from(texts.0);
    if let Some(wait) = wait {
        headers.insert(RETRY_AFTER, wait.value(&texts));
    }
    if let Some((remaining, reset)) = trio {
        headers.insert(X_LIMIT, item.window.texts.units.clone());
        headers.insert(X_REMAINING, remaining.value(&texts));
        headers.insert(X_RESET, reset.value(&texts));
    } else if !settings.x_ratelimit && !keep {
        for name in [X_LIMIT, X_REMAINING, X_RESET] {
            headers.remove(name);
        }
    }
    if let Some((policy, state)) = pair {
        put_list(headers, RATELIMIT_POLICY, policy.value(&texts), keep);
        put_list(headers, RATELIMIT, state.value(&texts), keep);
    } else if !keep {
        for name in [RATELIMIT_POLICY, RATELIMIT, RATELIMIT_PARTITION] {
            headers.remove(name);
        }
    }
    if let Some(partitions) = partitions {
        put_list(headers, RATELIMIT_PARTITION, partitions.value(&texts), keep);
    }
    texts
}

pub fn seconds_value(seconds: u64) -> HeaderValue {
    small(seconds).unwrap_or_else(|| HeaderValue::from(seconds))
}

/// The text of a small number, which needs no allocation.
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

/// The header values of one response: slices of one allocation.
struct ValueTexts(Vec<u8>);

enum ValueText {
    Ready(HeaderValue),
    /// Start and end in [`ValueTexts`].
    Written(usize, usize),
}

impl ValueTexts {
    fn number(&mut self, number: u64) -> ValueText {
        if let Some(value) = small(number) {
            return ValueText::Ready(value);
        }
        let start = self.0.len();
        write_number(&mut self.0, number);
        ValueText::Written(start, self.0.len())
    }

    fn policies(&mut self, charge: &Charge, status: &RateLimitStatus) -> ValueText {
        if let [only] = charge.as_slice()
            && only.window.calendar.is_none()
        {
            return ValueText::Ready(only.window.texts.policy.clone());
        }
        let start = self.0.len();
        for (item, state) in status.states(charge) {
            self.0
                .extend_from_slice(item.window.texts.policy.as_bytes());
            if let Some(seconds) = state.window {
                self.0.extend_from_slice(b";w=");
                write_number(&mut self.0, seconds);
            }
            self.0.extend_from_slice(b", ");
        }
        self.list_from(start)
    }

    fn states(&mut self, charge: &Charge, status: &RateLimitStatus, form: IetfForm) -> ValueText {
        let start = self.0.len();
        for (item, state) in status.states(charge) {
            if state.known {
                ietf::write_state(&mut self.0, item, state, form);
            }
        }
        self.list_from(start)
    }

    fn partitions(&mut self, charge: &Charge) -> ValueText {
        let start = self.0.len();
        for check in charge {
            ietf::write_partition(&mut self.0, check);
        }
        self.list_from(start)
    }

    /// The list that begins at `start`, without the separator behind its last element.
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

fn put_list(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue, keep: bool) {
    if keep {
        headers.append(name, value);
    } else {
        headers.insert(name, value);
    }
}

/// Lets a browser's script read the rate-limit headers, if this is a CORS response.
pub fn expose_to_scripts(headers: &mut HeaderMap, settings: HeaderSettings) {
    if headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
        let exposed = match settings.ietf {
            Some(IetfForm::Next) => EXPOSED_NEXT,
            Some(IetfForm::Draft10) | None => EXPOSED,
        };
        // A list header: a second line is the same as a longer first one.
        let exposed = HeaderValue::from_static(exposed);
        headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
}

/// Whether the upstream's own `X-RateLimit-*` headers stay because they leave the client less.
fn upstream_is_tighter(headers: &HeaderMap, settings: HeaderSettings, state: LimitStatus) -> bool {
    if !settings.pass_upstream {
        return false;
    }
    let theirs = headers
        .get(X_REMAINING)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    theirs.is_some_and(|remaining: u64| remaining < state.remaining)
}

fn write_number(buffer: &mut Vec<u8>, number: u64) {
    buffer.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests;
