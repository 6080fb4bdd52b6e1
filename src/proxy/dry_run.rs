//! A dry run: the stages of [`super::Proxy::handle`] for a request that is only explained. Nothing
//! is counted in the store, sent or logged.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Request, Response};

use super::Arrival;
use super::forward::prepare;
use super::hold::longest_wait_us;
use super::limiter::StoreHandle;
use crate::config::{Config, Secret, StoreKind};
use crate::limit::key::Facts;
use crate::limit::{Charge, Decided, Decision, KeyHash, Retry, Role};
use crate::route::{RouteMatch, Target};
use crate::store::known_keys::RegisteredKeys;
use crate::store::overrides::OverrideSnapshot;
use crate::telemetry::access::AccessLog;
use crate::usage::request::RequestReader;
use tidegate_core::exchange::Exchange;
use tidegate_core::exchange::admit::Admission;
use tidegate_core::exchange::changes::own_response;
use tidegate_core::exchange::key_lookup::KeyLookup;
use tidegate_core::exchange::rejection::Rejection;
use tidegate_core::exchange::reserve::{ReadBody, UsageReserve};
use tidegate_core::exchange::stages::{LimitQuery, Stages};
use tidegate_core::limit::key::BodyFacts;

/// Returns the decision on a charge without making it.
pub type Peek<'s> = dyn FnMut(&Charge) -> Result<Decision, String> + 's;

/// Access to the counts of the running proxies.
pub struct LiveCounts<'l> {
    /// The store, for people.
    pub from: String,
    pub hash_key: [u8; 32],
    pub overrides: Option<OverrideSnapshot>,
    /// The API keys that no file lists, as far as they are known.
    pub known_keys: Option<Arc<RegisteredKeys>>,
    /// Returns the decision on a charge without making it.
    pub peek: &'l mut Peek<'l>,
}

pub(crate) struct DryRun {
    stages: Stages,
}

pub(crate) struct RequestView<'s, 't, 'p> {
    pub(crate) found: &'s RouteMatch<'t, 'p>,
    pub(crate) facts: &'s Facts<'s>,
    /// The client's address, not grouped.
    pub(crate) client: IpAddr,
    /// The index of the bypass rule that holds.
    pub(crate) bypass: Option<usize>,
    pub(crate) preflight: bool,
    /// What the request reserves, if its route has `usage`.
    pub(crate) reserve: Option<&'s UsageReserve>,
    pub(crate) body: Option<&'s BodyFacts>,
    /// The enforced checks and the shadow checks; `None` if the request is refused before.
    pub(crate) charge: Option<(&'s Charge, &'s [Charge])>,
}

pub(crate) struct DryRunResult {
    pub(crate) outcome: DryRunOutcome,
    /// Whether a route was found, also if it refuses the client.
    pub(crate) is_routed: bool,
    pub(crate) charge: Charge,
    pub(crate) decision: Option<Decision>,
    pub(crate) shadow: Vec<(Charge, Option<Decision>)>,
    /// The response; only its added headers if an upstream answers.
    pub(crate) response: Response<Bytes>,
    /// The request to the upstream.
    pub(crate) sent: Option<Request<()>>,
    /// Why the counts could not be read.
    pub(crate) trouble: Option<String>,
}

pub(crate) enum DryRunOutcome {
    Forwarded {
        upgrade: bool,
    },
    Answered,
    /// The proxy tells what is left of the client's limits (`[status]`).
    Status,
    Redirected,
    Denied,
    /// An operator has blocked this key, or a limit has banned it.
    Blocked(ExplainedBlock),
    /// A label, and a sentence.
    Refused(&'static str, String),
}

pub(crate) struct ExplainedBlock {
    pub(crate) tag: KeyHash,
    /// The limit whose ban it is. `None` if an operator made it.
    pub(crate) ban: Option<Arc<str>>,
    /// Microseconds until it ends; `None` if it has no end.
    pub(crate) left_us: Option<u64>,
}

impl DryRun {
    /// `hash_key` is the secret of the running proxies, if it is known.
    pub(crate) fn new(config: &Config, hash_key: Option<[u8; 32]>) -> io::Result<DryRun> {
        let mut config = config.fresh_copy();
        config.store.kind = StoreKind::Memory;
        config.store.hash_key = hash_key.map(Secret).or(config.store.hash_key);
        config.store.max_keys = 64;
        let mut counts = StoreHandle::open_store(&config.store, None)?.open();
        counts.bans_keys = false;
        let log = Arc::new(AccessLog::off());
        Ok(DryRun {
            stages: Stages::new(config, counts, &log.buffer(), None),
        })
    }

    /// Knows these API keys too.
    pub(crate) fn knowing(mut self, keys: Option<Arc<RegisteredKeys>>) -> DryRun {
        self.stages.router.keys = keys.map_or(KeyLookup::None, KeyLookup::Table);
        self
    }

