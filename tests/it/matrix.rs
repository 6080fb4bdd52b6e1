//! The fault matrix: each part fails under load, and comes back. Nobody may hang, nobody may pass who
//! should not, and honest clients keep their pace while others attack.
//!
//! Short here. `make faults` takes longer over each and writes `docs/faults.md`.

mod cases;
mod guise;
mod load;
mod scene;
mod soak;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use cases::{CASES, Case, Owed};
use load::{KEPT, Load, Said, Sample};
use scene::TIGHT;

use crate::pace::Pace;

/// How long each fault lasts, and the load before it.
const SHORT: Duration = Duration::from_millis(300);
/// After which a proxy must be as it was.
const RECOVERY: Duration = Duration::from_secs(6);
/// The same where nothing has to be started anew.
const PROMPT: Duration = Duration::from_secs(1);
/// Good answers in a row that say that it is.
const STEADY: usize = 40;
/// Below this nobody can tell the machine from the proxy.
const NOISE: Duration = Duration::from_millis(100);
/// How often an attack is tried until normal clients keep their pace.
const ATTEMPTS: usize = 3;

/// What came of one fault.
struct Row {
    case: &'static Case,
    during: Vec<Sample>,
    all: Vec<Sample>,
    /// From when to when it was done, wholly.
    done: [Instant; 2],
    before_p99: Duration,
    during_p99: Duration,
    passed: usize,
    recovery: Duration,
    /// What this run may take longer because of the machine.
    grant: Duration,
}

impl Row {
    fn count(&self, is: impl Fn(&Sample) -> bool) -> usize {
        self.during.iter().filter(|sample| is(sample)).count()
    }

    fn hung(&self) -> usize {
        let hung = self.all.iter().filter(|sample| sample.said == Said::Hung);
        hung.count()
    }

    fn longest(&self) -> Duration {
        let took = self.all.iter().map(|sample| sample.took);
        took.max().unwrap_or_default()
    }

    /// How much slower the slowest hundredth of the honest is.
    fn slowdown(&self) -> f64 {
        self.during_p99.as_secs_f64() / self.before_p99.as_secs_f64().max(1e-6)
    }

    fn pace(&self) -> String {
        format!("{} → {}", ms(self.before_p99), ms(self.during_p99))
    }

    fn text(&self) -> String {
        let refused = |sample: &Sample| matches!(sample.said, Said::Status(502..=504));
        format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            self.case.part,
            self.case.fault,
            self.count(Sample::is_good),
            self.count(refused),
            self.count(|sample| sample.said == Said::Cut),
            self.passed.saturating_sub(TIGHT),
            self.hung(),
            self.pace(),
            ms(self.longest()),
            ms(self.recovery),
        )
    }
}

fn ms(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}

fn p99(samples: &[Sample]) -> Duration {
    let mut took: Vec<Duration> = samples.iter().map(|sample| sample.took).collect();
    took.sort_unstable();
    took.get(took.len() * 99 / 100).copied().unwrap_or_default()
}

/// Where from on all are good, and for long enough.
fn recovered(samples: &[Sample], from: Instant) -> Option<Duration> {
    let bad = samples.iter().rposition(|sample| !sample.is_good());
    let behind = samples.len() - bad.map_or(0, |at| at + 1);
    let last = bad.map_or(from, |at| samples[at].at + samples[at].took);
    (behind >= STEADY).then(|| last.saturating_duration_since(from))
}

