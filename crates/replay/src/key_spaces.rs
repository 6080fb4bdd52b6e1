//! Key spaces: the keys of a log. Each key of a request is derived once for all limits that count
//! by it. A key space also counts which parts the log's lines carried.
//!
//! The name of a key is its parts one after the other, each with its kind and its lengths. So no
//! two keys have one name.

use std::net::IpAddr;

use crate::limit::Missing;
use crate::limit::key::{ApiKeySources, Derived, Facts, Key, Part, address};

#[derive(Debug)]
pub struct KeySpaces {
    spaces: Vec<KeySpace>,
    /// The number of the current request.
    request: u64,
}

#[derive(Debug)]
struct KeySpace {
    key: Key,
    missing: Missing,
    /// The parts of a plain request's key, with their indexes in `Key::all`. `None` if other
    /// properties than the address and the path matter.
    plain_parts: Option<Vec<(usize, Part)>>,
    /// The request that `name` and `derived` belong to.
    request: u64,
    name: Vec<u8>,
    derived: Result<(), Derived>,
    /// Requests that carried each part, in the order of `Key::all`.
    carried: Vec<u64>,
    /// Requests that lacked some part.
    lacked: u64,
    asked: u64,
}

/// Which parts of a key the log carried.
#[derive(Clone, Debug)]
pub struct CarriedParts {
    /// Parts that no request had, in the key's order.
    pub never: Vec<Part>,
    /// Requests that asked for the key.
    pub asked: u64,
    /// Requests that lacked a part, for which `missing` decided.
    pub lacked: u64,
}

/// The kind of a missing part.
const MISSING: u8 = 0;

impl KeySpaces {
    pub fn new(spaces: &[(Key, Missing)], sources: &ApiKeySources) -> KeySpaces {
        let space = |(key, missing): &(Key, Missing)| KeySpace {
            key: key.clone(),
            missing: *missing,
            plain_parts: plain_parts(key, sources),
            request: 0,
            name: Vec::new(),
            derived: Ok(()),
            carried: vec![0; key.all().count()],
            lacked: 0,
            asked: 0,
        };
        KeySpaces {
            spaces: spaces.iter().map(space).collect(),
            request: 0,
        }
    }

    pub fn begin_request(&mut self) {
        self.request += 1;
    }

    /// Derives a key of the current request, once.
    pub fn derive(&mut self, space: usize, facts: &Facts<'_>) -> Result<(), Derived> {
        let space = &mut self.spaces[space];
        if space.request != self.request {
            space.request = self.request;
            space.derive(facts);
        }
        space.derived
    }

    /// Whether the key of a request without headers depends only on its address and its path.
    pub fn is_plain(&self, space: usize) -> bool {
        self.spaces[space].plain_parts.is_some()
    }

    /// Whether a plain key contains the path.
    pub fn uses_path(&self, space: usize) -> bool {
        let mut parts = self.spaces[space].plain_parts.iter().flatten();
        parts.any(|(_, part)| *part == Part::Path)
    }

    /// Derives the key of a request without headers, where [`KeySpaces::is_plain`].
    pub fn derive_plain(&mut self, space: usize, ip: IpAddr, path: &str) {
        let KeySpace {
            plain_parts,
            name,
            carried,
            asked,
            ..
        } = &mut self.spaces[space];
        *asked += 1;
        name.clear();
        for (index, part) in plain_parts.iter().flatten() {
            carried[*index] += 1;
            match (part, ip) {
                (Part::Ip, IpAddr::V4(ip)) => push_part(name, Some(part), &ip.octets()),
                (Part::Ip, IpAddr::V6(ip)) => push_part(name, Some(part), &ip.octets()),
                _ => push_part(name, Some(part), path.as_bytes()),
            }
        }
    }

    /// The name of the key that was derived last.
    pub fn name(&self, space: usize) -> &[u8] {
        &self.spaces[space].name
    }

