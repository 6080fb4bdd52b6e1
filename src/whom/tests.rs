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

fn eyes<R>(records: &[Record], look: impl FnOnce(&Eyes<'_>) -> R) -> R {
    let text = "upstream = \"http://127.0.0.1:1\"\n";
    let (config, _) = config::parse("proxy.toml", text, &|_| None).unwrap();
    look(&Eyes {
        client_ip: &config.client_ip,
        api_key: &ApiKeys::trusting(config.api_key.from.clone()),
        hash_key: &HashSecret::from_bytes([7; 32]),
        records,
        known: &[],
    })
}

fn of(limit: &Limit, words: &str) -> Result<Whom, Unclear> {
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    eyes(&[], |eyes| eyes.of_limit(&words, limit))
}

fn parts(limit: &Limit, words: &str) -> String {
    of(limit, words).unwrap().parts
}

#[test]
fn a_plain_value_is_of_the_part_it_looks_like() {
    let either = limit(&["api_key or ip"], Missing::Ip);
    assert_eq!(parts(&either, "1.2.3.4"), "ip");
    assert_eq!(parts(&either, "abc"), "api_key");
    assert_eq!(parts(&either, "YWJj=="), "api_key");
    assert_eq!(of(&either, "abc"), of(&either, "api_key=abc"));
    assert_eq!(of(&either, "1.2.3.4"), of(&either, "ip=1.2.3.4"));
    assert_ne!(of(&either, "1.2.3.4"), of(&either, "api_key=1.2.3.4"));
}

#[test]
fn an_address_is_grouped_as_the_proxy_does() {
    let ip = limit(&["ip"], Missing::Ip);
    assert_eq!(of(&ip, "2001:db8::1"), of(&ip, "ip=2001:db8::ffff"));
    assert_ne!(of(&ip, "2001:db8::1"), of(&ip, "2001:db8:0:1::1"));
    assert_eq!(of(&ip, "::ffff:1.2.3.4"), of(&ip, "1.2.3.4"));
    let error = of(&ip, "ip=1.2.3").unwrap_err();
    assert_eq!(error.message, "`1.2.3` is not an address");
}

#[test]
fn each_part_of_the_key_has_a_word() {
    let both = limit(&["api_key or ip", "path"], Missing::Ip);
    assert_eq!(parts(&both, "api_key=abc path=/x"), "api_key, path");
    let swapped = of(&both, "path=/x api_key=abc");
    assert_eq!(swapped, of(&both, "api_key=abc path=/x"));
    assert_eq!(of(&both, "abc /a/../x"), of(&both, "abc /x"));
    for words in ["abc", "abc /x y", "ip=1.2.3.4", "header:x-user=1 path=/x"] {
        let error = of(&both, words).unwrap_err();
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
    assert_eq!(of(&folded, "/A path:id=B"), of(&folded, "/a path:id=b"));
    let exact = limit(&["path"], Missing::Ip);
    assert_ne!(of(&exact, "/A"), of(&exact, "/a"));
}

#[test]
fn a_missing_part_is_what_the_limit_says() {
    let by_ip = limit(&["header:x-user"], Missing::Ip);
    assert_eq!(parts(&by_ip, "ip=1.2.3.4"), "ip");
    assert_eq!(parts(&by_ip, "7"), "header:x-user");
    let shared = limit(&["header:x-user"], Missing::Shared);
    assert_eq!(parts(&shared, "missing"), "missing");
    assert!(of(&shared, "ip=1.2.3.4").is_err());
}

#[test]
fn a_slip_in_a_part_is_no_value() {
    let api = limit(&["api_key"], Missing::Ip);
    let error = of(&api, "api_kye=abc").unwrap_err();
    assert_eq!(
        error.message,
        "in `api_kye=abc`: `api_kye` is nothing to count by; did you mean `api_key`?"
    );
    assert!(of(&api, "header=abc").is_err());
    assert!(of(&api, "api_key=").is_err());
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
        eyes(std::slice::from_ref(&record), |eyes| {
            eyes.of_limit(&words, &ip)
        })
    };
    let expected = Whom {
        tag,
        parts: "ip".to_owned(),
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
        "upstream = \"http://127.0.0.1:1\"\n[api_key]\nknown = \"crates/core/src/config/tests/keys.txt\"\n",
        &|_| None,
    )
    .unwrap();
    let eyes = Eyes {
        client_ip: &config.client_ip,
        api_key: &config.api_key,
        hash_key: &HashSecret::from_bytes([7; 32]),
        records: &[],
        known: &[],
    };
    let whom = |word: &str| eyes.of_limit(&[word.to_owned()], &either);
    assert_eq!(whom("api_key=k1").unwrap().parts, "api_key");
    assert_eq!(whom("ip=192.0.2.7").unwrap().parts, "ip");
    for word in ["made-up", "api_key=made-up"] {
        let unclear = whom(word).unwrap_err();
        assert!(unclear.message.contains("not known"), "{unclear:?}");
        let block = eyes.of_anyone(&[word.to_owned()], &[]).unwrap();
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
        eyes(&[], |eyes| {
            let eyes = Eyes { known, ..*eyes };
            assert_eq!(
                eyes.of_anyone(&words, &[]).is_ok(),
                eyes.of_limit(&words, limit).is_ok()
            );
            eyes.of_limit(&words, limit)
        })
    };
    for words in ["AgICAgIC", "tag=AgIC", "AgICAgICAgICAgICAgICAg"] {
        assert_eq!(find(words, &tags, &either).unwrap().tag, tags[1], "{words}");
    }
    let several = find("AQEBAQEB", &tags, &either).unwrap_err();
    assert_eq!(several.kind, Unclarity::Ambiguous);
    assert_eq!(
        several.message,
        "`AQEBAQEB` is the beginning of 2 clients' hashes"
    );
    assert_eq!(
        several.help.unwrap(),
        "write one of them: `tag=AQEBAQEBAQEBAQEBAQEBAQ`, `tag=AQEBAQEBAQEBAQEBAQEBAw`"
    );
    let unknown = find("tag=BQEBAQEB", &tags, &either).unwrap_err();
    assert_eq!(unknown.kind, Unclarity::Unknown);
    // What no client has is a value.
    assert_eq!(parts(&either, "BQEBAQEB"), "api_key");
    assert_eq!(
        find("AgICAgIC", &[], &either),
        of(&either, "api_key=AgICAgIC")
    );
    assert_eq!(
        of(&both, "api_key=a%26b&path=%2Fx"),
        of(&both, "api_key=a&b path=/x")
    );
}

#[test]
fn a_block_is_of_an_address_a_key_or_what_some_limit_counts_by() {
    let limits = [Arc::new(limit(&["header:x-user"], Missing::Ip))];
    let block = |words: &str| {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        eyes(&[], |eyes| eyes.of_anyone(&words, &limits))
    };
    assert_eq!(block("1.2.3.4").unwrap().parts, "ip");
    assert_eq!(block("abc").unwrap().parts, "api_key");
    assert_eq!(block("header:x-user=7").unwrap().parts, "header:x-user");
    let error = block("header:x-other=7").unwrap_err();
    assert!(error.message.contains("keep nobody out"));
    assert!(block("ip=1.2.3.4 path=/x").is_err());
}
