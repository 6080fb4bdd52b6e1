//! Our script, as the benchmark asks it: the only place here that knows the library's interface.

use redis::Cmd;
use tidegate::limit::{Algorithm, Charge, Retry, Rule};
use tidegate::store::batch::{Group, Reply, SCRIPT, ScriptCall, ScriptName, write};

use super::contender::{Answer, Ask, Wait};
use crate::support::{item, limit};

/// What the server is to load.
pub const TEXT: &str = SCRIPT;

/// One call that decides all of `asks`, each by itself.
pub fn call(known: &str, algorithm: Algorithm, asks: &[Ask]) -> Cmd {
    let charges: Vec<Charge> = asks.iter().map(|ask| charge(algorithm, ask)).collect();
    let groups = charges.iter().map(Group::one);
    let call = ScriptCall {
        script: ScriptName::Hash(known),
        prefix: "t:",
        holder: 0,
        now_us: asks[0].now_us,
        store_us: 0,
    };
    let mut command = Cmd::new();
    write(&mut command, call, groups);
    command
}

/// The answers to that call; what they were counted by does not show in them.
pub fn answers(reply: &[u8], asks: &[Ask]) -> Vec<Answer> {
    let mut reply = Reply::read(reply).unwrap();
    asks.iter()
        .map(|ask| {
            let charge = charge(Algorithm::Log, ask);
            let outcome = reply.outcome(&charge, 1).unwrap().done().unwrap();
            let decision = outcome.decision(0, &charge).unwrap();
            let waits = decision.verdicts.iter().map(|verdict| match verdict.retry {
                Retry::Now => Wait::Us(0),
                Retry::After(us) => Wait::Us(us),
                _ => Wait::Never,
            });
            Answer {
                allowed: decision.allowed,
                wait: waits.max().unwrap(),
            }
        })
        .collect()
}

fn charge(algorithm: Algorithm, ask: &Ask) -> Charge {
    let rule = Rule {
        algorithm,
        units: ask.units,
        window_us: ask.window_us,
        precision_us: 1,
    };
    (0..ask.limits)
        .map(|place| item(&limit(&format!("limit{place}"), rule), ask.who, ask.cost))
        .collect()
}
