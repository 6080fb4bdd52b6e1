//! `tidegate status`: how the running proxy is, on one page.

mod page;

use std::io::{IsTerminal, Write};

use clap::Args;
use serde_json::Value;

use super::admin_client::{AdminArgs, AdminClient, runtime};
use super::seen::Seen;
use super::trouble::Trouble;
use super::{DID_NOT_WORK, colour, ink};

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// One line of JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Returns the exit code: 0 where it is ready to serve.
pub(super) fn status(args: &StatusArgs) -> u8 {
    match tell(args) {
        Ok(true) => 0,
        Ok(false) => DID_NOT_WORK,
        Err(trouble) => trouble.say(),
    }
}

fn tell(args: &StatusArgs) -> Result<bool, Trouble> {
    let client = AdminClient::of(&args.admin)?;
    let seen = runtime()?.block_on(Seen::look(&client));
    let seen = seen.map_err(|failed| client.trouble(&failed))?;
    let mut out = std::io::stdout();
    let text = if args.json {
        let mut told = seen.json();
        told["admin"] = Value::String(client.url());
        format!("{told}\n")
    } else {
        // A token is for the eyes of whoever asks, and not for the file of a script.
        let link = match out.is_terminal() {
            true => client.link(),
            false => client.url(),
        };
        ink::text(&page::page(&seen, &link), colour(&out))
    };
    // Nobody to tell where standard output is closed.
    let _ = out.write_all(text.as_bytes());
    Ok(seen.reasons.is_empty())
}
