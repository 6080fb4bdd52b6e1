//! `[store]`: where counts are kept, and what an outage of that place means.

use std::path::PathBuf;
use std::time::Duration;

use toml::de::DeValue;

use super::limits::ON_ERROR;
use super::redis::{self, RedisAddress, RedisSettings, RedisTopology};
use super::*;
use crate::limit::OnError;

const MIB: u64 = 1 << 20;

/// `[store]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    pub kind: StoreKind,
    pub prefix: String,
    pub timeout: Duration,
    pub on_error: OnError,
    pub fleet: Fleet,
    /// The secret of `hash_key_file`, with which client keys are hashed. Without it a secret is
    /// made once and kept in Redis, or in this process.
    pub hash_key: Option<Secret<[u8; 32]>>,
    /// Keeps the calendar windows of the embedded store over restarts; `None` with Redis.
    pub file: Option<PathBuf>,
    /// Whether Redis has the known API keys: `known = "redis"` in `[api_key]`.
    pub known_keys: bool,
    pub max_keys: usize,
    /// Bytes of the embedded store's counts, at most.
    pub max_memory: usize,
}

impl StoreSettings {
    /// Whether the counts are in the same store as with the settings `old`, by the same names.
    pub fn has_counts_of(&self, old: &StoreSettings) -> bool {
        match (&self.kind, &old.kind) {
            (StoreKind::Memory, StoreKind::Memory) => self.hash_key == old.hash_key,
            (StoreKind::Redis(new), StoreKind::Redis(before)) => {
                let place = |redis: &RedisSettings| (redis.topology.clone(), redis.database);
                let names = |store: &StoreSettings| (store.prefix.clone(), store.hash_key.clone());
                place(new) == place(before) && names(self) == names(old)
            }
            _ => false,
        }
    }
}

/// The number of proxies that share the store. While the store is away, each proxy enforces its
/// share of every limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fleet {
    Fixed(u32),
    Auto,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreKind {
    #[default]
    Memory,
    Redis(RedisSettings),
}

pub(super) fn read(mut section: Section<'_>, places: &mut Places) -> StoreSettings {
    let kind = match redis(&mut section) {
        Some(redis) => StoreKind::Redis(redis),
        None => StoreKind::Memory,
    };
    let is_shared = kind != StoreKind::Memory;
    let prefix = section.parse("prefix", TextForm::new(Code::BadName, "a prefix"), prefix);
    let secret = section.long_secret("hash_key_file", 16, "secret");
    let hash_context = "tidegate 1 store.hash_key_file";
    let settings = StoreSettings {
        kind,
        prefix: prefix.unwrap_or_else(|| "tidegate:".to_owned()),
        timeout: section.duration("timeout", MS..=10 * SECOND),
        on_error: section.word("on_error", ON_ERROR),
        fleet: fleet(&mut section, is_shared),
        // The file may hold a secret of any form.
        hash_key: secret.map(|secret| Secret(blake3::derive_key(hash_context, &secret))),
        file: counts_file(&mut section, is_shared),
        known_keys: false,
        max_keys: section.integer("max_keys", 1..=1 << 32),
        max_memory: section.size("max_memory", MIB..=1 << 46),
    };
    let url = section.reader.text.get(section.value_span("url"));
    places.counts_here = !is_shared && !url.is_some_and(|url| url.contains("${"));
    if places.counts_here {
        check_shared_only(&section);
    }
    section.finish();
    settings
}

pub(super) const IN_PROCESS: &str = "counts are in the memory of this process";
pub(super) const COUNT_IN_REDIS: &str =
    "leave it out, or count in Redis: `url = \"redis://127.0.0.1:6379\"`";

/// Reports settings of Redis without Redis.
fn check_shared_only(section: &Section<'_>) {
    for key in ["prefix", "timeout", "fleet", "on_error"] {
        if let Some(span) = section.changed(key) {
            section.reader.report_doubt(
                no_effect(format!("`store.{key}` changes nothing"))
                    .at(&span, IN_PROCESS)
                    .help(COUNT_IN_REDIS),
            );
        }
    }
}

