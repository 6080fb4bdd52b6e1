//! How a client is named.

use super::*;
use crate::config;
use crate::limit::{Algorithm, Key, Rule};
use crate::store::overrides::{RecordTerms, Subject};

fn limit(key: &[&str], missing: Missing) -> Limit {
    let rule = Rule {
        algorithm: Algorithm::Log,
        units: 5,
        window_us: 60_000_000,
        precision_us: 1,
    };
    let key = Key::parse(key.iter().copied()).unwrap();
    Limit {
        missing,
        ..Limit::new("login", &[rule], key)
    }
}

fn with_selector<R>(records: &[Record], run: impl FnOnce(&KeySelector<'_>) -> R) -> R {
    let text = "upstream = \"http://127.0.0.1:1\"\n";
    let (config, _) = config::parse("proxy.toml", text, &|_| None).unwrap();
    run(&KeySelector {
        client_ip: &config.client_ip,
        api_key: &ApiKeys::trusting(config.api_key.from.clone()),
        hash_key: &HashSecret::from_bytes([7; 32]),
        records,
        known: &[],
    })
}

fn select(limit: &Limit, words: &str) -> Result<SelectedKey, KeySelectionError> {
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    with_selector(&[], |selector| selector.select(&words, Some(limit), &[]))
}

fn parts(limit: &Limit, words: &str) -> String {
    select(limit, words).unwrap().parts
}

#[test]
fn a_plain_value_is_of_the_part_it_looks_like() {
    let either = limit(&["api_key or ip"], Missing::Ip);
    assert_eq!(parts(&either, "1.2.3.4"), "ip");
    assert_eq!(parts(&either, "abc"), "api_key");
    assert_eq!(parts(&either, "YWJj=="), "api_key");
    assert_eq!(select(&either, "abc"), select(&either, "api_key=abc"));
    assert_eq!(select(&either, "1.2.3.4"), select(&either, "ip=1.2.3.4"));
    assert_ne!(
        select(&either, "1.2.3.4"),
        select(&either, "api_key=1.2.3.4")
    );
}

#[test]
fn the_id_of_an_unknown_denial_is_no_api_key() {
    let words = ["request=153681b2d24693d5".to_owned()];
    let key = limit(&["api_key"], Missing::Ip);
    for limit in [None, Some(&key)] {
        let selected = with_selector(&[], |selector| selector.select(&words, limit, &[]));
        let error = selected.unwrap_err();
        assert!(error.message.contains("153681b2d24693d5"), "{error:?}");
    }
}

#[test]
fn only_an_id_that_no_client_chose_stands_alone() {
    let keys = ApiKeys::default();
    let id = |word: &str| denied_request(&[word.to_owned()], &keys).map(str::to_owned);
    assert_eq!(id("153681b2d24693d5").as_deref(), Some("153681b2d24693d5"));
    assert_eq!(id("request=203.0.113.5").as_deref(), Some("203.0.113.5"));
    for word in [
        "203.0.113.5",
        "2001:db8::7",
        "k-acme",
        "request=",
        "tag=153681b2d24693d5",
        "153681B2D24693D5",
        "0123456789abcdef0123456789abcdef",
    ] {
        assert_eq!(id(word), None, "{word}");
    }
}

#[test]
fn an_address_is_grouped_as_the_proxy_does() {
    let ip = limit(&["ip"], Missing::Ip);
    assert_eq!(select(&ip, "2001:db8::1"), select(&ip, "ip=2001:db8::ffff"));
    assert_ne!(select(&ip, "2001:db8::1"), select(&ip, "2001:db8:0:1::1"));
    assert_eq!(select(&ip, "::ffff:1.2.3.4"), select(&ip, "1.2.3.4"));
    let error = select(&ip, "ip=1.2.3").unwrap_err();
    assert_eq!(error.message, "`1.2.3` is not an address");
}

#[test]
fn each_part_of_the_key_has_a_word() {
    let both = limit(&["api_key or ip", "path"], Missing::Ip);
    assert_eq!(parts(&both, "api_key=abc path=/x"), "api_key, path");
    let swapped = select(&both, "path=/x api_key=abc");
    assert_eq!(swapped, select(&both, "api_key=abc path=/x"));
    assert_eq!(select(&both, "abc /a/../x"), select(&both, "abc /x"));
    for words in ["abc", "abc /x y", "ip=1.2.3.4", "header:x-user=1 path=/x"] {
        let error = select(&both, words).unwrap_err();
        assert_eq!(
            error.message,
            "that is no key of `login`, which counts by `api_key or ip` and `path`"
        );
        assert_eq!(
            error.help.as_deref(),
            Some("write `api_key=VALUE path=VALUE`")
        );
    }
}

#[test]
fn a_path_is_folded_where_the_routes_of_the_limit_fold_it() {
    let folded = Limit {
        case: Case::Insensitive,
        ..limit(&["path", "path:id"], Missing::Ip)
    };
    assert_eq!(
        select(&folded, "/A path:id=B"),
        select(&folded, "/a path:id=b")
    );
    let exact = limit(&["path"], Missing::Ip);
    assert_ne!(select(&exact, "/A"), select(&exact, "/a"));
}

#[test]
fn a_missing_part_is_what_the_limit_says() {
    let by_ip = limit(&["header:x-user"], Missing::Ip);
    assert_eq!(parts(&by_ip, "ip=1.2.3.4"), "ip");
    assert_eq!(parts(&by_ip, "7"), "header:x-user");
    let shared = limit(&["header:x-user"], Missing::Shared);
    assert_eq!(parts(&shared, "missing"), "missing");
    assert!(select(&shared, "ip=1.2.3.4").is_err());
}

#[test]
fn a_slip_in_a_part_is_no_value() {
    let api = limit(&["api_key"], Missing::Ip);
    let error = select(&api, "api_kye=abc").unwrap_err();
    assert_eq!(
        error.message,
        "in `api_kye=abc`: `api_kye` is nothing to count by; did you mean `api_key`?"
    );
    assert!(select(&api, "header=abc").is_err());
    assert!(select(&api, "api_key=").is_err());
}

#[test]
fn a_hash_may_be_shortened_where_it_is_known() {
    let ip = limit(&["ip"], Missing::Ip);
    let tag = KeyHash([1; 16]);
    let record = Record {
        subject: Subject::Block(tag),
        terms: RecordTerms {
            key: "ip".to_owned(),
            ..RecordTerms::default()
        },
    };
    let find = |hash: &str| {
        let words = [format!("tag={hash}")];
        with_selector(std::slice::from_ref(&record), |selector| {
            selector.select(&words, Some(&ip), &[])
        })
    };
    let expected = SelectedKey {
        tag,
        parts: "ip".to_owned(),
        anchor: None,
        is_listed: false,
    };
    assert_eq!(find("AQEBAQEB"), Ok(expected.clone()));
    assert_eq!(find(&tag.to_string()), Ok(expected));
    assert_eq!(
        find(&KeyHash([2; 16]).to_string()).unwrap().tag,
        KeyHash([2; 16])
    );
    assert!(find("AQE").is_err() && find("BQEBAQEB").is_err());
}

#[test]
fn no_request_is_counted_by_a_key_that_is_not_known() {
    let either = limit(&["api_key or ip"], Missing::Ip);
    let (config, _) = config::parse(
        "proxy.toml",
        "upstream = \"http://127.0.0.1:1\"\n\
         [api_key]\nknown = \"crates/core/src/config/tests/keys.txt\"\n",
        &|_| None,
    )
    .unwrap();
    let selector = KeySelector {
        client_ip: &config.client_ip,
        api_key: &config.api_key,
        hash_key: &HashSecret::from_bytes([7; 32]),
        records: &[],
        known: &[],
    };
    let select = |word: &str| selector.select(&[word.to_owned()], Some(&either), &[]);
    assert_eq!(select("api_key=k1").unwrap().parts, "api_key");
    assert_eq!(select("ip=192.0.2.7").unwrap().parts, "ip");
    for word in ["made-up", "api_key=made-up"] {
        let error = select(word).unwrap_err();
        assert!(error.message.contains("not known"), "{error:?}");
        let block = selector.select(&[word.to_owned()], None, &[]).unwrap();
        assert_eq!(block.parts, "api_key", "a block holds all the same");
    }
}

#[test]
fn a_hash_that_is_shown_can_be_pasted() {
    let either = limit(&["api_key or ip"], Missing::Ip);
    let both = limit(&["api_key or ip", "path"], Missing::Ip);
    let mut tags = [KeyHash([1; 16]), KeyHash([2; 16]), KeyHash([1; 16])];
    tags[2].0[15] = 3;
    let find = |words: &str, known: &[KeyHash], limit: &Limit| {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        with_selector(&[], |selector| {
            let selector = KeySelector { known, ..*selector };
            assert_eq!(
                selector.select(&words, None, &[]).is_ok(),
                selector.select(&words, Some(limit), &[]).is_ok()
            );
            selector.select(&words, Some(limit), &[])
        })
    };
    for words in ["AgICAgIC", "tag=AgIC", "AgICAgICAgICAgICAgICAg"] {
        assert_eq!(find(words, &tags, &either).unwrap().tag, tags[1], "{words}");
    }
    let several = find("AQEBAQEB", &tags, &either).unwrap_err();
    assert_eq!(several.kind, KeySelectionErrorKind::Ambiguous);
    assert_eq!(
        several.message,
        "`AQEBAQEB` is the beginning of 2 clients' hashes"
    );
    assert_eq!(
        several.help.unwrap(),
        "write one of them: `tag=AQEBAQEBAQEBAQEBAQEBAQ`, `tag=AQEBAQEBAQEBAQEBAQEBAw`"
    );
    let unknown = find("tag=BQEBAQEB", &tags, &either).unwrap_err();
    assert_eq!(unknown.kind, KeySelectionErrorKind::Unknown);
    // If no client has such a hash, the word is a value.
    assert_eq!(parts(&either, "BQEBAQEB"), "api_key");
    assert_eq!(
        find("AgICAgIC", &[], &either),
        select(&either, "api_key=AgICAgIC")
    );
    assert_eq!(
        select(&both, "api_key=a%26b&path=%2Fx"),
        select(&both, "api_key=a&b path=/x")
    );
}

#[test]
fn a_block_is_of_an_address_a_key_or_what_some_limit_counts_by() {
    let limits = [Arc::new(limit(&["header:x-user"], Missing::Ip))];
    let block = |words: &str| {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        with_selector(&[], |selector| selector.select(&words, None, &limits))
    };
    assert_eq!(block("1.2.3.4").unwrap().parts, "ip");
    assert_eq!(block("abc").unwrap().parts, "api_key");
    assert_eq!(block("header:x-user=7").unwrap().parts, "header:x-user");
    let error = block("header:x-other=7").unwrap_err();
    assert!(error.message.contains("deny no request"));
    assert!(block("ip=1.2.3.4 path=/x").is_err());
    for words in ["192.0.2.0/24", "192.0.2", "localhost", "2001:db8::/32"] {
        let error = block(words).unwrap_err();
        assert!(error.message.contains("is not an address"), "{words}");
        let key = format!("api_key={words}");
        assert_eq!(block(&key).unwrap().parts, "api_key");
    }
}
