//! Flaws of a head that could be read; found where it is read, refused by the path.

/// What is wrong with a head although it could be read.
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
