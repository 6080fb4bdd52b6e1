//! The arguments and the reply of the script: many groups of requests in one call, packed.
//!
//! `lua/decide.lua` defines the form. Pure: bytes in, bytes out.

use std::io::Write as _;

#[cfg(feature = "redis")]
use redis::{Cmd, RedisWrite as _};
use smallvec::SmallVec;

use super::{ServerTrouble, StoreError};
use crate::limit::{Algorithm, Charge, Decision, Delay, LimitCheck, Retry, Rule, Verdict, log};

/// The script: six files, joined.
pub const SCRIPT: &str = concat!(
    include_str!("../../lua/log.lua"),
    include_str!("../../lua/lane.lua"),
    include_str!("../../lua/counter.lua"),
    include_str!("../../lua/slots.lua"),
    include_str!("../../lua/calendar.lua"),
    include_str!("../../lua/decide.lua"),
);

/// The packed argument; on the stack for a usual call.
type Packed = SmallVec<[u8; 512]>;
/// Bytes of one verdict in the reply.
const VERDICT_BYTES: usize = 6 + 7 + 7 + 7 + 6;
/// Bytes of a log's head, which may take the place of a verdict.
const HEAD_BYTES: usize = 57;
/// Bytes of the precision behind the head of a log whose precision is over a microsecond.
const PRECISION_BYTES: usize = 6;
/// The first value of a group's reply: the server refused the write.
const REFUSED: u64 = 2;
/// The first value of a group's reply: all is granted, and heads of logs follow.
const HEADS: u64 = 3;
/// The whole reply of a group: the boundaries that were sent do not fit the store's clock, and
/// nothing was written.
const ASK_AGAIN: u64 = 4;
/// The first value of a group's reply: the request is charged and must be held.
const BOOKED: u64 = 5;
/// -1 and -2 in seven bytes.
const NEVER: u64 = 0x00ff_ffff_ffff_ffff;
const RELEASED: u64 = 0x00ff_ffff_ffff_fffe;

/// How a call names the script.
#[derive(Clone, Copy, Debug)]
pub enum ScriptName<'s> {
    Hash(&'s str),
    /// By its text; the server learns it.
    Text,
}

#[derive(Clone, Copy, Debug)]
pub struct ScriptCall<'s> {
    pub script: ScriptName<'s>,
    pub prefix: &'s str,
    /// The name of the worker that holds slots.
    pub holder: u64,
    /// The time of the call; the server's clock if `None`.
    pub now_us: Option<u64>,
    /// The server's clock as the caller knows it, microseconds since the Unix epoch. Only calendar
    /// windows need it: their boundaries follow it.
    pub store_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Decides so many equal requests: the first ones that fit are granted.
    Charge(u16),
    /// Decides one request. It is held instead of denied if its limits hold requests, and the wait
    /// is not above this, microseconds.
    Book(u64),
    /// Reports how many slots are held, and asks for none.
    Report,
    /// Takes back units that were not used; `extra` names them.
    Refund,
    /// Charges units that were used beyond the cost, even above the limit.
    Settle,
    /// Takes back units of the key, oldest first, whichever charge they are of.
    RefundOldest,
}

#[derive(Clone, Copy, Debug)]
pub struct Group<'c> {
    pub operation: Operation,
    pub charge: &'c Charge,
    /// One number for each item. Charging a log: how far ahead to stamp, microseconds. Charging or
    /// reporting slots: the units held now. Giving back: the stamp. Missing numbers are 0.
    pub extra: &'c [u64],
}

impl Operation {
    /// The longest wait of a request that may be held, microseconds; 0 for all others.
    fn longest_us(self) -> u64 {
        match self {
            Operation::Book(longest_us) => longest_us,
            _ => 0,
        }
    }
}

