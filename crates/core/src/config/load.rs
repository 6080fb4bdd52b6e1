//! Loads a [`Config`] from a file or a text, or returns everything that is wrong with it.
//!
//! The only file of the room that does IO: it reads the file, the environment, the clock and the
//! files that the configuration names.

use std::cell::RefCell;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use toml::de::DeTable;

use super::compile::compile;
use super::diagnostic::{Code, Diagnostic, Diagnostics, Severity, SourceText, TextSpan};
use super::files::NamedFile;
use super::interpolation::{first_variable, interpolate};
use super::overwrite::check_written;
use super::reader::{ConfigReader, DeclaredSettings, Surroundings};
use super::reference::document_as_json;
use super::section::is_name;
use super::{Config, Control, Listen, StoreKind, address, redis, server, syntax, warnings};
use crate::limit::{BLOCK_POLICY, Key, Limit, OnError, Rule};
use crate::route::{PathPattern, Route, RouteTable};

/// Bytes of a configuration file, at most.
const MAX_FILE: u64 = 16 << 20;

type Environment<'e> = &'e dyn Fn(&str) -> Option<String>;

/// A configuration with its warnings, or every mistake.
pub(super) type Loaded = Result<(Config, Diagnostics), Diagnostics>;

/// Loads a file, with warnings. Its error is every mistake, those in syntax included. A file that
/// cannot be read is [`Code::Unreadable`].
pub fn load(path: &Path) -> Loaded {
    load_noting(path, &mut Vec::new())
}

/// The same. `files` gets every other file that was read, also after a failure.
pub fn load_noting(path: &Path, files: &mut Vec<NamedFile>) -> Loaded {
    let noted = RefCell::default();
    let loaded = parse_file(path, Surroundings::none(), &noted);
    *files = noted.into_inner();
    loaded
}

/// Loads a file that limits another service: it has no `listen` and no `upstream`. The upstreams of
/// the routes and the `server` of the configuration mean nothing.
pub fn load_limits(path: &Path) -> Loaded {
    let surroundings = Surroundings {
        forwards: false,
        ..Surroundings::none()
    };
    parse_file(path, surroundings, &RefCell::default())
}

/// The same for a text.
pub fn parse_limits(name: &str, text: &str, env: Environment<'_>) -> Loaded {
    let surroundings = Surroundings {
        forwards: false,
        env,
        ..Surroundings::none()
    };
    parse_text(name, text, surroundings, &RefCell::default())
}

/// Parses a text. It reads only the files that the text names, such as `password_file`. Relative
/// paths start from the working directory.
pub fn parse(name: &str, text: &str, env: Environment<'_>) -> Loaded {
    let surroundings = Surroundings {
        env,
        ..Surroundings::none()
    };
    parse_text(name, text, surroundings, &RefCell::default())
}

/// The folder where a file's relative paths start.
fn folder_of(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new(""))
}

/// Parses a text. `files` gets every file that was read.
fn parse_text(
    name: &str,
    text: &str,
    surroundings: Surroundings<'_>,
    files: &RefCell<Vec<NamedFile>>,
) -> Loaded {
    let read = |path: &Path, max_bytes| {
        let content = read_bounded(path, max_bytes);
        let noted = NamedFile::new(path, content.as_deref().ok());
        files.borrow_mut().push(noted);
        content
    };
    let surroundings = Surroundings {
        read: &read,
        now_s: now_s(),
        ..surroundings
    };
    let (mut config, mut found) = read_text(name, text, &surroundings).0?;
    let written = check_written(&config, Path::new(name), &files.borrow());
    if !written.is_empty() {
        found.list.extend(written);
        return Err(found);
    }
    let sources = Arc::make_mut(&mut config.sources);
    text.clone_into(&mut sources.text);
    sources.files.clone_from(&files.borrow());
    Ok((config, found))
}

/// Parses a text as if this file had it.
///
/// # Errors
/// Every mistake.
pub fn load_text(path: &Path, text: &str) -> Loaded {
    parse_text_of(path, text, Surroundings::none(), &RefCell::default())
}

fn parse_text_of(
    path: &Path,
    text: &str,
    surroundings: Surroundings<'_>,
    files: &RefCell<Vec<NamedFile>>,
) -> Loaded {
    let surroundings = Surroundings {
        env: &environment,
        base: folder_of(path),
        ..surroundings
    };
    parse_text(&path.display().to_string(), text, surroundings, files)
}

fn parse_file(
    path: &Path,
    surroundings: Surroundings<'_>,
    files: &RefCell<Vec<NamedFile>>,
) -> Loaded {
    let error = match read_utf8(path) {
        Ok(text) => return parse_text_of(path, &text, surroundings, files),
        Err(error) => error,
    };
    let name = path.display().to_string();
    let text = error.to_string();
    let (reason, help) = text.split_once("; ").unwrap_or((&text, ""));
    let help = match error.kind() {
        io::ErrorKind::NotFound => "name another by `-c FILE`; `tidegate init` makes one",
        _ => help,
    };
    let message = format!("cannot read `{name}`: {reason}");
    let help = (!help.is_empty()).then(|| help.to_owned());
    Err(Diagnostics {
        source: SourceText {
            name,
            text: String::new(),
        },
        list: vec![Diagnostic::new(Code::Unreadable, message).maybe_help(help)],
        notes: Vec::new(),
    })
}

