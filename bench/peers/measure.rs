//! One measurement: load on one proxy, and what all that takes part used for it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::cast::{Actor, Setting};
use super::multiplexed;
use super::peer::Peer;
use super::scenario::{CLIENTS, Closed, Load, MANY, RATE, STRICT, Scenario};
use super::wrk;
use crate::numbers::percentile;
use crate::pace::{self, Pace};
use crate::process::{self, Memory};

/// At least so much of what is to be rejected must be, however slow the machine is.
const REJECTED: f64 = 0.5;
/// More of a core than this, used by others, and a measurement is made again.
pub const QUIET: f64 = 0.10;
/// Answers' times that are told: over all that were measured, but the second is that of a usual
/// half second.
pub const SHARES: [f64; 3] = [0.5, 0.99, 0.999];
/// Idle connections that memory is looked at with.
pub const IDLE: [usize; 3] = [0, 1_000, 10_000];

/// How long, and how much.
#[derive(Clone, Debug)]
pub struct Effort {
    pub seconds: u64,
    /// Where the rate is fixed: the slowest thousandth must be more than a few requests.
    pub paced_seconds: f64,
    pub warm: Duration,
    /// Requests a second, where that is fixed.
    pub rate: u64,
    pub idle: Vec<usize>,
    /// wrk's script.
    pub script: PathBuf,
}

impl Effort {
    pub fn new(seconds: u64, script: PathBuf) -> Effort {
        Effort {
            seconds,
            paced_seconds: seconds as f64 + 2.0,
            warm: Duration::from_secs(1),
            rate: RATE,
            idle: IDLE.to_vec(),
            script,
        }
    }
}

/// What one measurement found; times are CPU microseconds per request.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub requests: u64,
    pub per_second: f64,
    pub proxy_us: f64,
    pub redis_us: f64,
    pub upstream_us: f64,
    /// How much of its core the proxy used, and how much of all cores what is no part of this, in
    /// cores.
    pub busy: f64,
    pub foreign: f64,
    /// How long answers took, where the rate is fixed: those of `SHARES`.
    pub waits_us: Option<[f64; 3]>,
}

/// What the load saw.
struct Seen {
    requests: u64,
    seconds: f64,
    waits_us: Option<[f64; 3]>,
}

/// Measures once; what was wrong, if the proxy did something else than the scenario is about.
pub fn once(
    setting: &Setting<'_>,
    actor: &Actor,
    scenario: Scenario,
    effort: &Effort,
) -> Result<Sample, String> {
    let mut meter = Meter::new(setting, actor);
    let rejects = scenario.rejects();
    let seen = match scenario.load() {
        Load::Closed(load) => closed(setting, actor, (load, rejects), effort, &mut meter)?,
        Load::Multiplexed(connections, streams) => {
            let seconds = Duration::from_secs(effort.seconds);
            let (shape, times) = ((connections, streams), (effort.warm, seconds));
            let came = multiplexed::run(actor.http2, shape, times, || meter.begin())?;
            meter.end();
            if came.wrong > 0 {
                return Err(format!("{} answers were not 200", came.wrong));
            }
            Seen {
                requests: came.requests,
                seconds: came.seconds,
                waits_us: None,
            }
        }
        Load::Paced => paced(actor, effort, &mut meter)?,
        Load::Idle => return Err("that is no load".to_owned()),
    };
    if seen.requests == 0 {
        return Err("nothing was answered".to_owned());
    }
    Ok(meter.sample(seen))
}

fn closed(
    setting: &Setting<'_>,
    actor: &Actor,
    (load, rejects): (Closed, bool),
    effort: &Effort,
    meter: &mut Meter<'_>,
) -> Result<Seen, String> {
    let program = setting.packages.wrk.as_ref().ok_or("there is no wrk")?;
    let files = (program.as_path(), effort.script.as_path());
    let command = |seconds| wrk::command(files, actor.address, load, seconds);
    if effort.warm.as_secs() > 0 {
        setting.stage.output(None, command(effort.warm.as_secs()));
    }
    meter.begin();
    let ((_, printed), statuses) = wrk::watched(actor.address, load.path, || {
        setting.stage.output(None, command(effort.seconds))
    });
    meter.end();
    let said = wrk::read(&printed).ok_or_else(|| format!("wrk says {printed:?}"))?;
    if said.broken > 0 {
        return Err(format!("{} connections broke or timed out", said.broken));
    }
    let others = |right: &[u16]| {
        let wrong: Vec<u16> = statuses
            .iter()
            .copied()
            .filter(|s| !right.contains(s))
            .collect();
        (!wrong.is_empty()).then_some(wrong)
    };
    if rejects {
        // Each client may pass when its window ends; some may not have come before.
        let windows = 1.0 + effort.seconds as f64 / STRICT.seconds as f64;
        let passed = (said.requests - said.refused) as f64;
        let share = said.refused as f64 / said.requests as f64;
        if passed > windows.ceil() * CLIENTS as f64 || share < REJECTED {
            return Err(format!("only {:.1} % were rejected", share * 100.0));
        }
        if let Some(wrong) = others(&[429, 200]) {
            return Err(format!("it answered {wrong:?} in place of 429"));
        }
    } else {
        if said.refused > 0 {
            return Err(format!(
                "{} answers of {} were not 2xx",
                said.refused, said.requests
            ));
        }
        if let Some(wrong) = others(&[200]) {
            return Err(format!("it answered {wrong:?} in place of 200"));
        }
        // What wrk prints is rounded.
        if said.bytes * 1.01 < said.requests as f64 * load.answer as f64 {
            return Err("the answers were too short".to_owned());
        }
    }
    Ok(Seen {
        requests: said.requests,
        seconds: said.seconds,
        waits_us: None,
    })
}

