//! Calendar windows in both stores: what a window holds, when it ends, and whose idea of the
//! calendar counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::clock::{Micros, now, unix_us};
use tidegate::limit::{AnchorDay, CalendarUnit, Charge, Decision, Limit, LimitCheck, Retry};
use tidegate::store::fleet::Fleet;
use tidegate::store::hash_key::KeyRing;
use tidegate::store::memory::Memory;
use tidegate::store::recovery::Recovery;
use tidegate::store::{Backing, Store};

use super::{patient, with_each_store};
use crate::support::{
    RedisServer, calendar_limit, item, limit, log_rule, memory_settings, on_a_worker, one,
};

const HOUR_US: u64 = 3_600_000_000;
const DAY_US: u64 = 24 * HOUR_US;
/// 2023-11-14T22:13:20Z.
const TIMEOUT: Duration = Duration::from_millis(25);
const NOVEMBER_US: u64 = 1_700_000_000_000_000;
/// 2023-12-01T00:00:00Z and 2024-01-01T00:00:00Z.
const DECEMBER_US: u64 = 1_701_388_800_000_000;
const JANUARY_US: u64 = 1_704_067_200_000_000;

/// An embedded store whose clock the test moves.
fn embedded() -> (Memory, Arc<AtomicU64>) {
    let time = Arc::new(AtomicU64::new(NOVEMBER_US));
    let settings = memory_settings();
    let keys = KeyRing::new(&settings).unwrap();
    let clock = Micros::Manual(Arc::clone(&time));
    (Memory::new(&settings, keys, clock, None), time)
}

fn retry(decision: &Decision) -> Retry {
    assert!(!decision.allowed);
    decision.verdicts[0].retry
}

#[test]
fn a_window_ends_at_its_date_and_the_next_one_begins_empty() {
    let (memory, time) = embedded();
    let month = calendar_limit("month", CalendarUnit::Month, 3);
    let first = memory.charge(&one(&month, 1, 2));
    assert!(first.allowed);
    assert_eq!(first.verdicts[0].reset_us, DECEMBER_US - NOVEMBER_US);
    for at_us in [NOVEMBER_US, NOVEMBER_US + 5 * DAY_US, DECEMBER_US - 1] {
        time.store(at_us, Ordering::Relaxed);
        let denied = memory.charge(&one(&month, 1, 2));
        assert_eq!(retry(&denied), Retry::After(DECEMBER_US - at_us));
        let looked = memory.charge(&one(&month, 1, 0)).verdicts[0];
        assert_eq!((looked.used, looked.remaining), (2, 1));
    }
    time.store(DECEMBER_US, Ordering::Relaxed);
    let fresh = memory.charge(&one(&month, 1, 3));
    assert!(fresh.allowed);
    assert_eq!(fresh.verdicts[0].reset_us, JANUARY_US - DECEMBER_US);
    assert_eq!(retry(&memory.charge(&one(&month, 1, 4))), Retry::Never);
}

#[test]
fn a_clock_that_steps_back_neither_refills_a_window_nor_locks_it_for_long() {
    let (memory, time) = embedded();
    let month = calendar_limit("stepped", CalendarUnit::Month, 3);
    time.store(DECEMBER_US + HOUR_US, Ordering::Relaxed);
    assert!(memory.charge(&one(&month, 1, 3)).allowed);
    // Back in November: the window of December goes on.
    let back_us = DECEMBER_US - HOUR_US;
    time.store(back_us, Ordering::Relaxed);
    let denied = memory.charge(&one(&month, 1, 1));
    assert_eq!(retry(&denied), Retry::After(JANUARY_US - back_us));
    // So far back that no window is so long: the units count until the end of November.
    time.store(NOVEMBER_US, Ordering::Relaxed);
    let denied = memory.charge(&one(&month, 1, 1));
    assert_eq!(retry(&denied), Retry::After(DECEMBER_US - NOVEMBER_US));
    time.store(DECEMBER_US, Ordering::Relaxed);
    assert!(memory.charge(&one(&month, 1, 3)).allowed);
}

