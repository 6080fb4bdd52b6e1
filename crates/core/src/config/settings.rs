//! The sections that stand alone: `[store]`, `[client_ip]`, `[api_key]`, `[headers]`, `[deny]`,
//! `[server]` and `[log]`. Every default of theirs is in this file, and in `proxy.reference.toml`.

use std::path::PathBuf;
use std::time::Duration;

use http::StatusCode;
use http::header::HeaderName;

use super::address;
use super::diagnostic::{Code, Diagnostic};
use super::redis_keys;
use super::section::Section;
use super::slip::nearest;
use super::values::{DAY, MS, SECOND, TextForm, header_name, some_time};
use super::{
    BodyKind, Control, DenySettings, FINDINGS, Fleet, LogFormat, LogKeys, LogSettings, LogTarget,
    ProxyProtocol, ServerSettings, StoreKind, StoreSettings,
};
use crate::client::ClientIp;
use crate::limit::headers::{HeaderSettings, ResetForm};
use crate::limit::{Missing, OnError};
use crate::route::{Direction, HeaderChange};

const MIB: u64 = 1 << 20;

/// Words of `on_error`.
pub(super) const ON_ERROR: &[(&str, OnError)] = &[
    ("local", OnError::Local),
    ("allow", OnError::Allow),
    ("deny", OnError::Deny),
];

/// Words of `counts`: whether every request counts as one.
pub(super) const COUNTS: &[(&str, bool)] = &[("costs", false), ("requests", true)];

/// Words of `missing`.
pub(super) const MISSING: &[(&str, Missing)] = &[
    ("ip", Missing::Ip),
    ("deny", Missing::Deny),
    ("skip", Missing::Skip),
    ("shared", Missing::Shared),
];

/// `[store]`
pub(super) fn store(mut section: Section<'_>) -> StoreSettings {
    let kind = redis_keys::kind(&mut section);
    let is_shared = !matches!(kind, StoreKind::Memory);
    let prefix = section.parsed("prefix", TextForm::new(Code::BadName, "a prefix"), prefix);
    let settings = StoreSettings {
        kind,
        prefix: prefix.map_or_else(|| "tidegate:".to_owned(), |prefix| prefix.value),
        timeout: section.duration("timeout", MS..=10 * SECOND, 25 * MS),
        on_error: section.word("on_error", ON_ERROR).unwrap_or(OnError::Local),
        fleet: fleet(&mut section, is_shared),
        hash_key: hash_key(&mut section),
        max_keys: section.count("max_keys", 1..=1 << 32, 1_000_000),
        max_memory: usize::try_from(section.size("max_memory", MIB..=1 << 46, 256 * MIB))
            .unwrap_or(usize::MAX),
    };
    section.finish();
    settings
}

/// A number, or `auto`.
fn fleet(section: &mut Section<'_>, is_shared: bool) -> Fleet {
    let value = section.peek("fleet");
    if value.is_none_or(|value| value.get_ref().is_str()) {
        let word = section.word("fleet", &[("auto", Fleet::Auto)]);
        return word.unwrap_or(Fleet::Auto);
    }
    let Some(number) = section.integer("fleet", 1..=100_000) else {
        return Fleet::Auto;
    };
    if number.value == 1 && is_shared {
        let message = "`fleet = 1` says that no other proxy shares this store";
        let diagnostic = Diagnostic::new(Code::LoneFleet, message)
            .at(&number.span, "what if there is a second one?")
            .help("leave it out: proxies count each other")
            .note("a proxy that starts while the store is away would grant each limit in full");
        section.reader.report(diagnostic);
    }
    u32::try_from(number.value).map_or(Fleet::Auto, Fleet::Fixed)
}

/// What keys in Redis begin with. Braces would choose a slot of a cluster.
fn prefix(text: &str) -> Result<String, &'static str> {
    let fits = |byte: u8| byte.is_ascii_graphic() && !b"{}*?[]\\".contains(&byte);
    if text.len() <= 64 && text.bytes().all(fits) {
        Ok(text.to_owned())
    } else {
        Err("at most 64 visible ASCII characters, none of `{}*?[]\\`")
    }
}

/// The file may hold a secret of any form: it is hashed to the key's length.
fn hash_key(section: &mut Section<'_>) -> Option<[u8; 32]> {
    let secret = section.secret(None, "hash_key_file")?;
    if secret.value.len() < 16 {
        let message = "the file of `store.hash_key_file` cannot be used";
        let diagnostic = Diagnostic::new(Code::SecretFile, message)
            .at(
                &secret.span,
                "shorter than 16 bytes: such a secret can be guessed",
            )
            .help("make one: `head -c 32 /dev/urandom | base64 > FILE`");
        section.reader.report(diagnostic);
        return None;
    }
    Some(blake3::derive_key(
        "tidegate 1 store.hash_key_file",
        &secret.value,
    ))
}

