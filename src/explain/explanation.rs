//! An explanation as plain data: the admin and `tidegate explain --json` return it, `text.rs`
//! renders it.

use serde::{Deserialize, Serialize};

pub(super) type Pairs = Vec<(String, String)>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub request: ExplainedRequest,
    pub verdict: ExplainedVerdict,
    pub client: ClientExplanation,
    /// Its token, if the file verifies tokens.
    #[serde(default)]
    pub token: Option<TokenExplanation>,
    pub path: PathExplanation,
    pub route: Option<RouteExplanation>,
    pub near: Vec<NearRoute>,
    pub spared: Option<String>,
    /// What it may use of a model, if its route has `usage`.
    #[serde(default)]
    pub usage: Option<UsageExplanation>,
    pub limits: Vec<LimitExplanation>,
    pub upstream: Option<UpstreamExplanation>,
    pub client_sees: ClientResponse,
    pub counts: CountsSource,
}

/// A request, without its secrets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainedRequest {
    pub method: String,
    pub target: String,
    pub host: String,
    pub headers: Pairs,
    pub peer: String,
    pub tls: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainedVerdict {
    /// `forwarded`, `answered`, `redirected`, `denied`, `blocked` or `refused`.
    pub outcome: String,
    pub status: Option<u16>,
    pub why: String,
    pub denied_by: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientExplanation {
    pub peer: String,
    pub trusted: bool,
    /// The header that trusted proxies write.
    pub header: String,
    /// The addresses that were read in it, from the right.
    pub hops: Vec<HopExplanation>,
    pub address: String,
    /// The client's address or network, as limits count it.
    pub counted_as: String,
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HopExplanation {
    pub said: String,
    pub address: Option<String>,
    pub trusted: bool,
    pub note: String,
}

/// A bearer token. It tells nothing of the token itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenExplanation {
    /// Whether the proxy believes its claims.
    pub believed: bool,
    /// The `kid` of the key that verified it; none for a key without one.
    pub key_id: Option<String>,
    /// Seconds since the keys were fetched, if they come from `jwks_url`.
    pub keys_age_seconds: Option<u64>,
    /// Why it is not believed.
    pub why: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathExplanation {
    pub sent: String,
    /// The normalized path, which routes and keys use.
    pub canonical: Option<String>,
    /// How some upstreams read it instead.
    pub also_read_as: Vec<String>,
    pub refused: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouteExplanation {
    pub name: String,
    pub host: String,
    pub path: String,
    pub methods: Vec<String>,
    /// The values of the pattern's `{name}`s.
    pub params: Pairs,
    /// `upstream api`, `respond 404` or `redirect 301`.
    pub to: String,
}

/// The estimate of a request to a model server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsageExplanation {
    /// Of `[usage.NAME]`.
    pub name: String,
    /// `openai`, or another format.
    pub format: String,
    pub model: Option<String>,
    /// Estimated tokens.
    pub input: u64,
    pub output: u64,
    /// How the two are computed.
    pub input_why: String,
    pub output_why: String,
    /// Whether the request names a maximum of output.
    pub names_maximum: bool,
    /// Whether the proxy asks the server for the usage of the stream.
    pub asks: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NearRoute {
    pub route: String,
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitExplanation {
    pub name: String,
    /// `enforced`, `shadow`, `exempt`, `skipped`, `refuses`, `unlimited` or `spared`.
    pub state: String,
    /// Why it is in that state, unless that is plain.
    pub why: Option<String>,
    pub key: Vec<KeyPart>,
    /// The beginning of the key's hash, as logs show it; only with live counts.
    pub id: Option<String>,
    pub cost: u64,
    /// How the cost is computed, unless it is 1.
    pub cost_why: Option<String>,
    /// The client's tier, if the limit uses tiers.
    pub tier: Option<String>,
    pub rates: Vec<RateExplanation>,
    /// How it holds requests instead of denying them, if it does.
    #[serde(default)]
    pub holds: Option<String>,
    /// The denials that begin a ban, and how long it lasts.
    #[serde(default)]
    pub bans: Option<String>,
    /// The behaviour if the store does not answer: `local`, `allow` or `deny`.
    pub on_error: String,
}

impl LimitExplanation {
    pub fn is_counted(&self) -> bool {
        self.rates.iter().any(|rate| rate.used.is_some())
    }

    pub fn denies(&self) -> bool {
        let denies = |rate: &RateExplanation| {
            rate.allows == Some(false) && matches!(rate.role.as_str(), "enforced" | "override")
        };
        self.state == "enforced" && self.rates.iter().any(denies)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyPart {
    /// As in the file: `api_key or ip`.
    pub part: String,
    /// The alternative that the request has.
    pub found: Option<String>,
    pub value: Option<String>,
    /// Where the value was found, or what follows if it is missing.
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateExplanation {
    pub policy: String,
    /// `100/min`, or `50 at once`.
    pub rate: String,
    pub algorithm: String,
    /// `enforced`, `shadow`, `candidate` or `override`.
    pub role: String,
    /// Units before the request.
    pub used: Option<u64>,
    /// Units after the request, or now if it is denied.
    pub remaining: Option<u64>,
    pub allows: Option<bool>,
    /// Seconds until it would allow the request; none for never or unknown.
    pub retry_seconds: Option<f64>,
    /// Seconds until all units are free again.
    pub reset_seconds: Option<f64>,
    /// When a calendar window ends, as RFC 3339 in its zone.
    pub resets_at: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpstreamExplanation {
    pub name: String,
    pub servers: Vec<String>,
    pub method: String,
    pub target: String,
    pub headers: Pairs,
    pub upgrade: bool,
}

/// The part of the response that the proxy itself writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientResponse {
    /// None if the upstream answers.
    pub status: Option<u16>,
    /// Headers that the proxy writes; the upstream's headers come besides.
    pub headers: Pairs,
    pub body: String,
}

/// Where the counts of an explanation come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CountsSource {
    /// Whether they are current; otherwise they are those of a client without requests.
    pub live: bool,
    pub from: Option<String>,
    pub trouble: Option<String>,
}