#[test]
fn units_come_back_to_the_window_that_they_were_charged_in() {
    let (memory, time) = embedded();
    let month = calendar_limit("given-back", CalendarUnit::Month, 10);
    let used = || memory.charge(&one(&month, 1, 0)).verdicts[0].used;
    let november = memory.charge(&one(&month, 1, 6));
    time.store(DECEMBER_US, Ordering::Relaxed);
    let december = memory.charge(&one(&month, 1, 4));
    memory.refund(&one(&month, 1, 6), &november);
    assert_eq!(used(), 4, "those of November");
    memory.refund(&one(&month, 1, 1), &december);
    assert_eq!(used(), 3);
    memory.charge_more(&one(&month, 1, 20));
    assert_eq!(used(), 23);
    memory.refund_oldest(&one(&month, 1, 13));
    assert_eq!(used(), 10);
    memory.refund(&one(&month, 1, 100), &december);
    assert_eq!(used(), 0, "never below zero");
    memory.refund_oldest(&one(&month, 2, 5));
    assert_eq!(memory.figures().keys, 1, "nothing is opened");
}

#[test]
fn a_window_is_forgotten_a_day_after_its_end() {
    let (memory, time) = embedded();
    let day = calendar_limit("day", CalendarUnit::Day, 10);
    let first = memory.charge(&one(&day, 1, 6));
    let end_us = NOVEMBER_US + first.verdicts[0].reset_us;
    for (at_us, keys) in [(end_us + DAY_US - 1, 1), (end_us + DAY_US, 0)] {
        time.store(at_us, Ordering::Relaxed);
        // Each call looks at a few shards.
        (0..2_000).for_each(|_| memory.tidy());
        assert_eq!(memory.figures().keys, keys);
    }
}

#[test]
fn without_the_store_a_proxy_has_its_share_less_what_it_admitted_in_this_window() {
    let time = Arc::new(AtomicU64::new(NOVEMBER_US));
    let settings = memory_settings();
    let recovery = Arc::new(Recovery::new(
        Arc::new(Fleet::new(4)),
        [1; 16],
        TIMEOUT,
        NOVEMBER_US,
    ));
    let clock = Micros::Manual(Arc::clone(&time));
    let keys = KeyRing::new(&settings).unwrap();
    let local = Memory::new(&settings, keys, clock, None).stand_in(&recovery);
    let month = calendar_limit("share", CalendarUnit::Month, 40);
    let passes = || local.charge(&one(&month, 1, 1)).allowed;
    // The store's clock is an hour ahead, and its month ends that much earlier.
    recovery
        .store_clock
        .note(NOVEMBER_US + HOUR_US, NOVEMBER_US);
    local.keep_warm(&one(&month, 1, 4), 0);
    assert_eq!((0..40).filter(|_| passes()).count(), 6);
    let denied = local.charge(&one(&month, 1, 1));
    let left_us = DECEMBER_US - NOVEMBER_US - HOUR_US;
    assert_eq!(retry(&denied), Retry::After(left_us));
    time.fetch_add(left_us, Ordering::Relaxed);
    assert_eq!((0..40).filter(|_| passes()).count(), 10);
}

#[test]
fn shares_end_with_the_window_in_which_the_store_came_back() {
    let time = Arc::new(AtomicU64::new(NOVEMBER_US));
    let settings = memory_settings();
    let recovery = Arc::new(Recovery::new(
        Arc::new(Fleet::new(4)),
        [1; 16],
        TIMEOUT,
        NOVEMBER_US,
    ));
    let clock = Micros::Manual(Arc::clone(&time));
    let keys = KeyRing::new(&settings).unwrap();
    let local = Memory::new(&settings, keys, clock, None).stand_in(&recovery);
    let month = calendar_limit("returning", CalendarUnit::Month, 40);
    let pass = || {
        let passes = |_: &u32| local.book_beside(&one(&month, 1, 1), 0).allowed;
        (0..100).filter(passes).count()
    };
    recovery.away(NOVEMBER_US);
    assert_eq!(pass(), 10);
    recovery.back(NOVEMBER_US + HOUR_US);
    time.store(NOVEMBER_US + 2 * HOUR_US, Ordering::Relaxed);
    assert_eq!(pass(), 0, "another proxy may owe units of this month");
    time.store(DECEMBER_US, Ordering::Relaxed);
    assert_eq!(pass(), 100, "none of this one");
}

