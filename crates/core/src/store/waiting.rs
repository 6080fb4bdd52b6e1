//! One thing asked of the store, on its way to a connection's task and back.
//!
//! Who asks and the task share it: what is asked is written once, and the answer is put where the
//! asker looks for it. Each has an end: the task a [`Waiting`], the asker an [`Asked`].

use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use smallvec::SmallVec;

use super::StoreError;
use super::batch::Operation;
use crate::limit::{Charge, Decision};

/// What an asker gets.
pub type Answer = Result<Decision, StoreError>;

/// What is asked.
#[derive(Debug)]
pub struct Question {
    pub charge: Charge,
    pub operation: Operation,
    /// For each item what the operation needs beside it; see [`super::batch::Group::extra`].
    pub extra: SmallVec<[u64; 2]>,
    /// That of the key its tags were made with.
    pub generation: u64,
    pub arrived: Instant,
}

#[derive(Debug)]
struct Shared {
    question: Question,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Nobody listens, or not any more.
    Unheard,
    /// An answer is to come, and to wake whoever looked for it.
    Open(Option<Waker>),
    Answered(Answer),
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task's end. Dropped before it is answered, it is lost, and its asker is told so.
#[derive(Debug)]
pub struct Waiting {
    shared: Arc<Shared>,
    /// Someone is to be answered.
    open: bool,
}

/// The asker's end.
#[derive(Debug)]
pub struct Asked(Arc<Shared>);

/// Asks: both ends.
pub fn ask(question: Question) -> (Waiting, Asked) {
    let shared = Arc::new(Shared {
        question,
        state: Mutex::new(State::Open(None)),
    });
    let asked = Asked(Arc::clone(&shared));
    (Waiting { shared, open: true }, asked)
}

impl Waiting {
    /// What is only told: nobody listens for an answer.
    pub fn told(question: Question) -> Waiting {
        let shared = Arc::new(Shared {
            question,
            state: Mutex::new(State::Unheard),
        });
        Waiting {
            shared,
            open: false,
        }
    }

    /// Whether someone was to be answered who has gone.
    pub fn is_given_up(&self) -> bool {
        self.open && Arc::strong_count(&self.shared) == 1
    }

    /// Whether someone is to be answered.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// False if its asker has gone, and cares.
    #[inline]
    pub fn answer(mut self, answer: Answer) -> bool {
        self.open = false;
        self.shared.put(answer)
    }

    pub fn fail(self, kind: StoreError) {
        // Nobody listens any more if the client has gone.
        let _ = self.answer(Err(kind));
    }
}

impl Shared {
    #[inline]
    fn put(&self, answer: Answer) -> bool {
        let mut state = self.state();
        let State::Open(waker) = &mut *state else {
            return false;
        };
        let waker = waker.take();
        *state = State::Answered(answer);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

impl Deref for Waiting {
    type Target = Question;

    fn deref(&self) -> &Question {
        &self.shared.question
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.open {
            self.shared.put(Err(StoreError::Lost));
        }
    }
}

impl Asked {
    /// The answer, once.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<Answer> {
        let mut state = self.0.state();
        match &mut *state {
            State::Open(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            State::Answered(answer) => {
                let answer = std::mem::replace(answer, Err(StoreError::Lost));
                *state = State::Unheard;
                Poll::Ready(answer)
            }
            State::Unheard => Poll::Ready(Err(StoreError::Lost)),
        }
    }

    /// The answer, once, if it has come.
    pub fn try_take(&self) -> Option<Answer> {
        let mut state = self.0.state();
        if !matches!(*state, State::Answered(_)) {
            return None;
        }
        match std::mem::replace(&mut *state, State::Unheard) {
            State::Answered(answer) => Some(answer),
            State::Open(_) | State::Unheard => None,
        }
    }

    /// Nobody will look for it any more: the answer if it has come, and else whoever answers is
    /// told that nobody listens.
    pub fn close(&self) -> Option<Answer> {
        match std::mem::replace(&mut *self.0.state(), State::Unheard) {
            State::Answered(answer) => Some(answer),
            State::Open(_) | State::Unheard => None,
        }
    }

    /// What was asked.
    pub fn charge(&self) -> &Charge {
        &self.0.question.charge
    }

    /// What was asked, back. Only the task may still look at it.
    pub fn take_charge(&mut self) -> Charge {
        match Arc::get_mut(&mut self.0) {
            Some(shared) => std::mem::take(&mut shared.question.charge),
            None => self.charge().clone(),
        }
    }
}

impl Future for Asked {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        Asked::poll(&self, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        Question {
            charge: Charge::new(),
            operation: Operation::Charge(1),
            extra: SmallVec::new(),
            generation: 1,
            arrived: crate::clock::now(),
        }
    }

    fn look(asked: &Asked) -> Poll<Answer> {
        asked.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_answer_is_there_once() {
        let (waiting, asked) = ask(question());
        assert!(look(&asked).is_pending() && asked.try_take().is_none());
        assert!(waiting.answer(Ok(Decision::default())));
        assert_eq!(look(&asked), Poll::Ready(Ok(Decision::default())));
        assert!(asked.try_take().is_none() && asked.close().is_none());
    }

    #[test]
    fn what_the_task_drops_is_lost_and_not_waited_for() {
        let (waiting, asked) = ask(question());
        assert!(look(&asked).is_pending());
        drop(waiting);
        assert_eq!(look(&asked), Poll::Ready(Err(StoreError::Lost)));
    }

    #[test]
    fn whoever_answers_knows_whether_somebody_cared() {
        let (waiting, asked) = ask(question());
        assert!(waiting.is_open() && !waiting.is_given_up());
        assert!(asked.close().is_none());
        assert!(!waiting.answer(Ok(Decision::default())), "it has gone");
        let (waiting, asked) = ask(question());
        drop(asked);
        assert!(waiting.is_given_up());
        let told = Waiting::told(question());
        assert!(!told.is_open() && !told.is_given_up());
    }
}
