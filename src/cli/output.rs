//! Output of commands: results go to standard output, everything else to standard error.

use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;

use super::{BAD_CONFIGURATION, DID_NOT_WORK, WRONG_USE};
use crate::config::diagnostic::{Code, Diagnostics};
use crate::config::{self, Config, render};
use crate::key_selector::{KeySelectionError, KeySelectionErrorKind};
use crate::store::redis::OverrideClientError;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct CommandError {
    pub(super) code: u8,
    /// Complete lines for standard error.
    pub(super) text: String,
}

impl CommandError {
    /// The command line is wrong.
    pub(super) fn wrong_use(message: impl AsRef<str>) -> CommandError {
        CommandError {
            code: WRONG_USE,
            text: format!("error: {}", message.as_ref()),
        }
    }

    /// The command line is right, but the command did not work.
    pub(super) fn failed(message: impl AsRef<str>) -> CommandError {
        CommandError {
            code: DID_NOT_WORK,
            ..CommandError::wrong_use(message)
        }
    }

    /// Like `failed`, for commands that sign their messages with the program's name.
    pub(super) fn signed(message: impl std::fmt::Display) -> CommandError {
        CommandError {
            code: DID_NOT_WORK,
            text: format!("tidegate: {message}"),
        }
    }

    pub(super) fn with_code(self, code: u8) -> CommandError {
        CommandError { code, ..self }
    }

    /// Adds what to write or do instead.
    pub(super) fn help(mut self, help: impl AsRef<str>) -> CommandError {
        self.text.push_str("\nhelp: ");
        self.text.push_str(help.as_ref());
        self
    }

    pub(super) fn maybe_help(self, help: Option<String>) -> CommandError {
        match help {
            Some(help) => self.help(help),
            None => self,
        }
    }
}

impl From<Diagnostics> for CommandError {
    fn from(found: Diagnostics) -> CommandError {
        let unreadable = found.list.iter().any(|one| one.code == Code::Unreadable);
        CommandError {
            code: match unreadable {
                true => DID_NOT_WORK,
                false => BAD_CONFIGURATION,
            },
            text: render::human(&found, use_colour(&std::io::stderr())),
        }
    }
}

impl From<OverrideClientError> for CommandError {
    fn from(error: OverrideClientError) -> CommandError {
        CommandError::failed(error.to_string())
    }
}

impl From<KeySelectionError> for CommandError {
    fn from(error: KeySelectionError) -> CommandError {
        let code = match error.kind {
            KeySelectionErrorKind::Wrong => WRONG_USE,
            KeySelectionErrorKind::Unknown | KeySelectionErrorKind::Ambiguous => DID_NOT_WORK,
        };
        let failed = CommandError::failed(error.message).with_code(code);
        failed.maybe_help(error.help)
    }
}

/// Reads a configuration. Its warnings are not printed: `tidegate check` prints them.
pub(super) fn load(file: &Path) -> Result<Config, CommandError> {
    let (config, _) = config::load(file)?;
    Ok(config)
}

pub(super) fn print_warnings(
    loaded: Result<(Config, Diagnostics), Diagnostics>,
) -> Result<Config, CommandError> {
    let (config, mut warnings) = loaded?;
    let colour = use_colour(&std::io::stderr());
    if !warnings.is_empty() {
        print_error(&render::human(&warnings, colour));
    }
    // Only `tidegate check` prints the other notes.
    let notes = &mut warnings.notes;
    notes.retain(|one| one.code == Code::NothingLimited);
    if !notes.is_empty() {
        print_error(&render::notes(&warnings, colour));
    }
    Ok(config)
}

/// Writes a line to standard error. Ignores errors: if it is closed, no reader is left.
pub(super) fn print_error(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Writes to standard output. A reader that has closed it wants no more, so that is no error.
pub(super) fn print(text: impl AsRef<[u8]>) -> Result<(), CommandError> {
    print_next(text).map(|_| ())
}

/// Writes a part of an endless output. Returns whether the reader is still there.
pub(super) fn print_next(text: impl AsRef<[u8]>) -> Result<bool, CommandError> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(CommandError::failed(format!(
            "cannot write to standard output: {error}"
        ))),
    }
}

/// Colour is used only on a terminal, and never with `NO_COLOR`.
pub(super) fn use_colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
