//! The running proxy, asked through its admin: where that is, the token, and plain words for what
//! can go wrong.
//!
//! A connection for each question: an answer never depends on what became of the one before, and a
//! proxy that was upgraded or moved meanwhile is found again. The token is shown only where it is
//! asked for or something is to be changed, and one that was found on this machine only to this
//! machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::trouble::Trouble;
use crate::admin::token;
use crate::config;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(3);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes of an answer, at most.
const MOST: usize = 64 << 20;
/// Bytes of a token's file, at most.
const MOST_TOKEN: u64 = 4096;

/// Which proxy is asked.
#[derive(Clone, Debug, Args)]
pub(super) struct AdminArgs {
    /// The configuration that the proxy runs: it says where its admin listens.
    #[arg(short, long, value_name = "FILE", default_value = "proxy.toml")]
    pub(super) config: PathBuf,
    /// Where the admin listens, instead of what the file says: `127.0.0.1:9180`.
    #[arg(long, value_name = "ADDRESS")]
    pub(super) admin: Option<String>,
    /// A file with the admin's token, where the proxy's own is not found.
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct AdminClient {
    /// `127.0.0.1:9180`
    authority: String,
    token: Option<String>,
    /// Who said that it listens there.
    said_by: String,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// Nobody answers.
    Away(String),
    /// It answers that it will not.
    Refused(u16, String),
}

impl Failed {
    /// In one line.
    pub(super) fn words(&self) -> String {
        match self {
            Failed::Away(why) => why.clone(),
            Failed::Refused(status, why) => format!("{why} ({status})"),
        }
    }
}

/// A runtime for one command.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Trouble> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(|error| Trouble::failed(error.to_string()))
}

impl AdminClient {
    /// Finds out where to ask; asks nothing yet.
    pub(super) fn of(args: &AdminArgs) -> Result<AdminClient, Trouble> {
        let file = args.config.display();
        let place = config::admin_of(&args.config);
        let (authority, said_by) = match (&args.admin, &place) {
            (Some(text), _) => (authority(text)?, "`--admin`".to_owned()),
            (None, Ok(place)) => {
                let Some(address) = place.address else {
                    let message = format!("This command needs `admin`; {file} has none");
                    return Err(Trouble::failed(message).help(
                        "write `admin = \"127.0.0.1:9180\"` at its top and start the proxy anew, \
                         or name the address with `--admin`",
                    ));
                };
                (
                    reached_at(address, &args.config)?,
                    format!("`admin` of {file}"),
                )
            }
            (None, Err(error)) => {
                let message = format!("cannot read `{file}`: {error}");
                return Err(Trouble::failed(message)
                    .help("name the proxy's file with `-c`, or its admin with `--admin`"));
            }
        };
        let place = place.unwrap_or_default();
        let is_here = args.admin.is_none() || is_loopback(&authority);
        let token = match (&args.token_file, &place.token_file) {
            (Some(path), _) => Some(read_token(path)?),
            (None, Some(path)) if is_here => read_token(path).ok(),
            (None, _) if is_here => {
                let found = token::find(&args.config, &config::control_of(&args.config));
                found.and_then(|token| String::from_utf8(token).ok())
            }
            _ => None,
        };
        Ok(AdminClient {
            authority,
            token,
            said_by,
        })
    }

    /// `http://127.0.0.1:9180/`
    pub(super) fn url(&self) -> String {
        format!("http://{}/", self.authority)
    }

    /// The dashboard, signed in where that is possible.
    pub(super) fn link(&self) -> String {
        match &self.token {
            Some(token) => format!("{}#token={token}", self.url()),
            None => self.url(),
        }
    }

    /// What is shown by whoever may change something.
    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// What is there now.
    pub(super) async fn get(&self, path: &str) -> Result<Value, Failed> {
        value(self.ask(Method::GET, path, None).await?).await
    }

    /// Has it do something.
    pub(super) async fn post(&self, path: &str, said: &Value) -> Result<Value, Failed> {
        value(self.ask(Method::POST, path, Some(said)).await?).await
    }

