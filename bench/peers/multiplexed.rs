//! Load over HTTP/2 with prior knowledge: each stream asks again as soon as it is answered.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

/// What came back in the measured part.
#[derive(Clone, Copy, Debug, Default)]
pub struct Came {
    pub requests: u64,
    pub seconds: f64,
    /// Answers that were not 200, or none at all.
    pub wrong: u64,
}

/// Connections, and streams on each.
pub type Shape = (usize, usize);

/// Asks for so long, and calls `begin` when the part that counts begins.
pub fn run(
    address: SocketAddr,
    (connections, streams): Shape,
    (warm, measured): (Duration, Duration),
    begin: impl FnOnce(),
) -> Result<Came, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let counts = Rc::new(Counts::default());
    LocalSet::new().block_on(&runtime, async {
        for _ in 0..connections {
            let sender = connect(address).await.map_err(|error| error.to_string())?;
            for _ in 0..streams {
                tokio::task::spawn_local(stream(sender.clone(), address, Rc::clone(&counts)));
            }
        }
        tokio::time::sleep(warm).await;
        begin();
        let (before, start) = (counts.read(), Instant::now());
        tokio::time::sleep(measured).await;
        let after = counts.read();
        Ok(Came {
            requests: after.0 - before.0,
            seconds: start.elapsed().as_secs_f64(),
            wrong: after.1,
        })
    })
}

#[derive(Default)]
struct Counts {
    answers: Cell<u64>,
    wrong: Cell<u64>,
}

impl Counts {
    fn read(&self) -> (u64, u64) {
        (self.answers.get(), self.wrong.get())
    }
}

type Sender = SendRequest<Empty<Bytes>>;
type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn connect(address: SocketAddr) -> Result<Sender, Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn stream(mut sender: Sender, address: SocketAddr, counts: Rc<Counts>) {
    loop {
        let right = ask(&mut sender, address).await;
        if !matches!(right, Ok(true)) {
            counts.wrong.set(counts.wrong.get() + 1);
        }
        if right.is_err() {
            return;
        }
        counts.answers.set(counts.answers.get() + 1);
    }
}

async fn ask(sender: &mut Sender, address: SocketAddr) -> Result<bool, Failure> {
    let request = Request::get(format!("http://{address}/")).body(Empty::new())?;
    sender.ready().await?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    response.into_body().collect().await?;
    Ok(status == StatusCode::OK)
}
