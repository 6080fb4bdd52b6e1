//! Calendar windows through a real proxy: what clients and operators are told, by the wall clock.

use std::sync::Arc;

use serde_json::Value;
use tidegate::clock::unix_us;
use tidegate::limit::calendar::Zone;
use tidegate::limit::{AnchorDay, Calendar, CalendarSettings, CalendarUnit};

use crate::house::{Answer, Tidegate, Upstream};
use crate::support::{RedisServer, free_port, mortal};

const RULES: &str = "[api_key]\nknown = \"keys.txt\"\n\n[limit.default]\n\
                     rate = [\"3/month\", \"100/s\"]\nkey = \"api_key\"\n\
                     calendar = { zone = \"+05:30\", anchor = \"keys\" }\n";

fn proxy(upstream: &Upstream, store: &str) -> Tidegate {
    let directory = tempfile::tempdir().unwrap();
    let keys = "k1 acme anchor=31\nk2 globex\n";
    std::fs::write(directory.path().join("keys.txt"), keys).unwrap();
    let store = format!("[store]\nurl = \"{store}\"\ntimeout = \"1s\"\n");
    let config = format!("upstream = \"{}\"\n{store}{RULES}", upstream.url());
    Tidegate::start_in(directory, &config, &[])
}

fn ask(proxy: &Tidegate, key: &str) -> Answer {
    proxy.get_with("/", &format!("X-Api-Key: {key}\r\n"))
}

fn number(answer: &Answer, header: &str) -> u64 {
    answer.header(header).unwrap().parse().unwrap()
}

#[test]
fn a_month_ends_on_the_clients_day_in_the_zone_of_the_limit() {
    let settings = CalendarSettings {
        zone: Zone::of_offset("+05:30").unwrap(),
        ..CalendarSettings::default()
    };
    let month = Calendar::new(CalendarUnit::Month, Arc::new(settings));
    let upstream = Upstream::ok();
    let redis = RedisServer::start();
    let shared = format!("redis://127.0.0.1:{}", redis.port());
    for store in ["memory:", &shared] {
        check_month(&proxy(&upstream, store), &month);
    }
}

fn check_month(proxy: &Tidegate, month: &Calendar) {
    for (key, anchor) in [("k1", AnchorDay::of_month(31)), ("k2", None)] {
        let span = month.span(anchor, unix_us());
        let [start_s, end_s] = [span.start_us, span.end_us].map(|us| us / 1_000_000);
        for left in [2, 1, 0] {
            let answer = ask(proxy, key);
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(number(&answer, "x-ratelimit-remaining"), left);
            assert_eq!(number(&answer, "x-ratelimit-reset"), end_s);
            let policy = answer.header("ratelimit-policy").unwrap();
            let expected = format!(
                "\"default/month\";q=3;w={}, \"default/s\";q=100;w=1",
                end_s - start_s
            );
            assert_eq!(policy, expected);
        }
        let before_us = unix_us();
        let answer = ask(proxy, key);
        assert_eq!(answer.status, 429);
        let after_us = unix_us();
        let wait_s = number(&answer, "retry-after");
        let [least, most] = [after_us, before_us].map(|us| (span.end_us - us).div_ceil(1_000_000));
        assert!(
            (least..=most).contains(&wait_s),
            "{wait_s}: {least} to {most}"
        );
        assert_eq!(number(&answer, "x-ratelimit-reset"), end_s);
        let problem: Value = serde_json::from_str(&answer.text()).unwrap();
        assert_eq!(problem["resets_at"], month.text(span.end_us));
        assert_eq!(
            problem["violated-policies"],
            serde_json::json!(["default/month"])
        );
    }
}

#[test]
fn a_cost_above_a_quota_has_no_time_to_retry() {
    let upstream = Upstream::ok();
    let config = format!(
        "upstream = \"{}\"\ntrusted_proxies = [\"127.0.0.1\"]\n\
         [limit.default]\nrate = \"3/month\"\n\
         [[route]]\npath = \"/*\"\ncost = \"header:x-cost\"\nlimits = [\"default\"]\n",
        upstream.url()
    );
    let proxy = Tidegate::start(&config);
    let answer = proxy.get_with("/", "X-Cost: 4\r\n");
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("retry-after"), None);
    let text = answer.text();
    assert!(
        !text.contains("resets_at") && text.contains("3/month"),
        "{text}"
    );
}

/// The month of a client, as `tidegate limits show` has it.
fn shown_month(proxy: &Tidegate, key: &str) -> Value {
    let output = mortal(env!("CARGO_BIN_EXE_tidegate"))
        .args(["limits", "--json", "show", "default", key])
        .current_dir(proxy.directory.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["windows"][0].clone()
}

#[test]
fn operators_see_the_month_of_the_client_that_they_name() {
    let settings = CalendarSettings {
        zone: Zone::of_offset("+05:30").unwrap(),
        ..CalendarSettings::default()
    };
    let month = Calendar::new(CalendarUnit::Month, Arc::new(settings));
    let upstream = Upstream::ok();
    let redis = RedisServer::start();
    let shared = format!("redis://127.0.0.1:{}", redis.port());
    for store in ["memory:", &shared] {
        let directory = tempfile::tempdir().unwrap();
        let keys = "k1 acme anchor=31\nk2 globex\n";
        std::fs::write(directory.path().join("keys.txt"), keys).unwrap();
        let config = format!(
            "upstream = \"{}\"\nadmin = \"127.0.0.1:{}\"\n[store]\nurl = \"{store}\"\n{RULES}",
            upstream.url(),
            free_port()
        );
        let proxy = Tidegate::start_in(directory, &config, &[]);
        for (key, anchor) in [("k1", AnchorDay::of_month(31)), ("k2", None)] {
            let end = month.text(month.span(anchor, unix_us()).end_us);
            let name = format!("api_key={key}");
            let fresh = shown_month(&proxy, &name);
            assert_eq!(fresh["resets_at"], end, "{store} {fresh}");
            assert_eq!(ask(&proxy, key).status, 200);
            let used = shown_month(&proxy, &name);
            assert_eq!(
                (used["resets_at"].as_str(), used["used"].as_u64()),
                (Some(&*end), Some(1))
            );
        }
    }
}
