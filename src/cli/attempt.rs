//! `tidegate try`: sends requests, and shows where they are denied and what a client sees of it.

use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::run::say;
use super::{DID_NOT_WORK, WRONG_USE};
use crate::clock;
use crate::config::ClientTls;
use crate::tls::TlsClient;

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Requests at once, at most.
const MOST_AT_ONCE: usize = 256;

#[derive(Debug, Args)]
pub(super) struct TryArgs {
    /// Where to send them: `http://HOST[:PORT]/PATH`, or https.
    url: Uri,
    /// How many.
    #[arg(short = 'n', long = "requests", value_name = "N", default_value_t = 20)]
    requests: usize,
    /// How many at once.
    #[arg(short, long, value_name = "C", default_value_t = 1)]
    concurrency: usize,
    /// Their method.
    #[arg(short = 'X', long, default_value = "GET")]
    method: Method,
    /// A header of each; may be given several times.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// After a denial, wait as long as it says, and send one more.
    #[arg(long)]
    wait: bool,
    /// One line of JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// One answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    /// Since the first request was sent.
    at_ms: u64,
    headers: Vec<(String, String)>,
}

/// Where requests go, and what they are.
struct Target {
    host: String,
    port: u16,
    tls: Option<TlsClient>,
    request: Request<()>,
}

/// Returns the exit code: 0 if there were answers, whatever they say.
pub(super) fn run(args: &TryArgs) -> u8 {
    let target = match target(args) {
        Ok(target) => target,
        Err(why) => {
            say(&format!("tidegate: {why}"));
            return WRONG_USE;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = runtime.and_then(|runtime| {
        runtime.block_on(async {
            let answers = send_all(&target, args).await?;
            let denied = answers.iter().rev().find_map(|answer| answer.retry_after());
            let again = match denied.filter(|_| args.wait) {
                Some(seconds) => {
                    if !args.json {
                        say(&format!("waiting {seconds} s, as the denial says"));
                    }
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    let since = clock::unix_us();
                    Some((seconds, one(&mut None, &target, since).await?))
                }
                None => None,
            };
            Ok((answers, again))
        })
    });
    match done {
        Ok((answers, again)) => {
            let again = again.as_ref().map(|(seconds, answer)| (*seconds, answer));
            let text = match args.json {
                true => json(&answers, again) + "\n",
                false => told(args, &answers, again),
            };
            // Nobody to tell where standard output is closed.
            let _ = io::stdout().write_all(text.as_bytes());
            0
        }
        Err(error) => {
            say(&format!("tidegate: {}: {error}", args.url));
            DID_NOT_WORK
        }
    }
}

fn target(args: &TryArgs) -> Result<Target, String> {
    let url = &args.url;
    let secure = match url.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => {
            return Err(format!(
                "`{url}` begins neither with http:// nor with https://"
            ));
        }
    };
    let authority = url.authority().ok_or("the host is missing")?;
    let tls = secure.then(|| TlsClient::new(&ClientTls::default(), &[b"http/1.1"]));
    let tls = tls.transpose().map_err(|trouble| trouble.to_string())?;
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder()
        .method(args.method.clone())
        .uri(path)
        .body(())
        .map_err(|error| error.to_string())?;
    let headers = request.headers_mut();
    for line in &args.headers {
        let bad = || format!("`{line}` is no header; write `name: value`");
        let (name, value) = line.split_once(':').ok_or_else(bad)?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| bad())?;
        let value = HeaderValue::from_str(value.trim()).map_err(|_| bad())?;
        headers.append(name, value);
    }
    if !headers.contains_key(HOST) {
        let host = HeaderValue::from_str(authority.as_str()).map_err(|error| error.to_string())?;
        headers.insert(HOST, host);
    }
    let host = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']');
    Ok(Target {
        host: host.to_owned(),
        port: authority
            .port_u16()
            .unwrap_or(if secure { 443 } else { 80 }),
        tls,
        request,
    })
}

/// All of them, in the order of their answers.
async fn send_all(target: &Target, args: &TryArgs) -> io::Result<Vec<Answer>> {
    let left = Cell::new(args.requests);
    let answers = RefCell::new(Vec::with_capacity(args.requests));
    let since = clock::unix_us();
    let sender = || async {
        let mut connection = None;
        while let Some(next) = left.get().checked_sub(1) {
            left.set(next);
            let answer = one(&mut connection, target, since).await?;
            answers.borrow_mut().push(answer);
        }
        io::Result::Ok(())
    };
    let at_once = args.concurrency.clamp(1, MOST_AT_ONCE);
    let senders = (0..at_once).map(|_| sender());
    futures_util::future::try_join_all(senders).await?;
    Ok(answers.into_inner())
}

type Connection = SendRequest<Empty<Bytes>>;

