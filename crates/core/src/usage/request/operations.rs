//! Finds the name of the only operation in a document of GraphQL.
//!
//! It reads the document in pieces and keeps one name. It knows the tokens of the language, so
//! braces within strings and comments count for nothing. It does not check the grammar below the
//! top: a server refuses what is wrong there.

use super::members::MAX_VALUE;

/// The operations of one document so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations {
    token: Token,
    /// Open brackets of all kinds.
    depth: u32,
    expected: Expected,
    /// The bytes of a word at the top.
    word: Vec<u8>,
    name: Vec<u8>,
    operations: u32,
    /// The document has something at its top that no request may have there.
    is_odd: bool,
}

/// The token that is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Token {
    #[default]
    None,
    Word,
    Comment,
    /// So many quotes, which may begin a string.
    Quotes(u8),
    String,
    StringEscape,
    /// Within a block string, behind so many quotes.
    Block(u8),
    /// The same, behind a backslash and so many quotes.
    BlockEscape(u8),
}

/// The part of a definition that comes next at the top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expected {
    #[default]
    Definition,
    /// The name of an operation, or what follows it.
    Name,
    Rest,
}

impl Operations {
    pub(super) fn read(&mut self, text: &[u8]) {
        for byte in text {
            self.take(*byte);
        }
    }

    /// The name, if the document has one operation and that has a name.
    pub(super) fn finish(mut self) -> Option<Box<str>> {
        if self.token == Token::Word {
            self.end_word();
        }
        let is_between = matches!(self.token, Token::None | Token::Word | Token::Comment);
        let is_whole = is_between && self.depth == 0 && self.expected == Expected::Definition;
        let is_one = is_whole && self.operations == 1 && !self.is_odd;
        let is_name = is_one && (1..=MAX_VALUE).contains(&self.name.len());
        let name = String::from_utf8(self.name).ok().filter(|_| is_name);
        name.map(String::into_boxed_str)
    }

    fn take(&mut self, byte: u8) {
        self.token = match (self.token, byte) {
            (Token::None, _) => self.begin(byte),
            (Token::Word, _) => self.word(byte),
            (Token::Comment | Token::String, b'\n' | b'\r') => Token::None,
            (Token::Comment, _) => Token::Comment,
            (Token::Quotes(1), b'"') => Token::Quotes(2),
            (Token::Quotes(2), b'"') => Token::Block(0),
            // An empty string.
            (Token::Quotes(2), _) => self.begin(byte),
            (Token::Quotes(_) | Token::String, b'"') => Token::None,
            (Token::Quotes(_) | Token::String, b'\\') => Token::StringEscape,
            (Token::Quotes(_), b'\n' | b'\r') => Token::None,
            (Token::Quotes(_) | Token::String | Token::StringEscape, _) => Token::String,
            (Token::Block(2), b'"') => Token::None,
            (Token::Block(quotes), b'"') => Token::Block(quotes + 1),
            (Token::BlockEscape(2), b'"') => Token::Block(0),
            (Token::BlockEscape(quotes), b'"') => Token::BlockEscape(quotes + 1),
            (Token::Block(_) | Token::BlockEscape(_), b'\\') => Token::BlockEscape(0),
            (Token::Block(_) | Token::BlockEscape(_), _) => Token::Block(0),
        };
    }

    /// The first byte of a token.
    fn begin(&mut self, byte: u8) -> Token {
        match byte {
            b'#' => Token::Comment,
            b'"' => Token::Quotes(1),
            b'_' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => {
                self.word.clear();
                self.push(byte);
                Token::Word
            }
            b'{' | b'(' | b'[' => {
                self.open(byte);
                Token::None
            }
            b'}' | b')' | b']' => {
                self.close(byte);
                Token::None
            }
            b'$' | b'@' | b'!' | b':' | b'=' | b'|' | b'&' if self.depth == 0 => {
                self.end_name();
                Token::None
            }
            _ => Token::None,
        }
    }

    fn word(&mut self, byte: u8) -> Token {
        if byte == b'_' || byte.is_ascii_alphanumeric() {
            self.push(byte);
            return Token::Word;
        }
        self.end_word();
        self.begin(byte)
    }

    /// Adds to a word that matters. One byte more than a name may have shows that it is too long.
    fn push(&mut self, byte: u8) {
        let matters = self.depth == 0 && self.expected != Expected::Rest;
        if matters && self.word.len() <= MAX_VALUE {
            self.word.push(byte);
        }
    }

    fn end_word(&mut self) {
        if self.depth > 0 {
            return;
        }
        match self.expected {
            Expected::Definition => {
                let is_operation = matches!(&*self.word, b"query" | b"mutation" | b"subscription");
                self.is_odd |= !is_operation && *self.word != *b"fragment";
                self.operations += u32::from(is_operation);
                self.expected = match is_operation {
                    true => Expected::Name,
                    false => Expected::Rest,
                };
            }
            Expected::Name => {
                self.name = std::mem::take(&mut self.word);
                self.expected = Expected::Rest;
            }
            Expected::Rest => {}
        }
    }

    /// An operation has no name, or it has been read.
    fn end_name(&mut self) {
        match self.expected {
            Expected::Definition => self.is_odd = true,
            Expected::Name | Expected::Rest => self.expected = Expected::Rest,
        }
    }

    fn open(&mut self, bracket: u8) {
        if self.depth == 0 && self.expected == Expected::Definition {
            // An operation without keyword and name.
            self.operations = self.operations.saturating_add(1);
            self.is_odd |= bracket != b'{';
        }
        if self.depth == 0 {
            self.expected = Expected::Rest;
        }
        self.depth = self.depth.saturating_add(1);
    }

    fn close(&mut self, bracket: u8) {
        self.is_odd |= self.depth == 0;
        self.depth = self.depth.saturating_sub(1);
        if self.depth == 0 && bracket == b'}' {
            self.expected = Expected::Definition;
        }
    }
}