fn read_utf8(path: &Path) -> io::Result<String> {
    let bytes = read_bounded(path, MAX_FILE + 1)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("longer than {MAX_FILE} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| not_utf8(&error))
}

/// Describes where a file is not UTF-8, or its other encoding.
fn not_utf8(error: &std::string::FromUtf8Error) -> io::Error {
    let bytes = error.as_bytes();
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return io::Error::other("it is UTF-16; save it as UTF-8");
    }
    let before = &bytes[..error.utf8_error().valid_up_to()];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    io::Error::other(format!("line {line} is not UTF-8; save the file as UTF-8"))
}

/// The socket for commands that a file sets. Mistakes elsewhere in the file do not matter.
pub fn control_of(path: &Path) -> Control {
    let text = read_bounded(path, MAX_FILE).unwrap_or_default();
    let top = document_as_json(&String::from_utf8_lossy(&text));
    let control = top["server"]["control"].as_str().and_then(|text| {
        let text = interpolate(text, &environment).ok()?;
        server::parse_control(&text).ok()
    });
    match control {
        Some(Control::At(socket)) => Control::At(folder_of(path).join(socket)),
        control => control.unwrap_or(Control::Derived),
    }
}

/// The admin's address and token file, as far as a file sets them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminPlace {
    /// The address to connect to.
    pub address: Option<SocketAddr>,
    /// The file with the token.
    pub token_file: Option<PathBuf>,
}

/// The admin that a file sets. Mistakes elsewhere in the file do not matter.
///
/// # Errors
/// The file cannot be read.
pub fn admin_of(path: &Path) -> io::Result<AdminPlace> {
    let text = read_bounded(path, MAX_FILE)?;
    let top = document_as_json(&String::from_utf8_lossy(&text));
    let word = |key: &str| interpolate(top[key].as_str()?, &environment).ok();
    let listen = word("admin").and_then(|text| address::listen(&text).ok());
    Ok(AdminPlace {
        address: listen.and_then(|listen| match listen {
            Listen::Tcp(address) => Some(address),
            Listen::Unix(_) => None,
        }),
        token_file: word("admin_token_file").map(|file| folder_of(path).join(&*file)),
    })
}

/// A variable of the process's environment, if it is set and UTF-8.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the room where the environment is read"
)]
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[expect(
    clippy::disallowed_methods,
    reason = "the pure code gets its time from here; the clock's room is below this one"
)]
fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

