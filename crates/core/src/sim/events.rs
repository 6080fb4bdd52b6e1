//! What happens in a simulated world, and when.

use std::cmp::Ordering;

use super::server::Effect;
use crate::store::StoreError;
use crate::store::redis::stepped::{FromServer, Sent, TakenDenials, ToldBan};

#[derive(Debug)]
pub(super) enum Event {
    /// A process starts.
    Boot {
        place: usize,
    },
    Ready {
        proxy: usize,
    },
    Wake {
        proxy: usize,
    },
    /// A message arrives at the store.
    Arrive {
        proxy: usize,
        sent: Sent,
    },
    /// An answer arrives at a proxy.
    Return {
        proxy: usize,
        answer: Answer,
    },
    Broken {
        proxy: usize,
        link: u64,
        kind: StoreError,
    },
    /// A client sends a request.
    Ask {
        client: usize,
    },
    /// A client leaves before its request is answered.
    Leave {
        proxy: usize,
        id: u64,
    },
    /// A held request may pass.
    Pass {
        proxy: usize,
        id: u64,
    },
    /// An admitted request ends.
    End {
        proxy: usize,
        id: u64,
    },
    Stall {
        until_us: u64,
    },
    CutOff {
        proxy: usize,
    },
    GoAway,
    ComeBack,
    Mishap,
    Replicate,
    Moved {
        proxy: usize,
    },
    Reload {
        proxy: usize,
    },
    Drain {
        proxy: usize,
    },
    /// The store has been back for a while.
    LookBack,
    /// A proxy tells the denials of limits with bans.
    Tell {
        proxy: usize,
    },
    Told {
        proxy: usize,
        denials: TakenDenials,
    },
    BansBegin {
        proxy: usize,
        denials: TakenDenials,
        store_us: u64,
        answer: Option<BansAnswer>,
    },
    /// An operator sets an override.
    Order,
    /// What is allowed has changed.
    Allow,
}

/// The version of the overrides, and the bans that begin.
pub(super) type BansAnswer = (u64, Vec<Option<ToldBan>>);

/// An answer of the store on its way.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) link: u64,
    pub(super) call: u64,
    pub(super) message: FromServer,
    pub(super) effects: Vec<Effect>,
    /// The store had been emptied, and the proxy did not know.
    pub(super) is_fooled: bool,
    /// When the store gave it.
    pub(super) at_us: u64,
}

#[derive(Debug)]
pub(super) struct Scheduled {
    pub(super) at_us: u64,
    pub(super) number: u64,
    pub(super) event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Scheduled) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Scheduled) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Scheduled) -> Ordering {
        (self.at_us, self.number).cmp(&(other.at_us, other.number))
    }
}

/// One line of the trace.
#[derive(Clone, Debug)]
pub(super) struct TraceLine {
    pub(super) at_us: u64,
    /// `None` for what concerns every budget.
    pub(super) budget: Option<u128>,
    pub(super) text: String,
}

/// Figures of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) requests: u64,
    pub(super) admitted: u64,
    pub(super) denied: u64,
    pub(super) given_up: u64,
    pub(super) alone: u64,
    pub(super) waits_checked: u64,
    /// The fullest window, thousandths of what it may hold.
    pub(super) fullest: u64,
    /// The most units that are conceded to a budget.
    pub(super) conceded: u64,
}

/// How the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Well,
    Down,
    Frozen,
    Refusing,
}
