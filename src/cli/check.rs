//! `tidegate check`: finds mistakes in a configuration. It starts nothing and connects to nothing,
//! except with `--online`: whether the store answers and keeps what it stores, whether servers can
//! be reached, and whether addresses are free. That changes nothing.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use clap::{Args, ValueEnum};
use rustix::fs::{Access, access};

use super::output::{CommandError, load, print, use_colour};
use super::{BAD_CONFIGURATION, DID_NOT_WORK};
use crate::config::diagnostic::{Code, Diagnostic, Diagnostics, Severity};
use crate::config::{
    self, Config, Listen, RedisAddress, RedisTopology, ServerAddress, StoreKind, WriteKind, render,
    written_files,
};
use crate::server::listen::ListenLines;
use crate::store::StoreError;
use crate::store::redis::{OverrideClientError, ServerInfo, fetch_server_info};
use crate::upstream;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The configuration to check.
    #[arg(short, long, value_name = "FILE", default_value = "proxy.toml")]
    pub(super) config: PathBuf,
    /// The format of the output.
    #[arg(long, value_enum, default_value_t = CheckFormat::Human)]
    pub(super) format: CheckFormat,
    /// Treat warnings as errors.
    #[arg(long)]
    pub(super) deny_warnings: bool,
    /// Also check that the store answers, servers can be reached, and addresses are free.
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
pub(super) fn check(args: &CheckArgs) -> Result<u8, CommandError> {
    let report = report(args, use_colour(&std::io::stdout()));
    print(&report.text)?;
    Ok(report.code)
}

struct CheckReport {
    text: String,
    code: u8,
}

fn report(args: &CheckArgs, colour: bool) -> CheckReport {
    let (config, found) = match load_writable(&args.config) {
        Ok((config, found)) => (Some(config), found),
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
    let code = match unreadable {
        true => DID_NOT_WORK,
        false if config.is_none() || args.deny_warnings && !found.is_empty() => BAD_CONFIGURATION,
        false => 0,
    };
    CheckReport { text, code }
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

/// `proxy.toml: 2 errors, 1 warning. To explain one: tidegate help T101`
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
        text.push_str(&format!(". To explain one: tidegate help {code}"));
    }
    text
}

fn counted(count: usize, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

/// Loads a file whose proxy can write all files that the settings name.
pub(super) fn load_writable(path: &Path) -> Result<(Config, Diagnostics), Diagnostics> {
    let (config, mut found) = config::load(path)?;
    let unwritable = find_unwritable(&config);
    if unwritable.is_empty() {
        return Ok((config, found));
    }
    found.list.extend(unwritable);
    Err(found)
}

/// A mistake for each setting whose file this user could not write. Makes none of the files.
fn find_unwritable(config: &Config) -> Vec<Diagnostic> {
    let mistakes = written_files(config).into_iter().filter_map(|file| {
        let path = file.path;
        let why = match file.write {
            WriteKind::Append => append_error(path),
            WriteKind::Replace => replace_error(path),
            WriteKind::Counts => counts_error(path),
        }?;
        let setting = &file.setting;
        let message = format!("`{setting}`: cannot write {}: {why}", path.display());
        let help = "name a file that the proxy's user may write, in a folder that is there";
        let found = Diagnostic::new(Code::SecretFile, message).help(help);
        Some(match config::span_of(setting, &config.sources) {
            Some(span) => found.at(&span, ""),
            None => found,
        })
    });
    mistakes.collect()
}

fn append_error(path: &Path) -> Option<String> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Some("it is a folder".to_owned()),
        Ok(_) => Some(access(path, Access::WRITE_OK).err()?.to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => folder_error(path),
        Err(error) => Some(error.to_string()),
    }
}

fn replace_error(path: &Path) -> Option<String> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Some("it is a folder".to_owned()),
        _ => folder_error(path),
    }
}

/// Counts are written to a file and to another one beside it.
fn counts_error(path: &Path) -> Option<String> {
    append_error(path).or_else(|| folder_error(path))
}

fn folder_error(path: &Path) -> Option<String> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let error = access(folder, Access::WRITE_OK | Access::EXEC_OK).err()?;
    Some(format!("{}: {error}", folder.display()))
}

