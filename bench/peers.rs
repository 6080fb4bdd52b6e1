//! What users would take in its place, beside it, in one run: nginx and HAProxy as they are, with
//! their own limits, and nginx with a Lua script that asks Redis. docs/performance/method.md
//! says how to read it.
//!
//! `make bench` measures for ten minutes and writes the tables and the picture. `cargo run
//! --release --example bench -- peers --rounds 1 --only c64` is shorter and prints them only.

mod cast;
mod findings;
mod goals;
mod measure;
mod multiplexed;
mod options;
mod packages;
mod peer;
mod plot;
mod report;
mod scenario;
mod wrk;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cast::{Actor, Setting};
use findings::Findings;
use measure::{Effort, QUIET, Sample};
use options::Options;
use packages::Packages;
use peer::Peer;
use scenario::{Load, OPEN, STRICT, Scenario};

use crate::stage::{self, Stage};
use crate::{page, process, upstream};

/// How often a measurement is made again at most, where others used the machine.
const AGAIN: usize = 2;
/// Beside the load itself: looking at processes, starting what sends it.
const AROUND: Duration = Duration::from_millis(300);
/// About what starting one proxy and filling it with idle connections takes.
const MEMORY: Duration = Duration::from_secs(6);

/// Measures and prints; ends the program with an error if something went wrong.
pub fn run(words: &[String]) {
    if words.iter().any(|word| word == "--help") {
        print!("{}", options::USAGE);
        return;
    }
    let options = match Options::read(words) {
        Ok(options) => options,
        Err(wrong) => {
            eprint!("{wrong}\n\n{}", options::USAGE);
            std::process::exit(2);
        }
    };
    let packages = Packages::look();
    if let Some(advice) = packages.advice() {
        eprintln!("{advice}");
    }
    if let Err(wrong) = ready(&options, &packages) {
        eprintln!("{wrong}");
        std::process::exit(1);
    }
    let findings = measure(&options, &packages);
    println!("{}", report::glance(&findings));
    println!("{}", report::details(&findings));
    let json = format!("{:#}\n", findings.to_json());
    written(&options.into.join("peers.json"), &json);
    if let Some(picture) = plot::draw(&findings) {
        written(&options.into.join("peers.svg"), &picture);
    }
    if options.write {
        publish(&options, &findings, &json);
    }
    if !findings.faults.is_empty() {
        std::process::exit(1);
    }
}

fn ready(options: &Options, packages: &Packages) -> Result<(), String> {
    let closed = |scenario: &Scenario| matches!(scenario.load(), Load::Closed(_));
    if packages.wrk.is_none() && options.scenarios.iter().any(closed) {
        return Err(
            "nothing is measured without wrk; `--only http2,steady,memory` \
                    does without it"
                .to_owned(),
        );
    }
    let program = stage::tidegate();
    if !program.exists() {
        return Err(format!(
            "{} is not there: cargo build --release",
            program.display()
        ));
    }
    Ok(())
}

fn publish(options: &Options, findings: &Findings, json: &str) {
    if !options.is_whole() || !findings.missing.is_empty() || !findings.faults.is_empty() {
        eprintln!("docs/ is left as it is: not everything was measured");
        return;
    }
    let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/docs"));
    let tables = [
        ("performance.md", "summary", report::summary(findings)),
        ("performance/figures.md", "peers", report::page(findings)),
    ];
    for (page, place, table) in tables {
        let file = docs.join(page);
        let text = fs::read_to_string(&file).unwrap();
        let text = page::with(&text, place, &table);
        written(&file, &text.expect("the page has a place for it"));
    }
    written(&docs.join("performance.json"), json);
    if let Some(picture) = plot::draw(findings) {
        written(&docs.join("performance.svg"), &picture);
    }
}

fn written(file: &Path, text: &str) {
    if let Some(folder) = file.parent() {
        let _ = fs::create_dir_all(folder);
    }
    match fs::write(file, text) {
        Ok(()) => eprintln!("written: {}", file.display()),
        Err(error) => eprintln!("{}: {error}", file.display()),
    }
}

