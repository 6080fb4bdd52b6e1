//! `[api_key]`: where clients carry their keys, and the known keys. `keys_file` of `[tier]` has
//! known keys as well: both files are read here.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use super::callback_settings::KeyCallbackSettings;
use super::*;
use crate::limit::key::{
    ApiKeySource, ApiKeySources, ApiKeys, HASHED, HashSecret, KeyDigest, KeyRegistry, KnownKey,
    KnownKeys, MAX_CHOICES, UnknownKey, is_client_name,
};
use crate::limit::{AnchorDay, Limit};

/// Keys in all files together, at most: about 60 bytes each.
const MAX_KEYS: usize = 1_000_000;
/// Bytes of a line.
const MAX_LINE: usize = 4096;

/// `[api_key]`, with the keys of all files.
pub(super) struct RawKeys {
    from: ApiKeySources,
    unknown: UnknownKey,
    registry: KeyRegistry,
    pub(super) callback: Option<KeyCallbackSettings>,
    pub(super) known: KeyList,
    /// The place of the value of `known`.
    known_span: TextSpan,
    /// The place of `unknown`, if the file has it.
    pub(super) unknown_span: Option<TextSpan>,
}

/// Known keys, gathered from files.
#[derive(Default)]
pub(super) struct KeyList {
    /// Each key's index in `lines`.
    indexes: HashMap<KeyDigest, usize>,
    lines: Vec<(KeyDigest, KeyLine)>,
    /// Whether the configuration names a file, readable or not.
    is_named: bool,
}

/// The form of the lines of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LineForm {
    /// `KEY [NAME] [TIER] [anchor=DAY]`
    Named,
    /// `KEY TIER`
    Tiers,
}

/// The name, the tier and the anchor of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct KeyLine {
    name: Option<String>,
    tier: Option<String>,
    anchor: Option<AnchorDay>,
}

pub(super) fn read(mut section: Section<'_>) -> RawKeys {
    let from = sources(&mut section);
    let mut known = KeyList::default();
    section.declare("known", || ValueKind::TextOrTable);
    let callback = callback_settings::read(&section);
    let is_table = section
        .peek("known")
        .is_some_and(|value| value.get_ref().is_table());
    let registry = match is_table {
        true => KeyRegistry::Callback,
        false => match section.text("known").as_deref() {
            Some("redis") => KeyRegistry::Redis,
            Some(path) => {
                known.add_file(&section, "known", path, LineForm::Named);
                KeyRegistry::None
            }
            None => KeyRegistry::None,
        },
    };
    known.is_named |= registry != KeyRegistry::None;
    let known_span = section.value_span("known");
    let words = [
        ("ip", UnknownKey::Missing),
        ("deny", UnknownKey::Deny),
        ("trust", UnknownKey::Trust),
    ];
    let unknown = section.optional_word("unknown", &words);
    let unknown_span = section.value_span("unknown");
    section.finish();
    RawKeys {
        from,
        registry,
        callback,
        known,
        known_span,
        unknown_span: unknown.map(|_| unknown_span),
        unknown: unknown.unwrap_or(UnknownKey::Missing),
    }
}

impl RawKeys {
    pub(super) fn denies_unknown(&self) -> bool {
        self.unknown == UnknownKey::Deny
    }

    /// Whether Redis has the known keys. Reports a store that is not Redis.
    pub(super) fn are_in_redis(&self, reader: &ConfigReader<'_>, store: &StoreKind) -> bool {
        let are_wanted = self.registry == KeyRegistry::Redis;
        if are_wanted && *store == StoreKind::Memory {
            Diagnostic::new(
                Code::KeysNeedRedis,
                "`known = \"redis\"` needs a Redis store",
            )
            .at(
                &self.known_span,
                "the counts of this file are in the proxy's memory",
            )
            .help(
                "write `url = \"redis://HOST:6379\"` in `[store]`, or name a file of keys; a \
                     file of this name is `./redis`",
            )
            .report_to(reader);
        }
        are_wanted
    }

