//! `tidegate init`: a commented `proxy.toml` to begin with. It never overwrites what is there.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use super::run::say;
use super::{DID_NOT_WORK, WRONG_USE};

const MINIMAL: &str = "listen   = \":8080\"\nupstream = \"http://127.0.0.1:3000\"\n\n\
    [limit.default]\nrate = \"100/min\"\nkey  = \"ip\"\n";
const USUAL: &str = include_str!("../../proxy.toml");
/// What the schema is called that stands beside it.
const SCHEMA: &str = "proxy.schema.json";
const FULL: &str = include_str!("../../proxy.reference.toml");

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Where to write it.
    #[arg(value_name = "FILE", default_value = "proxy.toml")]
    file: PathBuf,
    /// The smallest file that limits something.
    #[arg(long, conflicts_with = "full")]
    minimal: bool,
    /// Every setting with its default.
    #[arg(long)]
    full: bool,
    /// And beside it the schema with which an editor completes and checks it.
    #[arg(long)]
    schema: bool,
    /// Overwrite the file if there is one.
    #[arg(long)]
    force: bool,
}

/// Returns the exit code.
pub(super) fn init(args: &InitArgs) -> u8 {
    let text = match (args.minimal, args.full) {
        (true, _) => MINIMAL,
        (_, true) => FULL,
        _ => USUAL,
    };
    let beside = args.file.with_file_name(SCHEMA);
    let line = match args.schema || beside.is_file() {
        true => format!("#:schema ./{SCHEMA}\n"),
        false => String::new(),
    };
    let name = args.file.display();
    let mut written = written(&args.file, &format!("{line}{text}"), args.force);
    if args.schema && written.is_ok() {
        // Nobody edits it: the one of this version is the right one.
        written = self::written(&beside, &super::schema::text(), true);
    }
    match written {
        Ok(()) => {
            say(&format!(
                "wrote {name}; find mistakes with `tidegate check -c {name}`, serve with \
                 `tidegate run -c {name}`"
            ));
            0
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            say(&format!(
                "tidegate: there is a {name} already; `--force` overwrites it"
            ));
            WRONG_USE
        }
        Err(error) => {
            say(&format!("tidegate: cannot write {name}: {error}"));
            DID_NOT_WORK
        }
    }
}

/// Writes a file, which must be a new one unless it is forced.
pub(super) fn written(path: &Path, text: &str, force: bool) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).truncate(force);
    match force {
        true => options.create(true),
        false => options.create_new(true),
    };
    options.open(path)?.write_all(text.as_bytes())
}
