//! Values of response headers that tell the attempts to send the request: filled in two steps.

use super::{MAX_VALUE, Template, TemplateFacts, TemplatePiece, TooLong, Variable};

/// A variable that has a value only when the response is there. Several attempts are separated by
/// `, `, as in nginx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptVariable {
    /// The server's address.
    Address,
    Status,
    /// Seconds until the head of the response, such as `0.012`.
    Time,
}

/// A value with all variables of the request filled in.
#[derive(Clone, Debug)]
pub struct LateText {
    pieces: Vec<LatePiece>,
}

#[derive(Clone, Debug)]
enum LatePiece {
    Bytes(Vec<u8>),
    Attempts(AttemptVariable),
}

impl Template {
    pub fn tells_attempts(&self) -> bool {
        self.variables()
            .any(|variable| matches!(variable, Variable::Attempts(_)))
    }

    /// Fills in the variables of the request.
    pub fn fill_late(&self, facts: &TemplateFacts<'_>) -> Result<LateText, TooLong> {
        let mut pieces = Vec::with_capacity(self.pieces.len());
        let mut length = 0;
        for piece in &self.pieces {
            let mut bytes = Vec::new();
            match piece {
                TemplatePiece::Text(text) => bytes.extend_from_slice(text.as_bytes()),
                TemplatePiece::Variable(Variable::Attempts(variable)) => {
                    pieces.push(LatePiece::Attempts(*variable));
                    continue;
                }
                TemplatePiece::Variable(variable) => variable.write(&mut bytes, facts),
            }
            length += bytes.len();
            if length > MAX_VALUE {
                return Err(TooLong);
            }
            pieces.push(LatePiece::Bytes(bytes));
        }
        Ok(LateText { pieces })
    }
}

impl LateText {
    pub fn fill(&self, value_of: impl Fn(AttemptVariable) -> String) -> Vec<u8> {
        let mut value = Vec::new();
        for piece in &self.pieces {
            match piece {
                LatePiece::Bytes(bytes) => value.extend_from_slice(bytes),
                LatePiece::Attempts(variable) => {
                    value.extend_from_slice(value_of(*variable).as_bytes());
                }
            }
        }
        value
    }
}
