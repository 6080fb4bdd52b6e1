//! A draft as the text of a `proxy.toml`, with what could not be kept at its head.

use std::fmt::Write as _;

use super::draft::{Budget, Draft, Goal, LimitDraft, RouteDraft, Setting, Tls, UpstreamDraft};
use super::notes::Grade;

/// Columns of a comment.
const WIDTH: usize = 96;

/// The whole file.
pub(super) fn print(draft: &Draft, source: &str) -> String {
    let mut out = head(draft, source);
    top(draft, &mut out);
    tls(&draft.tls, &mut out);
    if let Some(header) = &draft.client_ip_header {
        let _ = write!(out, "\n[client_ip]\nheader = {}\n", text(header));
    }
    section("server", &draft.server, &mut out);
    if let Some(name) = &draft.request_id {
        let _ = write!(out, "\n[headers]\nrequest_id = {}\n", text(name));
    }
    if let Some(status) = draft.deny_status {
        let _ = write!(out, "\n[deny]\nstatus = {status}\n");
    }
    for one in &draft.limits {
        limit(one, &mut out);
    }
    for one in &draft.upstreams {
        upstream(one, &mut out);
    }
    for one in &draft.routes {
        route(one, &mut out);
    }
    out
}

fn head(draft: &Draft, source: &str) -> String {
    let mut out = String::new();
    comment(
        &mut out,
        &format!(
            "Made by `tidegate import` of {source}. Look through it, then: tidegate check, \
             tidegate explain GET URL, tidegate replay."
        ),
    );
    let notes = draft.notes.sorted();
    for (grade, title) in [
        (Grade::Lost, "Not kept:"),
        (Grade::Differs, "Kept, and not quite the same:"),
        (Grade::Needless, "Left out, not needed here:"),
    ] {
        let mut some = notes.iter().filter(|note| note.grade == grade).peekable();
        if some.peek().is_some() {
            out.push_str("#\n");
            comment(&mut out, title);
            for note in some {
                comment(&mut out, &format!("- {note}"));
            }
        }
    }
    out
}

