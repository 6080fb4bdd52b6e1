//! Upstream servers that play a script: sockets, and nothing that understands HTTP.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::config::{ServerAddress, UpstreamSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::house::PATIENCE;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(20);
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(40);

/// What an upstream does on a connection, one after the other; at the script's end it closes.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// Reads until this has come.
    Until(&'static str),
    Send(&'static str),
    /// Sends this again and again until nobody takes it.
    Flood(&'static str),
    /// Waits for [`Upstream::go_on`].
    Hold,
    /// Ends its side, and goes on reading.
    End,
    Reset,
    /// Waits until the proxy closes.
    Stay,
}
/// The end of a head without a body.
pub(crate) const HEAD: Step = Step::Until("\r\n\r\n");

#[derive(Default)]
struct Seen {
    accepted: Mutex<usize>,
    heard: Mutex<String>,
    closed: Mutex<usize>,
    change: Notify,
    go_on: Notify,
}

/// A server on a port of its own. The first connection gets the first script, and so on; the last
/// script is for all that follow.
pub(crate) struct Upstream {
    /// On 127.0.0.1.
    pub(crate) port: u16,
    seen: Arc<Seen>,
}

impl Upstream {
    pub(crate) async fn start(scripts: &[&[Step]]) -> Upstream {
        let scripts: Vec<Vec<Step>> = scripts.iter().map(|script| script.to_vec()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let port = listener.local_addr().expect("a socket").port();
        let seen = Arc::new(Seen::default());
        let upstream = Upstream {
            port,
            seen: Arc::clone(&seen),
        };
        tokio::spawn(async move {
            for index in 0.. {
                let (stream, _) = listener.accept().await.expect("a socket");
                *seen.accepted.lock().expect("nobody panicked") += 1;
                seen.change.notify_waiters();
                let script = scripts[index.min(scripts.len() - 1)].clone();
                tokio::spawn(play(stream, script, Arc::clone(&seen)));
            }
        });
        upstream
    }

    pub(crate) fn accepted(&self) -> usize {
        *self.seen.accepted.lock().expect("nobody panicked")
    }

    pub(crate) fn heard(&self) -> String {
        self.seen.heard.lock().expect("nobody panicked").clone()
    }

    pub(crate) fn go_on(&self) {
        self.seen.go_on.notify_one();
    }

    /// Waits until `what` holds of what has been seen.
    async fn wait(&self, what: impl Fn(&Seen) -> bool) {
        let waiting = async {
            loop {
                let change = self.seen.change.notified();
                if what(&self.seen) {
                    return;
                }
                change.await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting)
            .await
            .expect("never came");
    }

    pub(crate) async fn wait_for(&self, text: &str) {
        self.wait(|seen| seen.heard.lock().expect("nobody panicked").contains(text))
            .await;
    }

    pub(crate) async fn wait_closed(&self, connections: usize) {
        self.wait(|seen| *seen.closed.lock().expect("nobody panicked") == connections)
            .await;
    }
}

async fn play(mut stream: TcpStream, script: Vec<Step>, seen: Arc<Seen>) {
    let mut read = String::new();
    for step in script {
        match step {
            Step::Until(end) => {
                while !read.contains(end) {
                    if !hear(&mut stream, &mut read, &seen).await {
                        break;
                    }
                }
                let at = read.find(end).map_or(read.len(), |at| at + end.len());
                read.drain(..at);
            }
            Step::Send(text) => {
                let _ = stream.write_all(text.as_bytes()).await;
                // Let it arrive on its own.
                tokio::task::yield_now().await;
            }
            Step::Flood(text) => while stream.write_all(text.as_bytes()).await.is_ok() {},
            Step::Hold => seen.go_on.notified().await,
            Step::End => drop(stream.shutdown().await),
            Step::Reset => stream.set_zero_linger().expect("a socket"),
            Step::Stay => while hear(&mut stream, &mut read, &seen).await {},
        }
    }
    drop(stream);
    *seen.closed.lock().expect("nobody panicked") += 1;
    seen.change.notify_waiters();
}

async fn hear(stream: &mut TcpStream, read: &mut String, seen: &Seen) -> bool {
    let mut buffer = [0; 4096];
    let Ok(length @ 1..) = stream.read(&mut buffer).await else {
        return false;
    };
    let text = std::str::from_utf8(&buffer[..length]).expect("a socket");
    read.push_str(text);
    seen.heard.lock().expect("nobody panicked").push_str(text);
    seen.change.notify_waiters();
    true
}

/// Settings for servers on these ports of 127.0.0.1.
pub(crate) fn settings(ports: &[u16]) -> UpstreamSettings {
    let server = |&port| ServerAddress::Http("127.0.0.1".to_owned(), port).into();
    let servers = ports.iter().map(server).collect();
    UpstreamSettings {
        timeout: TIMEOUT,
        body_timeout: BODY_TIMEOUT,
        idle_timeout: IDLE_TIMEOUT,
        max_idle: 8,
        max_connections: 8,
        ..UpstreamSettings::new("app", servers)
    }
}
