//! Floods of frames that cost us work and move nothing: each ends with its connection, while
//! honest clients are served, on the same worker, and memory stays what it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::raw::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, REQUEST, RST_STREAM, Raw, SETTINGS,
    WINDOW_UPDATE, block, frame,
};
use crate::house::{Client, Tidegate, Upstream};
use crate::pace::Pace;
use crate::probe::eventually;

/// More connections of one flood than a test needs.
const ROUNDS: usize = 20;
/// What nobody honest waits for, beside what the machine keeps everyone waiting.
const SLOW: Duration = Duration::from_secs(5);
/// What the memory of the process may grow by, bytes.
const GROWTH: u64 = 48 << 20;

fn proxy(upstream: &Upstream, settings: &str) -> Tidegate {
    Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nworkers = 1\n{settings}\n",
        upstream.url()
    ))
}

/// Resident memory, bytes.
fn memory(proxy: &Tidegate) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/statm", proxy.pid())).unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Asks again and again beside `attack`, and holds every answer to 200 and to [`SLOW`].
pub fn honest_beside<T>(proxy: &Tidegate, attack: impl FnOnce() -> T) -> T {
    let over = Arc::new(AtomicBool::new(false));
    let (address, end) = (proxy.address, Arc::clone(&over));
    let (before, pace) = (memory(proxy), Pace::begin());
    let honest = std::thread::spawn(move || {
        let (mut asked, mut slowest) = (0, Duration::ZERO);
        while !end.load(Ordering::Relaxed) || asked < 20 {
            let began = Instant::now();
            let mut client = Client::to(address);
            let answer = client.ask("GET /honest HTTP/1.1\r\nHost: test\r\n\r\n");
            assert_eq!(answer.status, 200);
            slowest = slowest.max(began.elapsed());
            asked += 1;
        }
        slowest
    });
    let outcome = attack();
    over.store(true, Ordering::Relaxed);
    let slowest = honest.join().unwrap();
    assert!(slowest < SLOW + pace.grants(), "{slowest:?}");
    let after = memory(proxy);
    assert!(after < before + GROWTH, "{before} -> {after}");
    outcome
}

/// Sends `unit` again and again, made for each turn, until the connection ends. Returns how it
/// ended, and after how many turns at most.
fn flood(proxy: &Tidegate, most: u32, unit: impl Fn(u32) -> Vec<u8>) -> (Option<u32>, u32) {
    let mut raw = Raw::to(proxy.address, &[]);
    let mut turn = 0;
    while turn < most {
        let batch: Vec<u8> = (turn..turn + 50).flat_map(&unit).collect();
        turn += 50;
        if !raw.send(&batch) {
            break;
        }
    }
    (raw.goodbye(), turn)
}

fn check(name: &str, unit: impl Fn(u32) -> Vec<u8>) {
    let upstream = Upstream::ok();
    let proxy = proxy(&upstream, "");
    honest_beside(&proxy, || {
        for round in 0..ROUNDS {
            let (error, _) = flood(&proxy, 100_000, &unit);
            // A reset may overtake the last word.
            let calm = error.is_none_or(|error| error != 0);
            assert!(calm, "{name}, round {round}: {error:?}");
        }
    });
}

fn odd(turn: u32) -> u32 {
    turn * 2 + 1
}

#[test]
fn streams_that_are_reset_as_soon_as_they_begin() {
    check("rapid reset", |turn| {
        let head = frame(
            HEADERS,
            END_STREAM | END_HEADERS,
            odd(turn),
            &block(&REQUEST),
        );
        let reset = frame(RST_STREAM, 0, odd(turn), &8u32.to_be_bytes());
        [head, reset].concat()
    });
}

#[test]
fn streams_that_are_reset_as_soon_as_they_begin_cost_no_connections() {
    const STREAMS: u32 = 60;
    let upstream = Upstream::ok();
    let proxy = proxy(&upstream, "");
    let before = upstream.connections();
    let mut raw = Raw::to(proxy.address, &[]);
    let both = |turn: u32| {
        let flags = END_STREAM | END_HEADERS;
        let head = frame(HEADERS, flags, odd(turn), &block(&REQUEST));
        let reset = frame(RST_STREAM, 0, odd(turn), &8u32.to_be_bytes());
        [head, reset].concat()
    };
    assert!(raw.send(&(0..STREAMS).flat_map(both).collect::<Vec<u8>>()));
    assert!(raw.ask(odd(STREAMS), &REQUEST));
    assert_eq!(raw.until(&[HEADERS]).unwrap().stream, odd(STREAMS));
    let made = upstream.connections() - before;
    // A few: what comes in several pieces may come between the two.
    assert!(made <= 10, "{made} connections");
}

