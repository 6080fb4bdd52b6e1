//! What a decision costs the server: CPU, in the script and in the whole process.

use std::time::Duration;

use super::contender::{Ask, Client, Contender, clock_us};
use crate::support::RedisServer;

const SECOND_US: u64 = 1_000_000;
const LONG_US: u64 = 1_200 * SECOND_US;
/// Units in a window while it is measured.
const LIVE: u64 = 1_000;

/// CPU of one decision, us.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Inside the commands that the contender sends, as the server accounts for it.
    pub script_us: f64,
    /// Of the server's process, user and system: reading, parsing and answering included.
    pub process_us: f64,
}

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flight {
    /// One after the other.
    Lone,
    /// 16 in flight, each a call of its own.
    Pipelined,
    /// 16 in one call of our script.
    Together,
}

#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub flight: Flight,
    pub keys: u64,
    /// Limits of each request.
    pub limits: u64,
    /// Requests a second for each key; the window is one second.
    pub rate: u64,
}

/// How long it is measured, and how often: the cheapest of the repeats counts.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// How long requests come before it is measured: a window, for full ones.
    pub before_us: u64,
    pub repeats: u32,
    pub repeat_us: u64,
    pub denials: u64,
}

impl Load {
    /// What every contender is measured by: 16 in flight, about 1000 live entries in a key.
    pub fn of(contender: Contender) -> Load {
        Load {
            flight: Flight::Pipelined,
            // Reading all members at each request, that one would not keep up with more.
            keys: if contender == Contender::MultiExec {
                3
            } else {
                10
            },
            limits: 1,
            rate: LIVE,
        }
    }

    fn size(self) -> u64 {
        if self.flight == Flight::Lone { 1 } else { 16 }
    }
}

/// Full windows in real time: each request is allowed, adds a unit, and one expires.
pub fn allowed(server: &RedisServer, contender: Contender, load: Load, effort: Effort) -> Cost {
    paced(server, contender, load, effort, 1_000_000)
}

/// Full windows of twenty minutes, as many requests as one connection can send.
pub fn denied(server: &RedisServer, contender: Contender, load: Load, effort: Effort) -> Cost {
    if contender == Contender::MultiExec {
        // It records what it denies, so it is measured at a steady size of its set.
        return paced(server, contender, load, effort, 1);
    }
    server.run("FLUSHALL");
    let mut client = Client::new(contender, server);
    // In calls of their own, all requests are for one hot key.
    let keys = if load.flight == Flight::Together {
        load.keys
    } else {
        1
    };
    let ask = |who| Ask {
        limits: load.limits,
        ..Ask::new(who, LIVE, LONG_US)
    };
    for who in 0..keys {
        client.fill(&vec![ask(who); LIVE as usize]);
    }
    let mut meter = Meter::new(server, contender);
    for _ in 0..effort.repeats {
        meter.begin();
        let mut sent = 0;
        while sent < effort.denials {
            let asks: Vec<Ask> = (sent..sent + load.size()).map(|i| ask(i % keys)).collect();
            send(&mut client, load.flight, &asks);
            sent += load.size();
        }
        meter.end(sent);
    }
    meter.least
}

/// Requests at a steady rate in windows of a second: measured from the second window on.
fn paced(
    server: &RedisServer,
    contender: Contender,
    load: Load,
    effort: Effort,
    units: u64,
) -> Cost {
    server.run("FLUSHALL");
    let mut client = Client::new(contender, server);
    let mut meter = Meter::new(server, contender);
    let (first_us, mut asked) = (clock_us(), 0);
    let mut run = |for_us: u64| {
        let (start_us, mut sent) = (clock_us(), 0);
        while clock_us() < start_us + for_us {
            let due_us = start_us + sent * SECOND_US / (load.rate * load.keys);
            std::thread::sleep(Duration::from_micros(due_us.saturating_sub(clock_us())));
            let next = |i| {
                let place = asked + i;
                let mut ask = Ask::new(place % load.keys, units, SECOND_US);
                ask.limits = load.limits;
                if contender == Contender::MultiExec {
                    // Requests of one millisecond of the client's clock would be one member.
                    ask.now_us = Some(first_us + place / load.keys * SECOND_US / LIVE);
                }
                ask
            };
            let asks: Vec<Ask> = (0..load.size()).map(next).collect();
            send(&mut client, load.flight, &asks);
            asked += load.size();
            sent += load.size();
        }
        sent
    };
    run(effort.before_us);
    for _ in 0..effort.repeats {
        meter.begin();
        let decisions = run(effort.repeat_us);
        meter.end(decisions);
    }
    meter.least
}

fn send(client: &mut Client, flight: Flight, asks: &[Ask]) {
    match flight {
        Flight::Lone | Flight::Pipelined => client.pipelined(asks),
        Flight::Together => client.together(asks),
    };
}

/// Reads the server's accounts before and after.
struct Meter<'s> {
    server: &'s RedisServer,
    contender: Contender,
    connection: redis::Connection,
    before_us: f64,
    least: Cost,
}

impl<'s> Meter<'s> {
    fn new(server: &'s RedisServer, contender: Contender) -> Meter<'s> {
        Meter {
            server,
            contender,
            connection: server.connect(),
            before_us: 0.0,
            least: Cost {
                script_us: f64::INFINITY,
                process_us: f64::INFINITY,
            },
        }
    }

    fn begin(&mut self) {
        self.server.run("CONFIG RESETSTAT");
        self.before_us = self.cpu_us();
    }

    fn end(&mut self, decisions: u64) {
        let process_us = self.cpu_us() - self.before_us;
        let stats = info(&mut self.connection, "commandstats");
        let script_us: f64 = self
            .contender
            .commands()
            .iter()
            .filter_map(|command| field(&stats, &format!("cmdstat_{command}:")))
            .map(|account| {
                let mut parts = account.split(',');
                let us = parts.find_map(|part| part.strip_prefix("usec="));
                us.unwrap().parse::<f64>().unwrap()
            })
            .sum();
        let decisions = decisions as f64;
        // One counts the time that passes, the other what is used: noise adds to each by itself.
        self.least.script_us = self.least.script_us.min(script_us / decisions);
        self.least.process_us = self.least.process_us.min(process_us / decisions);
    }

    /// CPU of the server's process so far, us.
    fn cpu_us(&mut self) -> f64 {
        let cpu = info(&mut self.connection, "cpu");
        let seconds = |name| -> f64 { field(&cpu, name).unwrap().parse().unwrap() };
        (seconds("used_cpu_user:") + seconds("used_cpu_sys:")) * 1e6
    }
}

/// A section of INFO.
pub fn info(connection: &mut redis::Connection, section: &str) -> String {
    redis::cmd("INFO").arg(section).query(connection).unwrap()
}

/// What follows `name` on the line that begins with it.
pub fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}
