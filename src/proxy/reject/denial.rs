//! The answer to a request that a limit denies: in the form that its client reads, with everything
//! it needs to come back.

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONTENT_TYPE,
    HeaderMap, HeaderValue, LINK, ORIGIN, RETRY_AFTER, VARY,
};
use http::{Method, Response};
use smallvec::SmallVec;

use super::super::grpc;
use super::super::limiter::Limiter;
use super::super::problem::{self, Problem, QUOTA_EXCEEDED};
use super::insert_static;
use crate::clock;
use crate::config::BodyKind;
use crate::limit::headers::{expose_to_scripts, retry_after, seconds_value, write};
use crate::limit::{Charge, Decision, Rate, Retry};

/// A denial, with what its answer tells.
#[derive(Debug)]
pub(crate) struct Denial {
    /// What was asked.
    pub(crate) charge: Charge,
    /// What the store said.
    pub(crate) decision: Decision,
    /// How the client wants to read it.
    pub(crate) form: Form,
}

/// How a client wants to read a denial; taken from its request only when it is denied.
#[derive(Debug)]
pub(crate) struct Form {
    kind: BodyKind,
    head: bool,
    grpc: Option<HeaderValue>,
    origin: Option<HeaderValue>,
}

impl Form {
    /// What the request's head says.
    pub(crate) fn of(method: &Method, headers: &HeaderMap) -> Form {
        Form {
            kind: problem::preferred(headers),
            head: method == Method::HEAD,
            grpc: headers
                .get(CONTENT_TYPE)
                .filter(|value| grpc::is_grpc_type(value))
                .cloned(),
            origin: headers.get(ORIGIN).cloned(),
        }
    }
}

impl Limiter {
    /// A denial: 429 in the form the client reads, with everything it needs to come back. Its
    /// headers go into `room`, which is empty.
    pub(super) fn denial(&self, denial: &Denial, id: &str, room: HeaderMap) -> Response<Bytes> {
        let Denial {
            charge,
            decision,
            form,
        } = denial;
        let wait = retry_after(decision);
        let violated: SmallVec<[&str; 4]> = charge
            .iter()
            .zip(&decision.verdicts)
            .filter(|(_, verdict)| verdict.retry.denies())
            .map(|(item, _)| item.window.policy.as_ref())
            .collect();
        let detail = denial_detail(charge, decision, wait);
        let problem = Problem {
            kind: QUOTA_EXCEEDED,
            title: if wait.is_some() {
                "Quota Exceeded"
            } else {
                "Cost Above Limit"
            },
            status: self.deny.status.as_u16(),
            detail: &detail,
            violated: &violated,
            retry_after: wait,
            docs_url: self.deny.docs_url.as_deref(),
            request_id: id,
        };
        let retry_us = wait.map(|_| longest_retry_us(decision));
        let mut response = self.refusal(&problem, (form, retry_us), room);
        let headers = response.headers_mut();
        write(headers, self.headers, charge, decision, clock::unix_us());
        self.open_to_scripts(headers, form);
        response
    }

    /// A denial in the form that its client reads; `retry_us` is the exact wait.
    pub(in crate::proxy) fn refusal(
        &self,
        problem: &Problem<'_>,
        (form, retry_us): (&Form, Option<u64>),
        room: HeaderMap,
    ) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        *response.headers_mut() = room;
        if let Some(content_type) = &form.grpc {
            response
                .headers_mut()
                .insert(CONTENT_TYPE, content_type.clone());
            grpc::write_denial(response.headers_mut(), problem.detail, retry_us);
        } else {
            *response.status_mut() = self.deny.status;
            let template = self
                .deny
                .body
                .iter()
                .find(|(kind, _)| *kind == form.kind)
                .map(|(_, text)| text);
            if !form.head {
                let body = problem::render(problem, form.kind, template.map(String::as_str));
                *response.body_mut() = body;
            }
            insert_static(&mut response, CONTENT_TYPE, problem::media_type(form.kind));
        }
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = problem.retry_after {
            headers.insert(RETRY_AFTER, seconds_value(seconds));
        }
        if let Some(link) = &self.docs_link {
            headers.insert(LINK, link.clone());
        }
        response
    }

    /// The upstream's CORS headers are missing on our own answer; without them a browser hides
    /// even its status from the page that asked.
    pub(in crate::proxy) fn open_to_scripts(&self, headers: &mut HeaderMap, form: &Form) {
        if let (true, Some(origin)) = (self.headers.cors_expose, &form.origin) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            headers.insert(
                ACCESS_CONTROL_ALLOW_CREDENTIALS,
                HeaderValue::from_static("true"),
            );
            headers.append(VARY, HeaderValue::from_static("origin"));
            expose_to_scripts(headers);
        }
    }
}

/// `"login" allows 5/min; retry in 13 s`, for the limit that keeps the client waiting longest.
fn denial_detail(charge: &Charge, decision: &Decision, wait: Option<u64>) -> String {
    let worst = charge
        .iter()
        .zip(&decision.verdicts)
        .max_by_key(|(_, verdict)| match verdict.retry {
            Retry::Now | Retry::Unasked => 0,
            Retry::Released => 1,
            Retry::After(us) => us.max(1),
            Retry::Never => u64::MAX,
        });
    let Some((item, _)) = worst else {
        return String::new();
    };
    let Some(seconds) = wait else {
        let (rule, policy) = (item.window.rule, &item.window.policy);
        let rate = Rate {
            units: rule.units,
            window_us: rule.window_us,
        };
        return format!(
            "this request costs {}, more than \"{policy}\" ever allows at once ({rate})",
            item.cost
        );
    };
    let allows = &item.window.wording.allows;
    let mut detail = String::with_capacity(allows.len() + 40);
    detail.push_str(allows);
    detail.push_str("; retry in ");
    detail.push_str(itoa::Buffer::new().format(seconds));
    detail.push_str(" s");
    detail
}

fn longest_retry_us(decision: &Decision) -> u64 {
    let waits = decision.verdicts.iter().map(|verdict| match verdict.retry {
        Retry::After(us) => us,
        Retry::Now | Retry::Never | Retry::Released | Retry::Unasked => 0,
    });
    waits.max().unwrap_or(0)
}
