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
use super::super::problem::{self, Detail, Problem, QUOTA_EXCEEDED};
use super::super::rejection::{BLOCK_POLICY, Blocked, Denial};
use super::{LocalReplies, insert_static};
use crate::clock;
use crate::config::BodyKind;
use crate::limit::headers::{
    RateLimitStatus, expose_to_scripts, seconds_up, seconds_value, write_appending,
};
use crate::limit::{Charge, Decision, LimitCheck, Rate, Retry};

/// How a client wants to read a denial; taken from its request only when it is denied.
#[derive(Debug)]
pub(crate) struct DenialForm {
    kind: BodyKind,
    head: bool,
    grpc: Option<HeaderValue>,
    origin: Option<HeaderValue>,
}

impl DenialForm {
    /// What the request's head says.
    pub(crate) fn of(method: &Method, headers: &HeaderMap) -> DenialForm {
        DenialForm {
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

impl LocalReplies {
    /// A denial: 429 in the form the client reads, with everything it needs to come back. Its
    /// headers go into `room`, which is empty.
    pub(super) fn denial(
        &self,
        denial: &Denial,
        form: &DenialForm,
        id: &str,
        room: HeaderMap,
    ) -> Response<Bytes> {
        let Denial {
            charge, decision, ..
        } = denial;
        let status = RateLimitStatus::new(denial.decided(), self.headers.reset, clock::unix_us());
        self.with_problem(charge, &status, id, |problem| {
            let retry_us = problem.retry_after.map(|_| longest_retry_us(decision));
            let (mut response, body) = self.refusal(problem, form, retry_us, room);
            let headers = response.headers_mut();
            // One buffer has the body and the values of the headers.
            let length = body.len();
            let written = write_appending(headers, self.headers, charge, &status, body);
            self.open_to_scripts(headers, form);
            *response.body_mut() = written.slice(..length);
            response
        })
    }

    /// The answer to someone who is kept out. Without an end no Retry-After would be honest.
    pub(super) fn keep_out(
        &self,
        blocked: &Blocked,
        form: &DenialForm,
        id: &str,
        room: HeaderMap,
    ) -> Response<Bytes> {
        let wait = blocked.left_us.map(|us| seconds_up(us).max(1));
        let detail = match wait {
            Some(seconds) => format!("this client is blocked; retry in {seconds} s"),
            None => "this client is blocked".to_owned(),
        };
        let problem = Problem {
            kind: QUOTA_EXCEEDED,
            title: "Blocked",
            status: self.deny.status.as_u16(),
            detail: Detail::Text(&detail),
            violated: &[BLOCK_POLICY],
            retry_after: wait,
            docs_url: self.deny.docs_url.as_deref(),
            request_id: id,
        };
        let (mut response, body) = self.refusal(&problem, form, blocked.left_us, room);
        *response.body_mut() = body.into();
        if let Some(seconds) = wait {
            response
                .headers_mut()
                .insert(RETRY_AFTER, seconds_value(seconds));
        }
        self.open_to_scripts(response.headers_mut(), form);
        response
    }

    /// Words a denial.
    fn with_problem<R>(
        &self,
        charge: &Charge,
        status: &RateLimitStatus,
        id: &str,
        then: impl FnOnce(&Problem<'_>) -> R,
    ) -> R {
        let wait = status.wait;
        let violated: SmallVec<[&str; 4]> = status
            .states(charge)
            .filter(|(_, state)| state.denies)
            .map(|(item, _)| item.window.policy.as_ref())
            .collect();
        let worst = status.longest(charge);
        let never = match (wait, worst) {
            (None, Some(item)) => never_allowed(item),
            _ => String::new(),
        };
        let detail = match (wait, worst) {
            (Some(seconds), Some(item)) => Detail::Wait {
                allows: &item.window.texts.allows,
                allows_json: &item.window.texts.allows_json,
                seconds,
            },
            _ => Detail::Text(&never),
        };
        let problem = Problem {
            kind: QUOTA_EXCEEDED,
            title: if wait.is_some() {
                "Quota Exceeded"
            } else {
                "Cost Above Limit"
            },
            status: self.deny.status.as_u16(),
            detail,
            violated: &violated,
            retry_after: wait,
            docs_url: self.deny.docs_url.as_deref(),
            request_id: id,
        };
        then(&problem)
    }

    /// What the operator has written for bodies of this kind.
    fn template(&self, kind: BodyKind) -> Option<&str> {
        let mut templates = self.deny.body.iter();
        let found = templates.find(|(of, _)| *of == kind);
        found.map(|(_, text)| text.as_str())
    }

    /// A denial in the form that its client reads, and its body, which it does not have yet;
    /// `retry_us` is the exact wait. Its headers lack `Retry-After`.
    pub(in crate::exchange) fn refusal(
        &self,
        problem: &Problem<'_>,
        form: &DenialForm,
        retry_us: Option<u64>,
        room: HeaderMap,
    ) -> (Response<Bytes>, Vec<u8>) {
        let mut response = Response::new(Bytes::new());
        let mut body = Vec::new();
        *response.headers_mut() = room;
        if let Some(content_type) = &form.grpc {
            response
                .headers_mut()
                .insert(CONTENT_TYPE, content_type.clone());
            grpc::write_denial(response.headers_mut(), &problem.detail.text(), retry_us);
        } else {
            *response.status_mut() = self.deny.status;
            if !form.head {
                body = problem::render(problem, form.kind, self.template(form.kind));
            }
            insert_static(&mut response, CONTENT_TYPE, problem::media_type(form.kind));
        }
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(link) = &self.docs_link {
            headers.insert(LINK, link.clone());
        }
        (response, body)
    }

    /// The upstream's CORS headers are missing on our own answer; without them a browser hides
    /// even its status from the page that asked.
    pub(in crate::exchange) fn open_to_scripts(&self, headers: &mut HeaderMap, form: &DenialForm) {
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

/// Said where no wait helps.
fn never_allowed(item: &LimitCheck) -> String {
    let (rule, policy) = (item.window.rule, &item.window.policy);
    let rate = Rate {
        units: rule.units,
        window_us: rule.window_us,
    };
    format!(
        "this request costs {}, more than \"{policy}\" ever allows at once ({rate})",
        item.cost
    )
}

fn longest_retry_us(decision: &Decision) -> u64 {
    let waits = decision.verdicts.iter().map(|verdict| match verdict.retry {
        Retry::After(us) => us,
        Retry::Now | Retry::Never | Retry::Released | Retry::Unasked => 0,
    });
    waits.max().unwrap_or(0)
}
