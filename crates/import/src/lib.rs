//! Import: another program's configuration as a `proxy.toml`, and what of it could not be kept.
//!
//! What cannot be said in `proxy.toml` is never guessed: it is listed with its place. Where it
//! guarded access, or chose another place to go, its route answers 501 until somebody has decided.
//! Only `files` does IO, and it reads files only.

use tidegate_core::{config, limit, route};

mod bucket;
mod draft;
mod files;
mod nginx;
mod notes;
mod patterns;
mod print;
mod prune;
mod traefik;

use std::fmt;
use std::path::Path;

use draft::Draft;
pub use notes::{Grade, Note, Place};

/// Whose configuration it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// nginx.conf, or a file that it includes.
    Nginx,
    /// Traefik's dynamic or static configuration, YAML or TOML.
    Traefik,
}

/// What came out.
#[derive(Debug)]
pub struct Imported {
    /// A `proxy.toml` that `tidegate check` takes.
    pub text: String,
    /// What could not be kept, what is a little different now, and what is not needed.
    pub notes: Vec<Note>,
}

/// Why nothing came out.
#[derive(Debug)]
pub enum ImportError {
    /// A file cannot be read.
    Unreadable(String),
    /// It is not what it was said to be.
    Syntax {
        /// Where.
        place: Place,
        /// What is wrong there.
        what: String,
    },
    /// What came out cannot be used, which is a mistake of this program.
    Refused(String),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportError::Unreadable(what) => f.write_str(what),
            ImportError::Syntax { place, what } => write!(f, "{place}: {what}"),
            ImportError::Refused(why) => write!(
                f,
                "what was written is refused by `tidegate check`, a mistake of `tidegate import`; \
                 please report it\n{why}"
            ),
        }
    }
}

impl std::error::Error for ImportError {}

/// Reads what stands at `path`, `-` for standard input, and says it as a `proxy.toml`.
pub fn import(from: From, path: &Path) -> Result<Imported, ImportError> {
    let draft = match from {
        From::Nginx => nginx::read(path)?,
        From::Traefik => traefik::read(path)?,
    };
    finish(draft, path)
}

/// Prints the draft and has it read as a configuration. Certificates that cannot be used here are
/// written as comments: they may be on another machine.
fn finish(mut draft: Draft, path: &Path) -> Result<Imported, ImportError> {
    let name = path.display().to_string();
    let whole = Place {
        file: name.as_str().into(),
        line: 1,
    };
    prune::prune(&mut draft, &whole);
    if draft.limits.is_empty() {
        let why = "the file limits nothing that can be kept, so nothing is limited here: a \
                   `[limit.default]` with a `rate` limits every route that names no other";
        draft.notes.differs(&whole, "no limits", why);
    }
    draft.settle();
    let mut text = print::print(&draft, &name);
    if let (Some(why), true) = (prune::refusal(&text), draft.tls.is_used()) {
        draft.tls_is_elsewhere(&why);
        text = print::print(&draft, &name);
    }
    match read_back(&text) {
        Ok(()) => Ok(Imported {
            text,
            notes: draft.notes.sorted(),
        }),
        Err(why) => Err(ImportError::Refused(why)),
    }
}

/// What is wrong with a text as a configuration.
fn read_back(text: &str) -> Result<(), String> {
    let read = config::parse("proxy.toml", text, &|_| None);
    read.map(drop)
        .map_err(|found| config::render::human(&found, false))
}