/// An attack that is `aside` is one on another proxy: what it costs then is the machine's.
fn run(case: &'static Case, lasts: Duration, aside: bool) -> Row {
    let pace = Pace::begin();
    let mut scene = (case.make)();
    scene.aside = aside.then(|| Box::new((case.make)()));
    let load = Load::on(&scene.way);
    // The first answers are those of a process that has just begun.
    std::thread::sleep(lasts / 2);
    let warm = Instant::now();
    std::thread::sleep(lasts);
    let began = Instant::now();
    (case.begin)(&mut scene);
    let done = Instant::now();
    std::thread::sleep(lasts);
    wait_for_failure(case.owed, &load, done);
    let asked_last = Instant::now();
    (case.end)(&mut scene);
    let ended = Instant::now();
    let recovery = loop {
        std::thread::sleep(Duration::from_millis(50));
        let mut since = load.samples();
        since.retain(|sample| sample.at + sample.took >= ended);
        let patience = ended.elapsed() > 2 * RECOVERY + load::HUNG;
        match recovered(&since, ended) {
            Some(recovery) => break recovery,
            None if patience => break ended.elapsed(),
            None => {}
        }
    };
    let all = load.end();
    let within = |from: Instant, to: Instant| {
        let inside = all.iter().filter(|one| one.at >= from && one.at < to);
        inside.copied().collect::<Vec<_>>()
    };
    let (before, during) = (within(warm, began), within(began, asked_last));
    let passed = |sample: &&Sample| sample.tight && sample.said == Said::Status(200);
    Row {
        case,
        before_p99: p99(&before),
        during_p99: p99(&during),
        passed: all.iter().filter(passed).count(),
        during,
        done: [done, asked_last],
        recovery,
        grant: pace.grants(),
        all,
    }
}

/// Whether somebody must fail meanwhile: where nobody does, nothing was tried.
fn fails(owed: Owed) -> bool {
    matches!(owed, Owed::Refusal | Owed::Distrust | Owed::Stop)
}

