//! What can be asked for: paths and queries, read.

use crate::key_selector::percent_decoded as decoded;

/// Everything that can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Healthz,
    Readyz,
    Metrics,
    /// What the API is, for programs.
    OpenApi,
    Status,
    Traffic,
    Limits,
    /// The busiest clients of the limit of this name.
    Clients(String),
    Upstreams,
    /// What each route answered lately.
    Routes,
    Denials,
    DenialStream,
    Reload,
    /// What is served by.
    Config,
    /// What stands for the secrets in it.
    Secrets,
    /// What would become of a request.
    Explain,
    /// Every override and block in force.
    Overrides,
    /// The last changes of those.
    Changes,
    /// How a client of the limit of this name stands, by the words of its key.
    Key(String, Vec<String>),
    /// A change of one client, of the limit of this name or of any.
    Change(Option<String>, ClientChange),
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdminAction {
    /// Reads what everybody may see who can connect.
    Probe,
    /// Reads what clients do.
    Read,
    /// Changes something.
    Write,
}

/// A change of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientChange {
    Reset,
    Override,
    Block,
}

/// The value of a parameter of a query; nothing where it is not there, or cannot be read.
pub(super) fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(found, _)| *found == name)?;
    decoded(&value.replace('+', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read() {
        let query = Some("limit=a%2Fb+c&top=5&odd");
        assert_eq!(parameter(query, "limit").as_deref(), Some("a/b c"));
        assert_eq!(parameter(query, "top").as_deref(), Some("5"));
        assert_eq!(parameter(query, "odd"), None);
        assert_eq!(parameter(None, "top"), None);
    }
}