#[test]
fn a_window_counts_more_than_fits_into_four_bytes() {
    const BILLION: u64 = 1_000_000_000;
    with_each_store(async |fixture| {
        let money = calendar_limit("money", CalendarUnit::Month, 50 * BILLION);
        let first = fixture.charge(&one(&money, 1, 6 * BILLION)).await;
        assert!(first.allowed);
        assert_eq!(first.verdicts[0].remaining, 44 * BILLION);
        let generation = fixture.store.hash_key().generation;
        fixture
            .store
            .settle(&one(&money, 1, 43 * BILLION), generation);
        let look = fixture.charge(&one(&money, 1, 0)).await.verdicts[0];
        assert_eq!((look.used, look.remaining), (49 * BILLION, BILLION));
        assert!(!fixture.charge(&one(&money, 1, 2 * BILLION)).await.allowed);
        let back = one(&money, 1, 5 * BILLION);
        fixture.store.refund(&back, &first, generation);
        let look = fixture.charge(&one(&money, 1, 0)).await.verdicts[0];
        assert_eq!(look.used, 44 * BILLION);
        fixture
            .store
            .refund_oldest(&one(&money, 1, 40 * BILLION), generation);
        let look = fixture.charge(&one(&money, 1, 0)).await.verdicts[0];
        assert_eq!(look.used, 4 * BILLION);
        // As much as fits, whatever a response says.
        fixture.store.settle(&one(&money, 1, u64::MAX), generation);
        let look = fixture.charge(&one(&money, 1, 0)).await.verdicts[0];
        assert_eq!(look.used, (1 << 48) - 1);
    });
}

#[test]
fn a_calendar_window_and_a_sliding_one_are_charged_together_or_not_at_all() {
    with_each_store(async |fixture| {
        let year = calendar_limit("year", CalendarUnit::Year, 3);
        let sliding = limit("sliding", log_rule(2, Duration::from_secs(60)));
        let both: Charge = [item(&year, 1, 1), item(&sliding, 1, 1)]
            .into_iter()
            .collect();
        assert!(fixture.charge(&both).await.allowed);
        assert!(fixture.charge(&both).await.allowed);
        for _ in 0..3 {
            let denied = fixture.charge(&both).await;
            assert!(!denied.allowed);
            let verdict = denied.verdicts[0];
            assert_eq!((verdict.used, verdict.retry), (2, Retry::Now));
        }
        assert!(fixture.charge(&one(&year, 1, 1)).await.allowed);
        let denied = fixture.charge(&one(&year, 1, 1)).await;
        assert!(matches!(denied.verdicts[0].retry, Retry::After(_)));
    });
}

/// One proxy of a real server.
struct Proxy {
    store: Store,
    recovery: Arc<Recovery>,
}

impl Proxy {
    async fn of(server: &RedisServer) -> Proxy {
        let backing = Backing::new(&patient(server.settings()), None).unwrap();
        let store = backing.open();
        store.ready().await;
        let recovery = Arc::clone(backing.recovery().unwrap());
        Proxy { store, recovery }
    }

    async fn charge(&self, charge: &Charge) -> Decision {
        let generation = self.store.hash_key().generation;
        let decision = self.store.charge(charge, generation, now()).await;
        decision.expect("a decision")
    }

    /// Makes it believe that the server's clock is so far ahead of its own.
    fn believe(&self, ahead_us: i64) {
        let now_us = unix_us();
        let store_us = now_us.saturating_add_signed(ahead_us);
        self.recovery.store_clock.note(store_us, now_us);
    }
}

fn anchored(limit: &Arc<Limit>, day: u64, cost: u64) -> Charge {
    let anchor = AnchorDay::of_month(day);
    let item = LimitCheck {
        anchor,
        ..item(limit, 1, cost)
    };
    [item].into_iter().collect()
}

