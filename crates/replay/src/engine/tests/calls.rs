//! Calls of model servers: reserve, settlement, and what a log may lack.

use super::super::*;
use crate::config;
use crate::json::{MemberMapping, TokenFrom};
use crate::logs::{LineReader, LogOptions};
use crate::meter::Rates;
use crate::tokens::CallField;

fn config_of(limits: &str) -> Config {
    let text = format!(
        "upstream = \"http://127.0.0.1:9\"\n[usage.chat]\nformat = \"openai\"\n\
         default_output = 100\nweights = {{ input = 1, cached = 0.5, output = 2 }}\n\
         [prices]\n\"gpt*\" = {{ input = 1, output = 10 }}\n{limits}\n\
         [[route]]\npath = \"/*\"\nlimits = [\"a\"]\nusage = \"chat\"\nrefund = [\"5xx\"]\n"
    );
    match config::parse("test", &text, &|_| None) {
        Ok((config, _)) => config,
        Err(found) => panic!("{}", config::render::human(&found, false)),
    }
}

const TOKENS: &str = "[limit.a]\nrate = \"1000/min\"\ncounts = \"tokens\"\n";

fn replayed_with(limits: &str, lines: &[String], mapping: MemberMapping) -> Engine {
    let mut engine = Engine::new(config_of(limits), "", 1000);
    let format = None;
    let mut reader = LineReader::new(&LogOptions { format, mapping });
    for line in lines {
        let (entry, _) = reader.read(line.as_bytes()).unwrap();
        engine.take(&entry);
    }
    engine.finish();
    engine
}

fn replayed(limits: &str, lines: &[String]) -> Engine {
    replayed_with(limits, lines, MemberMapping::default())
}

/// A line of tidegate's own log: second and milliseconds of its beginning, its duration, and the
/// members of `usage`.
fn own(second: f64, took_ms: u64, status: u16, usage: &str) -> String {
    let duration_us = took_ms * 1000;
    format!(
        "{{\"time\":\"2026-11-20T22:37:{second:06.3}Z\",\"client\":\"192.0.2.1\",\
         \"method\":\"POST\",\"path\":\"/\",\"status\":{status},\"duration_us\":{duration_us},\
         \"outcome\":\"allowed\",\"usage\":{{{usage}}}}}"
    )
}

/// The members of a settled call, whose reserve has 10 tokens of input.
fn exact(reserved: u64, input: u64, output: u64) -> String {
    format!(
        "\"model\":\"gpt\",\"input\":{input},\"output\":{output},\"reserved\":{reserved},\
         \"reserved_input\":10,\"named_maximum\":true,\"outcome\":\"exact\""
    )
}

fn denied(engine: &Engine) -> Rates<u64> {
    engine.counts.rows[0].denied
}

fn need(engine: &Engine) -> u32 {
    engine.counts.meters[0].keys[0].need
}

fn rates(half: u64, own: u64, twice: u64) -> Rates<u64> {
    Rates { half, own, twice }
}

#[test]
fn a_call_holds_its_reserve_until_its_end() {
    // The second call begins while the first is under way. Its line comes first.
    let lines = [
        own(2.0, 500, 200, &exact(600, 10, 90)),
        own(0.0, 5_000, 200, &exact(600, 10, 90)),
        own(6.0, 500, 200, &exact(800, 10, 90)),
    ];
    let engine = replayed(TOKENS, &lines);
    // At half the rate each reserve is too much.
    assert_eq!(denied(&engine), rates(3, 1, 0));
    // All of them allowed, two reserves stand at once.
    assert_eq!(need(&engine), 1200);
    assert_eq!(engine.counts.rows[0].spent, 300);
    assert_eq!(engine.counts.clock.late, 0);
}

#[test]
fn the_lines_of_our_own_log_are_put_in_their_order() {
    let limit = "[limit.a]\nrate = \"1/s\"\ncounts = \"requests\"\n";
    let lines = [0.1, 1.3, 0.0, 2.2, 1.15].map(|at| own(at, 1, 200, &exact(100, 10, 90)));
    let engine = replayed(limit, &lines);
    // Those at 0, 1.15 and 2.2 s pass.
    assert_eq!(denied(&engine).own, 2);
    assert_eq!(engine.counts.clock.late, 0);
}

