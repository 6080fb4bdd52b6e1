//! The door: the command line.
//!
//! Results go to standard output, everything else to standard error. Exit codes: 0 fine, 1 did not
//! work, 2 wrong use, 78 bad configuration (`EX_CONFIG` of sysexits.h).

mod admin_client;
mod attempt;
mod check;
mod config;
mod demo;
mod explain;
mod figures;
mod health;
mod import;
mod init;
mod ink;
mod limits;
mod manual;
mod online;
mod reload;
mod replay;
mod run;
mod schema;
mod seen;
mod signals;
mod status;
mod tables;
mod tap;
mod top;
mod trouble;
#[cfg(test)]
mod written;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::config::diagnostic::Code;

/// Exit codes, as users read them.
const DID_NOT_WORK: u8 = 1;
const WRONG_USE: u8 = 2;
const BAD_CONFIGURATION: u8 = check::BAD_CONFIG;

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
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the proxy (the default).
    Run(RunArgs),
    /// See limiting work: proxy.toml with a built-in echo upstream and the embedded store.
    Demo(DemoArgs),
    /// Find mistakes in a configuration.
    Check(CheckArgs),
    /// Print what holds in the end: every default said, variables filled in, secrets hidden.
    Config(config::ConfigArgs),
    /// Say what would become of a request, and why: its client, route, limits and answer.
    Explain(explain::ExplainArgs),
    /// Have the running proxy read its configuration again.
    Reload(reload::ReloadArgs),
    /// Show how the running proxy is: store, limits, upstream servers, what was reloaded.
    Status(status::StatusArgs),
    /// Ask whether the running proxy is well: exit code 0 if so, for health checks of containers.
    Health(health::HealthArgs),
    /// Watch the running proxy, once a second, on a terminal.
    Top(top::TopArgs),
    /// Show denials as they happen.
    Tap(tap::TapArgs),
    /// See how single clients stand; give one another rate, a fresh start or a closed door.
    Limits(limits::LimitsArgs),
    /// See what these limits would have done to the requests of an access log.
    Replay(replay::ReplayArgs),
    /// Send requests, and show where they are denied and what a client sees.
    Try(attempt::TryArgs),
    /// Write a commented proxy.toml to begin with.
    Init(init::InitArgs),
    /// Turn a configuration of nginx or Traefik into a proxy.toml, and list what is lost.
    Import(import::ImportArgs),
    /// Print the JSON Schema of proxy.toml, with which an editor completes and checks it.
    Schema,
    /// Print what a shell needs to complete commands.
    Completions(manual::CompletionsArgs),
    /// Print the man page, or write one for each command.
    Man(manual::ManArgs),
    /// Explain a diagnostic by its code, for example T101; without one, this text.
    Help(HelpArgs),
}

/// Either a file, or everything on the command line.
#[derive(Debug, Args)]
struct RunArgs {
    /// The configuration to run.
    #[arg(short, long, value_name = "FILE", conflicts_with = "to")]
    config: Option<PathBuf>,
    /// Read the configuration again when it, or a file that it names, changes.
    #[arg(long, conflicts_with = "to")]
    watch: bool,
    /// Start although another process runs this file or listens on its addresses: each gets a part
    /// of the requests, and counts for itself where the store is `memory:`.
    #[arg(long)]
    alongside: bool,
    /// Run without a file: where requests go.
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// Where clients connect.
    #[arg(long, value_name = "ADDRESS", requires = "to")]
    listen: Option<String>,
    /// How much each client may do, for example 100/min.
    #[arg(long, value_name = "RATE", requires = "to")]
    limit: Option<String>,
    /// What clients are told apart by.
    #[arg(long, value_name = "KEY", requires = "limit")]
    key: Option<String>,
    /// Where counts are shared with other proxies; without it they live in this process.
    #[arg(long, value_name = "URL", requires = "to")]
    redis: Option<String>,
}

#[derive(Debug, Args)]
struct DemoArgs {
    /// The configuration whose routes and limits to show.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// The configuration to check.
    #[arg(short, long, value_name = "FILE", default_value = "proxy.toml")]
    config: PathBuf,
    /// How to print what was found.
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
    /// Treat warnings as errors.
    #[arg(long)]
    deny_warnings: bool,
    /// And ask: does the store answer, can servers be reached, are addresses free?
    #[arg(long)]
    online: bool,
}

#[derive(Debug, Args)]
struct HelpArgs {
    /// The code that `check` printed.
    code: Option<String>,
}

/// How `check` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Human,
    /// For scripts.
    Json,
    /// As annotations of a GitHub workflow.
    Github,
}

/// `tidegate help T101`
fn help(args: &HelpArgs) -> u8 {
    let Some(text) = &args.code else {
        // Nobody to tell where standard output is closed.
        let _ = Cli::command().print_long_help();
        return 0;
    };
    match text.parse::<Code>() {
        Ok(code) => {
            let _ = writeln!(std::io::stdout(), "{}", code.explain().trim_end());
            0
        }
        Err(_) => {
            run::say(&format!("tidegate: there is no diagnostic `{text}`"));
            WRONG_USE
        }
    }
}

/// Colour only on a terminal, and never with `NO_COLOR`.
fn colour(stream: &impl std::io::IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Reads the command line and does what it says.
pub fn main() -> ExitCode {
    let cli = Cli::parse_from(limits::with_hashes(std::env::args_os()));
    let code = match cli.command {
        None => run::run(&cli.run),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Demo(args)) => demo::demo(&args),
        Some(Command::Config(args)) => config::config(&args),
        Some(Command::Explain(args)) => explain::run(&args),
        Some(Command::Reload(args)) => reload::reload(&args),
        Some(Command::Status(args)) => status::status(&args),
        Some(Command::Health(args)) => health::health(&args),
        Some(Command::Top(args)) => top::top(&args),
        Some(Command::Tap(args)) => tap::tap(&args),
        Some(Command::Limits(args)) => limits::limits(&args),
        Some(Command::Replay(args)) => replay::replay(args),
        Some(Command::Try(args)) => attempt::run(&args),
        Some(Command::Init(args)) => init::init(&args),
        Some(Command::Import(args)) => import::import(&args),
        Some(Command::Schema) => schema::print(),
        Some(Command::Completions(args)) => manual::completions(&args),
        Some(Command::Man(args)) => manual::man(&args),
        Some(Command::Help(args)) => help(&args),
        Some(Command::Check(args)) => {
            let format = match args.format {
                Format::Human => check::Format::Human {
                    colour: colour(&std::io::stdout()),
                },
                Format::Json => check::Format::Json,
                Format::Github => check::Format::Github,
            };
            let out = &mut std::io::stdout();
            let code = check::check(&args.config, format, args.deny_warnings, out);
            match args.online && code == 0 {
                true => online::check(&args.config, format, args.deny_warnings),
                false => code,
            }
        }
    };
    ExitCode::from(code)
}