fn measure(options: &Options, packages: &Packages) -> Findings {
    let (proxy_core, other_core) = options.cores;
    let began = Instant::now();
    let stage = Stage::new();
    process::on_core(Some(other_core), || {
        let (upstream, server) = upstream::start(&stage, None);
        let setting = Setting {
            stage: &stage,
            packages,
            proxy_core,
            other_core,
            upstream,
            upstream_pids: server.pids(),
        };
        let mut run = Run::new(options, &setting);
        run.all();
        let mut findings = run.findings;
        findings.took_s = began.elapsed().as_secs_f64();
        findings
    })
}

/// One run, and the time it has.
struct Run<'a> {
    options: &'a Options,
    setting: &'a Setting<'a>,
    effort: Effort,
    peers: Vec<Peer>,
    findings: Findings,
    end: Instant,
    /// Time that is left for measuring again, and what each round adds to it.
    spare: Duration,
    spare_of_round: Duration,
}

impl<'a> Run<'a> {
    fn new(options: &'a Options, setting: &'a Setting<'a>) -> Run<'a> {
        let there = setting.packages.peers();
        let wanted = options.peers.iter().copied();
        let script = setting.stage.folder("wrk").join("clients.lua");
        fs::write(&script, wrk::CLIENTS_LUA).unwrap();
        let mut run = Run {
            options,
            setting,
            effort: Effort::new(options.seconds, script),
            peers: wanted.filter(|peer| there.contains(peer)).collect(),
            findings: Findings {
                machine: machine(options),
                versions: setting.packages.versions(),
                missing: setting.packages.missing.clone(),
                rounds: options.rounds,
                ..Findings::default()
            },
            end: Instant::now() + options.at_most,
            spare: Duration::ZERO,
            spare_of_round: Duration::ZERO,
        };
        let planned = run.planned();
        run.spare_of_round = options.at_most.saturating_sub(planned) / options.rounds as u32;
        eprintln!(
            "{} rounds, about {:.0} minutes; measured again where others use the machine, until \
             {:.0} minutes at most",
            options.rounds,
            planned.as_secs_f64() / 60.0,
            options.at_most.as_secs_f64() / 60.0
        );
        run
    }

    /// What all of it takes if nothing is measured again.
    fn planned(&self) -> Duration {
        let each = |scenario: &Scenario| {
            let count = self.those_of(*scenario).len();
            match scenario.load() {
                Load::Idle => MEMORY * count as u32,
                _ => {
                    let (those, more) = self.more(*scenario);
                    let times = count * self.options.rounds + those.len() * more;
                    self.one(*scenario) * times as u32
                }
            }
        };
        self.options.scenarios.iter().map(each).sum()
    }

    /// What one measurement takes, about.
    fn one(&self, scenario: Scenario) -> Duration {
        let seconds = match scenario.load() {
            Load::Paced => self.effort.paced_seconds,
            _ => self.effort.seconds as f64,
        };
        AROUND + self.effort.warm + Duration::from_secs_f64(seconds)
    }

    fn those_of(&self, scenario: Scenario) -> Vec<Peer> {
        let peers = scenario.peers().iter().copied();
        peers.filter(|peer| self.peers.contains(peer)).collect()
    }

    /// Whom another number of rounds measures again, after all.
    fn more(&self, scenario: Scenario) -> (Vec<Peer>, usize) {
        let (those, times) = scenario.oftener().unwrap_or((&[], 1));
        let mut those = those.to_vec();
        those.retain(|peer| self.peers.contains(peer));
        (those, self.options.rounds * (times - 1))
    }

    fn all(&mut self) {
        let scenarios = self.options.scenarios.clone();
        let loads: Vec<Scenario> = scenarios
            .iter()
            .copied()
            .filter(|scenario| *scenario != Scenario::Memory)
            .collect();
        if scenarios.contains(&Scenario::Memory) {
            self.memory();
        }
        let strict = loads.iter().any(|scenario| scenario.rejects());
        let open = loads.iter().any(|scenario| scenario.limit() == OPEN);
        let (mut lets, mut rejects) = (Vec::new(), Vec::new());
        for peer in self.peers.clone() {
            if open {
                lets.extend(self.started(peer, OPEN));
            }
            if strict && Scenario::Rejected.peers().contains(&peer) {
                rejects.extend(self.started(peer, STRICT));
            }
        }
        let of = |scenario: Scenario| if scenario.rejects() { &rejects } else { &lets };
        for round in 0..self.options.rounds {
            self.spare += self.spare_of_round;
            for scenario in &loads {
                self.round(round, *scenario, &self.those_of(*scenario), of(*scenario));
            }
        }
        for scenario in &loads {
            let (those, rounds) = self.more(*scenario);
            for round in 0..rounds {
                // These are more than there must be: what is left out is no fault.
                if Instant::now() + self.one(*scenario) * those.len() as u32 > self.end {
                    eprintln!("no time is left for more of {}", scenario.title());
                    break;
                }
                self.round(
                    self.options.rounds + round,
                    *scenario,
                    &those,
                    of(*scenario),
                );
            }
        }
    }

    fn started(&mut self, peer: Peer, limit: scenario::Limit) -> Option<Actor> {
        match self.setting.start(peer, limit) {
            Ok(actor) => Some(actor),
            Err(wrong) => {
                eprintln!("{wrong}");
                self.findings.faults.push(wrong);
                None
            }
        }
    }

    /// All rows of a scenario, one after another; each round another one is first.
    fn round(&mut self, round: usize, scenario: Scenario, wanted: &[Peer], actors: &[Actor]) {
        let mut actors: Vec<&Actor> = actors
            .iter()
            .filter(|actor| wanted.contains(&actor.peer))
            .collect();
        if !actors.is_empty() {
            let first = round % actors.len();
            actors.rotate_left(first);
        }
        for actor in actors {
            let found = if Instant::now() < self.end {
                self.quietest(scenario, actor)
            } else {
                Err("there was no time left".to_owned())
            };
            let what = format!(
                "round {}  {:<15} {:<24}",
                round + 1,
                scenario.title(),
                actor.peer.name()
            );
            match &found {
                Ok(sample) => eprintln!("{what} {}", line(sample)),
                Err(wrong) => {
                    eprintln!("{what} {wrong}");
                    let fault = format!("{}, {}: {wrong}", scenario.title(), actor.peer.name());
                    self.findings.faults.push(fault);
                }
            }
            let samples = self
                .findings
                .samples
                .entry((scenario, actor.peer))
                .or_default();
            samples.push(found.ok());
        }
    }

    /// Measures again while others use the machine, or something went wrong, and there is time.
    fn quietest(&mut self, scenario: Scenario, actor: &Actor) -> Result<Sample, String> {
        let mut best: Option<Result<Sample, String>> = None;
        for again in 0..=AGAIN {
            let before = Instant::now();
            if again > 0 {
                if self.spare < self.one(scenario) {
                    break;
                }
                eprintln!("  again: {}", best.as_ref().map_or(String::new(), reason));
            }
            let found = measure::once(self.setting, actor, scenario, &self.effort);
            if again > 0 {
                self.spare = self.spare.saturating_sub(before.elapsed());
            }
            let quiet = matches!(&found, Ok(sample) if sample.foreign <= QUIET);
            best = Some(match (best, found) {
                (Some(Ok(old)), Ok(new)) if old.foreign <= new.foreign => Ok(old),
                (Some(Ok(old)), Err(_)) => Ok(old),
                (_, found) => found,
            });
            if quiet {
                break;
            }
        }
        best.expect("it is measured at least once")
    }

    fn memory(&mut self) {
        for peer in self.those_of(Scenario::Memory) {
            if Instant::now() >= self.end {
                self.findings
                    .faults
                    .push("memory: there was no time left".to_owned());
                return;
            }
            match measure::memory(self.setting, peer, &self.effort) {
                Ok(found) => {
                    let mib: Vec<String> = found
                        .iter()
                        .map(|(count, memory)| format!("{count}: {} MiB", memory.rss_kib >> 10))
                        .collect();
                    eprintln!("memory  {:<24} {}", peer.name(), mib.join(", "));
                    self.findings.memory.insert(peer, found);
                }
                Err(wrong) => {
                    let fault = format!("memory, {}: {wrong}", peer.name());
                    eprintln!("{fault}");
                    self.findings.faults.push(fault);
                }
            }
        }
    }
}

fn reason(found: &Result<Sample, String>) -> String {
    match found {
        Ok(sample) => format!("others used {:.0} % of a core", sample.foreign * 100.0),
        Err(wrong) => wrong.clone(),
    }
}

fn line(sample: &Sample) -> String {
    let mut text = format!("{:>6.1} us", sample.proxy_us);
    if sample.redis_us > 0.0 {
        text += &format!(" + {:.1}", sample.redis_us);
    }
    if let Some([_, p99, _]) = sample.waits_us {
        text += &format!(", p99 {p99:.0} us");
    }
    text + &format!(
        ", {:.0}/s, others {:.0} %",
        sample.per_second,
        sample.foreign * 100.0
    )
}

/// What it ran on, in words.
fn machine(options: &Options) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let named = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let model = named.map_or("an unknown CPU", |rest| {
        rest.trim_start_matches(['\t', ' ', ':'])
    });
    let kernel = read("/proc/sys/kernel/osrelease");
    let (proxy, other) = options.cores;
    format!(
        "{model}, Linux {}, proxy on core {proxy}, all else on core {other}, {}",
        kernel.trim(),
        page::when()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is installed here, and what was built before: a look at whether it still runs.
    #[test]
    fn a_short_run_measures_what_is_there() {
        let packages = Packages::look();
        if !stage::tidegate().exists() {
            eprintln!("left out: there is no {}", stage::tidegate().display());
            return;
        }
        let mut options = Options::read(&[]).unwrap();
        options.rounds = 1;
        options.seconds = 1;
        options.at_most = Duration::from_secs(60);
        options.peers = vec![Peer::Tidegate, Peer::TidegateEmbedded, Peer::Nginx];
        options.scenarios = vec![Scenario::Http2, Scenario::Steady, Scenario::Memory];
        if packages.wrk.is_some() {
            options.scenarios.push(Scenario::Few);
        }
        let stage = Stage::new();
        let setting = Setting {
            stage: &stage,
            packages: &packages,
            proxy_core: options.cores.0,
            other_core: options.cores.1,
            upstream: upstream::start_thread(),
            upstream_pids: Vec::new(),
        };
        let mut run = Run::new(&options, &setting);
        run.effort.paced_seconds = 0.5;
        run.effort.warm = Duration::ZERO;
        run.effort.rate = 200;
        run.effort.idle = vec![0, 20];
        // However busy the machine is.
        run.spare_of_round = Duration::ZERO;
        run.all();
        let findings = run.findings;
        assert_eq!(findings.faults, [""; 0]);
        for scenario in options.scenarios.iter().copied() {
            let of =
                |peer: &&Peer| packages.peers().contains(*peer) && options.peers.contains(*peer);
            for peer in scenario.peers().iter().filter(of) {
                let measured = match scenario {
                    Scenario::Memory => findings.resident_mib(*peer, 20).is_some(),
                    _ => findings.sample(scenario, *peer, 0).is_some(),
                };
                assert!(measured, "{scenario:?} of {peer:?}");
            }
        }
        assert!(report::glance(&findings).contains("**tidegate**"));
    }

    #[test]
    fn the_documentation_has_a_place_for_it() {
        let results = include_str!("../docs/performance.md");
        assert!(page::with(results, "summary", "").is_some());
        let figures = include_str!("../docs/performance/figures.md");
        assert!(page::with(figures, "peers", "").is_some());
    }
}