#[test]
fn an_answer_above_its_reserve_is_charged_at_its_end() {
    let lines = [
        own(0.0, 1_000, 200, &exact(100, 10, 1_500)),
        own(0.5, 1, 200, &exact(100, 10, 0)),
        own(2.0, 1, 200, &exact(100, 10, 0)),
    ];
    let engine = replayed(TOKENS, &lines);
    assert_eq!(denied(&engine), rates(1, 1, 0));
    assert_eq!(
        need(&engine),
        1_620,
        "with less, a window would be overdrawn"
    );
}

#[test]
fn an_answer_that_broke_off_is_charged_what_it_had_reported_or_its_reserve() {
    let spent = |output| {
        let aborted = exact(100, 10, output).replace("exact", "aborted");
        let engine = replayed(TOKENS, &[own(0.0, 1_000, 200, &aborted)]);
        engine.counts.rows[0].spent
    };
    assert_eq!((spent(3), spent(400)), (100, 410));
}

#[test]
fn a_guess_is_lowered_to_what_the_limit_holds() {
    let guess = |at| {
        let usage =
            exact(5_010, 10, 40).replace("\"named_maximum\":true", "\"named_maximum\":false");
        own(at, 100, 200, &usage)
    };
    let engine = replayed(TOKENS, &[guess(0.0), guess(0.05)]);
    // The first takes all that each limit holds until its end.
    assert_eq!(denied(&engine), rates(1, 1, 1));
    let engine = replayed(TOKENS, &[guess(0.0)]);
    assert_eq!((denied(&engine), need(&engine)), (rates(0, 0, 0), 50));
    let engine = replayed(TOKENS, &[own(0.0, 100, 200, &exact(5_010, 10, 40))]);
    assert_eq!(
        denied(&engine),
        rates(1, 1, 1),
        "a maximum of the request is never lowered"
    );
}

#[test]
fn refunds_and_denials_of_the_log_are_known() {
    let denied_before = exact(900, 0, 0).replace("exact", "denied");
    let lines = [
        own(0.0, 100, 503, &exact(900, 10, 90)),
        own(1.0, 1, 429, &denied_before),
        own(2.0, 1, 200, &exact(200, 10, 90)),
    ];
    let engine = replayed(TOKENS, &lines);
    // The first was refunded; the second keeps its reserve, because no answer is known.
    assert_eq!(denied(&engine).own, 1);
    assert_eq!(engine.counts.totals.calls.unsettled, 1);
    assert_eq!(engine.counts.rows[0].spent, 900 + 100);
}

#[test]
fn each_quantity_is_counted() {
    let usage = exact(610, 10, 200).replace("\"output\"", "\"cached\":4,\"output\"");
    for (counts, spent) in [
        ("tokens", 210),
        ("input", 10),
        ("output", 200),
        // 6 + 4 / 2 + 2 * 200
        ("costs", 408),
        // 10 + 2000 millionths
        ("money", 2_010),
        ("requests", 1),
    ] {
        let limit = format!("[limit.a]\nrate = \"9000/min\"\ncounts = \"{counts}\"\n");
        let engine = replayed(&limit, &[own(0.0, 1, 200, &usage)]);
        assert_eq!(engine.counts.rows[0].spent, spent, "{counts}");
    }
    let money = "[limit.a]\nrate = \"9000/min\"\ncounts = \"money\"\n";
    let other = usage.replace("gpt", "other");
    let engine = replayed(money, &[own(0.0, 1, 200, &other)]);
    assert_eq!(engine.counts.totals.outside[&Outside::Unpriced], 1);
    // A limit in shadow mode refuses no call.
    let engine = replayed(
        &format!("{money}shadow = true\n"),
        &[own(0.0, 1, 200, &other)],
    );
    assert!(engine.counts.totals.outside.is_empty());
    // A model of the answer without a price costs what that of the request costs.
    let asked = format!("{other},\"requested_model\":\"gpt\"");
    let engine = replayed(money, &[own(0.0, 1, 200, &asked)]);
    assert_eq!(engine.counts.rows[0].spent, 2_010);
}

#[test]
fn a_request_that_asks_no_model_costs_no_tokens() {
    let line = own(0.0, 1, 200, "\"model\":\"gpt\"").replace("POST", "GET");
    let engine = replayed(TOKENS, &[line]);
    assert_eq!(engine.counts.rows[0].spent, 0);
    assert_eq!(engine.counts.totals.calls.requests, 0);
}

