//! Sends requests to the admin of the running proxy.
//!
//! Each request opens a connection, so it also reaches a proxy that was upgraded or moved. The
//! client sends the token only with a change, or after the admin asks for it. A token that was
//! found on this machine is sent to this machine only.

use std::fmt;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::output::{CommandError, load};
use crate::admin::gate::{find_token, unnamed_admin};
use crate::config::{self, Config, Control, effective};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For the head of a response, and again for its body.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of a body, at most.
const MAX_BODY: usize = 64 << 20;
/// Bytes of a token file, at most.
const MAX_TOKEN: u64 = 4096;

/// Which proxy is asked.
#[derive(Clone, Debug, Args)]
pub(super) struct AdminArgs {
    /// The configuration of the running proxy, which names the address of its admin.
    #[arg(short, long, value_name = "FILE", default_value = "proxy.toml")]
    pub(super) config: PathBuf,
    /// The address of the admin, in place of the one in the file: `127.0.0.1:9180`.
    #[arg(long, value_name = "ADDRESS")]
    pub(super) admin: Option<String>,
    /// A file with the admin's token, if the command cannot find the proxy's own.
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
}

#[derive(Debug)]
pub(super) struct AdminClient {
    /// `127.0.0.1:9180`
    pub(super) authority: String,
    pub(super) token: Option<String>,
    /// The setting that names this address, for error messages.
    named_by: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AdminFailure {
    /// There is no complete HTTP response; the reason.
    Unreachable(String),
    /// The admin answered with this status and reason.
    Refused(u16, String),
}

impl fmt::Display for AdminFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdminFailure::Unreachable(why) => f.write_str(why),
            AdminFailure::Refused(status, why) => write!(f, "{why} ({status})"),
        }
    }
}

fn unreachable(why: impl fmt::Display) -> AdminFailure {
    AdminFailure::Unreachable(why.to_string())
}

/// A runtime for one command.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(|error| CommandError::failed(error.to_string()))
}

impl AdminClient {
    /// Finds the admin's address and token. Sends nothing.
    pub(super) fn new(args: &AdminArgs) -> Result<AdminClient, CommandError> {
        let file = args.config.display();
        let place = config::admin_of(&args.config);
        let (authority, named_by) = match (&args.admin, &place) {
            (Some(text), _) => (parse_authority(text)?, "`--admin`".to_owned()),
            (None, Ok(place)) => {
                let address = place.address.ok_or_else(|| {
                    let message = format!("This command needs `admin`; {file} has none");
                    CommandError::failed(message).help(
                        "write `admin = \"127.0.0.1:9180\"` at its top and restart the proxy, or \
                         name the address with `--admin`",
                    )
                })?;
                let authority = admin_authority(address, &args.config)?;
                (authority, format!("`admin` of {file}"))
            }
            (None, Err(error)) => {
                let message = format!("cannot read `{file}`: {error}");
                return Err(CommandError::failed(message)
                    .help("name the proxy's file with `-c`, or its admin with `--admin`"));
            }
        };
        let place = place.unwrap_or_default();
        let is_here = args.admin.is_none() || is_loopback(&authority);
        let token = match (&args.token_file, &place.token_file) {
            (Some(path), _) => Some(read_token(path)?),
            (None, Some(path)) if is_here => read_token(path).ok(),
            (None, _) if is_here => own_token(args, &authority, place.address),
            _ => None,
        };
        Ok(AdminClient {
            authority,
            token,
            named_by,
        })
    }

    /// `http://127.0.0.1:9180/`
    pub(super) fn url(&self) -> String {
        format!("http://{}/", self.authority)
    }

    pub(super) fn wait<T>(
        &self,
        request: impl Future<Output = Result<T, AdminFailure>>,
    ) -> Result<T, CommandError> {
        let result = runtime()?.block_on(request);
        result.map_err(|failure| self.error(&failure))
    }

