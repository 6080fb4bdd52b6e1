//! The patches of the configuration file that enforce a shadow limit or a candidate. Pure.

use crate::admin::limits::{PromotionList, PromotionReport};
use crate::cli::display::{StyledLine, Tone, count, date, share};

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PromotionPage {
    pub(super) limit: String,
    pub(super) list: PromotionList,
    /// The promotion that is shown.
    row: usize,
    /// Lines above the screen.
    scroll: usize,
}

impl PromotionPage {
    pub(super) fn new(limit: String, list: PromotionList) -> PromotionPage {
        PromotionPage {
            limit,
            list,
            ..PromotionPage::default()
        }
    }

    fn shown(&self) -> Option<&PromotionReport> {
        self.list.promotions.get(self.row)
    }

    /// The patch that is shown, if the proxy can make it.
    pub(super) fn patch(&self) -> Option<&str> {
        self.shown()?.patch.as_deref()
    }

    /// Shows the other promotion of a limit that has two.
    pub(super) fn show_next(&mut self) {
        self.row = (self.row + 1) % self.list.promotions.len().max(1);
        self.scroll = 0;
    }

    pub(super) fn scroll_by(&mut self, by: isize) {
        let last = self.lines().len().saturating_sub(2);
        self.scroll = self.scroll.saturating_add_signed(by).min(last);
    }

    /// The lines of the page without those above the screen.
    pub(super) fn visible_lines(&self) -> Vec<StyledLine> {
        self.lines().into_iter().skip(self.scroll).collect()
    }

    fn lines(&self) -> Vec<StyledLine> {
        let Some(shown) = self.shown() else {
            let text = format!("{} is enforced, and has no candidate", self.limit);
            return vec![StyledLine::new(Tone::Plain, text)];
        };
        let title = match &*shown.what {
            "shadow" => format!("enforce {}", self.limit),
            _ => format!("enforce the candidate of {}", self.limit),
        };
        let mut title = StyledLine::new(Tone::Strong, title);
        let all = self.list.promotions.len();
        if all > 1 {
            let place = format!("  {} of {all}; tab shows the other one", self.row + 1);
            title = title.with(Tone::Faint, place);
        }
        let requests = shown.allowed + shown.denied;
        let part = shown.denied as f64 / requests.max(1) as f64;
        let (denied, requests) = (count(shown.denied), count(requests));
        let effect = format!(
            "it would have denied {denied} of {requests} requests, {}",
            share(part)
        );
        let mut lines = vec![title, StyledLine::default().plain(effect)];
        let Some(patch) = &shown.patch else {
            let text = "the file has this limit in a form that the proxy cannot patch: change it \
                        by hand";
            lines.push(StyledLine::new(Tone::Warn, text));
            return lines;
        };
        let loaded = date(self.list.loaded_at);
        let file = format!("{}, as the proxy loaded it at {loaded}", self.list.file);
        lines.push(StyledLine::new(Tone::Faint, file));
        lines.push(StyledLine::default());
        lines.extend(patch.lines().map(patch_line));
        lines.push(StyledLine::default());
        let apply = "apply it with `git apply` or `patch` in the folder of the file, then \
                     `tidegate reload`";
        lines.push(StyledLine::new(Tone::Faint, apply));
        lines
    }
}

fn patch_line(line: &str) -> StyledLine {
    let tone = match line.as_bytes().first() {
        Some(b'+') => Tone::Good,
        Some(b'-') => Tone::Bad,
        _ => Tone::Plain,
    };
    StyledLine::new(tone, line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::display::render_lines;

    fn promotion(what: &str, patch: Option<&str>) -> PromotionReport {
        PromotionReport {
            what: what.to_owned(),
            allowed: 90,
            denied: 10,
            patch: patch.map(str::to_owned),
        }
    }

    #[test]
    fn each_promotion_has_its_effect_and_its_patch() {
        let patch = "--- proxy.toml\n+++ proxy.toml\n@@ -1 +0,0 @@\n-shadow = true\n";
        let list = PromotionList {
            file: "/etc/proxy.toml".to_owned(),
            loaded_at: 1_700_000_000.0,
            promotions: vec![
                promotion("shadow", Some(patch)),
                promotion("candidate", None),
            ],
        };
        let mut page = PromotionPage::new("search".to_owned(), list);
        let text = render_lines(&page.visible_lines(), false);
        let expected = format!(
            "enforce search  1 of 2; tab shows the other one\n\
             it would have denied 10 of 100 requests, 10 %\n\
             /etc/proxy.toml, as the proxy loaded it at 2023-11-14 22:13:20Z\n\n{patch}\n\
             apply it with `git apply` or `patch` in the folder of the file, then \
             `tidegate reload`\n"
        );
        assert_eq!(text, expected);
        assert_eq!(page.patch(), Some(patch));
        page.scroll_by(4);
        assert!(render_lines(&page.visible_lines(), false).starts_with("--- proxy.toml\n"));
        page.scroll_by(99);
        assert_eq!(page.visible_lines().len(), 2);
        page.show_next();
        let text = render_lines(&page.visible_lines(), false);
        assert!(text.starts_with("enforce the candidate of search  2 of 2"));
        assert!(text.ends_with("change it by hand\n") && page.patch().is_none());
        let none = PromotionPage::new("login".to_owned(), PromotionList::default());
        let text = render_lines(&none.visible_lines(), false);
        assert_eq!(text, "login is enforced, and has no candidate\n");
    }
}