    /// The answer as it begins, for those that do not end.
    pub(super) async fn open(&self, path: &str) -> Result<Response<Incoming>, Failed> {
        let response = self.ask(Method::GET, path, None).await?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(refused(response).await),
        }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        said: Option<&Value>,
    ) -> Result<Response<Incoming>, Failed> {
        let needed = method != Method::GET;
        let request = |token| self.request(&method, path, said, token);
        let response = self.send(request(needed)?).await?;
        match response.status() {
            StatusCode::UNAUTHORIZED if !needed && self.token.is_some() => {
                self.send(request(true)?).await
            }
            _ => Ok(response),
        }
    }

    fn request(
        &self,
        method: &Method,
        path: &str,
        said: Option<&Value>,
        token: bool,
    ) -> Result<Request<Full<Bytes>>, Failed> {
        let wrong = |error: &dyn std::error::Error| Failed::Away(error.to_string());
        let body = said.map(Value::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header(HOST, &self.authority)
            .header(ACCEPT, "application/json, text/event-stream, */*")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| wrong(&error))?;
        let headers = request.headers_mut();
        if said.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(token) = self.token.as_ref().filter(|_| token) {
            let value = HeaderValue::try_from(format!("Bearer {token}"));
            headers.insert(AUTHORIZATION, value.map_err(|error| wrong(&error))?);
        }
        Ok(request)
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Failed> {
        let away = |why: &dyn std::fmt::Display| Failed::Away(why.to_string());
        let late = |_| away(&"no answer in time");
        let stream = timeout(CONNECT, TcpStream::connect(&*self.authority)).await;
        let stream = stream.map_err(late)?.map_err(|error| match error.kind() {
            std::io::ErrorKind::ConnectionRefused => away(&"connection refused"),
            _ => away(&error),
        })?;
        let made = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = made.map_err(|error| away(&error))?;
        tokio::spawn(connection);
        let answered = timeout(PATIENCE, sender.send_request(request)).await;
        answered.map_err(late)?.map_err(|error| away(&error))
    }

    /// What to tell the user who cannot be answered.
    pub(super) fn trouble(&self, failed: &Failed) -> Trouble {
        let url = self.url();
        match failed {
            Failed::Away(why) => {
                Trouble::failed(format!("no proxy answers at {url}: {why}")).help(format!(
                    "is it running? {} says that it listens there; name another file with `-c`, \
                     or the address with `--admin`",
                    self.said_by
                ))
            }
            Failed::Refused(401, why) => Trouble::failed(format!("{url} wants a token: {why}"))
                .help(match self.token {
                    Some(_) => {
                        "the token found here is not the proxy's: name its file with \
                                `--token-file`"
                    }
                    None => {
                        "run this as the user who runs the proxy, or name the token's file \
                             with `--token-file`"
                    }
                }),
            Failed::Refused(404, _) => Trouble::failed(format!(
                "{url} answers, but does not know what is asked: it is of another version, or \
                 no tidegate"
            )),
            Failed::Refused(status, why) => {
                Trouble::failed(format!("{url} answers {status}: {why}"))
            }
        }
    }
}

async fn value(response: Response<Incoming>) -> Result<Value, Failed> {
    // Not ready is an answer too.
    let is_fine =
        response.status().is_success() || response.status() == StatusCode::SERVICE_UNAVAILABLE;
    if !is_fine {
        return Err(refused(response).await);
    }
    let bytes = body(response).await?;
    let wrong = |_| Failed::Away("what answers there is no tidegate".to_owned());
    serde_json::from_slice(&bytes).map_err(wrong)
}

async fn refused(response: Response<Incoming>) -> Failed {
    let status = response.status();
    let said: Value = body(response)
        .await
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    let detail = said.get("detail").and_then(Value::as_str);
    let reason = status.canonical_reason().unwrap_or("no");
    Failed::Refused(status.as_u16(), detail.unwrap_or(reason).to_owned())
}