fn read_bounded(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(max_bytes)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a text and compiles it. Also returns the settings that the readers declared.
pub(super) fn read_text(
    name: &str,
    text: &str,
    surroundings: &Surroundings<'_>,
) -> (Loaded, DeclaredSettings) {
    let source = SourceText {
        name: name.to_owned(),
        text: text.to_owned(),
    };
    // A byte order mark is no part of the document. Spaces in its place leave all spans right.
    let text = &text.replacen('\u{feff}', "   ", usize::from(text.starts_with('\u{feff}')));
    let (document, errors) = DeTable::parse_recoverable(text);
    let broken: Vec<TextSpan> = errors
        .iter()
        .map(|error| syntax::broken_part(text, error))
        .collect();
    let reader = ConfigReader::new(text, surroundings);
    let compiled = compile(&reader, document.get_ref());
    let mut notes = Vec::new();
    // Warnings may only follow from a mistake: a text with mistakes has none.
    if let Some(compiled) = compiled
        .as_ref()
        .filter(|_| errors.is_empty() && reader.has_no_errors())
    {
        warnings::find(&reader, compiled);
        if surroundings.forwards {
            notes = warnings::notes(compiled);
        }
    }
    let config = compiled.map(|compiled| compiled.config);
    let (findings, declared) = reader.into_parts();
    let mut list = syntax::errors(text, &errors);
    list.extend(findings.into_iter().filter(|one| !follows(one, &broken)));
    list.iter_mut().for_each(|one| note_variable(one, text));
    list.sort_by_key(Diagnostic::start);
    list.dedup();
    let diagnostics = Diagnostics {
        source,
        list,
        notes,
    };
    let loaded = match config {
        Some(config) if diagnostics.count(Severity::Error) == 0 => Ok((config, diagnostics)),
        _ => Err(diagnostics),
    };
    (loaded, declared)
}

/// Says that a value comes from a variable, whose name alone is in the file.
fn note_variable(finding: &mut Diagnostic, text: &str) {
    let place = finding
        .labels
        .first()
        .and_then(|label| text.get(label.span.clone()));
    let variable = place.and_then(first_variable);
    if let (Some(name), None, true) = (variable, &finding.note, finding.code != Code::Variable) {
        finding.note = Some(format!("the variable `{name}` sets this value"));
    }
}

/// Whether a finding may only follow from a part that is not TOML.
fn follows(finding: &Diagnostic, broken: &[TextSpan]) -> bool {
    let absent = [
        Code::MissingKey,
        Code::UnknownLimit,
        Code::UnknownUpstream,
        Code::UnknownUsage,
    ];
    let is_broken = |at: usize| broken.iter().any(|part| part.contains(&at));
    let mut labels = finding.labels.iter();
    let may_follow =
        absent.contains(&finding.code) || labels.any(|label| is_broken(label.span.start));
    !broken.is_empty() && may_follow
}

/// The file whose settings hold for all that a program does not set.
const BASE: &str = "[limit.default]\nrate = \"1/s\"\n";

#[derive(Clone, Debug, Default)]
pub struct LimitsBuilder {
    pub limits: Vec<BuiltLimit>,
    store: StoreKind,
    trusted: Vec<IpNet>,
}

#[derive(Clone, Debug)]
pub struct BuiltLimit {
    pub name: String,
    /// All of them hold; at least one.
    pub rules: Vec<Rule>,
    pub key: Key,
    pub on_error: OnError,
    pub shadow: bool,
    /// `None` for every path.
    pub path: Option<PathPattern>,
}

impl BuiltLimit {
    pub fn new(name: &str, rule: Rule) -> BuiltLimit {
        BuiltLimit {
            name: name.to_owned(),
            rules: vec![rule],
            key: Key::ip(),
            on_error: OnError::Local,
            shadow: false,
            path: None,
        }
    }

    fn limit(self, number: usize) -> Arc<Limit> {
        Arc::new(Limit {
            number,
            on_error: self.on_error,
            shadow: self.shadow,
            ..Limit::new(&self.name, &self.rules, self.key)
        })
    }
}

impl LimitsBuilder {
    /// Counts in the store at this URL.
    ///
    /// # Errors
    /// What is wrong with the URL, without the URL: it may have a password in it.
    pub fn store(&mut self, url: &str) -> Result<(), &'static str> {
        self.store = match redis::parse_url(url)? {
            Some(settings) => StoreKind::Redis(settings),
            None => StoreKind::Memory,
        };
        Ok(())
    }

    /// Trusts an address or a network of proxies, as `trusted_proxies` does.
    ///
    /// # Errors
    /// The text is neither.
    pub fn trust(&mut self, network: &str) -> Result<(), String> {
        self.trusted.push(address::network(network)?);
        Ok(())
    }

    /// # Errors
    /// Every mistake, a line each.
    pub fn build(self) -> Result<Config, String> {
        let mistakes = self.mistakes();
        if !mistakes.is_empty() {
            return Err(mistakes.join("\n"));
        }
        let base = parse_limits("limits", BASE, &|_| None);
        let (mut config, _) = base.map_err(|mistakes| mistakes.to_string())?;
        let mut paths: Vec<Option<PathPattern>> = vec![None];
        for limit in &self.limits {
            if !paths.contains(&limit.path) {
                paths.push(limit.path.clone());
            }
        }
        let numbered = self.limits.into_iter().enumerate();
        let limits: Vec<(Option<PathPattern>, Arc<Limit>)> = numbered
            .map(|(number, limit)| (limit.path.clone(), limit.limit(number)))
            .collect();
        let Some(every_path) = config.routes.iter().next().cloned() else {
            return Err("there is no route".to_owned());
        };
        let route = |path: Option<PathPattern>| {
            let holds =
                |limit: &&(Option<PathPattern>, Arc<Limit>)| limit.0.is_none() || limit.0 == path;
            let limits = limits.iter().filter(holds);
            let limits = limits.map(|(_, limit)| Arc::clone(limit)).collect();
            let name = path
                .as_ref()
                .map_or("/*".into(), |path| path.to_string().into());
            Route {
                name,
                path: path.unwrap_or_else(|| every_path.path.clone()),
                limits,
                ..every_path.clone()
            }
        };
        config.routes = RouteTable::new(paths.into_iter().map(route).collect())
            .map_err(|_| "two paths mean the same".to_owned())?;
        config.limits = limits.into_iter().map(|(_, limit)| limit).collect();
        config.store.kind = self.store;
        config.client_ip.trusted = self.trusted;
        Ok(config)
    }

    fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        if self.limits.is_empty() {
            mistakes.push("there is no limit".to_owned());
        }
        for (index, limit) in self.limits.iter().enumerate() {
            let name = &limit.name;
            if !is_name(name) {
                mistakes.push(format!(
                    "limit `{name}`: a name is 1 to 64 of a-z, 0-9, `_` and `-`"
                ));
            }
            if name == BLOCK_POLICY {
                mistakes.push(format!(
                    "limit `{name}`: blocked clients are told this name"
                ));
            }
            if self.limits[..index].iter().any(|other| other.name == *name) {
                mistakes.push(format!("limit `{name}` is there twice"));
            }
        }
        mistakes
    }
}
