//! One proxy process of a simulation: the shipped limiter over the shipped store, with a clock that
//! the simulation moves.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::events::BansAnswer;
use super::plan::{Kind, Plan, PlannedClock, SECOND};
use crate::clock::{self, MonotonicClock};
use crate::config::{self, Config, Secret, StoreKind};
use crate::exchange::admit::{Admission, CheckedClient};
use crate::exchange::limiter::{Limiter, WorkerStore};
use crate::exchange::rejection::Rejection;
use crate::limit::log::STAMPS;
use crate::limit::{Algorithm, KeyHash, Limit, LimitCheck, Verdict};
use crate::store::Store;
use crate::store::overrides::KeyBlock;
use crate::store::recovery::{ProcessName, Recovery};
use crate::store::redis::stepped::{ProcessSetup, SteppedStore, TakenDenials};

const MILLION: i128 = 1_000_000;

thread_local! {
    /// The time of the process that acts now, microseconds.
    static LOCAL_US: Cell<u64> = const { Cell::new(0) };
}

/// The clock of the process that acts now.
fn read() -> Instant {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    *BEGIN.get_or_init(clock::now) + Duration::from_micros(LOCAL_US.get())
}

impl PlannedClock {
    /// The time of the process, when so much time has passed.
    fn local_us(self, now_us: u64) -> u64 {
        let gained = i128::from(now_us) * i128::from(self.drift_ppm) / MILLION;
        (i128::from(now_us) + gained) as u64
    }

    /// The first instant at which the process's clock shows this.
    fn true_us(self, local: Instant) -> u64 {
        let shown = LOCAL_US.replace(0);
        let local_us = local.saturating_duration_since(read()).as_micros() as i128;
        LOCAL_US.set(shown);
        let mut at_us = (local_us * MILLION / (MILLION + i128::from(self.drift_ppm))) as u64;
        while i128::from(self.local_us(at_us)) < local_us {
            at_us += 1;
        }
        at_us
    }
}

type Deciding = Pin<Box<dyn Future<Output = (Admission, Result<(), Rejection>)>>>;

/// A request whose decision is awaited.
pub(super) struct Pending {
    pub(super) id: u64,
    pub(super) client: usize,
    pub(super) since_us: u64,
    deciding: Deciding,
}

/// A request that has its decision.
pub(super) struct Ended {
    pub(super) id: u64,
    pub(super) client: usize,
    pub(super) since_us: u64,
    pub(super) admission: Admission,
    pub(super) result: Result<(), Rejection>,
}

/// An admitted request under way, or one that is held.
pub(super) struct Running {
    pub(super) client: usize,
    pub(super) admission: Admission,
    pub(super) limiter: Arc<Limiter>,
    pub(super) is_held: bool,
    /// When it passed.
    pub(super) passed_at_us: u64,
}

impl Running {
    /// How much earlier than the whole request each item was charged: in a cluster each node has
    /// charged its own, and the stamp tells when.
    pub(super) fn earlier_us(&self) -> Vec<u64> {
        let admission = &self.admission;
        let whole_us = admission.decision.at_us;
        let items = admission.charge.iter().zip(&admission.decision.verdicts);
        let earlier = |(check, verdict): (&LimitCheck, &Verdict)| {
            let rule = &check.window.rule;
            let is_exact = rule.algorithm == Algorithm::Log && rule.precision_us == 1;
            // Leased and held units are stamped with a later time.
            let is_now = check.limit.lease_us == 0 && admission.wait_us() == 0;
            match is_exact && is_now && !admission.is_local() {
                true => whole_us.wrapping_sub(verdict.stamp) % STAMPS,
                false => 0,
            }
        };
        let earlier = items.map(earlier);
        earlier.map(|us| if us < SECOND { us } else { 0 }).collect()
    }
}

