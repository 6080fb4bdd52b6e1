//! `headers_up` and `headers_down`: what a route changes in heads.

use toml::Spanned;
use toml::de::DeValue;

use super::super::diagnostic::{Code, Diagnostic};
use super::super::reader::At;
use super::super::section::Section;
use super::super::values::{TextForm, header_name};
use crate::route::{Action, Direction, HeaderChange, HeaderText};

/// Changes of one kind of head, at most.
const MAX_CHANGES: usize = 64;

/// A value with its variables.
fn text(section: &Section<'_>, key: &str, value: &Spanned<DeValue<'_>>) -> Option<HeaderText> {
    let text = section.filled(value)?;
    let kind = TextForm::new(Code::BadTemplate, "a header's value");
    let text = section.understood(key, text, kind, HeaderText::parse)?;
    Some(text.value)
}

/// `{ "x-a" = "set", "+x-b" = "added", "x-c" = false }`, in the file's order.
pub(super) fn changes(section: Section<'_>, direction: Direction) -> Vec<At<HeaderChange>> {
    let mut changes: Vec<At<HeaderChange>> = Vec::new();
    for (key, value) in section.entries() {
        let written = key.value.clone();
        let added = written.strip_prefix('+');
        let name = At {
            value: added.unwrap_or(&written).to_owned(),
            span: key.span.clone(),
        };
        let kind = TextForm::HEADER_NAME;
        let Some(name) = section.understood(&written, name, kind, header_name) else {
            continue;
        };
        if let Err(why) = HeaderChange::may_touch(&name.value, direction) {
            let message = format!("`{}` cannot be changed here", name.value);
            let diagnostic = Diagnostic::new(Code::BadHttp, message).because(&name.span, &why);
            section.reader.report(diagnostic);
            continue;
        }
        let actions = match value.get_ref() {
            DeValue::Boolean(false) if added.is_none() => vec![Action::Remove],
            DeValue::String(_) => {
                let text = text(&section, &written, value);
                let action = match added {
                    Some(_) => text.map(Action::Add),
                    None => text.map(Action::Set),
                };
                Vec::from_iter(action)
            }
            DeValue::Array(list) if added.is_some() && !list.is_empty() => {
                let texts = list.iter().filter_map(|one| text(&section, &written, one));
                texts.map(Action::Add).collect()
            }
            _ => {
                let wanted = "a value, `false` to remove it, or with `+` a list of values";
                section.wrong_type(&written, value, wanted);
                continue;
            }
        };
        let Some(action) = actions.first() else {
            continue;
        };
        let adds = matches!(action, Action::Add(_));
        let same = |one: &&At<HeaderChange>| {
            one.value.name == name.value && matches!(one.value.action, Action::Add(_)) == adds
        };
        if let Some(first) = changes.iter().find(same) {
            let diagnostic = Diagnostic::new(Code::Duplicate, format!("`{written}` twice"))
                .at(&name.span, "")
                .at(&first.span, "first here");
            section.reader.report(diagnostic);
        }
        for action in actions {
            let change = |name| HeaderChange { name, action };
            changes.push(name.clone().map(change));
        }
    }
    if changes.len() > MAX_CHANGES {
        let message = format!("`{}` has more than {MAX_CHANGES} headers", section.name());
        let diagnostic = Diagnostic::new(Code::OutOfRange, message).at(&section.span, "");
        section.reader.report(diagnostic);
    }
    changes
}
