//! Renders an explanation for people, in 80 columns.

use super::call::CallExplanation;
use super::explanation::{
    ClientExplanation, CountsSource, Explanation, KeyPart, LimitExplanation, NearRoute, Pairs,
    RateExplanation, RouteExplanation, TokenExplanation, UsageExplanation,
};

const WIDTH: usize = 80;
/// The column of the texts, after the words at the left.
const INDENT: usize = 10;

/// The whole page, with terminal colours or without.
pub fn render(explanation: &Explanation, colour: bool) -> String {
    let mut page = Page {
        text: String::new(),
        colour,
    };
    let request = &explanation.request;
    let scheme = if request.tls { "https" } else { "http" };
    page.line(&format!(
        "{} {scheme}://{}{}  from {}",
        request.method, request.host, request.target, request.peer
    ));
    page.verdict(explanation);
    page.client(&explanation.client);
    page.token(explanation.token.as_ref());
    page.path(explanation);
    page.route(explanation.route.as_ref(), &explanation.near);
    page.usage(explanation.usage.as_ref());
    page.limits(&explanation.limits);
    page.upstream(explanation);
    page.response(explanation);
    page.text
}

/// The page of a call of the rate limit service.
pub fn render_call(explanation: &CallExplanation, colour: bool) -> String {
    let mut page = Page {
        text: String::new(),
        colour,
    };
    let call = &explanation.call;
    let pairs = call
        .entries
        .iter()
        .map(|(key, value)| format!("{key}={value}"));
    let pairs: Vec<String> = pairs.collect();
    page.line(&format!(
        "{} {}  hits {}",
        call.domain,
        pairs.join(" "),
        call.hits
    ));
    let outcome = explanation.outcome.as_str();
    let word = match outcome {
        "denied" => page.bad(outcome),
        _ => page.good(outcome),
    };
    page.section("Verdict", &format!("{word}: {}", explanation.why));
    page.counts(&explanation.counts, &explanation.limits);
    if let Some(rule) = &explanation.rule {
        page.section("Rule", &rule.name);
        page.entry(&rule.entries.join(", "));
        rule.notes.iter().for_each(|note| page.entry(note));
    }
    for other in &explanation.beaten {
        page.entry(&format!("not {}: {}", other.name, other.why));
    }
    page.limits(&explanation.limits);
    page.text
}

struct Page {
    text: String,
    colour: bool,
}

impl Page {
    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// A word at the left, and a text in lines of at most `WIDTH` columns.
    fn wrapped(&mut self, word: &str, indent: usize, text: &str) {
        let pad = indent.saturating_sub(word.chars().count());
        let word = match word {
            "" => String::new(),
            word => self.style("1", word),
        };
        let mut line = format!("{word}{}", " ".repeat(pad));
        let mut width = indent;
        for (index, piece) in text.split(' ').enumerate() {
            let length = piece.chars().count();
            if index > 0 && width + 1 + length > WIDTH {
                self.line(&line);
                line = " ".repeat(indent);
                width = indent;
            } else if index > 0 {
                line.push(' ');
                width += 1;
            }
            line.push_str(piece);
            width += length;
        }
        self.line(&line);
    }

    fn section(&mut self, word: &str, text: &str) {
        self.text.push('\n');
        self.wrapped(word, INDENT, text);
    }

    fn entry(&mut self, text: &str) {
        self.wrapped("", INDENT, text);
    }

    fn detail(&mut self, text: &str) {
        self.wrapped("", INDENT + 2, text);
    }

    /// A text in a style of ECMA-48 (SGR).
    fn style(&self, code: &str, text: &str) -> String {
        match self.colour {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }

    fn good(&self, text: &str) -> String {
        self.style("1;32", text)
    }

    fn bad(&self, text: &str) -> String {
        self.style("1;31", text)
    }

    fn verdict(&mut self, explanation: &Explanation) {
        let verdict = &explanation.verdict;
        let outcome = verdict.outcome.as_str();
        let word = match (outcome, verdict.status) {
            ("forwarded" | "answered" | "redirected", _) => self.good(outcome),
            (_, Some(status)) => self.bad(&format!("{outcome} ({status})")),
            (_, None) => self.bad(outcome),
        };
        self.section("Verdict", &format!("{word}: {}", verdict.why));
        self.counts(&explanation.counts, &explanation.limits);
    }

    fn counts(&mut self, counts: &CountsSource, limits: &[LimitExplanation]) {
        let text = match (&counts.trouble, &counts.from) {
            (Some(trouble), _) => {
                format!("counts could not be read ({trouble}): those of a new client")
            }
            (None, Some(from)) => format!("counts of now, from {from}; nothing was charged"),
            (None, None) if !limits.iter().any(LimitExplanation::is_counted) => return,
            (None, None) => {
                "Assumes a client with no earlier requests; add --live for current counts"
                    .to_owned()
            }
        };
        self.entry(&text);
    }

    fn client(&mut self, client: &ClientExplanation) {
        let address = match client.counted_as == client.address {
            true => client.address.clone(),
            false => format!("{}, counted as {}", client.address, client.counted_as),
        };
        self.section("Client", &address);
        self.entry(&client.why);
        for hop in &client.hops {
            self.detail(&format!("{:<20}  {}", hop.said, hop.note));
        }
        if client.trusted && client.hops.iter().all(|hop| hop.trusted) && !client.hops.is_empty() {
            self.entry("every address in it is a trusted proxy's: the leftmost is the client");
        }
    }

    fn token(&mut self, token: Option<&TokenExplanation>) {
        let Some(token) = token else { return };
        let text = match (&token.why, &token.key_id) {
            (Some(why), _) => format!("not believed: {why}"),
            (None, Some(id)) => format!("believed, by the key `{id}`"),
            (None, None) => "believed, by a key without `kid`".to_owned(),
        };
        self.section("Token", &text);
        if let Some(seconds) = token.keys_age_seconds {
            self.entry(&format!("the keys were fetched {seconds} s ago"));
        }
    }

    fn path(&mut self, explanation: &Explanation) {
        let path = &explanation.path;
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
            self.entry(&format!("some upstreams read it as {other}"));
        }
    }

