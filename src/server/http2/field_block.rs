//! Inspects the fields of a head or of trailers in HPACK (RFC 7541) before the library decodes
//! them.
//!
//! A malformed request must end its stream (RFC 9113 section 8.1.1). But the library ends the whole
//! connection if a name or a value has a forbidden byte, and ignores pseudo-header fields in
//! trailers. So such a block is rewritten: forbidden bytes are replaced, and a field is added for
//! which the library ends only the stream. The replacement has the same length. So the dynamic
//! table of the library stays in step with the client's, because the size of an entry depends on
//! lengths only.

use super::huffman::{Decoded, may_hold_rare};

/// `connection: x`, which is malformed in HTTP/2 (RFC 9113 section 8.2.2).
const MALFORMED: &[u8] = b"\x00\x0aconnection\x01x";
/// `te: trailers`. No upstream gets it in trailers.
const ORDINARY: &[u8] = b"\x00\x02te\x08trailers";

const HUFFMAN: u8 = 0x80;
const REPLACEMENT: u8 = b'x';

/// Returns a replacement for `block` if it is malformed. For a block that is no HPACK it returns
/// `None`, because the library then ends the connection.
pub(super) fn replace_malformed(block: &[u8]) -> Option<Vec<u8>> {
    let mut fields = BlockFields { rest: block };
    while let Some(field) = fields.next() {
        if field.is_malformed() {
            return Some(rewrite(block));
        }
    }
    None
}

/// Returns a replacement for trailers. The library refuses a pseudo-header field only after an
/// ordinary field, so the replacement begins with an ordinary one.
pub(super) fn replace_trailers(block: &[u8]) -> Vec<u8> {
    let mut fields = BlockFields { rest: block };
    let mut resizes = 0;
    while let Some(BlockField::Resize) = fields.next() {
        resizes = block.len() - fields.rest.len();
    }
    let rest = &block[resizes..];
    let rewritten = replace_malformed(rest);
    let rest = rewritten.as_deref().unwrap_or(rest);
    [&block[..resizes], ORDINARY, rest].concat()
}

fn rewrite(block: &[u8]) -> Vec<u8> {
    let mut written = Vec::with_capacity(block.len() + MALFORMED.len());
    let mut fields = BlockFields { rest: block };
    let mut from = block;
    while let Some(field) = fields.next() {
        let bytes = &from[..from.len() - fields.rest.len()];
        from = fields.rest;
        match field {
            BlockField::Literal(literal) if literal.is_malformed() => literal.write(&mut written),
            _ => written.extend_from_slice(bytes),
        }
    }
    written.extend_from_slice(from);
    written.extend_from_slice(MALFORMED);
    written
}

enum BlockField<'b> {
    Indexed,
    Resize,
    Literal(FieldLiteral<'b>),
}

impl BlockField<'_> {
    fn is_malformed(&self) -> bool {
        matches!(self, BlockField::Literal(literal) if literal.is_malformed())
    }
}

struct FieldLiteral<'b> {
    /// The bytes with the kind of indexing and the index of the name.
    prefix: &'b [u8],
    name: FieldName<'b>,
    value: HpackText<'b>,
}

enum FieldName<'b> {
    Index(usize),
    Literal(HpackText<'b>),
}

