//! From a file, a text or flags to a [`Config`], or to everything that is wrong with it.
//!
//! The only file of the configuration that does IO: it reads the file, the environment and the
//! secrets that the file names.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use toml::de::{DeTable, DeValue};

use super::compile::{RawFile, compile};
use super::diagnostic::{Code, Diagnostic, Diagnostics, Severity, Source, Span};
use super::interpolate::interpolate;
use super::reader::{At, Reader, Surroundings};
use super::section::Section;
use super::values::TextForm;
use super::written::{NamedFile, Value, Written, tree};
use super::{
    Config, Control, Limits, Listen, address, admin, api_key, auth, bypass, hints, limits, route,
    settings, standalone, syntax, tier, tls_keys, traces, upstream, warnings,
};

/// Bytes of a configuration file, at most.
const MAX_FILE: u64 = 16 << 20;

/// Reads a file. The second part of what it returns is the warnings; as an error, every mistake,
/// those in syntax included. A file that cannot be read is [`Code::Unreadable`].
pub fn load(path: &Path) -> Result<(Config, Diagnostics), Diagnostics> {
    load_noting(path, &mut Vec::new())
}

/// The same; `files` gets every other file that was looked at, whatever came of it.
pub fn load_noting(
    path: &Path,
    files: &mut Vec<NamedFile>,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let noted = RefCell::new(Vec::new());
    let loaded = parse_file(path, |name, text, env| {
        parse_noting(
            &Origin {
                name,
                folder: folder_of(path),
            },
            text,
            env,
            &noted,
        )
    });
    *files = noted.into_inner();
    loaded
}

/// Reads a file that limits what somebody else serves: it has no `listen` and no `upstream`.
/// Returns as [`load()`] does.
pub fn load_limits(path: &Path) -> Result<(Limits, Diagnostics), Diagnostics> {
    let folder = folder_of(path);
    parse_file(path, |name, text, env| {
        limits_in(&Origin { name, folder }, text, env)
    })
}

/// The same for a text.
pub fn parse_limits(
    source_name: &str,
    text: &str,
    env: Environment<'_>,
) -> Result<(Limits, Diagnostics), Diagnostics> {
    limits_in(&Origin::of_text(source_name), text, env)
}

fn limits_in(origin: &Origin<'_>, text: &str, env: Environment<'_>) -> Parsed<Limits> {
    let around = Surroundings {
        base: origin.folder,
        forwards: false,
        env,
        read: &read_bounded,
        now_s: now_s(),
    };
    let (config, warnings) = read_text(origin.name, text, &around).0?;
    Ok((Limits(config), warnings))
}

/// Where `${NAME}` in a file is looked up.
type Environment<'e> = &'e dyn Fn(&str) -> Option<String>;

/// A configuration of some kind and its warnings, or every mistake.
type Parsed<T> = Result<(T, Diagnostics), Diagnostics>;

fn parse_file<T>(
    path: &Path,
    parse: impl Fn(&str, &str, Environment<'_>) -> Parsed<T>,
) -> Parsed<T> {
    let name = path.display().to_string();
    match read_bounded(path, MAX_FILE + 1).and_then(|bytes| {
        if bytes.len() as u64 > MAX_FILE {
            return Err(io::Error::other(format!("longer than {MAX_FILE} bytes")));
        }
        String::from_utf8(bytes).map_err(|error| not_utf8(&error))
    }) {
        Ok(text) => parse(&name, &text, &environment),
        Err(error) => {
            let missing = error.kind() == io::ErrorKind::NotFound;
            let text = error.to_string();
            let (why, help) = text.split_once("; ").unwrap_or((&text, ""));
            let message = format!("cannot read `{name}`: {why}");
            let mut found = Diagnostic::new(Code::Unreadable, message);
            if missing {
                found = found.help("name another by `-c FILE`; `tidegate init` makes one");
            } else if !help.is_empty() {
                found = found.help(help);
            }
            let list = vec![found];
            Err(Diagnostics {
                source: Source {
                    name,
                    text: String::new(),
                },
                list,
                notes: Vec::new(),
            })
        }
    }
}

/// Where a file is not UTF-8, and what it may be.
fn not_utf8(error: &std::string::FromUtf8Error) -> io::Error {
    let bytes = error.as_bytes();
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return io::Error::other("it is UTF-16; save it as UTF-8");
    }
    let before = &bytes[..error.utf8_error().valid_up_to()];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    io::Error::other(format!("line {line} is not UTF-8; save the file as UTF-8"))
}

