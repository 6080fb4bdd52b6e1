//! Reads the client key that an operator writes, and reports how much that client uses.
//!
//! An operator writes `PART=VALUE` for each part of the limit's key. A plain VALUE is enough if
//! only one part fits. A key hash, as logs and lists show it, also works, with or without `tag=`
//! before it. The result is the hash that the proxies compute for a request with these values.
//!
//! Pure: the caller passes the secret, and no value is kept.

mod usage;

use std::net::IpAddr;
use std::sync::Arc;

use crate::client::ClientIp;
use crate::config::{SpellingError, looks_like_address, spelled};
use crate::limit::key::{Alternatives, ApiKeys, Given, HashSecret, Part};
use crate::limit::key::{KeyHashPrefix, SHORTEST, SHOWN};
use crate::limit::{AnchorDay, KeyHash, Limit, Missing};
use crate::path::Case;
use crate::store::overrides::Record;

pub use usage::{WindowStatus, client_usage, limit_checks, windows_of_key};

/// Clients that an error message lists if a hash prefix fits several, at most.
const MOST_LISTED: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedKey {
    pub tag: KeyHash,
    /// The names of the key's parts, without values; empty if they are not known.
    pub parts: String,
    /// The day on which the client's months begin, if its line in the file of keys says it.
    pub anchor: Option<AnchorDay>,
    /// Whether the operator wrote an API key that the file of keys has.
    pub is_listed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySelectionError {
    pub kind: KeySelectionErrorKind,
    pub message: String,
    pub help: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySelectionErrorKind {
    Wrong,
    /// No known client has a hash with this prefix.
    Unknown,
    /// Several known clients have a hash with this prefix.
    Ambiguous,
}

impl KeySelectionError {
    fn new(message: impl Into<String>) -> KeySelectionError {
        KeySelectionError {
            kind: KeySelectionErrorKind::Wrong,
            message: message.into(),
            help: None,
        }
    }

    fn help(mut self, help: impl Into<String>) -> KeySelectionError {
        self.help = Some(help.into());
        self
    }
}

type SelectionResult = Result<SelectedKey, KeySelectionError>;

/// The configuration and the known clients that keys are read with.
#[derive(Debug)]
pub struct KeySelector<'s> {
    pub client_ip: &'s ClientIp,
    pub api_key: &'s ApiKeys,
    pub hash_key: &'s HashSecret,
    /// Overrides and blocks in force; their clients are known by hash.
    pub records: &'s [Record],
    /// Hashes of other known clients, in any order.
    pub known: &'s [KeyHash],
}

/// The hash that these words may stand for, whole or shortened as in logs. The caller looks for
/// clients with this prefix and passes them as [`KeySelector::known`].
pub fn hash_prefix(words: &[String]) -> Option<KeyHashPrefix> {
    let [word] = words else {
        return None;
    };
    match word.strip_prefix("tag=") {
        Some(hash) => KeyHashPrefix::parse(hash),
        None => KeyHashPrefix::parse(word).filter(|prefix| prefix.text().len() >= SHOWN),
    }
}

/// Digits of the ids that the proxy itself makes.
const OWN_REQUEST_ID: usize = 16;

/// The id of a denied request, if the words are one: `request=ID`, or the id alone if it has the
/// form of the proxy's own ids. A client may choose any other id, for example its victim's address.
pub fn denied_request<'w>(words: &'w [String], api_key: &ApiKeys) -> Option<&'w str> {
    let [word] = words else {
        return None;
    };
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_own = word.len() == OWN_REQUEST_ID && word.bytes().all(is_digit);
    match word.strip_prefix("request=") {
        Some(id) => Some(id).filter(|id| !id.is_empty()),
        None => (is_own && !api_key.is_listed(word.as_bytes())).then_some(word),
    }
}

