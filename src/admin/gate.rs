//! Access to the admin: pages of other sites have none, and where a token is needed, requests
//! without it have none.
//!
//! There are no cookies and no CORS headers. So a page of another site cannot act in an operator's
//! name, and cannot read an answer. It could still use a name of its own that leads here (DNS
//! rebinding). So `Host` must be an address, `localhost`, or a name of the configuration.
//!
//! If the configuration names no token file, a token is made at the first start. It is kept beside
//! the control socket, in a file that only this user can read. It stays the same after a restart,
//! so that an open dashboard goes on.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, Method, Request, StatusCode, Version};

use super::response::ApiError;
use crate::config::{AdminSettings, Control};
use crate::limit::key::same_secret;
use crate::server::socket_file::{control_paths, make_private};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdminAction {
    /// Reads what every client may see that can connect.
    Probe,
    /// Reads what clients do.
    Read,
    /// Changes something.
    Write,
}

/// The rules for access, from the configuration.
#[derive(Debug)]
pub(super) struct AccessPolicy {
    pub(super) address: SocketAddr,
    hosts: Vec<String>,
    /// Without a token no request may write.
    token: Option<Vec<u8>>,
    pub(super) is_from_file: bool,
    /// Whether reading is free, because only users of this machine can connect.
    is_loopback: bool,
}

impl AccessPolicy {
    pub(super) fn new(settings: &AdminSettings, own_token: Option<&[u8]>) -> AccessPolicy {
        let token = settings.token.as_deref().or(own_token);
        AccessPolicy {
            address: settings.address,
            hosts: settings.hosts.clone(),
            is_from_file: settings.is_from_file,
            token: token.map(<[u8]>::to_vec),
            is_loopback: settings.address.ip().is_loopback(),
        }
    }

    pub(super) fn authorize<B>(
        &self,
        request: &Request<B>,
        action: AdminAction,
    ) -> Result<(), ApiError> {
        let headers = request.headers();
        // Health checks of HTTP/1.0 may have no `Host`. Browsers always send it.
        let is_old_probe = action == AdminAction::Probe && request.version() == Version::HTTP_10;
        let is_hostless = is_old_probe && !headers.contains_key(HOST);
        if !(is_hostless || self.knows_host(headers)) {
            let detail = "ask by address, by `localhost`, or by a name in `admin_hosts`";
            return Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, detail));
        }
        if action == AdminAction::Probe {
            return Ok(());
        }
        let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
        if matches!(site, Some(b"cross-site" | b"same-site")) {
            let detail = "a page of another site may not ask";
            return Err(ApiError::new(StatusCode::FORBIDDEN, detail));
        }
        if (action == AdminAction::Write || !self.is_loopback) && !self.knows_token(headers) {
            let detail = match &self.token {
                Some(_) => {
                    "send `Authorization: Bearer TOKEN`; `tidegate status` on the machine of the \
                     proxy shows the token"
                }
                None => "there is no token: name a file in `admin_token_file`",
            };
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, detail));
        }
        if request.method() == Method::POST && !is_json(headers) {
            let detail = "send `Content-Type: application/json`";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        Ok(())
    }

    fn knows_host(&self, headers: &HeaderMap) -> bool {
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return false;
        };
        let Ok(host) = host.to_str() else {
            return false;
        };
        let name = without_port(host).to_ascii_lowercase();
        let inner = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'));
        inner.unwrap_or(&name).parse::<IpAddr>().is_ok()
            || name == "localhost"
            || self.hosts.contains(&name)
    }

    fn knows_token(&self, headers: &HeaderMap) -> bool {
        let (Some(token), Some(shown)) = (&self.token, headers.get(AUTHORIZATION)) else {
            return false;
        };
        let (scheme, shown) = shown.as_bytes().split_at_checked(7).unwrap_or_default();
        scheme.eq_ignore_ascii_case(b"bearer ") && same_secret(shown.trim_ascii(), token)
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let media = headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    let media = media.and_then(|media| media.split(|byte| *byte == b';').next());
    media.is_some_and(|media| media.trim_ascii().eq_ignore_ascii_case(b"application/json"))
}

/// The most bytes that are read of a token file.
const MAX_FILE: u64 = 256;
/// Characters of a token.
const LENGTH: usize = 43;

/// The files that may hold the token of the proxy with this configuration file, the likeliest
/// first.
fn token_places(file: &Path, control: &Control) -> Vec<PathBuf> {
    let sockets = control_paths(file, control);
    let beside = |socket: PathBuf| socket.with_extension("token");
    sockets.into_iter().map(beside).collect()
}

/// The path in place of a file for the token of an admin whose address no file names.
pub fn unnamed_admin(address: SocketAddr) -> PathBuf {
    PathBuf::from(format!("/tidegate admin/{address}"))
}

/// The token of the proxy with this configuration file, if this user may read it.
pub fn find_token(file: &Path, control: &Control) -> Option<Vec<u8>> {
    token_places(file, control)
        .iter()
        .find_map(|path| read_token(path))
}

