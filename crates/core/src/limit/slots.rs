//! Slots: requests under way at once, as one process holds them. Twin of `lua/slots.lua`, which
//! adds what other holders have, and leases.
//!
//! A unit is held, not spent: it counts until it is given back. Nothing here expires, since who
//! holds it lives in the same process.

/// Units held by one key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slots {
    held: u32,
}

impl Slots {
    /// Units held now.
    pub fn used(&self) -> u64 {
        u64::from(self.held)
    }

    /// Takes units.
    pub fn charge(&mut self, cost: u64) {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        self.held = self.held.saturating_add(cost);
    }

    /// Lets go of units.
    pub fn give_back(&mut self, cost: u64) {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        self.held = self.held.saturating_sub(cost);
    }
}
