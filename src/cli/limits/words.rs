//! The words of the command line, before they are read: a hash may look like an option.

use std::ffi::OsString;
use std::path::Path;

use crate::limit::key::key_hash_prefix::{KeyHashPrefix, SHOWN};

/// Long options that could be taken for a hash.
const OPTIONS: [&str; 3] = ["--config", "--remove", "--version"];

/// The arguments of this process, in which a hash that begins with `-` is no option: one of 64
/// does, and is pasted as it is shown.
pub(in crate::cli) fn with_hashes(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    if words.get(1).is_none_or(|command| command != "limits") {
        return words;
    }
    for word in &mut words[2..] {
        let Some(text) = word.to_str() else { continue };
        let is_option = match text.strip_prefix("-c") {
            Some(file) => Path::new(file).exists(),
            None => text.starts_with("--") && OPTIONS.contains(&text),
        };
        let is_hash = KeyHashPrefix::parse(text).is_some_and(|one| one.text().len() >= SHOWN);
        if text.starts_with('-') && is_hash && !is_option {
            *word = format!("tag={text}").into();
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_that_begins_with_a_dash_is_no_option() {
        let read = |words: &str| {
            let words = words.split(' ').map(OsString::from);
            let read: Vec<String> = with_hashes(words)
                .into_iter()
                .map(|word| word.into_string().unwrap())
                .collect();
            read.join(" ")
        };
        let show = "tidegate limits show login";
        assert_eq!(
            read(&format!("{show} -Rqs-YKE --json")),
            format!("{show} tag=-Rqs-YKE --json")
        );
        assert_eq!(
            read(&format!("{show} -c234567")),
            format!("{show} tag=-c234567")
        );
        assert_eq!(
            read(&format!("{show} --Rqs-YK")),
            format!("{show} tag=--Rqs-YK")
        );
        for words in [
            "tidegate limits show login 7 --config a.toml",
            "tidegate limits block 7 --remove",
            "tidegate tap -Rqs-YKE",
        ] {
            assert_eq!(read(words), words);
        }
    }
}
