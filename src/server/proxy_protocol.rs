//! The PROXY protocol: what a balancer in front of us says of the client whose connection it
//! passes on, before the client's own first byte (versions 1 and 2, as HAProxy specifies them).
//!
//! Only a peer that may speak for others is listened to. Nothing behind the header is taken from
//! the socket, since TLS may follow; the header is bounded in length and in time.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::drain::Drain;
use crate::client::proxy_header::{ProxyHeader, parse};
use crate::clock::Alarm;
use crate::config::ProxyProtocol;
use crate::wire::Stream;

/// Bytes looked at in one go.
const LOOK_BYTES: usize = 512;

/// How a connection began.
#[derive(Debug, Default)]
pub(super) struct Began {
    /// Who is said to be behind the peer.
    pub(super) ip: Option<IpAddr>,
    /// What was read of it and is no header.
    pub(super) ahead: Vec<u8>,
}

/// Reads the header of a peer that is trusted. Nothing if there is none where one is required, if
/// it cannot be understood, or if it does not come within `timeout` of its first byte.
pub(super) async fn read(
    stream: &mut Stream,
    mode: ProxyProtocol,
    alarm: &Alarm,
    timeout: Duration,
    drain: &Drain,
) -> Option<Began> {
    if mode == ProxyProtocol::Required {
        alarm.arm(timeout);
    }
    let mut reading = pin!(read_header(stream, mode, alarm, timeout));
    let began = poll_fn(|context| {
        if let Poll::Ready(began) = reading.as_mut().poll(context) {
            return Poll::Ready(began);
        }
        if drain.is_closing() {
            return Poll::Ready(None);
        }
        alarm.poll(context).map(|()| None)
    })
    .await;
    if began.is_none() {
        tracing::debug!("a trusted peer sent no PROXY header that can be understood");
    }
    began
}

async fn read_header(
    stream: &mut Stream,
    mode: ProxyProtocol,
    alarm: &Alarm,
    timeout: Duration,
) -> Option<Began> {
    let mut bytes = Vec::new();
    loop {
        let known = bytes.len();
        let mut look = [0; LOOK_BYTES];
        let seen = stream.peek(&mut look).await.ok().filter(|seen| *seen > 0)?;
        if known == 0 {
            alarm.arm(timeout);
        }
        bytes.extend_from_slice(&look[..seen]);
        match parse(&bytes) {
            ProxyHeader::Header(length, ip) => {
                stream.read_exact(&mut look[..length - known]).await.ok()?;
                let ahead = Vec::new();
                return Some(Began { ip, ahead });
            }
            ProxyHeader::Part => {
                stream.read_exact(&mut look[..seen]).await.ok()?;
            }
            ProxyHeader::Other if mode == ProxyProtocol::Optional => {
                bytes.truncate(known);
                let (ip, ahead) = (None, bytes);
                return Some(Began { ip, ahead });
            }
            ProxyHeader::Other | ProxyHeader::Broken => return None,
        }
    }
}