#[derive(Clone, Copy)]
enum HpackText<'b> {
    Plain(&'b [u8]),
    Coded(&'b [u8]),
}

impl FieldLiteral<'_> {
    fn is_malformed(&self) -> bool {
        let name = match &self.name {
            FieldName::Index(_) => false,
            FieldName::Literal(name) => name.violates(is_name),
        };
        name || self.has_bad_value()
    }

    fn has_bad_value(&self) -> bool {
        let (is_method, is_pseudo) = match &self.name {
            // Indexes of the static table (RFC 7541 appendix A).
            FieldName::Index(index) => (matches!(index, 2 | 3), matches!(index, 1..=7)),
            FieldName::Literal(name) => (name.equals(b":method"), name.begins_with(b':')),
        };
        if is_method {
            return self.value.violates(|value| value.iter().all(is_token));
        }
        self.value.violates_if_rare(|value| match is_pseudo {
            true => std::str::from_utf8(value).is_ok() && !value.iter().any(u8::is_ascii_control),
            false => value
                .iter()
                .all(|byte| !byte.is_ascii_control() || *byte == b'\t'),
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix);
        if let FieldName::Literal(name) = &self.name {
            let mut bytes = name.bytes();
            if bytes.first() != Some(&b':') || !is_name(&bytes) {
                let is_allowed = |byte: &u8| is_token(byte) && !byte.is_ascii_uppercase();
                let forbidden = bytes.iter_mut().filter(|byte| !is_allowed(byte));
                forbidden.for_each(|byte| *byte = REPLACEMENT);
            }
            put_text(out, &bytes);
        }
        let mut bytes = self.value.bytes();
        if self.has_bad_value() {
            bytes.fill(REPLACEMENT);
        }
        put_text(out, &bytes);
    }
}

impl HpackText<'_> {
    /// The decoded bytes; those of an invalid Huffman code are left out.
    fn bytes(self) -> Vec<u8> {
        match self {
            HpackText::Plain(bytes) => bytes.to_vec(),
            HpackText::Coded(coded) => Decoded::new(coded).flatten().collect(),
        }
    }

    /// Whether the text violates `is_valid`. The library refuses empty texts and invalid Huffman
    /// codes.
    fn violates(self, is_valid: impl Fn(&[u8]) -> bool) -> bool {
        const ENOUGH: usize = 64;
        match self {
            HpackText::Plain(bytes) => !bytes.is_empty() && !is_valid(bytes),
            HpackText::Coded(coded) if coded.len() * 8 / 5 <= ENOUGH => {
                let (mut bytes, mut length) = ([0; ENOUGH], 0);
                for byte in Decoded::new(coded) {
                    let Ok(byte) = byte else { return false };
                    bytes[length] = byte;
                    length += 1;
                }
                length > 0 && !is_valid(&bytes[..length])
            }
            HpackText::Coded(coded) => {
                let bytes: Result<Vec<u8>, _> = Decoded::new(coded).collect();
                bytes.is_ok_and(|bytes| !is_valid(&bytes))
            }
        }
    }

    /// Like `violates`, for rules that only control characters and bytes above 126 can violate.
    fn violates_if_rare(self, is_valid: impl Fn(&[u8]) -> bool) -> bool {
        match self {
            HpackText::Coded(coded) => {
                let is_rare = |byte| matches!(byte, Ok(..b' ' | 127..));
                may_hold_rare(coded) && Decoded::new(coded).any(is_rare) && self.violates(is_valid)
            }
            HpackText::Plain(_) => self.violates(is_valid),
        }
    }

    fn equals(self, text: &[u8]) -> bool {
        match self {
            HpackText::Plain(bytes) => bytes == text,
            HpackText::Coded(coded) => Decoded::new(coded)
                .map(Result::ok)
                .eq(text.iter().map(|&byte| Some(byte))),
        }
    }

    fn begins_with(self, byte: u8) -> bool {
        match self {
            HpackText::Plain(bytes) => bytes.first() == Some(&byte),
            HpackText::Coded(coded) => {
                matches!(Decoded::new(coded).next(), Some(Ok(b)) if b == byte)
            }
        }
    }
}

/// Whether a name is valid in HTTP/2: in lower case, or that of a pseudo-header field.
fn is_name(name: &[u8]) -> bool {
    match name.strip_prefix(b":") {
        Some(pseudo) => matches!(
            pseudo,
            b"authority" | b"method" | b"scheme" | b"path" | b"protocol" | b"status"
        ),
        None => name
            .iter()
            .all(|byte| is_token(byte) && !byte.is_ascii_uppercase()),
    }
}

fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

/// Iterates over the fields of a block, up to the first bytes that are no field.
struct BlockFields<'b> {
    rest: &'b [u8],
}

impl<'b> BlockFields<'b> {
    /// After the last field, `rest` begins with the bytes that are no field.
    fn next(&mut self) -> Option<BlockField<'b>> {
        let before = self.rest;
        let field = self.read();
        if field.is_none() {
            self.rest = before;
        }
        field
    }

    /// RFC 7541 section 6.
    fn read(&mut self) -> Option<BlockField<'b>> {
        let before = self.rest;
        let name_bits = match *before.first()? {
            0x80.. => return self.number(7).map(|_| BlockField::Indexed),
            0x40.. => 6,
            0x20.. => return self.number(5).map(|_| BlockField::Resize),
            _ => 4,
        };
        let index = self.number(name_bits)?;
        let prefix = &before[..before.len() - self.rest.len()];
        let name = match index {
            0 => FieldName::Literal(self.text()?),
            index => FieldName::Index(index),
        };
        let value = self.text()?;
        Some(BlockField::Literal(FieldLiteral {
            prefix,
            name,
            value,
        }))
    }

    /// Reads an integer that begins with the low `bits` of the first byte (RFC 7541 section 5.1).
    fn number(&mut self, bits: u32) -> Option<usize> {
        let (&first, mut rest) = self.rest.split_first()?;
        let most = (1 << bits) - 1;
        let mut number = usize::from(first) & most;
        if number == most {
            for shift in [0, 7, 14, 21] {
                let (&byte, behind) = rest.split_first()?;
                rest = behind;
                number += usize::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    self.rest = rest;
                    return Some(number);
                }
            }
            return None;
        }
        self.rest = rest;
        Some(number)
    }

    fn text(&mut self) -> Option<HpackText<'b>> {
        let is_coded = self.rest.first()? & HUFFMAN != 0;
        let length = self.number(7)?;
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(match is_coded {
            true => HpackText::Coded(bytes),
            false => HpackText::Plain(bytes),
        })
    }
}