/// `trusted_proxies` and `[client_ip]`
pub(super) fn client_ip(top: &mut Section<'_>) -> ClientIp {
    let mut trusted = Vec::new();
    for text in top
        .texts("trusted_proxies")
        .map(|texts| texts.value)
        .unwrap_or_default()
    {
        let kind = TextForm::NETWORK;
        let net = top.understood("trusted_proxies", text, kind, address::network);
        trusted.extend(net.map(|net| net.value));
    }
    let mut section = top.section("client_ip");
    let default = ClientIp::default();
    let header = section.parsed("header", TextForm::HEADER_NAME, header_name);
    let mut prefix = |key, range, default| {
        let number = section.integer(key, range).map(|number| number.value);
        number
            .and_then(|number| u8::try_from(number).ok())
            .unwrap_or(default)
    };
    let ipv6_prefix = prefix("ipv6_prefix", 16..=128, default.ipv6_prefix);
    let ipv4_prefix = prefix("ipv4_prefix", 8..=32, default.ipv4_prefix);
    section.finish();
    let header = header.map_or(default.header, |header| header.value);
    ClientIp {
        trusted,
        header,
        ipv6_prefix,
        ipv4_prefix,
    }
}

/// `[headers]`; the second is the header in which requests have ids.
pub(super) fn headers(mut section: Section<'_>) -> (HeaderSettings, Option<HeaderName>) {
    let forms = [("epoch", ResetForm::Epoch), ("delta", ResetForm::Delta)];
    let settings = HeaderSettings {
        x_ratelimit: section.boolean("x_ratelimit", true),
        ietf: section.boolean("ietf", true),
        reset: section.word("reset", &forms).unwrap_or(ResetForm::Epoch),
        cors_expose: section.boolean("cors_expose", true),
        pass_upstream: section.boolean("pass_upstream", false),
    };
    let request_id = request_id(&mut section);
    section.finish();
    (settings, request_id)
}

/// A header's name, or `false`.
fn request_id(section: &mut Section<'_>) -> Option<HeaderName> {
    if !section.reader.surroundings.forwards {
        return None;
    }
    let value = section.peek("request_id");
    if value.is_some_and(|value| value.get_ref().as_bool() == Some(false)) {
        section.take("request_id");
        return None;
    }
    let kind = TextForm::HEADER_NAME;
    let name = section.parsed("request_id", kind, |text| {
        let name = header_name(text)?;
        HeaderChange::may_touch(&name, Direction::Up)?;
        HeaderChange::may_touch(&name, Direction::Down).map(|()| name)
    });
    name.map(|name| name.value)
}

/// `[deny]`
pub(super) fn deny(mut section: Section<'_>) -> DenySettings {
    let status = section
        .integer("status", 400..=599)
        .map(|status| status.value);
    let status = status.and_then(|status| StatusCode::from_u16(u16::try_from(status).ok()?).ok());
    let docs_url = section.parsed("docs_url", TextForm::new(Code::BadUrl, "a URL"), |text| {
        let visible = text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"<>\"".contains(&byte));
        let scheme = text.starts_with("https://") || text.starts_with("http://");
        let uri = text.parse::<http::Uri>();
        if visible && scheme && uri.is_ok() {
            Ok(text.to_owned())
        } else {
            Err("write for example `https://example.com/docs/limits`")
        }
    });
    let mut templates = section.section("body");
    let kinds = [
        ("json", BodyKind::Json),
        ("html", BodyKind::Html),
        ("text", BodyKind::Text),
    ];
    let body = kinds
        .into_iter()
        .filter_map(|(key, kind)| templates.text(key).map(|template| (kind, template.value)));
    let body = body.collect();
    templates.finish();
    section.finish();
    DenySettings {
        status: status.unwrap_or(StatusCode::TOO_MANY_REQUESTS),
        docs_url: docs_url.map(|url| url.value),
        body,
    }
}

/// `proxy_protocol`: worth something only from those who may speak for others.
fn proxy_protocol(top: &mut Section<'_>) -> ProxyProtocol {
    let words = [
        ("off", ProxyProtocol::Off),
        ("optional", ProxyProtocol::Optional),
        ("required", ProxyProtocol::Required),
    ];
    let mode = top.word("proxy_protocol", &words).unwrap_or_default();
    if mode != ProxyProtocol::Off && top.peek("trusted_proxies").is_none() {
        let message = "`proxy_protocol` without `trusted_proxies`";
        let span = top.key_span("proxy_protocol");
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(&span, "nobody may say whom a connection is from")
            .help("name who may: `trusted_proxies = [\"10.0.0.0/8\"]`");
        top.reader.report(diagnostic);
    }
    mode
}