pub(super) struct Proxy {
    pub(super) name: ProcessName,
    pub(super) clock: PlannedClock,
    pub(super) store: SteppedStore,
    pub(super) limiter: Arc<Limiter>,
    pub(super) limits: Vec<Arc<Limit>>,
    pub(super) pending: Vec<Pending>,
    pub(super) running: BTreeMap<u64, Running>,
    /// It takes requests.
    pub(super) serves: bool,
    pub(super) is_dead: bool,
    pub(super) is_draining: bool,
    pub(super) drains_since_us: Option<u64>,
    /// Its breaker is open.
    pub(super) is_away: bool,
    pub(super) stopped_until_us: u64,
    pub(super) cut_off_until_us: u64,
    /// When it acts next by itself.
    pub(super) wake_at_us: Option<u64>,
    /// It lost the store while others had it.
    pub(super) is_alone: bool,
    /// When it lost the store last, or had it again.
    pub(super) lost_at_us: u64,
    /// It has never reached the store, or the store has never told it how many proxies there are.
    pub(super) is_new: bool,
    pub(super) began_us: u64,
    /// It will tell the store of denials.
    pub(super) is_to_tell: bool,
    /// The last answer of the store for each budget.
    pub(super) known: BTreeMap<u128, KnownUse>,
    /// Budgets of which it believed a store that had been emptied.
    pub(super) fooled: BTreeSet<u128>,
}

/// What the store said of a budget, and when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownUse {
    pub(super) used: u64,
    pub(super) at_us: u64,
}

/// The key of a client in a limit. In a cluster the limits of a request lie in several slots.
pub(super) fn tag_of(key: u8, limit: usize) -> KeyHash {
    KeyHash([key + 40 * limit as u8; 16])
}

/// The configuration of the plan.
pub(super) fn config(plan: &Plan, is_reloaded: bool) -> Config {
    let text = plan.config(is_reloaded);
    let (mut config, _) = config::parse_limits("sim.toml", &text, &|_| None)
        .unwrap_or_else(|mistakes| panic!("{mistakes}"));
    config.store.hash_key = Some(Secret([7; 32]));
    for (limit, planned) in config.limits.iter_mut().zip(&plan.limits) {
        assert_eq!(&*limit.name, planned.name, "the order of the limits");
        let refunds = limit.refunds || planned.kind == Kind::Refunds;
        *limit = Arc::new(Limit {
            refunds,
            ..Limit::clone(limit)
        });
    }
    config
}

impl Proxy {
    /// A process that starts at `now_us`; the true time is `unix_us` then.
    pub(super) fn new(
        number: usize,
        clock: PlannedClock,
        config: &Config,
        now_us: u64,
        unix_us: u64,
        nodes: usize,
    ) -> Proxy {
        LOCAL_US.set(clock.local_us(now_us));
        let wall_us = unix_us.saturating_add_signed(clock.off_us);
        let mut name = [number as u8; 16];
        // Names are in no order.
        name[0] = (number as u8).wrapping_mul(101);
        let StoreKind::Redis(server) = &config.store.kind else {
            unreachable!("the plan says Redis");
        };
        let time = MonotonicClock::reading(read, wall_us);
        let seed = number as u64 * 7_919 + 1;
        let store = SteppedStore::new(ProcessSetup {
            clock: time,
            name,
            settings: &config.store,
            server,
            seed,
            nodes,
        });
        let worker = WorkerStore::new(Store::Redis(store.redis.clone()), &store.local);
        Proxy {
            name,
            clock,
            limiter: Limiter::new(config, worker, None),
            limits: config.limits.clone(),
            store,
            pending: Vec::new(),
            running: BTreeMap::new(),
            serves: false,
            is_dead: false,
            is_draining: false,
            drains_since_us: None,
            is_away: false,
            stopped_until_us: 0,
            cut_off_until_us: 0,
            wake_at_us: None,
            is_alone: false,
            lost_at_us: 0,
            is_new: true,
            began_us: now_us,
            is_to_tell: false,
            known: BTreeMap::new(),
            fooled: BTreeSet::new(),
        }
    }

