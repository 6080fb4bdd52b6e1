//! `tidegate init`: a commented `proxy.toml` to begin with. It never overwrites what is there.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use clap::Args;

use super::run::say;
use super::{DID_NOT_WORK, WRONG_USE};

const MINIMAL: &str = "listen   = \":8080\"\nupstream = \"http://127.0.0.1:3000\"\n\n\
    [limit.default]\nrate = \"100/min\"\nkey  = \"ip\"\n";
const USUAL: &str = include_str!("../../proxy.toml");
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
    let name = args.file.display();
    let mut options = OpenOptions::new();
    options.write(true).truncate(args.force);
    match args.force {
        true => options.create(true),
        false => options.create_new(true),
    };
    let written = options
        .open(&args.file)
        .and_then(|mut file| file.write_all(text.as_bytes()));
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
