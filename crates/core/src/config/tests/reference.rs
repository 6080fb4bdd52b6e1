//! `proxy.reference.toml` shows every key, and every default as it is.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

use super::super::diagnostic::Code;
use super::super::load::read_text;
use super::super::reader::{DeclaredSettings, Surroundings};
use super::super::section::PLANNED;
use super::{super::Config, fine};

const REFERENCE: &str = include_str!("../../../proxy.reference.toml");

const JWKS: &[u8] = br#"{"keys":[{"kty":"OKP","crv":"Ed25519",
    "x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

/// A certificate and its key.
static PAIR: LazyLock<(String, String)> = LazyLock::new(|| {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    (pair.cert.pem(), pair.signing_key.serialize_pem())
});

/// A list that revokes nothing.
static REVOKED: LazyLock<String> = LazyLock::new(|| {
    let params = rcgen::CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2020, 1, 1),
        next_update: rcgen::date_time_ymd(2999, 1, 1),
        crl_number: rcgen::SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    let key = rcgen::KeyPair::generate().unwrap();
    let issuer = rcgen::Issuer::new(rcgen::CertificateParams::default(), key);
    params.signed_by(&issuer).unwrap().pem().unwrap()
});

/// A file that an example names, by what its name says that it holds.
pub(super) fn file(path: &Path, _: u64) -> std::io::Result<Vec<u8>> {
    let named = |end: &str| path.extension().is_some_and(|ending| ending == end);
    let text: &[u8] = match path.file_name().and_then(|name| name.to_str()) {
        Some("jwks.json") => JWKS,
        Some("tiers" | "tiers.txt") => b"key pro",
        Some("allow" | "deny") => b"10.0.0.0/8",
        Some("otlp-headers") => b"authorization: Bearer x",
        _ if named("pem") => PAIR.0.as_bytes(),
        _ if named("crl") => REVOKED.as_bytes(),
        _ if named("key") => PAIR.1.as_bytes(),
        _ => b"0123456789abcdef",
    };
    Ok(text.to_vec())
}

fn read(text: &str) -> (Config, DeclaredSettings) {
    let around = Surroundings {
        base: std::path::Path::new(""),
        forwards: true,
        env: &|_| None,
        now_s: 1_800_000_000,
        read: &file,
    };
    let (outcome, asked) = read_text("proxy.reference.toml", text, &around);
    let (config, mut warnings) = outcome.unwrap_or_else(|found| panic!("{found}"));
    // The reference counts in memory, and shows a ledger, a file of counts and an outage all the
    // same. Its route has a cost, which excludes usage.
    let shown = [Code::ForgottenLedger, Code::UnusedCountsFile];
    let messages = [
        "no route uses `usage.chat`",
        "`on_error` of `limit.per_client` changes nothing",
    ];
    let is_shown = |one: &crate::config::Diagnostic| {
        shown.contains(&one.code) || messages.contains(&one.message.as_str())
    };
    warnings.list.retain(|one| !is_shown(one));
    assert!(warnings.is_empty(), "{warnings}");
    (config, asked)
}

/// `(section, key)` of every line `key = ...`, commented out or not.
fn shown() -> BTreeSet<(String, String)> {
    let mut section = String::new();
    let mut keys = BTreeSet::new();
    for line in REFERENCE.lines() {
        let line = match line.strip_prefix("# ") {
            Some(section) if section.starts_with('[') && section.ends_with(']') => section,
            _ => line,
        };
        if line.starts_with('[') {
            let name = line.trim_matches(['[', ']']);
            section = match name.split_once('.') {
                Some((
                    kind @ ("limit" | "upstream" | "usage" | "error_page" | "access_log"),
                    name,
                )) => match name.split_once('.') {
                    Some((_, inner)) => format!("{kind}.NAME.{inner}"),
                    None => format!("{kind}.NAME"),
                },
                _ => name.to_owned(),
            };
            continue;
        }
        let line = line.strip_prefix("# ").unwrap_or(line);
        let Some((key, _)) = line.split_once('=') else {
            continue;
        };
        let key = key.trim_end();
        if key
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        {
            keys.insert((section.clone(), key.to_owned()));
            keys.extend(inline(&section, key, line));
        }
    }
    keys
}

/// Keys of a table that is shown in its line, if they are not the file's to choose.
fn inline(section: &str, key: &str, line: &str) -> Vec<(String, String)> {
    let inner = format!("{section}.{key}");
    let inner = inner.trim_start_matches('.').to_owned();
    let shown = [
        "route.access",
        "route.respond",
        "route.replace_prefix",
        "route.redirect",
        "descriptor.entries",
        "usage.NAME.weights",
        "prices",
    ];
    if !shown.contains(&inner.as_str()) {
        return Vec::new();
    }
    // A price stands behind the name of its model.
    let (_, table) = match inner.as_str() {
        "prices" => line.rsplit_once('{').unwrap(),
        _ => line.split_once('{').unwrap(),
    };
    let ends = table.match_indices(" = ").map(|(at, _)| &table[..at]);
    let keys = ends.map(|front| front.rsplit([' ', '{', ',']).next().unwrap());
    keys.map(|key| (inner.clone(), key.to_owned())).collect()
}

