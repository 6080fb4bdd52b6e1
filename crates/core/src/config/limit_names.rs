//! The limits that a route or a descriptor names, or writes in place as rates.

use std::sync::Arc;

use super::definitions::{DEFAULT, Definitions};
use super::limits::DefinedLimit;
use super::section::is_name;
use super::*;
use crate::limit::rate::RateText;
use crate::limit::{BLOCK_POLICY, Key, Limit, Missing, Rule};

/// The index of a limit, and the place that names it.
pub(super) type ChosenLimit = Located<usize>;

/// The limit that a rate in place becomes.
pub(super) struct RateInPlace {
    /// The kind of its user, for messages.
    pub(super) user: &'static str,
    /// The name of its user. The limit's name is made of it.
    pub(super) name: String,
    /// The address if `None`.
    pub(super) key: Option<Key>,
    pub(super) missing: Missing,
    pub(super) shadow: bool,
}

impl Definitions<'_> {
    pub(super) fn choose_limits(
        &mut self,
        texts: &[Located<String>],
        in_place: &RateInPlace,
    ) -> Vec<ChosenLimit> {
        let mut chosen: Vec<ChosenLimit> = Vec::new();
        for text in texts {
            let index = match self.limit_named(&text.value) {
                Some(index) => Some(index),
                None if text.value.contains('/') => self.define_in_place(text, in_place),
                None if text.value == "unlimited" => None,
                None => {
                    self.report_unknown_limit(text);
                    None
                }
            };
            let Some(index) = index else { continue };
            if let Some(first) = chosen.iter().find(|earlier| earlier.value == index) {
                let message = format!("`{}` is named twice in one {}", text.value, in_place.user);
                duplicate(message)
                    .at(&text.span, "")
                    .at(&first.span, "first here")
                    .report_to(self.reader);
                continue;
            }
            chosen.push(Located::new(index, &text.span));
        }
        chosen
    }

    /// The index of the limit with this name. Reports a name that no limit has.
    pub(super) fn find_limit(&self, name: &Located<String>) -> Option<usize> {
        let index = self.limit_named(&name.value);
        if index.is_none() {
            self.report_unknown_limit(name);
        }
        index
    }

    fn report_unknown_limit(&self, text: &Located<String>) {
        if self.reader.is_misnamed("limit", &text.value) {
            return;
        }
        let limits = self.limits_with_sections().iter();
        let known = limits.map(|limit| limit.name.value.as_str());
        let starts_as_rate = text.value.starts_with(|first: char| first.is_ascii_digit());
        let otherwise = match starts_as_rate || !is_name(&text.value) {
            true => habits::advice_for(Code::BadRate, &text.value).unwrap_or_else(|| {
                "a rate is a count, `/` and a window: `100/min`; the name of a limit has no spaces"
                    .to_owned()
            }),
            false => format!(
                "define it: `[limit.{}]`, or write a rate such as `100/min`",
                text.value
            ),
        };
        text.unknown(Code::UnknownLimit, "limit")
            .help(did_you_mean(&text.value, known, otherwise))
            .report_to(self.reader);
    }

    fn define_in_place(&mut self, text: &Located<String>, user: &RateInPlace) -> Option<usize> {
        let rate = match RateText::parse(&text.value) {
            Ok(rate) => rate,
            Err(error) => {
                let message = format!("`{}` is neither a limit's name nor a rate", text.value);
                Diagnostic::new(Code::BadRate, message)
                    .at_error(&text.span, &error)
                    .maybe_help(habits::advice_for(Code::BadRate, &text.value))
                    .report_to(self.reader);
                return None;
            }
        };
        let rules: Vec<Located<Rule>> = match rate {
            RateText::Limited(rate) => vec![Located::new(Rule::by_size(rate), &text.span)],
            RateText::Unlimited => Vec::new(),
        };
        let own: Vec<Rule> = rules.iter().map(|rule| rule.value).collect();
        let name = self.free_name(&user.name);
        let key = user.key.clone().unwrap_or_else(Key::ip);
        let limit = Limit {
            missing: user.missing,
            on_error: self.inherited.on_error,
            shadow: user.shadow,
            ..Limit::new(&name, &own, key.clone())
        };
        let defined = DefinedLimit {
            name: Located::new(name, &text.span),
            limit: (!rules.is_empty()).then(|| Arc::new(limit)),
            rate_span: text.span.clone(),
            rules,
            candidate: Vec::new(),
            key: Located::new(key, &text.span),
            missing: user.missing,
            counts_span: text.span.clone(),
            on_error_span: text.span.clone(),
            delay_span: text.span.clone(),
            has_calendar: false,
            ban_span: None,
            is_used: false,
        };
        Some(self.add_limit(defined))
    }

    /// The name of a limit for a user with this name: `POST /login` becomes `post-login`.
    pub(super) fn free_name(&self, user: &str) -> String {
        let base = limit_name(user);
        let mut name = base.clone();
        let mut count = 1;
        // The name `default` would apply the limit to routes that name none, once it had a section.
        let is_reserved = |name: &str| [DEFAULT, BLOCK_POLICY].contains(&name);
        while is_reserved(&name) || self.is_limit(&name) {
            count += 1;
            name = format!("{base}-{count}");
        }
        name
    }
}

fn limit_name(user: &str) -> String {
    let user = user.to_ascii_lowercase().replace('*', "all");
    let words = user.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    // The rest of the 64 characters is for a number.
    let name: String = words.join("-").chars().take(58).collect();
    if name.is_empty() {
        "root".to_owned()
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_names_its_limits() {
        assert_eq!(limit_name("POST /login"), "post-login");
        assert_eq!(
            limit_name("GET,HEAD example.com/users/{id}"),
            "get-head-example-com-users-id"
        );
        assert_eq!(limit_name("/search/*"), "search-all");
        assert_eq!(limit_name("/"), "root");
        assert_eq!(limit_name("Ä"), "root");
        assert!(limit_name(&"/long".repeat(50)).len() <= 58);
    }
}