    /// Runs one request. It calls `observe` if a route is found.
    pub(crate) fn run(
        &self,
        request: Request<Bytes>,
        arrival: Arrival,
        mut live: Option<LiveCounts<'_>>,
        observe: impl FnOnce(&RequestView<'_, '_, '_>),
    ) -> DryRunResult {
        let mut result = DryRunResult {
            outcome: DryRunOutcome::Answered,
            is_routed: false,
            charge: Charge::new(),
            decision: None,
            shadow: Vec::new(),
            response: Response::new(Bytes::new()),
            sent: None,
            trouble: None,
        };
        let (head, body) = request.into_parts();
        let mut request = Request::from_parts(head, ());
        let downstream = self.stages.downstream(arrival);
        let mut response = Response::new(Bytes::new());
        let mut exchange = self.stages.begin(&mut request, &mut response, &downstream);
        exchange.body = self.read_body(&exchange, &body);
        if let Err(rejection) = self.serve(&mut exchange, live.as_mut(), observe, &mut result) {
            self.stages.reject(&mut exchange, &rejection);
            result.outcome = refused(&rejection);
            if let Rejection::Limited(denial) = rejection {
                result.charge = denial.charge;
                result.decision = Some(denial.decision);
            }
        }
        result.is_routed = exchange.route.is_some();
        drop(exchange);
        self.stages.mark_connection(&mut response, &downstream);
        result.response = response;
        result
    }

    /// Reads the body as the proxy does before its decision.
    fn read_body(&self, x: &Exchange<'_, (), Bytes>, body: &[u8]) -> Option<Box<ReadBody>> {
        let route = self.stages.route_that_reads(x)?;
        let table = route.reads_body.as_ref()?;
        let headers = x.request.headers();
        let mut reader = RequestReader::new(table);
        reader.read(&body[..body.len().min(route.body_read)]);
        Some(Box::new(ReadBody {
            facts: BodyFacts {
                table: Arc::clone(table),
                members: reader.finish(),
            },
            length: announced_length(headers).unwrap_or(body.len() as u64),
            uploaded: None,
        }))
    }

    fn serve<'c>(
        &'c self,
        x: &mut Exchange<'c, (), Bytes>,
        live: Option<&mut LiveCounts<'_>>,
        observe: impl FnOnce(&RequestView<'_, '_, '_>),
        result: &mut DryRunResult,
    ) -> Result<(), Rejection> {
        self.stages.check(x, None)?;
        if let Some(settings) = self.stages.status_of(x) {
            result.outcome = DryRunOutcome::Status;
            return self.stages.check_status(x, settings);
        }
        let overrides = live.as_ref().and_then(|live| live.overrides.clone());
        let router = &self.stages.router;
        let observe_checks = |query: &LimitQuery<'_, '_, '_>,
                              admission: &Admission,
                              checked: &Result<(), Rejection>| {
            let LimitQuery {
                head,
                found,
                facts,
                reserve,
                ..
            } = query;
            observe(&RequestView {
                found,
                facts,
                client: head.client,
                bypass: router.bypass_of(facts, head.client, found.route.case),
                preflight: found.route.is_preflight(head.method, head.headers),
                reserve: *reserve,
                body: facts.body,
                charge: checked
                    .is_ok()
                    .then_some((&admission.charge, &admission.shadow)),
            });
        };
        self.stages
            .identify_with(overrides.as_ref(), x, observe_checks)?;
        self.stages.rewrite(x)?;
        self.decide(x, live, result)?;
        self.answer(x, result)?;
        self.stages.replies.mark(&x.admission, x.response);
        Ok(())
    }

    /// Decides by fresh counts, or by the counts of the running proxies.
    fn decide(
        &self,
        x: &mut Exchange<'_, (), Bytes>,
        live: Option<&mut LiveCounts<'_>>,
        result: &mut DryRunResult,
    ) -> Result<(), Rejection> {
        let charge = x.admission.charge.clone();
        let shadow = x.admission.shadow.clone();
        // The counts are here.
        let Some(mut admitted) = self.stages.begin_admission(x) else {
            return Ok(());
        };
        let mut checks = x.record.shadow.take();
        let checks = checks.iter_mut().flat_map(|shadow| &mut shadow.list);
        let decision = |decided: Decided<'_>| decided.decision.clone();
        let fresh: Vec<_> = checks.map(|check| check.decided().map(decision)).collect();
        result.shadow = shadow.into_iter().zip(fresh).collect();
        let timeout = x.route.and_then(|route| route.timeout);
        let longest_us = timeout.map_or(u64::MAX, longest_wait_us);
        if let Some(live) = live {
            let fresh = match &admitted {
                Ok(()) => x.admission.granted().map(decision),
                Err(Rejection::Limited(denial)) => Some(denial.decision.clone()),
                Err(_) => None,
            };
            let mut peek = |charge: &Charge, fresh: &Decision| match (live.peek)(charge) {
                Ok(peeked) => as_if_charged(peeked, fresh, charge, longest_us),
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
                admitted = self.stages.limiter.conclude(&mut x.admission, None);
            }
        }
        admitted?;
        if let Some(granted) = x.admission.granted() {
            result.charge = granted.charge.clone();
            result.decision = Some(granted.decision.clone());
        }
        Ok(())
    }

    /// Notes the request to the upstream, or makes the route's own response.
    fn answer(
        &self,
        x: &mut Exchange<'_, (), Bytes>,
        result: &mut DryRunResult,
    ) -> Result<(), Rejection> {
        let Some(route) = x.route else { return Ok(()) };
        let changes = x.changes.as_deref();
        match &route.target {
            Target::Upstream(_) => {
                let length = announced_length(x.request.headers());
                if let (Some(length), Some(most)) = (length, route.body_limit)
                    && length > most
                {
                    return Err(Rejection::BodyTooLarge);
                }
                let ready = prepare(x.request, x.downstream, x.record.client, route, changes)?;
                if let Some(prerendered) = ready.prerendered {
                    prerendered.insert_into(x.request.headers_mut());
                }
                result.sent = Some(std::mem::take(x.request));
                result.outcome = DryRunOutcome::Forwarded {
                    upgrade: ready.asks_upgrade,
                };
                if let Some(changes) = changes {
                    changes.apply_to_response(x.response);
                }
            }
            Target::Respond(_) => result.outcome = DryRunOutcome::Answered,
            Target::Redirect(_) => result.outcome = DryRunOutcome::Redirected,
        }
        if let Some(response) = own_response(&route.target, changes) {
            *x.response = response;
        }
        Ok(())
    }
}

fn announced_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The live decision as if the request were charged: its units are taken, and are free again when
/// those of a fresh key would be.
fn as_if_charged(
    mut live: Decision,
    fresh: &Decision,
    charge: &Charge,
    longest_us: u64,
) -> Decision {
    live.allowed = live.verdicts.iter().all(|one| one.retry == Retry::Now);
    if !live.allowed {
        hold_if_possible(&mut live, charge, longest_us);
        return live;
    }
    let both = live.verdicts.iter_mut().zip(&fresh.verdicts).zip(charge);
    for ((live, fresh), item) in both {
        live.remaining = live.remaining.saturating_sub(item.cost);
        live.reset_us = live.reset_us.max(fresh.reset_us);
        if live.used == 0 {
            live.next_us = fresh.next_us;
        }
    }
    live
}

/// Lets a request wait that its limits would hold. The counts do not tell how many wait already.
fn hold_if_possible(live: &mut Decision, charge: &Charge, longest_us: u64) {
    let (mut wait_us, mut most_us) = (0, u64::MAX);
    for (verdict, check) in live.verdicts.iter().zip(charge) {
        match (verdict.retry, check.delay_within(longest_us)) {
            (Retry::Now, _) => {}
            (Retry::After(us), Some(delay)) if check.role() == Role::Enforced => {
                wait_us = wait_us.max(us);
                most_us = most_us.min(delay.longest_us);
            }
            _ => return,
        }
    }
    if wait_us > most_us {
        return;
    }
    live.allowed = true;
    for verdict in &mut live.verdicts {
        if let Retry::After(us) = verdict.retry {
            verdict.retry = Retry::Booked(us);
        }
    }
}

fn refused(rejection: &Rejection) -> DryRunOutcome {
    let label = match rejection {
        Rejection::Limited(_) => return DryRunOutcome::Denied,
        Rejection::Blocked(blocked) => {
            return DryRunOutcome::Blocked(ExplainedBlock {
                tag: blocked.tag,
                ban: blocked.ban.clone(),
                left_us: blocked.left_us,
            });
        }
        Rejection::HeadError(_) => "malformed head",
        Rejection::Request(_) => "malformed request",
        Rejection::Path(_) => "refused path",
        Rejection::AmbiguousPath => "ambiguous path",
        Rejection::TlsOnly(_) => "TLS only",
        Rejection::BodyTooLarge => "body too large",
        Rejection::StatusBusy => "status busy",
        Rejection::AccessDenied => "access denied",
        Rejection::NoCertificate(_) => "no certificate",
        Rejection::NoRoute => "no route",
        Rejection::MissingKey(_) => "missing key",
        Rejection::AmbiguousKey(_) => "ambiguous key",
        Rejection::UnknownKey(_) => "unknown key",
        Rejection::Unpriced(_) => "no price",
        Rejection::BodyMemory => "no memory",
        Rejection::Draining => "draining",
        Rejection::StoreAway { .. } => "store away",
        Rejection::Upstream(_) => "upstream",
    };
    DryRunOutcome::Refused(label, rejection.sentence().into_owned())
}
