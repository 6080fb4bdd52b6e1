//! `tidegate check`: finds mistakes in a configuration. It starts nothing and connects to nothing.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use rustix::fs::{Access, access};

use super::output::use_colour;
use super::{BAD_CONFIGURATION, DID_NOT_WORK};
use crate::config::diagnostic::{Code, Diagnostic, Diagnostics, Severity};
use crate::config::{self, Config, Control, LogTarget, render};

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The configuration to check.
    #[arg(short, long, value_name = "FILE", default_value = "proxy.toml")]
    pub(super) config: PathBuf,
    /// How to print what was found.
    #[arg(long, value_enum, default_value_t = CheckFormat::Human)]
    pub(super) format: CheckFormat,
    /// Treat warnings as errors.
    #[arg(long)]
    pub(super) deny_warnings: bool,
    /// And ask: does the store answer, can servers be reached, are addresses free?
    #[arg(long)]
    pub(super) online: bool,
}

/// How `check` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum CheckFormat {
    /// For people.
    Human,
    /// For scripts.
    Json,
    /// As annotations of a GitHub workflow.
    Github,
}

/// Prints the findings and returns the exit code.
pub(super) fn check(args: &CheckArgs) -> u8 {
    let mut out = std::io::stdout();
    let colour = use_colour(&out);
    write_findings(args, colour, &mut out)
}

fn write_findings(args: &CheckArgs, colour: bool, out: &mut dyn Write) -> u8 {
    let (config, found) = match config::load(&args.config) {
        Ok((config, mut found)) => {
            let unwritable = find_unwritable(&config);
            let config = unwritable.is_empty().then_some(config);
            found.list.extend(unwritable);
            (config, found)
        }
        Err(found) => (None, found),
    };
    let text = match args.format {
        CheckFormat::Human => {
            let summary = match &config {
                Some(config) => summary(&args.config, config, &found),
                None => failure(&args.config, &found),
            };
            let findings = [render::human(&found, colour), render::notes(&found, colour)];
            let parts = findings.into_iter().filter(|text| !text.is_empty());
            let mut parts: Vec<String> = parts.collect();
            parts.push(format!("{summary}\n"));
            parts.join("\n")
        }
        CheckFormat::Json => render::json(&found),
        CheckFormat::Github => render::github(&found),
    };
    let unreadable = found.list.iter().any(|one| one.code == Code::Unreadable);
    match out.write_all(text.as_bytes()) {
        Err(_) => DID_NOT_WORK,
        Ok(()) if unreadable => DID_NOT_WORK,
        Ok(()) if config.is_none() || args.deny_warnings && !found.is_empty() => BAD_CONFIGURATION,
        Ok(()) => 0,
    }
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

/// `proxy.toml: 2 errors, 1 warning. What one means: tidegate help T101`
fn failure(path: &Path, found: &Diagnostics) -> String {
    let errors = counted(found.count(Severity::Error), "error");
    let mut text = format!("{}: {errors}", path.display());
    let warnings = found.count(Severity::Warning);
    if warnings > 0 {
        text.push_str(&format!(", {}", counted(warnings, "warning")));
    }
    let mut list = found.list.iter();
    if let Some(first) = list.find(|one| one.severity() == Severity::Error) {
        let code = first.code.as_str();
        text.push_str(&format!(". What one means: tidegate help {code}"));
    }
    text
}

fn counted(count: usize, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

/// A mistake for each setting whose file this user could not write. Makes none of the files.
fn find_unwritable(config: &Config) -> Vec<Diagnostic> {
    let access_log = match &config.log.access {
        LogTarget::File(path) => Some(path.as_path()),
        _ => None,
    };
    let control = match &config.server.control {
        Control::At(path) => Some(path.as_path()),
        _ => None,
    };
    let decisions = config.log.decisions.as_deref();
    let pid_file = config.server.pid_file.as_deref();
    let problems = [
        ("log.access", access_log, access_log.and_then(append_error)),
        ("log.decisions", decisions, decisions.and_then(append_error)),
        (
            "server.pid_file",
            pid_file,
            pid_file.and_then(replace_error),
        ),
        ("server.control", control, control.and_then(replace_error)),
    ];
    let mistakes = problems.into_iter().filter_map(|(setting, path, why)| {
        let message = format!("`{setting}`: cannot write {}: {}", path?.display(), why?);
        Some(
            Diagnostic::new(Code::SecretFile, message)
                .help("name a file that the proxy's user may write, in a folder that is there"),
        )
    });
    mistakes.collect()
}

/// Why lines cannot be appended to a file.
fn append_error(path: &Path) -> Option<String> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Some("it is a folder".to_owned()),
        Ok(_) => Some(access(path, Access::WRITE_OK).err()?.to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => folder_error(path),
        Err(error) => Some(error.to_string()),
    }
}

/// Why a file cannot be replaced.
fn replace_error(path: &Path) -> Option<String> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Some("it is a folder".to_owned()),
        _ => folder_error(path),
    }
}

fn folder_error(path: &Path) -> Option<String> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let error = access(folder, Access::WRITE_OK | Access::EXEC_OK).err()?;
    Some(format!("{}: {error}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(config: PathBuf, format: CheckFormat, deny_warnings: bool) -> CheckArgs {
        CheckArgs {
            config,
            format,
            deny_warnings,
            online: false,
        }
    }

    fn run(text: &str, format: CheckFormat, deny_warnings: bool) -> (u8, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("proxy.toml");
        std::fs::write(&path, text).unwrap();
        let mut out = Vec::new();
        let args = args(path.clone(), format, deny_warnings);
        let code = write_findings(&args, false, &mut out);
        let out = String::from_utf8(out).unwrap();
        (code, out.replace(&path.display().to_string(), "proxy.toml"))
    }

    const HUMAN: CheckFormat = CheckFormat::Human;
    const GOOD: &str = "upstream = \"http://127.0.0.1:3000\"\n[limit.default]\nrate = \"5/s\"\n";

    #[test]
    fn a_good_file_is_fine() {
        let (code, out) = run(GOOD, HUMAN, true);
        assert_eq!(
            (code, out.as_str()),
            (0, "proxy.toml: fine. 1 route, 1 limit, 1 upstream\n")
        );
        assert_eq!(run(GOOD, CheckFormat::Json, true), (0, String::new()));
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
        let args = args("/nowhere/proxy.toml".into(), HUMAN, false);
        assert_eq!(write_findings(&args, false, &mut out), 1);
        assert!(
            String::from_utf8(out)
                .unwrap()
                .starts_with("error[T100]: cannot read")
        );
    }
}
