//! The path of a request that is only looked at: everything [`super::Proxy::handle`] does, in the
//! same order and by the same functions, but that nothing is counted where it lasts, sent or
//! logged. For people who ask why; never for a request.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Request, Response};

use super::Arrival;
use super::forward::turn;
use super::limiter::StoreHandle;
use crate::config::{Config, LogFormat, LogTarget, Secret, StoreKind};
use crate::limit::key::Facts;
use crate::limit::{Charge, Decision, KeyHash, Retry};
use crate::route::{RouteMatch, Target, is_preflight};
use crate::store::overrides::OverrideSnapshot;
use crate::telemetry::access::AccessLog;
use tidegate_core::exchange::Exchange;
use tidegate_core::exchange::admission::Admission;
use tidegate_core::exchange::changes;
use tidegate_core::exchange::rejection::Rejection;
use tidegate_core::exchange::stages::LimitQuery;
use tidegate_core::exchange::stages::Stages;

/// How what a charge asks stands where the counts are: nothing is charged.
pub type Peek<'s> = dyn FnMut(&Charge) -> Result<Decision, String> + 's;

/// What is known of the counts that the proxies share.
pub(crate) struct SharedCounts<'c> {
    pub(crate) overrides: Option<OverrideSnapshot>,
    pub(crate) peek: &'c mut Peek<'c>,
}

/// One worker's proxy without its ways out.
pub(crate) struct DryRun {
    stages: Stages,
}

/// A request whose route is known.
pub(crate) struct RequestView<'s, 't, 'p> {
    pub(crate) found: &'s RouteMatch<'t, 'p>,
    pub(crate) facts: &'s Facts<'s>,
    /// Its client's address, not grouped.
    pub(crate) client: IpAddr,
    /// Which rule keeps it from being charged.
    pub(crate) bypass: Option<usize>,
    /// A browser's question whether it may ask is never charged.
    pub(crate) preflight: bool,
    /// What it asks: enforced, and on trial. Nothing if it is refused before.
    pub(crate) charge: Option<(&'s Charge, &'s [Charge])>,
}

/// What would have become of a request.
pub(crate) struct DryRunResult<T> {
    /// What was told of the view, if a route was found.
    pub(crate) told: Option<T>,
    pub(crate) ending: DryRunOutcome,
    /// What was asked of the store, and what it said.
    pub(crate) charge: Charge,
    pub(crate) decision: Option<Decision>,
    pub(crate) shadow: Vec<(Charge, Option<Decision>)>,
    /// What the client gets; where an upstream answers, what is added to that.
    pub(crate) answer: Response<Bytes>,
    /// What the upstream would get.
    pub(crate) sent: Option<Request<()>>,
    /// The counts could not be read.
    pub(crate) trouble: Option<String>,
}

/// How it would have ended.
pub(crate) enum DryRunOutcome {
    /// The upstream answers; a tunnel if the client asked for one.
    Forwarded { upgrade: bool },
    /// The route answers by itself.
    Answered,
    /// The client is sent elsewhere.
    Redirected,
    /// A limit denies it.
    Denied,
    /// An operator keeps the client out.
    Blocked(KeyHash),
    /// It is refused: a word for what, and a sentence.
    Refused(&'static str, String),
}

impl DryRun {
    /// Of the proxy that has this configuration; with `hash_key` its keys are hashed as there.
    pub(crate) fn new(config: &Config, hash_key: Option<[u8; 32]>) -> io::Result<DryRun> {
        let mut config = config.fresh_copy();
        config.store.kind = StoreKind::Memory;
        config.store.hash_key = hash_key.map(Secret).or(config.store.hash_key);
        config.store.max_keys = 64;
        let counts = StoreHandle::open_store(&config.store, None)?.open();
        let log = Arc::new(AccessLog::open(&LogTarget::Off, LogFormat::Json, 0.0)?);
        Ok(DryRun {
            stages: Stages::new(config, counts, &log.buffer(), None),
        })
    }