const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug, PartialEq, Eq)]
enum Probe {
    Fine(String),
    Doubtful(String),
    Wrong(String),
}

/// Checks the environment of a file that is fine itself.
pub(super) fn check_online(args: &CheckArgs) -> Result<u8, CommandError> {
    let Ok(config) = load(&args.config) else {
        return Ok(DID_NOT_WORK);
    };
    let mut probes = probe_store(&config);
    probes.extend(probe_servers(&config));
    probes.extend(probe_listeners(&config));
    let mut failed = false;
    for probe in &probes {
        let (word, text) = match probe {
            Probe::Fine(text) => ("ok", text),
            Probe::Doubtful(text) => ("warning", text),
            Probe::Wrong(text) => ("error", text),
        };
        failed |= word == "error" || word == "warning" && args.deny_warnings;
        let line = match args.format {
            CheckFormat::Human => format!("{word:<7}  {text}\n"),
            CheckFormat::Json => {
                format!(
                    "{}\n",
                    serde_json::json!({"severity": word, "message": text})
                )
            }
            CheckFormat::Github if word == "ok" => String::new(),
            CheckFormat::Github => format!("::{word}::{text}\n"),
        };
        print(line)?;
    }
    Ok(if failed { DID_NOT_WORK } else { 0 })
}

fn probe_store(config: &Config) -> Vec<Probe> {
    let StoreKind::Redis(redis) = &config.store.kind else {
        let text = "store memory: counts live in the proxy's process only";
        return vec![Probe::Fine(text.to_owned())];
    };
    let place = redis.topology.to_string();
    match fetch_server_info(redis, PROBE_TIMEOUT) {
        Err(error) => {
            let error = explain_store_error(error, &redis.topology);
            vec![Probe::Wrong(format!("store {place}: {error}"))]
        }
        Ok(info) => judge_store(&place, &info),
    }
}

/// Adds the operating system's reason if the store cannot be connected to.
pub(super) fn explain_store_error(error: StoreError, topology: &RedisTopology) -> String {
    let reason = |address: &RedisAddress| {
        let server = match address {
            RedisAddress::Tcp(host, port) => ServerAddress::Http(host.clone(), *port),
            RedisAddress::Unix(path) => ServerAddress::Unix(path.clone()),
        };
        let error = upstream::try_connect(&server, CONNECT_TIMEOUT).err()?;
        Some(match topology {
            RedisTopology::Single(_) => error.to_string(),
            _ => format!("{address}: {error}"),
        })
    };
    let mut addresses = topology.addresses().iter();
    let reason = match error {
        StoreError::Refused => addresses.find_map(reason),
        _ => None,
    };
    match reason {
        Some(reason) => format!("{error}: {reason}"),
        None => error.to_string(),
    }
}

/// Names the setting and the address of a store that cannot be reached.
pub(super) fn store_error(
    error: &OverrideClientError,
    config: &Config,
    file: &Path,
) -> CommandError {
    match std::error::Error::source(error).and_then(|why| why.downcast_ref::<StoreError>()) {
        Some(why) => store_failure(*why, config, file),
        None => CommandError::failed(error.to_string()),
    }
}

pub(super) fn store_failure(why: StoreError, config: &Config, file: &Path) -> CommandError {
    let is_away = matches!(
        why,
        StoreError::Refused | StoreError::Timeout | StoreError::NoMaster
    );
    let StoreKind::Redis(server) = &config.store.kind else {
        return CommandError::failed(why.to_string());
    };
    if !is_away {
        return CommandError::failed(why.to_string());
    }
    let place = config::place_of("store.url", file, &config.sources);
    let reason = explain_store_error(why, &server.topology);
    CommandError::failed(format!("{place}: {}: {reason}", server.topology))
        .help("start Redis, or correct the URL; `tidegate check --online` tests it")
}

