//! Bans: this process adds up the denials that its workers see, and tells them to Redis together.
//! The script there decides which bans begin.
//!
//! A denial waits `SEND_AFTER` at most. If Redis does not answer, this process counts the denials
//! by itself, and its bans hold for itself alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError};
use tokio::time::{sleep, timeout};

use super::{OverrideKeys, SharedOverrides};
use crate::limit::ban::{Ban, BeginningBan};
use crate::limit::{KeyHash, Limit, LimitCheck};
use crate::store::bans::{BanRecords, BannableKey};
use crate::store::overrides::{BegunBan, MAX_WITH_BANS, Overrides, RecordTerms, Subject};
use crate::store::redis::{Redis, RedisShared};
use crate::telemetry::decisions::BannedRequest;

const SCRIPT: &str = include_str!("../../../../../../lua/bans.lua");
/// How long denials are added up before they are sent.
const SEND_AFTER: Duration = Duration::from_millis(40);
/// How long Redis may take for an answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// Keys in one call: about 0.2 ms of the server's time.
const KEYS_IN_CALL: usize = 50;
/// Keys whose denials wait to be sent. Denials of further ones are not counted.
const MAX_WAITING: usize = 20_000;
/// How often denials are sent again to a server that cannot run scripts yet.
const ATTEMPTS: u8 = 20;
/// The same while there is no connection.
const ATTEMPTS_WITHOUT_LINK: u8 = 5;

/// The denials that wait to be sent, and the bans of this process.
#[derive(Default)]
pub(super) struct SharedBans {
    waiting: Mutex<HashMap<BannableKey, WaitingDenials>>,
    /// When those that wait are sent, microseconds.
    due_us: AtomicU64,
    /// To the server that has the overrides; `None` while it is away.
    link: Mutex<Option<MultiplexedConnection>>,
    /// The denials that Redis was not told.
    untold: BanRecords,
    /// Bans that this process has begun, and that the table may not have from Redis yet.
    own: Mutex<Vec<OwnBan>>,
    /// The server refuses to count denials, or to begin bans, and the log says so.
    is_refused: AtomicBool,
}

#[derive(Debug)]
struct WaitingDenials {
    limit: Arc<Limit>,
    ban: Ban,
    tag: KeyHash,
    count: u64,
    attempts: u8,
}

#[derive(Debug)]
struct OwnBan {
    ban: BegunBan,
    /// The version of the overrides that has it. `None` if Redis does not know of it.
    version: Option<u64>,
}

impl SharedBans {
    /// Tells the connection to the server that has the overrides.
    pub(super) fn set_link(&self, connection: &MultiplexedConnection) {
        *lock(&self.link) = Some(connection.clone());
    }

    /// Adds denials to those that wait.
    fn wait(&self, denials: WaitingDenials) {
        let key = BannableKey {
            limit: Arc::clone(&denials.limit.name),
            tag: denials.tag,
        };
        let mut waiting = lock(&self.waiting);
        if let Some(known) = waiting.get_mut(&key) {
            known.count = known.count.saturating_add(denials.count);
        } else if waiting.len() < MAX_WAITING {
            waiting.insert(key, denials);
        }
    }

    /// Forgets what is known of a key: an operator has ended its ban with this version.
    pub(super) fn forget(&self, tag: KeyHash, version: u64) {
        let is_later = |one: &OwnBan| one.version.is_some_and(|of_ban| of_ban > version);
        lock(&self.own).retain(|one| one.ban.tag != tag || is_later(one));
        self.untold.forget(tag);
    }
}

impl SharedOverrides {
    /// Puts a table of this version in force, with the bans of this process that it lacks.
    pub(super) fn put_table(&self, mut table: Overrides, version: u64) {
        let now_us = self.table.clock.now_us();
        let mut own = lock(&self.bans.own);
        own.retain(|one| {
            let is_unread = one.version.is_none_or(|of_ban| of_ban > version);
            is_unread && one.ban.until_us > now_us
        });
        table.ban(own.iter().map(|one| &one.ban), now_us);
        self.table.store(table);
    }

