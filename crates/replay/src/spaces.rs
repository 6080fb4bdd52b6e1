//! Keys as a log has them: each request's is derived once, however many limits count by it, and
//! what parts no line ever carried is remembered.
//!
//! Pure. A name is its parts one after the other, each with its kind and its lengths, so that no
//! two keys have one name.

use std::net::{IpAddr, Ipv4Addr};

use crate::limit::Missing;
use crate::limit::key::{ApiKeySources, Derived, Facts, Key, Part};

/// Every way in which requests are told apart.
#[derive(Debug)]
pub struct Spaces {
    spaces: Vec<Space>,
    request: u64,
}

/// One of them.
#[derive(Debug)]
struct Space {
    key: Key,
    missing: Missing,
    /// What is taken of a request without headers, with its place in `Key::all`, where that is
    /// sure.
    bare: Option<Vec<(usize, Part)>>,
    /// The request that `name` and `derived` are of.
    request: u64,
    name: Vec<u8>,
    derived: Result<(), Derived>,
    /// Requests that carried each part, in the order of `Key::all`.
    carried: Vec<u64>,
    /// Requests in which some part was missing.
    lacked: u64,
    asked: u64,
}

/// What the log had of a key.
#[derive(Clone, Debug)]
pub struct Carried {
    /// Parts that no request had, in the key's order.
    pub never: Vec<Part>,
    /// Requests that asked.
    pub asked: u64,
    /// Those that lacked a part, and were what `missing` says.
    pub lacked: u64,
}

/// The kind of a part that is missing.
const MISSING: u8 = 0;

impl Spaces {
    /// For these keys.
    pub fn new(spaces: &[(Key, Missing)], sources: &ApiKeySources) -> Spaces {
        let space = |(key, missing): &(Key, Missing)| Space {
            key: key.clone(),
            missing: *missing,
            bare: bare(key, sources),
            request: 0,
            name: Vec::new(),
            derived: Ok(()),
            carried: vec![0; key.all().count()],
            lacked: 0,
            asked: 0,
        };
        Spaces {
            spaces: spaces.iter().map(space).collect(),
            request: 0,
        }
    }

    /// Takes the long way to every key.
    #[cfg(test)]
    pub fn take_the_long_way(&mut self) {
        for space in &mut self.spaces {
            space.bare = None;
        }
    }

    /// Another request comes.
    pub fn begin(&mut self) {
        self.request += 1;
    }

    /// Derives one of its keys, unless that is done.
    pub fn derive(&mut self, space: usize, facts: &Facts<'_>) -> Result<(), Derived> {
        let space = &mut self.spaces[space];
        if space.request != self.request {
            space.request = self.request;
            space.derive(facts);
        }
        space.derived
    }

    /// Whether a request without headers has its key from its address and its path alone.
    pub fn is_bare(&self, space: usize) -> bool {
        self.spaces[space].bare.is_some()
    }

    /// Whether it is then the address and nothing else.
    pub fn is_by_ip(&self, space: usize) -> bool {
        let bare = self.spaces[space].bare.as_deref();
        matches!(bare, Some([(_, Part::Ip)]))
    }

    /// Notes a request without headers, where [`Spaces::is_bare`].
    pub fn pass_bare(&mut self, space: usize) {
        self.spaces[space].pass_bare();
    }

    /// The name of that request's key.
    pub fn bare_name(&mut self, space: usize, ip: Ipv4Addr, path: &str) -> &[u8] {
        let space = &mut self.spaces[space];
        space.name_bare(ip.into(), path);
        &space.name
    }

    /// The name that was derived.
    pub fn name(&self, space: usize) -> &[u8] {
        &self.spaces[space].name
    }

    /// What the log had of a key.
    pub fn carried(&self, space: usize) -> Carried {
        let space = &self.spaces[space];
        let never = space.key.all().zip(&space.carried);
        let never = never.filter(|(part, count)| **count == 0 && !part.is_always_present());
        Carried {
            never: never.map(|(part, _)| part.clone()).collect(),
            asked: space.asked,
            lacked: space.lacked,
        }
    }
}

