//! What would become of a request, and why: for people, before they send one.
//!
//! It goes the path of a request (`proxy/dry_run.rs`) with the functions that requests go with,
//! and tells what it sees on the way. Nothing is counted, sent or logged by it. It must never show
//! a secret: see `secret.rs`.

mod client;
mod limits;
mod question;
mod routes;
mod secret;
mod story;
pub mod text;

use bytes::Bytes;
use http::{Request, Response};

use crate::config::{Config, UpstreamServer};
use crate::limit::KeyHash;
use crate::path::CanonicalPath;
use crate::proxy::dry_run::{DryRun, DryRunOutcome, DryRunResult, RequestView, SharedCounts};
use crate::route::Target;
use limits::LimitsTold;
pub use question::{EXAMPLE_PEER, Question, QuestionError};
use secret::Secrets;
pub use story::{
    Asked, ClientStory, Counts, Explanation, HopStory, KeyPart, LimitStory, NearRoute, PathStory,
    RateStory, RouteStory, Seen, UpstreamStory, Verdict,
};

/// How a charge stands where it is counted; nothing is charged by asking.
pub use crate::proxy::dry_run::Peek;

/// The counts that the proxies share.
pub struct Live<'l> {
    /// Where they are, for people.
    pub from: String,
    /// The secret that identities are hashed with there.
    pub hash_key: [u8; 32],
    pub overrides: Option<crate::store::overrides::OverrideSnapshot>,
    /// Asks how a charge stands.
    pub stand: &'l mut Peek<'l>,
}

/// Routes that are told of although they are not the request's, at most.
const NEAR: usize = 5;

/// What would become of a request: with `live` counts, or for a client of whom nothing is counted.
///
/// # Errors
/// A question that no client could ask, or no random numbers.
pub fn explain(
    config: &Config,
    question: &Question,
    live: Option<Live<'_>>,
) -> Result<Explanation, QuestionError> {
    let request = question.request()?;
    let secrets = Secrets::of(config);
    let arrival = question.arrival(config);
    let known = live.is_some() || config.store.hash_key.is_some();
    let dry_run = DryRun::new(config, live.as_ref().map(|live| live.hash_key))
        .map_err(|error| QuestionError::Machine(error.to_string()))?;
    let (from, counted) = match live {
        Some(live) => {
            let counted = SharedCounts {
                overrides: live.overrides,
                peek: live.stand,
            };
            (Some(live.from), Some(counted))
        }
        None => (None, None),
    };
    let asked = Asked {
        method: request.method().to_string(),
        target: secrets.target(request.uri()),
        host: secret::header_text(request.headers().get(http::header::HOST)),
        headers: secrets.headers(request.headers()),
        peer: arrival.ip.to_string(),
        tls: arrival.tls.is_some(),
    };
    let path = PathStory::of(&request);
    let client = client::tell(&config.client_ip, arrival.ip, request.headers());
    let counted_as = client.counted_as.clone();
    let near = routes::near(config, &request, NEAR);
    let shown = limits::Visible {
        secrets: &secrets,
        address: &counted_as,
    };
    let tell = |view: &RequestView<'_, '_, '_>| RouteView {
        route: routes::tell(config, view),
        limits: limits::tell(view, shown, known),
        spared: spared(view, config),
        path: view.facts.path.as_str().to_owned(),
    };
    let result = dry_run.run(request, arrival, counted, tell);
    let counts = Counts {
        live: from.is_some() && result.trouble.is_none(),
        from,
        trouble: result.trouble.clone(),
    };
    Ok(assemble(
        ExplanationParts {
            asked,
            path,
            client,
            near,
            counts,
        },
        result,
        config,
        &secrets,
    ))
}

/// What is told once the route is known.
struct RouteView {
    route: RouteStory,
    limits: LimitsTold,
    spared: Option<String>,
    /// As the route sees it.
    path: String,
}

/// What is known before it.
struct ExplanationParts {
    asked: Asked,
    path: PathStory,
    client: ClientStory,
    near: Vec<NearRoute>,
    counts: Counts,
}

fn assemble(
    mut parts: ExplanationParts,
    mut result: DryRunResult<RouteView>,
    config: &Config,
    secrets: &Secrets,
) -> Explanation {
    let told = result.told.take();
    let (route, mut limits, spared) = match told {
        Some(told) => {
            parts.path.canonical = Some(told.path);
            (Some(told.route), told.limits, told.spared)
        }
        None => (None, LimitsTold::default(), None),
    };
    limits.count(&result);
    let verdict = verdict(&result, &limits.list, spared.as_deref());
    let upstream = result.sent.as_ref().map(|sent| {
        let name = route.as_ref().map(|route| route.to.clone());
        upstream(config, name.unwrap_or_default(), &result, secrets, sent)
    });
    let forwarded = matches!(result.ending, DryRunOutcome::Forwarded { .. });
    Explanation {
        request: parts.asked,
        verdict,
        client: parts.client,
        path: parts.path,
        route,
        near: parts.near,
        spared,
        limits: limits.list,
        upstream,
        client_sees: seen(&result.answer, forwarded, secrets),
        counts: parts.counts,
    }
}

