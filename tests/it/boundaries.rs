//! Calendar windows at real boundaries: the clock of Redis is moved just before each of them, and
//! two proxies serve clients without a pause until it has passed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tidegate::clock::unix_us;

use crate::house::{Answer, Tidegate, Upstream};
use crate::probe::eventually;
use crate::redis_faults::clock;
use crate::support::RedisServer;

const SECOND_US: u64 = 1_000_000;
/// How long before a boundary the clock is set.
const BEFORE_S: u64 = 3;
/// Answers in a row with the new time: one worker alone gives so many once in a million times.
const FRESH_ANSWERS: usize = 20;
const UNITS: usize = 3;

/// The end of a window, in order of time.
struct Boundary {
    path: &'static str,
    end_s: u64,
    /// The window's true length.
    length_s: u64,
    /// The end in the zone of the limit.
    text: &'static str,
}

const BOUNDARIES: [Boundary; 5] = [
    Boundary {
        path: "/month",
        end_s: 1_801_436_400,
        length_s: 31 * 86_400,
        text: "2027-02-01T00:00:00+01:00",
    },
    // Clocks have gone forward in the last night.
    Boundary {
        path: "/day",
        end_s: 1_806_271_200,
        length_s: 23 * 3_600,
        text: "2027-03-29T00:00:00+02:00",
    },
    Boundary {
        path: "/day",
        end_s: 1_825_023_600,
        length_s: 25 * 3_600,
        text: "2027-11-01T00:00:00+01:00",
    },
    // The client's months begin on the 31st, and this year's February has 29 days.
    Boundary {
        path: "/anchored",
        end_s: 1_835_395_200,
        length_s: 29 * 86_400,
        text: "2028-02-29T00:00:00+00:00",
    },
    Boundary {
        path: "/leap",
        end_s: 1_835_481_600,
        length_s: 86_400,
        text: "2028-03-01T00:00:00+00:00",
    },
];

const LIMITS: &str = "[store]\nurl = \"redis://127.0.0.1:PORT\"\ntimeout = \"2s\"\n\
    [limit.month]\nrate = \"3/month\"\nkey = \"header:x-user\"\ncalendar = { zone = \"Europe/Berlin\" }\n\
    [limit.day]\nrate = \"3/day\"\nkey = \"header:x-user\"\ncalendar = { zone = \"Europe/Berlin\" }\n\
    [limit.anchored]\nrate = \"3/month\"\nkey = \"header:x-user\"\n\
    calendar = { zone = \"UTC\", anchor = 31 }\n\
    [limit.leap]\nrate = \"3/day\"\nkey = \"header:x-user\"\ncalendar = { zone = \"UTC\" }\n\
    [[route]]\npath = \"/month\"\nlimits = [\"month\"]\n[[route]]\npath = \"/day\"\nlimits = [\"day\"]\n\
    [[route]]\npath = \"/anchored\"\nlimits = [\"anchored\"]\n\
    [[route]]\npath = \"/leap\"\nlimits = [\"leap\"]\n";

/// Redis with a clock of its own, and the proxies that count there.
struct Scene {
    redis: RedisServer,
    proxies: [Tidegate; 2],
    /// Seconds that the clock of Redis is ahead.
    ahead_s: i64,
}

impl Scene {
    fn start(upstream: &Upstream) -> Scene {
        let redis = clock::redis();
        let limits = LIMITS.replace("PORT", &redis.port().to_string());
        let config = format!("upstream = \"{}\"\n{limits}", upstream.url());
        let proxies = [(); 2].map(|()| Tidegate::start(&config));
        Scene {
            redis,
            proxies,
            ahead_s: 0,
        }
    }

    fn store_us(&self) -> u64 {
        unix_us().saturating_add_signed(self.ahead_s * SECOND_US as i64)
    }

    /// Sets the clock of Redis, and waits until each worker of both proxies has an answer with the
    /// new time. A worker forgets then which clients are denied.
    fn set_clock(&mut self, store_s: u64) {
        self.ahead_s = store_s as i64 - (unix_us() / SECOND_US) as i64;
        clock::set(&self.redis, self.ahead_s);
        for proxy in &self.proxies {
            let mut in_a_row = 0;
            let mut asked = 0;
            // Each request has a connection of its own, which any worker may take.
            eventually("the proxy knows the time", || {
                asked += 1;
                let answer = ask(proxy, "/leap", &format!("fresh {store_s} {asked}"));
                let reset = number(&answer, "x-ratelimit-reset");
                let is_new = reset > store_s && reset <= store_s + 2 * 86_400;
                in_a_row = if is_new { in_a_row + 1 } else { 0 };
                in_a_row >= FRESH_ANSWERS
            });
        }
    }
}

