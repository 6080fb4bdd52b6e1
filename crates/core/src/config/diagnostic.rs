//! Findings about a configuration: one finding is one [`Diagnostic`].
//!
//! Plain data. A diagnostic quotes only the source itself, never a value of the environment or of a
//! secret file. `render.rs` prints diagnostics.

use std::fmt;
use std::ops::Range;

/// A range of bytes in the source.
pub type TextSpan = Range<usize>;

/// The text that a configuration was read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceText {
    /// A file's path, or `command line`.
    pub name: String,
    pub text: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// It can be used, and probably does not do what its author meant.
    Warning,
    /// It can be used, and its author may have meant it so.
    Note,
}

/// A place in the source with a text about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FindingLabel {
    pub span: TextSpan,
    /// May be empty.
    pub text: String,
}

/// One mistake or doubt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Its kind, which `tidegate help CODE` explains.
    pub code: Code,
    /// One line.
    pub message: String,
    /// The place of the finding, then related places.
    pub labels: Vec<FindingLabel>,
    /// The text to write instead.
    pub help: Option<String>,
    /// The reason, or more to know.
    pub note: Option<String>,
}

impl Diagnostic {
    /// A finding without a place yet.
    pub fn new(code: Code, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            code,
            message: message.into(),
            labels: Vec::new(),
            help: None,
            note: None,
        }
    }

    /// Adds a place: the first call names the finding's own.
    pub fn at(mut self, span: &TextSpan, text: impl Into<String>) -> Diagnostic {
        self.labels.push(FindingLabel {
            span: span.clone(),
            text: text.into(),
        });
        self
    }

    /// Adds a place with an error about it. The part of the error after a `;` becomes the help.
    pub fn at_error(self, span: &TextSpan, error: &dyn fmt::Display) -> Diagnostic {
        let text = error.to_string();
        match text.split_once("; ") {
            Some((label, help)) => self.at(span, label).help(help),
            None => self.at(span, text),
        }
    }

    pub fn help(mut self, text: impl Into<String>) -> Diagnostic {
        self.help = Some(text.into());
        self
    }

    /// Sets the help, if there is one.
    pub fn maybe_help(mut self, text: Option<String>) -> Diagnostic {
        self.help = text.or(self.help);
        self
    }

    pub fn note(mut self, text: impl Into<String>) -> Diagnostic {
        self.note = Some(text.into());
        self
    }

    pub fn severity(&self) -> Severity {
        self.code.severity()
    }

    /// Where it begins in the source.
    pub fn start(&self) -> usize {
        self.labels.first().map_or(0, |label| label.span.start)
    }
}

/// The findings of one source, in the source's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    pub source: SourceText,
    /// Errors and warnings.
    pub list: Vec<Diagnostic>,
    /// Notes about a source without errors.
    pub notes: Vec<Diagnostic>,
}

impl Diagnostics {
    /// The number of findings of one severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.list
            .iter()
            .filter(|found| found.severity() == severity)
            .count()
    }

    /// All findings, the notes last.
    pub fn all(&self) -> impl Iterator<Item = &Diagnostic> {
        self.list.iter().chain(&self.notes)
    }

    /// Whether there are neither errors nor warnings.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// Declares the codes once: the enum, its spelling and the list of all.
macro_rules! codes {
    ($($(#[$doc:meta])+ $name:ident = $text:literal,)+) => {
        /// The kinds of findings: `T1..` are errors, `T2..` warnings, `T3..` notes. A code keeps
        /// its meaning for ever; `docs/diagnostics.md` explains each with an example.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Code { $($(#[$doc])+ $name,)+ }

        impl Code {
            /// Every code, ascending.
            pub const ALL: &'static [Code] = &[$(Code::$name,)+];

            /// Its spelling: `T101`.
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)+ }
            }
        }
    };
}