    /// The finished settings. `tokens` is whether `[auth.jwt]` verifies bearer tokens.
    pub(super) fn finish(self, tokens: bool) -> ApiKeys {
        let lines = self.known.lines.iter().map(|(key, line)| {
            let known = KnownKey {
                name: line.name.as_deref(),
                tier: line.tier.as_deref(),
                anchor: line.anchor,
            };
            (*key, known)
        });
        let is_named = self.known.is_named;
        let known = is_named.then(|| KnownKeys::new(lines, process_secret()));
        ApiKeys {
            tokens: tokens && self.from.0.contains(&ApiKeySource::Bearer),
            from: self.from,
            known: known.map(Arc::new),
            registry: self.registry,
            unknown: self.unknown,
        }
    }
}

/// The secret that known keys are hashed with: made once in a process.
pub fn process_secret() -> HashSecret {
    static SECRET: OnceLock<[u8; 32]> = OnceLock::new();
    HashSecret::from_bytes(*SECRET.get_or_init(|| {
        let mut bytes = [0; 32];
        // Without random numbers the secret is zero: the hash is weaker and still correct.
        let _ = getrandom::fill(&mut bytes);
        bytes
    }))
}

impl Config {
    /// Whether limits count by API keys and no keys are known: then every key counts as none.
    pub fn keys_are_untold(&self) -> bool {
        let counts_by_key = |limit: &Arc<Limit>| limit.key.asks_api_key();
        !self.api_key.has_source()
            && !self.api_key.is_inventable()
            && self.limits.iter().any(counts_by_key)
    }
}

fn sources(section: &mut Section<'_>) -> ApiKeySources {
    let allowed = format!("1 to {MAX_CHOICES} places");
    let texts = section.counted_texts("from", 1..=MAX_CHOICES, &allowed);
    let form = TextForm::new(Code::BadKey, "a place where API keys are carried");
    let sources = section.parse_all("from", texts, form, ApiKeySource::parse);
    match sources.is_empty() {
        true => ApiKeySources::default(),
        false => ApiKeySources(values(sources)),
    }
}

impl KeyList {
    /// Whether the configuration names a file of keys.
    pub(super) fn is_named(&self) -> bool {
        self.is_named
    }

    /// Adds the keys of a file. Reports lines that cannot be used, without their content.
    pub(super) fn add_file(
        &mut self,
        section: &Section<'_>,
        setting: &'static str,
        path: &str,
        form: LineForm,
    ) {
        self.is_named = true;
        section.for_each_line(setting, path, |line| match key_line(line, form)? {
            (key, line) if self.lines.len() <= MAX_KEYS => self.add(key, line),
            _ => Ok(()),
        });
        if self.lines.len() > MAX_KEYS {
            section.out_of_range(setting, &format!("at most {MAX_KEYS} keys"));
        }
    }

    fn add(&mut self, key: KeyDigest, line: KeyLine) -> Result<(), &'static str> {
        let Some(index) = self.indexes.get(&key) else {
            self.indexes.insert(key, self.lines.len());
            self.lines.push((key, line));
            return Ok(());
        };
        let before = &mut self.lines[*index].1;
        let differs = |old: &Option<String>, new: &Option<String>| {
            old.is_some() && new.is_some() && old != new
        };
        if differs(&before.tier, &line.tier) {
            return Err("this key has another tier on an earlier line");
        }
        if differs(&before.name, &line.name) {
            return Err("this key has another name on an earlier line");
        }
        if before.anchor.is_some() && line.anchor.is_some() && before.anchor != line.anchor {
            return Err("this key has another anchor on an earlier line");
        }
        before.anchor = before.anchor.or(line.anchor);
        before.name = before.name.take().or(line.name);
        before.tier = before.tier.take().or(line.tier);
        Ok(())
    }
}

/// Parses a line. `sha256:HEX` stands for the key that has this hash, unless it is
/// in quotes.
fn key_line(line: &str, form: LineForm) -> Result<(KeyDigest, KeyLine), &'static str> {
    if line.len() > MAX_LINE {
        return Err("longer than 4096 bytes");
    }
    let (key, words) = match form {
        LineForm::Named => key_and_names(line)?,
        LineForm::Tiers => {
            let (key, tier) = key_and_tier(line)?;
            let tier = Some(tier.to_owned());
            let line = KeyLine {
                tier,
                ..KeyLine::default()
            };
            (key, line)
        }
    };
    if key.contains(',') {
        return Err("a key has no comma in it: in a header that separates keys");
    }
    let quoted = line.starts_with(QUOTES);
    let digest = match key.strip_prefix(HASHED).filter(|_| !quoted) {
        Some(hex) => KeyDigest::parse_hex(hex)
            .ok_or("`sha256:` is followed by the 64 hexadecimal digits of the key's SHA-256")?,
        None => KeyDigest::new(key.as_bytes()),
    };
    Ok((digest, words))
}