#[test]
fn what_the_log_lacks_is_counted() {
    let lines = [
        own(0.0, 1, 200, "\"model\":\"gpt\""),
        own(1.0, 1, 200, "\"input\":-5,\"output\":1.5"),
        own(
            2.0,
            1,
            200,
            "\"input\":1e99,\"output\":99999999999999999999",
        ),
        own(
            3.0,
            1,
            200,
            "\"input\":null,\"output\":\"-\",\"total_tokens\":40",
        ),
        own(4.0, 1, 200, "\"input\":{},\"output\":[7]"),
        own(5.0, 1, 200, "\"reserved\":50,\"outcome\":\"missing\""),
    ];
    let engine = replayed(TOKENS, &lines);
    let calls = engine.counts.totals.calls;
    assert_eq!((calls.requests, calls.tokenless, calls.broken), (6, 4, 2));
    assert_eq!((calls.estimated, calls.unsettled), (1, 1));
    assert_eq!(engine.counts.rows[0].asked, 2);
    assert_eq!(engine.counts.rows[0].spent, 40 + 50);
}

#[test]
fn members_of_other_logs_are_mapped_by_their_paths() {
    let from = |field, member: &str| TokenFrom {
        field,
        member: member.to_owned(),
    };
    let mapping = MemberMapping {
        tokens: vec![
            from(CallField::Input, "llm.usage.in"),
            from(CallField::Output, "llm.usage.out"),
            from(CallField::Model, "gen_ai.request.model"),
            from(CallField::BodyBytes, "bytes_received"),
            from(CallField::Maximum, "llm.max"),
        ],
        ..MemberMapping::default()
    };
    let line = "{\"start_time\":\"2026-11-20T22:37:06.5Z\",\"duration\":\"1500\",\
        \"downstream_remote_address\":\"192.0.2.1:99\",\"method\":\"POST\",\"response_code\":200,\
        \"x-envoy-origin-path\":\"/v1\",\"bytes_received\":301,\"gen_ai.request.model\":\"gpt\",\
        \"llm\":{\"max\":70,\"usage\":{\"in\":\"30\",\"out\":20}}}";
    let engine = replayed_with(TOKENS, &[line.to_owned()], mapping);
    // 301 bytes are 101 tokens, and the request allowed 70.
    assert_eq!(need(&engine), 171);
    assert_eq!(engine.counts.rows[0].spent, 50);
    assert_eq!(engine.counts.totals.calls.untimed, 0);
}

#[test]
fn lines_for_people_have_tokens_too() {
    let line = "22:37:06.123 POST / 200 35.1ms 192.0.2.1 allowed tokens 22+178 of 1030 exact";
    let engine = replayed(TOKENS, &[line.to_owned()]);
    assert_eq!(engine.counts.rows[0].spent, 200);
    assert_eq!(denied(&engine), rates(1, 1, 0));
}

#[test]
fn a_key_by_the_model_takes_the_model_that_was_asked_for() {
    let limit = "[limit.a]\nrate = \"1000/min\"\ncounts = \"tokens\"\n\
                 key = [\"ip\", \"body:model\"]\nvalues = { \"body:model\" = [\"gpt\"] }\n";
    let usage = exact(100, 10, 10).replace("\"gpt\"", "\"gpt-2\",\"requested_model\":\"gpt\"");
    let engine = replayed(
        limit,
        &[own(0.0, 1, 200, &usage), own(1.0, 1, 200, &exact(9, 1, 1))],
    );
    assert_eq!(engine.counts.meters[0].keys.len(), 1);
    let keys = &engine.counts.meters[0].keys;
    assert!(keys[0].name.ends_with(b"gpt"), "{:?}", keys[0].name);
}

#[test]
fn no_duration_is_too_long() {
    let forever = own(0.0, 1, 200, &exact(600, 10, 90)).replace("1000", "18000000000000");
    let engine = replayed(TOKENS, &[forever, own(1.0, 1, 200, &exact(600, 10, 90))]);
    assert_eq!(denied(&engine).own, 1);
    assert_eq!(engine.counts.rows[0].spent, 200);
}