    /// Takes what has ended out of the table.
    pub(super) fn put_without_ended(&self) {
        let now_us = self.table.clock.now_us();
        let _own = lock(&self.bans.own);
        let table = self.table.load().without_ended(now_us);
        self.table.store(table);
    }

    /// Lets a ban of this process hold at once. Does not wait until the table is read again.
    fn add_own(&self, bans: Vec<OwnBan>) {
        if bans.is_empty() {
            return;
        }
        let now_us = self.table.clock.now_us();
        let mut own = lock(&self.bans.own);
        let mut table = self.table.load().without_ended(now_us);
        table.ban(bans.iter().map(|one| &one.ban), now_us);
        own.extend(bans);
        self.table.store(table);
    }
}

impl Redis {
    /// See [`crate::store::Store::count_denial`].
    pub(in crate::store) fn count_denial(&self, check: &LimitCheck, generation: u64) {
        let Some(ban) = check.limit.ban else {
            return;
        };
        let shared = &self.shared;
        let overrides = &shared.overrides;
        let blocked = overrides.table.snapshot();
        if blocked.is_some_and(|blocked| blocked.block_of(check.tag).is_some()) {
            return;
        }
        let denials = WaitingDenials {
            limit: Arc::clone(&check.limit),
            ban,
            tag: check.tag,
            count: 1,
            attempts: 0,
        };
        if !shared.is_current(generation) {
            return shared.count_untold(vec![denials]);
        }
        overrides.bans.wait(denials);
        send_soon(shared);
    }
}

impl RedisShared {
    pub(in crate::store) fn log_banned(&self, request: &BannedRequest<'_>) {
        if let Some(log) = &self.log {
            log.record_banned(request, self.instant().store_us);
        }
    }

    pub(in crate::store) fn bans_begun(&self) -> BTreeMap<Arc<str>, u64> {
        self.overrides.bans.untold.begun()
    }

    pub(in crate::store) fn count_banned(&self) -> usize {
        self.overrides.table.count_banned()
    }

    /// Counts denials in this process alone.
    fn count_untold(&self, denials: Vec<WaitingDenials>) {
        let overrides = &self.overrides;
        let now_us = overrides.table.clock.now_us();
        let mut begun = Vec::new();
        for WaitingDenials {
            limit, tag, count, ..
        } in denials
        {
            let untold = &overrides.bans.untold;
            let Some(ban) = untold.add(&limit, tag, count, now_us) else {
                continue;
            };
            untold.note_begun(&limit, tag, ban);
            begun.push(OwnBan {
                ban: BegunBan {
                    limit: Arc::clone(&limit.name),
                    tag,
                    until_us: now_us.saturating_add(ban.length_us),
                },
                version: None,
            });
        }
        overrides.add_own(begun);
    }

    fn note_answer(&self, denials: &[WaitingDenials], answer: &BansAnswer) {
        let overrides = &self.overrides;
        let now_us = overrides.table.clock.now_us();
        let mut begun = Vec::new();
        for (of_key, answered) in denials.iter().zip(&answer.keys) {
            if answered.state != STATE_BEGINS {
                continue;
            }
            let ban = BeginningBan {
                level: answered.level,
                length_us: answered.until_us.saturating_sub(answer.now_us),
            };
            let WaitingDenials { limit, tag, .. } = of_key;
            overrides.bans.untold.note_begun(limit, *tag, ban);
            begun.push(OwnBan {
                ban: BegunBan {
                    limit: Arc::clone(&limit.name),
                    tag: *tag,
                    until_us: now_us.saturating_add(ban.length_us),
                },
                version: Some(answer.version),
            });
        }
        overrides.add_own(begun);
    }
}

