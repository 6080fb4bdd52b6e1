//! `tidegate config`: what holds in the end, and how that differs from what runs.

use std::io::Write;

use clap::Args;
use serde_json::{Value, json};

use super::admin_client::{AdminArgs, AdminClient, runtime};
use super::run::accept;
use super::trouble::Trouble;
use crate::config::{self, effective, environment};

/// Exit codes, as `diff` has them.
const DIFFERENT: u8 = 1;
const COULD_NOT_ASK: u8 = 2;

#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// What a reload would change: against the configuration of the proxy that runs. The exit code
    /// is 0 where both are the same, 1 where they differ, 2 where the proxy cannot be asked.
    #[arg(long)]
    diff: bool,
    /// One line of JSON instead of TOML, or of words.
    #[arg(long)]
    json: bool,
}

/// Returns the exit code.
pub(super) fn config(args: &ConfigArgs) -> u8 {
    // Its warnings are `check`'s to print.
    let config = match config::load(&args.admin.config) {
        Ok((config, _)) => config,
        Err(found) => return accept(Err(found)).err().unwrap_or_default(),
    };
    let own = effective::effective(&config.sources.text, &environment);
    if args.diff {
        return match differences(args, &config.sources.text, &own) {
            Ok(lines) => tell(&lines, args.json),
            Err(trouble) => {
                trouble.say();
                COULD_NOT_ASK
            }
        };
    }
    print(&match args.json {
        true => format!("{own}\n"),
        false => effective::toml(&own),
    });
    0
}

fn differences(args: &ConfigArgs, text: &str, own: &Value) -> Result<Vec<String>, Trouble> {
    let client = AdminClient::of(&args.admin)?;
    let runtime = runtime()?;
    let running = runtime.block_on(client.get("/api/v1/config"));
    let running = running.map_err(|failed| client.trouble(&failed))?;
    let mut lines = effective::differences(&running, own);
    // Who has no token is not told whether secrets are the same.
    if let Some(token) = client.token() {
        let told = runtime.block_on(client.post("/api/v1/config/secrets", &json!({})));
        let told = told.unwrap_or_default();
        let marks = effective::marks(text, &environment, token.as_bytes());
        let other = |(place, mark): (&String, &String)| {
            let theirs = told["secrets"][place].as_str()?;
            (theirs != mark).then(|| format!("{place}: another secret"))
        };
        lines.extend(marks.iter().filter_map(other));
    }
    Ok(lines)
}

fn tell(lines: &[String], json: bool) -> u8 {
    let same = lines.is_empty();
    print(&match json {
        true => format!("{}\n", serde_json::json!({"same": same, "changes": lines})),
        false if same => "the proxy runs with this\n".to_owned(),
        false => lines.iter().map(|line| format!("{line}\n")).collect(),
    });
    match same {
        true => 0,
        false => DIFFERENT,
    }
}

fn print(text: &str) {
    // Nobody to tell where standard output is closed.
    let _ = std::io::stdout().write_all(text.as_bytes());
}
