//! `tidegate check`: what is wrong with a configuration, before anything changes.
//!
//! Writes to where it is told and returns the exit code; it never starts or connects to anything.

mod writable;

use std::io::{self, Write};
use std::path::Path;

use crate::config::diagnostic::{Code, Diagnostics, Severity};
use crate::config::{self, Config, render};

/// Nothing is wrong.
pub(super) const FINE: u8 = 0;
/// The file could not be read, or the findings not be written.
pub(super) const FAILED: u8 = 1;
/// The configuration cannot be used (`EX_CONFIG`).
pub(super) const BAD_CONFIG: u8 = 78;

/// How findings are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// For people, as rustc prints them.
    Human {
        /// With terminal colours.
        colour: bool,
    },
    /// One JSON object for each finding and line; no summary.
    Json,
    /// GitHub's workflow commands; no summary.
    Github,
}

/// Checks the file at `path`, writes what it finds, and returns the process's exit code.
/// `deny_warnings` makes a warning as bad as an error.
pub(super) fn check(path: &Path, format: Format, deny_warnings: bool, out: &mut dyn Write) -> u8 {
    let outcome = config::load(path).and_then(|(config, mut found)| {
        let unwritable = writable::find(&config);
        match unwritable.is_empty() {
            true => Ok((config, found)),
            false => {
                found.list.extend(unwritable);
                Err(found)
            }
        }
    });
    let written = match &outcome {
        Ok((config, warnings)) => {
            write_findings(warnings, format, out).and_then(|()| match format {
                Format::Human { .. } => writeln!(out, "{}", summary(path, config, warnings)),
                Format::Json | Format::Github => Ok(()),
            })
        }
        Err(found) => write_findings(found, format, out).and_then(|()| match format {
            Format::Human { .. } => writeln!(out, "{}", failure(path, found)),
            Format::Json | Format::Github => Ok(()),
        }),
    };
    match (outcome, written) {
        (_, Err(_)) => FAILED,
        (Ok((_, warnings)), _) if deny_warnings && !warnings.is_empty() => BAD_CONFIG,
        (Ok(_), _) => FINE,
        (Err(found), _) if found.list.iter().any(|one| one.code == Code::Unreadable) => FAILED,
        (Err(_), _) => BAD_CONFIG,
    }
}

fn write_findings(found: &Diagnostics, format: Format, out: &mut dyn Write) -> io::Result<()> {
    let text = match format {
        Format::Human { colour } => {
            let mut text = render::human(found, colour);
            let notes = render::notes(found, colour);
            if !text.is_empty() && !notes.is_empty() {
                text.push('\n');
            }
            text.push_str(&notes);
            if !text.is_empty() {
                text.push('\n');
            }
            text
        }
        Format::Json => render::json(found),
        Format::Github => render::github(found),
    };
    out.write_all(text.as_bytes())
}

/// `proxy.toml: fine. 3 routes, 2 limits, 1 upstream`
fn summary(path: &Path, config: &Config, warnings: &Diagnostics) -> String {
    let verdict = match warnings.list.len() {
        0 if warnings.notes.is_empty() => "fine".to_owned(),
        0 => format!("fine, with {}", counted(warnings.notes.len(), "note")),
        count => format!("usable, with {}", counted(count, "warning")),
    };
    format!(
        "{}: {verdict}. {}, {}, {}",
        path.display(),
        counted(config.routes.iter().count(), "route"),
        counted(config.limits.len(), "limit"),
        counted(config.upstreams.len(), "upstream"),
    )
}

/// `proxy.toml: 2 errors, 1 warning. Explain one: tidegate help T101`
fn failure(path: &Path, found: &Diagnostics) -> String {
    let mut text = format!(
        "{}: {}",
        path.display(),
        counted(found.count(Severity::Error), "error")
    );
    let warnings = found.count(Severity::Warning);
    if warnings > 0 {
        text.push_str(&format!(", {}", counted(warnings, "warning")));
    }
    if let Some(first) = found
        .list
        .iter()
        .find(|one| one.severity() == Severity::Error)
    {
        text.push_str(&format!(
            ". What one means: tidegate help {}",
            first.code.as_str()
        ));
    }
    text
}

fn counted(count: usize, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str, format: Format, deny_warnings: bool) -> (u8, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("proxy.toml");
        std::fs::write(&path, text).unwrap();
        let mut out = Vec::new();
        let code = check(&path, format, deny_warnings, &mut out);
        let out = String::from_utf8(out).unwrap();
        (code, out.replace(&path.display().to_string(), "proxy.toml"))
    }

    const HUMAN: Format = Format::Human { colour: false };
    const GOOD: &str = "upstream = \"http://127.0.0.1:3000\"\n[limit.default]\nrate = \"5/s\"\n";

    #[test]
    fn a_good_file_is_fine() {
        let (code, out) = run(GOOD, HUMAN, true);
        assert_eq!(
            (code, out.as_str()),
            (0, "proxy.toml: fine. 1 route, 1 limit, 1 upstream\n")
        );
        assert_eq!(run(GOOD, Format::Json, true), (0, String::new()));
    }

    #[test]
    fn a_bad_file_is_78_and_names_the_mistakes() {
        let (code, out) = run(&GOOD.replace("rate", "raet"), HUMAN, false);
        assert_eq!(code, 78);
        assert!(out.contains("did you mean `rate`?"), "{out}");
        assert!(
            out.ends_with("proxy.toml: 1 error. What one means: tidegate help T101\n"),
            "{out}"
        );
    }

    #[test]
    fn a_warning_is_bad_only_when_asked() {
        let text = format!("trusted_proxies = \"0.0.0.0/0\"\n{GOOD}");
        let (code, out) = run(&text, HUMAN, false);
        assert_eq!(code, 0);
        assert!(out.contains("warning[T202]"), "{out}");
        assert!(out.contains("usable, with 1 warning"), "{out}");
        assert_eq!(run(&text, HUMAN, true).0, 78);
    }

    #[test]
    fn a_file_that_is_not_there_did_not_work() {
        let mut out = Vec::new();
        assert_eq!(
            check(Path::new("/nowhere/proxy.toml"), HUMAN, false, &mut out),
            1
        );
        assert!(
            String::from_utf8(out)
                .unwrap()
                .starts_with("error[T100]: cannot read")
        );
    }
}