#[test]
fn streams_that_we_are_made_to_reset() {
    check("made you reset", |turn| {
        let head = frame(
            HEADERS,
            END_STREAM | END_HEADERS,
            odd(turn),
            &block(&REQUEST),
        );
        let none = frame(WINDOW_UPDATE, 0, odd(turn), &[0; 4]);
        [head, none].concat()
    });
    check("content on a stream that has ended", |turn| {
        let head = frame(
            HEADERS,
            END_STREAM | END_HEADERS,
            odd(turn),
            &block(&REQUEST),
        );
        let more = frame(DATA, 0, odd(turn), b"x");
        [head, more].concat()
    });
}

#[test]
fn settings_pings_and_priorities() {
    check("settings", |_| frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 9]));
    check("empty settings", |_| frame(SETTINGS, 0, 0, &[]));
    check("pings", |_| frame(PING, 0, 0, &[0; 8]));
    check("priorities", |turn| frame(2, 0, odd(turn % 100), &[0; 5]));
    check("unknown frames", |_| frame(0x77, 0, 0, &[]));
}

#[test]
fn windows_and_content_of_nothing() {
    check("windows", |_| {
        frame(WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes())
    });
    check("empty content", |turn| {
        let post = [&REQUEST[1..], &[(":method", "POST")]].concat();
        match turn {
            0 => frame(HEADERS, END_HEADERS, 1, &block(&post)),
            _ => frame(DATA, 0, 1, &[]),
        }
    });
}

#[test]
fn heads_without_an_end() {
    check("empty continuations", |turn| match turn {
        0 => frame(HEADERS, 0, 1, &block(&REQUEST)),
        _ => frame(CONTINUATION, 0, 1, &[]),
    });
    check("continuations", |turn| match turn {
        0 => frame(HEADERS, 0, 1, &block(&REQUEST)),
        _ => frame(CONTINUATION, 0, 1, &block(&[("x-a", &"y".repeat(1000))])),
    });
}

#[test]
fn more_streams_than_are_allowed() {
    let upstream = Upstream::start(|_, _| {
        std::thread::sleep(Duration::from_secs(2));
        false
    });
    let fine = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "[server]\nworkers = 1\nmax_streams = 10\n[[route]]\npath = \"/honest\"\nupstream = \
         \"{}\"\n[[route]]\npath = \"/*\"\nupstream = \"{}\"\n",
        fine.url(),
        upstream.url()
    ));
    honest_beside(&proxy, || {
        let mut raw = Raw::to(proxy.address, &[]);
        let heads = (0..40).flat_map(|turn| {
            let block = block(&REQUEST);
            frame(HEADERS, END_STREAM | END_HEADERS, odd(turn), &block)
        });
        raw.send(&heads.collect::<Vec<u8>>());
        for _ in 0..30 {
            let refused = raw.until(&[RST_STREAM]).unwrap();
            assert_eq!(refused.error(), 7, "REFUSED_STREAM");
        }
        eventually("the others arrive", || upstream.seen().len() == 10);
    });
    assert_eq!(upstream.seen().len(), 10);
    // A client that goes on all the same runs out of its allowance.
    let (error, _) = flood(&proxy, 100_000, |turn| {
        frame(
            HEADERS,
            END_STREAM | END_HEADERS,
            odd(turn),
            &block(&REQUEST),
        )
    });
    assert!(error.is_none_or(|error| error != 0));
}

#[test]
fn who_does_what_connections_are_for_never_runs_out() {
    let upstream = Upstream::ok();
    let proxy = proxy(&upstream, "");
    let mut raw = Raw::to(proxy.address, &[]);
    for turn in 0..1500 {
        raw.ask(odd(turn), &REQUEST);
        let piece = raw.until(&[DATA]).unwrap();
        assert_eq!(piece.payload, b"ok");
        // As chatty as clients are: two windows for each piece.
        let more = u32::try_from(piece.payload.len()).unwrap().to_be_bytes();
        raw.send(&frame(WINDOW_UPDATE, 0, 0, &more));
        raw.send(&frame(WINDOW_UPDATE, 0, odd(turn), &more));
    }
    // The same connection may cancel as many as it may have at once.
    let post = [&REQUEST[1..], &[(":method", "POST")]].concat();
    for turn in 1500..1600 {
        raw.send(&frame(HEADERS, END_HEADERS, odd(turn), &block(&post)));
        raw.send(&frame(RST_STREAM, 0, odd(turn), &8u32.to_be_bytes()));
    }
    raw.ask(odd(1600), &REQUEST);
    assert_eq!(raw.until(&[DATA]).unwrap().stream, odd(1600));
}