    /// Lets this process act at an instant.
    pub(super) fn act_at(&self, now_us: u64) {
        LOCAL_US.set(self.clock.local_us(now_us));
    }

    pub(super) fn recovery(&self) -> &Arc<Recovery> {
        let recovery = self.store.backing.recovery();
        recovery.expect("a shared store has outages")
    }

    pub(super) fn is_up(&self, now_us: u64) -> bool {
        !self.is_dead && now_us >= self.stopped_until_us
    }

    pub(super) fn reload(&mut self, config: &Config) {
        let worker = WorkerStore::new(Store::Redis(self.store.redis.clone()), &self.store.local);
        self.limiter = Limiter::new(config, worker, Some(&self.limiter.meter));
        self.limits.clone_from(&config.limits);
        Store::Redis(self.store.redis.clone()).limits_changed();
    }

    /// Begins the decision on a request of these limits, unless its key is blocked.
    pub(super) fn begin_decision(&mut self, pending: PendingRequest<'_>) -> Option<KeyBlock> {
        let overrides = self.store.redis.shared().overrides();
        let tags = pending
            .limits
            .iter()
            .map(|number| tag_of(pending.key, *number));
        let mut blocks = tags.filter_map(|tag| overrides.as_ref()?.block_of(tag));
        if let Some(block) = blocks.next() {
            return Some(block);
        }
        drop(blocks);
        let limiter = Arc::clone(&self.limiter);
        let secret = limiter.hash_key();
        let mut admission = Admission::default();
        admission.generation = secret.generation;
        for number in pending.limits {
            let limit = &self.limits[*number];
            let client = CheckedClient {
                tag: tag_of(pending.key, *number),
                anchor: None,
            };
            let windows = overrides
                .as_ref()
                .and_then(|one| one.windows(limit, client.tag));
            let windows = windows.unwrap_or(Cow::Borrowed(&limit.windows));
            admission.add(limit, &windows, client, pending.cost, None);
        }
        if admission.may_be_held() {
            admission.longest_wait_us = u64::MAX;
        }
        let since = read();
        let deciding = async move {
            let result = limiter.admit(&mut admission, since).await;
            (admission, result)
        };
        self.pending.push(Pending {
            id: pending.id,
            client: pending.client,
            since_us: pending.since_us,
            deciding: Box::pin(deciding),
        });
        None
    }

    /// The requests that have their decisions now. Those of `keeps` stay.
    pub(super) fn take_ended(&mut self, keeps: impl Fn(u64) -> bool) -> Vec<Ended> {
        let mut context = Context::from_waker(futures_util::task::noop_waker_ref());
        let mut ended = Vec::new();
        self.pending.retain_mut(|pending| {
            if keeps(pending.id) {
                return true;
            }
            let Poll::Ready((admission, result)) = pending.deciding.as_mut().poll(&mut context)
            else {
                return true;
            };
            ended.push(Ended {
                id: pending.id,
                client: pending.client,
                since_us: pending.since_us,
                admission,
                result,
            });
            false
        });
        ended
    }

    pub(super) fn end_denials(
        &self,
        denials: TakenDenials,
        store_us: u64,
        answer: Option<BansAnswer>,
    ) {
        self.store
            .task
            .shared()
            .end_denials(denials, store_us, answer);
    }

    /// When its task acts next by itself.
    pub(super) fn next_wake_us(&self, now_us: u64) -> u64 {
        let at_us = self.clock.true_us(self.store.task.wake_at());
        at_us.max(now_us + 1)
    }

    /// The memory of the store, as this process knows it.
    pub(super) fn known_began_us(&self) -> Option<u64> {
        self.recovery().greeting(false, false).began_us
    }
}

/// A request that begins.
pub(super) struct PendingRequest<'l> {
    pub(super) id: u64,
    pub(super) client: usize,
    pub(super) since_us: u64,
    pub(super) limits: &'l [usize],
    pub(super) key: u8,
    pub(super) cost: u64,
}
