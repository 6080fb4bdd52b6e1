//! The ways in which other proxies ask for decisions.

/// How a proxy asks for decisions, as the label `door`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Auth,
    Nginx,
    Envoy,
    Check,
    Rls,
    Json,
}

impl Door {
    pub const WORDS: [&str; 6] = ["auth", "auth_nginx", "auth_envoy", "check", "rls", "json"];

    pub fn word(self) -> &'static str {
        Door::WORDS[self as usize]
    }
}

/// The answer to a question of a proxy, as the label `code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecideCode {
    Ok,
    OverLimit,
    Error,
}

impl DecideCode {
    pub const WORDS: [&str; 3] = ["ok", "over_limit", "error"];
}