/// Calls of a command since the server's start.
fn calls(server: &RedisServer, command: &str) -> u64 {
    let mut connection = server.connect();
    let mut info = redis::cmd("INFO");
    let text: String = info.arg("commandstats").query(&mut connection).unwrap();
    let name = format!("cmdstat_{command}:calls=");
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn the_window_that_was_opened_first_holds_for_proxies_with_another_calendar() {
    let server = RedisServer::start();
    on_a_worker(async {
        let (first, second) = (Proxy::of(&server).await, Proxy::of(&server).await);
        let month = calendar_limit("shared", CalendarUnit::Month, 10);
        let (mine, other) = (anchored(&month, 1, 1), anchored(&month, 15, 1));
        let opened = first.charge(&mine).await;
        let end_us = opened.at_us + opened.verdicts[0].reset_us;
        assert_eq!(
            Some(end_us),
            mine[0].boundaries(opened.at_us).map(|ends| ends.end_us)
        );
        let mut admitted = 1;
        for _ in 0..10 {
            for decision in [second.charge(&other).await, first.charge(&mine).await] {
                admitted += u32::from(decision.allowed);
                let told_us = decision.at_us + decision.verdicts[0].reset_us;
                // A denial from memory is a little early.
                assert!(end_us.abs_diff(told_us) < 1_000_000);
            }
        }
        assert_eq!(admitted, 10);
    });
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("t:{*")
        .query(&mut server.connect())
        .unwrap();
    assert_eq!(keys.len(), 1);
}

#[test]
fn a_decision_is_one_read_and_one_write_and_its_key_lives_a_day_longer() {
    let server = RedisServer::start();
    on_a_worker(async {
        let proxy = Proxy::of(&server).await;
        let month = calendar_limit("cheap", CalendarUnit::Month, 10);
        let opened = proxy.charge(&one(&month, 1, 1)).await;
        let commands = ["evalsha", "get", "set", "pexpireat"];
        let before = commands.map(|command| calls(&server, command));
        for _ in 0..9 {
            assert!(proxy.charge(&one(&month, 1, 1)).await.allowed);
        }
        assert!(!proxy.charge(&one(&month, 1, 1)).await.allowed);
        let after = commands.map(|command| calls(&server, command));
        let [scripts, reads, writes, expiries] =
            [0, 1, 2, 3].map(|command| after[command] - before[command]);
        assert_eq!((scripts, writes, expiries), (10, 9, 0));
        // Heartbeats read too, a few times a second.
        assert!((10..30).contains(&reads), "{reads}");
        // Denied, it asks no more: nothing can pass before the end.
        for _ in 0..100 {
            assert!(!proxy.charge(&one(&month, 1, 1)).await.allowed);
        }
        assert_eq!(calls(&server, "evalsha"), after[0]);
        let mut connection = server.connect();
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("t:{*")
            .query(&mut connection)
            .unwrap();
        let left_ms: u64 = redis::cmd("PTTL")
            .arg(&keys[0])
            .query(&mut connection)
            .unwrap();
        let lives_us = opened.verdicts[0].reset_us + DAY_US;
        assert!(left_ms * 1_000 <= lives_us + 2_000 && left_ms * 1_000 + 60_000_000 > lives_us);
        let bytes: Vec<u8> = redis::cmd("GET")
            .arg(&keys[0])
            .query(&mut connection)
            .unwrap();
        assert_eq!(bytes.len(), 30);
    });
}

#[test]
fn a_proxy_that_is_wrong_about_the_servers_clock_asks_once_more() {
    let server = RedisServer::start();
    on_a_worker(async {
        let proxy = Proxy::of(&server).await;
        let generation = proxy.store.hash_key().generation;
        let sliding = limit("beside", log_rule(100, Duration::from_secs(60)));
        let day = calendar_limit("asked-again", CalendarUnit::Day, 5);
        let believed = [-40, 70, -400, 4_000].map(|days| days * DAY_US.cast_signed());
        let mut asked_twice = 0;
        for (who, ahead_us) in (0..).zip(believed.repeat(3)) {
            let both: Charge = [item(&sliding, who, 1), item(&day, who, 1)]
                .into_iter()
                .collect();
            proxy.believe(ahead_us);
            let before = calls(&server, "evalsha");
            let decision = proxy.charge(&both).await;
            let made = calls(&server, "evalsha") - before;
            assert!((1..=2).contains(&made), "{made} calls, {ahead_us}");
            asked_twice += made - 1;
            assert!(decision.allowed);
            let ends = both[1].boundaries(decision.at_us).unwrap();
            assert_eq!(decision.verdicts[1].reset_us, ends.end_us - decision.at_us);
            assert_eq!(decision.verdicts[0].used, 0, "nothing was charged twice");
            // The same for what nothing waits for.
            let unopened = one(&day, 100 + who, 3);
            proxy.believe(ahead_us);
            proxy.store.settle(&unopened, generation);
            let looked = proxy.charge(&one(&day, 100 + who, 0)).await;
            assert_eq!(looked.verdicts[0].used, 3);
        }
        // A heartbeat may have told the clock before.
        assert!(asked_twice >= 8, "{asked_twice}");
    });
}

#[test]
fn what_was_admitted_without_the_store_is_charged_in_its_window() {
    let server = RedisServer::start();
    on_a_worker(async {
        let proxy = Proxy::of(&server).await;
        let generation = proxy.store.hash_key().generation;
        let month = calendar_limit("owed", CalendarUnit::Month, 9_000_000_000);
        proxy.charge(&one(&month, 1, 1)).await;
        proxy.store.owe(&one(&month, 1, 6_000_000_000), generation);
        proxy.store.owe(&one(&month, 1, 2), generation);
        let used = proxy.charge(&one(&month, 1, 0)).await.verdicts[0].used;
        assert_eq!(used, 6_000_000_003);
    });
}
