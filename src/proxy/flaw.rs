//! Flaws in the bytes of a head that hyper could read all the same; found by the client's socket,
//! refused by the path.

/// What is wrong with the bytes of a head although hyper could read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A line ended in LF alone.
    BareLf,
    /// Content-Length and Transfer-Encoding in one head.
    TwoLengths,
    /// More bytes or lines than the configuration allows.
    HeadTooLarge,
    /// Plain HTTP where TLS is spoken.
    WithoutTls,
}

impl Flaw {
    /// A number for an atomic; 0 stands for no flaw.
    pub(crate) fn code(self) -> u8 {
        match self {
            Flaw::BareLf => 1,
            Flaw::TwoLengths => 2,
            Flaw::HeadTooLarge => 3,
            Flaw::WithoutTls => 4,
        }
    }

    /// The flaw of a code.
    pub(crate) fn from_code(code: u8) -> Option<Flaw> {
        let all = [
            Flaw::BareLf,
            Flaw::TwoLengths,
            Flaw::HeadTooLarge,
            Flaw::WithoutTls,
        ];
        all.into_iter().find(|flaw| flaw.code() == code)
    }
}
