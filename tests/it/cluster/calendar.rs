//! Calendar windows in several slots, and a clock that a proxy is wrong about.

use tidegate::clock::unix_us;
use tidegate::limit::{CalendarUnit, Charge};
use tidegate::store::Backing;

use super::nodes::RedisCluster;
use super::{SECOND, ask};
use crate::support::{calendar_limit, item, on_a_worker};

const DAY_US: u64 = 86_400_000_000;

#[test]
fn calendar_windows_hold_in_every_slot_whatever_clock_a_proxy_believes_in() {
    let cluster = RedisCluster::start(false, &[]);
    on_a_worker(async {
        let backing = Backing::new(&cluster.settings(10 * SECOND), None).unwrap();
        let store = backing.open();
        store.ready().await;
        let clock = &backing.recovery().unwrap().store_clock;
        let wide = calendar_limit("wide", CalendarUnit::Month, 100);
        let narrow = calendar_limit("narrow", CalendarUnit::Day, 10);
        let days = [0, 40, 400].map(|days| days * DAY_US);
        for (who, ahead_us) in (1..).zip(days.repeat(8)) {
            let of = |cost| -> Charge {
                let items = [item(&wide, 1_000 + who, cost), item(&narrow, who, cost)];
                items.into_iter().collect()
            };
            let mut admitted = 0;
            for turn in 0..12 {
                if turn % 4 == 0 {
                    let now_us = unix_us();
                    clock.note(now_us + ahead_us, now_us);
                }
                admitted += u32::from(ask(&store, &of(1)).await.unwrap().allowed);
            }
            assert_eq!(admitted, 10, "{who}");
            let look = ask(&store, &of(0)).await.unwrap();
            let used: Vec<u64> = look.verdicts.iter().map(|verdict| verdict.used).collect();
            // A refused request gives its unit of the other slot back after its answer.
            assert_eq!(used[1], 10, "{who}");
            assert!((10..=11).contains(&used[0]), "{who}: {used:?}");
        }
    });
}