/// A busy machine may have had no time for a single request.
fn wait_for_failure(owed: Owed, load: &Load, since: Instant) {
    let failed = |sample: &Sample| sample.at >= since && !sample.is_good();
    while fails(owed) && !load.samples().iter().any(failed) && since.elapsed() < 2 * load::HUNG {
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn check(row: &Row) {
    let Case {
        part, fault, owed, ..
    } = row.case;
    let name = format!("{part}, {fault}: {}", row.text());
    let grant = row.grant;
    assert_eq!(row.hung(), 0, "{name}");
    assert!(row.passed <= TIGHT, "{} passed: {name}", row.passed);
    assert!(row.recovery < RECOVERY + grant, "{name}");
    let odd = row.during.iter().filter(|sample| !sample.is_good());
    let odd: Vec<Said> = odd.map(|sample| sample.said).collect();
    let may_be = |said: &Said| match owed {
        Owed::Refusal => matches!(said, Said::Status(502..=504)),
        Owed::Distrust => *said == Said::Status(502),
        Owed::Stop => *said == Said::Cut,
        Owed::Service | Owed::Pace | Owed::Patience => false,
    };
    assert!(odd.iter().all(may_be), "{odd:?}: {name}");
    assert!(!fails(*owed) || !odd.is_empty(), "nothing failed: {name}");
    let wholly = |one: &&Sample| one.at >= row.done[0] && one.at + one.took <= row.done[1];
    let wholly = row.during.iter().filter(wholly);
    let passed = wholly.filter(|sample| sample.said == Said::Status(200));
    let may_pass = match owed {
        Owed::Distrust => 0,
        Owed::Stop => KEPT,
        _ => usize::MAX,
    };
    assert!(passed.count() <= may_pass, "{name}");
    if matches!(owed, Owed::Distrust | Owed::Stop) {
        assert!(row.recovery < PROMPT + grant, "{name}");
    }
    assert!(keeps_pace(row), "{name}");
}

fn keeps_pace(row: &Row) -> bool {
    row.case.owed != Owed::Pace || row.during_p99 < (3 * row.before_p99).max(NOISE) + row.grant
}

/// A fault of the proxy slows every attempt. A busy machine that stops for a moment slows one of them.
fn run_until_it_keeps_pace(case: &'static Case, lasts: Duration) -> Row {
    for _ in 1..ATTEMPTS {
        let row = run(case, lasts, false);
        if keeps_pace(&row) {
            return row;
        }
        println!("again, because normal clients were slow: {}", row.text());
    }
    run(case, lasts, false)
}

const HEAD: &str = "\
# Faults

This page is for operators and engineers. It shows how normal clients are served while a part fails or an
attack runs, and how soon all is as before.

Four normal clients send requests all the time, on kept and on new connections. Three of them use routes with
a high limit. One uses a route with a limit of 40 a day. `make faults` does each fault to a running proxy, and
writes this page. Every run of the tests does a shorter version. A test fails if a request hangs, or passes
without permission. It also fails if a response has an unexpected status, or if normal clients become too
slow.

- *served*: requests during the fault with 200, or with a 429 that was right;
- *refused*: requests during the fault with 502, 503 or 504; *cut*: the connection ended without a response;
- *wrongly allowed*: requests that passed beyond the limit of 40;
- *hung*: no response within eight seconds;
- *p99*: 99th percentile of the response time in milliseconds, before and during the fault;
- *recovery*: milliseconds from the end of the fault until the last request that was not served.

| part | what is done | served | refused | cut | wrongly allowed | hung | p99, ms | longest, ms | recovery, ms |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|
";

const BESIDE: &str = "
## How much of this the machine causes

An attack also takes CPU of the attacker, the upstream and the kernel. Here they all share two cores with the
proxy. So each attack also runs against another proxy, beside that of the normal clients. The p99 of that run
is the slowdown that any program on such a busy machine has.

| what is done | p99, ms, done to their proxy | to another beside it |
|---|--:|--:|
";

const WHY: &str = "
## What was found

- *HTTP/2 streams reset at once*: each stream opened a connection to the upstream, which closed again before
  any use. A third of the proxy's time was connecting. Now a stream that is reset at once is charged, and
  opens no connection.
- *Uploads to a dead upstream*: the proxy reads and discards the rest of an upload for a while, so that the
  client gets its response. It did that 4 KiB at a time, and spent most of its time on it. Now it reads 64 KiB
  at a time, and other connections get a turn after every eighth read.
- *Slow readers of 8 MiB*: the proxy wrote as fast as the kernel had room. Until then no other client of the
  worker had a turn. With twelve readers, it wrote 29 MB between two checks for ready connections. Now others
  have a turn after each 256 KiB of a response, which makes 3 MB. On a busy machine, in five runs each, normal
  clients waited at most 51 to 98 ms before and 25 to 59 ms after. Their p99 rose from 2 to 5 ms,
  because more of them get a response meanwhile, each a little late. It grows beside another proxy as well,
  because thirty threads of the upstream write.
- *Leaving in the middle*: three quarters of the proxy's time are in the kernel, which closes connections and
  frees their data. Upstream and attackers use twice as much of the machine as the proxy. Part of the cost
  came from the upstream of the tests, which wrote a stack trace for each such client.
";

#[test]
fn whatever_fails_nobody_hangs_and_nobody_passes_who_should_not() {
    let variable = |name: &str| std::env::var(name).ok();
    let seconds = variable("TIDEGATE_FAULTS").and_then(|text| text.parse().ok());
    let lasts = seconds.map_or(SHORT, Duration::from_secs_f64);
    let only = variable("TIDEGATE_FAULT").unwrap_or_default();
    let writes = variable("TIDEGATE_FAULTS_WRITE").is_some();
    let (mut page, mut beside) = (HEAD.to_owned(), BESIDE.to_owned());
    let mut worst: (f64, &str) = (0.0, "");
    for case in &CASES {
        if !format!("{}, {}", case.part, case.fault).contains(&only) {
            continue;
        }
        let row = run_until_it_keeps_pace(case, lasts);
        println!("{}", row.text());
        check(&row);
        if case.owed == Owed::Pace && row.slowdown() > worst.0 {
            worst = (row.slowdown(), case.fault);
        }
        writeln!(page, "{}", row.text()).unwrap();
        if case.owed == Owed::Pace && (writes || variable("TIDEGATE_FAULTS_BESIDE").is_some()) {
            let control = run(case, lasts, true);
            let line = format!("| {} | {} | {} |", case.fault, row.pace(), control.pace());
            println!("{line}");
            writeln!(beside, "{line}").unwrap();
        }
    }
    println!(
        "under attack p99 grows by {:.1} at most ({})",
        worst.0, worst.1
    );
    if writes {
        writeln!(
            page,
            "\nEach lasted {} s. Of the attacks, *{}* slowed normal clients most:\ntheir p99 grew to {:.1} times. \
             Attackers, clients, upstream and proxy shared the machine's two cores.",
            lasts.as_secs_f64(),
            worst.1,
            worst.0
        )
        .unwrap();
        page.push_str(&beside);
        page.push_str(WHY);
        let place = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/faults.md");
        std::fs::write(place, page).unwrap();
    }
}
