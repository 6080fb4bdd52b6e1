//! Whom: a client as an operator names it, and how it stands.
//!
//! A word for each part of the limit's key, `PART=VALUE`; or a plain VALUE where it is clear of
//! which part; or a hash as logs and lists show it, with `tag=` before it or without. It becomes
//! the hash that the proxies make of a request that carries these. Pure: the secret comes with the
//! [`Eyes`], and no value stays.

mod standing;

use std::net::IpAddr;
use std::sync::Arc;

use crate::client::ClientIp;
use crate::limit::key::tag_prefix::{SHORTEST, SHOWN, TagPrefix};
use crate::limit::key::{Alternatives, ApiKeys, Given, HashKey, KeyError, Part};
use crate::limit::{Limit, Missing, Tag};
use crate::path::{CanonicalPath, Case, fold};
use crate::route::host_of;
use crate::store::people::Record;

pub use standing::{Row, every_window, items, standing};

/// Clients that are listed where a hash is that of several, at most.
const MOST_LISTED: usize = 10;

/// A key that was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whom {
    /// Its hash.
    pub tag: Tag,
    /// Its parts without their values; empty where they are not known.
    pub parts: String,
}

/// Why words name nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclear {
    /// In which way.
    pub kind: Unclarity,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub help: Option<String>,
}

/// In which way words are unclear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unclarity {
    /// They are no key.
    Wrong,
    /// They are the beginning of no client's hash that is known.
    Unknown,
    /// They are the beginning of several.
    Ambiguous,
}

impl Unclear {
    fn new(message: impl Into<String>) -> Unclear {
        Unclear {
            kind: Unclarity::Wrong,
            message: message.into(),
            help: None,
        }
    }

    fn help(mut self, help: impl Into<String>) -> Unclear {
        self.help = Some(help.into());
        self
    }
}

/// What keys are read with.
#[derive(Debug)]
pub struct Eyes<'e> {
    /// How addresses are grouped.
    pub client_ip: &'e ClientIp,
    /// Which API keys are known.
    pub api_key: &'e ApiKeys,
    /// The secret that keys are hashed with.
    pub hash_key: &'e HashKey,
    /// What is in force: where hashes are looked for.
    pub records: &'e [Record],
    /// And hashes of other clients, in any order: those that [`cut`] may stand for.
    pub known: &'e [Tag],
}

/// The hash that words may stand for, whole or cut as logs cut it: to look for clients that have
/// it, and to tell them by [`Eyes::known`].
pub fn cut(words: &[String]) -> Option<TagPrefix> {
    let [word] = words else {
        return None;
    };
    match word.strip_prefix("tag=") {
        Some(hash) => TagPrefix::parse(hash),
        None => TagPrefix::parse(word).filter(|prefix| prefix.text().len() >= SHOWN),
    }
}

