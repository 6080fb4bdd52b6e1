//! Status and headers of decisions.

use std::sync::Arc;

use smallvec::smallvec;

use super::*;
use crate::limit::{Algorithm, Calendar, CalendarUnit, Key, KeyHash, Limit, Rule};

#[test]
fn every_number_of_seconds_is_written_as_it_is() {
    for seconds in (0..=200).chain([u64::MAX]) {
        assert_eq!(seconds_value(seconds), seconds.to_string());
    }
}

const ALL: HeaderSettings = HeaderSettings {
    x_ratelimit: true,
    ietf: Some(IetfForm::Draft10),
    reset: ResetForm::Epoch,
    cors_expose: true,
    pass_upstream: false,
};

const NEXT: HeaderSettings = HeaderSettings {
    ietf: Some(IetfForm::Next),
    ..ALL
};

fn item(name: &str, units: u64, window_us: u64) -> LimitCheck {
    let rule = Rule {
        algorithm: Algorithm::Log,
        units,
        window_us,
        precision_us: 1,
    };
    let limit = Limit::new(name, &[rule], Key::parse(["ip"]).unwrap());
    LimitCheck {
        window: Arc::clone(&limit.windows[0]),
        limit: Arc::new(limit),
        tag: KeyHash([0; 16]),
        anchor: None,
        cost: 1,
        asker: None,
    }
}

fn verdict(remaining: u64, retry: Retry, next_us: u64) -> Verdict {
    Verdict {
        used: 0,
        remaining,
        retry,
        reset_us: 59_000_001,
        next_us,
        stamp: 0,
    }
}

fn denied() -> (Charge, Decision) {
    let charge = smallvec![
        item("login", 5, 60_000_000),
        item("per_client", 600, 60_000_000)
    ];
    let verdicts = smallvec![
        verdict(0, Retry::After(10_000_001), 10_000_001),
        verdict(563, Retry::Now, 3_500_000)
    ];
    (
        charge,
        Decision {
            allowed: false,
            at_us: 0,
            spread_us: 0,
            verdicts,
        },
    )
}

fn say(
    headers: &mut HeaderMap,
    settings: HeaderSettings,
    (charge, decision): (&Charge, &Decision),
    unix_us: u64,
) {
    let status = RateLimitStatus::new(Decided { charge, decision }, settings.reset, unix_us);
    write(headers, settings, charge, &status);
}

/// By its own clock, a process may be months away from the store's.
#[test]
fn the_end_of_a_calendar_window_is_the_stores() {
    const DAY_US: u64 = 86_400_000_000;
    let unit = CalendarUnit::Day;
    let mut check = item("day", 5, unit.longest_us());
    let mut window = check.window.deep_copy();
    window.rule.algorithm = Algorithm::Calendar;
    window.calendar = Some(Arc::new(Calendar::new(unit, Arc::default())));
    check.window = Arc::new(window);
    let end_us = 20_000 * DAY_US;
    let verdict = Verdict {
        reset_us: 3_000_000,
        stamp: end_us % (1 << 48),
        ..verdict(0, Retry::After(3_000_000), 3_000_000)
    };
    let (check, verdict) = (&check, &verdict);
    for unix_us in [
        end_us - 3_000_000,
        end_us - 900 * DAY_US,
        end_us + 900 * DAY_US,
    ] {
        let span = calendar_span(CheckResult { check, verdict }, unix_us).unwrap();
        assert_eq!((span.start_us, span.end_us), (end_us - DAY_US, end_us));
    }
    let unknown = Verdict {
        stamp: 0,
        ..*verdict
    };
    assert_eq!(unknown.calendar_end_us(7), 3_000_007);
}

fn get(headers: &HeaderMap, name: HeaderName) -> Vec<&str> {
    headers
        .get_all(name)
        .iter()
        .map(|value| value.to_str().unwrap())
        .collect()
}

