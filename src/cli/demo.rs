//! `tidegate demo`: the routes and limits of a file in front of a built-in echo server, with the
//! embedded store, a dashboard, and clients of its own. It prints commands to try next.

use std::fs::DirBuilder;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::Args;

use super::output::{CommandError, print_warnings, say};
use super::run::{DemoOptions, StartOptions, Started, serve};
use super::traffic::{self, CRAWLER};
use crate::config::{self, LogTarget};
use crate::server::echo::{self, DemoSettings};

const BUILT_IN: &str = include_str!("../../proxy.toml");
/// The port of the admin, unless another program has it.
const ADMIN_PORT: u16 = 9180;

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// The configuration whose routes and limits to show.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Send no requests of its own.
    #[arg(long)]
    no_traffic: bool,
}

/// Refuses to share a port: each of two processes would count only a part of the requests.
pub(super) fn demo(args: &DemoArgs) -> Result<u8, CommandError> {
    let file = args.config.as_deref().unwrap_or(Path::new("proxy.toml"));
    let has_file = args.config.is_some() || file.exists();
    let (loaded, taken_advice) = match has_file {
        true => (
            config::load(file),
            format!("end it, or change `listen` in {}", file.display()),
        ),
        false => (
            config::parse("proxy.toml", BUILT_IN, &|_| None),
            "end it, or have `tidegate init` write a proxy.toml, and change `listen` there"
                .to_owned(),
        ),
    };
    let mut config = print_warnings(loaded)?;
    let upstream = echo::start()
        .map_err(|error| CommandError::signed(format!("cannot start the echo server: {error}")))?;
    let log = (!args.no_traffic).then(LogFolder::create).transpose()?;
    let settings = DemoSettings {
        upstream,
        admin: free_admin_address(),
        access_log: log.as_ref().map(|log| log.0.join("access.log")),
    };
    settings.apply(&mut config);
    let access_log = match &config.log.access {
        LogTarget::File(path) => Some(path.clone()),
        _ => None,
    };
    let options = StartOptions {
        path: has_file.then(|| file.to_owned()),
        watch: true,
        alongside: false,
        demo: Some(DemoOptions {
            settings,
            taken_advice,
        }),
    };
    serve(config, options, |started| {
        if !args.no_traffic {
            start_traffic(started);
        }
        let steps = NextSteps {
            program: program(),
            port: started
                .server
                .listeners
                .addresses()
                .first()
                .map(SocketAddr::port),
            admin: started.admin,
            file: args.config.as_deref(),
            has_file,
            access_log: access_log.as_deref(),
        };
        say(&steps.text());
    })
}

/// The folder of the demo's access log. Its drop removes it.
struct LogFolder(PathBuf);

impl LogFolder {
    fn create() -> Result<LogFolder, CommandError> {
        let name = format!("tidegate-demo-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // A process with the same id may have left one behind. This removes no link's target.
        let _ = std::fs::remove_dir_all(&path);
        let created = DirBuilder::new().mode(0o700).create(&path);
        created.map_err(|error| {
            let path = path.display();
            CommandError::signed(format!("cannot create {path} for the access log: {error}"))
                .help("name another folder with TMPDIR, or use `--no-traffic`")
        })?;
        Ok(LogFolder(path))
    }
}

impl Drop for LogFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn free_admin_address() -> SocketAddr {
    let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT));
    match TcpListener::bind(usual) {
        Ok(_) => usual,
        Err(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    }
}

fn start_traffic(started: &Started<'_>) {
    let summary = match traffic::start(started.server) {
        Ok(summary) => format!("{summary}; `--no-traffic` leaves it out"),
        Err(error) => format!("none: {error}"),
    };
    say(&format!("traffic    {summary}"));
}

/// This program as a shell in this folder calls it.
fn program() -> String {
    let called = std::env::args_os().next().map(PathBuf::from);
    let called = called.unwrap_or_else(|| "tidegate".into());
    let folder = std::env::current_dir().unwrap_or_default();
    let path = called.strip_prefix(&folder).unwrap_or(&called);
    quoted(&path.display().to_string())
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:@".contains(c);
    match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// What to try while a demo runs.
struct NextSteps<'a> {
    program: String,
    port: Option<u16>,
    admin: Option<SocketAddr>,
    /// The file that `-c` named.
    file: Option<&'a Path>,
    has_file: bool,
    access_log: Option<&'a Path>,
}

impl NextSteps<'_> {
    fn text(&self) -> String {
        let (program, port) = (&self.program, self.port.unwrap_or_default());
        let named = self.file.map(|file| quoted(&file.display().to_string()));
        let config = named
            .as_ref()
            .map_or(String::new(), |file| format!(" -c {file}"));
        let file = named.unwrap_or_else(|| "proxy.toml".to_owned());
        let mut text = format!(
            "\nTry it, until it says 429:\n\n    \
             for i in $(seq 12); do curl -i http://localhost:{port}/; done\n"
        );
        let edit = match self.has_file {
            true => format!("${{EDITOR:-vi}} {file}"),
            false => format!("{program} init && ${{EDITOR:-vi}} {file}"),
        };
        let then = match self.has_file {
            true => "The demo follows the file",
            false => "Then start the demo again",
        };
        text += &format!("\nChange a rate. {then}:\n\n    {edit}\n    {program} check{config}\n");
        if let Some(admin) = self.admin {
            text += &format!(
                "\nSee why a client is denied, and follow the denials:\n\n    \
                 {program} explain GET http://localhost:{port}/ --ip {CRAWLER} --live \
                 --admin {admin}{config}\n    \
                 {program} tap --admin {admin}\n"
            );
        }
        if let Some(log) = self.access_log {
            let log = quoted(&log.display().to_string());
            text += &format!(
                "\nSee what another rate would have done to the requests so far:\n\n    \
                 {program} replay --limit 20/min --key ip {log}\n"
            );
        }
        text + "\nCtrl-C stops.\n"
    }
}
