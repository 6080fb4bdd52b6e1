//! `tidegate explain`: what would become of a request, and why. It sends nothing and consumes
//! nothing.

use std::io::Write;
use std::net::IpAddr;

use clap::Args;

use super::admin_client::{AdminArgs, AdminClient, runtime};
use super::run::{accept, say};
use super::trouble::Trouble;
use super::{DID_NOT_WORK, WRONG_USE};
use crate::config::{self, Config, StoreKind};
use crate::explain::text::{Style, render};
use crate::explain::{EXAMPLE_PEER, Explanation, Live, Question, QuestionError, explain};
use crate::limit::{Charge, Decision};
use crate::store::redis::{OverrideClient, OverrideClientError};

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// The request's method.
    method: String,
    /// Its URL, or a path.
    url: String,
    /// A header of it; may be given several times.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The address that sends it; without one, an example's.
    #[arg(long, value_name = "ADDRESS")]
    ip: Option<IpAddr>,
    #[command(flatten)]
    admin: AdminArgs,
    /// With the counts of now; they are asked for, and nothing is charged.
    #[arg(long)]
    live: bool,
    /// One line of JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Returns the exit code: 0 whatever the verdict.
pub(super) fn run(args: &ExplainArgs) -> u8 {
    // Its warnings are `check`'s to print.
    let config = match config::load(&args.admin.config) {
        Ok((config, _)) => config,
        Err(found) => return accept(Err(found)).err().unwrap_or_default(),
    };
    let question = match question(args) {
        Ok(question) => question,
        Err(error) => {
            say(&format!("tidegate: {error}"));
            return WRONG_USE;
        }
    };
    let told = match (args.live, &config.store.kind) {
        (false, _) => explain(&config, &question, None),
        (true, StoreKind::Memory) => match ask(args, &question) {
            Ok(told) => Ok(told),
            Err(trouble) => {
                say(&format!(
                    "tidegate: {} keeps counts in the proxy's own process, which is asked \
                     through its admin",
                    args.admin.config.display()
                ));
                return trouble.say();
            }
        },
        (true, StoreKind::Redis(server)) => match OverrideClient::open(&config.store, server) {
            Ok(client) => live(&config, &question, client),
            Err(error) => {
                say(&format!("tidegate: {error}"));
                return DID_NOT_WORK;
            }
        },
    };
    match told {
        Ok(told) => print(&told, args.json),
        Err(error) => {
            say(&format!("tidegate: {error}"));
            match error {
                QuestionError::Machine(_) => DID_NOT_WORK,
                _ => WRONG_USE,
            }
        }
    }
}

fn question(args: &ExplainArgs) -> Result<Question, QuestionError> {
    let header = |line: &String| match line.split_once(':') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(QuestionError::Header(line.clone())),
    };
    Ok(Question {
        method: args.method.clone(),
        url: args.url.clone(),
        headers: args.headers.iter().map(header).collect::<Result<_, _>>()?,
        ip: args.ip.unwrap_or(EXAMPLE_PEER),
    })
}

/// With the counts of the proxy's own process: it tells itself, by what it runs with.
fn ask(args: &ExplainArgs, question: &Question) -> Result<Explanation, Trouble> {
    let client = AdminClient::of(&args.admin)?;
    let said = serde_json::json!({
        "method": question.method,
        "url": question.url,
        "headers": question.headers,
        "ip": question.ip,
        "live": true,
    });
    let told = runtime()?.block_on(client.post("/api/v1/explain", &said));
    let told = told.map_err(|failed| client.trouble(&failed))?;
    let odd = |error| Trouble::failed(format!("the proxy's answer is none: {error}"));
    serde_json::from_value(told).map_err(odd)
}

/// With the counts that are kept in Redis.
fn live(
    config: &Config,
    question: &Question,
    mut client: OverrideClient,
) -> Result<Explanation, QuestionError> {
    let machine = |error: OverrideClientError| QuestionError::Machine(error.to_string());
    let said = client.overrides().map_err(machine)?;
    let hash_key = *client.hash_key().key.as_bytes();
    let mut stand = |charge: &Charge| -> Result<Decision, String> {
        client.stand(charge).map_err(|error| error.to_string())
    };
    let from = match &config.store.kind {
        StoreKind::Redis(redis) => redis.topology.to_string(),
        StoreKind::Memory => String::new(),
    };
    let live = Live {
        from,
        hash_key,
        overrides: said.snapshot(),
        stand: &mut stand,
    };
    explain(config, question, Some(live))
}

fn print(told: &Explanation, json: bool) -> u8 {
    let mut out = std::io::stdout();
    let text = if json {
        match serde_json::to_string(told) {
            Ok(line) => line + "\n",
            Err(error) => {
                say(&format!("tidegate: {error}"));
                return DID_NOT_WORK;
            }
        }
    } else {
        let style = match super::colour(&out) {
            true => Style::Colour,
            false => Style::Plain,
        };
        render(told, style)
    };
    // Nobody to tell where standard output is closed.
    let _ = out.write_all(text.as_bytes());
    0
}
