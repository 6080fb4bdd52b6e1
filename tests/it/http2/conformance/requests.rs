//! Frames of requests: RFC 9113 sections 6.1 to 6.4, 6.6, 6.10, 7 and 8.

use super::super::raw::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, REQUEST, RST_STREAM, block, frame,
};
use super::Expected::{End, EndAs, EndUnread, Reset, Serve};
use super::{
    FRAME_SIZE, PADDED, PRIORITY, PROTOCOL, PUSH_PROMISE, WHOLE, WITH_PRIORITY, open, reset, run,
    whole,
};

#[test]
fn frames_of_requests_are_read_as_section_6_says() {
    let half = frame(HEADERS, END_STREAM, 1, &block(&REQUEST));
    let rest = frame(CONTINUATION, END_HEADERS, 1, &block(&[("x-a", "1")]));
    let more = frame(CONTINUATION, 0, 1, b"");
    let padded = [&[2][..], &block(&REQUEST), &[0, 0]].concat();
    let both = [&[1, 0, 0, 0, 0, 15][..], &block(&REQUEST), &[0]].concat();
    let depends_on_itself = [&[0, 0, 0, 1, 15][..], &block(&REQUEST)].concat();
    run(&[
        (
            "6.1",
            "DATA on stream 0",
            frame(DATA, 0, 0, b"x"),
            End(PROTOCOL),
        ),
        (
            "6.1",
            "padded DATA",
            [open(1), frame(DATA, PADDED | END_STREAM, 1, b"\x02x\0\0")].concat(),
            Serve,
        ),
        (
            "6.1",
            "padding as long as DATA",
            [open(1), frame(DATA, PADDED, 1, b"\x03ab")].concat(),
            End(PROTOCOL),
        ),
        (
            "6.1",
            "padding without its length",
            [open(1), frame(DATA, PADDED, 1, b"")].concat(),
            EndUnread,
        ),
        ("6.2", "HEADERS on stream 0", whole(0), End(PROTOCOL)),
        (
            "6.2",
            "padded HEADERS",
            frame(HEADERS, WHOLE | PADDED, 1, &padded),
            Serve,
        ),
        (
            "6.2",
            "padding and priority",
            frame(HEADERS, WHOLE | PADDED | WITH_PRIORITY, 1, &both),
            Serve,
        ),
        (
            "6.2",
            "padding as long as HEADERS",
            frame(HEADERS, WHOLE | PADDED, 1, b"\x04abc"),
            End(PROTOCOL),
        ),
        (
            "6.2",
            "a priority that is cut",
            frame(HEADERS, WHOLE | WITH_PRIORITY, 1, &[0; 3]),
            EndUnread,
        ),
        (
            "5.3.1",
            "HEADERS that depend on themselves",
            frame(HEADERS, WHOLE | WITH_PRIORITY, 1, &depends_on_itself),
            Reset(PROTOCOL),
        ),
        (
            "6.3",
            "PRIORITY on stream 0",
            frame(PRIORITY, 0, 0, &[0; 5]),
            End(PROTOCOL),
        ),
        (
            "6.3",
            "PRIORITY of 4 bytes",
            [open(1), frame(PRIORITY, 0, 1, &[0; 4])].concat(),
            EndAs(FRAME_SIZE),
        ),
        ("6.4", "RST_STREAM on stream 0", reset(0), End(PROTOCOL)),
        (
            "6.4",
            "RST_STREAM of 3 bytes",
            [open(1), frame(RST_STREAM, 0, 1, &[0; 3])].concat(),
            EndAs(FRAME_SIZE),
        ),
        (
            "6.6",
            "PUSH_PROMISE",
            [
                open(1),
                frame(
                    PUSH_PROMISE,
                    END_HEADERS,
                    1,
                    &[&[0, 0, 0, 2][..], &block(&REQUEST)].concat(),
                ),
            ]
            .concat(),
            End(PROTOCOL),
        ),
        (
            "6.10",
            "two CONTINUATIONs",
            [half.clone(), more.clone(), rest.clone()].concat(),
            Serve,
        ),
        (
            "6.10",
            "DATA in a block",
            [half.clone(), more.clone(), frame(DATA, 0, 1, b"")].concat(),
            End(PROTOCOL),
        ),
        (
            "6.10",
            "CONTINUATION on stream 0",
            [half.clone(), frame(CONTINUATION, END_HEADERS, 0, b"")].concat(),
            End(PROTOCOL),
        ),
        (
            "6.10",
            "CONTINUATION of another stream",
            [half.clone(), frame(CONTINUATION, END_HEADERS, 3, b"")].concat(),
            End(PROTOCOL),
        ),
        (
            "6.10",
            "CONTINUATION behind a whole head",
            [open(1), rest.clone()].concat(),
            End(PROTOCOL),
        ),
        (
            "6.10",
            "CONTINUATION behind the last",
            [half, rest.clone(), rest.clone()].concat(),
            End(PROTOCOL),
        ),
        (
            "6.10",
            "CONTINUATION behind DATA",
            [open(1), frame(DATA, 0, 1, b"x"), rest].concat(),
            End(PROTOCOL),
        ),
        (
            "7",
            "RST_STREAM with an unknown error",
            [open(1), frame(RST_STREAM, 0, 1, &[0xff; 4])].concat(),
            Serve,
        ),
        (
            "8.1",
            "a second head that ends nothing",
            [open(1), open(1)].concat(),
            Reset(PROTOCOL),
        ),
    ]);
}