    fn route(&mut self, route: Option<&RouteExplanation>, near: &[NearRoute]) {
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
                self.entry(&format!("{about}, to {}", route.to));
            }
            None if near.is_empty() => return,
            None => self.section("Route", "none"),
        }
        for near in near {
            self.entry(&format!("not {}: {}", near.route, near.why));
        }
    }

    fn usage(&mut self, usage: Option<&UsageExplanation>) {
        let Some(usage) = usage else { return };
        let model = usage.model.as_deref().unwrap_or("no model named");
        self.section(
            "Usage",
            &format!("{} ({}): {model}", usage.name, usage.format),
        );
        self.entry(&format!("input {}: {}", usage.input, usage.input_why));
        self.entry(&format!("output {}: {}", usage.output, usage.output_why));
        if usage.asks {
            self.entry("the proxy asks the server for the usage of this stream");
        }
    }

    fn limits(&mut self, limits: &[LimitExplanation]) {
        for (index, limit) in limits.iter().enumerate() {
            let why = limit.why.as_ref();
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            let head = format!("{} ({}{why})", limit.name, limit.state);
            match index {
                0 => self.section("Limits", &head),
                _ => self.entry(&head),
            }
            for part in &limit.key {
                self.detail(&key_part(part));
            }
            if let Some(id) = &limit.id {
                self.detail(&format!("in logs, and for `tidegate limits`: {id}"));
            }
            if let Some(tier) = &limit.tier {
                self.detail(&format!("tier {tier}"));
            }
            if let Some(why) = &limit.cost_why {
                self.detail(&format!("costs {}: {why}", limit.cost));
            }
            for rate in &limit.rates {
                let line = rate_line(rate);
                self.detail(&match rate.allows {
                    Some(false) => self.bad(&line),
                    _ => line,
                });
            }
            for text in limit.holds.iter().chain(&limit.bans) {
                self.detail(text);
            }
        }
    }

    fn upstream(&mut self, explanation: &Explanation) {
        let Some(upstream) = &explanation.upstream else {
            return;
        };
        let servers = upstream.servers.join(", ");
        // An upstream that is given as a URL has that URL as its name.
        let name = match servers.is_empty() || servers == upstream.name {
            true => upstream.name.clone(),
            false => format!("{} ({servers})", upstream.name),
        };
        self.section("Upstream", &format!("{name} gets"));
        self.detail(&format!("{} {}", upstream.method, upstream.target));
        self.headers(&upstream.headers);
    }

    fn response(&mut self, explanation: &Explanation) {
        let response = &explanation.client_sees;
        let text = match response.status {
            Some(status) => {
                let reason = http::StatusCode::from_u16(status).ok();
                let reason = reason.and_then(|status| status.canonical_reason());
                format!("{status} {}", reason.unwrap_or_default())
            }
            None if response.headers.is_empty() => "the upstream's response".to_owned(),
            None => "the upstream's response, and".to_owned(),
        };
        self.section("Answer", &text);
        self.headers(&response.headers);
        if !response.body.is_empty() {
            self.text.push('\n');
            for line in response.body.lines() {
                self.detail(line);
            }
        }
    }

    fn headers(&mut self, headers: &Pairs) {
        for (name, value) in headers {
            self.detail(&format!("{name}: {value}"));
        }
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
fn rate_line(rate: &RateExplanation) -> String {
    let mut text = format!("{} ({})", rate.rate, rate.algorithm);
    if matches!(rate.role.as_str(), "candidate" | "override") {
        text = format!("{}: {text}", rate.role);
    }
    let (Some(used), Some(remaining), Some(allows)) = (rate.used, rate.remaining, rate.allows)
    else {
        return text;
    };
    let whole = match rate.reset_seconds {
        _ if rate.resets_at.is_some() => {
            let at = rate.resets_at.as_deref().unwrap_or_default();
            format!("; resets at {at}")
        }
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
        (false, None) => text.push_str(": always denies: the cost is above the limit"),
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
            colour: false,
        };
        page.wrapped("Word", INDENT, &"abcdefg ".repeat(20));
        assert!(page.text.lines().all(|line| line.len() <= WIDTH));
        assert!(
            page.text
                .lines()
                .skip(1)
                .all(|line| line.starts_with("          a"))
        );
    }
}