impl<'c> Group<'c> {
    pub fn one(charge: &'c Charge) -> Group<'c> {
        Group {
            operation: Operation::Charge(1),
            charge,
            extra: &[],
        }
    }
}

/// Writes the command that does `groups`, in place of what `cmd` holds.
#[cfg(feature = "redis")]
pub fn write<'c>(
    cmd: &mut Cmd,
    call: ScriptCall<'_>,
    groups: impl Iterator<Item = Group<'c>> + Clone,
) {
    let items: usize = groups.clone().map(|group| group.charge.len()).sum();
    let (verb, script) = match call.script {
        ScriptName::Hash(hash) => ("EVALSHA", hash),
        ScriptName::Text => ("EVAL", SCRIPT),
    };
    cmd.clear();
    let fixed = [verb.len(), script.len(), 80];
    cmd.reserve_space_for_args(fixed.into_iter().chain(std::iter::repeat_n(96, items + 3)));
    cmd.write_arg(verb.as_bytes());
    cmd.write_arg(script.as_bytes());
    cmd.write_arg(itoa::Buffer::new().format(items).as_bytes());
    let mut packed = Packed::new();
    let rules = rules_of(groups.clone());
    let how_many = u16::try_from(rules.len()).unwrap_or(u16::MAX);
    packed.extend_from_slice(&how_many.to_le_bytes());
    rules.iter().for_each(|rule| pack_rule(&mut packed, rule));
    for group in groups {
        let longest_us = group.operation.longest_us();
        let (operation, count) = match group.operation {
            Operation::Charge(count) => (0, count),
            Operation::Book(_) => (4, 1),
            Operation::Report => (0, 1),
            Operation::Refund => (1, 0),
            Operation::Settle => (2, 0),
            Operation::RefundOldest => (3, 0),
        };
        let many = u16::try_from(group.charge.len()).unwrap_or(u16::MAX);
        packed.push(operation);
        packed.extend_from_slice(&many.to_le_bytes());
        packed.extend_from_slice(&count.to_le_bytes());
        for (index, item) in group.charge.iter().enumerate() {
            write_pieces(cmd, key_of(call.prefix, item, &item.tag.text()));
            let rule = place_of(&item.window.rule, &rules).unwrap_or(u16::MAX);
            let [low, high] = rule.to_le_bytes();
            let extra = group.extra.get(index).copied().unwrap_or(0);
            packed.extend_from_slice(&[low, high]);
            match item.boundaries(call.store_us) {
                None if longest_us > 0
                    && let Some(delay) = item.delay_within(longest_us) =>
                {
                    pack_delay(&mut packed, item.cost, delay);
                }
                None if (item.cost, extra) == (1, 0) => packed.push(0),
                None => {
                    packed.push(1);
                    pack_u48(&mut packed, item.cost);
                    pack_u48(&mut packed, extra);
                }
                Some(boundaries) => {
                    packed.push(2);
                    pack_u56(&mut packed, item.cost);
                    pack_u48(&mut packed, extra);
                    pack_u56(&mut packed, boundaries.end_us);
                    pack_u56(&mut packed, boundaries.next_end_us);
                }
            }
        }
    }
    match call.now_us {
        Some(now_us) => cmd.write_arg(itoa::Buffer::new().format(now_us).as_bytes()),
        None => cmd.write_arg(b""),
    }
    cmd.write_arg(&call.holder.to_le_bytes());
    cmd.write_arg(&packed);
}

#[cfg(feature = "redis")]
fn write_pieces<const N: usize>(cmd: &mut Cmd, pieces: [&[u8]; N]) {
    let mut argument = cmd.writer_for_next_arg();
    for piece in pieces {
        // Writing to a command in memory does not fail.
        let _ = argument.write_all(piece);
    }
}

pub fn store_key(prefix: &str, item: &LimitCheck) -> Vec<u8> {
    key_of(prefix, item, &item.tag.text()).concat()
}

/// A key in pieces: `<prefix>{<tag>}<limit>.<fp>`, or `<prefix>{<slot>}<limit>.<fp>.<tag>` if the
/// limit names the slot. The braces keep one identity's limits in one slot of a cluster.
fn key_of<'k>(prefix: &'k str, item: &'k LimitCheck, tag: &'k [u8]) -> [&'k [u8]; 7] {
    let suffix = item.window.store_suffix.as_bytes();
    let prefix = prefix.as_bytes();
    match &item.limit.slot {
        None => [prefix, b"{", tag, b"}", suffix, b"", b""],
        Some(slot) => [prefix, b"{", slot.as_bytes(), b"}", suffix, b".", tag],
    }
}

type RuleTable<'r> = SmallVec<[&'r Rule; 8]>;

fn rules_of<'c>(groups: impl Iterator<Item = Group<'c>>) -> RuleTable<'c> {
    let mut rules = RuleTable::new();
    for item in groups.flat_map(|group| group.charge) {
        if place_of(&item.window.rule, &rules).is_none() {
            rules.push(&item.window.rule);
        }
    }
    rules
}

fn place_of(rule: &Rule, rules: &RuleTable<'_>) -> Option<u16> {
    let place = rules.iter().position(|known| *known == rule)?;
    u16::try_from(place).ok()
}

