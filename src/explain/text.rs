//! An explanation for people: what matters first, in 80 columns.

use super::story::{
    ClientStory, Explanation, KeyPart, LimitStory, NearRoute, Pairs, RateStory, RouteStory,
};

const WIDTH: usize = 80;
/// Where what is told begins, behind the words at the left.
const INDENT: usize = 10;

/// How it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Text alone.
    Plain,
    /// With a terminal's colours.
    Colour,
}

/// The whole explanation, with a line's end at its end.
pub fn render(told: &Explanation, style: Style) -> String {
    let mut page = Page {
        text: String::new(),
        style,
    };
    let asked = &told.request;
    let scheme = if asked.tls { "https" } else { "http" };
    page.line(&format!(
        "{} {scheme}://{}{}  from {}",
        asked.method, asked.host, asked.target, asked.peer
    ));
    page.verdict(told);
    page.client(&told.client);
    page.path(told);
    page.route(told.route.as_ref(), &told.near);
    page.limits(told);
    page.upstream(told);
    page.seen(told);
    page.text
}

struct Page {
    text: String,
    style: Style,
}

impl Page {
    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// A word at the left and a text beside it, in lines that are short enough.
    fn entry(&mut self, word: &str, text: &str) {
        self.wrapped(word, INDENT, text);
    }

    fn wrapped(&mut self, word: &str, indent: usize, text: &str) {
        let bold = self.bold(word);
        let pad = indent.saturating_sub(word.chars().count());
        let mut line = format!("{bold}{}", " ".repeat(pad));
        let mut width = indent;
        let mut first = true;
        for piece in text.split(' ') {
            let length = piece.chars().count();
            if !first && width + 1 + length > WIDTH {
                self.line(&line);
                line = " ".repeat(indent);
                width = indent;
                first = true;
            }
            if !first {
                line.push(' ');
                width += 1;
            }
            line.push_str(piece);
            width += length;
            first = false;
        }
        self.line(&line);
    }

    fn section(&mut self, word: &str, text: &str) {
        self.text.push('\n');
        self.entry(word, text);
    }

