//! `tidegate run --to URL --limit 100/min`: the same as a file, said of flags.

use super::super::diagnostic::Code;
use super::super::{FlagConfig, Listen, StoreKind, from_flags, render};

fn flags(to: &str) -> FlagConfig {
    FlagConfig {
        to: to.to_owned(),
        ..FlagConfig::default()
    }
}

#[track_caller]
fn check(flags: &FlagConfig, expected: &str) {
    let Err(found) = from_flags(flags) else {
        panic!("accepted: {flags:?}")
    };
    let said = render::human(&found, false);
    assert!(said == expected, "said:\n{said}\nexpected:\n{expected}");
}

#[test]
fn flags_make_a_configuration() {
    let (config, warnings) = from_flags(&FlagConfig {
        to: "http://localhost:3000".to_owned(),
        listen: Some("127.0.0.1:9000".to_owned()),
        limit: Some("100/min".to_owned()),
        key: Some("api_key or ip".to_owned()),
        redis: Some("redis://:pa$$w%22rd@localhost".to_owned()),
    })
    .unwrap();
    let codes: Vec<_> = warnings.list.iter().map(|one| one.code).collect();
    assert_eq!(codes, [Code::UntoldKeys]);
    assert_eq!(
        config.listen,
        [Listen::Tcp("127.0.0.1:9000".parse().unwrap())]
    );
    assert_eq!(config.routes.iter().count(), 1);
    assert_eq!(config.limits[0].key.parts[0].0.len(), 2);
    let StoreKind::Redis(redis) = &config.store.kind else {
        panic!("not Redis")
    };
    assert_eq!(redis.password.as_deref(), Some("pa$$w\"rd"));
}

#[test]
fn without_a_limit_nothing_is_limited() {
    let (config, _) = from_flags(&flags("http://localhost:3000")).unwrap();
    assert!(config.limits.is_empty());
    assert_eq!(config.store.kind, StoreKind::Memory);
}

#[test]
fn mistakes_are_said_of_the_flags() {
    let wrong = FlagConfig {
        limit: Some("100/mim".to_owned()),
        redis: Some("redys://u:hush@h".to_owned()),
        ..flags("a:3000")
    };
    check(&wrong, include_str!("expected/flags.txt"));
}

#[test]
fn a_key_needs_a_limit() {
    let wrong = FlagConfig {
        key: Some("ip".to_owned()),
        ..flags("http://localhost:3000")
    };
    let Err(found) = from_flags(&wrong) else {
        panic!("accepted")
    };
    assert_eq!(found.list[0].message, "`--key` needs `--limit`");
}

#[test]
fn what_a_flag_says_cannot_become_another_setting() {
    let wrong = flags("http://a\"\nlisten = \":1\"\nx-a = \"");
    let Err(found) = from_flags(&wrong) else {
        panic!("accepted")
    };
    assert_eq!(found.list.len(), 1);
    assert_eq!(found.list[0].code.as_str(), "T114");
}