/// The same for a text. Its files (`password_file` and the like) are read, nothing else.
pub fn parse(
    source_name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(Config, Diagnostics), Diagnostics> {
    parse_noting(
        &Origin::of_text(source_name),
        text,
        env,
        &RefCell::default(),
    )
}

/// Where a text is from: what messages call it, and the folder that its relative paths begin from.
struct Origin<'o> {
    name: &'o str,
    folder: &'o Path,
}

impl Origin<'_> {
    /// A text that is no file: its paths begin from the working directory.
    fn of_text(name: &str) -> Origin<'_> {
        let folder = Path::new("");
        Origin { name, folder }
    }
}

/// The folder that a file's relative paths begin from.
fn folder_of(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new(""))
}

fn parse_noting(
    origin: &Origin<'_>,
    text: &str,
    env: Environment<'_>,
    files: &RefCell<Vec<NamedFile>>,
) -> Parsed<Config> {
    let read = |path: &Path, most| {
        let content = read_bounded(path, most);
        let noted = NamedFile::new(path, content.as_deref().ok());
        files.borrow_mut().push(noted);
        content
    };
    let around = Surroundings {
        forwards: true,
        env,
        base: origin.folder,
        read: &read,
        now_s: now_s(),
    };
    let (mut config, warnings) = read_text(origin.name, text, &around).0?;
    config.written = Arc::new(Written {
        text: text.to_owned(),
        files: files.borrow().clone(),
    });
    Ok((config, warnings))
}

/// What a file says of the socket for commands, also where all else in it is wrong.
pub fn control_of(path: &Path) -> Control {
    let text = read_bounded(path, MAX_FILE).unwrap_or_default();
    let top = tree(&String::from_utf8_lossy(&text));
    let Some(Value::Table(server)) = top.get("server") else {
        return Control::Derived;
    };
    let Some(Value::Word(text)) = server.get("control") else {
        return Control::Derived;
    };
    let filled = interpolate(text, &environment).ok();
    let control = filled.and_then(|text| settings::control(&text).ok());
    match control {
        Some(Control::At(socket)) => Control::At(folder_of(path).join(socket)),
        control => control.unwrap_or(Control::Derived),
    }
}

/// Where operators look in, as far as a file says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminPlace {
    /// Where it listens.
    pub address: Option<SocketAddr>,
    /// The file with the token.
    pub token_file: Option<PathBuf>,
}

/// What a file says of the admin, also where all else in it is wrong.
///
/// # Errors
/// It cannot be read.
pub fn admin_of(path: &Path) -> io::Result<AdminPlace> {
    let text = read_bounded(path, MAX_FILE)?;
    let top = tree(&String::from_utf8_lossy(&text));
    let word = |key: &str| match top.get(key) {
        Some(Value::Word(text)) => interpolate(text, &environment).ok(),
        _ => None,
    };
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
    reason = "the words get their time from here; the clock's room is below this one"
)]
fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

