//! Sentences about what a log lacked, and about what a replay made of it.

use super::counts::CallTotals;
use super::engine::Engine;
use super::entry::LineFormat;
use super::figures::counted;
use super::logs::LogSummary;
use crate::limit::key::Part;
use crate::limit::{Algorithm, Missing};

pub fn of_log(engine: &Engine, logs: &[LogSummary]) -> Vec<String> {
    let mut notes = Vec::new();
    missing_parts(engine, &mut notes);
    let totals = &engine.counts.totals;
    if totals.unknown_keys > 0 {
        notes.push(format!(
            "{} had an API key that is not known: as in the proxy it was no identity",
            counted(totals.unknown_keys, "request")
        ));
    }
    if let Some(port) = engine.first_port().filter(|_| totals.portless > 0) {
        notes.push(format!(
            "{} had no port in the log: for routes with `port` they came to {port}, the first of \
             `listen`",
            counted(totals.portless, "request")
        ));
    }
    if engine.config.jwks.is_some() {
        notes.push("the keys of `jwks_url` are not fetched here: no token was believed".to_owned());
    }
    let mut meters = engine.counts.meters.iter();
    if totals.untimed > 0 {
        notes.push(format!(
            "{} were not asked for requests at once: the log does not say how long they took",
            counted(totals.untimed, "request")
        ));
    } else if !engine.orders_by_start() && meters.any(|meter| meter.algorithm() == Algorithm::Slots)
    {
        notes.push(
            "requests at once are held from their line on, for as long as they took".to_owned(),
        );
    }
    let settling = engine.settling_routes();
    if !settling.is_empty() {
        notes.push(format!(
            "no log says what a response settled: route {} was charged as it came in",
            settling.join(", ")
        ));
    }
    calls(&totals.calls, &mut notes);
    clock(engine, &mut notes);
    for (row, stats) in engine.plan.rows.iter().zip(&engine.counts.rows) {
        if !stats.forgotten.is_empty() {
            notes.push(format!(
                "limit `{}` met more keys than are kept at once (--max-keys): {} were forgotten, \
                 and count twice if they came again",
                row.window.policy,
                stats.forgotten.values().sum::<u64>()
            ));
        }
    }
    for log in logs {
        let is_own = matches!(log.format, Some(LineFormat::Own | LineFormat::OwnText));
        if is_own && log.lines > 0 && log.denials == log.lines {
            notes.push(format!(
                "{} has denials alone, so the figures are too low: `[log] sample_allowed = 1.0` \
                 makes tidegate log the other requests too",
                log.name
            ));
        }
        if let Some(error) = &log.error {
            notes.push(format!("{} ends early: {error}", log.name));
        }
    }
    notes
}

/// Says what the log lacks of calls of model servers, and what stands for it.
fn calls(calls: &CallTotals, notes: &mut Vec<String>) {
    let mut add = |count: u64, what: &str| {
        if count > 0 {
            notes.push(format!("{} {what}", counted(count, "request")));
        }
    };
    add(
        calls.tokenless,
        "on routes with `usage` had no tokens: limits that count usage were not asked",
    );
    add(
        calls.broken,
        "had a count of tokens that is no whole number: it counts as missing",
    );
    add(
        calls.estimated,
        "had no reserve in the log: they reserved their own input, and the maximum of output in \
         the log or `default_output`",
    );
    add(
        (calls.requests - calls.tokenless).saturating_sub(calls.estimated),
        "reserved what the log says: `bytes_per_token` and `default_output` were not used",
    );
    add(
        calls.unsettled,
        "were denied before or had no usage in the answer: they kept their reserve",
    );
    add(
        calls.untimed,
        "had no duration: they were settled when they began",
    );
}

/// Names the parts of keys that no line had.
fn missing_parts(engine: &Engine, notes: &mut Vec<String>) {
    let has_unknown_keys = engine.counts.totals.unknown_keys > 0;
    for planned in &engine.plan.limits {
        let space = &engine.plan.key_spaces[planned.key_space];
        let never = space.never_carried();
        let never = never.filter(|part| !(has_unknown_keys && **part == Part::ApiKey));
        let parts: Vec<_> = never.map(ToString::to_string).collect();
        if parts.is_empty() || !space.asked {
            continue;
        }
        let limit = &planned.limit;
        let instead = match limit.missing {
            _ if !space.lacked => "it counted by the rest of its key",
            Missing::Ip => "it counted by the address (missing = \"ip\")",
            Missing::Shared => "all such requests were counted together (missing = \"shared\")",
            Missing::Skip => "it was not asked (missing = \"skip\")",
            Missing::Deny if limit.shadow => "in shadow mode it left such requests out",
            Missing::Deny => "such requests were refused (missing = \"deny\")",
        };
        notes.push(format!(
            "limit `{}`: no line has {}; {instead}",
            limit.name,
            parts.join(" or ")
        ));
    }
}

