//! The same headers as they stand in a head of HTTP/1.1, for answers that nothing else is put into:
//! a map of them costs several times as much to make as its lines.

use http::header::{HeaderMap, HeaderName, RETRY_AFTER};

use super::{
    Charge, HeaderSettings, RATELIMIT, RATELIMIT_POLICY, Told, X_LIMIT, X_REMAINING, X_RESET,
    write_number, write_policy, write_states,
};

/// Writes what [`super::write_behind`] puts into a map that is empty: lines, in the same order.
pub fn put_lines(out: &mut Vec<u8>, settings: HeaderSettings, (charge, told): (&Charge, &Told)) {
    let Some((item, state)) = told.tightest(charge) else {
        return;
    };
    if let Some(seconds) = told.wait {
        put(out, &RETRY_AFTER, |out| write_number(out, seconds));
    }
    if settings.x_ratelimit {
        put_line(out, &X_LIMIT, item.window.wording.units.as_bytes());
        put(out, &X_REMAINING, |out| write_number(out, state.remaining));
        put(out, &X_RESET, |out| write_number(out, told.reset));
    }
    if settings.ietf {
        put(out, &RATELIMIT_POLICY, |out| {
            charge.iter().for_each(|item| write_policy(out, item));
            end_list(out);
        });
        put(out, &RATELIMIT, |out| {
            write_states(out, charge, told);
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
    use super::super::{ResetForm, write_behind};
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
        for ((charge, decision), allowed) in rows.into_iter().zip([false, true, false]) {
            let mut decision = decision.clone();
            decision.allowed = allowed;
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
                let at = (settings.reset, 1_000_000_123_456_789);
                let told = Told::of(&charge, &decision, at);
                let mut map = HeaderMap::new();
                write_behind(&mut map, settings, (&charge, &told), Vec::new());
                let mut expected = Vec::new();
                for (name, value) in &map {
                    put_line(&mut expected, name, value.as_bytes());
                }
                let mut lines = Vec::new();
                put_lines(&mut lines, settings, (&charge, &told));
                assert_eq!(
                    lines.escape_ascii().to_string(),
                    expected.escape_ascii().to_string()
                );
            }
        }
    }
}
