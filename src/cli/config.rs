//! `tidegate config` and `tidegate reload`: the configuration in force, and its replacement.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::admin_client::{AdminArgs, AdminClient};
use super::output::{CommandError, load, print, print_error};
use super::{DID_NOT_WORK, WRONG_USE};
use crate::config::{self, Control, effective, environment};
use crate::server::control::VERSION;
use crate::server::socket_file::control_paths;

/// The exit codes of `config --diff` are those of `diff`.
const DIFFERENT: u8 = 1;
const COULD_NOT_ASK: u8 = 2;
/// A reload takes milliseconds, or half a second if the store does not answer.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Print the changes that a reload would make to the running proxy. Exit code 0: no change. 1:
    /// changes. 2: the proxy cannot be asked.
    #[arg(long)]
    diff: bool,
    /// Print one line of JSON instead of text.
    #[arg(long)]
    json: bool,
}

pub(super) fn config(args: &ConfigArgs) -> Result<u8, CommandError> {
    let config = load(&args.admin.config)?;
    let own = effective::effective(&config.sources.text, &environment);
    if !args.diff {
        print(match args.json {
            true => format!("{own}\n"),
            false => effective::toml(&own),
        })?;
        return Ok(0);
    }
    let lines = find_differences(args, &config.sources.text, &own)
        .map_err(|error| error.with_code(COULD_NOT_ASK))?;
    let same = lines.is_empty();
    print(match args.json {
        true => format!("{}\n", json!({"same": same, "changes": lines})),
        false if same => "the proxy already runs with this file\n".to_owned(),
        false => lines.join("\n") + "\n",
    })
    .map_err(|error| error.with_code(COULD_NOT_ASK))?;
    Ok(if same { 0 } else { DIFFERENT })
}

fn find_differences(
    args: &ConfigArgs,
    text: &str,
    own: &Value,
) -> Result<Vec<String>, CommandError> {
    let client = AdminClient::new(&args.admin)?;
    let running = client.wait(client.get("/api/v1/config"))?;
    let mut lines = effective::differences(&running, own);
    let waiting = effective::waiting_settings(&running, own).into_iter();
    lines.extend(waiting.map(|name| format!("Changing `{name}` needs a restart")));
    // Only a user with the token learns whether secrets are the same.
    if let Some(token) = &client.token {
        let marks = client.wait(client.post("/api/v1/config/secrets", &json!({})));
        let theirs = marks.unwrap_or_default();
        for (place, mark) in effective::marks(text, &environment, token.as_bytes()) {
            if theirs["secrets"][&place]
                .as_str()
                .is_some_and(|one| one != mark)
            {
                lines.push(format!("{place}: another secret"));
            }
        }
    }
    Ok(lines)
}

#[derive(Debug, Args)]
pub(super) struct ReloadArgs {
    /// The configuration that the proxy runs.
    #[arg(short, long, value_name = "FILE", default_value = "proxy.toml")]
    config: PathBuf,
    /// The control socket of the proxy, if it is not the one in the file.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Print the proxy's response as a line of JSON.
    #[arg(long)]
    json: bool,
}

/// `tidegate reload`: has the running proxy read its configuration again, and prints the result.
pub(super) fn reload(args: &ReloadArgs) -> Result<u8, CommandError> {
    let control = match &args.control {
        Some(path) => Control::At(path.clone()),
        None => config::control_of(&args.config),
    };
    if control == Control::Off {
        let message = "the proxy has no control socket (`server.control = \"off\"`); send SIGHUP";
        return Err(CommandError::signed(message).with_code(WRONG_USE));
    }
    let places = control_paths(&args.config, &control);
    let mut sockets = places.iter();
    let stream = sockets.find_map(|path| UnixStream::connect(path).ok());
    let stream = stream.ok_or_else(|| {
        let file = args.config.display();
        let tried: Vec<String> = places.iter().map(|one| one.display().to_string()).collect();
        let tried = tried.join(", ");
        CommandError::signed(format!("no proxy of {file} answers at {tried}"))
            .help("is it running? `tidegate run` starts it")
    })?;
    let line = request_reload(stream)
        .map_err(|error| CommandError::signed(format!("the proxy did not answer: {error}")))?;
    print_reload(&line, args.json)
}

fn request_reload(mut stream: UnixStream) -> std::io::Result<String> {
    stream.set_read_timeout(Some(RELOAD_TIMEOUT))?;
    stream.set_write_timeout(Some(RELOAD_TIMEOUT))?;
    writeln!(stream, "{{\"version\":{VERSION},\"command\":\"reload\"}}")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

/// Prints changes to standard output, everything else to standard error.
fn print_reload(line: &str, json: bool) -> Result<u8, CommandError> {
    let answer: Value = serde_json::from_str(line).unwrap_or_default();
    let ok = answer["ok"]
        .as_bool()
        .ok_or_else(|| CommandError::signed("the proxy ended before it answered"))?;
    let text = |name: &str| answer[name].as_str().unwrap_or_default();
    let texts = |name: &str| {
        let list = answer[name].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).collect::<Vec<&str>>()
    };
    if json {
        print(format!("{}\n", line.trim_end()))?;
    }
    if !ok {
        if !json {
            print_error(&format!("{}\ntidegate: nothing was changed", text("error")));
        }
        let code = answer["code"].as_u64();
        return Ok(code
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(DID_NOT_WORK));
    }
    if json {
        return Ok(0);
    }
    let warnings = text("warnings");
    if !warnings.is_empty() {
        print_error(warnings);
    }
    for line in texts("restarts").into_iter().chain(texts("problems")) {
        print_error(line);
    }
    let mut changes = texts("changes");
    if changes.is_empty() {
        changes.push("no change");
    }
    print(changes.join("\n") + "\n")?;
    Ok(0)
}
