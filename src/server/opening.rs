//! The first bytes of a client's connection: a PROXY header, and the preface of HTTP/2.
//!
//! A balancer sends a PROXY header (version 1 or 2, as HAProxy specifies them) to tell the address
//! of the client. Only a header from a trusted peer is read. No byte after the header is taken from
//! the socket, because TLS may follow.
//!
//! A client of HTTP/2 without TLS begins with a preface, with which no request of HTTP/1 begins
//! (RFC 9113 section 3.4). Silence has the idle timeout, and a part of a preface has that of a
//! head.

use std::future::{Future, poll_fn};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use super::active_config::ActiveConfig;
use super::drain::Drain;
use super::phase::Phase;
use crate::client::proxy_header::{ProxyHeader, parse};
use crate::clock::Alarm;
use crate::config::ProxyProtocol;
use crate::wire::Stream;

/// The first bytes of an HTTP/2 connection.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first line of the preface, which no client of HTTP/1 sends.
const PREFACE_LINE: &[u8] = b"PRI * HTTP/2.0\r\n";
/// Bytes of one read. Most heads fit.
const READ_BYTES: usize = 4096;
/// Bytes of one look for a PROXY header.
const PEEK_BYTES: usize = 512;

/// The PROXY header of a connection, or its absence.
#[derive(Debug, Default)]
pub(super) struct ReceivedProxyHeader {
    /// The address of the client.
    pub(super) ip: Option<IpAddr>,
    /// Bytes that were read and are not a header.
    pub(super) ahead: Vec<u8>,
}

/// Reads the PROXY header, if the configuration allows `peer` to send one. Returns `None` if the
/// connection must be closed: the header is required and absent, malformed, or late.
pub(super) async fn read_proxy_header(
    stream: &mut Stream,
    peer: IpAddr,
    config: &ActiveConfig,
    drain: &Drain,
    alarm: &Alarm,
) -> Option<ReceivedProxyHeader> {
    let mode = config.settings.proxy_protocol;
    if mode == ProxyProtocol::Off {
        return Some(ReceivedProxyHeader::default());
    }
    if !config.proxy.trusts(peer) {
        return (mode == ProxyProtocol::Optional).then(ReceivedProxyHeader::default);
    }
    let timeout = config.settings.header_timeout;
    if mode == ProxyProtocol::Required {
        alarm.arm(timeout);
    }
    let mut parsing = pin!(parse_proxy_header(stream, mode, alarm, timeout));
    let header = poll_fn(|context| {
        if let Poll::Ready(header) = parsing.as_mut().poll(context) {
            return Poll::Ready(header);
        }
        if drain.is_closing() {
            return Poll::Ready(None);
        }
        alarm.poll(context).map(|()| None)
    })
    .await;
    if header.is_none() {
        tracing::debug!("a trusted peer sent no PROXY header that can be understood");
    }
    header
}

/// Starts the deadline `timeout` at the first byte.
async fn parse_proxy_header(
    stream: &mut Stream,
    mode: ProxyProtocol,
    alarm: &Alarm,
    timeout: Duration,
) -> Option<ReceivedProxyHeader> {
    let mut bytes = Vec::new();
    loop {
        let known = bytes.len();
        let mut buf = [0; PEEK_BYTES];
        let length = stream.peek(&mut buf).await.ok();
        let length = length.filter(|length| *length > 0)?;
        if known == 0 {
            alarm.arm(timeout);
        }
        bytes.extend_from_slice(&buf[..length]);
        match parse(&bytes) {
            ProxyHeader::Header(header_length, ip) => {
                let rest = &mut buf[..header_length - known];
                stream.read_exact(rest).await.ok()?;
                return Some(ReceivedProxyHeader {
                    ip: ip.map(|ip| ip.to_canonical()),
                    ahead: Vec::new(),
                });
            }
            ProxyHeader::Part => {
                stream.read_exact(&mut buf[..length]).await.ok()?;
            }
            ProxyHeader::Other if mode == ProxyProtocol::Optional => {
                bytes.truncate(known);
                return Some(ReceivedProxyHeader {
                    ip: None,
                    ahead: bytes,
                });
            }
            ProxyHeader::Other | ProxyHeader::Broken => return None,
        }
    }
}

/// The version of HTTP of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Http1,
    Http2,
}

/// The version of a connection that begins with `ahead`; `None` while both are possible.
fn version(ahead: &[u8]) -> Option<Version> {
    let common = ahead.len().min(PREFACE.len());
    let is_preface = ahead[..common] == PREFACE[..common];
    match is_preface {
        true if common < PREFACE.len() => None,
        true => Some(Version::Http2),
        // The HTTP/2 connection then ends with a protocol error.
        false if ahead.starts_with(PREFACE_LINE) => Some(Version::Http2),
        false => Some(Version::Http1),
    }
}

/// Reads from `stream` behind `ahead` until the version is known. Returns all bytes that were read;
/// `None` if the client has left or was silent for too long.
pub(super) async fn detect_version(
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
                // HTTP/1 has an answer for a head that does not come.
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