impl Space {
    fn pass_bare(&mut self) {
        for (place, _) in self.bare.iter().flatten() {
            self.carried[*place] += 1;
        }
        self.asked += 1;
    }

    fn name_bare(&mut self, ip: IpAddr, path: &str) {
        let name = &mut self.name;
        name.clear();
        for (_, part) in self.bare.iter().flatten() {
            match (part, ip) {
                (Part::Ip, IpAddr::V4(ip)) => add(name, Some(part), &ip.octets()),
                (Part::Ip, IpAddr::V6(ip)) => add(name, Some(part), &ip.octets()),
                _ => add(name, Some(part), path.as_bytes()),
            }
        }
    }

    fn derive(&mut self, facts: &Facts<'_>) {
        if self.bare.is_some() && facts.headers.is_empty() {
            self.pass_bare();
            self.name_bare(facts.ip, facts.path.as_str());
            self.derived = Ok(());
            return;
        }
        let Space {
            key,
            name,
            carried,
            lacked,
            ..
        } = self;
        name.clear();
        let mut lacks = false;
        let derived = key.each_part(facts, self.missing, |part, value| {
            let taken = part.and_then(|part| key.all().position(|one| std::ptr::eq(one, part)));
            match taken {
                Some(place) => carried[place] += 1,
                None => lacks = true,
            }
            add(name, part, value);
        });
        self.asked += 1;
        *lacked += u64::from(lacks || derived.is_err());
        self.derived = derived;
    }
}

/// The parts of a key that a request without headers has. Nothing where they are not always the
/// same ones, or others than its address and its path.
fn bare(key: &Key, sources: &ApiKeySources) -> Option<Vec<(usize, Part)>> {
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

fn add(name: &mut Vec<u8>, part: Option<&Part>, value: &[u8]) {
    let Some(part) = part else {
        name.push(MISSING);
        return;
    };
    name.push(part.kind());
    if !matches!(part, Part::Ip) {
        let called = part.name();
        name.extend_from_slice(&(called.len() as u32).to_le_bytes());
        name.extend_from_slice(called.as_bytes());
    }
    name.extend_from_slice(&(value.len() as u32).to_le_bytes());
    name.extend_from_slice(value);
}

/// What a name says, for people: `192.0.2.7`, `2001:db8::/64`, `203.0.113.9 /search`.
pub fn shown(name: &[u8], (ipv4_prefix, ipv6_prefix): (u8, u8)) -> String {
    let mut texts = Vec::new();
    let mut left = name;
    while let Some((kind, rest)) = left.split_first() {
        left = rest;
        if *kind == MISSING {
            texts.push("(none)".to_owned());
            continue;
        }
        if *kind != Part::Ip.kind() {
            take(&mut left);
        }
        let value = take(&mut left);
        let ip = if *kind == Part::Ip.kind() {
            address(value)
        } else {
            None
        };
        texts.push(match ip {
            Some(ip @ IpAddr::V4(_)) if ipv4_prefix < 32 => format!("{ip}/{ipv4_prefix}"),
            Some(ip @ IpAddr::V6(_)) if ipv6_prefix < 128 => format!("{ip}/{ipv6_prefix}"),
            Some(ip) => ip.to_string(),
            None if *kind == Part::Global.kind() => "everyone".to_owned(),
            None => String::from_utf8_lossy(value).into_owned(),
        });
    }
    texts.join(" ")
}

fn take<'n>(left: &mut &'n [u8]) -> &'n [u8] {
    let Some((length, rest)) = left.split_first_chunk::<4>() else {
        return std::mem::take(left);
    };
    let length = (u32::from_le_bytes(*length) as usize).min(rest.len());
    let (taken, rest) = rest.split_at(length);
    *left = rest;
    taken
}

fn address(value: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(value) {
        return Some(octets.into());
    }
    <[u8; 16]>::try_from(value).ok().map(IpAddr::from)
}
