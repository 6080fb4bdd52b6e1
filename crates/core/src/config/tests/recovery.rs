//! `health`, `eject`, `retries` of an upstream, and `timeout` of a route.

use std::time::Duration;

use http::StatusCode;

use super::super::{Ejection, Retries, UpstreamSettings};
use super::{check, codes, fine};

const SECOND: Duration = Duration::from_secs(1);

/// A file whose upstream has these lines.
fn with(lines: &str) -> String {
    format!(
        "[upstream.api]\nservers = [\"http://10.0.0.1\", \"http://10.0.0.2\"]\n{lines}\n\
         [[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = [\"9/s\"]\n"
    )
}

#[track_caller]
fn upstream(lines: &str) -> UpstreamSettings {
    fine(&with(lines)).upstreams.remove(0)
}

#[test]
fn unless_the_file_says_otherwise_nothing_is_checked_and_failures_eject() {
    let api = upstream("");
    assert_eq!(api.health, None);
    assert_eq!(api.eject, Some(Ejection::default()));
    assert_eq!(api.retries, Retries::default());
    assert_eq!((api.retries.attempts, api.retries.budget), (2, 20));
}

#[test]
fn a_path_is_enough_for_checks() {
    let check = upstream("health = \"/healthz?deep=1\"").health.unwrap();
    assert_eq!(check.path, "/healthz?deep=1");
    assert_eq!((check.every, check.timeout), (5 * SECOND, 2 * SECOND));
    assert_eq!((check.healthy, check.unhealthy), (2, 3));
    for (status, passes) in [
        (200, true),
        (204, true),
        (302, true),
        (404, false),
        (500, false),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(check.status.contains(status), passes, "{status}");
    }
}

#[test]
fn everything_about_checks_can_be_said() {
    let check = upstream(
        "health = { path = \"/up\", every = \"1s\", timeout = \"300ms\", healthy = 1, \
         unhealthy = 5, status = [\"204\"], host = \"api.internal:81\" }",
    );
    let check = check.health.unwrap();
    assert_eq!(check.host.unwrap(), "api.internal:81");
    assert_eq!((check.healthy, check.unhealthy), (1, 5));
    assert!(check.status.contains(StatusCode::NO_CONTENT));
    assert!(!check.status.contains(StatusCode::OK));
}

#[test]
fn ejection_has_a_switch_and_settings() {
    assert_eq!(upstream("eject = false").eject, None);
    assert_eq!(upstream("eject = true").eject, Some(Ejection::default()));
    let eject =
        upstream("eject = { failures = 1, for = \"2min\", max_share = 10, status = [\"5xx\"] }");
    let eject = eject.eject.unwrap();
    assert_eq!((eject.failures, eject.max_share), (1, 10));
    assert_eq!(
        (eject.rest, eject.longest_rest),
        (120 * SECOND, 120 * SECOND)
    );
    assert!(eject.status.contains(StatusCode::BAD_GATEWAY));
    assert_eq!(eject.within, None);
    let eject = upstream("eject = { failures = 3, within = \"20s\" }").eject;
    assert_eq!(eject.unwrap().within, Some(20 * SECOND));
}

#[test]
fn retries_are_a_number_or_more() {
    assert_eq!(upstream("retries = 0").retries.attempts, 0);
    assert_eq!(upstream("retries = 5").retries.attempts, 5);
    let retries = upstream("retries = { budget = 5, on = [\"timeout\", \"503\"] }").retries;
    assert_eq!((retries.attempts, retries.budget), (2, 5));
    assert!(!retries.on.closed && retries.on.timeout);
    assert!(!retries.same_server);
    assert!(
        upstream("retries = { same_server = true }")
            .retries
            .same_server
    );
    assert!(retries.on.status.contains(StatusCode::SERVICE_UNAVAILABLE));
}

#[test]
fn a_route_may_bound_the_whole() {
    let file = with("") + "timeout = \"3s\"\n";
    let config = fine(&file);
    let route = config.routes.iter().next().unwrap();
    assert_eq!(route.timeout, Some(3 * SECOND));
}

#[test]
fn mistakes_are_pointed_at() {
    for (lines, code) in [
        ("health = true", "T103"),
        ("health = {}", "T104"),
        ("health = { every = \"5s\" }", "T104"),
        ("health = \"healthz\"", "T116"),
        ("health = \"/a#b\"", "T116"),
        ("health = \"/a b\"", "T116"),
        ("health = { path = \"/\", every = \"1ms\" }", "T105"),
        ("health = { path = \"/\", healthy = 0 }", "T105"),
        ("health = { path = \"/\", status = [\"2XX\"] }", "T116"),
        ("health = { path = \"/\", host = \"a b\" }", "T116"),
        ("health = { path = \"/\", intervall = \"5s\" }", "T101"),
        ("eject = \"off\"", "T103"),
        ("eject = { failures = 0 }", "T105"),
        ("eject = { max_share = 101 }", "T105"),
        ("eject = { within = \"2h\" }", "T105"),
        ("eject = { for = \"10s\", max_for = \"5s\" }", "T105"),
        ("eject = { fro = \"10s\" }", "T101"),
        ("retries = 11", "T105"),
        ("retries = \"2\"", "T103"),
        ("retries = { attempts = 11 }", "T105"),
        ("retries = { budget = 101 }", "T105"),
        ("retries = { on = [\"close\"] }", "T106"),
    ] {
        assert_eq!(codes(&with(lines)), [code], "{lines}");
    }
    let route = with("") + "timeout = \"0s\"\n";
    assert_eq!(codes(&route), ["T105"]);
}

#[test]
fn what_may_be_written_is_said() {
    check(
        &with("retries = { on = [\"close\"] }"),
        "error[T106]: `upstream.api.retries.on` is not a reason to try again
 --> proxy.toml:3:19
  |
3 | retries = { on = [\"close\"] }
  |                   ^^^^^^^ write `closed`, `timeout`, or a status such as `503` or `5xx`
",
    );
}
