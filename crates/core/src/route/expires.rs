//! How long clients may keep a response: `Expires` and `Cache-Control`.

use http::header::{CACHE_CONTROL, EXPIRES, HeaderMap, HeaderValue, LAST_MODIFIED};
use jiff::Timestamp;
use jiff::fmt::rfc2822::{DateTimeParser, DateTimePrinter};

/// `expires` of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expires {
    pub after_s: i64,
    pub from: ExpiryStart,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpiryStart {
    #[default]
    Response,
    /// `Last-Modified`; the response's own time without it.
    Modified,
}

impl Expires {
    /// Writes both headers in place of others. `now_s` is the Unix time.
    pub fn apply(self, headers: &mut HeaderMap, now_s: i64) {
        let start_s = match self.from {
            ExpiryStart::Response => now_s,
            ExpiryStart::Modified => modified_s(headers).unwrap_or(now_s),
        };
        let end_s = start_s.saturating_add(self.after_s);
        let left_s = end_s.saturating_sub(now_s);
        let control = match left_s {
            0.. => format!("max-age={left_s}"),
            _ => "no-cache".to_owned(),
        };
        let date = Timestamp::from_second(end_s).ok();
        let date = date.and_then(|at| DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok());
        for (name, text) in [(EXPIRES, date), (CACHE_CONTROL, Some(control))] {
            if let Some(Ok(value)) = text.map(HeaderValue::try_from) {
                headers.insert(name, value);
            }
        }
    }
}

/// The Unix time of `Last-Modified`.
fn modified_s(headers: &HeaderMap) -> Option<i64> {
    let text = headers.get(LAST_MODIFIED)?.to_str().ok()?;
    let at = DateTimeParser::new().parse_timestamp(text).ok()?;
    Some(at.as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_expires_after_itself_or_after_its_last_change() {
        const CHANGED: &str = "Mon, 28 Sep 1970 06:00:00 GMT";
        let changed_s = 23_349_600;
        for (from, changed, now_s, date, control) in [
            (
                ExpiryStart::Response,
                CHANGED,
                0,
                "Thu, 01 Jan 1970 00:34:08 GMT",
                "max-age=2048",
            ),
            (
                ExpiryStart::Modified,
                CHANGED,
                changed_s + 48,
                "Mon, 28 Sep 1970 06:34:08 GMT",
                "max-age=2000",
            ),
            (
                ExpiryStart::Modified,
                CHANGED,
                1_800_000_000,
                "Mon, 28 Sep 1970 06:34:08 GMT",
                "no-cache",
            ),
            (
                ExpiryStart::Modified,
                "then",
                0,
                "Thu, 01 Jan 1970 00:34:08 GMT",
                "max-age=2048",
            ),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("private"));
            headers.append(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            headers.insert(LAST_MODIFIED, HeaderValue::from_static(changed));
            Expires {
                after_s: 2048,
                from,
            }
            .apply(&mut headers, now_s);
            assert_eq!(headers[EXPIRES], date);
            let controls: Vec<_> = headers.get_all(CACHE_CONTROL).iter().collect();
            assert_eq!(controls, [control]);
        }
    }
}
