//! Which format a line has, told by how it begins: a log may change its format halfway.
//!
//! Pure.

use super::entry::{Entry, Fault, Format};
use super::plain::{self, Plain};
use super::structured::{self, HeaderFrom};
use super::text::{self, Dates, Wanted};

/// Bytes of a line, at most.
pub const MAX_LINE: usize = 1 << 20;

/// Reads the lines of one log.
#[derive(Debug)]
pub struct Reader {
    forced: Option<Format>,
    from: Vec<HeaderFrom>,
    dates: Dates,
    /// What anybody asks for.
    pub wanted: Wanted,
}

impl Reader {
    /// Of logs in this format, or in any.
    pub fn new(forced: Option<Format>, from: &[HeaderFrom]) -> Reader {
        Reader {
            forced,
            from: from.to_vec(),
            dates: Dates::default(),
            wanted: Wanted::ALL,
        }
    }

    /// What a line says that is plain; nothing where it must be read in full.
    pub fn plain<'l>(&mut self, line: &'l [u8]) -> Option<Plain<'l>> {
        let of_words = matches!(self.forced, None | Some(Format::Common | Format::Combined));
        match of_words && line.len() < MAX_LINE {
            true => plain::read(line.trim_ascii_end(), &mut self.dates, self.wanted),
            false => None,
        }
    }

    /// What a line says.
    pub fn read<'l>(&mut self, line: &'l [u8]) -> Result<(Entry<'l>, Format), Fault> {
        if line.len() >= MAX_LINE {
            return Err(Fault::Long);
        }
        let line = line.trim_ascii_end();
        let (is_object, is_own) = match self.forced {
            None => (line.first() == Some(&b'{'), text::is_own(line)),
            Some(Format::Common | Format::Combined) => (false, false),
            Some(Format::OwnText) => (false, true),
            Some(Format::Json | Format::Caddy | Format::Own) => (true, false),
        };
        if is_object {
            structured::object(line, &self.from)
        } else if is_own {
            let entry = text::own(line, &mut self.dates)?;
            Ok((entry, Format::OwnText))
        } else {
            text::common(line, &mut self.dates, self.wanted)
        }
    }
}

#[cfg(test)]
mod tests;
