//! Windows as the records of a file describe them.

use std::collections::HashMap;

use super::record::FileRecord;
use crate::limit::{Algorithm, Rule};
use crate::store::memory::{Memory, WindowDescription, WindowNumber};

/// Windows that records have described so far.
#[derive(Debug, Default)]
pub(super) struct ReadWindows(HashMap<u64, ReadWindow>);

#[derive(Debug)]
struct ReadWindow {
    identity: u128,
    rule: Rule,
    name: Vec<u8>,
    number: Option<WindowNumber>,
}

impl ReadWindows {
    pub(super) fn read(&mut self, record: FileRecord) {
        match record {
            FileRecord::Window {
                identity,
                units,
                window_us,
            } => {
                let window = ReadWindow {
                    identity,
                    rule: Rule {
                        algorithm: Algorithm::Calendar,
                        units,
                        window_us,
                        precision_us: 1,
                    },
                    name: Vec::new(),
                    number: None,
                };
                self.0.insert(identity as u64, window);
            }
            FileRecord::Name { window, part } => {
                if let Some(window) = self.0.get_mut(&window) {
                    window.name.extend(part);
                }
            }
            FileRecord::Change { .. } | FileRecord::Reset { .. } => {}
        }
    }

    pub(super) fn number(&mut self, memory: &Memory, window: u64) -> WindowNumber {
        let Some(window) = self.0.get_mut(&window) else {
            return WindowNumber::default();
        };
        let number = || {
            memory.number_window(&WindowDescription {
                identity: window.identity,
                rule: window.rule,
                limit: String::from_utf8_lossy(&window.name).into(),
            })
        };
        *window.number.get_or_insert_with(number)
    }
}