enum KeyWord<'w> {
    Hash(&'w str),
    Named(Part, &'w str),
    Missing,
    Plain(&'w str),
}

impl KeySelector<'_> {
    /// Whether the words are a hash. A word without `tag=` is one only if a known client has it.
    pub fn is_hash(&self, words: &[String]) -> bool {
        let is_marked = words.first().is_some_and(|word| word.starts_with("tag="));
        let is_known = |prefix: KeyHashPrefix| !self.find_clients(&prefix).is_empty();
        is_marked || hash_prefix(words).is_some_and(is_known)
    }

    /// Reads the key of `limit`. Without a limit, reads a key to block: an address, an API key, or
    /// a key that one of `all_limits` counts by.
    pub fn select(
        &self,
        words: &[String],
        limit: Option<&Limit>,
        all_limits: &[Arc<Limit>],
    ) -> Result<SelectedKey, KeySelectionError> {
        if let Some(prefix) = hash_prefix(words).filter(|_| !words[0].starts_with("tag=")) {
            let found = self.find_clients(&prefix);
            if !found.is_empty() {
                return self.only_client(&prefix, &found);
            }
        }
        let split = limit.and_then(|limit| split_spelled_key(words, limit));
        let words = split.as_deref().unwrap_or(words).iter();
        let words: Vec<KeyWord<'_>> = words.map(|word| read(word)).collect::<Result<_, _>>()?;
        match (&words[..], limit) {
            ([KeyWord::Hash(hash)], _) => self.by_hash(hash),
            (words, Some(limit)) => self.assemble(words, limit),
            (words, None) => self.select_to_block(words, all_limits),
        }
    }

    /// Known clients whose hash has this prefix, once each and in order.
    fn find_clients(&self, prefix: &KeyHashPrefix) -> Vec<KeyHash> {
        let records = self.records.iter().map(|one| one.subject.tag());
        let all = records.chain(self.known.iter().copied());
        let mut found: Vec<KeyHash> = all.filter(|tag| prefix.matches(*tag)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    fn only_client(&self, prefix: &KeyHashPrefix, found: &[KeyHash]) -> SelectionResult {
        if let [tag] = found {
            return Ok(self.with_hash(*tag));
        }
        if found.is_empty() {
            return Err(KeySelectionError {
                kind: KeySelectionErrorKind::Unknown,
                message: format!("no client is known with a hash like `{prefix}`"),
                help: Some(format!(
                    "its counts have expired, and it has no override and no block: write all {} \
                     characters as `tag=HASH`, or the key itself as `PART=VALUE`",
                    KeyHash::TEXT_LEN
                )),
            });
        }
        let listed = found.iter().take(MOST_LISTED).map(|tag| {
            let key = self.with_hash(*tag);
            match &*key.parts {
                "" => format!("`tag={tag}`"),
                parts => format!("`tag={tag}` ({parts})"),
            }
        });
        let mut listed: Vec<String> = listed.collect();
        if found.len() > MOST_LISTED {
            listed.push(format!("and {} more", found.len() - MOST_LISTED));
        }
        Err(KeySelectionError {
            kind: KeySelectionErrorKind::Ambiguous,
            message: format!(
                "`{prefix}` is the beginning of {} clients' hashes",
                found.len()
            ),
            help: Some(format!("write one of them: {}", listed.join(", "))),
        })
    }

    fn with_hash(&self, tag: KeyHash) -> SelectedKey {
        let known = self.records.iter().find(|one| one.subject.tag() == tag);
        SelectedKey {
            tag,
            parts: known.map_or_else(String::new, |one| one.terms.key.clone()),
            anchor: None,
            is_listed: false,
        }
    }

    fn select_to_block(&self, words: &[KeyWord<'_>], limits: &[Arc<Limit>]) -> SelectionResult {
        let given = match words {
            [KeyWord::Plain(text)] if text.parse::<IpAddr>().is_ok() => {
                self.part_value(&Part::Ip, text, Case::Sensitive)?
            }
            [KeyWord::Plain(text)] if looks_like_address(text) => {
                let message = format!("`{text}` is not an address: a block is of one address");
                return Err(KeySelectionError::new(message).help(
                    "write for example `192.0.2.7`; `deny` of `[access]` is for networks, and an \
                     API key that looks like this is written as `api_key=KEY`",
                ));
            }
            // A block holds whether the key is known or not.
            [KeyWord::Plain(text)] | [KeyWord::Named(Part::ApiKey, text)] => {
                let key = self.identity(text);
                not_empty(Given::text(Part::ApiKey, key), &Part::ApiKey)?
            }
            [KeyWord::Named(Part::Ip, value)] => {
                self.part_value(&Part::Ip, value, Case::Sensitive)?
            }
            words => {
                let mut found = limits.iter().map(|limit| self.assemble(words, limit));
                return found.find_map(Result::ok).ok_or_else(|| {
                    let message = "no limit counts by that: such a block would deny no request";
                    KeySelectionError::new(message).help(
                        "`ip=ADDRESS` and `api_key=KEY` are blocked on every route; other keys \
                         only where a limit counts by them, as `PART=VALUE`",
                    )
                });
            }
        };
        Ok(self.hash(&[given]))
    }

    fn hash(&self, given: &[Given]) -> SelectedKey {
        let parts = given.iter().map(Given::part);
        let parts: Vec<String> = parts
            .map(|part| part.map_or_else(|| "missing".to_owned(), Part::to_string))
            .collect();
        SelectedKey {
            tag: Given::tag(given, self.hash_key),
            parts: parts.join(", "),
            anchor: None,
            is_listed: false,
        }
    }

    fn by_hash(&self, hash: &str) -> SelectionResult {
        if let Some(tag) = KeyHash::parse(hash) {
            return Ok(self.with_hash(tag));
        }
        let prefix = KeyHashPrefix::parse(hash).ok_or_else(|| {
            KeySelectionError::new(format!("`{hash}` is no key's hash")).help(format!(
                "write its {} characters, or its first {SHORTEST} or more",
                KeyHash::TEXT_LEN
            ))
        })?;
        self.only_client(&prefix, &self.find_clients(&prefix))
    }

    /// Takes one word for each part of the limit's key.
    fn assemble(&self, words: &[KeyWord<'_>], limit: &Limit) -> SelectionResult {
        let mut left: Vec<&KeyWord<'_>> = words.iter().collect();
        let (mut given, mut api_key) = (Vec::new(), None);
        for part in &limit.key.parts {
            // Plain words stand in the order of the parts; named words may stand anywhere.
            let place = left.iter().position(|word| fits(word, part, limit.missing));
            let place = place.ok_or_else(|| wrong_key(limit))?;
            let (part, value) = match left.remove(place) {
                KeyWord::Named(part, value) => (part, *value),
                KeyWord::Plain(text) => (part_of_plain(part, text), *text),
                KeyWord::Missing | KeyWord::Hash(_) => {
                    given.push(Given::missing());
                    continue;
                }
            };
            given.push(self.part_value(part, value, limit.case)?);
            if *part == Part::ApiKey {
                api_key = Some(value.trim().as_bytes());
            }
        }
        for one in &mut given {
            *one = limit.key.counted_given(one.clone());
        }
        match left.is_empty() {
            true => Ok(SelectedKey {
                anchor: api_key.and_then(|key| self.api_key.anchor_of(key)),
                is_listed: api_key.is_some_and(|key| self.api_key.is_listed(key)),
                ..self.hash(&given)
            }),
            false => Err(wrong_key(limit)),
        }
    }

    /// The text by which requests with this API key are counted and blocked.
    fn identity<'t>(&self, key: &'t str) -> &'t str {
        let counted = self.api_key.identity(key.trim().as_bytes());
        str::from_utf8(counted).unwrap_or(key)
    }

    /// Normalizes a value as the proxies do before they hash it.
    fn part_value(&self, part: &Part, value: &str, case: Case) -> Result<Given, KeySelectionError> {
        if *part == Part::ApiKey && !self.api_key.may_count(value.trim().as_bytes()) {
            let message = "that API key is not known, so no request counts by it";
            return Err(KeySelectionError::new(message).help(
                "name the client by a key that it counts by, for example `ip=ADDRESS`; or add \
                 the key to the file of `[api_key] known`",
            ));
        }
        let value = match part {
            Part::ApiKey => self.identity(value),
            _ => value,
        };
        let given = spelled(part, value, self.client_ip);
        let given = given.map_err(|error| wrong_value(part, value, error))?;
        Ok(given.in_case(case))
    }
}

fn wrong_value(part: &Part, value: &str, error: SpellingError) -> KeySelectionError {
    match error {
        SpellingError::NotAnAddress => {
            KeySelectionError::new(format!("`{value}` is not an address"))
                .help("write for example `ip=192.0.2.7` or `ip=2001:db8::7`")
        }
        SpellingError::NotAPath(why) => {
            KeySelectionError::new(format!("`{value}` is not a path: {why}"))
        }
        SpellingError::NotAHost(why) => {
            KeySelectionError::new(format!("`{value}` is not a host: {why}"))
        }
        SpellingError::Empty => no_value(part),
    }
}

fn no_value(part: &Part) -> KeySelectionError {
    KeySelectionError::new(format!(
        "`{part}` has no value: no request is counted by nothing"
    ))
}

fn not_empty(given: Given, part: &Part) -> Result<Given, KeySelectionError> {
    match given.is_empty() {
        true => Err(no_value(part)),
        false => Ok(given),
    }
}

/// Splits a key of several parts that is one word. Logs write such a key with `&` between the
/// parts, and percent-encode characters that could end a word.
fn split_spelled_key(words: &[String], limit: &Limit) -> Option<Vec<String>> {
    match words {
        [word] if limit.key.parts.len() > 1 && word.contains('&') => {
            word.split('&').map(percent_decoded).collect()
        }
        _ => None,
    }
}

/// Replaces each `%XX`; none if an escape is incomplete or the result is not UTF-8.
pub(crate) fn percent_decoded(text: &str) -> Option<String> {
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

fn read(word: &str) -> Result<KeyWord<'_>, KeySelectionError> {
    match word.split_once('=') {
        Some(("tag", hash)) => Ok(KeyWord::Hash(hash)),
        // The caller has replaced the id of a denial that is known.
        Some(("request", id)) => {
            let message = format!("no denied request with the id `{id}` is known");
            Err(KeySelectionError::new(message).help(
                "the proxy of this file knows its last 2000 denials, and tells them through \
                 `admin`; write the client's address or key",
            ))
        }
        Some((name, value)) => match Part::parse(name) {
            Ok(part) => Ok(KeyWord::Named(part, value)),
            // A plain value may contain `=`. But a name close to a part's name is a mistake.
            Err(error) if error.names_nothing => Ok(KeyWord::Plain(word)),
            Err(error) => Err(KeySelectionError::new(format!("in `{word}`: {error}"))
                .help("a plain value with a `=` in it is written as `PART=VALUE`")),
        },
        None if word == "missing" => Ok(KeyWord::Missing),
        None if word == "global" => Ok(KeyWord::Named(Part::Global, "")),
        None => Ok(KeyWord::Plain(word)),
    }
}

fn fits(word: &KeyWord<'_>, part: &Alternatives, missing: Missing) -> bool {
    match word {
        KeyWord::Named(Part::Ip, _) if missing == Missing::Ip => true,
        KeyWord::Named(named, _) => part.0.contains(named),
        KeyWord::Missing => missing == Missing::Shared,
        KeyWord::Plain(text) => {
            part.0.iter().any(|one| *one != Part::Ip) || text.parse::<IpAddr>().is_ok()
        }
        KeyWord::Hash(_) => false,
    }
}

/// The alternative that a plain value belongs to.
fn part_of_plain<'p>(part: &'p Alternatives, text: &str) -> &'p Part {
    let is_address = text.parse::<IpAddr>().is_ok();
    if is_address && part.0.contains(&Part::Ip) {
        return &Part::Ip;
    }
    let mut others = part.0.iter().filter(|one| **one != Part::Ip);
    others.next().unwrap_or(&Part::Ip)
}

fn wrong_key(limit: &Limit) -> KeySelectionError {
    let parts = limit.key.parts.iter();
    let key: Vec<String> = parts.clone().map(|part| format!("`{part}`")).collect();
    let words = parts.map(|part| match part.0.first() {
        Some(Part::Ip) => "ip=ADDRESS".to_owned(),
        Some(Part::Global) => "global".to_owned(),
        Some(part) => format!("{part}=VALUE"),
        None => String::new(),
    });
    let words: Vec<String> = words.collect();
    KeySelectionError::new(format!(
        "that is no key of `{}`, which counts by {}",
        limit.name,
        key.join(" and ")
    ))
    .help(format!("write `{}`", words.join(" ")))
}

#[cfg(test)]
mod tests;
