//! What a program gets from limits that it builds.

use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use tidegate_limiter::{LimitLayer, Limiter, Limits, LimitsError, Rate};
use tower::{Layer as _, ServiceExt as _, service_fn};

fn built(limits: Limits) -> Limiter {
    limits.build().expect("these limits are right")
}

/// The statuses that requests of one address get at these paths; `user` is added to each.
async fn statuses(layer: &LimitLayer, paths: &[&str], user: Option<&str>) -> Vec<u16> {
    let service = layer.layer(service_fn(async |_: Request<Empty<Bytes>>| {
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    }));
    let mut statuses = Vec::new();
    for path in paths {
        let mut request = Request::get(*path)
            .header("host", "api.example")
            .extension(IpAddr::from([192, 0, 2, 7]))
            .body(Empty::new())
            .expect("a request");
        if let Some(user) = user {
            request.extensions_mut().insert(user.to_owned());
        }
        let response = service.clone().oneshot(request).await.expect("infallible");
        statuses.push(response.status().as_u16());
    }
    statuses
}

fn layer(limiter: &Limiter) -> LimitLayer {
    limiter.layer(|extensions| extensions.get().copied())
}

#[tokio::test]
async fn a_call_is_charged_to_all_limits_or_to_none() {
    let limiter = built(
        Limits::new()
            .limit("minute", Rate::per_minute(3))
            .limit("second", Rate::new(1, Duration::from_secs(30))),
    );
    assert!(limiter.check("a", 1).await.is_allowed());
    for _ in 0..5 {
        let denied = limiter.check("a", 1).await;
        assert!(!denied.is_allowed());
        assert!(denied.retry_after() > Some(Duration::from_secs(25)));
        let left: Vec<u64> = denied.statuses().iter().map(|one| one.remaining).collect();
        assert_eq!(left, [2, 0], "a denial costs nothing");
    }
    assert!(limiter.check("b", 1).await.is_allowed(), "another key");
}

#[tokio::test]
async fn a_cost_is_charged_at_once_and_0_looks() {
    let limiter = built(Limits::new().limit("tokens", Rate::per_hour(100)));
    assert!(limiter.check("a", 90).await.is_allowed());
    let looked = limiter.check("a", 0).await;
    assert_eq!(looked.statuses()[0].remaining, 10);
    assert!(!limiter.check("a", 11).await.is_allowed());
    assert!(limiter.check("a", 10).await.is_allowed());
    let never = limiter.check("a", 101).await;
    assert_eq!((never.is_allowed(), never.retry_after()), (false, None));
}

#[tokio::test]
async fn a_permit_is_held_until_the_decision_is_dropped() {
    let limiter = built(Limits::new().concurrent("jobs", 2));
    let first = limiter.check("a", 1).await;
    let second = limiter.check("a", 1).await;
    assert!(first.is_allowed() && second.is_allowed());
    assert!(!limiter.check("a", 1).await.is_allowed());
    drop(first);
    assert!(limiter.check("a", 1).await.is_allowed());
}

#[tokio::test]
async fn one_limit_is_asked_by_its_name() {
    let limiter = built(
        Limits::new()
            .limit("login", Rate::per_minute(1))
            .limit("search", Rate::per_minute(2)),
    );
    let login = limiter.check_limit("login", "a", 1).await;
    assert!(login.is_some_and(|decision| decision.is_allowed()));
    let search = limiter.check_limit("search", "a", 2).await;
    assert!(search.is_some_and(|decision| decision.is_allowed()));
    assert!(limiter.check_limit("nothing", "a", 1).await.is_none());
}

#[tokio::test]
async fn a_path_has_its_own_limits_and_those_of_every_path() {
    let limiter = built(
        Limits::new()
            .limit("client", Rate::per_hour(4))
            .limit("login", Rate::per_hour(1))
            .path("/login"),
    );
    let paths = ["/login", "/login", "/Login", "/", "/", "/"];
    let expected = [200, 429, 200, 200, 200, 429];
    assert_eq!(statuses(&layer(&limiter), &paths, None).await, expected);
}

#[tokio::test]
async fn a_closure_names_whose_budget_it_is() {
    let limiter = built(
        Limits::new()
            .limit("user", Rate::per_hour(2))
            .key_by(|request| request.extensions?.get::<String>().cloned()),
    );
    let layer = layer(&limiter);
    assert!(limiter.check("alice", 1).await.is_allowed());
    let twice = ["/", "/"];
    assert_eq!(statuses(&layer, &twice, Some("alice")).await, [200, 429]);
    assert_eq!(statuses(&layer, &twice, Some("bob")).await, [200, 200]);
    // Without a user the address counts.
    assert_eq!(statuses(&layer, &["/"; 3], None).await, [200, 200, 429]);
}

#[tokio::test]
async fn a_shadow_limit_denies_nothing() {
    let limiter = built(Limits::new().limit("new", Rate::per_hour(1)).shadow());
    assert_eq!(statuses(&layer(&limiter), &["/"; 3], None).await, [200; 3]);
    assert!(limiter.check("a", 5).await.is_allowed());
}

#[test]
fn every_mistake_is_told_at_once() {
    let wrong = Limits::new()
        .key("ip")
        .limit("Log In", Rate::per_minute(0))
        .limit("a", Rate::per_minute(5))
        .key("adress")
        .path("login")
        .limit("b", Rate::new(1, Duration::from_micros(1)))
        .trusted_proxy("everybody")
        .trusted_proxy("::ffff:10.0.0.0/104");
    let Err(LimitsError::Invalid(mistakes)) = wrong.build() else {
        panic!("they are wrong");
    };
    assert_eq!(mistakes.lines().count(), 6, "{mistakes}");
    let Err(error) = Limits::new().build() else {
        panic!("there is none");
    };
    assert_eq!(error.to_string(), "there is no limit");
    let twice = Limits::new()
        .limit("a", Rate::per_day(1))
        .limit("a", Rate::per_day(2));
    let error = twice.build().expect_err("two of one name");
    assert!(error.to_string().contains("twice"), "{error}");
}