/// One request and its answer, over the connection that is open, or a new one.
async fn one(
    connection: &mut Option<Connection>,
    target: &Target,
    since_us: u64,
) -> io::Result<Answer> {
    let asking = async {
        let mut open = match connection.take() {
            Some(open) if open.is_ready() => open,
            _ => connect(target).await?,
        };
        let request = target.request.clone().map(|()| Empty::new());
        let answer = open.send_request(request).await.map_err(io::Error::other)?;
        let (head, body) = answer.into_parts();
        body.collect().await.map_err(io::Error::other)?;
        *connection = Some(open);
        Ok(Answer {
            status: head.status.as_u16(),
            at_ms: clock::unix_us().saturating_sub(since_us) / 1000,
            headers: of_interest(&head.headers),
        })
    };
    let asked = tokio::time::timeout(PATIENCE, asking).await;
    asked.unwrap_or_else(|_| Err(io::Error::other("no answer within 30 s")))
}

async fn connect(target: &Target) -> io::Result<Connection> {
    let stream = TcpStream::connect((target.host.as_str(), target.port)).await?;
    stream.set_nodelay(true)?;
    match &target.tls {
        None => {
            let (open, driver) = handshake(TokioIo::new(stream))
                .await
                .map_err(io::Error::other)?;
            tokio::spawn(driver);
            Ok(open)
        }
        Some(tls) => {
            let stream = tls.over(stream, &target.host).await?;
            let (open, driver) = handshake(TokioIo::new(stream))
                .await
                .map_err(io::Error::other)?;
            tokio::spawn(driver);
            Ok(open)
        }
    }
}

/// What tells of limits.
fn of_interest(headers: &HeaderMap) -> Vec<(String, String)> {
    let told = headers
        .iter()
        .filter(|(name, _)| **name == RETRY_AFTER || name.as_str().contains("ratelimit"));
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    told.map(|(name, value)| (name.to_string(), text(value)))
        .collect()
}

impl Answer {
    fn denies(&self) -> bool {
        self.status == 429 || (self.status == 503 && self.retry_after().is_some())
    }

    fn retry_after(&self) -> Option<u64> {
        let found = self.headers.iter().find(|(name, _)| name == "retry-after");
        found?.1.parse().ok()
    }

    fn lines(&self) -> String {
        let lines = self.headers.iter();
        lines
            .map(|(name, value)| format!("    {name}: {value}\n"))
            .collect()
    }

    fn json(&self) -> serde_json::Value {
        let headers = self
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), serde_json::Value::String(value.clone())));
        let headers: serde_json::Map<_, _> = headers.collect();
        serde_json::json!({"status": self.status, "at_ms": self.at_ms, "headers": headers})
    }
}

fn told(args: &TryArgs, answers: &[Answer], again: Option<(u64, &Answer)>) -> String {
    let at_once = match args.concurrency {
        0 | 1 => "one at a time".to_owned(),
        more => format!("{more} at a time"),
    };
    let took = answers.last().map_or(0, |answer| answer.at_ms);
    let mut text = format!("{} requests, {at_once}, in {took} ms\n\n", answers.len());
    let mut statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    statuses.sort_unstable();
    statuses.dedup();
    for status in statuses {
        let count = answers
            .iter()
            .filter(|answer| answer.status == status)
            .count();
        text.push_str(&format!("    {status}  {count:>6}\n"));
    }
    text.push('\n');
    match answers.iter().position(Answer::denies) {
        Some(at) => {
            let denial = &answers[at];
            text.push_str(&format!(
                "first denial: answer {}, {} after {} ms\n{}",
                at + 1,
                denial.status,
                denial.at_ms,
                denial.lines()
            ));
            if let Some(before) = at.checked_sub(1).and_then(|before| answers.get(before)) {
                let lines = before.lines();
                text.push_str(&format!("the answer before it: {}\n{lines}", before.status));
            }
        }
        None => {
            text.push_str("no denial\n");
            if let Some(last) = answers.last().filter(|last| !last.headers.is_empty()) {
                text.push_str(&format!(
                    "the last answer: {}\n{}",
                    last.status,
                    last.lines()
                ));
            }
        }
    }
    if let Some((seconds, answer)) = again {
        let verdict = if answer.denies() {
            "denied again"
        } else {
            "it passes"
        };
        text.push_str(&format!(
            "after {seconds} s, as Retry-After says: {}, {verdict}\n",
            answer.status
        ));
    }
    text
}

fn json(answers: &[Answer], again: Option<(u64, &Answer)>) -> String {
    let first = answers.iter().position(Answer::denies).map(|at| at + 1);
    let again = again.map(
        |(seconds, answer)| serde_json::json!({"waited_seconds": seconds, "answer": answer.json()}),
    );
    let answers: Vec<serde_json::Value> = answers.iter().map(Answer::json).collect();
    serde_json::json!({"answers": answers, "first_denial": first, "again": again}).to_string()
}
