//! Heads that were denied, and what they mean: the same bytes from the same client mean the same
//! until the configuration changes, so who asks again and again is not read again and again.
//!
//! The cache remembers the reading, which is pure: the route, and the charges of its limits. The
//! store decides each time, or its last denial stands while it is known to last
//! (`store::lasting`). A head that is no longer denied is read as any other. Heads whose meaning
//! depends on more than the bytes and the configuration are not remembered: tokens, which expire,
//! certificates, and overrides of single keys.
//!
//! Bounded: two generations of at most `GENERATION` heads of at most `HEAD_BYTES`; when the young
//! one is full, the old one is forgotten. A head is remembered when it comes a second time. Only a
//! connection whose last request was denied has its heads looked up or remembered, so that nobody
//! else pays for it.

mod answers;

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::{DefaultHashBuilder, HashTable};
use http::{Method, StatusCode, Uri};

use super::admit::Decider;
use super::counts::Asked;
use super::line::Line;
use super::reject::{Denial, Form};
use super::request_id::{self, RequestId};
use super::{Downstream, Proxy};
use crate::clock;
use crate::limit::Charge;
use crate::limit::headers::put_line;
use crate::route::Route;
use crate::store::lasting::Lasting;
use crate::telemetry::access::Outcome;
use answers::{Answers, Class};

/// Heads in one generation.
const GENERATION: usize = 2048;
/// Bytes of a head that is remembered, at most.
const HEAD_BYTES: usize = 1024;
/// Heads that came once, of which a mark is kept: who never sends the same twice has none copied.
const SIGHTS: usize = 4096;
/// Of those, each head's may be in as many places.
const WAYS: usize = 4;
/// What a head ends with.
const END: &[u8] = b"\r\n\r\n";
/// What the path of a certificate authority's questions begins with: those are answered before
/// anything is limited, from one moment to the next.
const CHALLENGES: &str = "/.well-known/acme-challenge/";

/// The heads of one worker.
#[derive(Debug)]
pub(super) struct Heads {
    /// Of the configuration that they mean something by; a process never has two of one number.
    configuration: u64,
    known: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    heads: Generations,
    answers: Answers,
}

impl Default for Heads {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Heads {
            configuration: NEXT.fetch_add(1, Ordering::Relaxed),
            known: Mutex::default(),
        }
    }
}

#[derive(Debug, Default)]
struct Generations {
    young: HashTable<Known>,
    old: HashTable<Known>,
    /// Marks of heads that came and are not known, by their hashes.
    sights: Box<[u32]>,
    /// Its secret keeps heads from being made that all lie in one place.
    hasher: DefaultHashBuilder,
}

/// A head, and what it means.
#[derive(Debug)]
struct Known {
    peer: Peer,
    head: Box<[u8]>,
    meaning: Meaning,
    /// How it was denied the last time.
    last: Option<Lasting>,
}

/// What is asked of a connection before its heads are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Peer {
    ip: IpAddr,
    trusted: bool,
    tls: bool,
}

/// What a head means. What is needed only where an answer is worded, or somebody looks, is in a
/// box: who is denied all the time finds less of the rest in the caches.
#[derive(Debug)]
struct Meaning {
    charge: Charge,
    /// Who is answered like this.
    class: Option<Class>,
    /// Of the key that its tags were made with.
    generation: u64,
    /// The method and the route, as they are counted.
    numbers: (u8, usize),
    asked: Box<(Form, Question)>,
}

/// Who was denied, and what it was that he asked for.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(super) client: IpAddr,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) route: Option<Arc<str>>,
    /// The method and the route, as they are counted.
    pub(super) numbers: (u8, usize),
    configuration: u64,
}

/// Room for an answer in two parts: the lines of its head that tell of the denial, and its body.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pub(crate) lines: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

impl Room {
    fn clear(&mut self) {
        self.lines.clear();
        self.body.clear();
    }
}

/// What an answer is written on, by whoever knows how one is framed.
pub(crate) struct Paper<'p> {
    /// Where it is to stand.
    pub(crate) out: &'p mut Vec<u8>,
    /// Room to make it in.
    pub(crate) room: &'p mut Room,
    /// The second that its date names.
    pub(crate) second: u64,
    /// Writes a whole answer from its parts.
    pub(crate) whole: &'p dyn Fn(&mut Vec<u8>, StatusCode, &Room),
}

/// What is known of a head.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Again {
    /// It is denied, and answered: how long the head is, bytes.
    Denied(usize),
    /// It came before, and is worth to be remembered if it is denied.
    Seen,
    /// Nothing.
    New,
}

impl Question {
    /// The same of a request with this id.
    fn by<'q>(&'q self, id: &'q str) -> Asked<'q> {
        Asked {
            client: self.client,
            method: &self.method,
            path: self.uri.path(),
            route: self.route.as_deref(),
            id,
        }
    }
}

