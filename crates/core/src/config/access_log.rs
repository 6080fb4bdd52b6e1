//! `[access_log.NAME]`: logs of requests in forms of their own.

use super::*;
use crate::route::template::LineTemplate;
use crate::route::{RouteLog, StatusSet};

/// `[access_log.NAME]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLog {
    pub name: Box<str>,
    pub target: LogTarget,
    pub lines: Arc<RouteLog>,
}

/// The logs of a file, in its order.
#[derive(Default)]
pub(super) struct DefinedLogs(pub(super) Vec<NamedLog>);

pub(super) fn read_all(top: &mut Section<'_>) -> DefinedLogs {
    let mut defined = DefinedLogs::default();
    if !top.reader.surroundings.forwards {
        return defined;
    }
    for (name, mut section) in top.named("access_log") {
        section.check_name(&name, "access_log");
        section.require("to", "to = \"/var/log/tidegate/requests.log\"");
        section.require("format", "format = \"{client_ip} {method} {uri} {status}\"");
        let (target, line) = (target(&mut section), line(&mut section));
        let statuses = statuses(&mut section);
        let condition = condition(&mut section);
        section.finish();
        let (Some(target), Some(line)) = (target, line) else {
            continue;
        };
        let place = defined.0.len();
        defined.0.push(NamedLog {
            name: name.value.as_str().into(),
            target,
            lines: Arc::new(RouteLog {
                place,
                line,
                statuses,
                condition,
            }),
        });
    }
    // A file without such a section declares the settings all the same.
    let mut absent = Section::absent(top.reader, "access_log.NAME", 0..0);
    target(&mut absent);
    line(&mut absent);
    statuses(&mut absent);
    condition(&mut absent);
    defined
}

fn target(section: &mut Section<'_>) -> Option<LogTarget> {
    let target = server::log_target(section, "to");
    if target == Some(LogTarget::Off) {
        contradiction("an access log needs a place")
            .at(&section.value_span("to"), "")
            .help("remove the section, or write `stdout`, `stderr` or a file's path")
            .report_to(section.reader);
    }
    target
}

fn line(section: &mut Section<'_>) -> Option<LineTemplate> {
    let form = TextForm::new(Code::BadTemplate, "the form of a line");
    let line = section.parse("format", form, LineTemplate::parse)?;
    section.check_for_all_routes("format", line.template());
    Some(line)
}

fn statuses(section: &mut Section<'_>) -> StatusSet {
    let statuses = section.one_or_more_statuses("status", |_| Ok(()));
    statuses.unwrap_or_default()
}

fn condition(section: &mut Section<'_>) -> Option<LineTemplate> {
    let form = TextForm::new(Code::BadTemplate, "a condition of lines");
    let condition = section.parse("if", form, LineTemplate::parse_condition)?;
    section.check_for_all_routes("if", condition.template());
    Some(condition)
}

impl DefinedLogs {
    /// The logs that a route names; all if it names none.
    pub(super) fn of_route(
        &self,
        reader: &ConfigReader<'_>,
        names: Option<&[Located<String>]>,
    ) -> Vec<Arc<RouteLog>> {
        let Some(names) = names else {
            return self.0.iter().map(|log| Arc::clone(&log.lines)).collect();
        };
        let mut logs = Vec::new();
        for name in names {
            match self.0.iter().find(|log| *log.name == *name.value) {
                Some(log) => logs.push(Arc::clone(&log.lines)),
                None => self.report_unknown(reader, name),
            }
        }
        logs
    }

    fn report_unknown(&self, reader: &ConfigReader<'_>, name: &Located<String>) {
        let names = self.0.iter().map(|known| &*known.name);
        let otherwise = format!("define it: `[access_log.{}]`", name.value);
        name.unknown(Code::UnknownWord, "access log")
            .help(did_you_mean(&name.value, names, otherwise))
            .report_to(reader);
    }
}
