//! `tidegate import`: another program's configuration as a `proxy.toml`, and what is lost.

use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::init::written;
use super::run::say;
use super::{BAD_CONFIGURATION, DID_NOT_WORK, WRONG_USE};
use crate::import::{self, Grade, ImportError, Imported};

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// Whose configuration it is.
    #[arg(value_enum)]
    from: Program,
    /// The file, with all that it includes; `-` is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where to write the proxy.toml; else standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite the output if it is there.
    #[arg(long, requires = "output")]
    force: bool,
    /// End with 1 where something could not be kept.
    #[arg(long)]
    strict: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Program {
    /// nginx.conf, or a file that it includes.
    Nginx,
    /// Traefik's dynamic or static configuration, YAML or TOML.
    Traefik,
}

/// Returns the exit code.
pub(super) fn import(args: &ImportArgs) -> u8 {
    let from = match args.from {
        Program::Nginx => import::SourceProgram::Nginx,
        Program::Traefik => import::SourceProgram::Traefik,
    };
    let imported = match import::import(from, &args.file) {
        Ok(imported) => imported,
        Err(error) => {
            say(&format!("tidegate: {error}"));
            return match error {
                ImportError::Syntax { .. } => BAD_CONFIGURATION,
                ImportError::Unreadable(_) | ImportError::Refused(_) => DID_NOT_WORK,
            };
        }
    };
    let written = match &args.output {
        Some(path) => written(path, &imported.text, args.force),
        None => io::stdout().write_all(imported.text.as_bytes()),
    };
    match (written, &args.output) {
        (Ok(()), _) => {}
        (Err(error), Some(path)) if error.kind() == ErrorKind::AlreadyExists => {
            let name = path.display();
            say(&format!(
                "tidegate: there is a {name} already; `--force` overwrites it"
            ));
            return WRONG_USE;
        }
        (Err(error), _) => {
            say(&format!("tidegate: cannot write: {error}"));
            return DID_NOT_WORK;
        }
    }
    let lost = told(&imported);
    u8::from(args.strict && lost > 0) * DID_NOT_WORK
}

/// Says what is not as it was, and returns how much of it is lost.
fn told(imported: &Imported) -> usize {
    let count = |grade| {
        let notes = imported.notes.iter();
        notes.filter(|note| note.grade == grade).count()
    };
    for note in &imported.notes {
        match note.grade {
            Grade::Lost => say(&format!("not kept: {note}")),
            Grade::Differs => say(&format!("differs:  {note}")),
            Grade::Needless => {}
        }
    }
    let lost = count(Grade::Lost);
    say(&format!(
        "{lost} not kept, {} a little different, {} not needed; the whole list is at the head of \
         the file",
        count(Grade::Differs),
        count(Grade::Needless)
    ));
    lost
}
