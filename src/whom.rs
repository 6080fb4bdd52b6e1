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
use crate::limit::key::key_hash_prefix::{KeyHashPrefix, SHORTEST, SHOWN};
use crate::limit::key::{Alternatives, ApiKeys, Given, HashSecret, KeyError, Part};
use crate::limit::{KeyHash, Limit, Missing};
use crate::path::{CanonicalPath, Case, fold};
use crate::route::host_of;
use crate::store::overrides::Record;

pub use standing::{Row, every_window, items, standing};

/// Clients that are listed where a hash is that of several, at most.
const MOST_LISTED: usize = 10;

/// A key that was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whom {
    /// Its hash.
    pub tag: KeyHash,
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
    pub hash_key: &'e HashSecret,
    /// What is in force: where hashes are looked for.
    pub records: &'e [Record],
    /// And hashes of other clients, in any order: those that [`cut`] may stand for.
    pub known: &'e [KeyHash],
}

/// The hash that words may stand for, whole or cut as logs cut it: to look for clients that have
/// it, and to tell them by [`Eyes::known`].
pub fn cut(words: &[String]) -> Option<KeyHashPrefix> {
    let [word] = words else {
        return None;
    };
    match word.strip_prefix("tag=") {
        Some(hash) => KeyHashPrefix::parse(hash),
        None => KeyHashPrefix::parse(word).filter(|prefix| prefix.text().len() >= SHOWN),
    }
}

/// One word of a key.
enum Word<'w> {
    Hash(&'w str),
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
        if let [Word::Hash(hash)] = words[..] {
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
    fn find(&self, prefix: &KeyHashPrefix) -> Vec<KeyHash> {
        let records = self.records.iter().map(|one| one.subject.tag());
        let all = records.chain(self.known.iter().copied());
        let mut found: Vec<KeyHash> = all.filter(|tag| prefix.matches(*tag)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    fn only(&self, prefix: &KeyHashPrefix, found: &[KeyHash]) -> Result<Whom, Unclear> {
        match found {
            [tag] => Ok(self.with_hash(*tag)),
            [] => Err(Unclear {
                kind: Unclarity::Unknown,
                ..Unclear::new(format!("no client is known with a hash like `{prefix}`"))
            }
            .help(format!(
                "nothing is counted for it any more, and no override or block is in force: write \
                 all {} characters as `tag=HASH`, or the key itself as `PART=VALUE`",
                KeyHash::TEXT_LEN
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

    fn with_hash(&self, tag: KeyHash) -> Whom {
        let known = self.records.iter().find(|one| one.subject.tag() == tag);
        Whom {
            tag,
            parts: known.map_or_else(String::new, |one| one.terms.key.clone()),
        }
    }

    /// A key to block, of whatever limit: an address or an API key, or what some limit counts by.
    pub fn of_anyone(&self, words: &[String], limits: &[Arc<Limit>]) -> Result<Whom, Unclear> {
        if let Some(known) = self.shown(words) {
            return known;
        }
        let given = match &read_all(words)?[..] {
            [Word::Hash(hash)] => return self.by_hash(hash),
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
        if let Some(tag) = KeyHash::parse(hash) {
            return Ok(self.with_hash(tag));
        }
        let prefix = KeyHashPrefix::parse(hash).ok_or_else(|| {
            let message = format!("`{hash}` is no key's hash");
            Unclear::new(message).help(format!(
                "write its {} characters, or its first {SHORTEST} or more",
                KeyHash::TEXT_LEN
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
                Word::Missing | Word::Hash(_) => Given::missing(),
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
        Some(("tag", hash)) => Ok(Word::Hash(hash)),
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
        Word::Hash(_) => false,
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
mod tests;
