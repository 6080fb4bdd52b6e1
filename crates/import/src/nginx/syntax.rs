//! Reads the words and directives of nginx.conf, and the files that it includes.
//!
//! The lexer follows nginx's own (`ngx_conf_read_token`). Depth and size are bounded.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::draft::{Grade, Notes, TargetDraft};
use crate::files::{self, ImportError, SourceEntry, SourceLine};

/// Blocks and included files around a directive, at most. Each is a call on the stack.
const MAX_DEPTH: usize = 32;
/// Files that are read, at most. A file counts each time it is included.
const MAX_FILES: usize = 1000;
/// Directives in all files, at most.
const MAX_DIRECTIVES: usize = 200_000;

#[derive(Clone, Debug)]
pub(super) struct Directive {
    pub(super) name: String,
    pub(super) args: Vec<String>,
    /// The directives between its braces, if it has braces.
    pub(super) block: Option<Vec<Directive>>,
    pub(super) place: SourceLine,
}

impl Directive {
    /// Returns an argument, or an empty text.
    pub(super) fn arg(&self, index: usize) -> &str {
        self.args.get(index).map_or("", String::as_str)
    }

    /// Returns the rest of the argument that begins with `name`: `20` of `burst=20`.
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        self.args.iter().find_map(|arg| arg.strip_prefix(name))
    }

    pub(super) fn has_arg(&self, word: &str) -> bool {
        self.args.iter().any(|arg| arg == word)
    }

    /// Returns the name and the arguments in one line.
    pub(super) fn line(&self) -> String {
        let mut line = self.name.clone();
        for arg in &self.args {
            line.push(' ');
            line.push_str(if arg.is_empty() { "\"\"" } else { arg });
        }
        line
    }

    /// Returns the directives of its block.
    pub(super) fn inner(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }

    pub(super) fn source(&self) -> SourceEntry {
        SourceEntry {
            place: self.place.clone(),
            text: self.line(),
        }
    }

    pub(super) fn note_lost(&self, notes: &mut Notes, why: impl Into<String>) {
        notes.add(Grade::Lost, &self.place, &self.line(), why);
    }

    pub(super) fn note_differs(&self, notes: &mut Notes, why: impl Into<String>) {
        notes.add(Grade::Differs, &self.place, &self.line(), why);
    }

    pub(super) fn note_needless(&self, notes: &mut Notes, why: impl Into<String>) {
        notes.add(Grade::Needless, &self.place, &self.line(), why);
    }

    /// Returns the target of a route that this directive closes.
    pub(super) fn closed(&self, why: &str) -> TargetDraft {
        TargetDraft::Closed(format!("`{}`: {why}", self.line()))
    }

    /// Notes that the directive is lost, and returns the target of the route that it closes.
    pub(super) fn close(&self, notes: &mut Notes, why: &str) -> TargetDraft {
        self.note_lost(notes, why);
        self.closed(why)
    }
}

/// Reads a file and all files that it includes.
pub(super) fn read_file(path: &Path, notes: &mut Notes) -> Result<Vec<Directive>, ImportError> {
    let text = files::read_text(path)?;
    let mut parser = NginxParser {
        folder: path.parent().map(Path::to_owned).unwrap_or_default(),
        files: 1,
        depth: 0,
        directives: 0,
        notes,
    };
    parser.read_list(&mut NginxLexer::new(&text, path), false)
}

struct NginxParser<'n> {
    /// The folder of the first file. Names of included files are relative to it.
    folder: PathBuf,
    files: usize,
    /// Blocks and included files around the current directive.
    depth: usize,
    directives: usize,
    notes: &'n mut Notes,
}

impl NginxParser<'_> {
    /// Reads directives to the end of the block, or of the file if there is no block.
    fn read_list(
        &mut self,
        lexer: &mut NginxLexer<'_>,
        in_block: bool,
    ) -> Result<Vec<Directive>, ImportError> {
        if self.depth > MAX_DEPTH {
            return lexer.fail("blocks are nested too deep");
        }
        let mut list = Vec::new();
        loop {
            let first = match lexer.next()? {
                Some(NginxToken::Word(word)) => word,
                Some(NginxToken::Close) if in_block => return Ok(list),
                None if !in_block => return Ok(list),
                None => return lexer.fail("a `}` is missing"),
                Some(NginxToken::Close) => return lexer.fail("a `}` too many"),
                Some(_) => return lexer.fail("a directive's name is missing"),
            };
            let one = self.read_directive(first, lexer)?;
            match one.name == "include" && one.block.is_none() {
                true => list.extend(self.read_included(&one)?),
                false => list.push(one),
            }
        }
    }

    fn read_directive(
        &mut self,
        name: String,
        lexer: &mut NginxLexer<'_>,
    ) -> Result<Directive, ImportError> {
        let place = lexer.place(lexer.line);
        let fail = |what: &str| ImportError::Syntax {
            place: place.clone(),
            what: what.to_owned(),
        };
        let mut args = Vec::new();
        let block = loop {
            match lexer.next()? {
                Some(NginxToken::Word(word)) => args.push(word),
                Some(NginxToken::End) => break None,
                // Lua has its own grammar.
                Some(NginxToken::Open) if name.ends_with("_by_lua_block") => {
                    lexer.skip_block()?;
                    break Some(Vec::new());
                }
                Some(NginxToken::Open) => break Some(self.read_deeper(lexer, true)?),
                Some(NginxToken::Close) | None => return Err(fail("the `;` is missing")),
            }
        };
        self.directives += 1;
        if self.directives > MAX_DIRECTIVES {
            return Err(fail("too many directives"));
        }
        Ok(Directive {
            name,
            args,
            block,
            place,
        })
    }

    fn read_deeper(
        &mut self,
        lexer: &mut NginxLexer<'_>,
        in_block: bool,
    ) -> Result<Vec<Directive>, ImportError> {
        self.depth += 1;
        let list = self.read_list(lexer, in_block);
        self.depth -= 1;
        list
    }

    /// Reads the files of an `include`.
    fn read_included(&mut self, include: &Directive) -> Result<Vec<Directive>, ImportError> {
        let mut list = Vec::new();
        for path in files::find_included(&self.folder, include.arg(0)) {
            // Only a file server needs the types of files.
            if path.file_name().is_some_and(|name| name == "mime.types") {
                continue;
            }
            self.files += 1;
            if self.files > MAX_FILES || self.depth >= MAX_DEPTH {
                return Err(ImportError::Syntax {
                    place: include.place.clone(),
                    what: "too many files are included, or too deep".to_owned(),
                });
            }
            match files::read_text(&path) {
                Ok(text) => {
                    let mut lexer = NginxLexer::new(&text, &path);
                    list.extend(self.read_deeper(&mut lexer, false)?);
                }
                Err(why) => {
                    include.note_lost(self.notes, why.to_string());
                    // The directive stays: its file may guard the block.
                    list.push(include.clone());
                }
            }
        }
        Ok(list)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum NginxToken {
    /// A word without its quotes and escapes.
    Word(String),
    /// `;`
    End,
    /// `{`
    Open,
    /// `}`
    Close,
}

#[derive(Debug)]
struct NginxLexer<'t> {
    /// The text that is not read yet.
    rest: &'t str,
    file: Rc<str>,
    /// The line of the last character that was read, from 1.
    line: usize,
    /// The last token ended with a quote.
    needs_space: bool,
}

