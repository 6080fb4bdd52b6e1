//! What becomes of requests that reach no limit.

/// What a request that reached no limit met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outside {
    /// It is forwarded without being charged.
    Bypassed,
    /// Its route has no limits, or it is a browser's preflight.
    Unlimited,
    /// No route takes it.
    NoRoute,
    /// Its path, host or method is refused.
    Refused,
    /// A limit refuses it: it has no key, or several.
    NoKey,
}

impl Outside {
    /// What scripts call it.
    pub const fn name(self) -> &'static str {
        match self {
            Outside::Bypassed => "bypassed",
            Outside::Unlimited => "unlimited",
            Outside::NoRoute => "no_route",
            Outside::Refused => "refused",
            Outside::NoKey => "no_key",
        }
    }

    /// What reports call it.
    pub const fn word(self) -> &'static str {
        match self {
            Outside::Bypassed => "bypassed",
            Outside::Unlimited => "on routes without limits",
            Outside::NoRoute => "without a route",
            Outside::Refused => "refused for their path, host or method",
            Outside::NoKey => "refused for want of a key",
        }
    }
}