impl Peer {
    fn of(downstream: &Downstream) -> Peer {
        Peer {
            ip: downstream.arrival.ip,
            trusted: downstream.trusted,
            tls: downstream.arrival.tls.is_some(),
        }
    }
}

impl Proxy {
    /// Notes in `denial` what its head means, where that depends on the head alone.
    pub(super) fn note_meaning(
        &self,
        denial: &mut Denial,
        ((method, uri), route): ((&Method, &Uri), &Route),
        downstream: &Downstream,
        line: &Line,
    ) {
        let plain = !denial.alone
            && denial.form.is_plain()
            && line.trace.is_none()
            && line.riders.is_none()
            && !matches!(line.request_id, Some(RequestId::Taken(_)))
            && downstream.arrival.certificate().is_none()
            && !self.secure.marks(downstream)
            && !self.limiter.asks_tokens(route)
            && route.headers_down.is_empty()
            && route.limits.iter().all(|limit| limit.exempt.is_empty())
            && self.limiter.store.overrides().is_none()
            && !uri.path().starts_with(CHALLENGES);
        if plain {
            denial.question = Some(Question {
                client: line.client,
                method: method.clone(),
                uri: uri.clone(),
                route: line.route.clone(),
                numbers: (line.method, line.route_number),
                configuration: self.heads.configuration,
            });
        }
    }

    /// Remembers what a head meant that was denied.
    pub(crate) fn remember(&self, head: &[u8], downstream: &Downstream, denial: Denial) {
        // By now the configuration may be another.
        let is_ours = |question: &Question| question.configuration == self.heads.configuration;
        let Some(mut question) = denial.question.filter(is_ours) else {
            return;
        };
        // Of its own: the head's parts are those of a buffer that is needed elsewhere.
        let Ok(uri) = question.uri.to_string().parse() else {
            return;
        };
        question.uri = uri;
        let kept = &mut *self.heads.lock();
        let meaning = Meaning {
            class: kept.answers.class(&denial.charge, denial.form.kind()),
            charge: denial.charge,
            generation: denial.generation,
            numbers: question.numbers,
            asked: Box::new((denial.form, question)),
        };
        kept.heads.insert(Known {
            peer: Peer::of(downstream),
            head: head.into(),
            meaning,
            last: None,
        });
    }

    /// What is known of the request whose head is at the front of `read`. If it was denied before
    /// and is now, its answer is written on `paper`, and it is counted and logged.
    pub(crate) fn deny_again(
        &self,
        read: &[u8],
        downstream: &Downstream,
        paper: Paper<'_>,
    ) -> Again {
        let peer = Peer::of(downstream);
        let Kept { heads, answers } = &mut *self.heads.lock();
        // As a rule one head is all that has come; what equals a known one ends where that does.
        if read.len() <= HEAD_BYTES && read.ends_with(END) {
            let hash = heads.hash(peer, read);
            if let Some(known) = heads.find(hash, peer, read) {
                return self.deny_as((known, answers), read.len(), paper);
            }
        }
        let Some(length) = head_length(read).filter(|length| *length <= HEAD_BYTES) else {
            return Again::New;
        };
        let head = &read[..length];
        let hash = heads.hash(peer, head);
        match heads.find(hash, peer, head) {
            Some(known) => self.deny_as((known, answers), length, paper),
            None => heads.see(hash),
        }
    }

    /// Denies a request with this head, of so many bytes, if it is to be denied.
    fn deny_as(
        &self,
        (known, answers): (&mut Known, &mut Answers),
        length: usize,
        paper: Paper<'_>,
    ) -> Again {
        if self.limiter.store.overrides().is_some() {
            return Again::New;
        }
        let Known { meaning, last, .. } = known;
        let (limiter, began) = (&self.limiter, clock::now());
        let (charge, asked) = (&meaning.charge, &meaning.asked);
        let question = (charge, meaning.generation);
        let Some(decision) = limiter.deny_here(question, last, began) else {
            return Again::New;
        };
        limiter.count_decision(charge, &decision, &Decider::Store { warm: None });
        let made = request_id::made();
        let id = made.as_str();
        let status = limiter.deny.status;
        let told = limiter.tell(charge, &decision, clock::unix_us_at(began));
        let told = (told, paper.second, id.as_bytes());
        let bytes = answers.put(meaning.class, told, paper.out, |told, out| {
            let room = paper.room;
            room.clear();
            limiter.put_denial((charge, told, &asked.0), id, room);
            if let Some(name) = &self.request_id {
                put_line(&mut room.lines, name, id.as_bytes());
            }
            (paper.whole)(out, status, room);
            room.body.len()
        });
        limiter.note_denial((charge, &decision), || asked.1.by(id));
        let ended = (status.as_u16(), Outcome::Denied);
        limiter.count_outcome(meaning.numbers, ended, began);
        if self.log.wants(Outcome::Denied) {
            let mut line = Line::again(&asked.1, began, (&self.log, self.show_keys));
            line.status = status.as_u16();
            line.request_id = Some(made);
            line.note_denial(charge, &decision);
            line.add_bytes(bytes);
            line.decide();
            line.write();
        }
        Again::Denied(length)
    }
}