codes! {
    /// The file cannot be read.
    Unreadable = "T100",
    /// A key that means nothing here.
    UnknownKey = "T101",
    /// Not TOML.
    Syntax = "T102",
    /// A string where a number belongs, and the like.
    WrongType = "T103",
    /// Something necessary is not said.
    MissingKey = "T104",
    /// A number, time or size out of its range.
    OutOfRange = "T105",
    /// Not one of the words that are possible here.
    UnknownWord = "T106",
    /// `${VAR}` that is not set, or is misspelt.
    Variable = "T107",
    /// A file that the configuration names and that cannot be used.
    SecretFile = "T108",
    /// A rate that cannot be read.
    BadRate = "T109",
    /// A time or size that cannot be read.
    BadQuantity = "T110",
    /// A key part that does not exist.
    BadKey = "T111",
    /// A name that breaks the rules for names.
    BadName = "T112",
    /// An address to listen on, or a network, that cannot be read.
    BadAddress = "T113",
    /// A URL that cannot be used.
    BadUrl = "T114",
    /// A path or host pattern that cannot be read.
    BadPattern = "T115",
    /// A header, method or media type that HTTP does not allow.
    BadHttp = "T116",
    /// A limit that no section defines.
    UnknownLimit = "T117",
    /// An upstream that no section defines.
    UnknownUpstream = "T118",
    /// The same thing said twice.
    Duplicate = "T119",
    /// Two routes that match the same requests.
    RouteConflict = "T120",
    /// A cost that its limit can never grant.
    CostAboveLimit = "T121",
    /// A limit whose arithmetic would not be exact.
    LimitTooLarge = "T122",
    /// A path parameter that a route's path does not have.
    NoSuchParameter = "T123",
    /// Settings that exclude or need each other.
    Contradiction = "T124",
    /// A text whose `{variables}` cannot be filled in.
    BadTemplate = "T125",
    /// An admin address that others can reach, and no token.
    OpenAdmin = "T126",
    /// A limit that can never deny.
    NeverDenies = "T201",
    /// The whole internet is trusted to say who the client is.
    TrustsEveryone = "T202",
    /// Clients choose the key they are counted by.
    ClientChosenKey = "T203",
    /// The upstream is this proxy.
    OwnUpstream = "T204",
    /// A login that is not limited while the store is away.
    OpenLogin = "T205",
    /// A limit that no route uses.
    UnusedLimit = "T206",
    /// An upstream that no route uses.
    UnusedUpstream = "T207",
    /// A log that takes megabytes for each key.
    LargeLog = "T208",
    /// A tier in a header that is believed from nobody.
    NobodyBelieved = "T209",
    /// A shared secret that can be guessed by whoever has a token.
    ShortSecret = "T210",
    /// Nobody is left whom it limits.
    SparesEveryone = "T211",
    /// An upstream's certificate that nobody looks at.
    UnverifiedTls = "T215",
    /// Limits count by API keys, and nothing says which keys are known.
    UntoldKeys = "T216",
    /// A route is limited only by what its clients can invent.
    InventableKey = "T217",
    /// A certificate of ours that clients refuse today.
    Untimely = "T220",
    /// A shared store, and a number that says that nobody shares it.
    LoneFleet = "T230",
    /// A file without limits.
    NothingLimited = "T301",
    /// Limits that another letter case in a path gets around.
    LetterCase = "T302",
}

const EXPLANATIONS: &str = include_str!("../../docs/diagnostics.md");

impl Code {
    /// The severity of findings with this code.
    pub fn severity(self) -> Severity {
        match self.as_str() {
            code if code < "T200" => Severity::Error,
            code if code < "T300" => Severity::Warning,
            _ => Severity::Note,
        }
    }

    /// Its section of `docs/diagnostics.md`: the meaning, with an example.
    pub fn explain(self) -> &'static str {
        let head = format!("## {}", self.as_str());
        let Some(start) = EXPLANATIONS.find(&head) else {
            return "";
        };
        let section = &EXPLANATIONS[start..];
        let end = section[head.len()..]
            .find("\n## ")
            .map_or(section.len(), |at| at + head.len());
        section[..end].trim()
    }
}

impl std::str::FromStr for Code {
    type Err = ();

    /// Reads `T101`, in either case.
    fn from_str(text: &str) -> Result<Code, ()> {
        let same = |code: &&Code| code.as_str().eq_ignore_ascii_case(text);
        Code::ALL.iter().find(same).copied().ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_explained_with_an_example() {
        for code in Code::ALL {
            let text = code.explain();
            assert!(
                text.starts_with(&format!("## {}", code.as_str())),
                "{code:?}"
            );
            assert!(text.contains("```"), "{code:?} has no example");
            assert_eq!(text.matches("\n## ").count(), 0, "{code:?} runs on");
        }
        assert_eq!(EXPLANATIONS.matches("\n## T").count(), Code::ALL.len());
    }

    #[test]
    fn codes_read_back_and_ascend() {
        for code in Code::ALL {
            assert_eq!(code.as_str().to_lowercase().parse(), Ok(*code));
        }
        assert!(Code::ALL.is_sorted_by_key(|code| code.as_str()));
    }
}
