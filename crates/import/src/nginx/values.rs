//! Values of nginx: sizes, times, rates, and texts with variables.

use crate::bucket::Refill;

/// `10m` in bytes.
pub(super) fn size(text: &str) -> Option<u64> {
    let (digits, unit) = split(text);
    let unit = match unit {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// `1h30m`, `500ms`, `60` in milliseconds.
pub(super) fn time_ms(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total = 0_u64;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit());
        let (digits, behind) = rest.split_at(end.unwrap_or(rest.len()));
        let unit = behind.find(|c: char| c.is_ascii_digit());
        let (unit, behind) = behind.split_at(unit.unwrap_or(behind.len()));
        let ms = match unit.trim() {
            "ms" => 1,
            "" | "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            "M" => 30 * 86_400_000,
            "y" => 365 * 86_400_000,
            _ => return None,
        };
        let part = digits.parse::<u64>().ok()?.checked_mul(ms)?;
        total = total.checked_add(part)?;
        rest = behind;
    }
    (!text.is_empty()).then_some(total)
}

/// `10r/s`, `30r/m`
pub(super) fn rate(text: &str) -> Option<Refill> {
    let (count, per) = text.split_once("r/")?;
    let units = count.parse().ok().filter(|count| *count > 0)?;
    let per_us = match per {
        "s" => 1_000_000,
        "m" => 60_000_000,
        _ => return None,
    };
    Some(Refill { units, per_us })
}

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

/// So many bytes as `proxy.toml` says them, quoted.
pub(super) fn size_text(bytes: u64) -> String {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = units.iter().find(|(_, unit)| bytes.is_multiple_of(*unit));
    let (name, unit) = unit.copied().unwrap_or(("B", 1));
    format!("\"{}{name}\"", bytes / unit)
}

/// So many milliseconds as `proxy.toml` says them, quoted.
pub(super) fn time_text(ms: u64) -> String {
    let units = [("h", 3_600_000), ("min", 60_000), ("s", 1000)];
    let unit = units.iter().find(|(_, unit)| ms.is_multiple_of(*unit));
    let (name, unit) = unit.copied().unwrap_or(("ms", 1));
    format!("\"{}{name}\"", ms / unit)
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'t> {
    Text(&'t str),
    /// `$name` or `${name}`
    Variable(&'t str),
}

/// The parts of a text.
pub(super) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let behind = &rest[at + 1..];
        let braced = behind
            .strip_prefix('{')
            .and_then(|inner| inner.split_once('}'));
        let end = behind.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let (name, after) = braced.unwrap_or(behind.split_at(end.unwrap_or(behind.len())));
        if name.is_empty() {
            // A dollar sign that is none.
            found.push(Piece::Text(&rest[..=at]));
            rest = behind;
            continue;
        }
        if at > 0 {
            found.push(Piece::Text(&rest[..at]));
        }
        found.push(Piece::Variable(name));
        rest = after;
    }
    if !rest.is_empty() {
        found.push(Piece::Text(rest));
    }
    found
}

/// A text with nginx's variables as one with `proxy.toml`'s; the first variable that it has not.
pub(super) fn template(text: &str) -> Result<String, String> {
    let mut out = String::new();
    for piece in pieces(text) {
        match piece {
            Piece::Text(text) => out.push_str(&text.replace('{', "{{").replace('}', "}}")),
            Piece::Variable(name) => match variable(name) {
                Some(ours) => out.push_str(&ours),
                None => return Err(format!("${name}")),
            },
        }
    }
    Ok(out)
}

/// The variable of `proxy.toml` that says the same.
fn variable(name: &str) -> Option<String> {
    let ours = match name {
        "remote_addr" | "binary_remote_addr" => "{client_ip}",
        "realip_remote_addr" => "{peer_ip}",
        "host" | "http_host" => "{host}",
        "scheme" => "{scheme}",
        "request_uri" => "{uri}",
        "uri" | "document_uri" => "{path}",
        "args" | "query_string" => "{query}",
        "request_method" => "{method}",
        "request_id" => "{request_id}",
        "ssl_client_s_dn" => "{tls_subject}",
        "is_args" => "",
        _ => {
            let prefixes = [
                ("http_", "header"),
                ("arg_", "query"),
                ("cookie_", "cookie"),
            ];
            return prefixes.iter().find_map(|(prefix, kind)| {
                let name = name.strip_prefix(prefix)?;
                let name = match *kind {
                    "header" => name.replace('_', "-"),
                    _ => name.to_owned(),
                };
                Some(format!("{{{kind}:{name}}}"))
            });
        }
    };
    Some(ours.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_nginx_does() {
        assert_eq!(size("10m"), Some(10 << 20));
        assert_eq!(size("8"), Some(8));
        assert_eq!(size("1x"), None);
        assert_eq!(time_ms("1h30m"), Some(5_400_000));
        assert_eq!(time_ms("500ms"), Some(500));
        assert_eq!(time_ms("60"), Some(60_000));
        assert_eq!(time_ms(""), None);
        assert_eq!(rate("10r/s").map(|rate| rate.units), Some(10));
        assert_eq!(rate("10r/h"), None);
        assert_eq!(size_text(1 << 20), "\"1MiB\"");
        assert_eq!(time_text(90_000), "\"90s\"");
    }

    #[test]
    fn variables_become_ours() {
        for (text, expected) in [
            ("https://$host$request_uri", Ok("https://{host}{uri}")),
            ("${http_x_user}-$arg_v", Ok("{header:x-user}-{query:v}")),
            ("a{b}", Ok("a{{b}}")),
            ("$geoip_country", Err("$geoip_country")),
            ("5$", Ok("5$")),
        ] {
            let found = template(text);
            let found = found.as_deref().map_err(String::as_str);
            assert_eq!(found, expected, "{text}");
        }
    }
}
