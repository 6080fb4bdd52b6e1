//! Frames of connections, RFC 9113 sections 6.5 to 6.9; and field blocks, RFC 7541.

use super::super::raw::{GOAWAY, HEADERS, PING, REQUEST, SETTINGS, WINDOW_UPDATE, block, frame};
use super::Expected::{End, EndAs, Reset, Serve};
use super::{
    COMPRESSION, FLOW_CONTROL, FRAME_SIZE, PROTOCOL, WHOLE, fields, open, run, setting, window,
};

#[test]
fn frames_of_connections_are_read_as_section_6_says() {
    const MOST: u32 = (1 << 31) - 1;
    run(&[
        (
            "6.5",
            "an acknowledgement with a payload",
            frame(SETTINGS, 1, 0, &[0; 6]),
            EndAs(FRAME_SIZE),
        ),
        (
            "6.5",
            "SETTINGS on a stream",
            frame(SETTINGS, 0, 1, &[]),
            End(PROTOCOL),
        ),
        (
            "6.5",
            "SETTINGS of 3 bytes",
            frame(SETTINGS, 0, 0, &[0; 3]),
            EndAs(FRAME_SIZE),
        ),
        ("6.5.2", "ENABLE_PUSH 2", setting(2, 2), End(PROTOCOL)),
        (
            "6.5.2",
            "INITIAL_WINDOW_SIZE 2^31",
            setting(4, 1 << 31),
            EndAs(FLOW_CONTROL),
        ),
        (
            "6.5.2",
            "MAX_FRAME_SIZE 16383",
            setting(5, 16383),
            End(PROTOCOL),
        ),
        (
            "6.5.2",
            "MAX_FRAME_SIZE 2^24",
            setting(5, 1 << 24),
            End(PROTOCOL),
        ),
        ("6.5.2", "an unknown setting", setting(0xff, 1), Serve),
        ("6.5.2", "HEADER_TABLE_SIZE 0", setting(1, 0), Serve),
        (
            "6.7",
            "an acknowledgement of no PING",
            frame(PING, 1, 0, &[0; 8]),
            Serve,
        ),
        (
            "6.7",
            "PING on a stream",
            frame(PING, 0, 1, &[0; 8]),
            End(PROTOCOL),
        ),
        (
            "6.7",
            "PING of 6 bytes",
            frame(PING, 0, 0, &[0; 6]),
            EndAs(FRAME_SIZE),
        ),
        (
            "6.8",
            "GOAWAY on a stream",
            frame(GOAWAY, 0, 1, &[0; 8]),
            End(PROTOCOL),
        ),
        ("6.9", "WINDOW_UPDATE of 0", window(0, 0), End(PROTOCOL)),
        (
            "6.9",
            "WINDOW_UPDATE of 0 on a stream",
            [open(1), window(1, 0)].concat(),
            End(PROTOCOL),
        ),
        (
            "6.9",
            "WINDOW_UPDATE of 3 bytes",
            frame(WINDOW_UPDATE, 0, 0, &[0; 3]),
            EndAs(FRAME_SIZE),
        ),
        (
            "6.9.1",
            "a window that is too large",
            [window(0, MOST), window(0, MOST)].concat(),
            End(FLOW_CONTROL),
        ),
        (
            "6.9.1",
            "a stream's window that is too large",
            [open(1), window(1, MOST), window(1, MOST)].concat(),
            Reset(FLOW_CONTROL),
        ),
        (
            "6.9.2",
            "a setting that makes a window too large",
            [open(1), window(1, MOST - 65535), setting(4, 65536)].concat(),
            End(FLOW_CONTROL),
        ),
    ]);
}

#[test]
fn field_blocks_are_read_as_rfc_7541_says() {
    let tabled = fields(b"\x40\x03x-a\x011\xbe");
    run(&[
        (
            "6.1",
            "an entry of the static table",
            fields(b"\x90"),
            Serve,
        ),
        ("6.1", "an entry of the dynamic table", tabled, Serve),
        ("6.1", "index 0", fields(b"\x80"), EndAs(COMPRESSION)),
        (
            "2.3.3",
            "an index behind both tables",
            fields(b"\xbe"),
            EndAs(COMPRESSION),
        ),
        (
            "2.3.3",
            "a name behind both tables",
            fields(b"\x7e\x01a"),
            EndAs(COMPRESSION),
        ),
        (
            "6.2.1",
            "a known name, indexed",
            fields(b"\x7a\x01a"),
            Serve,
        ),
        (
            "6.2.2",
            "a new name, not indexed",
            fields(b"\x00\x03x-b\x011"),
            Serve,
        ),
        (
            "6.2.3",
            "a new name, never indexed",
            fields(b"\x10\x03x-c\x011"),
            Serve,
        ),
        (
            "4.2",
            "a size behind a field",
            fields(b"\x20"),
            EndAs(COMPRESSION),
        ),
        (
            "6.3",
            "two sizes before a field",
            frame(
                HEADERS,
                WHOLE,
                1,
                &[&b"\x20\x3f\x01"[..], &block(&REQUEST)].concat(),
            ),
            Serve,
        ),
        (
            "6.3",
            "a size above the setting",
            frame(
                HEADERS,
                WHOLE,
                1,
                &[&b"\x3f\xe2\x1f"[..], &block(&REQUEST)].concat(),
            ),
            EndAs(COMPRESSION),
        ),
        (
            "5.1",
            "an integer that is too long",
            fields(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
            EndAs(COMPRESSION),
        ),
        (
            "5.2",
            "a string that is cut",
            fields(b"\x00\x03x-d\x05ab"),
            EndAs(COMPRESSION),
        ),
        // `a` is the code 00011.
        (
            "5.2",
            "a string in Huffman code",
            fields(b"\x00\x03x-e\x81\x1f"),
            Serve,
        ),
        (
            "5.2",
            "padding of more than 7 bits",
            fields(b"\x00\x03x-f\x82\x1f\xff"),
            EndAs(COMPRESSION),
        ),
        (
            "5.2",
            "padding of zeros",
            fields(b"\x00\x03x-g\x81\x18"),
            EndAs(COMPRESSION),
        ),
        (
            "5.2",
            "the code of the end",
            fields(b"\x00\x03x-h\x84\xff\xff\xff\xff"),
            EndAs(COMPRESSION),
        ),
    ]);
}