impl<'t> NginxLexer<'t> {
    fn new(text: &'t str, path: &Path) -> NginxLexer<'t> {
        NginxLexer {
            rest: text.strip_prefix('\u{feff}').unwrap_or(text),
            file: path.display().to_string().into(),
            line: 1,
            needs_space: false,
        }
    }

    fn place(&self, line: usize) -> SourceLine {
        SourceLine {
            file: self.file.clone(),
            line,
        }
    }

    fn fail_at<T>(&self, line: usize, what: &str) -> Result<T, ImportError> {
        Err(ImportError::Syntax {
            place: self.place(line),
            what: what.to_owned(),
        })
    }

    fn fail<T>(&self, what: &str) -> Result<T, ImportError> {
        self.fail_at(self.line, what)
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next()?;
        self.rest = chars.as_str();
        self.line += usize::from(c == '\n');
        Some(c)
    }

    /// Returns the next token; `None` at the end of the text.
    fn next(&mut self) -> Result<Option<NginxToken>, ImportError> {
        while let Some(c) = self.peek() {
            let after_quote = std::mem::take(&mut self.needs_space);
            let token = match c {
                ' ' | '\t' | '\r' | '\n' => {
                    self.take();
                    continue;
                }
                ';' => NginxToken::End,
                '{' => NginxToken::Open,
                '}' => NginxToken::Close,
                ')' if after_quote => NginxToken::Word(")".to_owned()),
                _ if after_quote => return self.fail("a space is missing behind the quote"),
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.take();
                    }
                    continue;
                }
                '"' | '\'' => return self.read_quoted(c).map(Some),
                _ => return Ok(Some(self.read_word())),
            };
            self.take();
            return Ok(Some(token));
        }
        Ok(None)
    }

    fn read_quoted(&mut self, quote: char) -> Result<NginxToken, ImportError> {
        self.take();
        let begin = self.line;
        let mut word = String::new();
        while let Some(c) = self.take() {
            match c {
                '\\' => self.read_escape(&mut word),
                c if c == quote => {
                    self.needs_space = true;
                    return Ok(NginxToken::Word(word));
                }
                c => word.push(c),
            }
        }
        self.fail_at(begin, "the quote that begins here does not end")
    }

    fn read_word(&mut self) -> NginxToken {
        let mut word = String::new();
        let mut after_dollar = false;
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\r' | '\n' | ';' => break,
                // `${name}` is a variable, and no block.
                '{' if !after_dollar => break,
                _ => {}
            }
            self.take();
            match c {
                '\\' => self.read_escape(&mut word),
                c => word.push(c),
            }
            after_dollar = c == '$';
        }
        NginxToken::Word(word)
    }

    /// Reads the character behind a backslash. Six characters have an escape; before any other the
    /// backslash stands for itself.
    fn read_escape(&mut self, word: &mut String) {
        match self.take() {
            Some(c @ ('"' | '\'' | '\\')) => word.push(c),
            Some('t') => word.push('\t'),
            Some('r') => word.push('\r'),
            Some('n') => word.push('\n'),
            Some(c) => word.extend(['\\', c]),
            None => word.push('\\'),
        }
    }

    /// Skips the rest of a block, with its closing brace.
    fn skip_block(&mut self) -> Result<(), ImportError> {
        let begin = self.line;
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
        self.fail_at(begin, "the block that begins here does not end")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut lexer = NginxLexer::new(text, Path::new("-"));
        let mut found = Vec::new();
        while let Some(token) = lexer.next().unwrap() {
            found.push(match token {
                NginxToken::Word(word) => word,
                NginxToken::End => ";".to_owned(),
                NginxToken::Open => "{".to_owned(),
                NginxToken::Close => "}".to_owned(),
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
            let mut lexer = NginxLexer::new(text, Path::new("-"));
            let error = loop {
                if let Err(error) = lexer.next() {
                    break error;
                }
            };
            assert!(error.to_string().starts_with(&format!("-:{line}: ")));
        }
    }
}
