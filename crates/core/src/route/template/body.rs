//! Bodies of responses with variables.

use http::HeaderValue;

use super::{MAX_VALUE, Template, TemplateError, TemplateFacts, TemplatePiece, TooLong};

/// The body of a route's own response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyTemplate {
    template: Template,
    /// Whether values are escaped, so that no client can put a script into the page of another one.
    escapes_html: bool,
}

impl BodyTemplate {
    pub fn parse(text: &str) -> Result<BodyTemplate, TemplateError> {
        let is_text = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
        if !text.chars().all(is_text) {
            return Err(TemplateError::Control);
        }
        Ok(BodyTemplate {
            template: Template::parse_lines(text)?,
            escapes_html: false,
        })
    }

    /// Escapes values for the media types that browsers run scripts of.
    #[must_use]
    pub fn of_type(self, media_type: &HeaderValue) -> BodyTemplate {
        let media_type = media_type.as_bytes().to_ascii_lowercase();
        let has = |word: &[u8]| media_type.windows(word.len()).any(|part| part == word);
        BodyTemplate {
            escapes_html: has(b"html") || has(b"xml"),
            ..self
        }
    }

    pub fn template(&self) -> &Template {
        &self.template
    }

    pub fn fill(&self, facts: &TemplateFacts<'_>) -> Result<Vec<u8>, TooLong> {
        let mut body = Vec::new();
        let mut value = Vec::new();
        for piece in &self.template.pieces {
            match piece {
                TemplatePiece::Text(text) => body.extend_from_slice(text.as_bytes()),
                TemplatePiece::Variable(variable) => {
                    value.clear();
                    variable.write(&mut value, facts);
                    match self.escapes_html {
                        true => push_escaped(&mut body, &value),
                        false => body.extend_from_slice(&value),
                    }
                }
            }
            if body.len() > MAX_VALUE {
                return Err(TooLong);
            }
        }
        Ok(body)
    }
}

fn push_escaped(out: &mut Vec<u8>, value: &[u8]) {
    for byte in value {
        match byte {
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'&' => out.extend_from_slice(b"&amp;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            b'\'' => out.extend_from_slice(b"&#39;"),
            byte => out.push(*byte),
        }
    }
}
