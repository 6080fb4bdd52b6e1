//! Readers of requests: one as strict as the specification, and some as careless as servers are.

/// A request, as somebody reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub body: Vec<u8>,
    /// Bytes of the stream up to its end.
    pub end: usize,
}

impl Request {
    /// Whether it is this one behind a proxy.
    pub fn is(&self, other: &Request) -> bool {
        let target = self.target.strip_prefix("http://test");
        let same = self.method == other.method && self.body == other.body;
        same && target.unwrap_or(&self.target) == other.target
    }
}

/// What is behind the last whole request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    Nothing,
    /// The beginning of one.
    Part,
    /// What cannot become one.
    Bad(&'static str),
}

/// How requests are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    Strict,
    /// Strict, but for what a proxy may forgive because it frames anew what it passes on: a line feed
    /// for the end of a head's line, and a length beside chunks.
    Forgiving,
    /// Takes a line feed for a line's end, whatever holds `chunked` for chunks, and what digits it
    /// finds for a length.
    Careless,
    /// The same, and believes a length rather than chunks.
    LengthFirst,
}

type Line<'b> = (&'b [u8], usize);
type Read<T> = Result<T, Rest>;

impl Reader {
    /// Every request in a stream, and what follows them.
    pub fn all(self, bytes: &[u8]) -> (Vec<Request>, Rest) {
        let (mut found, mut at) = (Vec::new(), 0);
        loop {
            // Empty lines between requests are nobody's; with a line feed alone they are as empty.
            while bytes[at..].starts_with(b"\r\n") || bytes[at..].starts_with(b"\n") {
                at += 1 + usize::from(bytes[at] == b'\r');
            }
            if at == bytes.len() {
                return (found, Rest::Nothing);
            }
            match self.one(bytes, at) {
                Ok(request) => {
                    at = request.end;
                    found.push(request);
                }
                Err(rest) => return (found, rest),
            }
        }
    }

    fn is_careless(self) -> bool {
        matches!(self, Reader::Careless | Reader::LengthFirst)
    }

