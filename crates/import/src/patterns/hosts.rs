//! Hosts of other programs in routes.

use super::escape_regex;
use crate::route::HostPattern;

/// The host of a route for requests that name none.
pub(crate) const NO_HOST: &str = "regex:^$";

/// Returns the hosts of one `server_name`; `None` is every host.
pub(crate) fn parse_hosts(name: &str) -> Result<Vec<Option<String>>, String> {
    let host = |text: &str| match HostPattern::parse(text) {
        Ok(_) => Ok(Some(text.to_ascii_lowercase())),
        Err(_) => Err(format!("`{text}` cannot be a route's host")),
    };
    match name {
        "_" | "*" => Ok(vec![None]),
        "" => Ok(vec![Some(NO_HOST.to_owned())]),
        regex if regex.starts_with('~') => regex_host(&regex[1..]),
        open if open.ends_with(".*") && !open.starts_with('*') => {
            let name = escape_regex(open.trim_end_matches('*'));
            regex_host(&format!("^{name}[^.]"))
        }
        dotted if dotted.starts_with('.') => {
            Ok(vec![host(&dotted[1..])?, host(&format!("*{dotted}"))?])
        }
        name => Ok(vec![host(name)?]),
    }
}

/// Returns the hosts of one name of a gateway: `a.test`, `*.a.test` or `a.*`.
pub(crate) fn gateway_hosts(name: &str) -> Result<Vec<Option<String>>, String> {
    let is_known = name.ends_with(".*") || HostPattern::parse(name).is_ok();
    match is_known && !name.starts_with(['~', '.']) {
        true => parse_hosts(name),
        false => Err(format!("`{name}` cannot be a route's host")),
    }
}

/// Replaces the quotes of PCRE (`\Q.a\E`), and classes of characters beyond those that hosts have.
fn plain_host_regex(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, quoted)) = rest.split_once("\\Q") {
        let (quoted, after) = quoted.split_once("\\E").unwrap_or((quoted, ""));
        out.push_str(before);
        out.push_str(&escape_regex(quoted));
        rest = after;
    }
    out.push_str(rest);
    out.replace("\\p{N}", "[0-9]").replace("\\p{L}", "[a-z]")
}

pub(crate) fn regex_host(text: &str) -> Result<Vec<Option<String>>, String> {
    let host = format!("regex:{}", plain_host_regex(text));
    match HostPattern::parse(&host) {
        Ok(_) => Ok(vec![Some(host)]),
        Err(why) => Err(format!("`{text}`: {why}")),
    }
}

/// Whether a host of a route stands for several names.
pub(crate) fn is_open_host(host: &str) -> bool {
    host.starts_with("*.") || host.starts_with("regex:") && host != NO_HOST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_hosts() {
        assert_eq!(parse_hosts("_"), Ok(vec![None]));
        let both = vec![Some("a.de".to_owned()), Some("*.a.de".to_owned())];
        assert_eq!(parse_hosts(".a.de"), Ok(both));
        let regex = |text: &str| Ok(vec![Some(format!("regex:{text}"))]);
        assert_eq!(parse_hosts("~^www"), regex("^www"));
        assert_eq!(parse_hosts("www.*"), regex(r"^www\.[^.]"));
        assert_eq!(
            parse_hosts(r"~^(?<a>\p{N})\Q.b\E$"),
            regex(r"^(?<a>[0-9])\.b$")
        );
        assert!(parse_hosts("~^(?!www)").is_err() && parse_hosts("*.*").is_err());
    }
}
