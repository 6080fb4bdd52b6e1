//! Server-sent events, as far as the admin uses them (HTML, section 9.2.6).
//!
//! Pure: bytes in as they come, events out.

use serde_json::Value;

/// Bytes of one line, at most; a longer one is none of ours.
const MOST: usize = 1 << 20;

/// One event whose data is JSON.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    /// `message` where it does not say.
    pub(super) kind: String,
    pub(super) data: Value,
}

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// A line that has not ended.
    line: Vec<u8>,
    kind: String,
    data: String,
}

impl Events {
    /// The events that these bytes end.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        for &byte in bytes {
            if byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                let line = line.strip_suffix(b"\r").unwrap_or(&line);
                events.extend(self.line(&String::from_utf8_lossy(line)));
            } else if self.line.len() < MOST {
                self.line.push(byte);
            }
        }
        events
    }

    fn line(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let kind = std::mem::take(&mut self.kind);
            let data = std::mem::take(&mut self.data);
            let data = serde_json::from_str(&data).ok()?;
            let kind = if kind.is_empty() {
                "message".to_owned()
            } else {
                kind
            };
            return Some(Event { kind, data });
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => value.clone_into(&mut self.kind),
            "data" => {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            // A remark, or something that this is not about.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_the_same_in_whatever_pieces_they_come() {
        let text = [
            ": following\n\ndata: {\"limit\":\"a\"}\n\n",
            "event: dropped\r\ndata: {\"dropped\":\r\ndata: 3}\r\n\r\n",
            "id: 4\ndata: nonsense\n\ndata:{}\n\ndata: {\"cut\":",
        ]
        .concat();
        let expected = [
            ("message", json!({ "limit": "a" })),
            ("dropped", json!({ "dropped": 3 })),
            ("message", json!({})),
        ];
        let expected = expected.map(|(kind, data)| Event {
            kind: kind.to_owned(),
            data,
        });
        for size in 1..text.len() {
            let mut events = Events::default();
            let pieces = text.as_bytes().chunks(size);
            let found: Vec<Event> = pieces.flat_map(|piece| events.take(piece)).collect();
            assert_eq!(found, expected, "{size}");
        }
    }
}