fn pack_rule(packed: &mut Packed, rule: &Rule) {
    packed.push(match rule.algorithm {
        Algorithm::Log => 0,
        Algorithm::Counter => 1,
        Algorithm::Slots => 2,
        Algorithm::Calendar => 3,
    });
    pack_u48(packed, rule.units);
    pack_u48(packed, rule.window_us);
    pack_u48(packed, rule.precision_us);
}

fn pack_delay(packed: &mut Packed, cost: u64, delay: Delay) {
    match cost {
        1 => packed.push(3),
        _ => {
            packed.push(4);
            pack_u48(packed, cost);
        }
    }
    pack_u48(packed, delay.longest_us);
    packed.extend_from_slice(&delay.queue.to_le_bytes());
}

/// 2^48 us are 8.9 years, and a cost of 2^48 - 1 is above every limit but those of calendar
/// windows.
fn pack_u48(packed: &mut Packed, number: u64) {
    let number = number.min((1 << 48) - 1);
    packed.extend_from_slice(&number.to_le_bytes()[..6]);
}

/// Lua's numbers hold all integers below 2^53 exactly.
fn pack_u56(packed: &mut Packed, number: u64) {
    let number = number.min((1 << 53) - 1);
    packed.extend_from_slice(&number.to_le_bytes()[..7]);
}

/// A reply that is being read: its head, then an outcome for each group, then the refusal.
#[derive(Debug)]
pub struct Reply<'r> {
    rest: &'r [u8],
    /// The store's time at the call, microseconds.
    pub at_us: u64,
    /// Keys that held foreign data and were begun anew.
    pub begun_anew: u16,
}

/// How a group ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupEnd<T = ()> {
    Done(T),
    /// The server refused to write it.
    Refused,
    /// The boundaries of a calendar window did not fit the store's clock. Nothing was written. The
    /// same group fits once [`Reply::at_us`] is known.
    AskAgain,
}

impl<T> GroupEnd<T> {
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> GroupEnd<U> {
        match self {
            GroupEnd::Done(result) => GroupEnd::Done(change(result)),
            GroupEnd::Refused => GroupEnd::Refused,
            GroupEnd::AskAgain => GroupEnd::AskAgain,
        }
    }

    /// The result, if the group was done.
    pub fn done(self) -> Option<T> {
        match self {
            GroupEnd::Done(result) => Some(result),
            GroupEnd::Refused | GroupEnd::AskAgain => None,
        }
    }
}

/// The decisions on a group of equal requests: the first `granted` of them may pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupOutcome {
    pub granted: u16,
    /// The decision on the first granted request.
    pub allowed: Option<Decision>,
    /// The decision on each denied request: it is the same for all.
    pub denied: Option<Decision>,
}

impl GroupOutcome {
    /// The decision on the group's first request, which is its only one.
    #[inline]
    pub fn take(&mut self) -> Option<Decision> {
        match self.granted {
            0 => self.denied.take(),
            _ => self.allowed.take(),
        }
    }

    /// The decision on the `index`th request, from 0. Each granted request finds what those before
    /// it have left.
    pub fn decision(&self, index: u16, charge: &Charge) -> Option<Decision> {
        if index >= self.granted {
            return self.denied.clone();
        }
        let mut decision = self.allowed.clone()?;
        for (verdict, item) in decision.verdicts.iter_mut().zip(charge) {
            let before = item.cost * u64::from(index);
            verdict.used += before;
            verdict.remaining = verdict.remaining.saturating_sub(before);
        }
        Some(decision)
    }
}

