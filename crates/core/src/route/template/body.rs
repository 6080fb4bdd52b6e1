//! Bodies of responses with variables.

use http::HeaderValue;

use super::escape::Escape;
use super::{LateText, Template, TemplateError, TemplateFacts, TooLong};

/// The body of a response of the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyTemplate {
    template: Template,
    escape: Escape,
}

impl BodyTemplate {
    pub fn parse(text: &str) -> Result<BodyTemplate, TemplateError> {
        let is_text = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
        if !text.chars().all(is_text) {
            return Err(TemplateError::Control);
        }
        Ok(BodyTemplate {
            template: Template::parse_with(text, &[])?,
            escape: Escape::None,
        })
    }

    /// Escapes values for the media types that browsers run scripts of.
    #[must_use]
    pub fn of_type(self, media_type: &HeaderValue) -> BodyTemplate {
        let media_type = media_type.as_bytes().to_ascii_lowercase();
        let has = |word: &[u8]| media_type.windows(word.len()).any(|part| part == word);
        BodyTemplate {
            escape: match has(b"html") || has(b"xml") {
                true => Escape::Html,
                false => Escape::None,
            },
            ..self
        }
    }

    pub fn template(&self) -> &Template {
        &self.template
    }

    /// Fills in the variables of the request. Those of the response are left.
    pub fn fill(&self, facts: &TemplateFacts<'_>) -> Result<LateText, TooLong> {
        let text = self.template.fill_escaped(facts, self.escape);
        text.bounded(facts.max_value)
    }
}