fn paced(actor: &Actor, effort: &Effort, meter: &mut Meter<'_>) -> Result<Seen, String> {
    let pace = Pace {
        connections: MANY,
        rate: effort.rate,
        seconds: effort.paced_seconds,
        warm_seconds: effort.warm.as_secs_f64(),
        clients: CLIENTS,
    };
    let paced = pace::run(actor.address, pace, || meter.begin())?;
    meter.end();
    if paced.unanswered > 0 {
        return Err(format!("{} requests were not answered", paced.unanswered));
    }
    if let Some((status, count)) = paced.statuses.iter().find(|(status, _)| **status != 200) {
        return Err(format!("it answered {count} times with {status}"));
    }
    let whole = |share| f64::from(percentile(&paced.waits_us, share));
    let [half, most, nearly_all] = SHARES;
    Ok(Seen {
        requests: paced.waits_us.len() as u64,
        seconds: pace.seconds,
        // Of all seconds together the p99 would be about the machine's longest pause.
        waits_us: Some([whole(half), paced.usual(most), whole(nearly_all)]),
    })
}

/// Reads the accounts of all processes that take part.
struct Meter<'a> {
    setting: &'a Setting<'a>,
    proxy: Vec<u32>,
    redis: Vec<u32>,
    begun: Option<Reading>,
    ended: Option<Reading>,
}

#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    proxy_us: f64,
    redis_us: f64,
    upstream_us: f64,
    own_us: f64,
    machine_us: f64,
}

impl<'a> Meter<'a> {
    fn new(setting: &'a Setting<'a>, actor: &Actor) -> Meter<'a> {
        Meter {
            setting,
            proxy: actor.server.pids(),
            redis: actor.redis.iter().flat_map(|redis| redis.pids()).collect(),
            begun: None,
            ended: None,
        }
    }

    fn begin(&mut self) {
        self.begun = Some(self.read());
    }

    fn end(&mut self) {
        self.ended = Some(self.read());
    }

    fn read(&self) -> Reading {
        Reading {
            at: Instant::now(),
            proxy_us: process::cpu_us(&self.proxy),
            redis_us: process::cpu_us(&self.redis),
            upstream_us: process::cpu_us(&self.setting.upstream_pids),
            own_us: process::own_cpu_us(),
            machine_us: process::machine_busy_us(),
        }
    }

    fn sample(&self, seen: Seen) -> Sample {
        let (begun, ended) = (self.begun.unwrap(), self.ended.unwrap());
        let took_us = (ended.at - begun.at).as_secs_f64() * 1e6;
        let used = |of: fn(&Reading) -> f64| of(&ended) - of(&begun);
        let each = |of: fn(&Reading) -> f64| used(of) / seen.requests as f64;
        let ours_us = used(|r| r.proxy_us + r.redis_us + r.upstream_us + r.own_us);
        Sample {
            requests: seen.requests,
            per_second: seen.requests as f64 / seen.seconds,
            proxy_us: each(|r| r.proxy_us),
            redis_us: each(|r| r.redis_us),
            upstream_us: each(|r| r.upstream_us),
            busy: used(|r| r.proxy_us) / took_us,
            foreign: ((used(|r| r.machine_us) - ours_us) / took_us).max(0.0),
            waits_us: seen.waits_us,
        }
    }
}

/// How long idle connections rest before memory is read.
const REST: Duration = Duration::from_secs(3);

/// What a proxy has in memory with so many connections that have had one answer and are idle.
pub fn memory(
    setting: &Setting<'_>,
    peer: Peer,
    effort: &Effort,
) -> Result<Vec<(usize, Memory)>, String> {
    let actor = setting.start(peer, Scenario::Memory.limit())?;
    let mut open = Vec::new();
    let mut found = Vec::new();
    for connections in &effort.idle {
        while open.len() < *connections {
            let place = open.len();
            let stream = pace::idle(actor.address, place % CLIENTS);
            open.push(stream.map_err(|error| format!("connection {place}: {error}"))?);
        }
        // None is idle before it has rested.
        std::thread::sleep(REST);
        found.push((*connections, actor.server.memory()));
    }
    Ok(found)
}