/// Lines that begin with `#`, broken between words.
fn comment(out: &mut String, text: &str) {
    let indent = if text.starts_with("- ") { "#   " } else { "# " };
    let mut line = "# ".to_owned();
    let text = text.replace(|c: char| c.is_control(), " ");
    for word in text.split_whitespace() {
        if line.len() > 4 && line.len() + word.len() > WIDTH {
            let _ = writeln!(out, "{}", line.trim_end());
            line = indent.to_owned();
        }
        line.push_str(word);
        line.push(' ');
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

fn top(draft: &Draft, out: &mut String) {
    out.push('\n');
    let mut settings = Vec::new();
    let listens = !draft.listen.is_empty();
    if listens || draft.tls.is_used() {
        settings.push(("listen".to_owned(), texts(&draft.listen)));
    }
    if !draft.trusted.is_empty() {
        settings.push(("trusted_proxies".to_owned(), texts(&draft.trusted)));
    }
    if let Some(header) = &draft.proxy_protocol {
        settings.push(("proxy_protocol".to_owned(), text(header.mode)));
    }
    lines(&settings, "", out);
    if draft.routes.is_empty() {
        let _ = writeln!(
            out,
            "upstream = \"http://127.0.0.1:3000\"     # nothing says where requests go"
        );
    }
}

fn tls(tls: &Tls, out: &mut String) {
    if tls.listen.is_empty() {
        return;
    }
    let mut settings = vec![("listen".to_owned(), texts(&tls.listen))];
    settings.extend(tls.settings.iter().cloned());
    let mut section = "\n[tls]\n".to_owned();
    lines(&settings, "", &mut section);
    for (cert, key, _) in &tls.certificates {
        section.push_str("\n[[tls.certificates]]\n");
        let _ = writeln!(section, "cert = {}\nkey  = {}", text(cert), text(key));
    }
    let Some(why) = &tls.elsewhere else {
        out.push_str(&section);
        return;
    };
    out.push('\n');
    comment(out, &format!("Not used here: {why}."));
    for line in section.trim_start().lines() {
        let _ = writeln!(out, "{}", format!("# {line}").trim_end());
    }
}

fn section(name: &str, settings: &[Setting], out: &mut String) {
    if !settings.is_empty() {
        let _ = write!(out, "\n[{name}]\n");
        lines(settings, "", out);
    }
}

/// `key = value`, the signs below each other.
fn lines(settings: &[Setting], last: &str, out: &mut String) {
    let keys = settings.iter().map(|(key, _)| key.len());
    let width = keys.max().unwrap_or(0).max(last.len());
    for (key, value) in settings {
        let _ = writeln!(out, "{key:width$} = {value}");
    }
}

fn limit(limit: &LimitDraft, out: &mut String) {
    let _ = writeln!(out, "\n[limit.{}]", limit.name);
    comment(out, &limit.was);
    let mut settings: Vec<Setting> = Vec::new();
    let mut say = |key: &str, value: String| settings.push((key.to_owned(), value));
    match limit.budget {
        Budget::Rate(rate) => say("rate", text(&rate.to_string())),
        Budget::Concurrent(count) => say("concurrent", count.to_string()),
    }
    say("key", one_or_more(&limit.key.parts));
    if let Some(word) = limit.key.missing {
        say("missing", text(word));
    }
    if !limit.key.exempt.is_empty() {
        say("exempt", texts(&limit.key.exempt));
    }
    if limit.shadow {
        say("shadow", "true".to_owned());
    }
    lines(&settings, "", out);
}

fn upstream(upstream: &UpstreamDraft, out: &mut String) {
    let _ = writeln!(out, "\n[upstream.{}]", upstream.name);
    let server = |server: &super::draft::ServerDraft| {
        let mut more = String::new();
        if let Some(weight) = server.weight {
            let _ = write!(more, ", weight = {weight}");
        }
        if let Some(most) = server.max_connections {
            let _ = write!(more, ", max_connections = {most}");
        }
        match more.is_empty() {
            true => text(&server.url),
            false => format!("{{ url = {}{more} }}", text(&server.url)),
        }
    };
    let servers: Vec<String> = upstream.servers.iter().map(server).collect();
    let servers = match servers.len() {
        0 | 1 => format!("[{}]", servers.join("")),
        _ => format!("[\n  {},\n]", servers.join(",\n  ")),
    };
    let mut settings = vec![("servers".to_owned(), servers)];
    settings.extend(upstream.settings.iter().cloned());
    lines(&settings, "", out);
}

fn route(route: &RouteDraft, out: &mut String) {
    out.push_str("\n[[route]]\n");
    comment(out, &format!("{}: {}", route.place, route.was));
    let mut settings: Vec<Setting> = Vec::new();
    let mut say = |key: &str, value: String| settings.push((key.to_owned(), value));
    if let Some(host) = &route.host {
        say("host", text(host));
    }
    say("path", text(&route.path));
    if !route.methods.is_empty() {
        say("methods", texts(&route.methods));
    }
    if !route.headers.is_empty() {
        let headers = route.headers.iter();
        let value = |value: &Option<String>| value.as_deref().map_or("true".to_owned(), text);
        let headers = headers.map(|(name, wanted)| format!("{} = {}", text(name), value(wanted)));
        let headers: Vec<String> = headers.collect();
        say("headers", format!("{{ {} }}", headers.join(", ")));
    }
    match &route.goal {
        Goal::Upstream(name) => say("upstream", text(name)),
        Goal::Respond {
            status,
            body,
            content_type,
        } => say(
            "respond",
            respond(*status, body.as_deref(), content_type.as_deref()),
        ),
        Goal::Redirect { to, status } => say(
            "redirect",
            format!("{{ to = {}, status = {status} }}", text(to)),
        ),
        Goal::Closed(why) => {
            comment(out, &format!("CLOSED until you decide: {why}"));
            say("respond", respond(501, Some("not imported\n"), None));
        }
    }
    say("limits", texts(&route.limits));
    settings.extend(route.settings.iter().cloned());
    lines(&settings, "", out);
}

fn respond(status: u16, body: Option<&str>, content_type: Option<&str>) -> String {
    let mut out = format!("{{ status = {status}");
    if let Some(body) = body {
        let _ = write!(out, ", body = {}", text(body));
    }
    if let Some(kind) = content_type {
        let _ = write!(out, ", content_type = {}", text(kind));
    }
    out.push_str(" }");
    out
}

fn one_or_more(list: &[String]) -> String {
    match list {
        [one] => text(one),
        _ => texts(list),
    }
}

/// A list of strings.
pub(super) fn texts(list: &[String]) -> String {
    let quoted: Vec<String> = list.iter().map(|one| text(one)).collect();
    format!("[{}]", quoted.join(", "))
}

/// A string that means itself: no `$` of it names a variable.
pub(super) fn text(value: &str) -> String {
    let mut out = String::with_capacity(value.len() + 2);
    out.push('"');
    let mut chars = value.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Before anything else a dollar sign is one.
            '$' if matches!(chars.peek(), Some('$' | '{')) => out.push_str("$$"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