/// One word of a key.
enum Word<'w> {
    Tag(&'w str),
    Named(Part, &'w str),
    Missing,
    Plain(&'w str),
}

impl Eyes<'_> {
    /// The key of one limit.
    pub fn of_limit(&self, words: &[String], limit: &Limit) -> Result<Whom, Unclear> {
        if let Some(known) = self.shown(words) {
            return known;
        }
        let split = parts_of(words, limit);
        let words = read_all(split.as_deref().unwrap_or(words))?;
        if let [Word::Tag(hash)] = words[..] {
            return self.by_hash(hash);
        }
        self.assemble(&words, limit)
    }

    /// What a word is that no `tag=` precedes, where clients are known with a hash like it.
    fn shown(&self, words: &[String]) -> Option<Result<Whom, Unclear>> {
        let prefix = cut(words).filter(|_| !words[0].starts_with("tag="))?;
        let found = self.find(&prefix);
        (!found.is_empty()).then(|| self.only(&prefix, &found))
    }

    /// Everyone known whose hash begins so, once and in order.
    fn find(&self, prefix: &TagPrefix) -> Vec<Tag> {
        let records = self.records.iter().map(|one| one.subject.tag());
        let all = records.chain(self.known.iter().copied());
        let mut found: Vec<Tag> = all.filter(|tag| prefix.matches(*tag)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    fn only(&self, prefix: &TagPrefix, found: &[Tag]) -> Result<Whom, Unclear> {
        match found {
            [tag] => Ok(self.with_hash(*tag)),
            [] => Err(Unclear {
                kind: Unclarity::Unknown,
                ..Unclear::new(format!("no client is known with a hash like `{prefix}`"))
            }
            .help(format!(
                "nothing is counted for it any more, and no override or block is in force: write \
                 all {} characters as `tag=HASH`, or the key itself as `PART=VALUE`",
                Tag::TEXT_LEN
            ))),
            several => {
                let listed = several.iter().take(MOST_LISTED);
                let listed = listed
                    .map(|tag| self.with_hash(*tag))
                    .map(|one| match &*one.parts {
                        "" => format!("`tag={}`", one.tag),
                        parts => format!("`tag={}` ({parts})", one.tag),
                    });
                let mut listed: Vec<String> = listed.collect();
                if several.len() > MOST_LISTED {
                    listed.push(format!("and {} more", several.len() - MOST_LISTED));
                }
                Err(Unclear {
                    kind: Unclarity::Ambiguous,
                    ..Unclear::new(format!(
                        "`{prefix}` is the beginning of {} clients' hashes",
                        several.len()
                    ))
                }
                .help(format!("write one of them: {}", listed.join(", "))))
            }
        }
    }

    fn with_hash(&self, tag: Tag) -> Whom {
        let known = self.records.iter().find(|one| one.subject.tag() == tag);
        Whom {
            tag,
            parts: known.map_or_else(String::new, |one| one.words.key.clone()),
        }
    }

    /// A key to block, of whatever limit: an address or an API key, or what some limit counts by.
    pub fn of_anyone(&self, words: &[String], limits: &[Arc<Limit>]) -> Result<Whom, Unclear> {
        if let Some(known) = self.shown(words) {
            return known;
        }
        let given = match &read_all(words)?[..] {
            [Word::Tag(hash)] => return self.by_hash(hash),
            [Word::Plain(text)] if text.parse::<IpAddr>().is_ok() => {
                self.given(&Part::Ip, text, Case::Sensitive)?
            }
            // A block holds whether the key is known or not.
            [Word::Plain(text)] | [Word::Named(Part::ApiKey, text)] => {
                filled(Given::text(Part::ApiKey, text), &Part::ApiKey)?
            }
            [Word::Named(Part::Ip, value)] => self.given(&Part::Ip, value, Case::Sensitive)?,
            words => {
                let mut found = limits.iter().map(|limit| self.assemble(words, limit));
                return found.find_map(Result::ok).ok_or_else(|| {
                    Unclear::new("no limit counts by that: such a block would keep nobody out")
                        .help(
                            "`ip=ADDRESS` and `api_key=KEY` are kept out everywhere; other keys \
                             where a limit counts by them, named as `PART=VALUE`",
                        )
                });
            }
        };
        Ok(self.whom(&[given]))
    }

    fn whom(&self, given: &[Given]) -> Whom {
        let part = |one: &Given| {
            one.part()
                .map_or_else(|| "missing".to_owned(), Part::to_string)
        };
        let parts: Vec<String> = given.iter().map(part).collect();
        Whom {
            tag: Given::tag(given, self.hash_key),
            parts: parts.join(", "),
        }
    }

    fn by_hash(&self, hash: &str) -> Result<Whom, Unclear> {
        if let Some(tag) = Tag::parse(hash) {
            return Ok(self.with_hash(tag));
        }
        let prefix = TagPrefix::parse(hash).ok_or_else(|| {
            let message = format!("`{hash}` is no key's hash");
            Unclear::new(message).help(format!(
                "write its {} characters, or its first {SHORTEST} or more",
                Tag::TEXT_LEN
            ))
        })?;
        self.only(&prefix, &self.find(&prefix))
    }

    /// A word for each part of the limit's key.
    fn assemble(&self, words: &[Word<'_>], limit: &Limit) -> Result<Whom, Unclear> {
        let parts = &limit.key.parts;
        let mut left: Vec<&Word<'_>> = words.iter().collect();
        let mut given = Vec::new();
        for part in parts {
            // Mostly they stand in order; named ones need not.
            let place = left.iter().position(|word| fits(word, part, limit.missing));
            let place = place.ok_or_else(|| usage(limit))?;
            given.push(match left.remove(place) {
                Word::Named(part, value) => self.given(part, value, limit.case)?,
                Word::Plain(text) => self.given(guess(part, text), text, limit.case)?,
                Word::Missing | Word::Tag(_) => Given::missing(),
            });
        }
        if left.is_empty() {
            Ok(self.whom(&given))
        } else {
            Err(usage(limit))
        }
    }

    fn given(&self, part: &Part, value: &str, case: Case) -> Result<Given, Unclear> {
        let given = match part {
            Part::Ip => {
                let address = value.trim().parse::<IpAddr>();
                let address = address.map_err(|_| {
                    Unclear::new(format!("`{value}` is not an address"))
                        .help("write for example `ip=192.0.2.7` or `ip=2001:db8::7`")
                })?;
                Given::ip(self.client_ip.group(address))
            }
            Part::ApiKey if !self.api_key.may_count(value.trim().as_bytes()) => {
                return Err(unknown_key());
            }
            Part::Path => {
                let path = CanonicalPath::parse(value)
                    .map_err(|error| Unclear::new(format!("`{value}` is not a path: {error}")))?;
                let path = path.with_folded();
                Given::text(part.clone(), path.in_case(case).as_str())
            }
            Part::PathParam(_) if case == Case::Insensitive => {
                Given::text(part.clone(), &fold(value))
            }
            Part::Host => {
                let host = host_of(value);
                let host = host
                    .map_err(|error| Unclear::new(format!("`{value}` is not a host: {error}")))?;
                Given::text(part.clone(), &host)
            }
            _ => Given::text(part.clone(), value),
        };
        filled(given, part)
    }
}

fn filled(given: Given, part: &Part) -> Result<Given, Unclear> {
    if given.is_empty() {
        let message = format!("`{part}` has no value: no request is counted by nothing");
        return Err(Unclear::new(message));
    }
    Ok(given)
}

fn unknown_key() -> Unclear {
    Unclear::new("that API key is not known: no request is counted by it").help(
        "name the client by what it is counted by, for example `ip=ADDRESS`; or add the key to the \
         file of `[api_key] known`",
    )
}

/// A key of several parts as one word, which is how logs spell it: `&` between the parts, and
/// percent signs for what could end a word.
fn parts_of(words: &[String], limit: &Limit) -> Option<Vec<String>> {
    let [word] = words else {
        return None;
    };
    let several = limit.key.parts.len() > 1 && word.contains('&');
    let parts = word.split('&').map(decoded);
    parts.collect::<Option<Vec<_>>>().filter(|_| several)
}

/// A text without its percent signs; nothing where that is no text.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        rest = others;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, others) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = others;
    }
    String::from_utf8(bytes).ok()
}

fn read_all(words: &[String]) -> Result<Vec<Word<'_>>, Unclear> {
    words.iter().map(|word| read(word)).collect()
}

fn read(word: &str) -> Result<Word<'_>, Unclear> {
    match word.split_once('=') {
        Some(("tag", hash)) => Ok(Word::Tag(hash)),
        Some((name, value)) => match Part::parse(name) {
            Ok(part) => Ok(Word::Named(part, value)),
            // A key may well have a `=` in it; one slip in a part's name would make it another.
            Err(KeyError::Unknown { nearest: None, .. } | KeyError::Empty) => Ok(Word::Plain(word)),
            Err(error) => Err(Unclear::new(format!("in `{word}`: {error}"))
                .help("a plain value with a `=` in it is written as `PART=VALUE`")),
        },
        None if word == "missing" => Ok(Word::Missing),
        None if word == "global" => Ok(Word::Named(Part::Global, "")),
        None => Ok(Word::Plain(word)),
    }
}

