//! `tidegate reload`: has the running proxy read its configuration again, and says what came of it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::run::say;
use super::{DID_NOT_WORK, WRONG_USE};
use crate::config;
use crate::config::Control;
use crate::server::control::VERSION;
use crate::server::socket_file::control_paths;

/// A reload is a matter of milliseconds; a store that is away takes half a second.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub(super) struct ReloadArgs {
    /// The configuration that the proxy runs.
    #[arg(short, long, value_name = "FILE", default_value = "proxy.toml")]
    config: PathBuf,
    /// Where the proxy listens for commands, if the file no longer says so.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Print what the proxy answers, as a line of JSON.
    #[arg(long)]
    json: bool,
}

/// Returns the exit code.
pub(super) fn reload(args: &ReloadArgs) -> u8 {
    let control = match &args.control {
        Some(path) => Control::At(path.clone()),
        None => config::control_of(&args.config),
    };
    if control == Control::Off {
        say("tidegate: the proxy has no control socket (`server.control = \"off\"`); send SIGHUP");
        return WRONG_USE;
    }
    let places = control_paths(&args.config, &control);
    let Some(stream) = places.iter().find_map(|one| UnixStream::connect(one).ok()) else {
        let looked: Vec<String> = places.iter().map(|one| one.display().to_string()).collect();
        let file = args.config.display();
        say(&format!(
            "tidegate: no proxy of {file} answers at {}",
            looked.join(", ")
        ));
        return DID_NOT_WORK;
    };
    match ask(stream) {
        Ok(line) => tell(&line, args.json),
        Err(error) => {
            say(&format!("tidegate: the proxy did not answer: {error}"));
            DID_NOT_WORK
        }
    }
}

fn ask(mut stream: UnixStream) -> std::io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    writeln!(stream, "{{\"version\":{VERSION},\"command\":\"reload\"}}")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

/// What changed goes to standard output, all else to standard error.
fn tell(line: &str, json: bool) -> u8 {
    let answer: Value = serde_json::from_str(line).unwrap_or_default();
    let Some(ok) = answer.get("ok").and_then(Value::as_bool) else {
        say("tidegate: the proxy ended before it answered");
        return DID_NOT_WORK;
    };
    let text = |key: &str| answer.get(key).and_then(Value::as_str).unwrap_or_default();
    let lines = |key: &str| {
        let list = answer.get(key).and_then(Value::as_array);
        let list = list.into_iter().flatten().filter_map(Value::as_str);
        list.collect::<Vec<&str>>()
    };
    let print = |line: &str| {
        // Nobody to tell where standard output is closed.
        let _ = writeln!(std::io::stdout(), "{line}");
    };
    if json {
        print(line.trim_end());
    }
    if !ok {
        if !json {
            say(&format!("{}\ntidegate: nothing was changed", text("error")));
        }
        let code = answer.get("code").and_then(Value::as_u64);
        return code
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(DID_NOT_WORK);
    }
    if json {
        return 0;
    }
    if !text("warnings").is_empty() {
        say(text("warnings"));
    }
    for restart in lines("restarts") {
        say(restart);
    }
    let changes = lines("changes");
    if changes.is_empty() {
        print("nothing is different");
    }
    changes.into_iter().for_each(print);
    0
}
