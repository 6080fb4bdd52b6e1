//! Whether what a route does with its requests fits the rest of it.

use super::super::diagnostic::{Code, Diagnostic, Span};
use super::super::names::Names;
use super::super::route::RawRoute;
use crate::route::template::Template;
use crate::route::{Action, HeaderText, Target};

/// Reports what does not.
pub(super) fn check(names: &Names<'_>, raw: &RawRoute) {
    check_prefix(names, raw);
    let passing = &raw.passing;
    for change in passing.headers_up.iter().chain(&passing.headers_down) {
        if let Action::Set(HeaderText::Made(text)) | Action::Add(HeaderText::Made(text)) =
            &change.value.action
        {
            check_variables(names, raw, text, &change.span);
        }
    }
    if let Some(answer) = &passing.answer
        && let Some(Target::Redirect(redirect)) = &answer.value
    {
        check_variables(names, raw, redirect.to(), &answer.span);
    }
    let Some(settle) = &raw.settle else { return };
    let same = passing
        .headers_down
        .iter()
        .find(|change| change.value.name == settle.value);
    if let Some(change) = same {
        let message = format!("`{}` never reaches the client", settle.value);
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(&change.span, "is changed")
            .at(&settle.span, "settles, and is taken off by that");
        names.reader.report(diagnostic);
    }
}

/// Parameters and the rest are those of the route's own path.
fn check_variables(names: &Names<'_>, raw: &RawRoute, text: &Template, span: &Span) {
    let Some(path) = &raw.path else { return };
    if let Some(unknown) = text.unknown_to(&path.value) {
        let message = format!("the path has nothing for `{{{unknown}}}`");
        let diagnostic = Diagnostic::new(Code::NoSuchParameter, message)
            .at(span, "asked for here")
            .at(&path.span, "paths of the route");
        names.reader.report(diagnostic);
    }
}

/// What is taken off must be there in every path that the route takes.
fn check_prefix(names: &Names<'_>, raw: &RawRoute) {
    let (Some(path), Some(prefix)) = (&raw.path, &raw.passing.strip_prefix) else {
        return;
    };
    let case = raw.case.or(names.case).unwrap_or_default();
    let (whole, begin) = (
        path.value.clone().in_case(case),
        prefix.value.clone().in_case(case),
    );
    if !whole.begins_with(begin.as_str()) {
        let diagnostic = Diagnostic::new(Code::Contradiction, "not every path begins with this")
            .at(&prefix.span, "is taken off")
            .at(&path.span, "paths of the route")
            .help(format!(
                "write for example `path = \"{}/*\"`",
                prefix.value.as_str()
            ));
        names.reader.report(diagnostic);
    }
}
