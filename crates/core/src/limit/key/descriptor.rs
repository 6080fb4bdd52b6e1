//! Keys of descriptors. Another proxy sends a descriptor's entries in place of a request.

use std::net::IpAddr;

use super::key_hash::Identity;
use super::text::{MAX_SPELLED, push_spelled};
use super::value::PartValue;
use super::{Alternatives, HashSecret, Key, KeyHash, Part};

/// The entries with a client's address, as Envoy names them. The second may be a network.
const ADDRESS_ENTRIES: [&str; 2] = ["remote_address", "masked_remote_address"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorEntry<'m> {
    pub key: &'m str,
    pub value: &'m str,
}

/// The properties of a descriptor that keys are derived from.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorFacts<'m> {
    pub entries: &'m [DescriptorEntry<'m>],
    /// The client's address, already grouped; `None` if no entry has one.
    pub ip: Option<IpAddr>,
}

impl<'m> DescriptorFacts<'m> {
    /// The first entry with the client's address.
    pub fn address_entry(entries: &[DescriptorEntry<'m>]) -> Option<&'m str> {
        let mut entries = entries.iter();
        let entry = entries.find(|entry| Part::is_address_entry(entry.key));
        entry.map(|entry| entry.value)
    }

    /// Reads the value of that entry: an address, or a network such as `10.1.0.0/16`.
    pub fn address(value: &str) -> Option<IpAddr> {
        let address = value.split_once('/').map_or(value, |(address, _)| address);
        let ip: IpAddr = address.parse().ok()?;
        Some(ip.to_canonical())
    }

    /// The value of the first entry of this name.
    pub fn value_of(&self, name: &str) -> Option<&'m str> {
        let mut entries = self.entries.iter();
        let entry = entries.find(|entry| entry.key == name);
        entry.map(|entry| entry.value)
    }
}

impl Part {
    pub fn is_address_entry(key: &str) -> bool {
        ADDRESS_ENTRIES.contains(&key)
    }

    /// Whether a descriptor with these keys of entries has a value for this part.
    pub fn is_in_descriptor<'k>(&self, mut keys: impl Iterator<Item = &'k str>) -> bool {
        match self {
            Part::Global => true,
            Part::Ip => keys.any(Part::is_address_entry),
            Part::Entry(name) => keys.any(|key| key == name),
            _ => false,
        }
    }
}

impl Key {
    /// Derives the key that a descriptor is counted against. An empty value is a value: Envoy sends
    /// such entries. An address that cannot be read is counted by its text. `None` if a part has no
    /// alternative that the descriptor carries.
    pub fn of_descriptor(
        &self,
        facts: &DescriptorFacts<'_>,
        hash_key: &HashSecret,
    ) -> Option<KeyHash> {
        let mut identity = Identity::new(hash_key);
        self.each_entry(facts, |part, value| identity.add(Some(part), value))?;
        Some(identity.hash())
    }

    /// Writes the same key in the clear, as [`Key::spell`] does.
    #[cold]
    pub fn spell_descriptor(&self, facts: &DescriptorFacts<'_>) -> Option<String> {
        let mut out = String::new();
        self.each_entry(facts, |part, value| {
            push_spelled(&mut out, Some(part), value);
        })?;
        (out.len() <= MAX_SPELLED).then_some(out)
    }

    fn each_entry(
        &self,
        facts: &DescriptorFacts<'_>,
        mut add: impl FnMut(&Part, &[u8]),
    ) -> Option<()> {
        for part in &self.parts {
            part.take_entry(facts, &mut |part, value| {
                add(part, self.counted(Some(part), value));
            })?;
        }
        Some(())
    }
}

impl Alternatives {
    fn take_entry(
        &self,
        facts: &DescriptorFacts<'_>,
        add: &mut impl FnMut(&Part, &[u8]),
    ) -> Option<()> {
        for part in &self.0 {
            match part {
                Part::Global => add(part, b""),
                Part::Ip => match (facts.ip, DescriptorFacts::address_entry(facts.entries)) {
                    (Some(ip), _) => add(part, PartValue::ip(ip).as_bytes()),
                    (None, Some(text)) => {
                        add(&Part::Entry(ADDRESS_ENTRIES[0].to_owned()), text.as_bytes());
                    }
                    (None, None) => continue,
                },
                Part::Entry(name) => match facts.value_of(name) {
                    Some(value) => add(part, value.as_bytes()),
                    None => continue,
                },
                _ => continue,
            }
            return Some(());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::key::text::Given;

    const SECRET: HashSecret = HashSecret::from_bytes([7; 32]);

    fn tag(key: &[&str], entries: &[(&str, &str)]) -> Option<KeyHash> {
        let entries: Vec<DescriptorEntry<'_>> = entries
            .iter()
            .map(|(key, value)| DescriptorEntry { key, value })
            .collect();
        let ip = DescriptorFacts::address_entry(&entries).and_then(DescriptorFacts::address);
        let facts = DescriptorFacts {
            entries: &entries,
            ip,
        };
        let key = Key::parse(key.iter().copied()).unwrap();
        key.of_descriptor(&facts, &SECRET)
    }

    #[test]
    fn an_address_has_one_budget_through_every_door() {
        let address = tag(&["ip"], &[("remote_address", "192.0.2.7")]);
        let of_request = Given::tag(&[Given::ip("192.0.2.7".parse().unwrap())], &SECRET);
        assert_eq!(address, Some(of_request));
        let mapped = [("remote_address", "::ffff:192.0.2.7")];
        assert_eq!(tag(&["ip"], &mapped), address);
        let masked = [("masked_remote_address", "192.0.2.7/32")];
        assert_eq!(tag(&["ip"], &masked), address);
    }

    #[test]
    fn entries_are_told_apart_by_name_and_value() {
        let user = tag(&["entry:user"], &[("user", "a")]);
        assert!(user.is_some());
        assert_eq!(tag(&["entry:user"], &[("user", "a"), ("user", "b")]), user);
        assert_ne!(tag(&["entry:user"], &[("user", "")]), user);
        assert_ne!(tag(&["entry:name"], &[("name", "a")]), user);
        assert_eq!(tag(&["entry:user"], &[("name", "a")]), None);
        let either = ["entry:name or entry:user"];
        assert_eq!(tag(&either, &[("user", "a")]), user);
    }

    #[test]
    fn an_unreadable_address_is_counted_by_its_text() {
        let one = tag(&["ip"], &[("remote_address", "pipe")]);
        assert!(one.is_some());
        assert_ne!(tag(&["ip"], &[("remote_address", "other")]), one);
        assert_eq!(tag(&["ip"], &[("user", "a")]), None);
    }
}