    pub fn carried(&self, space: usize) -> CarriedParts {
        let space = &self.spaces[space];
        let never = space.key.all().zip(&space.carried);
        let never = never.filter(|(part, count)| **count == 0 && !part.is_always_present());
        CarriedParts {
            never: never.map(|(part, _)| part.clone()).collect(),
            asked: space.asked,
            lacked: space.lacked,
        }
    }
}

impl KeySpace {
    fn derive(&mut self, facts: &Facts<'_>) {
        let KeySpace {
            key,
            name,
            carried,
            lacked,
            ..
        } = self;
        name.clear();
        let mut lacks = false;
        let derived = key.each_part(facts, self.missing, |part, value| {
            let index = part.and_then(|part| key.all().position(|one| std::ptr::eq(one, part)));
            match index {
                Some(index) => carried[index] += 1,
                None => lacks = true,
            }
            push_part(name, part, value);
        });
        self.asked += 1;
        *lacked += u64::from(lacks || derived.is_err());
        self.derived = derived;
    }
}

/// The parts of the key of a request without headers. `None` if they vary, or if they are others
/// than the address and the path.
fn plain_parts(key: &Key, sources: &ApiKeySources) -> Option<Vec<(usize, Part)>> {
    let in_query = sources.reads_query();
    let is_absent = |part: &Part| match part {
        Part::Header(_) | Part::Cookie(_) => true,
        Part::ApiKey => !in_query,
        _ => false,
    };
    let mut taken = Vec::new();
    let mut before = 0;
    for part in &key.parts {
        let nth = part.0.iter().position(|one| !is_absent(one))?;
        match &part.0[nth] {
            one @ (Part::Ip | Part::Path) => taken.push((before + nth, one.clone())),
            _ => return None,
        }
        before += part.0.len();
    }
    Some(taken)
}

fn push_part(name: &mut Vec<u8>, part: Option<&Part>, value: &[u8]) {
    let Some(part) = part else {
        name.push(MISSING);
        return;
    };
    name.push(part.kind());
    if !matches!(part, Part::Ip) {
        push_text(name, part.name().as_bytes());
    }
    push_text(name, value);
}

fn push_text(name: &mut Vec<u8>, text: &[u8]) {
    name.extend_from_slice(&(text.len() as u32).to_le_bytes());
    name.extend_from_slice(text);
}

/// The leading bits of an address that make one client.
#[derive(Clone, Copy, Debug)]
pub struct Prefixes {
    pub ipv4: u8,
    pub ipv6: u8,
}

/// Writes a name for people: `192.0.2.7`, `2001:db8::/64`, `203.0.113.9 /search`.
pub fn display_name(name: &[u8], prefixes: Prefixes) -> String {
    let mut texts = Vec::new();
    let mut left = name;
    while let Some((&kind, rest)) = left.split_first() {
        left = rest;
        if kind == MISSING {
            texts.push("(none)".to_owned());
            continue;
        }
        let is_ip = kind == Part::Ip.kind();
        if !is_ip {
            take_text(&mut left);
        }
        let value = take_text(&mut left);
        texts.push(match address(value).filter(|_| is_ip) {
            Some(IpAddr::V4(ip)) if prefixes.ipv4 < 32 => format!("{ip}/{}", prefixes.ipv4),
            Some(IpAddr::V6(ip)) if prefixes.ipv6 < 128 => format!("{ip}/{}", prefixes.ipv6),
            Some(ip) => ip.to_string(),
            None if kind == Part::Global.kind() => "everyone".to_owned(),
            None => String::from_utf8_lossy(value).into_owned(),
        });
    }
    texts.join(" ")
}

fn take_text<'n>(left: &mut &'n [u8]) -> &'n [u8] {
    let Some((length, rest)) = left.split_first_chunk::<4>() else {
        return std::mem::take(left);
    };
    let length = (u32::from_le_bytes(*length) as usize).min(rest.len());
    let (taken, rest) = rest.split_at(length);
    *left = rest;
    taken
}
