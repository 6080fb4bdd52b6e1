//! The same headers as they stand in a head of HTTP/1.1, for answers that nothing else is put into:
//! a map of them costs several times as much to make as its lines.

use http::header::{HeaderMap, HeaderName, RETRY_AFTER};

use super::{
    Charge, Decision, HeaderSettings, RATELIMIT, RATELIMIT_POLICY, ResetForm, X_LIMIT, X_REMAINING,
    X_RESET, seconds_up, tightest, write_number, write_policy, write_states,
};

/// Writes what [`super::write_behind`] puts into a map that is empty: lines, in the same order.
/// `wait` is `Retry-After`, seconds, where that is told; `unix_us` is the wall clock's time.
pub fn put_lines(
    out: &mut Vec<u8>,
    settings: HeaderSettings,
    (charge, decision): (&Charge, &Decision),
    (unix_us, wait): (u64, Option<u64>),
) {
    let Some((item, verdict)) = tightest(charge, decision) else {
        return;
    };
    if let Some(seconds) = wait {
        put(out, &RETRY_AFTER, |out| write_number(out, seconds));
    }
    if settings.x_ratelimit {
        let reset = match settings.reset {
            ResetForm::Epoch => seconds_up(unix_us.saturating_add(verdict.reset_us)),
            ResetForm::Delta => seconds_up(verdict.reset_us),
        };
        put_line(out, &X_LIMIT, item.window.wording.units.as_bytes());
        put(out, &X_REMAINING, |out| {
            write_number(out, verdict.remaining)
        });
        put(out, &X_RESET, |out| write_number(out, reset));
    }
    if settings.ietf {
        put(out, &RATELIMIT_POLICY, |out| {
            charge.iter().for_each(|item| write_policy(out, item));
            end_list(out);
        });
        put(out, &RATELIMIT, |out| {
            write_states(out, charge, decision);
            end_list(out);
        });
    }
}

/// Takes out of a response what the upstream says under the names of these lines.
pub fn take_out(headers: &mut HeaderMap) {
    const OURS: [HeaderName; 5] = [X_LIMIT, X_REMAINING, X_RESET, RATELIMIT, RATELIMIT_POLICY];
    // Hardly any upstream says one of them.
    let likely = |name: &HeaderName| {
        let name = name.as_str();
        name.starts_with("x-ratelimit-") || name.starts_with("ratelimit")
    };
    if headers.keys().any(likely) {
        for name in OURS {
            headers.remove(name);
        }
    }
}

/// Writes one line.
#[inline]
pub fn put_line(out: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    put(out, name, |out| out.extend_from_slice(value));
}

#[inline]
fn put(out: &mut Vec<u8>, name: &HeaderName, value: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    value(out);
    out.extend_from_slice(b"\r\n");
}

/// Of elements that each end with a separator, the last one's is taken back.
fn end_list(out: &mut Vec<u8>) {
    if out.ends_with(b", ") {
        out.truncate(out.len() - 2);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ALL, denied};
    use super::super::write_behind;
    use super::*;
    use crate::limit::Retry;

    #[test]
    fn the_lines_say_what_the_map_says_in_the_same_order() {
        let (x_ratelimit, ietf) = ([true, false], [true, false]);
        let resets = [ResetForm::Epoch, ResetForm::Delta];
        let (many, decision) = denied();
        let mut unasked = decision.clone();
        unasked.verdicts[1].retry = Retry::Unasked;
        let mut one = decision.clone();
        one.verdicts.truncate(1);
        let rows = [
            (&many[..], &decision),
            (&many, &unasked),
            (&many[..1], &one),
        ];
        for ((charge, decision), wait) in rows.into_iter().zip([Some(7), None, Some(4_000)]) {
            let charge: Charge = charge.iter().cloned().collect();
            let settings = x_ratelimit.into_iter().flat_map(|x_ratelimit| {
                ietf.into_iter().flat_map(move |ietf| {
                    resets.into_iter().map(move |reset| HeaderSettings {
                        x_ratelimit,
                        ietf,
                        reset,
                        ..ALL
                    })
                })
            });
            for settings in settings {
                let times = (1_000_000_123_456_789, wait);
                let mut map = HeaderMap::new();
                let told = (&charge, decision);
                write_behind(&mut map, settings, told, times, Vec::new());
                let mut expected = Vec::new();
                for (name, value) in &map {
                    put_line(&mut expected, name, value.as_bytes());
                }
                let mut lines = Vec::new();
                put_lines(&mut lines, settings, told, times);
                assert_eq!(
                    lines.escape_ascii().to_string(),
                    expected.escape_ascii().to_string()
                );
            }
        }
    }
}
