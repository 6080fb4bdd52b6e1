//! Reloads, upgrades and restarts of Redis, one after the other and for as long as is wanted, while
//! clients ask: nobody notices, and memory stays.
//!
//! Seconds here; `TIDEGATE_SOAK=3600 cargo test --release --test it -- soak --nocapture` is an hour.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::load::{HUNG, Load, Said};
use super::scene::{Scene, TIGHT};
use crate::probe::eventually;

const SHORT: Duration = Duration::from_secs(3);
/// Between two of them.
const EVERY: Duration = Duration::from_millis(300);
/// What a process may have more in the end than its forebear had, KiB.
const GROWTH_KIB: u64 = 48 << 10;

/// Who serves now.
fn pid(scene: &Scene) -> Option<Pid> {
    let text = std::fs::read_to_string(scene.proxy.directory.path().join("pid"));
    Pid::from_raw(text.ok()?.trim().parse().ok()?)
}

fn resident_kib(pid: Pid) -> u64 {
    let folder = format!("/proc/{}/statm", pid.as_raw_nonzero());
    let text = std::fs::read_to_string(folder).unwrap_or_default();
    let pages = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4
}

fn upgrade(scene: &Scene) {
    let old = pid(scene).expect("somebody serves");
    kill_process(old, Signal::USR2).unwrap();
    eventually("another process serves", || {
        pid(scene).is_some_and(|now| now != old)
    });
}

#[test]
fn soak_of_reloads_upgrades_and_restarts_of_redis() {
    let wanted = std::env::var("TIDEGATE_SOAK").ok();
    let wanted = wanted.and_then(|text| text.parse().ok());
    let lasts = wanted.map_or(SHORT, Duration::from_secs);
    let mut scene = Scene::counting();
    let load = Load::on(&scene.way);
    let began = Instant::now();
    let (mut turns, mut resident) = (0_u64, Vec::new());
    while began.elapsed() < lasts || !turns.is_multiple_of(3) {
        std::thread::sleep(EVERY);
        resident.push(resident_kib(pid(&scene).expect("somebody serves")));
        match turns % 3 {
            0 => kill_process(pid(&scene).unwrap(), Signal::HUP).unwrap(),
            1 => {
                let redis = scene.redis.as_mut().unwrap();
                redis.kill();
                std::thread::sleep(EVERY);
                redis.restart();
            }
            _ => upgrade(&scene),
        }
        turns += 1;
    }
    std::thread::sleep(EVERY);
    let samples = load.end();
    let count = |said: &dyn Fn(Said) -> bool| samples.iter().filter(|one| said(one.said)).count();
    let (hung, cut) = (count(&|it| it == Said::Hung), count(&|it| it == Said::Cut));
    let failed = count(&|it| matches!(it, Said::Status(500..)));
    let passed = samples
        .iter()
        .filter(|one| one.tight && one.said == Said::Status(200))
        .count();
    let longest = samples.iter().map(|one| one.took).max().unwrap();
    let (first, most) = (resident[0], resident.iter().max().unwrap());
    println!(
        "{} requests, {turns} reloads, restarts and upgrades: {failed} of 5xx, {cut} cut, {hung} hung, \
         the longest {longest:.0?}; resident {first} KiB at first, {most} at most",
        samples.len()
    );
    assert_eq!((failed, cut, hung), (0, 0, 0));
    assert!(passed <= TIGHT, "{passed} passed");
    assert!(longest < HUNG, "{longest:?}");
    assert!(
        *most < first + GROWTH_KIB,
        "{first} KiB at first, {most} at most"
    );
}
