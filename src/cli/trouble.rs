//! Why a command did not work: what is wrong, and what to write instead.

use super::{DID_NOT_WORK, WRONG_USE, run};
use crate::key_selector::{KeySelectionError, KeySelectionErrorKind};
use crate::store::redis::OverrideClientError;

/// What is said on standard error, and the exit code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) code: u8,
    pub(super) message: String,
    pub(super) help: Option<String>,
}

impl Trouble {
    /// The command line is wrong.
    pub(super) fn wrong(message: impl Into<String>) -> Trouble {
        Trouble {
            code: WRONG_USE,
            message: message.into(),
            help: None,
        }
    }

    /// It is right, and could not be done.
    pub(super) fn failed(message: impl Into<String>) -> Trouble {
        Trouble {
            code: DID_NOT_WORK,
            ..Trouble::wrong(message)
        }
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Trouble {
        self.help = Some(help.into());
        self
    }

    pub(super) fn say(&self) -> u8 {
        run::say(&format!("error: {}", self.message));
        if let Some(help) = &self.help {
            run::say(&format!("help: {help}"));
        }
        self.code
    }
}

impl From<OverrideClientError> for Trouble {
    fn from(error: OverrideClientError) -> Trouble {
        Trouble::failed(error.to_string())
    }
}

impl From<KeySelectionError> for Trouble {
    fn from(unclear: KeySelectionError) -> Trouble {
        let trouble = match unclear.kind {
            KeySelectionErrorKind::Wrong => Trouble::wrong(unclear.message),
            KeySelectionErrorKind::Unknown | KeySelectionErrorKind::Ambiguous => {
                Trouble::failed(unclear.message)
            }
        };
        Trouble {
            help: unclear.help,
            ..trouble
        }
    }
}