/// Every key that the readers ask for, without the tables, which are sections themselves.
fn known(asked: &DeclaredSettings) -> BTreeSet<(String, String)> {
    let tables = [
        "store",
        "access",
        "client_ip",
        "api_key",
        "limit",
        "route",
        "bypass",
        "headers",
        "deny",
        "auth",
        "tier",
        "tls",
    ];
    let tables = tables
        .into_iter()
        .chain([
            "server",
            "log",
            "tracing",
            "decide",
            "descriptor",
            "usage",
            "error_page",
            "access_log",
            "status",
            "ledger",
        ])
        .map(|key| (String::new(), key));
    let inner = [
        ("deny", "body"),
        ("store", "tls"),
        ("auth", "jwt"),
        ("auth.jwt", "tls"),
        ("api_key.known", "tls"),
        ("tls", "certificates"),
        ("tls", "acme"),
        ("tracing", "tls"),
        ("decide", "tls"),
        ("limit.NAME", "calendar"),
        ("limit.NAME", "ban"),
        ("route", "rewrite_down"),
    ];
    let parts = ["servers", "health", "eject", "retries", "tls"];
    let inner = inner
        .into_iter()
        .chain(parts.map(|key| ("upstream.NAME", key)));
    let inner = inner.map(|(outer, key)| (outer.to_owned(), key));
    let tables: BTreeSet<_> = tables.chain(inner).collect();
    let keys = asked.iter().flat_map(|(section, keys)| {
        let keys = keys.keys();
        keys.map(|key| (section.clone(), *key))
    });
    let keys = keys.filter(|entry| !tables.contains(entry));
    keys.map(|(section, key)| (section, key.to_owned()))
        .collect()
}

#[test]
fn every_key_is_shown_and_nothing_else() {
    let (_, asked) = read(REFERENCE);
    let (known, shown) = (known(&asked), shown());
    let missing: Vec<_> = known.difference(&shown).collect();
    let invented: Vec<_> = shown.difference(&known).collect();
    assert!(
        missing.is_empty(),
        "missing in proxy.reference.toml: {missing:?}"
    );
    assert!(invented.is_empty(), "no such keys: {invented:?}");
}

#[test]
fn every_default_is_as_it_is_shown() {
    let (shown, _) = read(REFERENCE);
    let bare = fine(
        r#"
        [limit.per_client]
        rate = "600/min"
        [upstream.api]
        servers = "http://10.0.1.10:3000"
        [[route]]
        path = "/*"
        upstream = "api"
        limits = ["per_client"]
        [[bypass]]
        path = "/healthz"
        "#,
    );
    assert_eq!(format!("{shown:#?}"), format!("{bare:#?}"));
}

/// Keys that exclude another.
const EXCLUDED: &[&str] = &[
    "upstream",
    "password_file",
    "username",
    "value",
    "key",
    "headers",
    "concurrent",
    "hold",
    "keys_file",
    "known",
    "secret_file",
    "jwks_url",
    "refresh",
    "max_stale",
    "urls",
    "sentinel_username",
    "sentinel_password_file",
    "ca",
    "crl",
    "cert",
    "name",
    "strip_prefix",
    "add_prefix",
    "replace_prefix",
    "method_up",
    "respond",
    "redirect",
    "replaces",
    "usage",
    "values",
    "delay",
    "delay_queue",
];

/// Keys of `[usage.NAME]` that go with another format or another way to end.
const OF_USAGE: [&str; 6] = ["input", "output", "total", "model", "text", "drain"];

/// Keys of `[error_page.NAME]` that go with another source than a file.
const OF_PAGE: [&str; 4] = ["body", "redirect", "upstream", "path"];

#[test]
fn every_key_that_is_commented_out_can_be_used() {
    // Lines of the form `# key = value`; the ones that exclude another are left out.
    let mut within = "";
    let text: String = REFERENCE
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(section) if section.starts_with('[') && section.ends_with(']') => {
                within = section;
                // The other keys of the limit are for windows that slide.
                let is_excluded = within.ends_with(".calendar]");
                if is_excluded {
                    String::new()
                } else {
                    format!("{section}\n")
                }
            }
            Some(_) if within.ends_with(".calendar]") => String::new(),
            Some(rest)
                if rest.split_once('=').is_some_and(|(key, _)| {
                    let key = key.trim_end();
                    let here = ["[[tls.certificates]]", "[decide.tls]"].contains(&within);
                    let is_excluded = match within {
                        "[usage.chat]" => OF_USAGE.contains(&key),
                        "[error_page.down]" => OF_PAGE.contains(&key),
                        _ => !here && EXCLUDED.contains(&key),
                    };
                    !is_excluded
                        && key
                            .bytes()
                            .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
                }) =>
            {
                format!("{rest}\n")
            }
            _ => {
                if line.starts_with('[') {
                    within = line;
                }
                format!("{line}\n")
            }
        })
        .collect();
    let (config, _) = read(&text);
    assert_eq!(config.deny.body.len(), 3);
    assert_eq!(config.limits[0].tiers.len(), 3);
    assert!(config.tier.is_some() && config.jwt.is_some());
    assert!(config.store.hash_key.is_some());
    let tracing = config.tracing.unwrap();
    assert_eq!((tracing.headers.len(), tracing.batch), (1, 512));
    let tls = config.tls.unwrap();
    assert!(tls.acme.is_some());
    assert!(tls.clients.is_some() && tls.hsts.is_some());
    assert_eq!(
        config.bypass[0].key.as_deref(),
        Some(b"0123456789abcdef".as_slice())
    );
}

#[test]
fn nothing_that_works_is_called_planned() {
    let (_, asked) = read(REFERENCE);
    for (section, key) in PLANNED {
        assert!(!asked[*section].contains_key(key), "{section}.{key}");
    }
}
