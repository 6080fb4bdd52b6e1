//! HTTP/1.1 as bytes, without IO, for connections to clients and to servers.
//!
//! It must never read a head or content in a way that another reader could read otherwise.

pub(crate) mod content;
pub(crate) mod head;
#[cfg(test)]
mod likeness;
pub(crate) mod write;
