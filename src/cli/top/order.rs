//! A change of one client that the user of `top` orders: its questions, and what it sends. Pure.

use serde_json::{Value, json};

use crate::cli::admin_client::percent_encoded;
use crate::cli::display::{quoted, short_hash};
use crate::limit::rate::parse_duration;

/// Characters of an answer.
const MAX_ANSWER: usize = 100;
/// Characters of an answer that are shown.
const SHOWN_ANSWER: usize = 20;

/// A client, by the hash of its key, and the limit that counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClientOfLimit {
    pub(super) limit: String,
    pub(super) client: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrderKind {
    Reset,
    Override,
    RemoveOverride,
    Block,
    Unblock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Rate,
    Time,
    Note,
}

/// An order, and the answers that the user has given so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClientOrder {
    pub(super) kind: OrderKind,
    pub(super) of: ClientOfLimit,
    answers: Vec<String>,
    /// The answer that is being typed.
    typed: String,
    /// Why the last answer was not taken.
    mistake: Option<&'static str>,
}

impl ClientOrder {
    pub(super) fn new(kind: OrderKind, of: ClientOfLimit) -> ClientOrder {
        ClientOrder {
            kind,
            of,
            answers: Vec::new(),
            typed: String::new(),
            mistake: None,
        }
    }

