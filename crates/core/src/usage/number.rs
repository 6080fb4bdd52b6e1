//! The value of a number of JSON, read digit by digit, exactly: `100`, `1e2` and `100.0` are one.

/// Reads a number that is not negative: `5`, `4.2`, `1e3`. Rounds a fraction up. `u64::MAX` stands
/// for all that do not fit.
pub fn rounded_up(text: &str) -> Option<u64> {
    if let Ok(whole) = text.parse() {
        return Some(whole);
    }
    // Not `inf` and `nan`.
    let is_number = text.starts_with(|first: char| first.is_ascii_digit());
    let number: f64 = text.parse().ok().filter(|_| is_number)?;
    // The conversion saturates.
    Some(number.ceil() as u64)
}

/// A number so far: `mantissa * 10^(zeros - fraction + exponent)`. The mantissa ends with no zero,
/// so the number is whole if that power is not negative. Counts of digits stop at their largest
/// value; a number with so many is taken for one that does not fit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Decimal {
    mantissa: u64,
    /// Zeros behind the digits of the mantissa.
    zeros: u16,
    /// Digits behind the point, zeros included.
    fraction: u16,
    exponent: u16,
    signs: Signs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Signs {
    #[default]
    None,
    Negative,
    NegativeExponent,
    /// The number is not negative, and its mantissa has more digits than fit.
    Long,
    LongNegativeExponent,
}

impl Decimal {
    /// Takes the sign before the digits.
    pub(super) fn negate(&mut self) {
        self.signs = Signs::Negative;
    }

    /// Takes the sign before the digits of the exponent.
    pub(super) fn negate_exponent(&mut self) {
        self.signs = match self.signs {
            Signs::None => Signs::NegativeExponent,
            Signs::Long => Signs::LongNegativeExponent,
            other => other,
        };
    }

    /// Adds a digit before the point.
    pub(super) fn push(&mut self, digit: u8) {
        if digit == b'0' {
            self.zeros = self.zeros.saturating_add(1);
            return;
        }
        let shift = 10_u64.checked_pow(u32::from(self.zeros) + 1);
        let shifted = match self.mantissa {
            0 => Some(0),
            mantissa => shift.and_then(|shift| mantissa.checked_mul(shift)),
        };
        let sum = shifted.and_then(|shifted| shifted.checked_add(u64::from(digit - b'0')));
        match sum {
            Some(sum) if self.signs != Signs::Long => self.mantissa = sum,
            _ if self.signs == Signs::None => self.signs = Signs::Long,
            _ => {}
        }
        if self.zeros != u16::MAX {
            self.zeros = 0;
        }
    }

    /// Adds a digit behind the point.
    pub(super) fn push_fraction(&mut self, digit: u8) {
        self.fraction = self.fraction.saturating_add(1);
        self.push(digit);
    }

    pub(super) fn push_exponent(&mut self, digit: u8) {
        let exponent = u32::from(self.exponent) * 10 + u32::from(digit - b'0');
        self.exponent = u16::try_from(exponent).unwrap_or(u16::MAX);
    }

    /// The number, if it is whole and not negative; `u64::MAX` stands for all that do not fit.
    pub(super) fn whole(self) -> Option<u64> {
        if self.signs == Signs::Negative {
            return None;
        }
        if self.mantissa == 0 {
            return Some(0);
        }
        if self.zeros == u16::MAX || self.fraction == u16::MAX {
            return Some(u64::MAX);
        }
        let exponent = match self.signs {
            Signs::NegativeExponent | Signs::LongNegativeExponent => -i32::from(self.exponent),
            _ => i32::from(self.exponent),
        };
        let power = i32::from(self.zeros) - i32::from(self.fraction) + exponent;
        let power = u32::try_from(power).ok()?;
        if matches!(self.signs, Signs::Long | Signs::LongNegativeExponent) {
            return Some(u64::MAX);
        }
        let scale = 10_u64.checked_pow(power);
        let scaled = scale.and_then(|scale| self.mantissa.checked_mul(scale));
        Some(scaled.unwrap_or(u64::MAX))
    }
}