/// Sends what waits `SEND_AFTER` from now, unless another task does so.
fn send_soon(shared: &Arc<RedisShared>) {
    let bans = &shared.overrides.bans;
    // Read after the denial was added: a task that is due later will find it.
    let now_us = shared.clock.now_us();
    let due_us = bans.due_us.load(Ordering::Acquire);
    let next_us = now_us + u64::try_from(SEND_AFTER.as_micros()).unwrap_or(0);
    let order = Ordering::AcqRel;
    let takes = || (bans.due_us).compare_exchange(due_us, next_us, order, Ordering::Relaxed);
    if now_us < due_us || takes().is_err() {
        return;
    }
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        sleep(SEND_AFTER).await;
        send(&shared).await;
    });
}

/// Tells Redis all denials that wait.
async fn send(shared: &Arc<RedisShared>) {
    let bans = &shared.overrides.bans;
    let waiting = std::mem::take(&mut *lock(&bans.waiting));
    let mut waiting: Vec<WaitingDenials> = waiting.into_values().collect();
    while !waiting.is_empty() {
        let rest = waiting.split_off(waiting.len().min(KEYS_IN_CALL));
        let denials = std::mem::replace(&mut waiting, rest);
        let link = lock(&bans.link).clone();
        let answer = match link {
            Some(connection) => report_denials(shared, connection, &denials).await,
            None => TellingEnd::Again(ATTEMPTS_WITHOUT_LINK),
        };
        if let TellingEnd::Again(most) = answer {
            send_again(shared, denials, most);
            continue;
        }
        let shared = Arc::clone(shared);
        // On another thread: a table of many blocks would delay this thread's requests.
        let noting = tokio::task::spawn_blocking(move || match answer {
            TellingEnd::Told(answer) => shared.note_answer(&denials, &answer),
            TellingEnd::Untold | TellingEnd::Again(_) => shared.count_untold(denials),
        });
        let _ = noting.await;
    }
}

/// How telling Redis of denials ended.
enum TellingEnd {
    Told(BansAnswer),
    /// Redis may not know of them.
    Untold,
    /// The server has run nothing, and another one, or the same a little later, may: for so many
    /// attempts.
    Again(u8),
}

async fn report_denials(
    shared: &RedisShared,
    mut connection: MultiplexedConnection,
    denials: &[WaitingDenials],
) -> TellingEnd {
    let bans = &shared.overrides.bans;
    let command = command(shared, denials);
    let answer = command.query_async::<Vec<u64>>(&mut connection);
    match timeout(ANSWER_WITHIN, answer).await {
        Ok(Ok(numbers)) => match BansAnswer::read(&numbers) {
            Some(answer) => {
                note_full(bans, &answer);
                TellingEnd::Told(answer)
            }
            None => TellingEnd::Untold,
        },
        Ok(Err(error)) if may_be_sent_again(&error) => TellingEnd::Again(ATTEMPTS),
        failed => {
            *lock(&bans.link) = None;
            if let Ok(Err(error)) = &failed
                && error.code().is_some()
                && !bans.is_refused.swap(true, Ordering::Relaxed)
            {
                tracing::warn!("redis: bans hold in this process alone: {error}");
            }
            TellingEnd::Untold
        }
    }
}

/// Warns once of bans that cannot begin.
fn note_full(bans: &SharedBans, answer: &BansAnswer) {
    let is_full = answer.keys.iter().any(|key| key.state == STATE_FULL);
    if !is_full {
        bans.is_refused.store(false, Ordering::Relaxed);
    } else if !bans.is_refused.swap(true, Ordering::Relaxed) {
        tracing::warn!("redis: no ban begins: there are {MAX_WITH_BANS} overrides and blocks");
    }
}

/// Puts denials back that the server has not counted.
fn send_again(shared: &Arc<RedisShared>, denials: Vec<WaitingDenials>, most: u8) {
    let mut untold = Vec::new();
    for mut one in denials {
        one.attempts += 1;
        match one.attempts < most {
            true => shared.overrides.bans.wait(one),
            false => untold.push(one),
        }
    }
    shared.count_untold(untold);
    send_soon(shared);
}