/// The same; makes a token if there is none.
///
/// # Errors
/// The token cannot be written to any of the places.
pub fn keep_token(file: &Path, control: &Control) -> io::Result<Vec<u8>> {
    let places = token_places(file, control);
    if let Some(token) = places.iter().find_map(|path| read_token(path)) {
        return Ok(token);
    }
    let mut failed = io::Error::other("there is no place for it");
    for path in &places {
        match make_token(path, *control == Control::Derived) {
            Ok(token) => return Ok(token),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn make_token(path: &Path, own_directory: bool) -> io::Result<Vec<u8>> {
    if own_directory {
        make_private(path.parent().unwrap_or(Path::new("/")))?;
    }
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    let token = URL_SAFE_NO_PAD.encode(bytes);
    // Written to another file and then renamed, so that a reader never finds a part of it.
    let beside = path.with_extension(format!("token.{}", std::process::id()));
    let _ = fs::remove_file(&beside);
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)?;
    let written = file.write_all(token.as_bytes());
    written
        .and_then(|()| fs::rename(&beside, path))
        .inspect_err(|_| {
            let _ = fs::remove_file(&beside);
        })?;
    Ok(token.into_bytes())
}

/// The token in a file that belongs to this user and that no other user can read.
fn read_token(path: &Path) -> Option<Vec<u8>> {
    let mut options = OpenOptions::new();
    let file = options.read(true).open(path).ok()?;
    let found = file.metadata().ok()?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    let root = rustix::process::geteuid().is_root();
    if !found.is_file() || !(own || root) || found.mode() & 0o077 != 0 {
        return None;
    }
    let mut token = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut token).ok()?;
    (token.len() == LENGTH).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;
    use http::HeaderValue;

    fn policy(address: &str) -> AccessPolicy {
        let settings = AdminSettings {
            address: address.parse().unwrap(),
            token: Some(Secret(b"0123456789abcdef".to_vec())),
            hosts: vec!["proxy.internal".to_owned()],
            is_from_file: true,
        };
        AccessPolicy::new(&settings, None)
    }

    fn request(lines: &[(&'static str, &str)], method: Method) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = method;
        for (name, value) in lines {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        request
    }

    fn status(policy: &AccessPolicy, lines: &[(&'static str, &str)], action: AdminAction) -> u16 {
        let method = match action {
            AdminAction::Write => Method::POST,
            AdminAction::Probe | AdminAction::Read => Method::GET,
        };
        match policy.authorize(&request(lines, method), action) {
            Ok(()) => 200,
            Err(refusal) => refusal.status.as_u16(),
        }
    }

    #[test]
    fn a_host_that_is_not_configured_is_refused() {
        let policy = policy("127.0.0.1:9180");
        let status_of = |host| status(&policy, &[("host", host)], AdminAction::Probe);
        for host in [
            "127.0.0.1:9180",
            "[::1]:9180",
            "[::1]",
            "localhost",
            "LocalHost:1",
            "Proxy.Internal",
            "10.1.2.3",
        ] {
            assert_eq!(status_of(host), 200, "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
        ] {
            assert_eq!(status_of(host), 421, "{host}");
        }
        assert_eq!(status(&policy, &[], AdminAction::Probe), 421);
        let mut old = request(&[], Method::GET);
        *old.version_mut() = Version::HTTP_10;
        assert!(policy.authorize(&old, AdminAction::Probe).is_ok());
        let refused = policy.authorize(&old, AdminAction::Read).unwrap_err();
        assert_eq!(refused.status, 421);
        old.headers_mut()
            .append("host", HeaderValue::from_static("evil.example"));
        assert!(policy.authorize(&old, AdminAction::Probe).is_err());
        let twice = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(status(&policy, &twice, AdminAction::Probe), 421);
    }

    #[test]
    fn writing_needs_the_token_and_reading_does_where_others_can_connect() {
        let (here, open) = (policy("127.0.0.1:9180"), policy("0.0.0.0:9180"));
        let host = ("host", "10.1.2.3:9180");
        let good = ("authorization", "Bearer 0123456789abcdef");
        let json = ("content-type", "application/json; charset=utf-8");
        assert_eq!(status(&here, &[host], AdminAction::Read), 200);
        assert_eq!(status(&open, &[host], AdminAction::Read), 401);
        assert_eq!(status(&open, &[host], AdminAction::Probe), 200);
        assert_eq!(status(&open, &[host, good], AdminAction::Read), 200);
        for policy in [&here, &open] {
            assert_eq!(status(policy, &[host, json], AdminAction::Write), 401);
            assert_eq!(status(policy, &[host, good], AdminAction::Write), 415);
            assert_eq!(status(policy, &[host, good, json], AdminAction::Write), 200);
            for bad in [
                "Bearer 0123456789abcdeg",
                "Bearer",
                "Basic 0123456789abcdef",
                "Bearer ",
            ] {
                let bad = ("authorization", bad);
                assert_eq!(status(policy, &[host, bad, json], AdminAction::Write), 401);
            }
        }
    }

    #[test]
    fn pages_of_other_sites_may_not_ask() {
        let policy = policy("127.0.0.1:9180");
        let host = ("host", "127.0.0.1:9180");
        for (site, want) in [("cross-site", 403), ("same-origin", 200), ("none", 200)] {
            let lines = [host, ("sec-fetch-site", site)];
            assert_eq!(status(&policy, &lines, AdminAction::Read), want, "{site}");
        }
    }

    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    #[test]
    fn it_is_made_once_and_for_this_user_alone() {
        let directory = tempfile::tempdir().unwrap();
        let control = Control::At(directory.path().join("control.sock"));
        let file = Path::new("proxy.toml");
        assert_eq!(find_token(file, &control), None);
        let token = keep_token(file, &control).unwrap();
        assert_eq!(token.len(), LENGTH);
        assert_eq!(keep_token(file, &control).unwrap(), token);
        assert_eq!(find_token(file, &control), Some(token.clone()));
        let place = directory.path().join("control.token");
        assert_eq!(fs::metadata(&place).unwrap().mode() & 0o777, 0o600);
        // A token that other users can read is not used.
        fs::set_permissions(&place, Permissions::from_mode(0o644)).unwrap();
        assert_ne!(keep_token(file, &control).unwrap(), token);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
