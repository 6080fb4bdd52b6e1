//! Why content does not reach its end.

use std::error::Error;
use std::fmt;

/// Why a request's body did not reach its end: always on the client's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// It is longer than allowed.
    TooLarge,
    /// The client let too much time pass between two pieces.
    TimedOut,
    /// The client went away in the middle, or broke the framing.
    Broken,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BodyError::TooLarge => "the body is longer than allowed",
            BodyError::TimedOut => "the body did not arrive in time",
            BodyError::Broken => "the body is malformed or ended too early",
        })
    }
}

impl Error for BodyError {}
