//! Boundaries of calendar windows, compared with a model in Python that shares no code and reads
//! the same zone data.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use tidegate::limit::calendar::Zone;
use tidegate::limit::{AnchorDay, Calendar, CalendarSettings, CalendarUnit};

const SYSTEM: &str = "/usr/share/zoneinfo";

/// One calendar, as a line of the model's input.
struct Case {
    zone: String,
    unit: CalendarUnit,
    time: &'static str,
    weekday: i8,
    month: u8,
    day: u8,
}

impl Case {
    fn line(&self) -> String {
        let Case {
            zone,
            time,
            weekday,
            month,
            day,
            ..
        } = self;
        format!(
            "{zone} {} {time} {weekday} {month} {day}\n",
            self.unit.word()
        )
    }

    fn calendar(&self) -> Calendar {
        let data = std::fs::read(Path::new(SYSTEM).join(&self.zone)).unwrap();
        let zone = Zone {
            name: self.zone.as_str().into(),
            zone: TimeZone::tzif(&self.zone, &data).unwrap(),
        };
        let settings = CalendarSettings {
            zone,
            day: format!("{}:00", self.time).parse().unwrap(),
            week: Weekday::from_monday_zero_offset(self.weekday).unwrap(),
            ..CalendarSettings::default()
        };
        Calendar::new(self.unit, Arc::new(settings))
    }

    fn anchor(&self) -> Option<AnchorDay> {
        match self.unit {
            CalendarUnit::Year => {
                AnchorDay::of_date(&format!("2024-{:02}-{:02}", self.month, self.day))
            }
            _ => AnchorDay::of_month(u64::from(self.day)),
        }
    }
}

/// The names of the system's zones, from its own list.
fn zones() -> Vec<String> {
    let table = std::fs::read_to_string(Path::new(SYSTEM).join("tzdata.zi")).unwrap_or_default();
    let mut names: Vec<String> = table
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            match words.next()? {
                "Z" => words.next(),
                "L" => words.nth(1),
                _ => None,
            }
        })
        .filter(|name| name.contains('/'))
        .map(str::to_owned)
        .collect();
    names.sort_unstable();
    names
}

/// Cases over the zones. All of them with `TIDEGATE_ALL_ZONES`, else a sample with the zones that
/// have odd changes.
fn cases() -> Vec<Case> {
    let is_whole = std::env::var_os("TIDEGATE_ALL_ZONES").is_some();
    let odd = [
        "Africa/Cairo",
        "Africa/Casablanca",
        "America/Santiago",
        "Antarctica/Troll",
        "Asia/Beirut",
        "Australia/Lord_Howe",
        "Europe/Berlin",
        "Pacific/Apia",
    ];
    let mut cases = Vec::new();
    for (index, zone) in zones().into_iter().enumerate() {
        let is_odd = odd.contains(&zone.as_str());
        if !is_whole && !is_odd && index % 12 > 0 {
            continue;
        }
        for unit in CalendarUnit::ALL {
            let with_days = is_whole || is_odd || index % 60 == 0;
            if unit == CalendarUnit::Day && !with_days {
                continue;
            }
            cases.push(Case {
                zone: zone.clone(),
                unit,
                time: ["00:00", "02:30", "12:00"][index % 3],
                weekday: (index % 7) as i8,
                month: 1 + (index % 12) as u8,
                day: [1, 15, 28, 29][index % 4],
            });
        }
    }
    cases
}

#[test]
fn boundaries_are_those_of_an_independent_model() {
    let cases = cases();
    if cases.is_empty() {
        eprintln!("skipped: the system has no zone data");
        return;
    }
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/calendar_model.py");
    let mut python = Command::new("python3")
        .arg(model)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input: String = cases.iter().map(Case::line).collect();
    let mut stdin = python.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = python.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    let output = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.lines().count(), cases.len());
    let mut boundaries = 0;
    for (case, line) in cases.iter().zip(output.lines()) {
        let starts: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        let (calendar, anchor) = (case.calendar(), case.anchor());
        for pair in starts.windows(2) {
            let [start_us, end_us] = [pair[0], pair[1]].map(|second| second * 1_000_000);
            let span = calendar.span(anchor, start_us);
            assert_eq!(
                (span.start_us, span.end_us),
                (start_us, end_us),
                "{}",
                case.line()
            );
            boundaries += 1;
        }
    }
    assert!(boundaries > 100_000, "{boundaries}");
}