fn ask(proxy: &Tidegate, path: &str, user: &str) -> Answer {
    proxy.get_with(path, &format!("X-User: {user}\r\n"))
}

/// Clients with keys of their own, at both proxies.
struct Others {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<usize>>,
}

impl Others {
    fn start(scene: &Scene, path: &'static str) -> Others {
        let ends = Arc::new(AtomicBool::new(false));
        let thread = |proxy: &Tidegate| {
            let (address, ends) = (proxy.address, Arc::clone(&ends));
            std::thread::spawn(move || {
                let mut served = 0;
                while !ends.load(Ordering::Relaxed) {
                    let mut client = crate::house::Client::to(address);
                    let request = format!(
                        "GET {path} HTTP/1.1\r\nHost: t\r\nX-User: other {}\r\n\r\n",
                        served % 50
                    );
                    let answer = client.ask(request);
                    assert!([200, 429].contains(&answer.status), "{answer:?}");
                    served += 1;
                    std::thread::sleep(Duration::from_millis(4));
                }
                served
            })
        };
        let threads = scene.proxies.iter().map(thread).collect();
        Others { ends, threads }
    }

    fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads {
            assert!(thread.join().unwrap() > 0);
        }
    }
}

#[track_caller]
fn number(answer: &Answer, header: &str) -> u64 {
    let value = answer.header(header);
    value
        .unwrap_or_else(|| panic!("{answer:?}"))
        .parse()
        .unwrap()
}

/// What a client is told while its window goes on.
fn check_headers(answer: &Answer, boundary: &Boundary) {
    assert_eq!(
        number(answer, "x-ratelimit-reset"),
        boundary.end_s,
        "{answer:?}"
    );
    let policy = answer.header("ratelimit-policy").unwrap();
    let length = format!("q={UNITS};w={}", boundary.length_s);
    assert!(policy.ends_with(&length), "{policy}: {length}");
}

/// A denial before the boundary. Returns its wait.
fn check_denial(scene: &Scene, proxy: &Tidegate, boundary: &Boundary) -> u64 {
    let before_us = scene.store_us();
    let answer = ask(proxy, boundary.path, "walker");
    let after_us = scene.store_us();
    assert_eq!(answer.status, 429, "{answer:?}");
    check_headers(&answer, boundary);
    let wait = number(&answer, "retry-after");
    let end_us = boundary.end_s * SECOND_US;
    // The proxy may know the clock of the store a little late.
    let [most, least] =
        [before_us, after_us].map(|us| end_us.saturating_sub(us).div_ceil(SECOND_US));
    assert!(
        (least..=most + 1).contains(&wait),
        "{wait}: {least} to {most}"
    );
    let problem: Value = serde_json::from_str(&answer.text()).unwrap();
    let end = problem["resets_at"]
        .as_str()
        .unwrap()
        .replace('Z', "+00:00");
    assert_eq!(end, boundary.text);
    wait
}

#[test]
fn at_each_boundary_a_client_that_waits_as_it_is_told_is_served_again() {
    let upstream = Upstream::ok();
    let mut scene = Scene::start(&upstream);
    for boundary in &BOUNDARIES {
        scene.set_clock(boundary.end_s - BEFORE_S);
        let others = Others::start(&scene, boundary.path);
        for used in 0..UNITS {
            let answer = ask(&scene.proxies[used % 2], boundary.path, "walker");
            assert_eq!(answer.status, 200, "{} {answer:?}", boundary.text);
            check_headers(&answer, boundary);
            assert_eq!(
                number(&answer, "x-ratelimit-remaining") as usize,
                UNITS - 1 - used
            );
        }
        let waits = scene
            .proxies
            .each_ref()
            .map(|proxy| check_denial(&scene, proxy, boundary));
        let wait = waits.into_iter().max().unwrap();
        let asked = std::time::Instant::now();
        // No request passes before the boundary, at either proxy.
        while scene.store_us() + SECOND_US / 2 < boundary.end_s * SECOND_US {
            for proxy in &scene.proxies {
                check_denial(&scene, proxy, boundary);
            }
        }
        std::thread::sleep(Duration::from_secs(wait).saturating_sub(asked.elapsed()));
        let passes = (0..UNITS + 2).map(|turn| {
            let answer = ask(&scene.proxies[turn % 2], boundary.path, "walker");
            assert!(
                number(&answer, "x-ratelimit-reset") > boundary.end_s,
                "{answer:?}"
            );
            answer.status == 200
        });
        let passes: Vec<bool> = passes.collect();
        assert_eq!(
            passes,
            [true, true, true, false, false],
            "{}",
            boundary.text
        );
        others.end();
    }
}
