//! `balance` of an upstream: how one of its servers is chosen.

use super::super::diagnostic::Code;
use super::super::limits::{Known, check_known};
use super::super::section::Section;
use super::super::values::TextForm;
use crate::limit::key::Key;

/// How one of several servers is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Of two drawn at random, the one that has less to do and is not much slower.
    #[default]
    P2c,
    /// In turn.
    RoundRobin,
    /// The one that this key of the request belongs to.
    Hash(Key),
}

/// `p2c`, `round-robin` or `hash:KEY`
pub(super) fn balance(section: &mut Section<'_>, known: Known) -> Balance {
    let balance = section.parsed(
        "balance",
        TextForm::new(Code::BadKey, "a way to balance"),
        |text| match text.split_once(':') {
            None if text == "p2c" => Ok(Balance::P2c),
            None if text == "round-robin" => Ok(Balance::RoundRobin),
            Some(("hash", key)) => {
                let part = Key::parse_part(key).map_err(|error| error.to_string())?;
                Ok(Balance::Hash(Key { parts: vec![part] }))
            }
            _ => Err("write `p2c`, `round-robin` or for example `hash:cookie:session`".to_owned()),
        },
    );
    let Some(balance) = balance else {
        return Balance::default();
    };
    if let Balance::Hash(key) = &balance.value {
        for part in &key.parts {
            check_known(section, part, &balance.span, known);
        }
    }
    balance.value
}