    fn one(self, bytes: &[u8], at: usize) -> Read<Request> {
        let (first, mut at) = self.line(bytes, at)?;
        let first = String::from_utf8_lossy(first).into_owned();
        let words: Vec<&str> = match self {
            Reader::Strict | Reader::Forgiving => first.split(' ').collect(),
            _ => first.split_whitespace().collect(),
        };
        let [method, target, version] = words[..] else {
            return Err(Rest::Bad("a first line"));
        };
        let is_fine = method.bytes().all(is_token) && !target.is_empty();
        if !is_fine || !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
            return Err(Rest::Bad("a first line"));
        }
        let (mut lengths, mut codings) = (Vec::new(), Vec::new());
        loop {
            let (line, next) = self.line(bytes, at)?;
            at = next;
            if line.is_empty() {
                break;
            }
            let (name, value) = self.header(line)?;
            match name.to_ascii_lowercase().as_str() {
                "content-length" => lengths.push(value),
                "transfer-encoding" => codings.push(value),
                _ => {}
            }
        }
        let chunked = self.is_chunked(version, &codings, &lengths)?;
        let length = self.length(&lengths)?;
        let (body, end) = match chunked && (self != Reader::LengthFirst || lengths.is_empty()) {
            true => self.chunks(bytes, at)?,
            false => {
                let body = bytes.get(at..at + length).ok_or(Rest::Part)?;
                (body.to_vec(), at + length)
            }
        };
        Ok(Request {
            method: method.to_owned(),
            target: target.to_owned(),
            body,
            end,
        })
    }

    fn line(self, bytes: &[u8], at: usize) -> Read<Line<'_>> {
        let rest = &bytes[at..];
        let end = rest
            .iter()
            .position(|byte| *byte == b'\n')
            .ok_or(Rest::Part)?;
        let line = rest[..end].strip_suffix(b"\r");
        let line = match self {
            Reader::Strict => line.ok_or(Rest::Bad("a line feed alone"))?,
            _ => line.unwrap_or(&rest[..end]),
        };
        if self == Reader::Strict && line.contains(&b'\r') {
            return Err(Rest::Bad("a carriage return alone"));
        }
        Ok((line, at + end + 1))
    }

    fn header(self, line: &[u8]) -> Read<(String, Vec<u8>)> {
        let colon = line.iter().position(|byte| *byte == b':');
        let Some(colon) = colon else {
            return match self.is_careless() {
                false => Err(Rest::Bad("a line without a colon")),
                true => Ok((String::new(), Vec::new())),
            };
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if self.is_careless() {
            let name = String::from_utf8_lossy(name.trim_ascii()).into_owned();
            return Ok((name, value.to_vec()));
        }
        let fine = !name.is_empty() && name.iter().copied().all(is_token);
        let of_value = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
        if !fine || !line[colon + 1..].iter().all(of_value) {
            return Err(Rest::Bad("a header"));
        }
        Ok((String::from_utf8_lossy(name).into_owned(), value.to_vec()))
    }

    fn is_chunked(self, version: &str, codings: &[Vec<u8>], lengths: &[Vec<u8>]) -> Read<bool> {
        if self.is_careless() {
            let text = codings.concat().to_ascii_lowercase();
            return Ok(text.windows(7).any(|part| part == b"chunked"));
        }
        match codings {
            [] => Ok(false),
            [only]
                if only.eq_ignore_ascii_case(b"chunked")
                    && (lengths.is_empty() || self == Reader::Forgiving)
                    && version == "HTTP/1.1" =>
            {
                Ok(true)
            }
            _ => Err(Rest::Bad("a coding")),
        }
    }

    fn length(self, lengths: &[Vec<u8>]) -> Read<usize> {
        let Some(first) = lengths.first() else {
            return Ok(0);
        };
        if !self.is_careless() {
            // Equal ones may be merged, also those of a list.
            let all = lengths
                .iter()
                .flat_map(|line| line.split(|byte| *byte == b','));
            let mut numbers = all.map(<[u8]>::trim_ascii).map(digits);
            let number = numbers.next().flatten().ok_or(Rest::Bad("a length"))?;
            return match numbers.all(|other| other == Some(number)) {
                true => Ok(number),
                false => Err(Rest::Bad("two lengths")),
            };
        }
        let found = first
            .iter()
            .copied()
            .filter(u8::is_ascii_digit)
            .collect::<Vec<_>>();
        Ok(digits(&found).unwrap_or(0))
    }

    fn chunks(mut self, bytes: &[u8], mut at: usize) -> Read<(Vec<u8>, usize)> {
        // Of chunks nobody forgives anything; but trailers may end at the first empty line that has
        // both its bytes, whatever looks like one before it.
        let forgives = self == Reader::Forgiving;
        if forgives {
            self = Reader::Strict;
        }
        let mut body = Vec::new();
        loop {
            let (line, next) = self.line(bytes, at)?;
            let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
            let size = match self {
                Reader::Strict | Reader::Forgiving => size.trim_ascii_end(),
                _ => size.trim_ascii(),
            };
            let fine = !size.is_empty() && size.iter().all(u8::is_ascii_hexdigit);
            let size = usize::from_str_radix(&String::from_utf8_lossy(size), 16).ok();
            let size = size.filter(|_| fine).ok_or(Rest::Bad("a chunk's size"))?;
            at = next;
            if size == 0 {
                break;
            }
            let end = at.checked_add(size).ok_or(Rest::Bad("a chunk's size"))?;
            body.extend_from_slice(bytes.get(at..end).ok_or(Rest::Part)?);
            let (nothing, next) = self.line(bytes, end)?;
            if !nothing.is_empty() {
                return Err(Rest::Bad("a chunk's end"));
            }
            at = next;
        }
        if forgives {
            let mut ends = bytes[at - 2..].windows(4);
            let end = ends.position(|part| part == b"\r\n\r\n");
            return end.map(|end| (body, at + end + 2)).ok_or(Rest::Part);
        }
        loop {
            let (line, next) = self.line(bytes, at)?;
            at = next;
            if line.is_empty() {
                return Ok((body, at));
            }
            self.header(line)?;
        }
    }
}

fn digits(text: &[u8]) -> Option<usize> {
    let fine = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text)
        .ok()
        .filter(|_| fine)?
        .parse()
        .ok()
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[test]
fn readers_differ_where_servers_do() {
    let count = |reader: Reader, text: &str| reader.all(text.as_bytes()).0.len();
    let both = "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n\
                0\r\n\r\nGET /x HTTP/1.1\r\n\r\n";
    let counts = [Reader::Strict, Reader::Careless, Reader::LengthFirst].map(|it| count(it, both));
    assert_eq!(counts, [0, 2, 2]);
    let length = "POST / HTTP/1.1\r\nContent-Length: 24\r\nTransfer-Encoding: x, chunked\r\n\r\n\
                  0\r\n\r\nGET /x HTTP/1.1\r\n\r\n";
    let counts =
        [Reader::Strict, Reader::Careless, Reader::LengthFirst].map(|it| count(it, length));
    assert_eq!(counts, [0, 2, 1]);
    let feeds = "GET / HTTP/1.1\nA: b\n\nGET /x HTTP/1.1\r\n\r\n";
    let counts = [Reader::Strict, Reader::Careless].map(|it| count(it, feeds));
    assert_eq!(counts, [0, 2]);
}
