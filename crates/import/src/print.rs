//! Writes a draft as the text of a `proxy.toml`, with the notes at its head.

use std::fmt::Write as _;

use super::calls::price_lines;
use super::draft::{Draft, Grade, RouteDraft, ServerDraft, TargetDraft, TlsDraft, UpstreamDraft};
use super::values::{TomlEntries, inline_table, quote, quote_list};

/// Columns of a comment.
const WIDTH: usize = 96;

/// Writes the whole file. `source` is the name of the file that was imported.
pub(super) fn print(draft: &Draft, source: &str) -> String {
    let mut out = String::new();
    print_notes(draft, source, &mut out);
    print_top(draft, &mut out);
    print_tls(&draft.tls, &mut out);
    let one = |key: &str, value: Option<String>| {
        let mut entries = TomlEntries::default();
        if let Some(value) = value {
            entries.add(key, value);
        }
        entries
    };
    let quoted = |text: &Option<String>| text.as_deref().map(quote);
    let status = draft.deny_status.map(|status| status.to_string());
    for (name, entries) in [
        ("decide", &draft.decide),
        ("client_ip", &one("header", quoted(&draft.client_ip_header))),
        ("api_key", &draft.calls.api_key),
        ("tier", &draft.calls.tier),
        ("server", &draft.server),
        ("headers", &one("request_id", quoted(&draft.request_id))),
        ("deny", &one("status", status)),
    ] {
        if !entries.list.is_empty() {
            let _ = write!(out, "\n[{name}]\n");
            print_entries(entries, &mut out);
        }
    }
    for limit in &draft.limits {
        let _ = writeln!(out, "\n[limit.{}]", limit.name);
        print_comment(&mut out, &limit.source.text);
        print_entries(&limit.entries, &mut out);
    }
    for usage in &draft.calls.usages {
        let _ = writeln!(out, "\n[usage.{}]", usage.name);
        print_comment(&mut out, &usage.source.text);
        print_entries(&usage.entries, &mut out);
    }
    if !draft.calls.prices.is_empty() {
        out.push_str("\n[prices]\n");
        print_entries(&price_lines(&draft.calls.prices), &mut out);
    }
    for upstream in &draft.upstreams {
        print_upstream(upstream, &mut out);
    }
    for page in &draft.error_pages {
        let _ = writeln!(out, "\n[error_page.{}]", page.name);
        print_comment(&mut out, &page.source.text);
        print_entries(&page.entries, &mut out);
    }
    for log in &draft.access_logs {
        let _ = writeln!(out, "\n[access_log.{}]", log.name);
        print_comment(&mut out, &log.source.text);
        print_entries(&log.entries, &mut out);
    }
    for route in &draft.routes {
        print_route(route, draft, &mut out);
    }
    for descriptor in &draft.descriptors {
        out.push_str("\n[[descriptor]]\n");
        print_comment(&mut out, &descriptor.source.to_string());
        print_entries(&descriptor.entries, &mut out);
    }
    out
}

fn print_notes(draft: &Draft, source: &str, out: &mut String) {
    let next = match draft.decide.list.is_empty() {
        true => "tidegate check, tidegate explain GET URL, tidegate replay",
        false => "tidegate check, tidegate explain --rls DOMAIN KEY=VALUE",
    };
    let title = format!("Made by `tidegate import` of {source}. Look through it, then: {next}.");
    print_comment(out, &title);
    let notes = draft.notes.sorted();
    for (grade, title) in [
        (Grade::Lost, "Not kept:"),
        (Grade::Differs, "Kept, and not quite the same:"),
        (Grade::Needless, "Left out, not needed here:"),
    ] {
        let mut some = notes.iter().filter(|note| note.grade == grade).peekable();
        if some.peek().is_some() {
            out.push_str("#\n");
            print_comment(out, title);
            for note in some {
                print_comment(out, &format!("- {note}"));
            }
        }
    }
}

