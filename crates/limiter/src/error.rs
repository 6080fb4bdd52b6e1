//! Why limits cannot be used.

use std::error::Error;
use std::{fmt, io};

/// Why there is no [`Limiter`](crate::Limiter).
#[derive(Debug)]
#[non_exhaustive]
pub enum LimitsError {
    /// The limits are wrong. The text names every mistake, and what to write instead.
    Invalid(String),
    /// The store or the decision log cannot be opened.
    Store(io::Error),
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitsError::Invalid(mistakes) => f.write_str(mistakes),
            LimitsError::Store(error) => error.fmt(f),
        }
    }
}

impl Error for LimitsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            LimitsError::Invalid(_) => None,
            LimitsError::Store(error) => Some(error),
        }
    }
}
