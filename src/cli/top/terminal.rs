//! The terminal of `top`: raw mode on the alternate screen. It is restored at the end, also after a
//! panic.

use std::io::{IsTerminal, Read, Write};
use std::sync::{Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use super::frame::ScreenSize;
use super::state::PressedKey;
use crate::cli::display::StyledLine;

/// The alternate screen, without a cursor and without line wrap (xterm's private modes).
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// The size of a terminal that does not report one.
const DEFAULT_SIZE: ScreenSize = ScreenSize {
    columns: 80,
    rows: 24,
};

/// The settings to restore; none if nothing was changed.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// A terminal in raw mode; restored when this is dropped.
#[derive(Debug)]
pub(super) struct Terminal {
    colour: bool,
}

impl Terminal {
    pub(super) fn enter(colour: bool) -> std::io::Result<Terminal> {
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        // A panic message on the alternate screen would be lost.
        let default_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            default_hook(panic);
        }));
        tcsetattr(&stdin, OptionalActions::Flush, &raw)?;
        write(ENTER)?;
        Ok(Terminal { colour })
    }

    /// Replaces the picture in one write, so that it does not flicker.
    pub(super) fn draw(&self, lines: &[StyledLine]) -> std::io::Result<()> {
        let mut text = "\x1b[H".to_owned();
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                text.push_str("\r\n");
            }
            // Without colour, the selected line is still shown in reverse video.
            let rendered = match line.selected && !self.colour {
                true => format!("\x1b[7m{}\x1b[0m", line.render(false)),
                false => line.render(self.colour),
            };
            text.push_str(&rendered);
            text.push_str("\x1b[K");
        }
        text.push_str("\x1b[J");
        write(&text)
    }

    /// Sends a text to the clipboard of the terminal (xterm's OSC 52), which may ignore it.
    pub(super) fn copy(&self, text: &str) -> std::io::Result<()> {
        write(&format!("\x1b]52;c;{}\x07", STANDARD.encode(text)))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(before) = before else { return };
    // Errors do not matter: the terminal may be closed.
    let _ = write(LEAVE);
    let _ = tcsetattr(std::io::stdin(), OptionalActions::Flush, &before);
}

fn write(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

pub(super) fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

pub(super) fn size() -> ScreenSize {
    match tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => ScreenSize {
            columns: size.ws_col.into(),
            rows: size.ws_row.into(),
        },
        _ => DEFAULT_SIZE,
    }
}

/// Starts a thread that reads keys until the process ends.
pub(super) fn read_keys() -> std::io::Result<mpsc::UnboundedReceiver<PressedKey>> {
    let (sender, keys) = mpsc::unbounded_channel();
    let read = move || {
        let mut buffer = [0; 64];
        loop {
            let pressed = match std::io::stdin().read(&mut buffer) {
                Ok(0) | Err(_) => vec![PressedKey::Interrupt],
                Ok(many) => parse_keys(&buffer[..many]),
            };
            for key in pressed {
                if sender.send(key).is_err() || key == PressedKey::Interrupt {
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

/// Parses what a terminal sends for keys; unknown bytes are skipped.
fn parse_keys(mut bytes: &[u8]) -> Vec<PressedKey> {
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
                    Some(b'A') => Some(PressedKey::Up),
                    Some(b'B') => Some(PressedKey::Down),
                    Some(b'C') => Some(PressedKey::Right),
                    Some(b'D') => Some(PressedKey::Left),
                    Some(b'Z') => Some(PressedKey::Tab),
                    _ => None,
                });
                bytes = rest.get(end + 1..).unwrap_or_default();
            }
            0x1b => keys.push(PressedKey::Escape),
            3 | 4 => keys.push(PressedKey::Interrupt),
            b'\t' => keys.push(PressedKey::Tab),
            b'\r' | b'\n' => keys.push(PressedKey::Enter),
            0x08 | 0x7f => keys.push(PressedKey::Backspace),
            byte if byte.is_ascii_graphic() || *byte == b' ' => {
                keys.push(PressedKey::Char(char::from(*byte)))
            }
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
            parse_keys(b"q\x1b[A\x1bOB\x1b[1;5C\x1b[D\t\r\x1b[3~s\x1b"),
            [
                PressedKey::Char('q'),
                PressedKey::Up,
                PressedKey::Down,
                PressedKey::Right,
                PressedKey::Left,
                PressedKey::Tab,
                PressedKey::Enter,
                PressedKey::Char('s'),
                PressedKey::Escape,
            ]
        );
        assert_eq!(parse_keys(b"\x03"), [PressedKey::Interrupt]);
        assert_eq!(
            parse_keys(b" \x7f"),
            [PressedKey::Char(' '), PressedKey::Backspace]
        );
        assert_eq!(parse_keys(b"\x1b["), []);
        assert_eq!(parse_keys("é\0".as_bytes()), []);
    }
}
