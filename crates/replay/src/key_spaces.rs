//! Key spaces: the keys of a log. Limits with one key share a key space, which also knows which
//! parts the log's lines carried.
//!
//! The name of a key is its parts one after the other, each with its kind and its lengths. So no
//! two keys have one name.

use std::net::IpAddr;

use crate::client::ClientIp;
use crate::limit::Missing;
use crate::limit::key::{Derived, Facts, Key, Part, address};

#[derive(Clone, Debug)]
pub struct KeySpace {
    pub key: Key,
    pub missing: Missing,
    /// The name of the key that was derived last.
    pub name: Vec<u8>,
    /// Whether some request carried each part, in the order of `Key::all`.
    carried: Vec<bool>,
    /// Whether some request lacked a part, for which `missing` decided.
    pub lacked: bool,
    /// Whether some request asked for the key.
    pub asked: bool,
}

const MISSING: u8 = 0;

impl KeySpace {
    pub fn new(key: &Key, missing: Missing) -> KeySpace {
        KeySpace {
            key: key.clone(),
            missing,
            name: Vec::new(),
            carried: vec![false; key.all().count()],
            lacked: false,
            asked: false,
        }
    }

    /// Parts that no request had, in the key's order.
    pub fn never_carried(&self) -> impl Iterator<Item = &Part> {
        let parts = self.key.all().zip(&self.carried);
        let never = parts.filter(|(part, carried)| !**carried && !part.is_always_present());
        never.map(|(part, _)| part)
    }

    pub fn derive(&mut self, facts: &Facts<'_>) -> Result<(), Derived> {
        let KeySpace {
            key, name, carried, ..
        } = self;
        name.clear();
        let mut lacks = false;
        let derived = key.each_part(facts, self.missing, |part, value| {
            let index = part.and_then(|part| key.all().position(|one| std::ptr::eq(one, part)));
            match index {
                Some(index) => carried[index] = true,
                None => lacks = true,
            }
            push_part(name, part, value);
        });
        self.asked = true;
        self.lacked |= lacks || derived.is_err();
        derived
    }
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

/// Writes a name for people: `192.0.2.7`, `2001:db8::/64`, `203.0.113.9 /search`.
pub fn display_name(name: &[u8], client_ip: &ClientIp) -> String {
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
        let (ipv4, ipv6) = (client_ip.ipv4_prefix, client_ip.ipv6_prefix);
        texts.push(match address(value).filter(|_| is_ip) {
            Some(IpAddr::V4(ip)) if ipv4 < 32 => format!("{ip}/{ipv4}"),
            Some(IpAddr::V6(ip)) if ipv6 < 128 => format!("{ip}/{ipv6}"),
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
