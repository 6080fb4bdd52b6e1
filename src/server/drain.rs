//! Open connections: how many each worker and each address has, and how a worker ends them.
//!
//! A drain accepts no new connections, lets requests finish, closes idle connections, and cuts the
//! rest at the deadline. A cut settles the requests and frees their slots. A client may send a
//! request at the moment when its idle connection is closed, and cannot know whether it was served.
//! So idle connections stay open for a while, and each response announces the end of its
//! connection.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, watch};

use super::Lifecycle;
use crate::clock::Sweep;
use crate::config::ServerSettings;
use crate::proxy::decide::ServingStage;
use crate::telemetry::panics::lock;

/// How long connections may take to end once they are cut.
const CUT_TIMEOUT: Duration = Duration::from_millis(100);
/// Leading bits of an IPv6 address that identify one client.
const IPV6_BITS: u32 = 64;

/// The open connections of one worker, and the state of its drain.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    draining: AtomicBool,
    /// The same, for those who wait for it.
    stage: watch::Sender<ServingStage>,
    closing: AtomicBool,
    cut: AtomicBool,
    open: AtomicUsize,
    closed: Notify,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// For one more request on an idle connection.
    pub(crate) idle: Duration,
    pub(crate) all: Duration,
}

impl Deadlines {
    /// After a stop, an operator waits for the end of the process. After an upgrade there is more
    /// time.
    pub(super) fn new(lifecycle: Lifecycle, settings: &ServerSettings) -> Deadlines {
        match lifecycle {
            Lifecycle::HandOver => Deadlines {
                idle: settings.handover_timeout / 2,
                all: settings.handover_timeout,
            },
            _ => Deadlines {
                idle: settings.drain_idle,
                all: settings.drain_timeout,
            },
        }
    }
}

/// One open connection; dropping it counts its end. It exists before the task of its connection
/// starts, so that no drain can miss it.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    drain: Arc<Drain>,
    /// `None` for a client that waited for a permit when its listener stopped.
    _permit: Option<OwnedSemaphorePermit>,
    /// That of its address, if the connections of an address are limited. Boxed, because it is
    /// usually absent and an idle connection should be small.
    pub(super) ip_permit: Option<Box<ConnectionPermit>>,
}

impl Drain {
    pub(crate) fn open(
        self: &Arc<Self>,
        permit: impl Into<Option<OwnedSemaphorePermit>>,
    ) -> OpenConnection {
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenConnection {
            drain: Arc::clone(self),
            _permit: permit.into(),
            ip_permit: None,
        }
    }

    /// Whether each response should be the last one on its connection.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Changes when the drain begins.
    pub(crate) fn stage(&self) -> watch::Receiver<ServingStage> {
        self.stage.subscribe()
    }

    /// Waits until the drain has begun, and `idle` has passed: a client that has not yet spoken has
    /// as much time as an idle connection.
    pub(super) async fn end_of_handshakes(&self, idle: Duration) {
        let mut stage = self.stage();
        // The sender is in `self`, so it is not gone.
        let _ = stage.wait_for(|now| *now != ServingStage::Serves).await;
        tokio::time::sleep(idle).await;
    }

    pub(crate) fn count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    fn count_closed(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
        self.closed.notify_one();
    }

    /// Whether idle connections should close too.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Makes each response the last one on its connection.
    pub(super) fn begin(&self, sweep: &Sweep, lifecycle: Lifecycle) {
        // `SeqCst`, because of connections that other workers hand off to this one: either the
        // other worker sees the drain, or the drain sees the connection.
        self.draining.store(true, Ordering::SeqCst);
        self.stage.send_replace(match lifecycle {
            Lifecycle::HandOver | Lifecycle::Stop { yields: true } => ServingStage::HandsOver,
            _ => ServingStage::Ends,
        });
        sweep.wake_all();
    }

    /// Waits until all connections have ended, once a drain has begun. Returns how many are open
    /// at the deadline.
    pub(crate) async fn finish(&self, sweep: &Sweep, deadlines: Deadlines) -> usize {
        let idle = deadlines.idle.min(deadlines.all);
        self.wait_until_closed(idle).await;
        self.closing.store(true, Ordering::Relaxed);
        sweep.wake_all();
        self.wait_until_closed(deadlines.all - idle).await;
        self.open.load(Ordering::Relaxed)
    }

    /// Whether every connection should end at once.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// Ends the connections that are still open.
    pub(crate) async fn cut(&self, sweep: &Sweep) {
        self.cut.store(true, Ordering::Relaxed);
        sweep.wake_all();
        self.wait_until_closed(CUT_TIMEOUT).await;
    }

    async fn wait_until_closed(&self, timeout: Duration) {
        let all_closed = async {
            while self.open.load(Ordering::SeqCst) > 0 {
                self.closed.notified().await;
            }
        };
        // The caller reads the count, so the timeout needs no report.
        let _ = tokio::time::timeout(timeout, all_closed).await;
    }
}

impl OpenConnection {
    pub(crate) fn move_to(&mut self, other: &Arc<Drain>) {
        other.open.fetch_add(1, Ordering::SeqCst);
        std::mem::replace(&mut self.drain, Arc::clone(other)).count_closed();
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.drain.count_closed();
    }
}

/// The number of connections of each address, for `max_connections_per_ip`. It changes only when a
/// connection begins or ends.
#[derive(Debug, Default)]
pub(crate) struct ConnectionsPerIp(Mutex<HashMap<IpAddr, usize>>);

/// One counted connection of an address; dropping it ends the count.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    per_ip: Arc<ConnectionsPerIp>,
    client: IpAddr,
}

impl ConnectionsPerIp {
    pub(crate) fn take(
        self: &Arc<ConnectionsPerIp>,
        ip: IpAddr,
        most: usize,
    ) -> Option<ConnectionPermit> {
        let client = client_network(ip);
        let mut counts = lock(&self.0);
        let count = counts.entry(client).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(ConnectionPermit {
            per_ip: Arc::clone(self),
            client,
        })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = lock(&self.per_ip.0);
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

/// The first address of the network that one client may own.
fn client_network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => {
            let bits = ip.to_bits() >> IPV6_BITS << IPV6_BITS;
            IpAddr::V6(Ipv6Addr::from_bits(bits))
        }
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn an_address_has_its_places_and_gives_them_back() {
        let per_ip = Arc::new(ConnectionsPerIp::default());

        let take = |ip: &str| per_ip.take(ip.parse().unwrap(), 2);
        let first = take("192.0.2.1");
        let _second = take("::ffff:192.0.2.1");
        assert!(first.is_some() && take("192.0.2.1").is_none());
        assert!(take("192.0.2.2").is_some(), "others have their own");
        drop(first);
        assert!(take("192.0.2.1").is_some());
        let _of_one_network = (take("2001:db8::1"), take("2001:db8::2:3"));
        let third = (take("2001:db8::9"), take("2001:db8:0:1::1"));
        assert!(third.0.is_none() && third.1.is_some());
        drop((_second, _of_one_network, third));
        assert!(lock(&per_ip.0).is_empty());
    }
}
