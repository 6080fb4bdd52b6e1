//! Directives and blocks, with the files that are included where they stand.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::words::{BadWord, Token, Words};
use crate::notes::{Notes, Place};
use crate::{ImportError, files};

/// Blocks within blocks and included files within them, at most, together: each is a call on the
/// stack.
const MAX_DEPTH: usize = 32;
/// Files that are read, at most; one counts as often as it is included.
const MAX_FILES: usize = 1000;
/// Directives in all files, at most.
const MAX_DIRECTIVES: usize = 200_000;

/// One directive.
#[derive(Clone, Debug)]
pub(super) struct Directive {
    pub(super) name: String,
    pub(super) args: Vec<String>,
    /// What stands between its braces, if it has such.
    pub(super) block: Option<Vec<Directive>>,
    pub(super) place: Place,
}

impl Directive {
    /// An argument, or nothing.
    pub(super) fn arg(&self, at: usize) -> &str {
        self.args.get(at).map_or("", String::as_str)
    }

    /// As it is written, in one line.
    pub(super) fn line(&self) -> String {
        let mut line = self.name.clone();
        for arg in &self.args {
            line.push(' ');
            line.push_str(if arg.is_empty() { "\"\"" } else { arg });
        }
        line
    }

    /// What stands in its block.
    pub(super) fn inner(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }
}

/// Reads a file and all that it includes.
pub(super) fn read(path: &Path, notes: &mut Notes) -> Result<Vec<Directive>, ImportError> {
    let text = files::text(path)?;
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    let mut reader = Reader {
        folder,
        files: 1,
        depth: 0,
        directives: 0,
        notes,
    };
    let file: Rc<str> = path.display().to_string().into();
    let mut words = Words::new(&text);
    reader.list(&mut words, &file, false)
}

struct Reader<'n> {
    /// Where `include` looks.
    folder: PathBuf,
    files: usize,
    /// Blocks and included files around the place that is read.
    depth: usize,
    directives: usize,
    notes: &'n mut Notes,
}

impl Reader<'_> {
    /// Directives until the end of the block, or of the file outside of a block.
    fn list(
        &mut self,
        words: &mut Words<'_>,
        file: &Rc<str>,
        in_block: bool,
    ) -> Result<Vec<Directive>, ImportError> {
        let bad = |line, what: &str| ImportError::Syntax {
            place: Place {
                file: file.clone(),
                line,
            },
            what: what.to_owned(),
        };
        let broken = |word: BadWord| bad(word.line, word.what);
        if self.depth > MAX_DEPTH {
            return Err(bad(words.line(), "blocks are nested too deep"));
        }
        let mut list = Vec::new();
        let mut line: Option<(usize, Vec<String>)> = None;
        loop {
            let token = words.next().map_err(broken)?;
            match (token, line.take()) {
                (Some(Token::Word(word)), None) => line = Some((words.line(), vec![word])),
                (Some(Token::Word(word)), Some((at, mut found))) => {
                    found.push(word);
                    line = Some((at, found));
                }
                (Some(Token::Close), None) if in_block => return Ok(list),
                (None, None) if !in_block => return Ok(list),
                (None, None) => return Err(bad(words.line(), "a `}` is missing")),
                (Some(Token::Close), None) => return Err(bad(words.line(), "a `}` too many")),
                (Some(Token::End | Token::Open), None) => {
                    return Err(bad(words.line(), "a directive's name is missing"));
                }
                (Some(Token::Close) | None, Some((at, _))) => {
                    return Err(bad(at, "the `;` is missing"));
                }
                (Some(Token::End), Some((at, found))) => {
                    let one = self
                        .directive(found, None, file, at)
                        .map_err(|what| bad(at, what))?;
                    match one.name == "include" {
                        true => list.extend(self.included(&one)?),
                        false => list.push(one),
                    }
                }
                (Some(Token::Open), Some((at, found))) => {
                    let foreign = found[0].ends_with("_by_lua_block");
                    let block = match foreign {
                        true => words.skip_block().map(|()| Vec::new()).map_err(broken)?,
                        false => self.deeper(words, file, true)?,
                    };
                    let one = self.directive(found, Some(block), file, at);
                    list.push(one.map_err(|what| bad(at, what))?);
                }
            }
        }
    }

    /// The same, one level deeper.
    fn deeper(
        &mut self,
        words: &mut Words<'_>,
        file: &Rc<str>,
        in_block: bool,
    ) -> Result<Vec<Directive>, ImportError> {
        self.depth += 1;
        let list = self.list(words, file, in_block);
        self.depth -= 1;
        list
    }

    fn directive(
        &mut self,
        words: Vec<String>,
        block: Option<Vec<Directive>>,
        file: &Rc<str>,
        line: usize,
    ) -> Result<Directive, &'static str> {
        self.directives += 1;
        if self.directives > MAX_DIRECTIVES {
            return Err("too many directives");
        }
        let mut words = words.into_iter();
        Ok(Directive {
            name: words.next().unwrap_or_default(),
            args: words.collect(),
            block,
            place: Place {
                file: file.clone(),
                line,
            },
        })
    }

    /// What the files hold that an `include` names, relative to the first file's folder.
    fn included(&mut self, include: &Directive) -> Result<Vec<Directive>, ImportError> {
        let mut list = Vec::new();
        for path in files::matching(&self.folder, include.arg(0)) {
            // Types of files by their endings: what a file server needs.
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
            let text = match files::text(&path) {
                Ok(text) => text,
                Err(why) => {
                    let why = why.to_string();
                    self.notes.lost(&include.place, &include.line(), why);
                    // It stays, since it may have guarded what it stands in.
                    list.push(include.clone());
                    continue;
                }
            };
            let file: Rc<str> = path.display().to_string().into();
            list.extend(self.deeper(&mut Words::new(&text), &file, false)?);
        }
        Ok(list)
    }
}
