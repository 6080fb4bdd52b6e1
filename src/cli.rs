//! The command line.
//!
//! Results go to standard output, everything else to standard error. Exit codes: 0 fine, 1 did not
//! work, 2 wrong use, 78 bad configuration (`EX_CONFIG` of sysexits.h).

mod admin_client;
mod check;
mod config;
mod demo;
mod display;
mod explain;
mod generate;
mod keys;
mod limits;
mod output;
mod proxy_snapshot;
mod replay;
mod run;
mod send;
mod signals;
mod single_instance;
mod status;
mod tap;
#[cfg(test)]
mod tests;
mod top;
mod usage;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};

use demo::DemoArgs;
use output::{CommandError, print, print_error};
use run::RunArgs;

use crate::config::diagnostic::Code;

const DID_NOT_WORK: u8 = 1;
const WRONG_USE: u8 = 2;
const BAD_CONFIGURATION: u8 = 78;

/// A reverse proxy with rate limiting built in.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<CliCommand>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run the proxy (the default).
    Run(RunArgs),
    /// See limiting work: proxy.toml with a built-in echo upstream, clients and a dashboard.
    Demo(DemoArgs),
    /// Find mistakes in a configuration.
    Check(check::CheckArgs),
    /// Print the effective configuration: with every default, variables replaced, secrets hidden.
    Config(config::ConfigArgs),
    /// Show what happens to a request, and why: its client, route, limits and response.
    Explain(explain::ExplainArgs),
    /// Make the running proxy read its configuration again.
    Reload(config::ReloadArgs),
    /// Show the state of the running proxy: store, limits, upstream servers, last reload.
    Status(status::StatusArgs),
    /// Check the health of the running proxy, for containers: exit code 0 if it is healthy.
    Health(status::HealthArgs),
    /// Watch the running proxy on a terminal, updated every second.
    Top(top::TopArgs),
    /// Show denials as they happen.
    Tap(tap::TapArgs),
    /// Show the usage of single clients, reset it, override a rate, or block a client.
    Limits(limits::LimitsArgs),
    /// Add, list and remove the API keys that all proxies of a Redis know.
    Keys(keys::KeysArgs),
    /// Show what each client used, by day, for invoices.
    Usage(usage::UsageArgs),
    /// Run an access log through the limits, and report the requests that they would deny.
    Replay(replay::ReplayArgs),
    /// Send requests, and show the first denial with its headers.
    Try(send::TryArgs),
    /// Write a commented proxy.toml to start from.
    Init(generate::InitArgs),
    /// Translate a configuration of another proxy or gateway into a proxy.toml, and list all lost
    /// parts.
    Import(generate::ImportArgs),
    /// Print the JSON Schema of proxy.toml, for completion and checks in editors.
    Schema(generate::SchemaArgs),
    /// Print the completions of commands for a shell.
    Completions(generate::CompletionsArgs),
    /// Print the man page, or write one for each command.
    Man(generate::ManArgs),
    /// Explain a command, or a diagnostic by its code, for example T101; list them all.
    Help(HelpArgs),
}

/// Reads the command line and runs the command.
pub fn main() -> ExitCode {
    let line = limits::with_hashes(std::env::args_os());
    let cli = Cli::try_parse_from(line).unwrap_or_else(|error| with_advice(error).exit());
    let done = match cli.command.unwrap_or(CliCommand::Run(cli.run)) {
        CliCommand::Run(args) => run::run(&args),
        CliCommand::Demo(args) => demo::demo(&args),
        CliCommand::Check(args) => match check::check(&args) {
            Ok(0) if args.online => check::check_online(&args),
            done => done,
        },
        CliCommand::Config(args) => config::config(&args),
        CliCommand::Explain(args) => explain::explain(&args),
        CliCommand::Reload(args) => config::reload(&args),
        CliCommand::Status(args) => status::status(&args),
        CliCommand::Health(args) => status::health(&args),
        CliCommand::Top(args) => top::top(&args),
        CliCommand::Tap(args) => tap::tap(&args),
        CliCommand::Limits(args) => limits::limits(&args),
        CliCommand::Keys(args) => keys::keys(&args),
        CliCommand::Usage(args) => usage::usage(&args),
        CliCommand::Replay(args) => replay::replay(args),
        CliCommand::Try(args) => send::send(&args),
        CliCommand::Init(args) => generate::init(&args),
        CliCommand::Import(args) => generate::import(&args),
        CliCommand::Schema(args) => generate::print_schema(&args),
        CliCommand::Completions(args) => generate::print_completions(&args),
        CliCommand::Man(args) => generate::write_man_pages(&args),
        CliCommand::Help(args) => help(&args),
    };
    let code = done.unwrap_or_else(|error| {
        print_error(&error.text);
        error.code
    });
    ExitCode::from(code)
}

/// Says how to name a file of settings.
fn with_advice(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && error.kind() == ErrorKind::UnknownArgument
        && word.ends_with(".toml")
    {
        let advice = format!("to use this file, write `-c {word}`");
        let advice = ContextValue::StyledStrs(vec![advice.into()]);
        error.insert(ContextKind::Suggested, advice);
    }
    error
}

#[derive(Debug, Args)]
struct HelpArgs {
    /// A command, as `check` or `limits show`, or a code that `check` printed, as `T101`.
    #[arg(value_name = "COMMAND | CODE")]
    words: Vec<String>,
}

/// `tidegate help`: explains a command, or a diagnostic by its code.
fn help(args: &HelpArgs) -> Result<u8, CommandError> {
    let Some(first) = args.words.first() else {
        // Nothing to do if standard output is closed.
        let _ = Cli::command().print_long_help();
        print(format!("\nCodes:\n{}", list_codes()))?;
        return Ok(0);
    };
    if Cli::command().find_subcommand(first).is_some() {
        return Ok(print_command_help(&args.words));
    }
    match first.parse::<Code>() {
        Ok(code) if args.words.len() == 1 => {
            print(format!("{}\n", code.explain().trim_end()))?;
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