    /// The configuration of the proxy, without its secrets. A part that names files of another
    /// machine cannot be read; then `file` has to do.
    pub(super) fn config(&self, file: &Path) -> Result<Config, CommandError> {
        let answer = self.wait(self.get("/api/v1/config"))?;
        let text = effective::toml(&answer);
        match config::parse(&self.url(), &text, &config::environment) {
            Ok((config, _)) => Ok(config),
            Err(_) => load(file),
        }
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, AdminFailure> {
        json_body(self.request(Method::GET, path, None).await?).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, AdminFailure> {
        json_body(self.request(Method::POST, path, Some(body)).await?).await
    }

    /// Returns a successful response before its body: the body may be endless.
    pub(super) async fn open(&self, path: &str) -> Result<Incoming, AdminFailure> {
        let response = self.request(Method::GET, path, None).await?;
        match response.status().is_success() {
            true => Ok(response.into_body()),
            false => Err(refusal(response).await),
        }
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response<Incoming>, AdminFailure> {
        let text = body.map(Value::to_string).unwrap_or_default();
        let mut bare = Request::builder()
            .method(&method)
            .uri(path)
            .header(HOST, &self.authority)
            .header(ACCEPT, "application/json, text/event-stream, */*");
        if body.is_some() {
            bare = bare.header(CONTENT_TYPE, "application/json");
        }
        let bare = bare
            .body(Full::new(Bytes::from(text)))
            .map_err(unreachable)?;
        let mut signed = bare.clone();
        if let Some(token) = &self.token {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let headers = signed.headers_mut();
            headers.insert(AUTHORIZATION, value.map_err(unreachable)?);
        }
        if method != Method::GET {
            return self.send(signed).await;
        }
        let response = self.send(bare).await?;
        match response.status() {
            StatusCode::UNAUTHORIZED if self.token.is_some() => self.send(signed).await,
            _ => Ok(response),
        }
    }

    async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, AdminFailure> {
        let late = |_| unreachable("no answer in time");
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(&*self.authority)).await;
        let stream = stream.map_err(late)?.map_err(|error| match error.kind() {
            std::io::ErrorKind::ConnectionRefused => unreachable("connection refused"),
            _ => unreachable(error),
        })?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(unreachable)?;
        tokio::spawn(connection);
        let response = timeout(RESPONSE_TIMEOUT, sender.send_request(request)).await;
        response.map_err(late)?.map_err(unreachable)
    }

    /// Says what failed, and what the user can do.
    pub(super) fn error(&self, failure: &AdminFailure) -> CommandError {
        let url = self.url();
        match failure {
            AdminFailure::Unreachable(why) => {
                CommandError::failed(format!("no proxy answers at {url}: {why}")).help(format!(
                    "is it running? {} says that it listens there; name another file with `-c`, \
                     or the address with `--admin`",
                    self.named_by
                ))
            }
            AdminFailure::Refused(401, why) => {
                let help = match self.token {
                    Some(_) => "the token found here is not the proxy's: name its",
                    None => "run this as the user of the proxy, or name the token's",
                };
                CommandError::failed(format!("{url} needs a token: {why}"))
                    .help(format!("{help} file with `--token-file`"))
            }
            AdminFailure::Refused(404, _) => CommandError::failed(format!(
                "{url} answers, but does not know this request: it has another version, or is no \
                 tidegate"
            )),
            AdminFailure::Refused(status, why) => {
                CommandError::failed(format!("{url} answers {status}: {why}"))
            }
        }
    }
}

async fn json_body(response: Response<Incoming>) -> Result<Value, AdminFailure> {
    // 503 is an answer too: the proxy is not ready.
    let status = response.status();
    if !status.is_success() && status != StatusCode::SERVICE_UNAVAILABLE {
        return Err(refusal(response).await);
    }
    let bytes = read_body(response).await?;
    serde_json::from_slice(&bytes).map_err(|_| {
        unreachable(
            "the server at this address is no \
     tidegate",
        )
    })
}

async fn refusal(response: Response<Incoming>) -> AdminFailure {
    let status = response.status();
    let body = read_body(response).await.unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let reason = status.canonical_reason().unwrap_or("no");
    let detail = body["detail"].as_str().unwrap_or(reason);
    AdminFailure::Refused(status.as_u16(), detail.to_owned())
}

async fn read_body(response: Response<Incoming>) -> Result<Bytes, AdminFailure> {
    let body = Limited::new(response.into_body(), MAX_BODY).collect();
    let body = timeout(RESPONSE_TIMEOUT, body).await;
    let body = body.map_err(|_| unreachable("the answer does not end"))?;
    let body = body.map_err(|error| unreachable(format!("the answer broke off: {error}")))?;
    Ok(body.to_bytes())
}

/// An address under which this machine reaches a listener.
pub(super) fn local_address(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, address.port())
}

/// The token that the proxy made. A demo keeps the token of an address that no file names by the
/// address.
fn own_token(args: &AdminArgs, authority: &str, named: Option<SocketAddr>) -> Option<String> {
    let asked = authority.replacen("localhost:", "127.0.0.1:", 1);
    let asked = asked.parse::<SocketAddr>().ok();
    let is_named = asked.is_none() || asked == named.map(local_address);
    let unnamed = asked
        .filter(|_| !is_named)
        .and_then(|address| find_token(&unnamed_admin(address), &Control::Derived));
    let token = unnamed.or_else(|| find_token(&args.config, &config::control_of(&args.config)));
    String::from_utf8(token?).ok()
}

fn admin_authority(address: SocketAddr, file: &Path) -> Result<String, CommandError> {
    if address.port() == 0 {
        let file = file.display();
        let message = format!("`admin` of {file} has port 0: another at each start");
        return Err(CommandError::failed(message)
            .help("give the address that the proxy printed at its start to `--admin`"));
    }
    Ok(local_address(address).to_string())
}

fn parse_authority(text: &str) -> Result<String, CommandError> {
    let wrong = |why: &str| {
        CommandError::wrong_use(format!("`--admin {text}`: {why}"))
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
    if port.parse().unwrap_or(0_u16) == 0 {
        return Err(wrong("that is no port"));
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

fn read_token(path: &Path) -> Result<String, CommandError> {
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_TOKEN).read_to_string(&mut text))
        .map_err(|error| {
            let path = path.display();
            CommandError::failed(format!("cannot read the token in `{path}`: {error}"))
        })?;
    Ok(text.trim().to_owned())
}

/// Percent-encodes a text for a path or a query (RFC 3986, section 2.1), except the bytes in
/// `kept`.
pub(super) fn percent_encoded(text: &str, kept: &str) -> String {
    let is_kept = |byte: u8| b"-._~".contains(&byte) || kept.as_bytes().contains(&byte);
    let encode = |byte: u8| match byte.is_ascii_alphanumeric() || is_kept(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
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
            assert_eq!(parse_authority(text).as_deref(), Ok(read));
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
            assert_eq!(parse_authority(text).unwrap_err().code, 2, "{text}");
        }
    }

    #[test]
    fn all_addresses_are_reached_at_this_machine() {
        let at = |text: &str| admin_authority(text.parse().unwrap(), Path::new("p.toml"));
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

    #[test]
    fn words_stand_in_a_path_as_they_were_written() {
        assert_eq!(percent_encoded("ip=2001:db8::1", "=:"), "ip=2001:db8::1");
        assert_eq!(
            percent_encoded("path=/a b&c%", "=:"),
            "path=%2Fa%20b%26c%25"
        );
    }

    #[test]
    fn filters_are_told_to_the_proxy() {
        let query = percent_encoded("GET /a b&c=é", "");
        assert_eq!(query, "GET%20%2Fa%20b%26c%3D%C3%A9");
    }
}
