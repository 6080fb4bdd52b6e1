//! `tidegate completions` and `tidegate man`: made of the same declarations that read the command
//! line.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::run::say;
use super::{Cli, DID_NOT_WORK};

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell that is to complete.
    shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// A folder for one page of each command; without it the first page is printed.
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// Prints what a shell reads.
pub(super) fn completions(args: &CompletionsArgs) -> u8 {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tidegate", &mut text);
    print(&text)
}

/// Prints or writes man pages.
pub(super) fn man(args: &ManArgs) -> u8 {
    let command = Cli::command();
    let Some(folder) = &args.folder else {
        let mut text = Vec::new();
        return match clap_mangen::Man::new(command).render(&mut text) {
            Ok(()) => print(&text),
            Err(error) => failed(&error),
        };
    };
    let written =
        std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder));
    match written {
        Ok(()) => 0,
        Err(error) => failed(&error),
    }
}

fn print(text: &[u8]) -> u8 {
    // Nobody to tell where standard output is closed.
    let _ = std::io::stdout().write_all(text);
    0
}

fn failed(error: &std::io::Error) -> u8 {
    say(&format!("tidegate: {error}"));
    DID_NOT_WORK
}
