//! The keys of `[store]` that say which store it is and how to get into it: `url` or `urls`, the
//! logins, and `[store.tls]`.

use rustls::pki_types::ServerName;

use super::client_tls::{self, ClientTls, unusable};
use super::diagnostic::{Code, Diagnostic, Span};
use super::reader::At;
use super::redis::{RedisAddress, RedisSettings, RedisTopology};
use super::section::Section;
use super::values::TextForm;
use super::{StoreKind, store_url};

/// A user and a password of their own keys, and where the two stand.
struct Login {
    username: Option<At<String>>,
    password: Option<At<Vec<u8>>>,
}

impl Login {
    fn span(&self) -> Option<&Span> {
        let name = self.username.as_ref().map(|name| &name.span);
        name.or(self.password.as_ref().map(|secret| &secret.span))
    }
}

/// Which store, and the way into it.
pub(super) fn kind(section: &mut Section<'_>) -> StoreKind {
    let url = url(section);
    let login = Login {
        username: section.text("username"),
        password: section.secret(None, "password_file"),
    };
    let sentinels = Login {
        username: section.text("sentinel_username"),
        password: section.secret(None, "sentinel_password_file"),
    };
    let (tls, tls_span) = client_tls::read(section, "redis-client");
    // What is wrong with the URL has been said; what depends on it would only repeat that.
    let unread = url.is_none() && (section.peek("url").is_some() || section.peek("urls").is_some());
    let mut redis = match url {
        Some(StoreKind::Redis(redis)) => redis,
        _ => {
            let spans = [login.span(), sentinels.span(), tls_span.as_ref()];
            if let Some(span) = spans.into_iter().flatten().next().filter(|_| !unread) {
                let message = "a login and TLS are for a Redis store";
                let diagnostic = Diagnostic::new(Code::Contradiction, message)
                    .at(span, "there is no Redis to log in to")
                    .help("name one: `url = \"redis://HOST:6379\"`");
                section.reader.report(diagnostic);
            }
            return StoreKind::Memory;
        }
    };
    log_in(section, &mut redis, login);
    log_in_to_sentinels(section, &mut redis, sentinels);
    if redis.tls.is_some() {
        check_names(section, &redis.topology, &tls);
        redis.tls = Some(Box::new(tls));
    } else if let Some(span) = tls_span {
        let message = "`store.tls` is for a store with TLS";
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(&span, "the URL is one without")
            .help("write `rediss://`, `rediss+sentinel://` or `rediss+cluster://`");
        section.reader.report(diagnostic);
    }
    StoreKind::Redis(redis)
}

/// `url`, or the one store that all of `urls` name.
fn url(section: &mut Section<'_>) -> Option<StoreKind> {
    const KIND: TextForm = TextForm::new(Code::BadUrl, "a store's URL");
    let one = section.parsed("url", KIND, store_url::store);
    let several = section.texts("urls");
    if let (Some(one), Some(several)) = (&one, &several) {
        let diagnostic = Diagnostic::new(Code::Contradiction, "`store` has both `url` and `urls`")
            .at(&several.span, "")
            .at(&one.span, "")
            .help("keep one of them");
        section.reader.report(diagnostic);
    }
    let mut kind = one;
    if kind.is_none() {
        let several = several?;
        let written = section
            .peek("urls")
            .and_then(|value| value.get_ref().as_array());
        if written.is_some_and(|urls| urls.is_empty()) {
            section.out_of_range_at("urls", &several, "1 URL or more");
        }
        for text in several.value {
            let next = section.understood("urls", text, KIND, store_url::store)?;
            kind = Some(match kind {
                None => next,
                Some(first) => joined(section, first, next)?,
            });
        }
    }
    let kind = kind?;
    Some(kind.value)
}

fn joined(
    section: &Section<'_>,
    first: At<StoreKind>,
    next: At<StoreKind>,
) -> Option<At<StoreKind>> {
    match store_url::joined(first.value, next.value) {
        Ok(value) => Some(At {
            value,
            span: first.span,
        }),
        Err(why) => {
            let message = "`store.urls` must name one store";
            let diagnostic =
                Diagnostic::new(Code::Contradiction, message).because(&next.span, &why);
            section.reader.report(diagnostic);
            None
        }
    }
}

/// The user and password of the section, which may not stand in the URL as well.
fn log_in(section: &Section<'_>, redis: &mut RedisSettings, login: Login) {
    let name = login.username.as_ref();
    let secret = login.password.as_ref();
    let twice = (name
        .filter(|_| redis.username.is_some())
        .map(|name| &name.span))
    .or(secret
        .filter(|_| redis.password.is_some())
        .map(|secret| &secret.span));
    if let Some(span) = twice {
        let message = "`store.url` names a user or password already";
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(span, "said again here")
            .help("leave it out of the URL");
        section.reader.report(diagnostic);
    }
    let password = login
        .password
        .and_then(|secret| utf8(section, "password_file", secret));
    redis.username = login
        .username
        .map(|name| name.value)
        .or(redis.username.take());
    redis.password = password.or(redis.password.take());
    if redis.username.is_some() && redis.password.is_none() {
        needs_password(section, "password_file", "/run/secrets/redis");
    }
}

/// The same for the sentinels, whose users and passwords are their own.
fn log_in_to_sentinels(section: &Section<'_>, redis: &mut RedisSettings, login: Login) {
    let RedisTopology::Sentinel(sentinels) = &mut redis.topology else {
        if let Some(span) = login.span() {
            let message = "a sentinels' login is for `redis+sentinel://`";
            let diagnostic = Diagnostic::new(Code::Contradiction, message)
                .at(span, "the URL names no sentinels")
                .help("the server's own are `username` and `password_file`");
            section.reader.report(diagnostic);
        }
        return;
    };
    sentinels.username = login.username.map(|name| name.value);
    sentinels.password = login
        .password
        .and_then(|secret| utf8(section, "sentinel_password_file", secret));
    if sentinels.username.is_some() && sentinels.password.is_none() {
        needs_password(section, "sentinel_password_file", "/run/secrets/sentinel");
    }
}

fn needs_password(section: &Section<'_>, key: &str, example: &str) {
    if section.peek(key).is_none() {
        section.missing(key, &format!("{key} = \"{example}\""));
    }
}

fn utf8(section: &Section<'_>, key: &str, secret: At<Vec<u8>>) -> Option<String> {
    let text = String::from_utf8(secret.value).ok();
    if text.is_none() {
        unusable(section, key, &secret.span, "not UTF-8");
    }
    text
}

/// Without a name of their own, certificates are made out to the hosts: those must be names.
fn check_names(section: &Section<'_>, topology: &RedisTopology, tls: &ClientTls) {
    let addresses = match topology {
        RedisTopology::Single(address) => std::slice::from_ref(address),
        RedisTopology::Sentinel(sentinels) => &sentinels.addresses,
        RedisTopology::Cluster { seeds } => seeds,
    };
    let nameless = addresses.iter().any(|address| match address {
        RedisAddress::Tcp(host, _) => ServerName::try_from(host.as_str()).is_err(),
        RedisAddress::Unix(_) => false,
    });
    if nameless && tls.name.is_none() {
        let diagnostic =
            Diagnostic::new(Code::BadUrl, "no certificate can be made out to the host")
                .at(&section.key_span("url"), "not a name of the DNS")
                .help("say what the certificate says: `name` in `[store.tls]`");
        section.reader.report(diagnostic);
    }
}
