//! Sets of response statuses, as a file names them: `"5xx"`, `"404"`.

use http::StatusCode;

/// Some statuses: whole classes, and single ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusSet {
    /// Bit n stands for class n.
    classes: u8,
    codes: Vec<u16>,
}

impl StatusSet {
    /// Adds a class (`5xx`) or one status (`404`); says what to write if `text` is neither.
    pub fn add(&mut self, text: &str) -> Result<(), &'static str> {
        const WRITE: &str = "write a class such as `5xx`, or a status such as `404`";
        let digit = |byte: u8| byte.wrapping_sub(b'0');
        match *text.as_bytes() {
            [class @ b'1'..=b'5', b'x', b'x'] => self.classes |= 1 << digit(class),
            [b'1'..=b'5', b'0'..=b'9', b'0'..=b'9'] => {
                self.codes.push(text.parse().map_err(|_| WRITE)?);
            }
            _ => return Err(WRITE),
        }
        Ok(())
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.classes == 0 && self.codes.is_empty()
    }

    /// Whether `status` is in it.
    pub fn contains(&self, status: StatusCode) -> bool {
        let code = status.as_u16();
        self.classes & (1 << (code / 100).min(7)) != 0 || self.codes.contains(&code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_codes() {
        let mut set = StatusSet::default();
        assert!(set.is_empty());
        set.add("5xx").unwrap();
        set.add("404").unwrap();
        for (status, expected) in [(500, true), (599, true), (404, true), (400, false)] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(set.contains(status), expected, "{status}");
        }
        for wrong in ["", "6xx", "5XX", "50", "5000", "600", "5x5"] {
            assert!(set.add(wrong).is_err(), "{wrong}");
        }
    }
}
