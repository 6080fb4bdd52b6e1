//! A configuration from flags alone: `tidegate run --to URL --limit 100/min`.
//!
//! The flags become a small document that is parsed as a file is. Findings about the document are
//! then reworded for the flags. A password in `--redis` is never shown again.

use super::changes::without_url_secrets;
use super::diagnostic::{Code, Diagnostic, Diagnostics, SourceText, TextSpan};
use super::effective::toml_string;
use super::load::{Loaded, parse};

/// The flags of `tidegate run` in place of a file.
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

/// A flag of the command line and the key of the file that it stands for.
struct Flag<'f> {
    key: &'static str,
    name: &'static str,
    /// `None` if it was not given.
    value: Option<&'f str>,
}

fn flag<'f>(key: &'static str, name: &'static str, value: Option<&'f str>) -> Flag<'f> {
    Flag { key, name, value }
}

/// The place of a flag's value in the document and on the command line.
struct FlagSpan {
    document: TextSpan,
    line: TextSpan,
}

/// The configuration of these flags, with warnings; its error is every mistake.
pub fn from_flags(flags: &FlagConfig) -> Loaded {
    let given = [
        flag("upstream", "--to", Some(flags.to.as_str())),
        flag("listen", "--listen", flags.listen.as_deref()),
        flag("store.url", "--redis", flags.redis.as_deref()),
        flag("limit.default.rate", "--limit", flags.limit.as_deref()),
        flag("limit.default.key", "--key", flags.key.as_deref()),
    ];
    parse_flags("tidegate run", "", &given)
}

/// One limit on everything, for a command that forwards nothing.
pub fn from_limit(command: &str, rate: &str, key: Option<&str>) -> Loaded {
    let given = [
        flag("limit.default.rate", "--limit", Some(rate)),
        flag("limit.default.key", "--key", key),
    ];
    parse_flags(command, "upstream = \"http://127.0.0.1:9\"\n", &given)
}

/// Parses a document that begins with `prefix` and sets the keys of these flags.
fn parse_flags(command: &str, prefix: &str, flags: &[Flag<'_>]) -> Loaded {
    let mut document = prefix.to_owned();
    let mut line = command.to_owned();
    let mut spans = Vec::new();
    for Flag { key, name, value } in flags {
        let Some(value) = value else { continue };
        document.push_str(&format!("{key} = "));
        line.push_str(&format!(" {name} "));
        let (in_document, in_line) = (document.len(), line.len());
        // The shell has filled in its variables: dollar signs stay dollar signs.
        document.push_str(&toml_string(&value.replace('$', "$$")));
        line.push_str(&without_url_secrets(value));
        spans.push(FlagSpan {
            document: in_document..document.len(),
            line: in_line..line.len(),
        });
        document.push('\n');
    }
    let source = SourceText {
        name: "command line".to_owned(),
        text: line,
    };
    let add_limit = |note: Diagnostic| match note.code {
        Code::NothingLimited => note.help("add a limit, for example `--limit 100/min`"),
        _ => note,
    };
    let reworded = |found: Diagnostics| Diagnostics {
        source: source.clone(),
        list: (found.list.into_iter().map(|one| reword(one, &spans))).collect(),
        notes: found.notes.into_iter().map(add_limit).collect(),
    };
    match parse(&source.name, &document, &|_| None) {
        Ok((config, warnings)) => Ok((config, reworded(warnings))),
        Err(errors) => Err(reworded(errors)),
    }
}

/// Moves a finding about the document to the flags.
fn reword(mut finding: Diagnostic, spans: &[FlagSpan]) -> Diagnostic {
    // A flag that was not given has no place: `--key` without `--limit`.
    finding.labels.retain_mut(|label| {
        let is_inside = |span: &&FlagSpan| span.document.contains(&label.span.start);
        let span = spans.iter().find(is_inside);
        if let Some(span) = span {
            label.span = span.line.clone();
        }
        span.is_some()
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
