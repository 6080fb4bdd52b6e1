//! `tidegate try`: sends requests, and shows where they are denied and what a client sees of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use clap::Args;
use http::header::{HOST, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::{Serialize, Serializer};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::WRONG_USE;
use super::admin_client::runtime;
use super::output::{CommandError, print, print_error};
use crate::clock;
use crate::config::ClientTls;
use crate::tls::TlsClient;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests at once, at most.
const MAX_CONCURRENCY: usize = 256;

#[derive(Debug, Args)]
pub(super) struct TryArgs {
    /// The URL of the requests: `http://HOST[:PORT]/PATH`, or https.
    url: Uri,
    /// How many requests to send.
    #[arg(short = 'n', long = "requests", value_name = "N", default_value_t = 20)]
    requests: usize,
    /// How many requests to send at once.
    #[arg(short, long, value_name = "C", default_value_t = 1)]
    concurrency: usize,
    /// The method of the requests.
    #[arg(short = 'X', long, default_value = "GET")]
    method: Method,
    /// A header of each request; may be given several times.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// After a denial, wait as long as `Retry-After` says, and send one more request.
    #[arg(long)]
    wait: bool,
    /// Print one line of JSON instead of text.
    #[arg(long)]
    json: bool,
}

struct TryTarget {
    host: String,
    port: u16,
    tls: Option<TlsClient>,
    request: Request<()>,
}

#[derive(Debug, Serialize)]
struct TryAnswer {
    status: u16,
    /// Milliseconds since the first request.
    at_ms: u64,
    /// `Retry-After` and the rate limit headers.
    #[serde(serialize_with = "as_object")]
    headers: Vec<(String, String)>,
}

fn as_object<S: Serializer>(headers: &[(String, String)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(headers.iter().map(|(name, value)| (name, value)))
}

#[derive(Serialize)]
struct TryResult {
    /// All answers, in the order in which they came.
    answers: Vec<TryAnswer>,
    /// The number of the first denial, from 1 on.
    first_denial: Option<usize>,
    /// The answer to one more request, after `--wait`.
    again: Option<RetriedAnswer>,
}

#[derive(Serialize)]
struct RetriedAnswer {
    waited_seconds: u64,
    answer: TryAnswer,
}

/// `tidegate try`. Succeeds if there are answers, also if they are denials.
pub(super) fn send(args: &TryArgs) -> Result<u8, CommandError> {
    let target =
        TryTarget::new(args).map_err(|why| CommandError::signed(why).with_code(WRONG_USE))?;
    let result = runtime()?.block_on(send_and_retry(&target, args));
    let result = result.map_err(|error| CommandError::signed(format!("{}: {error}", args.url)))?;
    print(match args.json {
        true => format!("{}\n", json!(result)),
        false => result.text(args.concurrency),
    })?;
    Ok(0)
}

impl TryTarget {
    fn new(args: &TryArgs) -> Result<TryTarget, String> {
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
        let tls = tls.transpose().map_err(|error| error.to_string())?;
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
            let host = HeaderValue::from_str(authority.as_str());
            headers.insert(HOST, host.map_err(|error| error.to_string())?);
        }
        let host = authority.host().trim_matches(['[', ']']);
        let default_port = if secure { 443 } else { 80 };
        Ok(TryTarget {
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(default_port),
            tls,
            request,
        })
    }
}

async fn send_and_retry(target: &TryTarget, args: &TryArgs) -> io::Result<TryResult> {
    let answers = send_all(target, args).await?;
    let first_denial = answers.iter().position(TryAnswer::is_denial);
    let mut result = TryResult {
        first_denial: first_denial.map(|index| index + 1),
        answers,
        again: None,
    };
    let mut newest = result.answers.iter().rev().filter(|_| args.wait);
    if let Some(waited_seconds) = newest.find_map(TryAnswer::retry_after) {
        if !args.json {
            print_error(&format!("waiting {waited_seconds} s, as the denial says"));
        }
        tokio::time::sleep(Duration::from_secs(waited_seconds)).await;
        let answer = send_one(&mut None, target, clock::unix_us()).await?;
        result.again = Some(RetriedAnswer {
            waited_seconds,
            answer,
        });
    }
    Ok(result)
}

async fn send_all(target: &TryTarget, args: &TryArgs) -> io::Result<Vec<TryAnswer>> {
    let left = Cell::new(args.requests);
    let answers = RefCell::new(Vec::with_capacity(args.requests));
    let since_us = clock::unix_us();
    let sender = || async {
        let mut connection = None;
        while let Some(next) = left.get().checked_sub(1) {
            left.set(next);
            let answer = send_one(&mut connection, target, since_us).await?;
            answers.borrow_mut().push(answer);
        }
        io::Result::Ok(())
    };
    let concurrency = args.concurrency.clamp(1, MAX_CONCURRENCY);
    let senders = (0..concurrency).map(|_| sender());
    futures_util::future::try_join_all(senders).await?;
    Ok(answers.into_inner())
}

pub(super) type RequestSender = SendRequest<Empty<Bytes>>;

/// Sends one request over the open connection, or over a new one.
async fn send_one(
    connection: &mut Option<RequestSender>,
    target: &TryTarget,
    since_us: u64,
) -> io::Result<TryAnswer> {
    let exchange = async {
        let mut open = match connection.take() {
            Some(open) if open.is_ready() => open,
            _ => connect(target).await?,
        };
        let request = target.request.clone().map(|()| Empty::new());
        let answer = open.send_request(request).await.map_err(io::Error::other)?;
        let (head, body) = answer.into_parts();
        body.collect().await.map_err(io::Error::other)?;
        *connection = Some(open);
        let headers = head.headers.iter();
        let headers = headers
            .filter(|(name, _)| **name == RETRY_AFTER || name.as_str().contains("ratelimit"));
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        Ok(TryAnswer {
            status: head.status.as_u16(),
            at_ms: clock::unix_us().saturating_sub(since_us) / 1000,
            headers: headers
                .map(|(name, value)| (name.to_string(), text(value)))
                .collect(),
        })
    };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, exchange).await;
    answer.unwrap_or_else(|_| Err(io::Error::other("no answer within 30 s")))
}