const QUOTES: [char; 2] = ['"', '\''];

/// `KEY [NAME] [TIER] [anchor=DAY]`: the key may be in quotes, `-` stands for no name, and a
/// comment may follow.
fn key_and_names(line: &str) -> Result<(&str, KeyLine), &'static str> {
    let (key, rest) = match line.chars().next().filter(|first| QUOTES.contains(first)) {
        Some(quote) => line[1..].split_once(quote).ok_or("a quote is not closed")?,
        None => line.split_once(char::is_whitespace).unwrap_or((line, "")),
    };
    if key.trim().is_empty() {
        return Err("not a key; write `KEY NAME TIER`");
    }
    let words = rest.split_whitespace();
    let mut words: Vec<&str> = words.take_while(|word| !word.starts_with('#')).collect();
    let anchor = anchor(&mut words)?;
    let (name, tier) = match words[..] {
        [] => (None, None),
        [name] => (Some(name), None),
        [name, tier] => (Some(name), Some(tier)),
        _ => return Err("more than a key, a name and a tier; write `KEY NAME TIER`"),
    };
    let name = name.filter(|name| *name != "-");
    if name.is_some_and(|name| !is_client_name(name)) {
        return Err("not a name: 1 to 64 letters, digits, `_`, `-`, `.`, `:` and `@`");
    }
    if tier.is_some_and(|tier| !section::is_name(tier)) {
        return Err(NOT_A_TIER);
    }
    let words = KeyLine {
        name: name.map(str::to_owned),
        tier: tier.map(str::to_owned),
        anchor,
    };
    Ok((key, words))
}

/// Takes `anchor=DAY` from the end of a line.
fn anchor(words: &mut Vec<&str>) -> Result<Option<AnchorDay>, &'static str> {
    const WRITE: &str = "`anchor=` is followed by a day of the month, 1 to 31, or by a date";
    let Some(day) = words.last().and_then(|word| word.strip_prefix("anchor=")) else {
        let is_anchor = |word: &&str| word.starts_with("anchor=");
        return match words.iter().any(is_anchor) {
            true => Err("`anchor=` is the last word of a line"),
            false => Ok(None),
        };
    };
    words.pop();
    AnchorDay::parse(day).map(Some).ok_or(WRITE)
}

const NOT_A_TIER: &str = "not a tier: 1 to 64 of `a-z`, `0-9`, `_` and `-`";

