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

use toml::de::DeTable;

use super::compile::{compile, read_sections};
use super::diagnostic::{Code, Diagnostic, Diagnostics, Severity, SourceText, TextSpan};
use super::files::{NamedFile, SourceFiles};
use super::interpolate::interpolate;
use super::reader::{ConfigReader, DeclaredSettings, Surroundings};
use super::reference::document_as_json;
use super::{Config, Control, Listen, address, server, syntax, warnings};

/// Bytes of a configuration file, at most.
const MAX_FILE: u64 = 16 << 20;

/// Looks up `${NAME}` of a file.
type Environment<'e> = &'e dyn Fn(&str) -> Option<String>;

/// A configuration of some kind with its warnings, or every mistake.
pub(super) type Loaded<T> = Result<(T, Diagnostics), Diagnostics>;

/// A whole, valid configuration of a limiter alone: it listens nowhere and forwards nothing.
#[derive(Debug)]
pub struct Limits(pub(super) Config);

impl Limits {
    /// The configuration. The upstreams of its routes and its `server` mean nothing.
    pub fn into_config(self) -> Config {
        self.0
    }
}

/// Loads a file, with warnings. Its error is every mistake, those in syntax included. A file that
/// cannot be read is [`Code::Unreadable`].
pub fn load(path: &Path) -> Result<(Config, Diagnostics), Diagnostics> {
    load_noting(path, &mut Vec::new())
}

/// The same. `files` gets every other file that was read, also after a failure.
pub fn load_noting(
    path: &Path,
    files: &mut Vec<NamedFile>,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let noted = RefCell::new(Vec::new());
    let loaded = parse_file(path, |name, text| {
        parse_proxy(&Origin::of_file(name, path), text, &environment, &noted)
    });
    *files = noted.into_inner();
    loaded
}

/// Loads a file that limits another service: it has no `listen` and no `upstream`. Returns as
/// [`load()`] does.
pub fn load_limits(path: &Path) -> Result<(Limits, Diagnostics), Diagnostics> {
    parse_file(path, |name, text| {
        parse_limiter(&Origin::of_file(name, path), text, &environment)
    })
}

/// The same for a text.
pub fn parse_limits(
    source_name: &str,
    text: &str,
    env: Environment<'_>,
) -> Result<(Limits, Diagnostics), Diagnostics> {
    parse_limiter(&Origin::of_text(source_name), text, env)
}

/// Parses a text. It reads only the files that the text names, such as `password_file`.
pub fn parse(
    source_name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let origin = Origin::of_text(source_name);
    parse_proxy(&origin, text, env, &RefCell::default())
}

/// The name of a text in messages, and the folder where its relative paths start.
struct Origin<'o> {
    name: &'o str,
    folder: &'o Path,
}

impl<'o> Origin<'o> {
    /// A text without a file: its paths start from the working directory.
    fn of_text(name: &'o str) -> Origin<'o> {
        let folder = Path::new("");
        Origin { name, folder }
    }

    fn of_file(name: &'o str, file: &'o Path) -> Origin<'o> {
        let folder = folder_of(file);
        Origin { name, folder }
    }

    fn surroundings<'s>(
        &self,
        env: Environment<'s>,
        read: &'s dyn Fn(&Path, u64) -> io::Result<Vec<u8>>,
    ) -> Surroundings<'s>
    where
        'o: 's,
    {
        Surroundings {
            forwards: true,
            env,
            base: self.folder,
            read,
            now_s: now_s(),
        }
    }
}

/// The folder where a file's relative paths start.
fn folder_of(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new(""))
}

fn parse_proxy(
    origin: &Origin<'_>,
    text: &str,
    env: Environment<'_>,
    files: &RefCell<Vec<NamedFile>>,
) -> Loaded<Config> {
    let read = |path: &Path, max_bytes| {
        let content = read_bounded(path, max_bytes);
        let noted = NamedFile::new(path, content.as_deref().ok());
        files.borrow_mut().push(noted);
        content
    };
    let surroundings = origin.surroundings(env, &read);
    let (mut config, warnings) = read_text(origin.name, text, &surroundings).0?;
    config.sources = Arc::new(SourceFiles {
        text: text.to_owned(),
        files: files.borrow().clone(),
    });
    Ok((config, warnings))
}

fn parse_limiter(origin: &Origin<'_>, text: &str, env: Environment<'_>) -> Loaded<Limits> {
    let surroundings = Surroundings {
        forwards: false,
        ..origin.surroundings(env, &read_bounded)
    };
    let (config, warnings) = read_text(origin.name, text, &surroundings).0?;
    Ok((Limits(config), warnings))
}

fn parse_file<T>(path: &Path, parse: impl Fn(&str, &str) -> Loaded<T>) -> Loaded<T> {
    let name = path.display().to_string();
    let error = match read_utf8(path) {
        Ok(text) => return parse(&name, &text),
        Err(error) => error,
    };
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
) -> (Loaded<Config>, DeclaredSettings) {
    let source = SourceText {
        name: name.to_owned(),
        text: text.to_owned(),
    };
    // A byte order mark is no part of the document. Spaces in its place leave all spans right.
    let without_mark = text
        .strip_prefix('\u{feff}')
        .map(|rest| format!("   {rest}"));
    let text = without_mark.as_deref().unwrap_or(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    let broken: Vec<TextSpan> = errors
        .iter()
        .map(|error| syntax::broken_part(text, error))
        .collect();
    let reader = ConfigReader::new(text, surroundings);
    let compiled = compile(&reader, read_sections(&reader, document.get_ref()));
    let mut notes = Vec::new();
    // Warnings may only follow from a mistake: a text with mistakes has none.
    if let Some(compiled) = compiled
        .as_ref()
        .filter(|_| errors.is_empty() && reader.has_no_findings())
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

/// Whether a finding may only follow from a part that is not TOML.
fn follows(finding: &Diagnostic, broken: &[TextSpan]) -> bool {
    let absent = [Code::MissingKey, Code::UnknownLimit, Code::UnknownUpstream];
    let is_broken = |at: usize| broken.iter().any(|part| part.contains(&at));
    let mut labels = finding.labels.iter();
    let may_follow =
        absent.contains(&finding.code) || labels.any(|label| is_broken(label.span.start));
    !broken.is_empty() && may_follow
}
