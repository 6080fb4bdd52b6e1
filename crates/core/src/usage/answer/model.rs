//! The name of the model, as the answer has it.

use super::super::scan::Piece;

/// Bytes of a model's name that are kept.
pub const MAX_MODEL: usize = 62;

/// The first name that is not empty.
#[derive(Clone, Debug)]
pub(super) struct ModelName {
    bytes: [u8; MAX_MODEL],
    length: u8,
    state: ModelState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelState {
    Unknown,
    /// Among the bytes of the name.
    Reading,
    /// The event that is read has named it.
    Read,
    Known,
}

impl Default for ModelName {
    fn default() -> ModelName {
        ModelName {
            bytes: [0; MAX_MODEL],
            length: 0,
            state: ModelState::Unknown,
        }
    }
}

impl ModelName {
    pub(super) fn is_known(&self) -> bool {
        self.state == ModelState::Known
    }

    pub(super) fn name(&self) -> Option<&str> {
        let name = &self.bytes[..usize::from(self.length)];
        let known = self.is_known().then_some(name)?;
        match std::str::from_utf8(known) {
            Ok(name) => Some(name),
            // The name was cut within a character.
            Err(error) => std::str::from_utf8(&known[..error.valid_up_to()]).ok(),
        }
    }

    pub(super) fn read(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Text(text) if self.state != ModelState::Known => {
                if self.state != ModelState::Reading {
                    self.state = ModelState::Reading;
                    self.length = 0;
                }
                let room = &mut self.bytes[usize::from(self.length)..];
                let length = room.len().min(text.len());
                room[..length].copy_from_slice(&text[..length]);
                self.length += length as u8;
            }
            Piece::TextEnd if self.state == ModelState::Reading => {
                self.state = ModelState::Read;
            }
            _ => {}
        }
    }

    /// An event that is no JSON names no model.
    pub(super) fn end_event(&mut self, is_json: bool) {
        if matches!(self.state, ModelState::Reading | ModelState::Read) {
            self.state = match is_json {
                true => ModelState::Known,
                false => ModelState::Unknown,
            };
        }
    }
}