/// Writes lines that begin with `#`, broken between words.
fn print_comment(out: &mut String, text: &str) {
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

fn print_top(draft: &Draft, out: &mut String) {
    out.push('\n');
    let mut entries = TomlEntries::default();
    let is_decider = !draft.decide.list.is_empty();
    if !draft.listen.is_empty() || draft.tls.is_used() || is_decider {
        entries.add("listen", quote_list(&draft.listen));
    }
    if !draft.trusted.is_empty() {
        entries.add("trusted_proxies", quote_list(&draft.trusted));
    }
    if let Some(header) = &draft.proxy_protocol {
        entries.add("proxy_protocol", quote(header.mode));
    }
    print_entries(&entries, out);
    if draft.routes.is_empty() && !is_decider {
        out.push_str("upstream = \"http://127.0.0.1:3000\"     # nothing says where requests go\n");
    }
}

fn print_tls(tls: &TlsDraft, out: &mut String) {
    if tls.listen.is_empty() {
        return;
    }
    let mut entries = TomlEntries::default();
    entries.add("listen", quote_list(&tls.listen));
    entries.list.extend(tls.entries.list.clone());
    let mut section = "\n[tls]\n".to_owned();
    print_entries(&entries, &mut section);
    for pair in &tls.certificates {
        section.push_str("\n[[tls.certificates]]\n");
        let (cert, key) = (quote(&pair.cert), quote(&pair.key));
        let _ = writeln!(section, "cert = {cert}\nkey  = {key}");
    }
    let Some(why) = &tls.disabled else {
        out.push_str(&section);
        return;
    };
    out.push('\n');
    print_comment(out, &format!("Not used here: {why}."));
    for line in section.trim_start().lines() {
        let _ = writeln!(out, "{}", format!("# {line}").trim_end());
    }
}

/// Writes `key = value` lines with aligned signs.
fn print_entries(entries: &TomlEntries, out: &mut String) {
    let keys = entries.list.iter().map(|entry| entry.key.len());
    let width = keys.max().unwrap_or(0);
    for entry in &entries.list {
        let _ = writeln!(out, "{:width$} = {}", entry.key, entry.value);
    }
}

fn print_upstream(upstream: &UpstreamDraft, out: &mut String) {
    let _ = writeln!(out, "\n[upstream.{}]", upstream.name);
    let servers: Vec<String> = upstream.servers.iter().map(server_text).collect();
    let servers = match servers.len() {
        0 | 1 => format!("[{}]", servers.join("")),
        _ => format!("[\n  {},\n]", servers.join(",\n  ")),
    };
    let mut entries = TomlEntries::default();
    entries.add("servers", servers);
    entries.list.extend(upstream.entries.list.clone());
    print_entries(&entries, out);
}

fn server_text(server: &ServerDraft) -> String {
    let mut fields = vec![format!("url = {}", quote(&server.url))];
    fields.extend(server.weight.map(|weight| format!("weight = {weight}")));
    let most = server.max_connections;
    fields.extend(most.map(|most| format!("max_connections = {most}")));
    fields.extend(server.is_backup.then(|| "backup = true".to_owned()));
    match fields.len() {
        1 => quote(&server.url),
        _ => inline_table(&fields),
    }
}

/// `pages` are all error pages: a route that names none has them.
fn print_route(route: &RouteDraft, draft: &Draft, out: &mut String) {
    out.push_str("\n[[route]]\n");
    print_comment(out, &route.source.to_string());
    let mut entries = TomlEntries::default();
    if let Some(host) = &route.host {
        entries.add("host", quote(host));
    }
    entries.add("path", quote(&route.path));
    if let Some(port) = route.port {
        entries.add("port", port.to_string());
    }
    if let Some(is_there) = route.trailing_slash {
        entries.add("trailing_slash", is_there.to_string());
    }
    if !route.methods.is_empty() {
        entries.add("methods", quote_list(&route.methods));
    }
    let (mut headers, mut query) = (Vec::new(), Vec::new());
    for wanted in &route.headers {
        let value = wanted.value.as_deref().map_or("true".to_owned(), quote);
        let parameter = wanted.name.strip_prefix("query:");
        let (list, name) = match parameter {
            Some(parameter) => (&mut query, parameter),
            None => (&mut headers, wanted.name.as_str()),
        };
        list.push(format!("{} = {value}", quote(name)));
    }
    entries.add_table("headers", &headers);
    entries.add_table("query", &query);
    match &route.target {
        TargetDraft::Upstream(name) => entries.add("upstream", quote(name)),
        TargetDraft::Respond {
            status,
            body,
            has_variables,
            content_type,
        } => {
            let mut fields = vec![format!("status = {status}")];
            fields.extend(body.iter().map(|body| format!("body = {}", quote(body))));
            fields.extend(has_variables.then(|| "variables = true".to_owned()));
            let kind = content_type.iter();
            fields.extend(kind.map(|kind| format!("content_type = {}", quote(kind))));
            entries.add("respond", inline_table(&fields));
        }
        TargetDraft::Redirect { to, status } => {
            let to = format!("to = {}", quote(to));
            entries.add(
                "redirect",
                inline_table(&[to, format!("status = {status}")]),
            );
        }
        TargetDraft::Closed(why) => {
            print_comment(out, &format!("CLOSED until you decide: {why}"));
            entries.add("respond", r#"{ status = 501, body = "not imported\n" }"#);
        }
    }
    entries.add("limits", quote_list(&route.limits));
    // A route without the names has all.
    let mut pages = draft.error_pages.iter().map(|page| &page.name).peekable();
    if pages.peek().is_some() && !pages.eq(&route.error_pages) {
        entries.add("error_pages", quote_list(&route.error_pages));
    }
    let mut logs = draft.access_logs.iter().map(|log| &log.name).peekable();
    if logs.peek().is_some() && !logs.eq(&route.access_logs) {
        entries.add("access_logs", quote_list(&route.access_logs));
    }
    if let Some(usage) = &route.usage {
        entries.add("usage", quote(usage));
    }
    entries.list.extend(route.entries.list.clone());
    print_entries(&entries, out);
}
