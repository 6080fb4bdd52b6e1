//! What goes to the script and what comes back: many requests in one call, packed.
//!
//! The form is that of `lua/decide.lua`. Pure: bytes in, bytes out.

use redis::Cmd;
use smallvec::SmallVec;

use super::{ServerTrouble, StoreError};
use crate::limit::{Algorithm, Charge, Decision, Item, Retry, Verdict};

/// The script, its three files joined.
pub const SCRIPT: &str = concat!(
    include_str!("../../lua/log.lua"),
    include_str!("../../lua/counter.lua"),
    include_str!("../../lua/decide.lua"),
);

/// Bytes of one item in the packed argument, and of one verdict in the reply.
const ITEM_BYTES: usize = 1 + 4 + 6 + 6 + 6;
const VERDICT_BYTES: usize = 6 + 6 + 7 + 7 + 7;

/// How to name the script.
#[derive(Clone, Copy, Debug)]
pub enum Call<'s> {
    /// By the hash of its text, which the server should know.
    Known(&'s str),
    /// By its text: the server learns it.
    Whole,
}

/// The command that decides `charges`; the server's clock is used unless `now_us` is given.
pub fn encode<'c>(
    call: Call<'_>,
    prefix: &str,
    charges: impl Iterator<Item = &'c Charge> + Clone,
    now_us: Option<u64>,
) -> Cmd {
    let items: usize = charges.clone().map(SmallVec::len).sum();
    let (verb, script) = match call {
        Call::Known(hash) => ("EVALSHA", hash),
        Call::Whole => ("EVAL", SCRIPT),
    };
    let mut cmd = Cmd::with_capacity(items + 5, script.len() + items * 96 + 64);
    cmd.arg(verb).arg(script).arg(items);
    let mut key = Vec::with_capacity(128);
    let mut packed = Vec::with_capacity(items * (ITEM_BYTES + 1));
    for charge in charges {
        packed.push(u8::try_from(charge.len()).unwrap_or(u8::MAX));
        for item in charge {
            store_key(&mut key, prefix, item);
            cmd.arg(&key[..]);
            pack(&mut packed, item);
        }
    }
    match now_us {
        Some(now_us) => cmd.arg(now_us),
        None => cmd.arg(""),
    };
    cmd.arg(&packed[..]);
    cmd
}

/// `<prefix>{<tag>}<limit>.<fp>`: the braces keep one identity's limits in one slot.
fn store_key(key: &mut Vec<u8>, prefix: &str, item: &Item) {
    key.clear();
    key.extend_from_slice(prefix.as_bytes());
    key.push(b'{');
    key.extend_from_slice(&item.tag.text());
    key.push(b'}');
    key.extend_from_slice(item.limit.store_suffix.as_bytes());
}

fn pack(packed: &mut Vec<u8>, item: &Item) {
    let rule = &item.limit.rule;
    packed.push(match rule.algorithm {
        Algorithm::Log => 0,
        Algorithm::Counter => 1,
    });
    let units = u32::try_from(rule.units).unwrap_or(u32::MAX);
    packed.extend_from_slice(&units.to_le_bytes());
    for number in [rule.window_us, rule.precision_us, item.cost] {
        // 2^48 us are 8.9 years; a cost above any limit stays above it.
        let number = number.min((1 << 48) - 1);
        packed.extend_from_slice(&number.to_le_bytes()[..6]);
    }
}

/// A reply being read: its head, then one decision for each request, then the refusal.
#[derive(Debug)]
pub struct Reply<'r> {
    rest: &'r [u8],
    at_us: u64,
    /// Keys that held something not ours and were begun anew.
    pub begun_anew: u16,
}

impl<'r> Reply<'r> {
    /// Reads the reply's head.
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

    /// The next request's decision; `None` if the server refused to write it.
    pub fn decision(&mut self, items: usize) -> Result<Option<Decision>, StoreError> {
        let allowed = match self.number(1)? {
            2 => return Ok(None),
            answer => answer == 1,
        };
        let mut verdicts = SmallVec::with_capacity(items);
        if self.rest.len() < items * VERDICT_BYTES {
            return Err(StoreError::Garbled);
        }
        for _ in 0..items {
            verdicts.push(Verdict {
                used: self.number(6)?,
                remaining: self.number(6)?,
                retry: match self.number(7)? {
                    0 => Retry::Now,
                    // -1 in seven bytes.
                    0x00ff_ffff_ffff_ffff => Retry::Never,
                    us => Retry::After(us),
                },
                reset_us: self.number(7)?,
                next_us: self.number(7)?,
            });
        }
        Ok(Some(Decision {
            allowed,
            at_us: self.at_us,
            verdicts,
        }))
    }

    /// After the last decision: why the server refused to write, if it did.
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