async fn connect(target: &TryTarget) -> io::Result<RequestSender> {
    let stream = TcpStream::connect((target.host.as_str(), target.port)).await?;
    stream.set_nodelay(true)?;
    match &target.tls {
        None => open_http1(stream).await,
        Some(tls) => open_http1(tls.over(stream, &target.host).await?).await,
    }
}

pub(super) async fn open_http1(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> io::Result<RequestSender> {
    let opened = handshake(TokioIo::new(stream)).await;
    let (sender, connection) = opened.map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(sender)
}

impl TryAnswer {
    fn is_denial(&self) -> bool {
        self.status == 429 || (self.status == 503 && self.retry_after().is_some())
    }

    fn retry_after(&self) -> Option<u64> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(name, _)| name == "retry-after")?;
        found.1.parse().ok()
    }

    fn header_lines(&self) -> String {
        let headers = self.headers.iter();
        let lines = headers.map(|(name, value)| format!("    {name}: {value}\n"));
        lines.collect()
    }
}

impl TryResult {
    fn text(&self, concurrency: usize) -> String {
        let answers = &self.answers;
        let at_once = match concurrency {
            0 | 1 => "one".to_owned(),
            more => more.to_string(),
        };
        let took = answers.last().map_or(0, |answer| answer.at_ms);
        let sent = answers.len();
        let mut text = format!("{sent} requests, {at_once} at a time, in {took} ms\n\n");
        let mut counts = BTreeMap::new();
        for answer in answers {
            *counts.entry(answer.status).or_insert(0_usize) += 1;
        }
        for (status, count) in counts {
            text.push_str(&format!("    {status}  {count:>6}\n"));
        }
        text.push('\n');
        let section = |title: &str, answer: &TryAnswer| {
            format!("{title}: {}\n{}", answer.status, answer.header_lines())
        };
        match self.first_denial {
            Some(number) => {
                let denial = &answers[number - 1];
                let (status, at_ms) = (denial.status, denial.at_ms);
                text.push_str(&format!(
                    "first denial: answer {number}, {status} after {at_ms} ms\n{}",
                    denial.header_lines()
                ));
                if let Some(before) = answers[..number - 1].last() {
                    text.push_str(&section("the answer before it", before));
                }
            }
            None => {
                text.push_str("no denial\n");
                if let Some(last) = answers.last().filter(|last| !last.headers.is_empty()) {
                    text.push_str(&section("the last answer", last));
                }
            }
        }
        if let Some(again) = &self.again {
            let verdict = match again.answer.is_denial() {
                true => "denied again",
                false => "it passes",
            };
            let (waited, status) = (again.waited_seconds, again.answer.status);
            text.push_str(&format!(
                "after {waited} s, as Retry-After says: {status}, {verdict}\n"
            ));
        }
        text
    }
}
