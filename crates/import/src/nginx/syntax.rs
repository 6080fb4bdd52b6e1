//! Reads the words and directives of nginx.conf, and the files that it includes.
//!
//! The lexer follows nginx's own (`ngx_conf_read_token`). Depth and size are bounded.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::draft::{Grade, Notes, SectionDraft, TargetDraft, free_name};
use crate::files::{self, ImportError, SourceEntry, SourceLine};
use crate::values::TomlEntries;

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
    pub(super) notes: Notes,
}

impl Directive {
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

    pub(super) fn line(&self) -> String {
        let mut line = self.name.clone();
        for arg in &self.args {
            line.push(' ');
            line.push_str(if arg.is_empty() { "\"\"" } else { arg });
        }
        line
    }

    pub(super) fn inner(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }

    pub(super) fn source(&self) -> SourceEntry {
        SourceEntry {
            place: self.place.clone(),
            text: self.line(),
        }
    }

    pub(super) fn named(&self, name: &str) -> impl Iterator<Item = &Directive> {
        self.inner().iter().filter(move |one| one.name == name)
    }

    pub(super) fn first(&self, name: &str) -> Option<&Directive> {
        self.named(name).next()
    }

    pub(super) fn lost(&self, why: impl Into<String>) {
        self.notes.add(Grade::Lost, &self.place, &self.line(), why);
    }

    pub(super) fn differs(&self, why: impl Into<String>) {
        self.notes
            .add(Grade::Differs, &self.place, &self.line(), why);
    }

    pub(super) fn needless(&self, why: impl Into<String>) {
        self.notes
            .add(Grade::Needless, &self.place, &self.line(), why);
    }

    /// Adds the section of this directive unless there is an equal one. Returns its name, which
    /// begins with `base`.
    pub(super) fn add_section(
        &self,
        list: &mut Vec<SectionDraft>,
        base: &str,
        entries: TomlEntries,
    ) -> String {
        if let Some(known) = list.iter().find(|known| known.entries == entries) {
            return known.name.clone();
        }
        let name = free_name(base, list.iter().map(|known| &known.name));
        list.push(SectionDraft {
            name: name.clone(),
            source: self.source(),
            entries,
        });
        name
    }

    /// Returns the target of a route that this directive closes.
    pub(super) fn closed(&self, why: &str) -> TargetDraft {
        TargetDraft::Closed(format!("`{}`: {why}", self.line()))
    }

    /// Notes that the directive is lost, and returns the target of the route that it closes.
    pub(super) fn close(&self, why: &str) -> TargetDraft {
        self.lost(why);
        self.closed(why)
    }
}

/// Reads a file and all files that it includes, as the block of one directive.
pub(super) fn read_file(path: &Path, notes: &Notes) -> Result<Directive, ImportError> {
    let text = files::read_text(path)?;
    let mut parser = NginxParser {
        folder: path.parent().map(Path::to_owned).unwrap_or_default(),
        files: 1,
        directives: 0,
        notes,
    };
    let mut lexer = NginxLexer::new(&text, path);
    let place = lexer.place();
    let list = parser.read_list(&mut lexer, Depth { all: 0, blocks: 0 })?;
    Ok(parser.directive("main".to_owned(), Vec::new(), Some(list), place))
}

struct NginxParser<'n> {
    /// The folder of the first file. Names of included files are relative to it.
    folder: PathBuf,
    files: usize,
    directives: usize,
    notes: &'n Notes,
}

#[derive(Clone, Copy)]
struct Depth {
    /// Blocks, and files that include another.
    all: usize,
    /// Blocks of its own file.
    blocks: usize,
}

impl NginxParser<'_> {
    fn directive(
        &self,
        name: String,
        args: Vec<String>,
        block: Option<Vec<Directive>>,
        place: SourceLine,
    ) -> Directive {
        Directive {
            name,
            args,
            block,
            place,
            notes: self.notes.clone(),
        }
    }

    /// Reads directives to the end of the block, or of the file if there is no block.
    fn read_list(
        &mut self,
        lexer: &mut NginxLexer<'_>,
        depth: Depth,
    ) -> Result<Vec<Directive>, ImportError> {
        if depth.all > MAX_DEPTH {
            return Err(lexer.place().fault("blocks are nested too deep"));
        }
        let in_block = depth.blocks > 0;
        let mut list = Vec::new();
        loop {
            let fault = match lexer.next()? {
                Some(NginxToken::Word(name)) => {
                    let one = self.read_directive(name, lexer, depth)?;
                    match one.name == "include" && one.block.is_none() {
                        true => list.extend(self.read_included(&one, depth)?),
                        false => list.push(one),
                    }
                    continue;
                }
                Some(NginxToken::Close) if in_block => return Ok(list),
                None if !in_block => return Ok(list),
                None => "a `}` is missing",
                Some(NginxToken::Close) => "a `}` too many",
                Some(_) => "a directive's name is missing",
            };
            return Err(lexer.place().fault(fault));
        }
    }

    fn read_directive(
        &mut self,
        name: String,
        lexer: &mut NginxLexer<'_>,
        depth: Depth,
    ) -> Result<Directive, ImportError> {
        let place = lexer.place();
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
                Some(NginxToken::Open) => {
                    let (all, blocks) = (depth.all + 1, depth.blocks + 1);
                    break Some(self.read_list(lexer, Depth { all, blocks })?);
                }
                Some(NginxToken::Close) | None => return Err(place.fault("the `;` is missing")),
            }
        };
        self.directives += 1;
        match self.directives > MAX_DIRECTIVES {
            true => Err(place.fault("too many directives")),
            false => Ok(self.directive(name, args, block, place)),
        }
    }

    fn read_included(
        &mut self,
        include: &Directive,
        depth: Depth,
    ) -> Result<Vec<Directive>, ImportError> {
        let mut list = Vec::new();
        let found = files::find_included(&self.folder, include.arg(0));
        if found.is_empty() && files::lacks_folder(&self.folder, include.arg(0)) {
            include.lost("no such folder here");
            // The directive stays: its files may guard the block.
            list.push(include.clone());
        }
        for path in found {
            // Only a file server needs the types of files.
            if path.file_name().is_some_and(|name| name == "mime.types") {
                continue;
            }
            self.files += 1;
            if self.files > MAX_FILES || depth.all >= MAX_DEPTH {
                let why = "too many files are included, or too deep";
                return Err(include.place.fault(why));
            }
            match files::read_text(&path) {
                Ok(text) => {
                    let all = depth.all + 1;
                    let mut lexer = NginxLexer::new(&text, &path);
                    list.extend(self.read_list(&mut lexer, Depth { all, blocks: 0 })?);
                }
                Err(why) => {
                    include.lost(why.to_string());
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

    fn place(&self) -> SourceLine {
        SourceLine {
            file: self.file.clone(),
            line: self.line,
        }
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
                _ if after_quote => {
                    return Err(self.place().fault("a space is missing behind the quote"));
                }
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
        let begin = self.place();
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
        Err(begin.fault("the quote that begins here does not end"))
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
        let begin = self.place();
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
        Err(begin.fault("the block that begins here does not end"))
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
