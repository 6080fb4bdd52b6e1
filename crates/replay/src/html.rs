//! A report as one page that needs nothing else: no other file, no network.
//!
//! Pure. Logs hold what strangers wrote. All of it is data in one JSON element, in which nothing
//! can end the element; the page's script puts it into the document as text only, and the policy
//! in the page's head lets no other script run.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::json_report;
use super::report::Report;

const PAGE: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/style.css");
const SCRIPT: &str = include_str!("html/page.js");
/// Different peaks of a limit that are drawn.
const PEAKS: usize = 1500;

/// The page.
pub fn page(report: &Report) -> String {
    let mut data = json_report::value(report);
    if let Some(limits) = data["limits"].as_array_mut() {
        for (value, limit) in limits.iter_mut().zip(&report.limits) {
            value["peaks"] = json!(thinned(&limit.needs));
        }
    }
    PAGE.replace("{{policy}}", &policy())
        .replace("{{style}}", STYLE)
        .replace("{{script}}", SCRIPT)
        // Last, so that nothing in it is taken for a place to fill in.
        .replace("{{data}}", &inert(&data))
}

/// Only what this page was made with may run.
fn policy() -> String {
    let hash = |text: &str| {
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        format!("'sha256-{}'", STANDARD.encode(digest))
    };
    let (script, style) = (hash(SCRIPT), hash(STYLE));
    format!("default-src 'none'; script-src {script}; style-src {style}; base-uri 'none'")
}

/// JSON in which no tag begins.
fn inert(data: &Value) -> String {
    let text = data.to_string();
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out
}

/// Fewer peaks where there are many: those that lie close together become the highest of them, so
/// that a curve never shows a limit as better than it is.
fn thinned(peaks: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut thin: Vec<(u64, u64)> = peaks.to_vec();
    let mut step = 1.002_f64;
    while thin.len() > PEAKS {
        let mut wider: Vec<(u64, u64)> = Vec::new();
        let mut first = 0;
        for (peak, count) in &thin {
            match wider.last_mut() {
                Some(last) if *peak as f64 <= first as f64 * step => {
                    *last = (*peak, last.1 + count);
                }
                _ => {
                    first = *peak;
                    wider.push((*peak, *count));
                }
            }
        }
        thin = wider;
        step *= step;
    }
    thin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tag_begins_in_the_data() {
        let text = "</script><script>alert(1)</script><!--&\u{2028}";
        let out = inert(&json!({ "a": text }));
        assert!(!out.contains(['<', '>', '&', '\u{2028}']), "{out}");
        let back: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(back["a"], text);
    }

    #[test]
    fn many_peaks_become_fewer_and_no_client_is_lost() {
        let peaks: Vec<_> = (1..20_000).map(|peak| (peak, 2)).collect();
        let thin = thinned(&peaks);
        assert!(thin.len() <= PEAKS, "{}", thin.len());
        assert_eq!(thin.iter().map(|(_, count)| count).sum::<u64>(), 2 * 19_999);
        assert_eq!(thin.last().unwrap().0, 19_999);
        assert_eq!(thinned(&peaks[..9]), &peaks[..9]);
    }
}
