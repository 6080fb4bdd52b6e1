//! A terminal for a picture: raw, on a screen of its own, and given back as it was found, also
//! when something panics.

use std::io::{IsTerminal, Read, Write};
use std::sync::{Mutex, PoisonError};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use super::frame::Size;
use super::state::Key;
use crate::cli::ink::Line;

/// Another screen, no cursor, and lines that do not wrap (xterm's private modes).
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// What terminals have that do not say.
const USUAL: Size = Size {
    columns: 80,
    rows: 24,
};

/// How the terminal was; nothing where it is as it was.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// A terminal that was taken; given back when this is dropped.
#[derive(Debug)]
pub(super) struct Terminal {
    colour: bool,
}

impl Terminal {
    /// Takes it.
    pub(super) fn take(colour: bool) -> std::io::Result<Terminal> {
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        // What is said of a panic would be lost with the screen that it is written on.
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            usual(panic);
        }));
        tcsetattr(&stdin, OptionalActions::Flush, &raw)?;
        write(ENTER)?;
        Ok(Terminal { colour })
    }

    /// Shows these lines and nothing else. All is written at once: nothing flickers.
    pub(super) fn draw(&self, lines: &[Line]) -> std::io::Result<()> {
        let mut text = "\x1b[H".to_owned();
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                text.push_str("\r\n");
            }
            // Without colours, one line is still told from the others.
            let rendered = match line.chosen && !self.colour {
                true => format!("\x1b[7m{}\x1b[0m", line.render(false)),
                false => line.render(self.colour),
            };
            text.push_str(&rendered);
            text.push_str("\x1b[K");
        }
        text.push_str("\x1b[J");
        write(&text)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

fn give_back() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(before) = before else { return };
    // A terminal that has gone needs nothing any more.
    let _ = write(LEAVE);
    let _ = tcsetattr(std::io::stdin(), OptionalActions::Flush, &before);
}

fn write(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Whether somebody looks, and can press keys.
pub(super) fn is_there() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// What fits now.
pub(super) fn size() -> Size {
    let Ok(told) = tcgetwinsize(std::io::stdout()) else {
        return USUAL;
    };
    match (told.ws_col, told.ws_row) {
        (0, _) | (_, 0) => USUAL,
        (columns, rows) => Size {
            columns: columns.into(),
            rows: rows.into(),
        },
    }
}

/// Keys as they are pressed, read on a thread of its own; it ends with the process.
pub(super) fn keys() -> std::io::Result<mpsc::UnboundedReceiver<Key>> {
    let (sender, keys) = mpsc::unbounded_channel();
    let read = move || {
        let mut buffer = [0; 64];
        loop {
            let pressed = match std::io::stdin().read(&mut buffer) {
                Ok(0) | Err(_) => vec![Key::Interrupt],
                Ok(many) => read(&buffer[..many]),
            };
            for key in pressed {
                if sender.send(key).is_err() || key == Key::Interrupt {
                    return;
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("keys".to_owned())
        .spawn(read)?;
    Ok(keys)
}

/// What was pressed, of what a terminal sends for it; what is not known is left out.
fn read(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((first, rest)) = bytes.split_first() {
        bytes = rest;
        match first {
            0x1b if matches!(rest.first(), Some(b'[' | b'O')) => {
                // CSI: parameters, then a letter that ends it.
                let rest = &rest[1..];
                let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte));
                let end = end.unwrap_or(rest.len());
                keys.extend(match rest.get(end) {
                    Some(b'A') => Some(Key::Up),
                    Some(b'B') => Some(Key::Down),
                    Some(b'C') => Some(Key::Right),
                    Some(b'D') => Some(Key::Left),
                    Some(b'Z') => Some(Key::Tab),
                    _ => None,
                });
                bytes = rest.get(end + 1..).unwrap_or_default();
            }
            0x1b => keys.push(Key::Escape),
            3 | 4 => keys.push(Key::Interrupt),
            b'\t' => keys.push(Key::Tab),
            b'\r' | b'\n' => keys.push(Key::Enter),
            byte if byte.is_ascii_graphic() => keys.push(Key::Char(char::from(*byte))),
            _ => {}
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_terminals_send_them() {
        assert_eq!(
            read(b"q\x1b[A\x1bOB\x1b[1;5C\x1b[D\t\r\x1b[3~s\x1b"),
            [
                Key::Char('q'),
                Key::Up,
                Key::Down,
                Key::Right,
                Key::Left,
                Key::Tab,
                Key::Enter,
                Key::Char('s'),
                Key::Escape,
            ]
        );
        assert_eq!(read(b"\x03"), [Key::Interrupt]);
        assert_eq!(read(b"\x1b["), []);
        assert_eq!(read("é\0".as_bytes()), []);
    }
}
