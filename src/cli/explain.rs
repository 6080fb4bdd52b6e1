//! `tidegate explain`: what would become of a request, and why. It sends no request and uses up no
//! limit.

use std::net::IpAddr;

use clap::Args;
use serde_json::json;

use super::WRONG_USE;
use super::admin_client::{AdminArgs, AdminClient};
use super::output::{CommandError, load, print, say, use_colour};
use crate::admin::explain::explain_live;
use crate::admin::operator_store::OperatorStore;
use crate::config::StoreKind;
use crate::explain::text::render;
use crate::explain::{self, EXAMPLE_PEER, Explanation, RequestDescription, RequestError};

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// The method of the request.
    method: String,
    /// The URL of the request, or a path.
    url: String,
    /// A header of the request; may be given several times.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The address that sends the request; the default is 192.0.2.1.
    #[arg(long, value_name = "ADDRESS")]
    ip: Option<IpAddr>,
    #[command(flatten)]
    admin: AdminArgs,
    /// Use current counts, overrides and blocks; charges nothing.
    #[arg(long)]
    live: bool,
    /// Print one line of JSON instead of text.
    #[arg(long)]
    json: bool,
}

impl From<RequestError> for CommandError {
    fn from(error: RequestError) -> CommandError {
        let failed = CommandError::signed(&error);
        match error {
            RequestError::Machine(_) => failed,
            RequestError::Invalid(_) => failed.with_code(WRONG_USE),
        }
    }
}

/// `tidegate explain`. Succeeds whatever the verdict.
pub(super) fn explain(args: &ExplainArgs) -> Result<u8, CommandError> {
    let config = load(&args.admin.config)?;
    let request = describe(args)?;
    let explanation = match &config.store.kind {
        _ if !args.live => explain::explain(&config, &request, None)?,
        StoreKind::Memory => explain_by_admin(args, &request).inspect_err(|_| {
            say(&format!(
                "tidegate: {} keeps counts in the proxy's own process, and `--live` asks that \
                 process through its admin",
                args.admin.config.display()
            ));
        })?,
        StoreKind::Redis(server) => OperatorStore::open(&config.store, server)
            .and_then(|store| explain_live(&config, &request, store))
            .map_err(CommandError::signed)??,
    };
    print(match args.json {
        true => serde_json::to_string(&explanation).map_err(CommandError::signed)? + "\n",
        false => render(&explanation, use_colour(&std::io::stdout())),
    });
    Ok(0)
}

fn describe(args: &ExplainArgs) -> Result<RequestDescription, RequestError> {
    let header = |line: &String| match line.split_once(':') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(RequestError::bad_header(line)),
    };
    Ok(RequestDescription {
        method: args.method.clone(),
        url: args.url.clone(),
        headers: args.headers.iter().map(header).collect::<Result<_, _>>()?,
        ip: args.ip.unwrap_or(EXAMPLE_PEER),
    })
}

/// Asks the running proxy, which explains with its own counts and its own configuration.
fn explain_by_admin(
    args: &ExplainArgs,
    request: &RequestDescription,
) -> Result<Explanation, CommandError> {
    let client = AdminClient::new(&args.admin)?;
    let mut body = json!(request);
    body["live"] = true.into();
    let answer = client.wait(client.post("/api/v1/explain", &body))?;
    serde_json::from_value(answer)
        .map_err(|error| CommandError::failed(format!("the proxy's answer is none: {error}")))
}
