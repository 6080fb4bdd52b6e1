//! Lines of an access log: filled in two steps, as values of response headers.

use super::escape::Escape;
use super::late::LineVariable;
use super::{LateText, late};
use super::{Template, TemplateError, TemplateFacts, Variable};

/// Variables that only lines of a log have.
pub(super) const LINE_WORDS: [(&str, Variable); 8] = [
    ("status", LineVariable::STATUS),
    ("bytes_sent", LineVariable::BYTES_SENT),
    ("body_bytes_sent", LineVariable::BODY_BYTES_SENT),
    ("time", LineVariable::TIME),
    ("common_time", LineVariable::COMMON_TIME),
    ("upstream_bytes_sent", late::LateVariable::BYTES_SENT),
    (
        "upstream_bytes_received",
        late::LateVariable::BYTES_RECEIVED,
    ),
    ("upstream_body_bytes", late::LateVariable::BODY_BYTES),
];

/// The form of the lines of an access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineTemplate {
    template: Template,
    escape: Escape,
}

impl LineTemplate {
    /// A text that begins with a brace is JSON.
    pub fn parse(text: &str) -> Result<LineTemplate, TemplateError> {
        if text.chars().any(char::is_control) {
            return Err(TemplateError::Control);
        }
        let template = Template::parse_with(text, &LINE_WORDS)?;
        let is_json = text.trim_start().starts_with("{{");
        Ok(LineTemplate {
            template,
            escape: match is_json {
                true => Escape::Json,
                false => Escape::Text,
            },
        })
    }

    /// A condition, which is not written.
    pub fn parse_condition(text: &str) -> Result<LineTemplate, TemplateError> {
        let line = LineTemplate::parse(text)?;
        let escape = Escape::None;
        Ok(LineTemplate { escape, ..line })
    }

    pub fn template(&self) -> &Template {
        &self.template
    }

    /// Fills in the variables of the request.
    pub fn fill(&self, facts: &TemplateFacts<'_>) -> LateText {
        self.template.fill_escaped(facts, self.escape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_of_logs_tell_what_was_sent() {
        assert!(LineTemplate::parse("{bytes_sent} {header:x-a}").is_ok());
        assert!(Template::parse("{bytes_sent}").is_err());
        assert!(LineTemplate::parse("{bytes_sant}").is_err());
    }
}