    fn bold(&self, text: &str) -> String {
        match self.style {
            Style::Colour if !text.is_empty() => format!("\x1b[1m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }

    fn coloured(&self, good: bool, text: &str) -> String {
        let number = if good { 32 } else { 31 };
        match self.style {
            Style::Plain => text.to_owned(),
            Style::Colour => format!("\x1b[1;{number}m{text}\x1b[0m"),
        }
    }

    fn verdict(&mut self, told: &Explanation) {
        let verdict = &told.verdict;
        let good = matches!(
            verdict.outcome.as_str(),
            "forwarded" | "answered" | "redirected"
        );
        let word = match verdict.status {
            Some(status) if !good => format!("{} ({status})", verdict.outcome),
            _ => verdict.outcome.clone(),
        };
        let word = self.coloured(good, &word);
        self.section("Verdict", &format!("{word}: {}", verdict.why));
        let counts = &told.counts;
        let text = match (&counts.trouble, &counts.from) {
            (Some(trouble), _) => {
                format!("counts could not be read ({trouble}): those of a new client")
            }
            (None, Some(from)) => format!("counts of now, from {from}; nothing was charged"),
            (None, None) if told.limits.iter().all(|limit| !limit.is_counted()) => return,
            (None, None) => {
                "Assumes a client with no earlier requests; add --live for current counts"
                    .to_owned()
            }
        };
        self.entry("", &text);
    }

    fn client(&mut self, client: &ClientStory) {
        let address = match client.counted_as == client.address {
            true => client.address.clone(),
            false => format!("{}, counted as {}", client.address, client.counted_as),
        };
        self.section("Client", &address);
        self.entry("", &client.why);
        for hop in &client.hops {
            let hop = format!("{:<20}  {}", hop.said, hop.note);
            self.wrapped("", INDENT + 2, &hop);
        }
        if client.trusted && client.hops.iter().all(|hop| hop.trusted) && !client.hops.is_empty() {
            let text = "every address in it is a trusted proxy's: the leftmost is the client";
            self.entry("", text);
        }
    }

    fn path(&mut self, told: &Explanation) {
        let path = &told.path;
        let text = match (&path.canonical, &path.refused) {
            (_, Some(refused)) => format!("{} is refused: {refused}", path.sent),
            (Some(canonical), None) if *canonical != path.sent => {
                format!("{} is read as {canonical}", path.sent)
            }
            _ if path.also_read_as.is_empty() => return,
            _ => path.sent.clone(),
        };
        self.section("Path", &text);
        for other in &path.also_read_as {
            self.entry("", &format!("some upstreams read it as {other}"));
        }
    }

    fn route(&mut self, route: Option<&RouteStory>, near: &[NearRoute]) {
        match route {
            Some(route) => {
                self.section("Route", &route.name);
                let mut about = match route.host.as_str() {
                    "*" => format!("path {}", route.path),
                    host => format!("host {host}, path {}", route.path),
                };
                if !route.methods.is_empty() {
                    about.push_str(&format!(", {}", route.methods.join(" ")));
                }
                for (name, value) in &route.params {
                    about.push_str(&format!(", {{{name}}} = {value}"));
                }
                self.entry("", &format!("{about}, to {}", route.to));
            }
            None if near.is_empty() => return,
            None => self.section("Route", "none"),
        }
        for near in near {
            self.wrapped("", INDENT, &format!("not {}: {}", near.route, near.why));
        }
    }

    fn limits(&mut self, told: &Explanation) {
        if told.limits.is_empty() {
            return;
        }
        for (index, limit) in told.limits.iter().enumerate() {
            match index {
                0 => self.section("Limits", &head(limit)),
                _ => self.entry("", &head(limit)),
            }
            for part in &limit.key {
                self.wrapped("", INDENT + 2, &key_part(part));
            }
            if let Some(id) = &limit.id {
                self.wrapped(
                    "",
                    INDENT + 2,
                    &format!("in logs, and for `tidegate limits`: {id}"),
                );
            }
            if let Some(tier) = &limit.tier {
                self.wrapped("", INDENT + 2, &format!("tier {tier}"));
            }
            if let Some(why) = &limit.cost_why {
                self.wrapped("", INDENT + 2, &format!("costs {}: {why}", limit.cost));
            }
            for rate in &limit.rates {
                let line = rate_line(rate);
                let denies = rate.allows == Some(false);
                let line = match denies {
                    true => self.coloured(false, &line),
                    false => line,
                };
                self.wrapped("", INDENT + 2, &line);
            }
        }
    }

    fn upstream(&mut self, told: &Explanation) {
        let Some(upstream) = &told.upstream else {
            return;
        };
        let servers = upstream.servers.join(", ");
        // One that is given as a URL is called by it.
        let called = match servers.is_empty() || servers == upstream.name {
            true => upstream.name.clone(),
            false => format!("{} ({servers})", upstream.name),
        };
        self.section("Upstream", &format!("{called} gets"));
        self.wrapped(
            "",
            INDENT + 2,
            &format!("{} {}", upstream.method, upstream.target),
        );
        self.headers(&upstream.headers);
    }

    fn seen(&mut self, told: &Explanation) {
        let seen = &told.client_sees;
        let text = match seen.status {
            Some(status) => {
                let reason = http::StatusCode::from_u16(status).ok();
                let reason = reason.and_then(|status| status.canonical_reason());
                format!("{status} {}", reason.unwrap_or_default())
            }
            None if seen.headers.is_empty() => "what the upstream answers".to_owned(),
            None => "what the upstream answers, and".to_owned(),
        };
        self.section("Answer", &text);
        self.headers(&seen.headers);
        if !seen.body.is_empty() {
            self.text.push('\n');
            for line in seen.body.lines() {
                self.wrapped("", INDENT + 2, line);
            }
        }
    }

    fn headers(&mut self, headers: &Pairs) {
        for (name, value) in headers {
            self.wrapped("", INDENT + 2, &format!("{name}: {value}"));
        }
    }
}

/// `login: enforced`
fn head(limit: &LimitStory) -> String {
    match &limit.why {
        Some(why) => format!("{} ({}: {why})", limit.name, limit.state),
        None => format!("{} ({})", limit.name, limit.state),
    }
}

/// `by api_key or ip: ip = 192.0.2.7`
fn key_part(part: &KeyPart) -> String {
    let mut text = format!("by {}", part.part);
    match (&part.found, &part.value) {
        (Some(found), Some(value)) if *found == part.part => text.push_str(&format!(" = {value}")),
        (Some(found), Some(value)) => text.push_str(&format!(": {found} = {value}")),
        (Some(_) | None, _) => {}
    }
    match &part.note {
        Some(note) if part.found.is_some() => text.push_str(&format!(" ({note})")),
        Some(note) => text.push_str(&format!(": {note}")),
        None => {}
    }
    text
}

/// `5/min (exact log): 3 used before it, 1 left after it; all of it free in 60 s`
fn rate_line(rate: &RateStory) -> String {
    let mut text = format!("{} ({})", rate.rate, rate.algorithm);
    if matches!(rate.role.as_str(), "candidate" | "override") {
        text = format!("{}: {text}", rate.role);
    }
    let (Some(used), Some(remaining), Some(allows)) = (rate.used, rate.remaining, rate.allows)
    else {
        return text;
    };
    let whole = match rate.reset_seconds {
        Some(seconds) if seconds > 0.0 => format!("; all of it free in {}", span(seconds)),
        _ => String::new(),
    };
    match (allows, rate.retry_seconds) {
        (true, _) => text.push_str(&format!(
            ": allows, {used} used before, {remaining} left after{whole}"
        )),
        (false, Some(seconds)) => text.push_str(&format!(
            ": denies, {used} used, {remaining} left; passes in {}{whole}",
            span(seconds)
        )),
        (false, None) if rate.algorithm == "requests at once" => text.push_str(&format!(
            ": denies, {used} under way; passes as soon as one of them ends"
        )),
        (false, None) => {
            text.push_str(": denies, and always will: it costs more than there ever is")
        }
    }
    text
}

/// `850 ms`, `12 s`, `3 min`, `2 h`, `4 days`: rounded up.
fn span(seconds: f64) -> String {
    match seconds {
        less if less < 1.0 => format!("{} ms", (less * 1e3).ceil()),
        less if less < 300.0 => format!("{} s", less.ceil()),
        less if less < 7200.0 => format!("{} min", (less / 60.0).ceil()),
        less if less < 172_800.0 => format!("{} h", (less / 3600.0).ceil()),
        more => format!("{} days", (more / 86_400.0).ceil()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up() {
        assert_eq!(span(0.0101), "11 ms");
        assert_eq!(span(59.2), "60 s");
        assert_eq!(span(3600.0), "60 min");
        assert_eq!(span(86_400.0), "24 h");
        assert_eq!(span(86_400.0 * 30.0), "30 days");
    }

    #[test]
    fn long_texts_are_wrapped() {
        let mut page = Page {
            text: String::new(),
            style: Style::Plain,
        };
        page.entry("Word", &"abcdefg ".repeat(20));
        assert!(page.text.lines().all(|line| line.len() <= WIDTH));
        assert!(
            page.text
                .lines()
                .skip(1)
                .all(|line| line.starts_with("          a"))
        );
    }
}
