//! A report as JSON for scripts, and as one HTML page.
//!
//! `docs/replay.md` documents the JSON. New versions only add members.
//!
//! The page loads nothing. Logs contain text of strangers. The page has all of it in one JSON
//! element that no text can end. The page's script inserts it as text only, and the page's policy
//! lets no other script run.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::report::Report;

const VERSION: u32 = 1;
const PAGE: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/style.css");
const SCRIPT: &str = include_str!("html/page.js");
/// Different peaks of a limit that the page draws, at most.
const PEAKS: usize = 1500;

pub fn json(report: &Report) -> Value {
    let logs = report.logs.iter().map(|log| {
        json!({
            "name": log.name,
            "format": log.format.map(|format| format.word()),
            "lines": log.lines,
            "unread": log.unread.iter().sum::<u64>(),
            "error": log.error.as_ref().map(ToString::to_string),
        })
    });
    let seconds = |us: u64| us as f64 / 1e6;
    let outside = report.outside.iter();
    let outside = outside.map(|(kind, count)| (kind.name().to_owned(), json!(count)));
    json!({
        "version": VERSION,
        "logs": logs.collect::<Vec<_>>(),
        "lines": report.lines,
        "requests": report.requests,
        "from": report.times.map(|(first, _)| seconds(first)),
        "to": report.times.map(|(_, last)| seconds(last)),
        "denied": report.denied,
        "outside": outside.collect::<serde_json::Map<_, _>>(),
        "usage": report.calls,
        "unread": unread(report),
        "limits": report.limits,
        "bans": report.bans,
        "timeline": report.timeline,
        "notes": report.notes,
    })
}

fn unread(report: &Report) -> Value {
    let kinds = report.unread.iter().map(|(fault, count)| {
        let examples = report.logs.iter().flat_map(|log| {
            let of_kind = log.examples.iter().filter(|one| one.fault == *fault);
            of_kind.map(|one| json!({ "log": log.name, "line": one.line, "text": one.text }))
        });
        json!({
            "reason": fault.sentence(),
            "lines": count,
            "examples": examples.collect::<Vec<_>>(),
        })
    });
    json!({ "lines": report.unread_lines(), "kinds": kinds.collect::<Vec<_>>() })
}

pub fn page(report: &Report) -> String {
    let mut data = json(report);
    if let Some(limits) = data["limits"].as_array_mut() {
        for (value, limit) in limits.iter_mut().zip(&report.limits) {
            value["peaks"] = json!(thinned(&limit.peaks));
        }
    }
    PAGE.replace("{{policy}}", &policy())
        .replace("{{style}}", STYLE)
        .replace("{{script}}", SCRIPT)
        // Last, so that `{{..}}` in the data is not replaced.
        .replace("{{data}}", &inert(&data))
}

/// A policy that lets only the page's own script and style run.
fn policy() -> String {
    let hash = |text: &str| {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
        format!("'sha256-{}'", STANDARD.encode(digest))
    };
    let (script, style) = (hash(SCRIPT), hash(STYLE));
    format!("default-src 'none'; script-src {script}; style-src {style}; base-uri 'none'")
}

/// JSON that cannot begin a tag.
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

/// Joins close peaks until they are few. The highest of them stands for all, so that a curve never
/// shows a limit as better than it is.
fn thinned(peaks: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut thin = peaks.to_vec();
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