fn fits(word: &Word<'_>, part: &Alternatives, missing: Missing) -> bool {
    match word {
        Word::Named(Part::Ip, _) if missing == Missing::Ip => true,
        Word::Named(named, _) => part.0.contains(named),
        Word::Missing => missing == Missing::Shared,
        Word::Plain(text) => {
            part.0.iter().any(|one| *one != Part::Ip) || text.parse::<IpAddr>().is_ok()
        }
        Word::Tag(_) => false,
    }
}

/// Which part a plain value is of.
fn guess<'p>(part: &'p Alternatives, text: &str) -> &'p Part {
    let is_address = text.parse::<IpAddr>().is_ok();
    if is_address && part.0.contains(&Part::Ip) {
        return &Part::Ip;
    }
    let mut others = part.0.iter().filter(|one| **one != Part::Ip);
    others.next().unwrap_or(&Part::Ip)
}

/// What the key of a limit is written like.
fn usage(limit: &Limit) -> Unclear {
    let key: Vec<String> = limit
        .key
        .parts
        .iter()
        .map(|part| format!("`{part}`"))
        .collect();
    let words = limit.key.parts.iter().map(|part| match part.0.first() {
        Some(Part::Ip) => "ip=ADDRESS".to_owned(),
        Some(Part::Global) => "global".to_owned(),
        Some(part) => format!("{part}=VALUE"),
        None => String::new(),
    });
    let words: Vec<String> = words.collect();
    Unclear::new(format!(
        "that is no key of `{}`, which counts by {}",
        limit.name,
        key.join(" and ")
    ))
    .help(format!("write `{}`", words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::limit::{Algorithm, Key, Rule};
    use crate::store::people::{Subject, Words};

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
            hash_key: &HashKey::from_bytes([7; 32]),
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
        let tag = Tag([1; 16]);
        let record = Record {
            subject: Subject::Block(tag),
            words: Words {
                key: "ip".to_owned(),
                ..Words::default()
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
        assert_eq!(find(&Tag([2; 16]).to_string()).unwrap().tag, Tag([2; 16]));
        assert!(find("AQE").is_err() && find("BQEBAQEB").is_err());
    }

    #[test]
    fn no_request_is_counted_by_a_key_that_is_not_known() {
        let either = limit(&["api_key or ip"], Missing::Ip);
        let (config, _) = config::parse(
            "proxy.toml",
            "upstream = \"http://127.0.0.1:1\"\n[api_key]\nknown = \"src/config/tests/keys.txt\"\n",
            &|_| None,
        )
        .unwrap();
        let eyes = Eyes {
            client_ip: &config.client_ip,
            api_key: &config.api_key,
            hash_key: &HashKey::from_bytes([7; 32]),
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
        let mut tags = [Tag([1; 16]), Tag([2; 16]), Tag([1; 16])];
        tags[2].0[15] = 3;
        let find = |words: &str, known: &[Tag], limit: &Limit| {
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
}