async fn body(response: Response<Incoming>) -> Result<Bytes, Failed> {
    let body = timeout(PATIENCE, Limited::new(response.into_body(), MOST).collect()).await;
    let body = body.map_err(|_| Failed::Away("the answer does not end".to_owned()))?;
    let broken = |error| Failed::Away(format!("the answer broke off: {error}"));
    Ok(body.map_err(broken)?.to_bytes())
}

/// Where to connect for something that listens there.
fn reached_at(address: SocketAddr, file: &Path) -> Result<String, Trouble> {
    if address.port() == 0 {
        let message = format!(
            "`admin` of {} has port 0: another at each start",
            file.display()
        );
        return Err(Trouble::failed(message)
            .help("name the one that the proxy told when it started with `--admin`"));
    }
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    Ok(SocketAddr::new(ip, address.port()).to_string())
}

/// What `--admin` names.
fn authority(text: &str) -> Result<String, Trouble> {
    let wrong = |why: &str| {
        Trouble::wrong(format!("`--admin {text}`: {why}"))
            .help("write for example `127.0.0.1:9180`")
    };
    if text.starts_with("https://") {
        return Err(wrong("the admin speaks plain HTTP"));
    }
    let rest = text.strip_prefix("http://").unwrap_or(text);
    let rest = rest.split(['/', '#', '?']).next().unwrap_or_default();
    let (host, port) = rest
        .rsplit_once(':')
        .ok_or_else(|| wrong("the port is missing"))?;
    match port.parse::<u16>() {
        Err(_) | Ok(0) => return Err(wrong("that is no port")),
        Ok(_) => {}
    }
    let host = if host.is_empty() { "127.0.0.1" } else { host };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
    match host.bytes().all(is_name) {
        true => Ok(format!("{host}:{port}")),
        false => Err(wrong("that is no address")),
    }
}

fn is_loopback(authority: &str) -> bool {
    let address = authority.parse::<SocketAddr>();
    authority.starts_with("localhost:") || address.is_ok_and(|one| one.ip().is_loopback())
}

fn read_token(path: &Path) -> Result<String, Trouble> {
    use std::io::Read;
    let mut text = String::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(MOST_TOKEN).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text.trim().to_owned()),
        Err(error) => Err(Trouble::failed(format!(
            "cannot read the token in `{}`: {error}",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_people_write_it() {
        for (text, read) in [
            ("127.0.0.1:9180", "127.0.0.1:9180"),
            (":9180", "127.0.0.1:9180"),
            ("http://127.0.0.1:9180/#token=abc", "127.0.0.1:9180"),
            ("[::1]:9180", "[::1]:9180"),
            ("proxy.internal:80", "proxy.internal:80"),
        ] {
            assert_eq!(authority(text).as_deref(), Ok(read));
        }
        for text in [
            "127.0.0.1",
            "https://a:1",
            "a:0",
            "a:x",
            "a b:1",
            "",
            "a\r\n:1",
        ] {
            assert_eq!(authority(text).unwrap_err().code, 2, "{text}");
        }
    }

    #[test]
    fn all_addresses_are_reached_at_this_machine() {
        let at = |text: &str| reached_at(text.parse().unwrap(), Path::new("p.toml"));
        assert_eq!(at("0.0.0.0:9180").as_deref(), Ok("127.0.0.1:9180"));
        assert_eq!(at("[::]:9180").as_deref(), Ok("[::1]:9180"));
        assert_eq!(at("10.1.2.3:9180").as_deref(), Ok("10.1.2.3:9180"));
        assert!(at("127.0.0.1:0").is_err());
    }

    #[test]
    fn a_token_of_this_machine_is_shown_to_this_machine_only() {
        assert!(is_loopback("127.0.0.1:1") && is_loopback("[::1]:1") && is_loopback("localhost:1"));
        for other in ["10.1.2.3:1", "localhost.example:1", "127.0.0.1.example:1"] {
            assert!(!is_loopback(other), "{other}");
        }
    }
}