/// Whether the server has run nothing, and another one, or the same a little later, will.
fn may_be_sent_again(error: &RedisError) -> bool {
    let codes = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "BUSY"];
    error.code().is_some_and(|code| codes.contains(&code))
}

fn command(shared: &RedisShared, denials: &[WaitingDenials]) -> Cmd {
    let keys = OverrideKeys::new(&shared.prefix);
    let mut command = redis::cmd("EVAL");
    command.arg(SCRIPT).arg(3 + denials.len());
    command
        .arg(&keys.records)
        .arg(&keys.version)
        .arg(&keys.ends);
    for one in denials {
        command.arg(keys.bans(one.tag));
    }
    command.arg("").arg(MAX_WITH_BANS);
    for one in denials {
        let ban = &one.ban;
        command
            .arg(&*one.limit.name)
            .arg(Subject::Block(one.tag).to_string())
            .arg(one.count)
            .arg(ban.after)
            .arg(ban.window_us)
            .arg(ban.first_us)
            .arg(ban.again)
            .arg(ban.max_us)
            .arg(RecordTerms::of_ban(&one.limit).lines());
    }
    command
}

/// The answer of `lua/bans.lua`.
#[derive(Debug)]
struct BansAnswer {
    /// That of the overrides, if a ban began.
    version: u64,
    now_us: u64,
    keys: Vec<BanReply>,
}

#[derive(Debug)]
struct BanReply {
    state: u64,
    until_us: u64,
    level: u32,
}

/// The state of a key whose ban begins.
const STATE_BEGINS: u64 = 1;
/// The state of a key whose ban cannot begin.
const STATE_FULL: u64 = 3;

impl BansAnswer {
    fn read(numbers: &[u64]) -> Option<BansAnswer> {
        let (head, rest) = numbers.split_at_checked(2)?;
        let (keys, odd) = rest.as_chunks::<3>();
        let key = |[state, until_us, level]: &[u64; 3]| BanReply {
            state: *state,
            until_us: *until_us,
            level: u32::try_from(*level).unwrap_or(u32::MAX),
        };
        odd.is_empty().then(|| BansAnswer {
            version: head[0],
            now_us: head[1],
            keys: keys.iter().map(key).collect(),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Denials on their way to the store of a simulation, in the order of their keys.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct TakenDenials(Vec<WaitingDenials>);

/// The answer for one key: a ban that begins, and until when by the store's clock.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToldBan {
    pub(crate) level: u32,
    pub(crate) until_us: u64,
}

#[cfg(test)]
impl TakenDenials {
    pub(crate) fn keys(&self) -> Vec<(Arc<Limit>, KeyHash, u64)> {
        let denials = self.0.iter();
        let keys = denials.map(|one| (Arc::clone(&one.limit), one.tag, one.count));
        keys.collect()
    }
}

#[cfg(test)]
impl RedisShared {
    pub(crate) fn take_denials(&self) -> TakenDenials {
        let waiting = std::mem::take(&mut *lock(&self.overrides.bans.waiting));
        let mut waiting: Vec<WaitingDenials> = waiting.into_values().collect();
        waiting.sort_by(|one, other| {
            (&one.limit.name, one.tag.0).cmp(&(&other.limit.name, other.tag.0))
        });
        TakenDenials(waiting)
    }

    /// Takes the store's answer at `store_us`, with the version that has the bans; `None` if there
    /// was none.
    pub(crate) fn end_denials(
        &self,
        taken: TakenDenials,
        store_us: u64,
        answer: Option<(u64, Vec<Option<ToldBan>>)>,
    ) {
        let Some((version, told)) = answer else {
            return self.count_untold(taken.0);
        };
        let key = |told: &Option<ToldBan>| BanReply {
            state: u64::from(told.is_some()),
            until_us: told.map_or(0, |told| told.until_us),
            level: told.map_or(0, |told| told.level),
        };
        let answer = BansAnswer {
            version,
            now_us: store_us,
            keys: told.iter().map(key).collect(),
        };
        self.note_answer(&taken.0, &answer);
    }
}