impl<'r> Reply<'r> {
    pub fn read(bytes: &'r [u8]) -> Result<Reply<'r>, StoreError> {
        let mut reply = Reply {
            rest: bytes,
            at_us: 0,
            begun_anew: 0,
        };
        reply.at_us = reply.number(7)?;
        reply.begun_anew = u16::try_from(reply.number(2)?).unwrap_or(u16::MAX);
        Ok(reply)
    }

    /// The next group's outcome, of `count` requests.
    pub fn outcome(
        &mut self,
        charge: &Charge,
        count: u16,
    ) -> Result<GroupEnd<GroupOutcome>, StoreError> {
        let kind = self.number(1)?;
        if kind == HEADS {
            return Ok(GroupEnd::Done(GroupOutcome {
                granted: count,
                allowed: Some(self.read_heads(charge, count)?),
                denied: None,
            }));
        }
        let granted = u16::try_from(self.number(2)?).unwrap_or(u16::MAX);
        match kind {
            REFUSED => return Ok(GroupEnd::Refused),
            ASK_AGAIN => return Ok(GroupEnd::AskAgain),
            BOOKED => return self.read_booked(charge).map(GroupEnd::Done),
            _ => {}
        }
        let allowed = (granted > 0)
            .then(|| self.decision(charge, true))
            .transpose()?;
        let denied = (granted < count)
            .then(|| self.decision(charge, false))
            .transpose()?;
        Ok(GroupEnd::Done(GroupOutcome {
            granted,
            allowed,
            denied,
        }))
    }

    /// The end of the next group, which gives back or settles.
    pub fn end(&mut self) -> Result<GroupEnd, StoreError> {
        Ok(match self.number(1)? {
            1 => GroupEnd::Done(()),
            ASK_AGAIN => GroupEnd::AskAgain,
            _ => GroupEnd::Refused,
        })
    }

    fn decision(&mut self, charge: &Charge, allowed: bool) -> Result<Decision, StoreError> {
        if self.rest.len() < charge.len() * VERDICT_BYTES {
            return Err(StoreError::Garbled);
        }
        let mut verdicts = SmallVec::with_capacity(charge.len());
        for item in charge {
            let used = self.number(6)?;
            let taken = if allowed { item.cost } else { 0 };
            verdicts.push(Verdict {
                used,
                remaining: item.window.rule.units.saturating_sub(used + taken),
                retry: match self.number(7)? {
                    0 => Retry::Now,
                    NEVER => Retry::Never,
                    RELEASED => Retry::Released,
                    us => Retry::After(us),
                },
                reset_us: self.number(7)?,
                next_us: self.number(7)?,
                stamp: self.number(6)?,
            });
        }
        Ok(Decision {
            allowed,
            at_us: self.at_us,
            spread_us: 0,
            verdicts,
        })
    }

    fn read_booked(&mut self, charge: &Charge) -> Result<GroupOutcome, StoreError> {
        let mut booked = self.decision(charge, true)?;
        for verdict in &mut booked.verdicts {
            if let Retry::After(us) = verdict.retry {
                verdict.retry = Retry::Booked(us);
            }
        }
        Ok(GroupOutcome {
            granted: 1,
            allowed: Some(booked),
            denied: None,
        })
    }

    /// The decision on the first of `count` equal requests, all granted, from the heads of their
    /// logs.
    fn read_heads(&mut self, charge: &Charge, count: u16) -> Result<Decision, StoreError> {
        let mut verdicts = SmallVec::with_capacity(charge.len());
        for item in charge {
            let rule = &item.window.rule;
            let precision_bytes = match rule.precision_us {
                1 => 0,
                _ => PRECISION_BYTES,
            };
            if self.rest.len() < HEAD_BYTES + precision_bytes {
                return Err(StoreError::Garbled);
            }
            // Magic, capacity, head and count say how the log is kept.
            self.rest = &self.rest[14..];
            let (base, total, _) = (self.number(4)?, self.number(4)?, self.number(4)?);
            let (first, own_us) = (self.number(6)?, self.number(7)?);
            let (newest, _, _) = (self.number(7)?, self.number(7)?, self.number(4)?);
            self.rest = &self.rest[precision_bytes..];
            let after = u64::from((total as u32).wrapping_sub(base as u32));
            let used = after.saturating_sub(item.cost * u64::from(count));
            let age = newest.wrapping_sub(first) & (log::modulus(rule) - 1);
            let left_us = |stamp: u64| {
                let until_us = stamp.saturating_mul(rule.precision_us) + rule.window_us;
                until_us.saturating_sub(own_us)
            };
            verdicts.push(Verdict {
                used,
                remaining: rule.units.saturating_sub(used + item.cost),
                retry: Retry::Now,
                reset_us: left_us(newest),
                next_us: left_us(newest.saturating_sub(age)),
                stamp: newest & (log::STAMPS - 1),
            });
        }
        Ok(Decision {
            allowed: true,
            at_us: self.at_us,
            spread_us: 0,
            verdicts,
        })
    }

    /// After the last group: why the server refused to write; `None` if it did not.
    pub fn refusal(&self) -> Option<ServerTrouble> {
        if self.rest.is_empty() {
            return None;
        }
        Some(ServerTrouble::parse(&String::from_utf8_lossy(self.rest)))
    }

    fn number(&mut self, bytes: usize) -> Result<u64, StoreError> {
        let (number, rest) = self
            .rest
            .split_at_checked(bytes)
            .ok_or(StoreError::Garbled)?;
        self.rest = rest;
        let mut whole = [0; 8];
        whole[..bytes].copy_from_slice(number);
        Ok(u64::from_le_bytes(whole))
    }
}