    /// Goes through with one request; `tell` looks at it once its route is known.
    pub(crate) fn run<T>(
        &self,
        mut request: Request<()>,
        arrival: Arrival,
        mut counted: Option<SharedCounts<'_>>,
        tell: impl FnOnce(&RequestView<'_, '_, '_>) -> T,
    ) -> DryRunResult<T> {
        let mut result = DryRunResult {
            told: None,
            ending: DryRunOutcome::Answered,
            charge: Charge::new(),
            decision: None,
            shadow: Vec::new(),
            answer: Response::new(Bytes::new()),
            sent: None,
            trouble: None,
        };
        let downstream = self.stages.downstream(arrival);
        let mut response = Response::new(Bytes::new());
        let mut exchange = self.stages.begin(&mut request, &mut response, &downstream);
        if let Err(rejection) = self.serve(&mut exchange, counted.as_mut(), tell, &mut result) {
            self.stages.reject(&mut exchange, &rejection);
            result.ending = ending(&rejection);
            if let Rejection::Limited(denial) = rejection {
                result.charge = denial.charge;
                result.decision = Some(denial.decision);
            }
        }
        drop(exchange);
        self.stages.mark_connection(&mut response, &downstream);
        result.answer = response;
        result
    }

    fn serve<'c, T>(
        &'c self,
        x: &mut Exchange<'c, (), Bytes>,
        counted: Option<&mut SharedCounts<'_>>,
        tell: impl FnOnce(&RequestView<'_, '_, '_>) -> T,
        result: &mut DryRunResult<T>,
    ) -> Result<(), Rejection> {
        self.stages.check(x, None)?;
        let overrides = counted
            .as_ref()
            .and_then(|counted| counted.overrides.clone());
        let router = &self.stages.router;
        let see = |question: &LimitQuery<'_, '_, '_>,
                   admission: &Admission,
                   asked: &Result<(), Rejection>| {
            let LimitQuery {
                head, found, facts, ..
            } = question;
            tell(&RequestView {
                found,
                facts,
                client: head.client,
                bypass: router.bypass_of(facts, head.client, found.route.case),
                preflight: is_preflight(head.method, head.headers),
                charge: asked
                    .is_ok()
                    .then(|| (&admission.charge, admission.shadow())),
            })
        };
        let (told, asked) = self.stages.identify_by(overrides.as_ref(), x, see)?;
        result.told = Some(told);
        asked?;
        self.stages.rewrite(x)?;
        self.decide(x, counted, result)?;
        self.answer(x, result)?;
        self.stages.replies.mark(&x.admission, x.response);
        Ok(())
    }

    /// What the limits say: by counts of its own, in which nothing is, or as counted elsewhere.
    fn decide<T>(
        &self,
        x: &mut Exchange<'_, (), Bytes>,
        counted: Option<&mut SharedCounts<'_>>,
        result: &mut DryRunResult<T>,
    ) -> Result<(), Rejection> {
        let charge = x.admission.charge.clone();
        let shadow = x.admission.shadow().to_vec();
        // The counts are here.
        let Some(mut admitted) = self.stages.admit_here(x) else {
            return Ok(());
        };
        let mut checks = x.record.shadow.take();
        let checks = checks.iter_mut().flat_map(|shadow| &mut shadow.list);
        let fresh: Vec<Option<Decision>> = checks.map(|check| check.decision().cloned()).collect();
        result.shadow = shadow.into_iter().zip(fresh).collect();
        if let Some(counted) = counted {
            let fresh = match &admitted {
                Ok(()) => x
                    .admission
                    .granted()
                    .map(|granted| granted.decided.decision.clone()),
                Err(Rejection::Limited(denial)) => Some(denial.decision.clone()),
                Err(_) => None,
            };
            let mut peek = |charge: &Charge, fresh: &Decision| match (counted.peek)(charge) {
                Ok(live) => as_if_charged(live, fresh, charge),
                Err(trouble) => {
                    result.trouble = Some(trouble);
                    fresh.clone()
                }
            };
            for (charge, decision) in &mut result.shadow {
                *decision = decision.take().map(|fresh| peek(charge, &fresh));
            }
            if let Some(fresh) = fresh {
                x.admission.decision = peek(&charge, &fresh);
                x.admission.charge = charge;
                admitted = self.stages.limiter.conclude(&mut x.admission);
            }
        }
        admitted?;
        if let Some(granted) = x.admission.granted() {
            result.charge = granted.decided.charge.clone();
            result.decision = Some(granted.decided.decision.clone());
        }
        Ok(())
    }

    /// What the route would do: send the request on, which is only noted, or answer by itself.
    fn answer<T>(
        &self,
        x: &mut Exchange<'_, (), Bytes>,
        result: &mut DryRunResult<T>,
    ) -> Result<(), Rejection> {
        let Some(route) = x.route else { return Ok(()) };
        let changes = x.changes.as_deref();
        match &route.target {
            Target::Upstream(_) => {
                let length = x.request.headers().get(CONTENT_LENGTH);
                let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
                if let (Some(length), Some(most)) = (length, route.body_limit)
                    && length > most
                {
                    return Err(Rejection::BodyTooLarge);
                }
                let turned = turn(x.request, x.downstream, route, changes)?;
                if let Some(beside) = turned.beside {
                    beside.insert_into(x.request.headers_mut());
                }
                result.sent = Some(std::mem::take(x.request));
                result.ending = DryRunOutcome::Forwarded {
                    upgrade: turned.upgrade,
                };
                if let Some(changes) = changes {
                    changes.downwards(x.response.headers_mut());
                }
            }
            Target::Respond(answer) => {
                result.ending = DryRunOutcome::Answered;
                *x.response = changes::respond(answer, changes);
            }
            Target::Redirect(answer) => {
                result.ending = DryRunOutcome::Redirected;
                *x.response = changes::redirect(answer, changes);
            }
        }
        Ok(())
    }
}

/// How things stand after a request that is not charged where they stand so: its units are taken,
/// and are free again when those of a fresh key would be.
fn as_if_charged(mut live: Decision, fresh: &Decision, charge: &Charge) -> Decision {
    live.allowed = live.verdicts.iter().all(|one| one.retry == Retry::Now);
    if live.allowed {
        let both = live.verdicts.iter_mut().zip(&fresh.verdicts).zip(charge);
        for ((live, fresh), item) in both {
            live.remaining = live.remaining.saturating_sub(item.cost);
            live.reset_us = live.reset_us.max(fresh.reset_us);
            if live.used == 0 {
                live.next_us = fresh.next_us;
            }
        }
    }
    live
}

fn ending(refused: &Rejection) -> DryRunOutcome {
    let word = match refused {
        Rejection::Limited(_) => return DryRunOutcome::Denied,
        Rejection::Blocked(blocked) => return DryRunOutcome::Blocked(blocked.tag),
        Rejection::HeadError(_) => "malformed head",
        Rejection::Request(_) => "malformed request",
        Rejection::Path(_) => "refused path",
        Rejection::AmbiguousPath => "ambiguous path",
        Rejection::TlsOnly(_) => "TLS only",
        Rejection::BodyTooLarge => "body too large",
        Rejection::NoRoute => "no route",
        Rejection::MissingKey(_) => "missing key",
        Rejection::AmbiguousKey(_) => "ambiguous key",
        Rejection::UnknownKey(_) => "unknown key",
        Rejection::StoreAway { .. } => "store away",
        Rejection::Upstream(_) => "upstream",
    };
    DryRunOutcome::Refused(word, refused.sentence().to_owned())
}
