//! Keys that a program computes: by a closure, or given as a text where there is no request.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use http::{Extensions, HeaderMap, Method};

use super::value::{Carried, PartValue};
use super::{Facts, HashSecret, Identity, KeyHash};

/// What stands for it in an identity. Counts in Redis outlive us: never renumber.
pub(super) const KIND: u8 = 15;

/// A request as a key's closure sees it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct KeyRequest<'r> {
    /// The client's address, behind trusted proxies; of IPv6 the /64.
    pub client: IpAddr,
    /// The method.
    pub method: &'r Method,
    /// The host, without its port.
    pub host: &'r str,
    /// The path in its canonical spelling.
    pub path: &'r str,
    /// The query, without its `?`.
    pub query: Option<&'r str>,
    /// The header fields.
    pub headers: &'r HeaderMap,
    /// What layers before this one have added, such as a user who is logged in.
    pub extensions: Option<&'r Extensions>,
}

type MakeKey = dyn Fn(&KeyRequest<'_>) -> Option<String> + Send + Sync;

/// A closure that makes a text of a request. It equals its clones alone.
#[derive(Clone)]
pub struct CustomKey(Arc<MakeKey>);

impl CustomKey {
    pub fn new(make: Arc<MakeKey>) -> CustomKey {
        CustomKey(make)
    }

    pub(super) fn find<'r>(&self, facts: &Facts<'r>) -> Carried<'r> {
        let request = KeyRequest {
            client: facts.ip,
            method: facts.method,
            host: facts.host,
            path: facts.path.as_str(),
            query: facts.query,
            headers: facts.headers,
            extensions: facts.extensions,
        };
        match (self.0)(&request) {
            Some(text) if !text.is_empty() => {
                Carried::One(PartValue::Made(text.into_bytes().into()))
            }
            _ => Carried::Nothing,
        }
    }

    fn address(&self) -> *const () {
        Arc::as_ptr(&self.0).cast()
    }
}

// A closure that panics leaves nothing of ours half done.
impl UnwindSafe for CustomKey {}
impl RefUnwindSafe for CustomKey {}

impl fmt::Debug for CustomKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomKey")
    }
}

impl PartialEq for CustomKey {
    fn eq(&self, other: &CustomKey) -> bool {
        self.address() == other.address()
    }
}

impl Eq for CustomKey {}

impl Hash for CustomKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}

/// The hash of a request for which a closure made this text.
pub fn custom_hash(text: &str, secret: &HashSecret) -> KeyHash {
    let mut identity = Identity::new(secret);
    identity.add_text(KIND, text.as_bytes());
    identity.hash()
}