/// How long the head at the front of `read` is, whose lines end in order. Heads are short: this
/// is quicker than a search that is prepared first.
fn head_length(read: &[u8]) -> Option<usize> {
    let ends = memchr::memchr_iter(b'\n', read).map(|at| at + 1);
    ends.map_while(|end| Some((end, read.get(end..end + 2)?)))
        .find(|(_, next)| *next == b"\r\n")
        .map(|(end, _)| end + 2)
}

impl Heads {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn hash(&self, peer: Peer, head: &[u8]) -> u64 {
        self.hasher.hash_one((peer, head))
    }

    /// Notes that a head came of which nothing is known; tells whether it did before.
    fn see(&mut self, hash: u64) -> Again {
        if self.sights.is_empty() {
            self.sights = vec![0; SIGHTS].into();
        }
        let (place, mark) = (hash as usize % SIGHTS, (hash >> 32) as u32 | 1);
        let marks = &mut self.sights[place & !(WAYS - 1)..][..WAYS];
        if marks.contains(&mark) {
            return Again::Seen;
        }
        // Those that fall on one place do not drive each other out in turn.
        marks.rotate_right(1);
        marks[0] = mark;
        Again::New
    }

    fn find(&mut self, hash: u64, peer: Peer, head: &[u8]) -> Option<&mut Known> {
        let is_it = |known: &Known| known.peer == peer && *known.head == *head;
        match self.young.find_mut(hash, is_it) {
            Some(known) => Some(known),
            None => self.old.find_mut(hash, is_it),
        }
    }

    fn insert(&mut self, known: Known) {
        let hash = self.hash(known.peer, &known.head);
        if self.find(hash, known.peer, &known.head).is_some() {
            return;
        }
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        let hasher = &self.hasher;
        let rehash = |known: &Known| hasher.hash_one((known.peer, &*known.head));
        self.young.insert_unique(hash, known, rehash);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use http::HeaderMap;

    use super::*;

    fn peer(last: u8) -> Peer {
        Peer {
            ip: Ipv4Addr::new(192, 0, 2, last).into(),
            trusted: false,
            tls: false,
        }
    }

    fn known(head: String) -> Known {
        let question = Question {
            client: peer(1).ip,
            method: Method::GET,
            uri: Uri::default(),
            route: None,
            numbers: (0, 0),
            configuration: 0,
        };
        let meaning = Meaning {
            charge: Charge::new(),
            class: None,
            generation: 0,
            numbers: question.numbers,
            asked: Box::new((Form::of(&Method::GET, &HeaderMap::new()), question)),
        };
        Known {
            peer: peer(1),
            head: head.into_bytes().into(),
            meaning,
            last: None,
        }
    }

    #[test]
    fn heads_are_bounded_and_the_oldest_are_forgotten_first() {
        let mut heads = Generations::default();
        let head = |number: usize| format!("GET /{number} HTTP/1.1\r\n\r\n");
        for number in 0..5 * GENERATION {
            heads.insert(known(head(number)));
            heads.insert(known(head(number)));
        }
        assert_eq!(heads.young.len() + heads.old.len(), 2 * GENERATION);
        let mut finds = |peer: Peer, head: &str| {
            let head = head.as_bytes();
            heads.find(heads.hash(peer, head), peer, head).is_some()
        };
        for number in 0..5 * GENERATION {
            assert_eq!(finds(peer(1), &head(number)), number >= 3 * GENERATION);
        }
        let last = head(5 * GENERATION - 1);
        assert!(!finds(peer(2), &last), "another's");
        let trusted = Peer {
            trusted: true,
            ..peer(1)
        };
        assert!(!finds(trusted, &last), "one that may speak for others");
        assert!(!finds(peer(1), &last[..last.len() - 1]));
    }

    #[test]
    fn a_head_is_worth_to_be_remembered_the_second_time() {
        let mut heads = Generations::default();
        assert!(matches!(heads.see(7), Again::New));
        assert!(matches!(heads.see(7), Again::Seen));
        assert!(matches!(heads.see(8 | 1 << 40), Again::New));
        assert!(matches!(heads.see(7), Again::Seen), "beside another");
    }
}
