//! `tidegate help`: explains a command, or a diagnostic by its code.

use clap::{Args, CommandFactory, Parser};

use super::output::{CommandError, print};
use super::{Cli, WRONG_USE};
use crate::config::diagnostic::Code;

#[derive(Debug, Args)]
pub(super) struct HelpArgs {
    /// A command, as `check` or `limits show`, or a code that `check` printed, as `T101`.
    #[arg(value_name = "COMMAND | CODE")]
    words: Vec<String>,
}

pub(super) fn help(args: &HelpArgs) -> Result<u8, CommandError> {
    let Some(first) = args.words.first() else {
        // Nothing to do if standard output is closed.
        let _ = Cli::command().print_long_help();
        print(format!("\nCodes:\n{}", list_codes()));
        return Ok(0);
    };
    if Cli::command().find_subcommand(first).is_some() {
        return Ok(print_command_help(&args.words));
    }
    match first.parse::<Code>() {
        Ok(code) if args.words.len() == 1 => {
            print(format!("{}\n", code.explain().trim_end()));
            Ok(0)
        }
        _ => Err(unknown(&args.words.join(" "))),
    }
}

/// Prints what `--help` of the command prints, and returns the exit code.
fn print_command_help(words: &[String]) -> u8 {
    let words = words.iter().map(String::as_str);
    let line = ["tidegate"].into_iter().chain(words).chain(["--help"]);
    match Cli::try_parse_from(line) {
        Ok(_) => 0,
        Err(text) => {
            let _ = text.print();
            u8::try_from(text.exit_code()).unwrap_or(WRONG_USE)
        }
    }
}

fn list_codes() -> String {
    let line = |code: &Code| {
        let head = code.explain().lines().next().unwrap_or_default();
        let title = head.split_once(": ").map_or("", |(_, title)| title);
        format!("  {}  {title}\n", code.as_str())
    };
    Code::ALL.iter().map(line).collect()
}

fn unknown(text: &str) -> CommandError {
    let command = Cli::command();
    let commands = command.get_subcommands().map(|one| one.get_name());
    let codes = Code::ALL.iter().map(|code| code.as_str());
    let lower = text.to_lowercase();
    let near = commands
        .chain(codes)
        .map(|name| (strsim::osa_distance(&lower, &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= (text.chars().count() / 3).max(1))
        .min_by_key(|(distance, _)| *distance);
    let error = CommandError::wrong_use(format!("there is no command and no code `{text}`"));
    error.help(match near {
        Some((_, near)) => format!("did you mean `tidegate help {near}`?"),
        None => "`tidegate help` lists the commands and the codes".to_owned(),
    })
}
