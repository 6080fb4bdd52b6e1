//! Plain lines beside the same lines read in full.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

const DATE: &str = "[20/Nov/2026:00:00:07 +0000]";

/// What a line is read as, plain and in full, after a line of the same second.
fn both(line: &[u8], wanted: WantedFields) -> Option<(String, String)> {
    let mut dates = LineDates::default();
    let before = format!("192.0.2.1 - - {DATE} \"GET / HTTP/1.1\" 200 1");
    text::read_common(before.as_bytes(), &mut dates, wanted).unwrap();
    let plain = read_plain(line, &mut dates, wanted)?;
    let target = plain.target.to_owned();
    let said = (plain.at_us, IpAddr::from(plain.peer), plain.method, target);
    let said = format!("{said:?} {} {:?}", plain.status, plain.format);
    let (entry, format) = text::read_common(line, &mut dates, wanted).unwrap();
    assert!(entry.client.is_none() && entry.host.is_none() && entry.duration_us.is_none());
    assert!(entry.headers.is_empty());
    let full = (entry.at_us, entry.peer, entry.method, entry.target);
    Some((said, format!("{full:?} {} {format:?}", entry.status)))
}

const NOTHING: WantedFields = WantedFields {
    agents: false,
    extras: false,
};
const EXTRAS: WantedFields = WantedFields {
    agents: false,
    extras: true,
};

#[test]
fn lines_as_servers_write_them_are_plain() {
    let plain = |rest: &str, wanted| {
        let line = format!("198.51.100.24 - - {DATE} {rest}");
        let (plain, full) = both(line.as_bytes(), wanted)?;
        assert_eq!(plain, full);
        Some(())
    };
    for (rest, is_plain) in [
        ("\"GET /a?b=c HTTP/1.1\" 200 12", true),
        ("\"POST /a HTTP/2.0\" 404 - \"-\" \"curl/8\"", true),
        (
            "\"GET /a HTTP/1.1\" 200 12 \"http://x/\" \"a \\\"b\\\"\"",
            true,
        ),
        ("\"GET http://h/a HTTP/1.1\" 200 12", false),
        ("\"GET /\\x22 HTTP/1.1\" 200 12", false),
        ("\"GET /\u{e9} HTTP/1.1\" 200 12", false),
        ("\"GET /a\" 200 12", false),
        ("\"\\x16\\x03\" 400 0", false),
        ("\"GET / HTTP/1.1\" 2000 12", false),
    ] {
        assert_eq!(plain(rest, NOTHING).is_some(), is_plain, "{rest}");
    }
    let with = "\"GET / HTTP/1.1\" 200 12 \"-\" \"curl/8\" \"203.0.113.9\"";
    assert_eq!(
        (plain(with, NOTHING), plain(with, EXTRAS)),
        (Some(()), None)
    );
    let without = "\"GET / HTTP/1.1\" 200 12 \"-\" \"curl/8\"";
    assert_eq!(
        (plain(without, EXTRAS), plain(without, WantedFields::ALL)),
        (Some(()), None)
    );
}

proptest! {
    #[test]
    fn whatever_is_plain_says_the_same_in_full(
        changes in prop::collection::vec((0..140_usize, prop::sample::select(
            b" \"\\-[]/?#0129aG.:\xff\t{".to_vec()
        )), 0..4),
        extras in any::<bool>(),
    ) {
        let line = format!(
            "198.51.100.24 - - {DATE} \"GET /a/b?c=d HTTP/1.1\" 200 1234 \"http://x/y\" \
             \"Mozilla/5.0 (X11)\""
        );
        let mut line = line.into_bytes();
        for (at, byte) in changes {
            let at = at % line.len();
            line[at] = byte;
        }
        let wanted = if extras { EXTRAS } else { NOTHING };
        if let Some((plain, full)) = both(line.trim_ascii_end(), wanted) {
            prop_assert_eq!(plain, full);
        }
    }
}