    fn questions(&self) -> &'static [Question] {
        match self.kind {
            OrderKind::Reset | OrderKind::RemoveOverride | OrderKind::Unblock => &[],
            OrderKind::Override => &[Question::Rate, Question::Time, Question::Note],
            OrderKind::Block => &[Question::Time, Question::Note],
        }
    }

    fn question(&self) -> Option<Question> {
        self.questions().get(self.answers.len()).copied()
    }

    /// Whether all questions are answered, so that only a `y` is missing.
    pub(super) fn is_complete(&self) -> bool {
        self.question().is_none()
    }

    /// Adds a character to the answer to the current question.
    pub(super) fn push(&mut self, character: char) {
        if self.typed.len() < MAX_ANSWER {
            self.typed.push(character);
        }
    }

    /// Removes the last character of the answer.
    pub(super) fn pop(&mut self) {
        self.typed.pop();
    }

    /// Takes the answer as it is, if it can be one.
    pub(super) fn answer(&mut self) {
        let answer = self.typed.trim();
        self.mistake = match self.question() {
            Some(Question::Rate) if answer.is_empty() => Some("write a rate"),
            Some(Question::Time) if !answer.is_empty() && parse_duration(answer).is_err() => {
                Some("write a time such as 30min")
            }
            _ => None,
        };
        if self.mistake.is_none() {
            let answer = answer.to_owned();
            self.answers.push(answer);
            self.typed.clear();
        }
    }

    fn given(&self, question: Question) -> &str {
        let place = self.questions().iter().position(|one| *one == question);
        let answer = place.and_then(|place| self.answers.get(place));
        answer.map_or("", String::as_str)
    }

    /// The question on the last line of the screen.
    pub(super) fn prompt(&self) -> String {
        let question = match self.question() {
            None => return format!("{}? y/n", self.consequence()),
            Some(Question::Rate) => "rate (50/min, unlimited)",
            Some(Question::Time) => "for (24h; empty: no end)",
            Some(Question::Note) => "note (may be empty)",
        };
        let question = self.mistake.unwrap_or(question);
        // The end of a long answer is where the user types.
        let hidden = self.typed.chars().count().saturating_sub(SHOWN_ANSWER);
        let typed: String = self.typed.chars().skip(hidden).collect();
        format!("{}: {question}: {typed}_", self.title())
    }

    fn title(&self) -> String {
        let id = short_hash(&self.of.client);
        match self.kind {
            OrderKind::Reset => format!("reset {id} in {}", self.of.limit),
            OrderKind::Override => format!("override {id} in {}", self.of.limit),
            OrderKind::RemoveOverride => format!("{id} in {}", self.of.limit),
            OrderKind::Block => format!("block {id}"),
            OrderKind::Unblock => format!("unblock {id}"),
        }
    }

    fn consequence(&self) -> String {
        let title = self.title();
        let time = match self.given(Question::Time) {
            "" => "until removed".to_owned(),
            time => format!("for {time}"),
        };
        match self.kind {
            OrderKind::Reset => format!("{title}: set its counts to zero"),
            OrderKind::Override => format!("{title}: {} {time}", self.given(Question::Rate)),
            OrderKind::RemoveOverride => format!("{title}: remove its override"),
            OrderKind::Block => format!("{title} in all limits {time}"),
            OrderKind::Unblock => title,
        }
    }

    /// The word of the change in the API and in `tidegate limits`.
    fn action(&self) -> &'static str {
        match self.kind {
            OrderKind::Reset => "reset",
            OrderKind::Override | OrderKind::RemoveOverride => "override",
            OrderKind::Block | OrderKind::Unblock => "block",
        }
    }

    /// Whether it is about all limits.
    fn is_for_all(&self) -> bool {
        matches!(self.kind, OrderKind::Block | OrderKind::Unblock)
    }

    fn removes(&self) -> bool {
        matches!(self.kind, OrderKind::RemoveOverride | OrderKind::Unblock)
    }

    /// The path of the API.
    pub(super) fn path(&self) -> String {
        let action = self.action();
        match self.is_for_all() {
            true => format!("/api/v1/{action}"),
            false => {
                let limit = percent_encoded(&self.of.limit, "");
                format!("/api/v1/limits/{limit}/{action}")
            }
        }
    }

    /// The same change as a command. It has the answers that are given, and `RATE` before the rate
    /// is known. `file` is the configuration of the proxy, and `admin` the address of an admin that
    /// the file does not name.
    pub(super) fn command(&self, file: Option<&str>, admin: Option<&str>) -> String {
        let mut words = vec!["tidegate", "limits", self.action()];
        if !self.is_for_all() {
            words.push(&self.of.limit);
        }
        let key = format!("tag={}", self.of.client);
        words.push(&key);
        if self.kind == OrderKind::Override {
            words.push(match self.given(Question::Rate) {
                "" => "RATE",
                rate => rate,
            });
        }
        if self.removes() {
            words.push("--remove");
        }
        let time = self.given(Question::Time);
        let note = self.given(Question::Note);
        for (option, value) in [
            ("--for", time),
            ("--note", note),
            ("-c", file.unwrap_or("")),
            ("--admin", admin.unwrap_or("")),
        ] {
            if !value.is_empty() {
                words.extend([option, value]);
            }
        }
        let words: Vec<String> = words.into_iter().map(quoted).collect();
        words.join(" ")
    }

    pub(super) fn body(&self) -> Value {
        let mut body = json!({ "id": self.of.client });
        if self.kind == OrderKind::Override {
            body["rate"] = json!(self.given(Question::Rate));
        }
        if self.removes() {
            body["remove"] = json!(true);
        }
        if let Ok(time) = parse_duration(self.given(Question::Time)) {
            body["for_seconds"] = json!(time.as_secs().max(1));
        }
        let note = self.given(Question::Note);
        if !note.is_empty() {
            body["reason"] = json!(note);
        }
        body
    }

    /// Says that it is not done.
    pub(super) fn cancelled(&self) -> &'static str {
        match self.kind {
            OrderKind::Reset => "nothing was reset",
            _ => "nothing was changed",
        }
    }

    /// Says that it is done.
    pub(super) fn done(&self) -> String {
        let id = short_hash(&self.of.client);
        match self.kind {
            OrderKind::Reset => format!("{id} starts at zero in {}", self.of.limit),
            OrderKind::RemoveOverride => {
                format!("{id} has the rate of {} again", self.of.limit)
            }
            OrderKind::Override => {
                format!(
                    "{id} has {} in {}",
                    self.given(Question::Rate),
                    self.of.limit
                )
            }
            OrderKind::Block => format!("{id} is blocked"),
            OrderKind::Unblock => format!("{id} is not blocked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(kind: OrderKind) -> ClientOrder {
        let of = ClientOfLimit {
            limit: "login".to_owned(),
            client: "CFc46O0KAAAAAAAAAAAAAA".to_owned(),
        };
        ClientOrder::new(kind, of)
    }

    fn type_answer(order: &mut ClientOrder, text: &str) {
        text.chars().for_each(|one| order.push(one));
        order.answer();
    }

    #[test]
    fn an_override_asks_for_its_rate_time_and_note() {
        let mut order = order(OrderKind::Override);
        type_answer(&mut order, "");
        assert_eq!(
            order.prompt(),
            "override CFc46O0K in login: write a rate: _"
        );
        type_answer(&mut order, "50/min");
        type_answer(&mut order, "soon");
        let mistake = "override CFc46O0K in login: write a time such as 30min: soon_";
        assert_eq!(order.prompt(), mistake);
        (0..9).for_each(|_| order.pop());
        type_answer(&mut order, "24h");
        assert!(!order.is_complete());
        type_answer(&mut order, "an office");
        assert!(order.is_complete());
        assert_eq!(
            order.prompt(),
            "override CFc46O0K in login: 50/min for 24h? y/n"
        );
        let sent = json!({
            "id": "CFc46O0KAAAAAAAAAAAAAA", "rate": "50/min", "for_seconds": 86_400,
            "reason": "an office",
        });
        assert_eq!(order.path(), "/api/v1/limits/login/override");
        assert_eq!(order.body(), sent);
        assert_eq!(order.done(), "CFc46O0K has 50/min in login");
    }

    #[test]
    fn a_block_may_have_no_end_and_no_note() {
        let mut order = order(OrderKind::Block);
        type_answer(&mut order, "");
        type_answer(&mut order, "");
        assert_eq!(
            order.prompt(),
            "block CFc46O0K in all limits until removed? y/n"
        );
        let sent = json!({ "id": "CFc46O0KAAAAAAAAAAAAAA" });
        assert_eq!((&*order.path(), order.body()), ("/api/v1/block", sent));
    }

    #[test]
    fn an_override_and_a_block_are_removed() {
        for (kind, prompt, path, command) in [
            (
                OrderKind::RemoveOverride,
                "CFc46O0K in login: remove its override? y/n",
                "/api/v1/limits/login/override",
                "override login",
            ),
            (
                OrderKind::Unblock,
                "unblock CFc46O0K? y/n",
                "/api/v1/block",
                "block",
            ),
        ] {
            let order = order(kind);
            assert_eq!((&*order.prompt(), &*order.path()), (prompt, path));
            let sent = json!({ "id": "CFc46O0KAAAAAAAAAAAAAA", "remove": true });
            assert_eq!(order.body(), sent);
            let expected = format!("tidegate limits {command} tag=CFc46O0KAAAAAAAAAAAAAA --remove");
            assert_eq!(order.command(None, None), expected);
        }
    }

    #[test]
    fn a_command_does_the_same() {
        let mut order = order(OrderKind::Override);
        let begin = "tidegate limits override login tag=CFc46O0KAAAAAAAAAAAAAA";
        assert_eq!(order.command(None, None), format!("{begin} RATE"));
        type_answer(&mut order, "10/s,1000/h");
        type_answer(&mut order, "24h");
        type_answer(&mut order, "it's an office");
        let file = Some("/etc/tidegate/my proxy.toml");
        let expected = format!(
            "{begin} 10/s,1000/h --for 24h --note 'it'\\''s an office' \
             -c '/etc/tidegate/my proxy.toml'"
        );
        assert_eq!(order.command(file, None), expected);
    }

    #[test]
    fn a_reset_asks_nothing() {
        let order = order(OrderKind::Reset);
        assert!(order.is_complete());
        let prompt = "reset CFc46O0K in login: set its counts to zero? y/n";
        assert_eq!(order.prompt(), prompt);
    }
}
