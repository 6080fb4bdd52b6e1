//! A configuration from flags alone: `tidegate run --to URL --limit 100/min`.
//!
//! The flags become a small document that goes the same way as a file; whatever is wrong with it is
//! then said of the flags. A password in `--redis` is never shown again.

use super::Config;
use super::diagnostic::{Code, Diagnostic, Diagnostics, Source, Span};
use super::load::parse;

/// What `tidegate run` was given instead of a file.
#[derive(Clone, Debug, Default)]
pub struct FlagConfig {
    /// `--to`: the upstream's URL.
    pub to: String,
    /// `--listen`; else `:8080`.
    pub listen: Option<String>,
    /// `--limit`: a rate; without it nothing is limited.
    pub limit: Option<String>,
    /// `--key`: what it counts by; else `ip`.
    pub key: Option<String>,
    /// `--redis`: a store's URL; else counts live in this process.
    pub redis: Option<String>,
}

/// One flag: where its value stands in the document and on the command line.
struct Place {
    document: Span,
    line: Span,
}

/// The configuration that the flags ask for, with warnings; or what is wrong with them.
pub fn from_flags(flags: &FlagConfig) -> Result<(Config, Diagnostics), Diagnostics> {
    let mut given = vec![("upstream", "--to", flags.to.as_str())];
    for (key, flag, value) in [
        ("listen", "--listen", &flags.listen),
        ("store.url", "--redis", &flags.redis),
        ("limit.default.rate", "--limit", &flags.limit),
        ("limit.default.key", "--key", &flags.key),
    ] {
        if let Some(value) = value {
            given.push((key, flag, value));
        }
    }
    read("tidegate run", "", &given)
}

/// One limit on everything, for a command that serves nobody.
pub fn from_limit(
    command: &str,
    rate: &str,
    key: Option<&str>,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let mut given = vec![("limit.default.rate", "--limit", rate)];
    given.extend(key.map(|key| ("limit.default.key", "--key", key)));
    read(command, "upstream = \"http://127.0.0.1:9\"\n", &given)
}

/// Reads a document of these keys, which stand behind the command as these flags.
fn read(
    command: &str,
    before: &str,
    given: &[(&str, &str, &str)],
) -> Result<(Config, Diagnostics), Diagnostics> {
    let mut document = before.to_owned();
    let mut line = command.to_owned();
    let mut places = Vec::new();
    for (key, flag, value) in given {
        document.push_str(key);
        document.push_str(" = ");
        let start = document.len();
        document.push_str(&quoted(value));
        line.push_str(&format!(" {flag} "));
        let from = line.len();
        line.push_str(&shown(value));
        places.push(Place {
            document: start..document.len(),
            line: from..line.len(),
        });
        document.push('\n');
    }
    let source = Source {
        name: "command line".to_owned(),
        text: line,
    };
    let translated = |found: Diagnostics| {
        let list = found
            .list
            .into_iter()
            .map(|one| translate(one, &places))
            .collect();
        let noted = |note: Diagnostic| match note.code {
            Code::NothingLimited => note.help("add a limit, for example `--limit 100/min`"),
            _ => note,
        };
        Diagnostics {
            source: source.clone(),
            list,
            notes: found.notes.into_iter().map(noted).collect(),
        }
    };
    // The shell has filled in its variables: none is left for us.
    match parse(&source.name, &document, &|_| None) {
        Ok((config, warnings)) => Ok((config, translated(warnings))),
        Err(errors) => Err(translated(errors)),
    }
}

/// A TOML string whose dollars stay dollars.
fn quoted(value: &str) -> String {
    let mut out = String::from("\"");
    for c in value.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '$' => out.push_str("$$"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The value as it may be shown: without the password of a URL.
fn shown(value: &str) -> String {
    match value.split_once("://").zip(value.rfind('@')) {
        Some(((scheme, _), at)) if at >= scheme.len() + 3 => {
            format!("{scheme}://***{}", &value[at..])
        }
        _ => value
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect(),
    }
}

/// A finding about the document, said of the flags.
fn translate(mut finding: Diagnostic, places: &[Place]) -> Diagnostic {
    // Where nothing was given there is nothing to point at: `--key` without `--limit`.
    finding.labels.retain_mut(|label| {
        let inside = |place: &&Place| {
            place.document.start <= label.span.start && label.span.start < place.document.end
        };
        let place = places.iter().find(inside);
        if let Some(place) = place {
            label.span = place.line.clone();
        }
        place.is_some()
    });
    finding.message = flag_words(&finding.message);
    finding.help = finding.help.map(|help| flag_words(&help));
    for label in &mut finding.labels {
        label.text = flag_words(&label.text);
    }
    finding
}

fn flag_words(text: &str) -> String {
    let pairs = [
        ("`limit.default.rate`", "`--limit`"),
        ("`limit.default.key`", "`--key`"),
        ("`limit.default` has no `rate`", "`--key` needs `--limit`"),
        ("`rate = \"100/min\"`", "`--limit 100/min`"),
        ("`key = \"ip\"`", "`--key ip`"),
        ("`store.url`", "`--redis`"),
        ("`listen`", "`--listen`"),
        ("`upstream`", "`--to`"),
        ("`limit.default`", "`--limit`"),
    ];
    pairs
        .iter()
        .fold(text.to_owned(), |text, (key, flag)| text.replace(key, flag))
}
