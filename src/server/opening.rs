//! How a client's connection opens: which version of HTTP its first bytes are.
//!
//! A client of HTTP/2 without TLS begins with a preface that no request of HTTP/1 begins with
//! (RFC 9113 section 3.4). What was read to tell them apart is handed on. Silence, and half a
//! preface, are waited for no longer than silence and half a head are.

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};

use super::active_config::ActiveConfig;
use super::drain::Drain;
use super::phase::Phase;
use super::proxy_protocol;
use super::worker::Worker;
use crate::clock::Alarm;
use crate::config::ProxyProtocol;
use crate::proxy::Arrival;
use crate::wire::Stream;

/// What a connection of HTTP/2 begins with.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Its first line, which no client of HTTP/1 sends.
const PREFACE_LINE: &[u8] = b"PRI * HTTP/2.0\r\n";
/// Bytes that are read at once: most heads whole.
const READ_BYTES: usize = 4096;

/// A version of HTTP, in which connections differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Http1,
    Http2,
}

/// The version that a connection speaks which begins with `ahead`; nothing if either is possible.
fn version(ahead: &[u8]) -> Option<Version> {
    let common = ahead.len().min(PREFACE.len());
    if ahead.starts_with(PREFACE_LINE) && ahead[..common] != PREFACE[..common] {
        // It will be told in frames that this is no preface.
        Some(Version::Http2)
    } else if ahead[..common] != PREFACE[..common] {
        Some(Version::Http1)
    } else if common == PREFACE.len() {
        Some(Version::Http2)
    } else {
        None
    }
}

/// Reads from a connection in the clear who is behind it, where that is said, and corrects
/// `arrival`. Returns what was read and belongs to the client; nothing if the connection is not
/// to be served. Whatever else comes on it, comes after this.
pub(super) async fn announced(
    stream: &mut Stream,
    arrival: &mut Arrival,
    (began, drain): (&ActiveConfig, &Drain),
    alarm: &Alarm,
) -> Option<Vec<u8>> {
    let settings = &began.settings;
    let mode = settings.proxy_protocol;
    if mode == ProxyProtocol::Off {
        return Some(Vec::new());
    }
    if !began.proxy.trusts(arrival.ip) {
        return (mode == ProxyProtocol::Optional).then(Vec::new);
    }
    let timeout = settings.header_timeout;
    let announced = proxy_protocol::read(stream, mode, alarm, timeout, drain).await?;
    alarm.arm(settings.idle_timeout);
    if let Some(ip) = announced.ip {
        arrival.ip = ip.to_canonical();
    }
    Some(announced.ahead)
}

/// The same for a connection on which TLS is spoken after it, from the peer at `ip`.
pub(super) async fn before_tls(
    mut stream: Stream,
    ip: IpAddr,
    worker: &Worker,
) -> Option<(Stream, IpAddr)> {
    let began = worker.serving.load_full();
    if began.settings.proxy_protocol == ProxyProtocol::Off {
        return Some((stream, ip));
    }
    let alarm = worker.sweep.alarm();
    alarm.arm(began.settings.header_timeout);
    let mut arrival = Arrival::plain(ip);
    let asked = (&*began, &*worker.drain);
    let ahead = Box::pin(announced(&mut stream, &mut arrival, asked, &alarm)).await?;
    // What is no header and could have been one is no TLS either.
    ahead.is_empty().then_some((stream, arrival.ip))
}

/// Reads from `stream`, of which `ahead` has come, until its version is known, and returns what
/// was read. Nothing if the
/// client has gone before, or let too much time pass.
pub(super) async fn told_apart(
    stream: &mut Stream,
    mut ahead: Vec<u8>,
    phase: &Phase,
    drain: &Drain,
) -> Option<(Version, Bytes)> {
    if !ahead.is_empty()
        && let Some(version) = version(&ahead)
    {
        return Some((version, ahead.into()));
    }
    poll_fn(|context| {
        loop {
            let mut scratch = [MaybeUninit::uninit(); READ_BYTES];
            let mut buf = ReadBuf::uninit(&mut scratch);
            match Pin::new(&mut *stream).poll_read(context, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    if ahead.is_empty() {
                        phase.begin_head();
                    }
                    ahead.extend_from_slice(buf.filled());
                    if let Some(version) = version(&ahead) {
                        return Poll::Ready(Some(version));
                    }
                }
                Poll::Ready(_) => return Poll::Ready(None),
                Poll::Pending if drain.is_closing() => return Poll::Ready(None),
                // HTTP/1 has words for a head that does not come.
                Poll::Pending => {
                    let late = (!ahead.is_empty()).then_some(Version::Http1);
                    return phase.alarm.poll(context).map(|()| late);
                }
            }
        }
    })
    .await
    .map(|version| (version, ahead.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preface_alone_is_http_2_and_any_part_of_it_undecided() {
        for length in 0..PREFACE.len() {
            assert_eq!(version(&PREFACE[..length]), None);
        }
        assert_eq!(version(PREFACE), Some(Version::Http2));
        assert_eq!(version(&[PREFACE, b"more"].concat()), Some(Version::Http2));
        let wrong = b"PRI * HTTP/2.0\r\n\r\nSM\r\nX";
        assert_eq!(version(wrong), Some(Version::Http2));
        for other in ["G", "POST / HTTP/1.1", "PRI * HTTP/2.1", "\r\n", "\x16\x03"] {
            assert_eq!(version(other.as_bytes()), Some(Version::Http1), "{other}");
        }
    }
}
