//! Decodes the Huffman code of HPACK (RFC 7541 appendix B).

/// The length of each byte's code, bits. The code is canonical: codes of one length follow each
/// other in the order of their bytes. So the lengths define the code.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];
const SHORTEST: u32 = 5;
const LONGEST: u32 = 30;

#[derive(Clone, Copy)]
struct CodeRange {
    first: u32,
    count: u32,
    /// The position of the first code's byte in the table of bytes.
    begin: u32,
}

/// The codes by length, and the bytes in the order of their codes.
const CODE: ([CodeRange; LONGEST as usize + 1], [u8; 256]) = by_length();

const fn by_length() -> ([CodeRange; LONGEST as usize + 1], [u8; 256]) {
    let none = CodeRange {
        first: 0,
        count: 0,
        begin: 0,
    };
    let mut ranges = [none; LONGEST as usize + 1];
    let mut bytes = [0; 256];
    let (mut length, mut word, mut begin) = (1, 0, 0);
    while length <= LONGEST {
        word <<= 1;
        let mut count = 0;
        let mut byte = 0;
        while byte < 256 {
            if LENGTHS[byte] as u32 == length {
                bytes[(begin + count) as usize] = byte as u8;
                count += 1;
            }
            byte += 1;
        }
        ranges[length as usize] = CodeRange {
            first: word,
            count,
            begin,
        };
        word += count;
        begin += count;
        length += 1;
    }
    (ranges, bytes)
}

/// Iterates over the decoded bytes. Returns an error if the input is no Huffman code.
pub(super) struct Decoded<'c> {
    coded: std::slice::Iter<'c, u8>,
    /// The lowest `held` bits are read and not decoded.
    bits: u64,
    held: u32,
}

#[derive(Debug)]
pub(super) struct NoHuffmanCode;

impl<'c> Decoded<'c> {
    pub(super) fn new(coded: &'c [u8]) -> Decoded<'c> {
        Decoded {
            coded: coded.iter(),
            bits: 0,
            held: 0,
        }
    }
}

impl Iterator for Decoded<'_> {
    type Item = Result<u8, NoHuffmanCode>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.held < LONGEST
            && let Some(&byte) = self.coded.next()
        {
            self.bits = self.bits << 8 | u64::from(byte);
            self.held += 8;
        }
        for length in SHORTEST..=LONGEST.min(self.held) {
            let words = &CODE.0[length as usize];
            let word = (self.bits >> (self.held - length)) as u32 & ((1 << length) - 1);
            let place = word.wrapping_sub(words.first);
            if place < words.count {
                self.held -= length;
                return Some(Ok(CODE.1[(words.begin + place) as usize]));
            }
        }
        let mask = (1 << self.held) - 1;
        let is_padding = self.held < 8 && self.bits & mask == mask;
        self.held = 0;
        (!is_padding).then_some(Err(NoHuffmanCode))
    }
}

/// Whether the decoded bytes may contain a control character or a byte above 126. The codes of such
/// bytes begin with ten ones, so without ten ones in a row there is none.
pub(super) fn may_hold_rare(coded: &[u8]) -> bool {
    let mut rest = coded;
    loop {
        let mut window = [0; 8];
        let length = rest.len().min(8);
        window[..length].copy_from_slice(&rest[..length]);
        let bits = u64::from_be_bytes(window);
        let two = bits & bits << 1;
        let four = two & two << 2;
        if four & four << 4 & two << 8 != 0 {
            return true;
        }
        if rest.len() <= 8 {
            return false;
        }
        // Windows overlap by two bytes, to find ones across their border.
        rest = &rest[6..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(coded: &[u8]) -> Option<String> {
        let bytes: Result<Vec<u8>, _> = Decoded::new(coded).collect();
        bytes.ok().map(|bytes| String::from_utf8(bytes).unwrap())
    }

    /// A code by its definition, bit by bit.
    fn coded(bytes: &[u8]) -> Vec<u8> {
        let mut bits = String::new();
        for &byte in bytes {
            let length = u32::from(LENGTHS[usize::from(byte)]);
            let words = &CODE.0[length as usize];
            let all = &CODE.1[words.begin as usize..][..words.count as usize];
            let place = all.iter().position(|&other| other == byte).unwrap();
            let word = words.first + u32::try_from(place).unwrap();
            bits += &format!("{word:0width$b}", width = length as usize);
        }
        bits += &"1".repeat((8 - bits.len() % 8) % 8);
        let chunks = bits.as_bytes().chunks(8);
        chunks
            .map(|bits| u8::from_str_radix(std::str::from_utf8(bits).unwrap(), 2).unwrap())
            .collect()
    }

    #[test]
    fn examples_of_the_specification_are_decoded() {
        // RFC 7541 appendix C.4 and C.6.1.
        for (coded, text) in [
            (
                &b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..],
                "www.example.com",
            ),
            (b"\xa8\xeb\x10\x64\x9c\xbf", "no-cache"),
            (b"\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f", "custom-key"),
            (b"\x64\x02", "302"),
        ] {
            assert_eq!(decoded(coded).as_deref(), Some(text));
        }
    }

    #[test]
    fn every_byte_has_a_code_and_no_other_word_has_a_byte() {
        let all: Vec<u8> = (0..=255).collect();
        let back: Result<Vec<u8>, _> = Decoded::new(&coded(&all)).collect();
        assert_eq!(back.unwrap(), all);
        // The end of a text may not be coded; padding is seven ones at most.
        for broken in [&b"\xff\xff\xff\xff"[..], b"\xff", b"\x64\x02\x00"] {
            assert!(decoded(broken).is_none(), "{broken:?}");
        }
    }

    #[test]
    fn rare_bytes_are_suspected_wherever_they_stand() {
        for byte in (0..=31).chain(127..=255) {
            for before in 0..20 {
                let text = [vec![b'a'; before], vec![byte], vec![b'0'; 9]].concat();
                assert!(may_hold_rare(&coded(&text)), "{byte} behind {before}");
            }
        }
        assert!(!may_hold_rare(&coded(b"/a/path;with=a&query, and more")));
        assert!(!may_hold_rare(&coded(b"?")));
    }
}
