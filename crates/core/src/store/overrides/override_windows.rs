//! The windows of an override, with the calendar of its limit.

use std::borrow::Cow;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::limit::{CalendarSettings, Limit, Rule, Window};

/// The windows that keys have instead of those of a limit.
#[derive(Debug)]
pub(super) struct OverrideWindows {
    rules: Vec<Rule>,
    windows: Vec<Arc<Window>>,
    has_calendar: bool,
    /// Calendar windows follow the limit, which a reload may change: they are made again then.
    in_calendar: ArcSwapOption<CalendarWindows>,
}

/// Windows that were made for one calendar.
#[derive(Debug)]
struct CalendarWindows {
    calendar: Arc<CalendarSettings>,
    windows: Vec<Arc<Window>>,
}

impl OverrideWindows {
    pub(super) fn new(limit: &str, rules: &[Rule]) -> OverrideWindows {
        OverrideWindows {
            rules: rules.to_vec(),
            windows: Window::all(limit, rules, &Arc::default()),
            has_calendar: rules.iter().any(|rule| rule.calendar_unit().is_some()),
            in_calendar: ArcSwapOption::empty(),
        }
    }

    /// The windows for `limit`. Those of a calendar are made once for each configuration.
    pub(super) fn windows_of(&self, limit: &Limit) -> Cow<'_, [Arc<Window>]> {
        if !self.has_calendar {
            return Cow::Borrowed(&self.windows);
        }
        // Each worker has its own copy of the same settings.
        let is_same = |known: &CalendarWindows| *known.calendar == *limit.calendar;
        if let Some(known) = self
            .in_calendar
            .load()
            .as_deref()
            .filter(|one| is_same(one))
        {
            return Cow::Owned(known.windows.clone());
        }
        let windows = Window::all(&limit.name, &self.rules, &limit.calendar);
        self.in_calendar.store(Some(Arc::new(CalendarWindows {
            calendar: Arc::clone(&limit.calendar),
            windows: windows.clone(),
        })));
        Cow::Owned(windows)
    }
}
