//! What is told, as plain data: what scripts and the admin API read, and what `text.rs` writes.

use serde::{Deserialize, Serialize};

/// Names and values, in order.
pub(super) type Pairs = Vec<(String, String)>;

/// What would become of a request, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// What was asked about.
    pub request: Asked,
    /// How it would end.
    pub verdict: Verdict,
    /// Who is asking.
    pub client: ClientStory,
    /// How the path is read.
    pub path: PathStory,
    /// Whose it is.
    pub route: Option<RouteStory>,
    /// Routes that might have been meant, and why it is none of theirs.
    pub near: Vec<NearRoute>,
    /// Why it is not charged.
    pub spared: Option<String>,
    /// What limits it.
    pub limits: Vec<LimitStory>,
    /// What its upstream would get.
    pub upstream: Option<UpstreamStory>,
    /// What its client would get.
    pub client_sees: Seen,
    /// Whose counts these are.
    pub counts: Counts,
}

/// A request, without its secrets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Its method.
    pub method: String,
    /// Its path and query.
    pub target: String,
    /// The host asked for.
    pub host: String,
    /// Its headers.
    pub headers: Pairs,
    /// The address that it is sent from.
    pub peer: String,
    /// Whether its connection to the proxy speaks TLS.
    pub tls: bool,
}

/// How it would end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// `forwarded`, `answered`, `redirected`, `denied`, `blocked` or `refused`.
    pub outcome: String,
    /// The status, where the proxy itself answers.
    pub status: Option<u16>,
    /// A sentence.
    pub why: String,
    /// Limits that deny it.
    pub denied_by: Vec<String>,
}

/// Who is asking, and how that is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientStory {
    /// The address that the connection comes from.
    pub peer: String,
    /// Whether that one may say whom it speaks for.
    pub trusted: bool,
    /// The header in which it would say it.
    pub header: String,
    /// What was looked at in it, from the right.
    pub hops: Vec<HopStory>,
    /// Who the client is.
    pub address: String,
    /// What stands for the client where it is counted by its address.
    pub counted_as: String,
    /// How it comes to that, in a sentence.
    pub why: String,
}

/// One address of the walk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HopStory {
    /// As it stands there.
    pub said: String,
    /// The address in it.
    pub address: Option<String>,
    /// Whether it is a proxy of ours.
    pub trusted: bool,
    /// What follows of it, in words.
    pub note: String,
}

/// How the path is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathStory {
    /// As the client sends it.
    pub sent: String,
    /// In the one spelling that routes and keys see.
    pub canonical: Option<String>,
    /// How some upstreams read it instead.
    pub also_read_as: Vec<String>,
    /// Why it is refused.
    pub refused: Option<String>,
}

/// A request's route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouteStory {
    /// What operators call it.
    pub name: String,
    /// Hosts it answers for.
    pub host: String,
    /// Its pattern.
    pub path: String,
    /// Methods it takes; none for all.
    pub methods: Vec<String>,
    /// What its `{name}`s stand for.
    pub params: Pairs,
    /// Where it leads.
    pub to: String,
}

/// A route that is not the request's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NearRoute {
    /// What operators call it.
    pub route: String,
    /// Why not.
    pub why: String,
}

/// One limit of the route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitStory {
    /// Its name.
    pub name: String,
    /// `enforced`, `shadow`, `exempt`, `skipped`, `refuses`, `unlimited` or `spared`.
    pub state: String,
    /// Why it is in that state, where that is not plain.
    pub why: Option<String>,
    /// What it counts by.
    pub key: Vec<KeyPart>,
    /// The beginning of the key's hash, as logs show it; known with live counts only.
    pub id: Option<String>,
    /// What the request weighs.
    pub cost: u64,
    /// How that comes about, where it is not 1.
    pub cost_why: Option<String>,
    /// The client's tier, where the limit asks for it.
    pub tier: Option<String>,
    /// Its rates, and how they stand.
    pub rates: Vec<RateStory>,
    /// What an outage of the store would mean: `local`, `allow` or `deny`.
    pub on_error: String,
}

impl LimitStory {
    /// Whether something is counted by it.
    pub fn is_counted(&self) -> bool {
        self.rates.iter().any(|rate| rate.used.is_some())
    }

    /// Whether it is a reason of a denial.
    pub fn denies(&self) -> bool {
        self.state == "enforced" && self.rates.iter().any(|rate| rate.is_reason())
    }
}

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyPart {
    /// As the file has it: `api_key or ip`.
    pub part: String,
    /// Which of them the request has.
    pub found: Option<String>,
    /// Its value; of secrets the beginning.
    pub value: Option<String>,
    /// Where it was found, or what follows of its absence.
    pub note: Option<String>,
}

/// One rate, and how it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateStory {
    /// What clients read it as.
    pub policy: String,
    /// `100/min`, or `50 at once`.
    pub rate: String,
    /// How it is counted.
    pub algorithm: String,
    /// `enforced`, `shadow`, `candidate` or `override`.
    pub role: String,
    /// Units counted before the request.
    pub used: Option<u64>,
    /// Units left after it, or now if it is denied.
    pub remaining: Option<u64>,
    /// Whether it lets the request pass.
    pub allows: Option<bool>,
    /// When it would, seconds; nothing where that is never or not known.
    pub retry_seconds: Option<f64>,
    /// When all of it is free again, seconds.
    pub reset_seconds: Option<f64>,
}

impl RateStory {
    fn is_reason(&self) -> bool {
        self.allows == Some(false) && matches!(self.role.as_str(), "enforced" | "override")
    }
}

/// What the upstream would get.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpstreamStory {
    /// Its name.
    pub name: String,
    /// Its servers.
    pub servers: Vec<String>,
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The headers.
    pub headers: Pairs,
    /// Whether it is asked to leave HTTP.
    pub upgrade: bool,
}

/// What the client would get.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// The status; nothing where it is the upstream's.
    pub status: Option<u16>,
    /// The proxy's headers; the upstream's are beside them.
    pub headers: Pairs,
    /// The proxy's own body.
    pub body: String,
}

/// Whose counts they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Whether they are the client's own, of now; else those of one of whom nothing is counted.
    pub live: bool,
    /// Where they are kept.
    pub from: Option<String>,
    /// Why they could not be read.
    pub trouble: Option<String>,
}
