//! How cost grows: with routes, limits, keys, connections, proxies that share a Redis, and workers.
//! Each curve is a table of docs/performance/growth.md.
//!
//! `make bench-growth` measures all and writes them; `cargo run --release --example bench -- growth
//! routes keys` measures some and prints them. `--quick` takes seconds, and its figures are worth
//! little.

#[path = "growth/callgrind.rs"]
mod callgrind;
#[path = "growth/client.rs"]
pub mod client;
#[path = "growth/connections.rs"]
mod connections;
#[path = "growth/idle.rs"]
mod idle;
#[path = "growth/keys.rs"]
mod keys;
#[path = "growth/limits.rs"]
mod limits;
#[path = "growth/proxies.rs"]
mod proxies;
#[path = "growth/proxy.rs"]
pub mod proxy;
#[path = "growth/routes.rs"]
mod routes;
#[path = "growth/workers.rs"]
mod workers;

use std::time::{Duration, Instant};

use crate::numbers::Spread;
use crate::stage::Stage;
use crate::{page, process};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/performance/growth.md");

/// One table.
pub struct Curve {
    pub name: &'static str,
    measure: fn(&Setting) -> String,
}

pub const CURVES: &[Curve] = &[
    Curve {
        name: "routes",
        measure: routes::measure,
    },
    Curve {
        name: "limits",
        measure: limits::measure,
    },
    Curve {
        name: "keys",
        measure: keys::measure,
    },
    Curve {
        name: "connections",
        measure: connections::measure,
    },
    Curve {
        name: "idle",
        measure: idle::measure,
    },
    Curve {
        name: "proxies",
        measure: proxies::measure,
    },
    Curve {
        name: "workers",
        measure: workers::measure,
    },
];

/// Where and how long is measured.
pub struct Setting {
    pub stage: Stage,
    /// For the proxy, and for everything else, where there are two.
    pub cores: (Option<usize>, Option<usize>),
    pub quick: bool,
    /// Descriptors that one process may have.
    pub descriptors: u64,
}

impl Setting {
    pub fn new(quick: bool) -> Setting {
        let cores = process::cores();
        Setting {
            stage: Stage::new(),
            cores: match cores[..] {
                [one, other, ..] => (Some(one), Some(other)),
                _ => (None, None),
            },
            quick,
            descriptors: process::raise_descriptor_limit(),
        }
    }

    /// This, or the other where it has to be quick.
    pub fn or_quick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    pub fn seconds(&self, full: f64) -> Duration {
        Duration::from_secs_f64(self.or_quick(full, full / 10.0))
    }
}

/// Measures the curves that are named, or all of them.
pub fn run(words: &[String]) {
    if let [first, child @ ..] = words
        && first == keys::CHILD
    {
        return keys::child(child);
    }
    let has = |flag: &str| words.iter().any(|word| word == flag);
    let names: Vec<&String> = words
        .iter()
        .filter(|word| !word.starts_with("--"))
        .collect();
    for name in &names {
        let known = CURVES.iter().any(|curve| curve.name == *name);
        assert!(known, "there is no curve called {name}");
    }
    let setting = Setting::new(has("--quick"));
    for curve in CURVES {
        if !names.is_empty() && !names.iter().any(|name| *name == curve.name) {
            continue;
        }
        let (begun, busy) = (Instant::now(), process::machine_busy_us());
        let table = (curve.measure)(&setting);
        let took = begun.elapsed();
        let load = (process::machine_busy_us() - busy) / took.as_micros() as f64;
        let cores = process::cores().len();
        let when = page::when();
        let text =
            format!("{table}\n{when}; {load:.1} of {cores} cores were busy, with any work.\n");
        println!("## {} ({:.0} s)\n\n{text}", curve.name, took.as_secs_f64());
        if has("--write") {
            let page = std::fs::read_to_string(PAGE).unwrap();
            let page = page::with(&page, curve.name, &text).expect("a place for every curve");
            std::fs::write(PAGE, page).unwrap();
        }
    }
}

/// The one in the middle.
pub fn median(values: &[f64]) -> f64 {
    let spread = Spread::of(values.iter().copied());
    spread.map_or(f64::NAN, |spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_place_for_every_curve() {
        let text = std::fs::read_to_string(PAGE).unwrap();
        for curve in CURVES {
            assert!(
                page::with(&text, curve.name, "").is_some(),
                "{}",
                curve.name
            );
        }
    }
}
