//! Frames, and the states of streams: RFC 9113 sections 4 and 5.

use super::super::raw::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, REQUEST, SETTINGS, block, frame,
};
use super::Expected::{End, EndAs, EndUnread, Reset, Serve};
use super::{
    COMPRESSION, PRIORITY, PROTOCOL, STREAM_CLOSED, WHOLE, open, reset, run, whole, window,
};

#[test]
fn frames_are_read_as_sections_4_and_5_say() {
    let unknown = frame(0x77, 0xff, 0, b"extension");
    let half = frame(HEADERS, END_STREAM, 1, &block(&REQUEST));
    run(&[
        ("4.1", "an unknown type", unknown.clone(), Serve),
        (
            "4.1",
            "undefined flags",
            frame(PING, 0xfe, 0, &[0; 8]),
            Serve,
        ),
        (
            "4.1",
            "the reserved bit",
            frame(PING, 0, 1 << 31, &[0; 8]),
            Serve,
        ),
        (
            "4.2",
            "the largest DATA",
            [open(1), frame(DATA, END_STREAM, 1, &[0; 16384])].concat(),
            Serve,
        ),
        (
            "4.2",
            "a larger DATA",
            [open(1), frame(DATA, 0, 1, &[0; 16385])].concat(),
            EndUnread,
        ),
        (
            "4.2",
            "a larger HEADERS",
            frame(HEADERS, WHOLE, 1, &[0; 16385]),
            EndUnread,
        ),
        (
            "4.2",
            "a larger SETTINGS",
            frame(SETTINGS, 0, 0, &[0; 16386]),
            EndUnread,
        ),
        (
            "4.3",
            "a block that cannot be read",
            frame(HEADERS, WHOLE, 1, &[0xff; 4]),
            EndAs(COMPRESSION),
        ),
        (
            "4.3",
            "PRIORITY in a block",
            [half.clone(), frame(PRIORITY, 0, 1, &[0; 5])].concat(),
            End(PROTOCOL),
        ),
        (
            "4.3",
            "HEADERS in a block",
            [half.clone(), whole(3)].concat(),
            End(PROTOCOL),
        ),
        (
            "5.1",
            "DATA, idle",
            frame(DATA, END_STREAM, 1, b"x"),
            End(PROTOCOL),
        ),
        ("5.1", "RST_STREAM, idle", reset(1), End(PROTOCOL)),
        ("5.1", "WINDOW_UPDATE, idle", window(1, 9), End(PROTOCOL)),
        (
            "5.1",
            "CONTINUATION, idle",
            frame(CONTINUATION, END_HEADERS, 1, b""),
            End(PROTOCOL),
        ),
        (
            "5.1",
            "PRIORITY, idle",
            frame(PRIORITY, 0, 1, &[0; 5]),
            Serve,
        ),
        (
            "5.1",
            "DATA, half-closed",
            [whole(1), frame(DATA, END_STREAM, 1, b"x")].concat(),
            EndAs(STREAM_CLOSED),
        ),
        // A second head stands where trailers would, and its pseudo-header fields are malformed
        // there (section 8.1). That is found first, also where the stream has ended.
        (
            "5.1",
            "HEADERS, half-closed",
            [whole(1), whole(1)].concat(),
            Reset(PROTOCOL),
        ),
        (
            "5.1",
            "CONTINUATION, half-closed",
            [whole(1), frame(CONTINUATION, END_HEADERS, 1, b"")].concat(),
            End(PROTOCOL),
        ),
        (
            "5.1",
            "WINDOW_UPDATE, half-closed",
            [whole(1), window(1, 9)].concat(),
            Serve,
        ),
        (
            "5.1",
            "PRIORITY, half-closed",
            [whole(1), frame(PRIORITY, 0, 1, &[0; 5])].concat(),
            Serve,
        ),
        (
            "5.1",
            "DATA, reset",
            [open(1), reset(1), frame(DATA, 0, 1, b"x")].concat(),
            Reset(STREAM_CLOSED),
        ),
        (
            "5.1",
            "HEADERS, reset",
            [open(1), reset(1), whole(1)].concat(),
            Reset(PROTOCOL),
        ),
        (
            "5.1",
            "CONTINUATION, reset",
            [open(1), reset(1), frame(CONTINUATION, END_HEADERS, 1, b"")].concat(),
            End(PROTOCOL),
        ),
        (
            "5.1",
            "RST_STREAM, reset",
            [open(1), reset(1), reset(1)].concat(),
            Serve,
        ),
        (
            "5.1",
            "WINDOW_UPDATE, reset",
            [open(1), reset(1), window(1, 9)].concat(),
            Serve,
        ),
        ("5.1.1", "an even stream", whole(2), End(PROTOCOL)),
        // The section names a connection error. The request is not served either way.
        (
            "5.1.1",
            "a stream that was skipped",
            [whole(5), whole(1)].concat(),
            Reset(PROTOCOL),
        ),
        (
            "5.5",
            "an unknown type in a block",
            [half, unknown].concat(),
            End(PROTOCOL),
        ),
    ]);
}