/// Why nothing is charged, if nothing is.
fn spared(view: &RequestView<'_, '_, '_>, config: &Config) -> Option<String> {
    let route = view.found.route;
    if let Some(rule) = view.bypass {
        let conditions = config.bypass.get(rule).map(routes::conditions);
        return Some(format!(
            "bypass rule {} of the file holds ({}): nothing is charged",
            rule + 1,
            conditions.unwrap_or_default()
        ));
    }
    if view.preflight {
        return Some("it is a browser's preflight, which is never charged".to_owned());
    }
    let none = route.limits.is_empty();
    none.then(|| "the route has no limits".to_owned())
}

fn verdict(
    result: &DryRunResult<RouteView>,
    limits: &[LimitStory],
    spared: Option<&str>,
) -> Verdict {
    let status = result.answer.status().as_u16();
    let denying = limits.iter().filter(|limit| limit.denies());
    let by: Vec<String> = denying.map(|limit| limit.name.clone()).collect();
    let limited = limits.iter().any(|limit| limit.state == "enforced");
    let passes = |rest: &str| match (spared, limited) {
        (Some(why), _) => format!("{rest}{why}"),
        (None, true) => format!("{rest}every limit allows it"),
        (None, false) => format!("{rest}no limit is asked"),
    };
    let (outcome, status, why) = match &result.ending {
        DryRunOutcome::Forwarded { upgrade: false } => ("forwarded", None, passes("")),
        DryRunOutcome::Forwarded { upgrade: true } => {
            let why = passes("it becomes a tunnel if the upstream agrees; ");
            ("forwarded", None, why)
        }
        DryRunOutcome::Answered => {
            let why = passes("by the route itself; ");
            ("answered", Some(status), why)
        }
        DryRunOutcome::Redirected => {
            let why = passes("by the route itself; ");
            ("redirected", Some(status), why)
        }
        DryRunOutcome::Denied => {
            let why = format!("by {}", by.join(" and "));
            ("denied", Some(status), why)
        }
        DryRunOutcome::Blocked(tag) => {
            let why = format!("an operator keeps the client out (key {})", short(*tag));
            ("blocked", Some(status), why)
        }
        DryRunOutcome::Refused(word, sentence) => {
            ("refused", Some(status), format!("{word}: {sentence}"))
        }
    };
    Verdict {
        outcome: outcome.to_owned(),
        status,
        why,
        denied_by: by,
    }
}

/// As many characters of a hash as logs show.
fn short(tag: KeyHash) -> String {
    tag.to_string().chars().take(8).collect()
}

fn upstream(
    config: &Config,
    name: String,
    result: &DryRunResult<RouteView>,
    secrets: &Secrets,
    sent: &Request<()>,
) -> UpstreamStory {
    let own = config.routes.iter().find_map(|route| match &route.target {
        Target::Upstream(index) => {
            let upstream = config.upstreams.get(*index)?;
            (name == format!("upstream {}", upstream.name)).then_some(upstream)
        }
        Target::Respond(_) | Target::Redirect(_) => None,
    });
    let servers = own.map(|upstream| {
        let servers = upstream.servers.iter().map(UpstreamServer::to_string);
        servers.collect()
    });
    let upgrade = matches!(result.ending, DryRunOutcome::Forwarded { upgrade: true });
    UpstreamStory {
        name: own.map_or(name, |upstream| upstream.name.to_string()),
        servers: servers.unwrap_or_default(),
        method: sent.method().to_string(),
        target: secrets.target(sent.uri()),
        headers: secrets.headers(sent.headers()),
        upgrade,
    }
}

fn seen(answer: &Response<Bytes>, forwarded: bool, secrets: &Secrets) -> Seen {
    Seen {
        status: (!forwarded).then(|| answer.status().as_u16()),
        headers: secrets.headers(answer.headers()),
        body: String::from_utf8_lossy(answer.body()).into_owned(),
    }
}

impl PathStory {
    fn of(request: &Request<()>) -> PathStory {
        let sent = request.uri().path().to_owned();
        match CanonicalPath::parse(&sent) {
            Ok(path) => PathStory {
                canonical: Some(path.as_str().to_owned()),
                also_read_as: path.others().map(str::to_owned).collect(),
                refused: None,
                sent: sent.clone(),
            },
            Err(error) => PathStory {
                canonical: None,
                also_read_as: Vec::new(),
                refused: Some(error.to_string()),
                sent: sent.clone(),
            },
        }
    }
}
