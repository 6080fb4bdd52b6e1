//! A client of HTTP/2 that sends exactly the frames it is told to.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::house::PATIENCE;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// The error that a RST_STREAM or a GOAWAY gives.
    pub fn error(&self) -> u32 {
        let last = self.payload.len().min(8) - 4;
        u32::from_be_bytes(self.payload[last..last + 4].try_into().unwrap())
    }
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A number with a prefix of seven bits (RFC 7541 section 5.1).
fn length(bytes: &mut Vec<u8>, mut number: usize) {
    if number < 127 {
        return bytes.push(u8::try_from(number).unwrap());
    }
    bytes.push(127);
    number -= 127;
    while number >= 128 {
        bytes.push(u8::try_from(number % 128).unwrap() | 128);
        number /= 128;
    }
    bytes.push(u8::try_from(number).unwrap());
}

/// Header lines as literals that nobody remembers.
pub fn block(lines: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in lines {
        bytes.push(0);
        length(&mut bytes, name.len());
        bytes.extend(name.as_bytes());
        length(&mut bytes, value.len());
        bytes.extend(value.as_bytes());
    }
    bytes
}

/// The head of a request as it should be.
pub const REQUEST: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":authority", "test"),
    (":path", "/a"),
];

pub struct Raw {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl Raw {
    /// A connection on which nothing has been sent.
    pub fn silent(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Raw::over(stream)
    }

    /// One that stands, at either end.
    pub fn over(stream: TcpStream) -> Raw {
        Raw {
            stream,
            buffer: Vec::new(),
        }
    }

    /// Reads so many bytes that are no frames.
    pub fn skip(&mut self, bytes: usize) {
        let mut skipped = vec![0; bytes];
        self.stream.read_exact(&mut skipped).unwrap();
    }

    /// One that has begun as every client does, with these settings.
    pub fn to(address: SocketAddr, settings: &[u8]) -> Raw {
        let mut raw = Raw::silent(address);
        raw.send(&[PREFACE, &frame(SETTINGS, 0, 0, settings)].concat());
        raw
    }

    /// Sends; whether there was anybody to send to.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Sends a request without a body.
    pub fn ask(&mut self, stream: u32, lines: &[(&str, &str)]) -> bool {
        self.send(&frame(
            HEADERS,
            END_STREAM | END_HEADERS,
            stream,
            &block(lines),
        ))
    }

    /// The next frame; nothing at the connection's end. Pings are answered.
    pub fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.take() {
                if frame.kind == PING && frame.flags == 0 {
                    self.send(&self::frame(PING, 1, 0, &frame.payload));
                }
                return Some(frame);
            }
            let mut chunk = [0; 16 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(read) => self.buffer.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    fn take(&mut self) -> Option<Frame> {
        let head = self.buffer.get(..9)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes(head[5..9].try_into().unwrap());
        let payload = self.buffer.get(9..9 + length)?.to_vec();
        self.buffer.drain(..9 + length);
        Some(Frame {
            kind,
            flags,
            stream,
            payload,
        })
    }

    /// The next frame of one of these kinds.
    pub fn until(&mut self, kinds: &[u8]) -> Option<Frame> {
        loop {
            let frame = self.next()?;
            if kinds.contains(&frame.kind) {
                return Some(frame);
            }
        }
    }

    /// Reads to the connection's end; the error that it was given as the reason, if any.
    pub fn goodbye(&mut self) -> Option<u32> {
        let mut error = None;
        while let Some(frame) = self.next() {
            if frame.kind == GOAWAY {
                error = Some(frame.error());
            }
        }
        error
    }
}
