//! The path of a request that is only looked at: everything [`super::Proxy::handle`] does, in the
//! same order and by the same functions, but that nothing is counted where it lasts, sent or
//! logged. For people who ask why; never for a request.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, Request, Response};

use super::admit::Admission;
use super::changes::{self, Changes};
use super::flaw::Flaw;
use super::forward::turn;
use super::headers::{Peer, Scheme};
use super::limiter::{Limiter, StoreHandle};
use super::line::Line;
use super::reject::Rejection;
use super::secure::Secure;
use super::{Arrival, Downstream, request_id};
use crate::config::{Config, LogFormat, LogTarget, StoreKind};
use crate::limit::key::Facts;
use crate::limit::{Charge, Decision, KeyHash, Retry};
use crate::route::{Found, Route, Target, is_preflight};
use crate::store::overrides::OverrideSnapshot;
use crate::telemetry::access::AccessLog;

/// How what a charge asks stands where the counts are: nothing is charged.
pub type Stand<'s> = dyn FnMut(&Charge) -> Result<Decision, String> + 's;

/// What is known of the counts that the proxies share.
pub(crate) struct Counted<'c> {
    pub(crate) overrides: Option<OverrideSnapshot>,
    pub(crate) stand: &'c mut Stand<'c>,
}

/// One worker's proxy without its ways out.
pub(crate) struct Rehearsal {
    limiter: Limiter,
    secure: Secure,
    max_headers: usize,
    request_id: Option<HeaderName>,
    log: Arc<AccessLog>,
}

/// A request whose route is known.
pub(crate) struct Scene<'s, 't, 'p> {
    pub(crate) found: &'s Found<'t, 'p>,
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
pub(crate) struct Rehearsed<T> {
    /// What was told of the scene, if a route was found.
    pub(crate) told: Option<T>,
    pub(crate) ending: Ending,
    /// What was asked of the store, and what it said.
    pub(crate) charge: Charge,
    pub(crate) decision: Option<Decision>,
    pub(crate) riders: Vec<(Charge, Option<Decision>)>,
    /// What the client gets; where an upstream answers, what is added to that.
    pub(crate) answer: Response<Bytes>,
    /// What the upstream would get.
    pub(crate) sent: Option<Request<()>>,
    /// The counts could not be read.
    pub(crate) trouble: Option<String>,
}

/// How it would have ended.
pub(crate) enum Ending {
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

impl Rehearsal {
    /// Of the proxy that has this configuration; with `hash_key` its keys are hashed as there.
    pub(crate) fn new(config: &Config, hash_key: Option<[u8; 32]>) -> io::Result<Rehearsal> {
        let mut config = config.fresh_copy();
        config.store.kind = StoreKind::Memory;
        config.store.hash_key = hash_key.or(config.store.hash_key);
        config.store.max_keys = 64;
        let counts = StoreHandle::open_store(&config.store, None)?.open();
        Ok(Rehearsal {
            secure: Secure::new(config.tls.as_deref(), &config.server),
            max_headers: config.server.max_headers,
            request_id: config.request_id.clone(),
            log: Arc::new(AccessLog::open(&LogTarget::Off, LogFormat::Json, 0.0)?),
            limiter: Limiter::new(config, counts, None),
        })
    }