/// `KEY TIER`, `KEY = TIER`, `KEY: TIER` or `KEY,TIER`; either may be in quotes, and a comment may
/// follow.
fn key_and_tier(line: &str) -> Result<(&str, &str), &'static str> {
    const WRITE: &str = "not a key and a tier; write `KEY TIER`";
    const MARKS: [char; 3] = ['=', ':', ','];
    let (key, rest) = match line.chars().next().filter(|first| QUOTES.contains(first)) {
        Some(quote) => line[1..].split_once(quote).ok_or("a quote is not closed")?,
        None => {
            let line = line.split(" #").next().unwrap_or(line).trim_end();
            match line.split_once(char::is_whitespace) {
                // A key may end in `=`, as base64 does.
                Some((key, rest)) => (key.trim_end_matches([':', ',']), rest),
                None => line.rsplit_once(MARKS).ok_or(WRITE)?,
            }
        }
    };
    let rest = rest.trim();
    let rest = rest.strip_prefix(MARKS).unwrap_or(rest).trim();
    let rest = rest.split(" #").next().unwrap_or(rest).trim_end();
    let inner = |quote: char| rest.strip_prefix(quote)?.strip_suffix(quote);
    let tier = inner('"').or(inner('\'')).unwrap_or(rest);
    if key.trim_matches(MARKS).is_empty() || tier.is_empty() {
        Err(WRITE)
    } else if !section::is_name(tier) {
        Err(NOT_A_TIER)
    } else {
        Ok((key, tier))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_keys_may_be_written_in_many_ways() {
        for (line, expected) in [
            ("k1 pro", ("k1", "pro")),
            ("k1\t pro", ("k1", "pro")),
            ("k1 = pro", ("k1", "pro")),
            ("k1=pro", ("k1", "pro")),
            ("k1: pro", ("k1", "pro")),
            ("k1:pro", ("k1", "pro")),
            ("k1,pro", ("k1", "pro")),
            ("k1, pro", ("k1", "pro")),
            ("k1 : \"pro\"", ("k1", "pro")),
            ("\"k 1\" = 'pro'", ("k 1", "pro")),
            ("'k1','pro'", ("k1", "pro")),
            ("\"k#1\" pro  # a customer", ("k#1", "pro")),
            ("k1 pro # a customer", ("k1", "pro")),
            ("sk:live:abc== pro", ("sk:live:abc==", "pro")),
            ("abc===pro", ("abc==", "pro")),
        ] {
            assert_eq!(key_and_tier(line), Ok(expected), "{line}");
        }
        for line in [
            "k1",
            "k1 ",
            "= pro",
            "k1 Pro",
            "\"k1 pro",
            "k1 pro gold",
            "\"\" pro",
        ] {
            assert!(key_and_tier(line).is_err(), "{line}");
        }
    }

    fn named(line: &str) -> Result<(&str, Option<String>, Option<String>), &'static str> {
        key_and_names(line).map(|(key, said)| (key, said.name, said.tier))
    }

    #[test]
    fn a_line_of_known_keys_has_a_key_and_perhaps_a_name_and_a_tier() {
        let some = |text: &str| Some(text.to_owned());
        for (line, expected) in [
            ("k1", ("k1", None, None)),
            ("k1 acme", ("k1", some("acme"), None)),
            (
                "k1\tacme  pro # since May",
                ("k1", some("acme"), some("pro")),
            ),
            ("k1 - pro", ("k1", None, some("pro"))),
            ("k1 # nameless", ("k1", None, None)),
            ("\"k 1\" acme", ("k 1", some("acme"), None)),
            (
                "abc== ops@acme.example",
                ("abc==", some("ops@acme.example"), None),
            ),
        ] {
            assert_eq!(named(line), Ok(expected), "{line}");
        }
        for line in ["\"k1", "\"\" acme", "k1 a b c", "k1 = pro", "k1 acme Pro"] {
            assert!(named(line).is_err(), "{line}");
        }
        let anchor = |line| key_and_names(line).map(|(_, words)| words.anchor);
        let day = AnchorDay::of_month(15);
        assert_eq!(anchor("k1 acme pro anchor=15"), Ok(day));
        assert_eq!(anchor("k1 anchor=15 # monthly"), Ok(day));
        let date = AnchorDay::of_date("2026-03-15");
        assert_eq!(anchor("k1 acme anchor=2026-03-15"), Ok(date));
        for line in [
            "k1 anchor=0",
            "k1 anchor=32",
            "k1 anchor=",
            "k1 anchor=1 acme",
        ] {
            assert!(anchor(line).unwrap_err().contains("anchor="), "{line}");
        }
    }

    #[test]
    fn a_hash_stands_for_its_key() {
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        for lines in [LineForm::Named, LineForm::Tiers] {
            let line = format!("sha256:{hex} pro");
            assert_eq!(key_line(&line, lines).unwrap().0, KeyDigest::new(b"abc"));
            let quoted = format!("\"sha256:{hex}\" pro");
            assert_ne!(key_line(&quoted, lines).unwrap().0, KeyDigest::new(b"abc"));
            let short = format!("sha256:{} pro", &hex[1..]);
            assert!(key_line(&short, lines).unwrap_err().contains("64"));
        }
        let long = format!("{} acme", "k".repeat(MAX_LINE));
        assert!(key_line(&long, LineForm::Named).is_err());
        assert!(key_line("a,b acme", LineForm::Named).is_err());
    }
}
