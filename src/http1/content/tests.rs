//! Content as it comes, cut anywhere.

use bytes::BytesMut;

use super::*;

type Taken = Result<(Vec<u8>, HeaderMap, Vec<u8>), ContentFault>;

/// Decodes `bytes`, which come `at_once` at a time. Returns the data, the trailers, and the bytes
/// that are left. Joined chunks give the same.
fn taken(content: Content, bytes: &[u8], at_once: usize) -> Taken {
    let again = match &content {
        Content::Length(length) => Content::Length(*length),
        Content::Chunks(chunks) => Content::Chunks(Chunks::new(chunks.is_request)),
        Content::UntilEnd => Content::UntilEnd,
        Content::Nothing => Content::Nothing,
    };
    let apart = taken_by(content, bytes, at_once, Content::take);
    assert_eq!(taken_by(again, bytes, at_once, Content::take_joined), apart);
    apart
}

fn taken_by(
    mut content: Content,
    bytes: &[u8],
    at_once: usize,
    take: fn(&mut Content, &mut BytesMut) -> Result<ContentRead, ContentFault>,
) -> Taken {
    let (mut read, mut data, mut trailers) = (BytesMut::new(), Vec::new(), HeaderMap::new());
    let mut pieces = bytes.chunks(at_once);
    loop {
        match take(&mut content, &mut read)? {
            ContentRead::Data(piece) => data.extend_from_slice(&piece),
            ContentRead::Trailers(fields) => trailers = fields,
            ContentRead::Ended => break,
            ContentRead::NeedsMore => match pieces.next() {
                Some(piece) => read.extend_from_slice(piece),
                None if content.end() => {}
                None => return Err("the content is cut"),
            },
        }
    }
    read.extend(pieces.flatten());
    Ok((data, trailers, read.to_vec()))
}

/// The same, however it comes.
fn chunks(bytes: &[u8]) -> Option<(String, HeaderMap, String)> {
    let mut all = (1..=bytes.len()).map(|at_once| {
        let (data, trailers, left) = taken(Content::chunks(), bytes, at_once).ok()?;
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Some((text(data), trailers, text(left)))
    });
    let first = all.next().unwrap();
    assert!(all.all(|another| another == first), "{bytes:?}");
    first
}

#[test]
fn a_length_ends_where_it_says() {
    for at_once in 1..9 {
        let (data, _, left) = taken(Content::Length(5), b"hello, you", at_once).unwrap();
        assert_eq!((&data[..], &left[..]), (&b"hello"[..], &b", you"[..]));
    }
    assert!(taken(Content::Length(5), b"hell", 4).is_err());
}

#[test]
fn what_has_no_length_ends_with_the_connection() {
    let (data, _, left) = taken(Content::UntilEnd, b"all of it", 4).unwrap();
    assert_eq!((&data[..], left.len()), (&b"all of it"[..], 0));
}

#[test]
fn chunks_end_with_the_last_one() {
    for (bytes, want, behind) in [
        ("2\r\nok\r\n0\r\n\r\n", "ok", ""),
        ("0\r\n\r\n", "", ""),
        ("2\r\nok\r\n0\r\n\r\nHTTP/1.1", "ok", "HTTP/1.1"),
        ("00002\r\nok\r\n000\r\n\r\n", "ok", ""),
        (
            "A\r\n0123456789\r\na;x=y;z\r\n0123456789\r\n0;q\r\n\r\n",
            "01234567890123456789",
            "",
        ),
        ("2 \t\r\nok\r\n0 ;\r\n\r\n", "ok", ""),
        ("2;\"a\tb\"\r\nok\r\n0\r\n\r\n", "ok", ""),
    ] {
        let (data, trailers, left) = chunks(bytes.as_bytes()).unwrap();
        assert_eq!((&*data, &*left), (want, behind), "{bytes:?}");
        assert!(trailers.is_empty());
    }
}

#[test]
fn chunks_that_could_be_read_otherwise_are_refused() {
    for bytes in [
        "2\nok\r\n0\r\n\r\n",
        "2\r\nok\n0\r\n\r\n",
        "2\r\nokk\r\n0\r\n\r\n",
        "2\r\no\r\n0\r\n\r\n",
        " 2\r\nok\r\n0\r\n\r\n",
        "+2\r\nok\r\n0\r\n\r\n",
        "-2\r\nok\r\n0\r\n\r\n",
        "0x2\r\nok\r\n0\r\n\r\n",
        "2 2\r\nok\r\n0\r\n\r\n",
        "\r\nok\r\n0\r\n\r\n",
        ";a\r\nok\r\n0\r\n\r\n",
        "2;a\nb\r\nok\r\n0\r\n\r\n",
        "2;a\rb\r\nok\r\n0\r\n\r\n",
        "2\r\r\nok\r\n0\r\n\r\n",
        "2\0\r\nok\r\n0\r\n\r\n",
        "10000000000000002\r\nok\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nok\r\n0\r\n\r\n",
        "2\r\nok\r\n0\r\nA\r\n\r\n",
        "2\r\nok\r\n0\r\nA : b\r\n\r\n",
        "2\r\nok\r\n0\r\n a: b\r\n\r\n",
        "2\r\nok\r\n0\r\na: b\r\n c\r\n\r\n",
        "2\r\nok\r\n0\r\na: b\n\n\r\n\r\n",
        "2\r\nok\r\n0\r\na: b\nc: d\r\n\r\n",
        "2\r\nok\r\n0\r\na: b\n\r\n\r\n",
        "2\r\nok\r\n0\r\na: b\0\r\n\r\n",
        "2\r\nok\r\n0\r\n\n\r\n\r\n",
    ] {
        assert!(chunks(bytes.as_bytes()).is_none(), "{bytes:?}");
    }
}