fn clock(engine: &Engine, notes: &mut Vec<String>) {
    let clock = &engine.counts.clock;
    if clock.late > 0 {
        notes.push(format!(
            "{} were up to {:.1} s older than the line before: taken at its time",
            counted(clock.late, "line"),
            clock.latest_us as f64 / 1e6
        ));
    }
    if clock.steps > 0 {
        notes.push(format!(
            "the log's clock was set back {}",
            counted(clock.steps, "time")
        ));
    }
    if clock.leaps > 0 {
        notes.push(format!(
            "{} of a far future were taken at the time of the line before",
            counted(clock.leaps, "line")
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::logs::{LineReader, LogOptions};

    fn engine_of(text: &str) -> Engine {
        let Ok((config, _)) = config::parse("test", text, &|_| None) else {
            panic!("a bad configuration");
        };
        Engine::new(config, "", 16)
    }

    #[test]
    fn a_request_comes_to_the_port_of_its_log_or_of_its_host() {
        let text = "listen = [\":8080\", \":8081\"]\nupstream = \"http://127.0.0.1:9\"\n\
                    [limit.a]\nrate = \"1/s\"\n\
                    [[route]]\npath = \"/*\"\nport = 8080\nlimits = [\"a\"]\n\
                    [[route]]\npath = \"/*\"\nport = 8081\nlimits = []\n";
        for (host, member, asked, notes) in [
            ("h", "", 1, 1),
            ("h:8080", "", 1, 0),
            ("h:8081", "", 0, 0),
            ("h:9", "", 1, 1),
            ("[::1]:8081", "", 0, 0),
            ("h:8080", ",\"server_port\":\"8081\"", 0, 0),
        ] {
            let line = format!(
                "{{\"ts\":1795214221,\"remote_addr\":\"192.0.2.7\",\"host\":\"{host}\",\
                 \"request\":\"GET / HTTP/1.1\"{member}}}"
            );
            let mut engine = engine_of(text);
            let mut reader = LineReader::new(&LogOptions::default());
            engine.take(&reader.read(line.as_bytes()).unwrap().0);
            let found = of_log(&engine, &[]);
            let of_port = found.iter().filter(|note| note.contains("came to 8080"));
            assert_eq!(
                (engine.counts.rows[0].asked, of_port.count()),
                (asked, notes),
                "{line}"
            );
        }
    }

    #[test]
    fn forgotten_keys_are_told() {
        let text = "upstream = \"http://127.0.0.1:9\"\n[limit.default]\nrate = \"2/s\"\n";
        let mut engine = engine_of(text);
        let mut reader = LineReader::new(&LogOptions::default());
        for client in 0..200 {
            let line = format!(
                "192.0.2.{client} - - [20/Nov/2026:22:{:02}:00 +0000] \"GET / HTTP/1.1\" 200 5",
                client / 4
            );
            let (entry, _) = reader.read(line.as_bytes()).unwrap();
            engine.take(&entry);
        }
        engine.finish();
        let notes = of_log(&engine, &[]);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].contains("--max-keys"), "{notes:?}");
    }

    #[test]
    fn what_a_log_lacks_of_calls_is_told() {
        let mut notes = Vec::new();
        let totals = CallTotals {
            requests: 9,
            tokenless: 4,
            broken: 2,
            estimated: 1,
            unsettled: 3,
            untimed: 5,
        };
        calls(&totals, &mut notes);
        for beginning in [
            "4 requests on routes with `usage` had no tokens",
            "2 requests had a count of tokens that is no whole number",
            "1 request had no reserve in the log",
            "4 requests reserved what the log says",
            "3 requests were denied before",
            "5 requests had no duration",
        ] {
            let is_told = notes.iter().any(|note| note.starts_with(beginning));
            assert!(is_told, "no `{beginning}` in {notes:?}");
        }
        notes.clear();
        calls(&CallTotals::default(), &mut notes);
        assert!(notes.is_empty(), "{notes:?}");
    }
}