/// The file of counts, which only the embedded store uses.
fn counts_file(section: &mut Section<'_>, is_shared: bool) -> Option<PathBuf> {
    let path = section.file_path("file")?;
    if is_shared {
        Diagnostic::new(
            Code::UnusedCountsFile,
            "`store.file` is for counts in this process, and Redis has them",
        )
        .at(&section.value_span("file"), "nothing is written there")
        .help("leave it out: Redis keeps its counts by itself (`appendonly yes`)")
        .report_to(section.reader);
        return None;
    }
    Some(path)
}

fn fleet(section: &mut Section<'_>, is_shared: bool) -> Fleet {
    section.declare("fleet", || ValueKind::IntegerOrWord(vec!["auto"]));
    let value = section.peek("fleet").map(|value| value.get_ref());
    if value.is_none_or(DeValue::is_str) {
        section.optional_word("fleet", &[("auto", Fleet::Auto)]);
        return Fleet::Auto;
    }
    let Some(number) = section.optional_integer("fleet", 1..=100_000) else {
        return Fleet::Auto;
    };
    if number == 1 && is_shared {
        Diagnostic::new(
            Code::LoneFleet,
            "`fleet = 1` says that no other proxy shares this store",
        )
        .at(
            &section.value_span("fleet"),
            "a second proxy would not be counted",
        )
        .help("leave it out: proxies count each other")
        .note("a proxy that starts while the store is away would grant each limit in full")
        .report_to(section.reader);
    }
    Fleet::Fixed(number)
}

/// Checks the prefix of keys in Redis. Braces would choose a slot of a cluster.
fn prefix(text: &str) -> Result<String, &'static str> {
    let fits = |byte: u8| byte.is_ascii_graphic() && !b"{}*?[]\\".contains(&byte);
    match text.len() <= 64 && text.bytes().all(fits) {
        true => Ok(text.to_owned()),
        false => Err("at most 64 visible ASCII characters, none of `{}*?[]\\`"),
    }
}

/// A user and a password that have keys of their own.
struct Login {
    username: Option<String>,
    password: Option<Secret<String>>,
    /// The place of the first of them, if the file has one.
    span: Option<TextSpan>,
    /// The key of the password's file, and a path for examples.
    password_key: &'static str,
    example: &'static str,
}

impl Login {
    fn read(
        section: &mut Section<'_>,
        username_key: &'static str,
        password_key: &'static str,
        example: &'static str,
    ) -> Login {
        let username = section.text(username_key);
        let secret = section.secret(None, password_key);
        let password = secret.and_then(|secret| {
            let text = String::from_utf8(secret).ok();
            if text.is_none() {
                section.unusable_file(password_key, "not UTF-8");
            }
            text.map(Secret)
        });
        let name_span = username.as_ref().map(|_| section.value_span(username_key));
        let span = name_span.or(password.as_ref().map(|_| section.value_span(password_key)));
        Login {
            username,
            password,
            span,
            password_key,
            example,
        }
    }

    /// Sets the user and the password. A user needs a password.
    fn apply(
        self,
        section: &Section<'_>,
        username: &mut Option<String>,
        password: &mut Option<Secret<String>>,
    ) {
        *username = self.username.or(username.take());
        *password = self.password.or(password.take());
        if username.is_some() && password.is_none() {
            let key = self.password_key;
            section.require(key, &format!("{key} = \"{}\"", self.example));
        }
    }
}