fn read_bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(most)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Sections and their keys, as `(section, key)`.
pub(super) type Asked = BTreeSet<(String, &'static str)>;

/// A configuration and its warnings, or every mistake.
pub(super) type Outcome = Result<(Config, Diagnostics), Diagnostics>;

/// The whole way from text to configuration; also every key that was asked for.
pub(super) fn read_text(name: &str, text: &str, around: &Surroundings<'_>) -> (Outcome, Asked) {
    let source = Source {
        name: name.to_owned(),
        text: text.to_owned(),
    };
    // A byte order mark is no part of the document; as spaces it leaves all spans in place.
    let owned = text
        .strip_prefix('\u{feff}')
        .map(|rest| format!("   {rest}"));
    let text = owned.as_deref().unwrap_or(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    let broken_lines: Vec<Span> = errors
        .iter()
        .map(|error| syntax::broken(text, error))
        .collect();
    let reader = Reader::new(text, around);
    let raw = read(&reader, document.get_ref());
    let compiled = compile(&reader, raw);
    let mut notes = Vec::new();
    // A doubt may only follow from a mistake: mistakes come first.
    if let Some(compiled) = compiled
        .as_ref()
        .filter(|_| errors.is_empty() && reader.is_clean())
    {
        warnings::find(&reader, compiled);
        if around.forwards {
            notes = hints::find(compiled);
        }
    }
    let config = compiled.map(|compiled| compiled.config);
    let (found, asked) = reader.into_parts();
    let mut list = syntax::errors(text, &errors);
    // What stands on a line with a syntax error was read as well as could be guessed.
    list.extend(found.into_iter().filter(|one| !follows(one, &broken_lines)));
    list.sort_by_key(Diagnostic::start);
    list.dedup();
    let findings = Diagnostics {
        source,
        list,
        notes,
    };
    let outcome = match config {
        Some(config) if findings.count(Severity::Error) == 0 => Ok((config, findings)),
        _ => Err(findings),
    };
    (outcome, asked)
}

/// Whether a finding may only follow from a line that was not understood.
fn follows(finding: &Diagnostic, broken_lines: &[Span]) -> bool {
    if broken_lines.is_empty() {
        return false;
    }
    let absent = [Code::MissingKey, Code::UnknownLimit, Code::UnknownUpstream];
    let on_broken_line = |at: usize| broken_lines.iter().any(|line| line.contains(&at));
    absent.contains(&finding.code)
        || finding
            .labels
            .iter()
            .any(|label| on_broken_line(label.span.start))
}

/// Every section by itself.
fn read<'r>(reader: &'r Reader<'r>, table: &'r DeTable<'r>) -> RawFile {
    let mut top = Section::top(reader, table);
    if !reader.surroundings.forwards {
        standalone::refuse_serving(&top);
    }
    let mut keys = api_key::read(top.section("api_key"));
    let mut known = limits::known(&top);
    let tier_span = tier::span(&top);
    let tier = tier::read(&mut top, known, keys.list());
    known.tier |= tier.as_ref().is_some_and(|tier| tier.by_key);
    let listen = listen(&mut top);
    let admin = admin::read(&mut top);
    let trusted_span = top.key_span("trusted_proxies");
    let upstream = top_upstream(&mut top);
    let (headers, request_id) = settings::headers(top.section("headers"));
    let jwt = auth::read(top.section("auth"));
    let raw = RawFile {
        listen,
        admin,
        tls: tls_keys::read(&mut top),
        trusted_span,
        upstream,
        case: top.word("case", route::CASES),
        client_ip: settings::client_ip(&mut top),
        store: settings::store(top.section("store")),
        unknown_span: keys.unknown_span.clone(),
        api_key: keys.finish(jwt.is_some()),
        jwt,
        tier_span,
        tier,
        limits: each(top.named("limit"), |name, section| {
            limits::limit(name, section, known)
        }),
        routes: top.list("route").into_iter().map(route::route).collect(),
        bypass: top
            .list("bypass")
            .into_iter()
            .filter_map(bypass::read)
            .collect(),
        upstreams: each(top.named("upstream"), |name, section| {
            upstream::read(name, section, known)
        }),
        headers,
        request_id,
        deny: settings::deny(top.section("deny")),
        server: settings::server(&mut top),
        log: settings::log(top.section("log")),
        tracing: traces::read(top.section("tracing")),
    };
    top.finish();
    raw
}

fn each<'r, T>(
    sections: Vec<(At<String>, Section<'r>)>,
    read: impl Fn(At<String>, Section<'r>) -> T,
) -> Vec<T> {
    sections
        .into_iter()
        .map(|(name, section)| read(name, section))
        .collect()
}

fn listen(top: &mut Section<'_>) -> Vec<At<Listen>> {
    let texts = top.texts("listen");
    let none = texts.as_ref().filter(|texts| texts.value.is_empty());
    // A proxy may listen with TLS only.
    if let Some(texts) = none.filter(|_| top.peek("tls").is_none()) {
        top.out_of_range_at("listen", texts, "one or more addresses");
    }
    let texts = texts.map_or_else(
        || {
            vec![At {
                value: ":8080".to_owned(),
                span: 0..0,
            }]
        },
        |texts| texts.value,
    );
    let kind = TextForm::LISTEN;
    let read = |text| top.understood("listen", text, kind, |text| top.listen_at(text));
    texts.into_iter().filter_map(read).collect()
}

/// `upstream` at the top is a URL, or the tables `[upstream.NAME]`, which are read elsewhere.
fn top_upstream(top: &mut Section<'_>) -> Option<At<Option<String>>> {
    let value = top.peek("upstream")?;
    let span = value.span();
    let text = match value.get_ref() {
        DeValue::Table(_) => return None,
        DeValue::String(_) => top.text("upstream").map(|text| text.value),
        _ => {
            top.wrong_type(
                "upstream",
                value,
                "a URL, or tables with names: `[upstream.NAME]`",
            );
            None
        }
    };
    Some(At { value: text, span })
}
