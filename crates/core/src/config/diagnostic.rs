//! Findings about a configuration: one finding is one [`Diagnostic`].
//!
//! Plain data. A diagnostic quotes only the source itself, never a value of the environment or of a
//! secret file. `render.rs` prints diagnostics.

use std::fmt;
use std::ops::Range;

pub type TextSpan = Range<usize>;

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
    pub message: String,
    /// The place of the finding, then related places.
    pub labels: Vec<FindingLabel>,
    pub help: Option<String>,
    pub note: Option<String>,
}

impl Diagnostic {
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

/// Settings that exclude or need each other.
pub(super) fn contradiction(message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::Contradiction, message)
}

/// A setting that changes nothing beside the others.
pub(super) fn no_effect(message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::NoEffect, message)
}

/// The same thing said twice.
pub(super) fn duplicate(message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::Duplicate, message)
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
    ($($name:ident = $text:literal,)+) => {
        /// The kinds of findings: `T1..` are errors, `T2..` warnings, `T3..` notes. A code keeps
        /// its meaning for ever; `docs/diagnostics.md` explains each with an example.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Code { $($name,)+ }

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
    Unreadable = "T100",
    UnknownKey = "T101",
    Syntax = "T102",
    WrongType = "T103",
    MissingKey = "T104",
    OutOfRange = "T105",
    UnknownWord = "T106",
    Variable = "T107",
    SecretFile = "T108",
    BadRate = "T109",
    BadQuantity = "T110",
    BadKey = "T111",
    BadName = "T112",
    BadAddress = "T113",
    BadUrl = "T114",
    BadPattern = "T115",
    BadHttp = "T116",
    UnknownLimit = "T117",
    UnknownUpstream = "T118",
    Duplicate = "T119",
    RouteConflict = "T120",
    CostAboveLimit = "T121",
    LimitTooLarge = "T122",
    NoSuchParameter = "T123",
    Contradiction = "T124",
    BadTemplate = "T125",
    OpenAdmin = "T126",
    UnknownUsage = "T127",
    UsageNeeded = "T128",
    InventableValues = "T129",
    BadZone = "T131",
    NothingHeld = "T132",
    ImpossibleBan = "T134",
    InventableIdentity = "T135",
    KeysNeedRedis = "T136",
    PlainCallback = "T137",
    PlainKeys = "T138",
    UnknownErrorPage = "T139",
    NeverDenies = "T201",
    TrustsEveryone = "T202",
    ClientChosenKey = "T203",
    OwnUpstream = "T204",
    OpenLogin = "T205",
    UnusedLimit = "T206",
    UnusedUpstream = "T207",
    LargeLog = "T208",
    NobodyBelieved = "T209",
    ShortSecret = "T210",
    SparesEveryone = "T211",
    UnverifiedTls = "T215",
    UntoldKeys = "T216",
    InventableKey = "T217",
    CallersOwnLimits = "T218",
    UnseenResponse = "T219",
    Untimely = "T220",
    NoRefund = "T221",
    LooseObservation = "T222",
    LargeDefaultOutput = "T223",
    ClientChosenCost = "T224",
    UnboundedCalls = "T225",
    InventedValues = "T226",
    LoneFleet = "T230",
    ForgottenQuota = "T231",
    PartlyHeld = "T232",
    OutlivedWait = "T233",
    SharedBan = "T234",
    HastyBan = "T235",
    ForgottenLedger = "T236",
    UntoldClients = "T237",
    UnusedCountsFile = "T242",
    NoClientCertificates = "T243",
    UncommonMethod = "T244",
    NoEffect = "T245",
    EndlessRedirect = "T246",
    NothingLimited = "T301",
    LetterCase = "T302",
    SlidingDay = "T303",
    Waiting = "T304",
    CommonReturn = "T341",
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