/// `[server]`
pub(super) fn server(top: &mut Section<'_>) -> ServerSettings {
    let proxy_protocol = proxy_protocol(top);
    let mut section = top.section("server");
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let workers = section.count("workers", 0..=1024, 0);
    let drain_timeout = section.duration("drain_timeout", Duration::ZERO..=DAY, 25 * SECOND);
    let pid_file = section.parsed(
        "pid_file",
        TextForm::new(Code::BadAddress, "a file's path"),
        file_path,
    );
    let place = "a socket's path, or `off`";
    let control_at = section.parsed("control", TextForm::new(Code::BadAddress, place), control);
    let head_size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let of_one = section.integer("max_connections_per_ip", 1..=10_000_000);
    let https_port = section.integer("https_port", 1..=65_535);
    let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let settings = ServerSettings {
        workers: if workers == 0 { cores() } else { workers },
        max_connections: section.count("max_connections", 1..=10_000_000, 20_000),
        max_connections_per_ip: of_one.and_then(|most| usize::try_from(most.value).ok()),
        header_timeout: section.duration("header_timeout", some_time(), 10 * SECOND),
        idle_timeout: section.duration("idle_timeout", some_time(), 60 * SECOND),
        body_timeout: section.duration("body_timeout", some_time(), 30 * SECOND),
        // hyper refuses buffers under 8 KiB.
        max_header_bytes: head_size(section.size("max_header_bytes", 8 << 10..=MIB, 32 << 10)),
        max_headers: section.count("max_headers", 1..=1000, 100),
        proxy_protocol,
        https_port: https_port.and_then(|port| u16::try_from(port.value).ok()),
        http2: section.boolean("http2", true),
        max_streams: small(section.count("max_streams", 1..=10_000, 128)),
        max_body: section.bound("max_body").unwrap_or(Some(100 * MIB)),
        drain_timeout,
        drain_idle: section.duration("drain_idle", Duration::ZERO..=DAY, SECOND),
        handover_timeout: section.duration("handover_timeout", Duration::ZERO..=DAY, drain_timeout),
        pid_file: pid_file.map(|path| section.path(path.value)),
        control: match control_at.map(|control| control.value) {
            Some(Control::At(path)) => Control::At(section.path(path)),
            control => control.unwrap_or(Control::Derived),
        },
    };
    section.finish();
    settings
}

/// Where commands reach the process.
pub(super) fn control(text: &str) -> Result<Control, &'static str> {
    match text {
        "off" => Ok(Control::Off),
        // The address of a unix socket has no room for more, and we add an ending to it.
        text if text.len() > 90 => Err("longer than 90 bytes"),
        text => file_path(text).map(Control::At),
    }
}

fn file_path(text: &str) -> Result<PathBuf, &'static str> {
    if text.is_empty() {
        Err("empty")
    } else {
        Ok(PathBuf::from(text))
    }
}

/// `[log]`
pub(super) fn log(mut section: Section<'_>) -> LogSettings {
    let formats = [
        ("text", LogFormat::Text),
        ("json", LogFormat::Json),
        ("combined", LogFormat::Combined),
    ];
    let keys = [
        ("hash", LogKeys::Hash),
        ("plain", LogKeys::Plain),
        ("off", LogKeys::Off),
    ];
    let target = |text: &str| match text {
        "off" => Ok(LogTarget::Off),
        "stdout" => Ok(LogTarget::Stdout),
        "stderr" => Ok(LogTarget::Stderr),
        text => file_path(text).map(LogTarget::File),
    };
    let decisions = section.parsed(
        "decisions",
        TextForm::new(Code::BadAddress, "a file's path"),
        file_path,
    );
    let place = "`stdout`, `stderr`, `off` or a file's path";
    let access = section.parsed("access", TextForm::new(Code::BadAddress, place), target);
    let settings = LogSettings {
        decisions: decisions.map(|path| section.path(path.value)),
        format: section.word("format", &formats),
        access: match access.map(|target| target.value) {
            Some(LogTarget::File(path)) => LogTarget::File(section.path(path)),
            target => target.unwrap_or(LogTarget::Stdout),
        },
        sample_allowed: section.share("sample_allowed", 0.0),
        keys: section.word("keys", &keys).unwrap_or(LogKeys::Hash),
        silence: silence(&mut section),
    };
    section.finish();
    settings
}

/// Findings that are not to be told.
fn silence(section: &mut Section<'_>) -> Vec<&'static str> {
    let texts = section.texts("silence").map(|texts| texts.value);
    let mut ids = Vec::new();
    for text in texts.unwrap_or_default() {
        if let Some(id) = FINDINGS.into_iter().find(|id| *id == text.value) {
            ids.push(id);
            continue;
        }
        let all = FINDINGS.map(|id| format!("`{id}`")).join(", ");
        let help = match nearest(&text.value, FINDINGS) {
            Some(id) => format!("did you mean `{id}`?"),
            None => format!("write some of {all}"),
        };
        let message = format!("`log.silence` names no finding: `{}`", text.value);
        let diagnostic = Diagnostic::new(Code::UnknownWord, message);
        let diagnostic = diagnostic.at(&text.span, "nothing that is found is called so");
        section.reader.report(diagnostic.help(help));
    }
    ids
}
