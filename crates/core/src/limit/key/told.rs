//! What a key found in a request, part by part, for people: not on the path of a request.
//!
//! It asks what [`Key::derive`] asks. Its values are in the clear, and whoever shows them decides
//! how much of them.

use super::value::Carried;
use super::{Alternatives, Facts, Key, Part, Taken};

/// What a request has for one part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told<'k> {
    /// This alternative, with this value; of an address the text.
    Value(&'k Part, String),
    /// Several values that differ, of this alternative.
    Several(&'k Part),
    /// An API key that is not known, where those are refused.
    Unknown,
    /// None of them.
    Nothing,
}

impl Key {
    /// What is found for each part, in the file's order.
    pub fn tell<'k>(&'k self, facts: &Facts<'_>) -> Vec<(&'k Alternatives, Told<'k>)> {
        let told = |part: &'k Alternatives| (part, part.tell(facts));
        self.parts.iter().map(told).collect()
    }
}

impl Alternatives {
    fn tell<'k>(&'k self, facts: &Facts<'_>) -> Told<'k> {
        match self.take(facts) {
            Taken::Nothing => Told::Nothing,
            Taken::Value(part @ Part::Ip, _) => Told::Value(part, facts.ip.to_string()),
            Taken::Value(part, value) => {
                let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
                Told::Value(part, text)
            }
            Taken::Unknown => Told::Unknown,
            Taken::Several => {
                let several = |part: &&Part| part.find(facts) == Carried::Several;
                let part = self.0.iter().find(several);
                part.map_or(Told::Nothing, Told::Several)
            }
        }
    }
}