#[test]
fn the_denying_limit_is_shown_and_every_wait_is_rounded_up() {
    let (charge, decision) = denied();
    let mut headers = HeaderMap::new();
    say(
        &mut headers,
        ALL,
        (&charge, &decision),
        1_000_000_000_000_000,
    );
    assert_eq!(get(&headers, X_LIMIT), ["5"]);
    assert_eq!(get(&headers, X_REMAINING), ["0"]);
    assert_eq!(get(&headers, X_RESET), ["1000000060"]);
    assert_eq!(
        get(&headers, RATELIMIT_POLICY),
        [r#""login";q=5;w=60, "per_client";q=600;w=60"#]
    );
    assert_eq!(
        get(&headers, RATELIMIT),
        [r#""login";r=0;t=11, "per_client";r=563;t=4"#]
    );
}

#[test]
fn among_limits_that_allow_the_smallest_share_is_shown() {
    let charge: Charge = smallvec![item("wide", 1000, 1), item("narrow", 10, 1)];
    let verdicts = smallvec![verdict(200, Retry::Now, 1), verdict(1, Retry::Now, 1)];
    let mut headers = HeaderMap::new();
    let decision = Decision {
        allowed: true,
        at_us: 0,
        spread_us: 0,
        verdicts,
    };
    say(&mut headers, ALL, (&charge, &decision), 0);
    assert_eq!(get(&headers, X_LIMIT), ["10"]);
}

#[test]
fn the_upstreams_headers_are_replaced_or_merged() {
    let (charge, decision) = denied();
    let theirs = || {
        let mut headers = HeaderMap::new();
        headers.insert(RATELIMIT, HeaderValue::from_static(r#""theirs";r=1"#));
        headers.insert(X_LIMIT, HeaderValue::from_static("9"));
        headers.insert(X_REMAINING, HeaderValue::from_static("7"));
        headers
    };
    let mut replaced = theirs();
    say(&mut replaced, ALL, (&charge, &decision), 0);
    assert_eq!(get(&replaced, RATELIMIT).len(), 1);
    let mut merged = theirs();
    let keep = HeaderSettings {
        pass_upstream: true,
        ..ALL
    };
    say(&mut merged, keep, (&charge, &decision), 0);
    assert_eq!(get(&merged, RATELIMIT).len(), 2);
    assert_eq!(get(&merged, X_LIMIT), ["5"], "ours leaves the client less");

    let allowed = Decision {
        allowed: true,
        at_us: 0,
        spread_us: 0,
        verdicts: smallvec![verdict(8, Retry::Now, 1), verdict(600, Retry::Now, 1)],
    };
    let mut merged = theirs();
    say(&mut merged, keep, (&charge, &allowed), 0);
    assert_eq!(
        get(&merged, X_LIMIT),
        ["9"],
        "theirs leaves the client less"
    );
}

#[test]
fn only_cors_responses_expose_headers() {
    let mut headers = HeaderMap::new();
    expose_to_scripts(&mut headers, ALL);
    assert!(headers.is_empty());
    headers.insert("access-control-allow-origin", HeaderValue::from_static("*"));
    expose_to_scripts(&mut headers, ALL);
    assert_eq!(get(&headers, ACCESS_CONTROL_EXPOSE_HEADERS), [EXPOSED]);
    expose_to_scripts(&mut headers, NEXT);
    assert_eq!(
        get(&headers, ACCESS_CONTROL_EXPOSE_HEADERS)[1],
        EXPOSED_NEXT
    );
}

fn status(charge: &Charge, decision: &Decision) -> RateLimitStatus {
    RateLimitStatus::new(Decided { charge, decision }, ResetForm::Delta, 0)
}

#[test]
fn a_denial_tells_the_longest_wait_rounded_up() {
    let (charge, decision) = denied();
    let status = status(&charge, &decision);
    assert_eq!(status.wait, Some(11));
    assert_eq!(status.longest(&charge).map(|item| item.cost), Some(1));
}

#[test]
fn a_cost_above_the_limit_has_no_retry_after() {
    let (charge, _) = denied();
    let verdicts = smallvec![verdict(3, Retry::Never, 0), verdict(0, Retry::After(5), 5)];
    let decision = Decision {
        allowed: false,
        at_us: 0,
        spread_us: 0,
        verdicts,
    };
    assert_eq!(status(&charge, &decision).wait, None);
}

#[test]
fn who_is_allowed_is_not_told_to_wait() {
    let charge: Charge = smallvec![item("wide", 1000, 1)];
    let decision = Decision {
        allowed: true,
        at_us: 0,
        spread_us: 0,
        verdicts: smallvec![verdict(200, Retry::Now, 1)],
    };
    assert_eq!(status(&charge, &decision).wait, None);
}

#[test]
fn the_next_draft_has_other_letters_the_cost_and_the_dimensions() {
    let (mut charge, decision) = denied();
    charge[1].cost = 25;
    let mut headers = HeaderMap::new();
    say(&mut headers, NEXT, (&charge, &decision), 0);
    assert_eq!(
        get(&headers, RATELIMIT_POLICY),
        [r#""login";q=5;w=60, "per_client";q=600;w=60"#]
    );
    assert_eq!(
        get(&headers, RATELIMIT),
        [r#""login";a=0;w=11;c=1, "per_client";a=563;w=4;c=25"#]
    );
    assert_eq!(
        get(&headers, RATELIMIT_PARTITION),
        [r#""login";tidegate-ip, "per_client";tidegate-ip"#]
    );
}

#[test]
fn a_redirection_has_no_headers_of_the_next_draft() {
    let (charge, decision) = denied();
    for status in [301, 302, 304, 307, 308] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(ALL.for_status(status), ALL);
        let settings = NEXT.for_status(status);
        let mut headers = HeaderMap::new();
        headers.insert(RATELIMIT, HeaderValue::from_static(r#""theirs";a=1"#));
        say(&mut headers, settings, (&charge, &decision), 0);
        assert!(headers.contains_key(X_LIMIT) && !headers.contains_key(RATELIMIT));
        assert!(!headers.contains_key(RATELIMIT_PARTITION));
    }
    assert_eq!(NEXT.for_status(StatusCode::OK), NEXT);
    assert_eq!(NEXT.for_status(StatusCode::TOO_MANY_REQUESTS), NEXT);
}

/// The dimensions of a limit with this key.
fn partition(key: &[&str]) -> String {
    let mut check = item("x", 1, 1);
    check.limit = Arc::new(Limit::new(
        "x",
        &[],
        Key::parse(key.iter().copied()).unwrap(),
    ));
    let mut buffer = Vec::new();
    ietf::write_partition(&mut buffer, &check);
    String::from_utf8(buffer).unwrap()
}

#[test]
fn a_partition_has_the_dimensions_of_the_key() {
    for (key, expected) in [
        (&["jwt:sub", "method"][..], "\"x\";user_id;method, "),
        (&["api_key or ip"], "\"x\";client_id, "),
        (&["jwt:azp", "api_key"], "\"x\";client_id, "),
        (&["global"], "\"x\", "),
        (
            &["ip", "path:id", "host"],
            "\"x\";tidegate-ip;tidegate-path;tidegate-host, ",
        ),
        (
            &["header:X-Secret-Name", "header:b", "jwt:org.plan"],
            "\"x\";tidegate-header;tidegate-jwt, ",
        ),
    ] {
        assert_eq!(partition(key), expected, "{key:?}");
    }
}