fn put_text(out: &mut Vec<u8>, bytes: &[u8]) {
    const MOST: usize = 127;
    if bytes.len() < MOST {
        out.push(bytes.len() as u8);
    } else {
        out.push(MOST as u8);
        let mut left = bytes.len() - MOST;
        while left >= 128 {
            out.push((left % 128) as u8 | 128);
            left /= 128;
        }
        out.push(left as u8);
    }
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks that the library gets for `block`, and for the same as trailers.
    fn instead(block: &[u8]) -> (Option<Vec<u8>>, Vec<u8>) {
        (replace_malformed(block), replace_trailers(block))
    }

    #[test]
    fn blocks_without_a_fault_are_left_alone() {
        for block in [
            &b""[..],
            b"\x82\x86\x84",
            // RFC 7541 appendix C.4.1, C.4.3: Huffman code, names by index and as literals.
            b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
            b"\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf",
            b"\x00\x04:path\x02/\xc3",
            b"\x04\x05/\xc3\xa4?x",
            b"\x00\x01a\x03b\tc",
            b"\x00\x01a\x02\xff\x80",
        ] {
            let (head, trailers) = instead(block);
            assert_eq!(head, None, "{block:?}");
            assert_eq!(trailers, [ORDINARY, block].concat());
        }
    }

    #[test]
    fn a_malformed_field_keeps_its_place_and_its_length() {
        for (block, mended) in [
            (&b"\x40\x03A-b\x011"[..], &b"\x40\x03x-b\x011"[..]),
            (b"\x82\x10\x03a b\x011\x84", b"\x82\x10\x03axb\x011\x84"),
            (b"\x40\x02:x\x00\xbe", b"\x40\x02xx\x00\xbe"),
            (b"\x7f\x05\x03a\nb", b"\x7f\x05\x03xxx"),
            (b"\x02\x03G T", b"\x02\x03xxx"),
            (b"\x04\x02/\xe4", b"\x04\x02xx"),
            // Without a name.
            (b"\x00\x00\x01\x00", b"\x00\x00\x01x"),
            (b"\x00\x80\x01\x00", b"\x00\x00\x01x"),
            // `X-Upper` in Huffman code.
            (
                b"\x40\x86\xfc\x5b\x85\x75\x96\xcf\x011",
                b"\x40\x07x-xpper\x011",
            ),
        ] {
            let (head, trailers) = instead(block);
            let mended = [mended, MALFORMED].concat();
            assert_eq!(head.as_deref(), Some(&mended[..]), "{block:?}");
            assert_eq!(trailers, [ORDINARY, &mended].concat());
        }
    }

    #[test]
    fn a_change_of_the_tables_size_stays_before_the_fields() {
        let (head, trailers) = instead(b"\x3f\xe1\x1f\x20\x82");
        assert_eq!(head, None);
        assert_eq!(trailers, [b"\x3f\xe1\x1f\x20", ORDINARY, b"\x82"].concat());
    }

    #[test]
    fn long_texts_keep_their_lengths() {
        for length in [126, 127, 128, 254, 255, 300, 20_000] {
            let mut block = vec![0x40];
            put_text(&mut block, &vec![b'A'; length]);
            put_text(&mut block, &vec![b'\n'; length]);
            let mut wanted = vec![0x40];
            put_text(&mut wanted, &vec![REPLACEMENT; length]);
            put_text(&mut wanted, &vec![REPLACEMENT; length]);
            wanted.extend_from_slice(MALFORMED);
            assert_eq!(replace_malformed(&block), Some(wanted), "{length}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(block: Vec<u8>) {
            let (head, trailers) = instead(&block);
            assert!(head.is_none_or(|head| head.ends_with(MALFORMED)));
            assert!(trailers.len() >= block.len().min(1));
        }
    }
}