/// Judges whether this store keeps counts reliably.
fn judge_store(place: &str, info: &ServerInfo) -> Vec<Probe> {
    let version = info.version.as_deref().unwrap_or("of an unknown version");
    let mut probes = vec![Probe::Fine(format!("store {place}: up, {version}"))];
    if let Some(why) = info.forgets() {
        probes.push(Probe::Doubtful(format!("store {place}: {why}")));
    }
    if info.role.as_deref() == Some("slave") {
        probes.push(Probe::Wrong(format!(
            "store {place}: a replica, which takes no writes; name its master, or use \
             `redis+sentinel://`"
        )));
    }
    let major = info.version.as_deref().and_then(|version| {
        let number = version.rsplit(' ').next()?.split('.').next()?;
        number.parse::<u32>().ok()
    });
    if major.is_some_and(|major| major < 6) {
        probes.push(Probe::Doubtful(format!(
            "store {place}: version {version} is older than what is tested (Redis 6.2)"
        )));
    }
    probes
}

fn probe_servers(config: &Config) -> Vec<Probe> {
    let mut probes = Vec::new();
    for upstream in &config.upstreams {
        for server in &upstream.servers {
            let name = &upstream.name;
            let named = match server.to_string() {
                text if *text == **name => format!("upstream {text}"),
                text => format!("upstream {name}: {text}"),
            };
            probes.push(
                match upstream::try_connect(&server.address, PROBE_TIMEOUT) {
                    Ok(()) => Probe::Fine(format!("{named} can be reached")),
                    Err(error) => Probe::Wrong(format!("{named} cannot be reached: {error}")),
                },
            );
        }
    }
    probes
}

fn probe_listeners(config: &Config) -> Vec<Probe> {
    let probe = |listen: &Listen| match listen {
        Listen::Tcp(address) => match TcpListener::bind(address) {
            Ok(_) => Probe::Fine(format!("listen {listen} is free")),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Probe::Doubtful(format!(
                "listen {listen} is taken: by this proxy, if it runs, or by another program"
            )),
            Err(error) => Probe::Wrong(format!("listen {listen}: {error}")),
        },
        Listen::Unix(path) => match path.parent().filter(|folder| !folder.is_dir()) {
            Some(folder) if !folder.as_os_str().is_empty() => Probe::Wrong(format!(
                "listen {listen}: there is no folder {}",
                folder.display()
            )),
            _ => Probe::Fine(format!("listen {listen}")),
        },
    };
    ListenLines::new(config).all().map(probe).collect()
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
        let report = report(&args(path.clone(), format, deny_warnings), false);
        let path = path.display().to_string();
        (report.code, report.text.replace(&path, "proxy.toml"))
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
            out.ends_with("proxy.toml: 1 error. To explain one: tidegate help T101\n"),
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
        let report = report(&args("/nowhere/proxy.toml".into(), HUMAN, false), false);
        assert_eq!(report.code, 1);
        assert!(report.text.starts_with("error[T100]: cannot read"));
    }

    fn info(policy: &str, role: &str, version: &str) -> ServerInfo {
        ServerInfo {
            version: Some(version.to_owned()),
            role: Some(role.to_owned()),
            maxmemory_policy: Some(policy.to_owned()),
            ..ServerInfo::default()
        }
    }

    #[test]
    fn what_a_store_says_of_itself_is_judged() {
        let fine = judge_store("r", &info("noeviction", "master", "redis 7.2.4"));
        assert_eq!(fine.len(), 1, "{fine:?}");
        let evicts = judge_store("r", &info("allkeys-lru", "master", "valkey 8.0.1"));
        assert!(matches!(&evicts[1], Probe::Doubtful(text) if text.contains("allkeys-lru")));
        let volatile = judge_store("r", &info("volatile-ttl", "master", "redis 7.2.4"));
        assert!(matches!(&volatile[1], Probe::Doubtful(text) if !text.contains("or `volatile")));
        let replica = judge_store("r", &info("noeviction", "slave", "redis 7.2.4"));
        assert!(matches!(&replica[1], Probe::Wrong(text) if text.contains("replica")));
        let old = judge_store("r", &info("noeviction", "master", "redis 5.0.1"));
        assert!(matches!(&old[1], Probe::Doubtful(text) if text.contains("older")));
    }
}