#[test]
fn chunks_that_are_cut_are_never_whole() {
    let whole = b"2;x\r\nok\r\n3\r\nyes\r\n0\r\na: b\r\n\r\n";
    assert!(chunks(whole).is_some());
    for length in 1..whole.len() {
        assert!(chunks(&whole[..length]).is_none(), "{length}");
    }
}

#[test]
fn trailers_are_the_end_of_chunks() {
    let (data, trailers, left) =
        chunks(b"2\r\nok\r\n0\r\nA: b\r\na: \xc3\xa9\r\nempty:\r\n\r\nHTTP").unwrap();
    assert_eq!((&*data, &*left), ("ok", "HTTP"));
    let values: Vec<_> = trailers.get_all("a").iter().collect();
    assert_eq!(values, ["b".as_bytes(), b"\xc3\xa9"]);
    assert_eq!((trailers.len(), trailers["empty"].is_empty()), (3, true));
}

#[test]
fn extensions_and_trailers_are_bounded() {
    let extended = |length: usize| format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(length));
    let most = MAX_EXTENSION_BYTES as usize;
    let is_taken = |bytes: &str| taken(Content::chunks(), bytes.as_bytes(), 999).is_ok();
    assert!(is_taken(&extended(most - 1)) && !is_taken(&extended(most)));
    // For all chunks together.
    let half = format!("1;{}\r\na\r\n", "x".repeat(most / 2));
    assert!(!is_taken(&format!("{half}{half}0\r\n\r\n")));

    let lines = |count: usize| format!("0\r\n{}\r\n", "a: b\r\n".repeat(count));
    assert!(is_taken(&lines(MAX_TRAILER_LINES)) && !is_taken(&lines(MAX_TRAILER_LINES + 1)));
    let long = |length: usize| format!("0\r\na: {}\r\n\r\n", "x".repeat(length));
    assert!(is_taken(&long(MAX_TRAILER_BYTES - 7)) && !is_taken(&long(MAX_TRAILER_BYTES - 6)));
    // Also if their end never comes.
    let endless = "x".repeat(2 * MAX_TRAILER_BYTES);
    assert!(matches!(
        taken(
            Content::chunks(),
            format!("0\r\na: {endless}").as_bytes(),
            999
        ),
        Err(BAD_TRAILERS)
    ));
}

/// Whether a request may be framed so, and with which data.
fn request(bytes: &str) -> Option<String> {
    let mut all = (1..=bytes.len()).map(|at_once| {
        let taken = taken(Content::request_chunks(), bytes.as_bytes(), at_once);
        taken
            .ok()
            .map(|(data, ..)| String::from_utf8(data).unwrap())
    });
    let first = all.next().unwrap();
    assert!(all.all(|another| another == first), "{bytes:?}");
    first
}

#[test]
fn requests_are_read_more_strictly_than_responses() {
    let data = request("4\r\na\nb\r\r\n0\r\n\r\n");
    assert_eq!(data.as_deref(), Some("a\nb\r"));
    for bytes in [
        "04;a=b\r\nabcd\r\n0\r\nX: y\r\n\r\n",
        "4 ;a\r\nabcd\r\n0\r\n\r\n",
    ] {
        assert_eq!(request(bytes).as_deref(), Some("abcd"));
    }
    for bytes in [
        "4 \r\nabcd\r\n0\r\n\r\n",
        "4;\x01\r\nabcd\r\n0\r\n\r\n",
        "4\nabcd\r\n0\r\n\r\n",
        "4\r\nabcd\n0\r\n\r\n",
        "0\r\n\n",
        "0\r\nX-T: v\n\n\r\n\r\n",
    ] {
        assert_eq!(request(bytes), None, "{bytes:?}");
    }
    let endless = format!("4;{}\r\nabcd\r\n0\r\n\r\n", "x".repeat(20_000));
    assert!(taken(Content::request_chunks(), endless.as_bytes(), 999).is_err());
    let digits = |zeros: usize| format!("{}4\r\nabcd\r\n0\r\n\r\n", "0".repeat(zeros));
    assert_eq!(request(&digits(15)).as_deref(), Some("abcd"));
    assert_eq!(request(&digits(16)), None);
}

#[test]
fn an_upload_may_have_any_number_of_chunks() {
    let count = 2 * MAX_EXTENSION_BYTES as usize;
    let chunks = format!("{}0\r\n\r\n", "1\r\na\r\n".repeat(count));
    let read = taken(Content::request_chunks(), chunks.as_bytes(), 999);
    assert_eq!(read.map(|(data, ..)| data.len()), Ok(count));
}

#[test]
fn chunks_that_were_read_are_one_piece() {
    let mut read = BytesMut::from(&b"3\r\none\r\n4;x\r\ntwo!\r\n5\r\nth"[..]);
    let mut content = Content::chunks();
    let Ok(ContentRead::Data(data)) = content.take_joined(&mut read) else {
        panic!("no data");
    };
    assert_eq!(&data[..], b"onetwo!th");
    assert!(read.is_empty() && content.known_left() == Some(3));
    read.extend_from_slice(b"ree\r\n0\r\n\r\nHTTP");
    let Ok(ContentRead::Data(data)) = content.take_joined(&mut read) else {
        panic!("no data");
    };
    assert!(content.has_ended());
    assert_eq!((&data[..], &read[..]), (&b"ree"[..], &b"HTTP"[..]));
}

#[test]
fn data_before_a_broken_chunk_is_passed_on() {
    let mut read = BytesMut::from(&b"3\r\none\r\nzz"[..]);
    let mut content = Content::chunks();
    let first = content.take_joined(&mut read);
    assert!(matches!(first, Ok(ContentRead::Data(data)) if &data[..] == b"one"));
    assert!(content.take_joined(&mut read).is_err());
}
