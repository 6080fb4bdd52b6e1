//! Slots: concurrent requests, as one process counts them. Twin of `lua/slots.lua`, which adds the
//! counts of other processes, and leases.
//!
//! A unit is held until it is given back. Nothing expires here, since the holder lives in the same
//! process.

/// Units held by one key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slots {
    held: u32,
}

impl Slots {
    pub fn used(&self) -> u64 {
        u64::from(self.held)
    }

    pub fn charge(&mut self, cost: u64) {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        self.held = self.held.saturating_add(cost);
    }

    pub fn give_back(&mut self, cost: u64) {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        self.held = self.held.saturating_sub(cost);
    }
}
