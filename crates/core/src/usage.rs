//! Tokens: what the answer of a model server says that it used, and what a request may use at most.
//!
//! Pure. A proxy shows the bytes of an answer to a scanner while they pass. The scanner keeps no
//! byte of them and delays none. It never confuses the server's own numbers with text of a model:
//! a number counts only at its path, outside of strings.

pub mod answer;
pub mod ask;
pub mod estimate;
pub mod format;
pub mod framing;
pub mod number;
pub mod paths;
pub mod request;
mod scan;
pub mod settings;
pub mod tokens;

#[cfg(test)]
mod tests;
