//! `tidegate explain`: what would become of a request, and why. It sends no request and uses up no
//! limit.

use std::net::IpAddr;

use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::WRONG_USE;
use super::admin_client::{AdminArgs, AdminClient};
use super::check::store_error;
use super::output::{CommandError, load, print, print_error, use_colour};
use crate::admin::explain::{explain_live, with_live};
use crate::admin::operator_store::OperatorStore;
use crate::config::{Config, StoreKind};
use crate::explain::call::{CallDescription, CallExplanation, explain_call};
use crate::explain::text::{render, render_call};
use crate::explain::{self, EXAMPLE_PEER, RequestDescription, RequestError};

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// The method of the request, or with --rls the domain.
    #[arg(value_name = "METHOD")]
    method: String,
    /// The URL of the request, or a path. With --rls the entries: KEY=VALUE ..
    #[arg(value_name = "URL", required = true)]
    target: Vec<String>,
    /// Explain a descriptor of the rate limit service in place of a request.
    #[arg(long)]
    rls: bool,
    /// The units of the descriptor; 0 only looks.
    #[arg(long, value_name = "UNITS", default_value_t = 1, requires = "rls")]
    hits: u64,
    /// A header of the request; may be given several times.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The body of the request, or @FILE. Keys and token budgets read it.
    #[arg(
        short = 'd',
        long = "data",
        value_name = "BODY",
        conflicts_with = "rls"
    )]
    body: Option<String>,
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

/// Who explains.
enum Explainer {
    /// The running proxy, through its admin: with `--admin`, or if only it has the counts or keys.
    Proxy,
    /// This command, with the file, and with Redis for `--live`.
    File(Box<Config>),
}

impl Explainer {
    fn choose(args: &ExplainArgs) -> Result<Explainer, CommandError> {
        if args.live && args.admin.admin.is_some() {
            return Ok(Explainer::Proxy);
        }
        let config = load(&args.admin.config)?;
        Ok(match &config.store.kind {
            StoreKind::Memory if args.live => Explainer::Proxy,
            // The running proxy alone has the keys of tokens.
            StoreKind::Redis(_) if args.live && config.jwks.is_some() && config.admin.is_some() => {
                Explainer::Proxy
            }
            _ => Explainer::File(Box::new(config)),
        })
    }
}

/// `tidegate explain`. Succeeds whatever the verdict.
pub(super) fn explain(args: &ExplainArgs) -> Result<u8, CommandError> {
    if args.rls {
        return explain_descriptor(args);
    }
    let request = describe(args)?;
    let explanation = match Explainer::choose(args)? {
        Explainer::Proxy => explain_by_admin(args, "/api/v1/explain", json!(request))?,
        Explainer::File(config) => match &config.store.kind {
            StoreKind::Redis(server) if args.live => OperatorStore::open(&config.store, server)
                .and_then(|store| explain_live(&config, &request, store))
                .map_err(|error| store_error(&error, &config, &args.admin.config))??,
            _ => explain::explain(&config, &request, None)?,
        },
    };
    show(args, &explanation, |colour| render(&explanation, colour))
}

/// Explains a call of the rate limit service with one descriptor.
fn explain_descriptor(args: &ExplainArgs) -> Result<u8, CommandError> {
    let call = CallDescription::parse(&args.method, &args.target, args.hits)?;
    let explanation: CallExplanation = match Explainer::choose(args)? {
        Explainer::Proxy => explain_by_admin(args, "/api/v1/explain/call", json!(call))?,
        Explainer::File(config) => match &config.store.kind {
            StoreKind::Redis(server) if args.live => OperatorStore::open(&config.store, server)
                .and_then(|store| {
                    with_live(&config, store, |live| explain_call(&config, &call, live))
                })
                .map_err(|error| store_error(&error, &config, &args.admin.config))??,
            _ => explain_call(&config, &call, None)?,
        },
    };
    show(args, &explanation, |colour| {
        render_call(&explanation, colour)
    })
}

fn show(
    args: &ExplainArgs,
    explanation: &impl Serialize,
    render: impl FnOnce(bool) -> String,
) -> Result<u8, CommandError> {
    print(match args.json {
        true => serde_json::to_string(explanation).map_err(CommandError::signed)? + "\n",
        false => render(use_colour(&std::io::stdout())),
    })?;
    Ok(0)
}

fn describe(args: &ExplainArgs) -> Result<RequestDescription, RequestError> {
    let header = |line: &String| match line.split_once(':') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(RequestError::bad_header(line)),
    };
    let [url] = args.target.as_slice() else {
        let why = "write one method and one URL; entries need --rls";
        return Err(RequestError::Invalid(why.to_owned()));
    };
    Ok(RequestDescription {
        method: args.method.clone(),
        url: url.clone(),
        headers: args.headers.iter().map(header).collect::<Result<_, _>>()?,
        ip: args.ip.unwrap_or(EXAMPLE_PEER),
        body: args.body.as_deref().map(read_body).transpose()?,
    })
}

/// Reads the body that `-d` names: the text itself, or the content of `@FILE`.
fn read_body(text: &str) -> Result<String, RequestError> {
    let Some(path) = text.strip_prefix('@') else {
        return Ok(text.to_owned());
    };
    std::fs::read_to_string(path)
        .map_err(|error| RequestError::Invalid(format!("`{path}` cannot be read: {error}")))
}

/// Asks the running proxy, which explains with its own counts and its own configuration.
fn explain_by_admin<E: DeserializeOwned>(
    args: &ExplainArgs,
    path: &'static str,
    mut body: Value,
) -> Result<E, CommandError> {
    let mut ask = || {
        let client = AdminClient::new(&args.admin)?;
        body["live"] = true.into();
        client.wait(client.post(path, &body))
    };
    let answer = ask().inspect_err(|_| {
        if args.admin.admin.is_none() {
            print_error(&format!(
                "tidegate: `--live` asks the proxy of {} through its admin, since counts or keys \
                 are in its own process",
                args.admin.config.display()
            ));
        }
    })?;
    serde_json::from_value(answer)
        .map_err(|error| CommandError::failed(format!("the proxy's answer is none: {error}")))
}