/// Reads the keys about Redis: `url` or `urls`, the logins, and `[store.tls]`.
fn redis(section: &mut Section<'_>) -> Option<RedisSettings> {
    let url = url(section);
    let login = Login::read(section, "username", "password_file", "/run/secrets/redis");
    let sentinels = Login::read(
        section,
        "sentinel_username",
        "sentinel_password_file",
        "/run/secrets/sentinel",
    );
    let (tls, tls_span) = tls::read_client(section, "redis-client");
    // A URL that could not be read is reported: findings about the other keys would repeat that.
    let is_unread = url.is_none() && (section.has("url") || section.has("urls"));
    let Some(mut redis) = url.flatten() else {
        let span = login.span.or(sentinels.span).or(tls_span);
        if let Some(span) = span.filter(|_| !is_unread) {
            contradiction("a login and TLS are for a Redis store")
                .at(&span, "there is no Redis to log in to")
                .help("name one: `url = \"redis://HOST:6379\"`")
                .report_to(section.reader);
        }
        return None;
    };
    log_in(section, &mut redis, login);
    log_in_to_sentinels(section, &mut redis, sentinels);
    if redis.tls.is_some() {
        let addresses = redis.topology.addresses().iter();
        let hosts = addresses.filter_map(|address| match address {
            RedisAddress::Tcp(host, _) => Some(host.as_str()),
            RedisAddress::Unix(_) => None,
        });
        tls.check_host_names(section, "url", hosts, "`name` in `[store.tls]`");
        redis.tls = Some(Box::new(tls));
    } else if let Some(span) = tls_span {
        contradiction("`store.tls` is for a store with TLS")
            .at(&span, "the URL is one without")
            .help("write `rediss://`, `rediss+sentinel://` or `rediss+cluster://`")
            .report_to(section.reader);
    }
    Some(redis)
}

/// Reads `url`, or joins all of `urls`. The inner `None` is the embedded store.
fn url(section: &mut Section<'_>) -> Option<Option<RedisSettings>> {
    const FORM: TextForm = TextForm::new(Code::BadUrl, "a store's URL");
    let one = section.parse("url", FORM, redis::parse_url);
    let several = section.texts("urls");
    if one.is_some() && several.is_some() {
        contradiction("`store` has both `url` and `urls`")
            .at(&section.value_span("urls"), "")
            .at(&section.value_span("url"), "")
            .help("keep one of them")
            .report_to(section.reader);
    }
    if one.is_some() {
        return one;
    }
    let several = several?;
    let written = section
        .peek("urls")
        .and_then(|value| value.get_ref().as_array());
    if written.is_some_and(|urls| urls.is_empty()) {
        section.out_of_range("urls", "1 URL or more");
    }
    let mut joined = None;
    for text in several {
        let next = section.parse_text("urls", text, FORM, redis::parse_url)?;
        joined = Some(match joined {
            None => next.value,
            Some(first) => match redis::join(first, next.value) {
                Ok(joined) => joined,
                Err(why) => {
                    let diagnostic = contradiction("`store.urls` must name one store")
                        .at_error(&next.span, &why);
                    section.reader.report(diagnostic);
                    return None;
                }
            },
        });
    }
    joined
}

/// Sets the login of the servers, which the URL may not have as well.
fn log_in(section: &Section<'_>, redis: &mut RedisSettings, login: Login) {
    let twice = if redis.username.is_some() && login.username.is_some() {
        Some("username")
    } else if redis.password.is_some() && login.password.is_some() {
        Some("password_file")
    } else {
        None
    };
    if let Some(key) = twice {
        contradiction("`store.url` names a user or password already")
            .at(&section.value_span(key), "said again here")
            .help("leave it out of the URL")
            .report_to(section.reader);
    }
    login.apply(section, &mut redis.username, &mut redis.password);
}

/// Sets the login of the sentinels, which have users and passwords of their own.
fn log_in_to_sentinels(section: &Section<'_>, redis: &mut RedisSettings, login: Login) {
    if let RedisTopology::Sentinel(sentinels) = &mut redis.topology {
        login.apply(section, &mut sentinels.username, &mut sentinels.password);
    } else if let Some(span) = &login.span {
        contradiction("a sentinels' login is for `redis+sentinel://`")
            .at(span, "the URL names no sentinels")
            .help("the server's own are `username` and `password_file`")
            .report_to(section.reader);
    }
}
