//! The command line.
//!
//! Results go to standard output, everything else to standard error. Exit codes: 0 fine, 1 did not
//! work, 2 wrong use, 78 bad configuration (`EX_CONFIG` of sysexits.h).

mod admin_client;
mod check;
mod config;
mod display;
mod explain;
mod generate;
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

use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::config::diagnostic::Code;
use output::{CommandError, print, say};
use run::{DemoArgs, RunArgs};

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
    /// See limiting work: proxy.toml with a built-in echo upstream and the embedded store.
    Demo(DemoArgs),
    /// Find mistakes in a configuration.
    Check(check::CheckArgs),
    /// Print what holds in the end: every default said, variables filled in, secrets hidden.
    Config(config::ConfigArgs),
    /// Say what would become of a request, and why: its client, route, limits and answer.
    Explain(explain::ExplainArgs),
    /// Have the running proxy read its configuration again.
    Reload(config::ReloadArgs),
    /// Show how the running proxy is: store, limits, upstream servers, what was reloaded.
    Status(status::StatusArgs),
    /// Ask whether the running proxy is well: exit code 0 if so, for health checks of containers.
    Health(status::HealthArgs),
    /// Watch the running proxy, once a second, on a terminal.
    Top(top::TopArgs),
    /// Show denials as they happen.
    Tap(tap::TapArgs),
    /// See how single clients stand; give one another rate, a fresh start or a closed door.
    Limits(limits::LimitsArgs),
    /// See what these limits would have done to the requests of an access log.
    Replay(replay::ReplayArgs),
    /// Send requests, and show where they are denied and what a client sees.
    Try(send::TryArgs),
    /// Write a commented proxy.toml to begin with.
    Init(generate::InitArgs),
    /// Turn a configuration of nginx or Traefik into a proxy.toml, and list what is lost.
    Import(generate::ImportArgs),
    /// Print the JSON Schema of proxy.toml, with which an editor completes and checks it.
    Schema(generate::SchemaArgs),
    /// Print what a shell needs to complete commands.
    Completions(generate::CompletionsArgs),
    /// Print the man page, or write one for each command.
    Man(generate::ManArgs),
    /// Explain a diagnostic by its code, for example T101; without one, this text.
    Help(HelpArgs),
}

#[derive(Debug, Args)]
struct HelpArgs {
    /// The code that `check` printed.
    code: Option<String>,
}

/// `tidegate help T101`
fn print_help(args: &HelpArgs) -> Result<u8, CommandError> {
    let Some(text) = &args.code else {
        // Nothing to do if standard output is closed.
        let _ = Cli::command().print_long_help();
        return Ok(0);
    };
    let code = text.parse::<Code>().map_err(|_| {
        CommandError::signed(format!("there is no diagnostic `{text}`")).with_code(WRONG_USE)
    })?;
    print(format!("{}\n", code.explain().trim_end()));
    Ok(0)
}

/// Reads the command line and runs the command.
pub fn main() -> ExitCode {
    let cli = Cli::parse_from(limits::with_hashes(std::env::args_os()));
    let done = match cli.command.unwrap_or(CliCommand::Run(cli.run)) {
        CliCommand::Run(args) => run::run(&args),
        CliCommand::Demo(args) => run::demo(&args),
        CliCommand::Check(args) => match check::check(&args) {
            0 if args.online => check::check_online(&args),
            code => Ok(code),
        },
        CliCommand::Config(args) => config::config(&args),
        CliCommand::Explain(args) => explain::explain(&args),
        CliCommand::Reload(args) => config::reload(&args),
        CliCommand::Status(args) => status::status(&args),
        CliCommand::Health(args) => status::health(&args),
        CliCommand::Top(args) => top::top(&args),
        CliCommand::Tap(args) => tap::tap(&args),
        CliCommand::Limits(args) => limits::limits(&args),
        CliCommand::Replay(args) => replay::replay(args),
        CliCommand::Try(args) => send::send(&args),
        CliCommand::Init(args) => generate::init(&args),
        CliCommand::Import(args) => generate::import(&args),
        CliCommand::Schema(args) => generate::print_schema(&args),
        CliCommand::Completions(args) => generate::print_completions(&args),
        CliCommand::Man(args) => generate::write_man_pages(&args),
        CliCommand::Help(args) => print_help(&args),
    };
    let code = done.unwrap_or_else(|error| {
        say(&error.text);
        error.code
    });
    ExitCode::from(code)
}