    /// Goes through with one request; `tell` looks at it once its route is known.
    pub(crate) fn run<T>(
        &self,
        mut request: Request<()>,
        arrival: Arrival,
        mut counted: Option<Counted<'_>>,
        tell: impl FnOnce(&Scene<'_, '_, '_>) -> T,
    ) -> Rehearsed<T> {
        let mut line = Line::begin(&request, arrival.ip, (&self.log.buffer(), false));
        let trusted = self.limiter.caller(arrival.ip).trusted;
        let scheme = Scheme::of(arrival.tls.is_some());
        let downstream = Downstream {
            trusted,
            peer: Peer::new(arrival.ip, trusted, scheme),
            arrival,
        };
        let mut rehearsed = Rehearsed {
            told: None,
            ending: Ending::Answered,
            charge: Charge::new(),
            decision: None,
            riders: Vec::new(),
            answer: Response::new(Bytes::new()),
            sent: None,
            trouble: None,
        };
        if let Some(name) = &self.request_id {
            line.request_id = Some(request_id::of(request.headers(), name, trusted));
        }
        let with = (&downstream, counted.as_mut());
        let gone = self.go(&mut request, with, &mut line, (tell, &mut rehearsed));
        if let Err(refused) = gone {
            rehearsed.answer = self.limiter.answer(&refused, &mut line, HeaderMap::new());
            rehearsed.ending = ending(&refused);
            if let Rejection::Limited(denial) = refused {
                rehearsed.charge = denial.charge;
                rehearsed.decision = Some(denial.decision);
            }
        }
        self.secure.mark(&mut rehearsed.answer, &downstream);
        rehearsed
    }

    fn go<T>(
        &self,
        request: &mut Request<()>,
        (downstream, counted): (&Downstream, Option<&mut Counted<'_>>),
        line: &mut Line,
        (tell, rehearsed): (impl FnOnce(&Scene<'_, '_, '_>) -> T, &mut Rehearsed<T>),
    ) -> Result<(), Rejection> {
        if request.headers().len() > self.max_headers {
            return Err(Rejection::Flaw(Flaw::HeadTooLarge));
        }
        self.secure.check(request, downstream)?;
        let overrides = counted
            .as_ref()
            .and_then(|counted| counted.overrides.clone());
        let caller = downstream.caller();
        let mut admission = Admission::default();
        let (route, (asked, told)) =
            self.limiter
                .look(request, caller, line, |found, facts, client| {
                    let with = (found, overrides.as_ref(), &mut admission);
                    let asked = self
                        .limiter
                        .ask(request, with, facts, (caller, client, None));
                    let scene = Scene {
                        found,
                        facts,
                        client,
                        bypass: self.limiter.bypass_of(facts, client, found.route.case),
                        preflight: is_preflight(request.method(), request.headers()),
                        charge: asked
                            .is_ok()
                            .then(|| (&admission.charge, admission.riders())),
                    };
                    let told = tell(&scene);
                    (asked, told)
                })?;
        rehearsed.told = Some(told);
        asked?;
        let with = (route, self.request_id.as_ref());
        let changes = Changes::of(with, request, downstream, line)?;
        let changes = changes.as_deref();
        let decided = self.decide(request, (&mut admission, counted), line, rehearsed);
        let answered = decided.and_then(|()| {
            let mut response = self.answer(request, (downstream, route), changes, rehearsed)?;
            self.limiter.mark(&admission, &mut response);
            Ok(response)
        });
        rehearsed.answer = answered.or_else(|refused| {
            let Some(changes) = changes else {
                return Err(refused);
            };
            let mut response = self.limiter.answer(&refused, line, HeaderMap::new());
            changes.beside(response.headers_mut());
            rehearsed.ending = ending(&refused);
            if let Rejection::Limited(denial) = refused {
                rehearsed.charge = denial.charge;
                rehearsed.decision = Some(denial.decision);
            }
            Ok(response)
        })?;
        Ok(())
    }

    /// What the limits say: by counts of its own, in which nothing is, or as counted elsewhere.
    fn decide<T>(
        &self,
        request: &Request<()>,
        (admission, counted): (&mut Admission, Option<&mut Counted<'_>>),
        line: &mut Line,
        rehearsed: &mut Rehearsed<T>,
    ) -> Result<(), Rejection> {
        let charge = admission.charge.clone();
        let riders = admission.riders().to_vec();
        // The counts are here.
        let Some(mut admitted) = self.limiter.admit_here(request, admission, line) else {
            return Ok(());
        };
        let mut rode = line.riders.take();
        let rode = rode.iter_mut().flat_map(|riders| &mut riders.list);
        let fresh: Vec<Option<Decision>> = rode.map(|rider| rider.decision().cloned()).collect();
        rehearsed.riders = riders.into_iter().zip(fresh).collect();
        if let Some(counted) = counted {
            let fresh = match &admitted {
                Ok(()) => admission.told().map(|(_, decision, _)| decision.clone()),
                Err(Rejection::Limited(denial)) => Some(denial.decision.clone()),
                Err(_) => None,
            };
            let mut stand = |charge: &Charge, fresh: &Decision| match (counted.stand)(charge) {
                Ok(live) => as_if_charged(live, fresh, charge),
                Err(trouble) => {
                    rehearsed.trouble = Some(trouble);
                    fresh.clone()
                }
            };
            for (charge, decision) in &mut rehearsed.riders {
                *decision = decision.take().map(|fresh| stand(charge, &fresh));
            }
            if let Some(fresh) = fresh {
                admission.decision = stand(&charge, &fresh);
                admission.charge = charge;
                admitted = self.limiter.conclude(request, admission);
            }
        }
        admitted?;
        if let Some((charge, decision, _)) = admission.told() {
            rehearsed.charge = charge.clone();
            rehearsed.decision = Some(decision.clone());
        }
        Ok(())
    }

    fn answer<T>(
        &self,
        request: &mut Request<()>,
        (downstream, route): (&Downstream, &Route),
        changes: Option<&Changes<'_>>,
        rehearsed: &mut Rehearsed<T>,
    ) -> Result<Response<Bytes>, Rejection> {
        match &route.target {
            Target::Upstream(_) => {
                let length = request.headers().get(CONTENT_LENGTH);
                let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
                if let (Some(length), Some(most)) = (length, route.body_limit)
                    && length > most
                {
                    return Err(Rejection::BodyTooLarge);
                }
                let turned = turn(request, downstream, route, changes)?;
                if let Some(beside) = turned.beside {
                    beside.join(request.headers_mut());
                }
                rehearsed.sent = Some(std::mem::take(request));
                rehearsed.ending = Ending::Forwarded {
                    upgrade: turned.upgrade,
                };
                let mut response = Response::new(Bytes::new());
                if let Some(changes) = changes {
                    changes.downwards(response.headers_mut());
                }
                Ok(response)
            }
            Target::Respond(answer) => {
                rehearsed.ending = Ending::Answered;
                let response = changes::respond(answer, changes);
                Ok(response.map(|_| answer.body.clone()))
            }
            Target::Redirect(answer) => {
                rehearsed.ending = Ending::Redirected;
                Ok(changes::redirect(answer, changes).map(|_| Bytes::new()))
            }
        }
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

fn ending(refused: &Rejection) -> Ending {
    let word = match refused {
        Rejection::Limited(_) => return Ending::Denied,
        Rejection::Blocked(blocked) => return Ending::Blocked(blocked.tag),
        Rejection::Flaw(_) => "malformed head",
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
    Ending::Refused(word, refused.sentence().to_owned())
}
