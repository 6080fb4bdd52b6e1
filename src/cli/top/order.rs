//! A change of one client that the user of `top` orders: its questions, and what it sends. Pure.

use serde_json::{Value, json};

use crate::cli::display::short_hash;
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
    Block,
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
            OrderKind::Reset => &[],
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
            OrderKind::Block => format!("block {id}"),
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
            OrderKind::Block => format!("{title} in all limits {time}"),
        }
    }

    /// The last part of the path of the API.
    pub(super) fn endpoint(&self) -> &'static str {
        match self.kind {
            OrderKind::Reset => "reset",
            OrderKind::Override => "override",
            OrderKind::Block => "block",
        }
    }

    pub(super) fn body(&self) -> Value {
        let mut body = json!({ "id": self.of.client });
        if self.kind == OrderKind::Override {
            body["rate"] = json!(self.given(Question::Rate));
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
            OrderKind::Override | OrderKind::Block => "nothing was changed",
        }
    }

    /// Says that it is done.
    pub(super) fn done(&self) -> String {
        let id = short_hash(&self.of.client);
        match self.kind {
            OrderKind::Reset => format!("{id} begins anew in {}", self.of.limit),
            OrderKind::Override => {
                format!(
                    "{id} has {} in {}",
                    self.given(Question::Rate),
                    self.of.limit
                )
            }
            OrderKind::Block => format!("{id} is blocked"),
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
        assert_eq!((order.endpoint(), order.body()), ("override", sent));
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
        assert_eq!((order.endpoint(), order.body()), ("block", sent));
    }

    #[test]
    fn a_reset_asks_nothing() {
        let order = order(OrderKind::Reset);
        assert!(order.is_complete());
        let prompt = "reset CFc46O0K in login: set its counts to zero? y/n";
        assert_eq!(order.prompt(), prompt);
    }
}
