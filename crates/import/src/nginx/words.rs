//! The words of nginx.conf, by the rules of nginx's own reader (`ngx_conf_read_token`).
//!
//! Pure, and its work is bounded by the text's length.

/// What stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A word, what its quotes and escapes stand for.
    Word(String),
    /// `;`
    End,
    /// `{`
    Open,
    /// `}`
    Close,
}

/// Why a text has no words. With the line, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadWord {
    pub(super) line: usize,
    pub(super) what: &'static str,
}

/// Reads word after word.
#[derive(Debug)]
pub(super) struct Words<'t> {
    text: &'t str,
    at: usize,
    line: usize,
    /// Behind a closing quote.
    needs_space: bool,
}

impl<'t> Words<'t> {
    pub(super) fn new(text: &'t str) -> Words<'t> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Words {
            text,
            at: 0,
            line: 1,
            needs_space: false,
        }
    }

    /// The line that was read last.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn bad<T>(&self, what: &'static str) -> Result<T, BadWord> {
        Err(BadWord {
            line: self.line,
            what,
        })
    }

    /// The next one; `None` at the end of the text.
    pub(super) fn next(&mut self) -> Result<Option<Token>, BadWord> {
        while let Some(c) = self.peek() {
            let after_quote = std::mem::take(&mut self.needs_space);
            match c {
                ' ' | '\t' | '\r' | '\n' => {
                    self.take();
                }
                ';' | '{' | '}' => {
                    self.take();
                    return Ok(Some(match c {
                        ';' => Token::End,
                        '{' => Token::Open,
                        _ => Token::Close,
                    }));
                }
                ')' if after_quote => {}
                _ if after_quote => return self.bad("a space is missing behind the quote"),
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.take();
                    }
                }
                '"' | '\'' => return self.quoted(c).map(Some),
                _ => return self.plain().map(Some),
            }
            if c == ')' {
                self.take();
                return Ok(Some(Token::Word(")".to_owned())));
            }
        }
        Ok(None)
    }

    fn quoted(&mut self, quote: char) -> Result<Token, BadWord> {
        self.take();
        let begun = self.line;
        let mut word = String::new();
        while let Some(c) = self.take() {
            match c {
                '\\' => self.escape(&mut word),
                c if c == quote => {
                    self.needs_space = true;
                    return Ok(Token::Word(word));
                }
                c => word.push(c),
            }
        }
        Err(BadWord {
            line: begun,
            what: "the quote that begins here does not end",
        })
    }

    fn plain(&mut self) -> Result<Token, BadWord> {
        let mut word = String::new();
        let mut dollar = false;
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\r' | '\n' | ';' => break,
                // `${name}` is a variable, and no block.
                '{' if !dollar => break,
                '\\' => {
                    self.take();
                    self.escape(&mut word);
                }
                c => {
                    self.take();
                    word.push(c);
                }
            }
            dollar = c == '$';
        }
        Ok(Token::Word(word))
    }

    /// What stands behind a backslash: quotes, itself and three letters stand for one character,
    /// and all else keeps the backslash.
    fn escape(&mut self, word: &mut String) {
        match self.take() {
            Some(c @ ('"' | '\'' | '\\')) => word.push(c),
            Some('t') => word.push('\t'),
            Some('r') => word.push('\r'),
            Some('n') => word.push('\n'),
            Some(c) => word.extend(['\\', c]),
            None => word.push('\\'),
        }
    }

    /// Skips a block that has a grammar of its own, up to its closing brace; the opening one has
    /// been read.
    pub(super) fn skip_block(&mut self) -> Result<(), BadWord> {
        let begun = self.line;
        let mut depth = 1_usize;
        while let Some(c) = self.take() {
            depth = match c {
                '{' => depth + 1,
                '}' => depth - 1,
                _ => depth,
            };
            if depth == 0 {
                return Ok(());
            }
        }
        Err(BadWord {
            line: begun,
            what: "the block that begins here does not end",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut words = Words::new(text);
        let mut found = Vec::new();
        while let Some(token) = words.next().unwrap() {
            found.push(match token {
                Token::Word(word) => word,
                Token::End => ";".to_owned(),
                Token::Open => "{".to_owned(),
                Token::Close => "}".to_owned(),
            });
        }
        found
    }

    #[test]
    fn words_are_those_of_nginx() {
        for (text, expected) in [
            ("listen 80;", &["listen", "80", ";"][..]),
            ("a{b c;}", &["a", "{", "b", "c", ";", "}"]),
            ("# a; b\nc;", &["c", ";"]),
            ("a b#c;", &["a", "b#c", ";"]),
            ("a \"b;{}#\" 'c \"d';", &["a", "b;{}#", "c \"d", ";"]),
            (r#"a "b\"c" d\;e;"#, &["a", "b\"c", r"d\;e", ";"]),
            (r"~ ^/a\.b$ {", &["~", r"^/a\.b$", "{"]),
            ("a ${b}c;", &["a", "${b}c", ";"]),
            ("a 'b\nc';", &["a", "b\nc", ";"]),
            ("if ($a = \"b\") {", &["if", "($a", "=", "b", ")", "{"]),
            ("a \"\";", &["a", "", ";"]),
        ] {
            assert_eq!(words(text), expected, "{text}");
        }
    }

    #[test]
    fn broken_words_say_where() {
        for (text, line) in [("a;\nb \"c\nd", 2), ("a \"b\"c;", 1)] {
            let mut words = Words::new(text);
            let bad = loop {
                if let Err(bad) = words.next() {
                    break bad;
                }
            };
            assert_eq!(bad.line, line, "{text}");
        }
    }
}
