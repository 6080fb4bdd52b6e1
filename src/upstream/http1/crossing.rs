//! An answer that came before all of its request was sent: a task of its own sends the rest, while
//! the answer is read. So neither waits for whoever reads the other slowly.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::runtime::Handle;

use super::Http1;
use crate::upstream::deadline::{Deadline, Task};
use crate::upstream::error::{UpstreamError, ended_early};

/// See the file's head. Dropping it closes the connection, unless its answer has ended.
#[derive(Debug)]
pub(in crate::upstream) struct Crossing {
    both: Arc<Both>,
    pub(in crate::upstream) deadline: Deadline,
    /// What sends the rest.
    upload: Task,
}

#[derive(Debug)]
struct Both(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Nothing once it is closed, or has gone back.
    connection: Option<Box<Http1>>,
    /// Why the request could not be sent whole.
    flaw: Option<UpstreamError>,
    /// Whoever reads the answer.
    reader: Option<Waker>,
    /// Set when the answer has ended before the request.
    over: Option<GiveBack>,
}

impl Both {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends some of what is left.
    fn poll_send(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        let is_over = state.over.is_some();
        let Some(connection) = &mut state.connection else {
            return Poll::Ready(());
        };
        if is_over && connection.is_deaf {
            // Nobody will read the rest.
            state.connection = None;
            return Poll::Ready(());
        }
        if let Err(error) = ready!(connection.poll_send(context)) {
            state.connection = None;
            state.flaw = Some(error.into());
            if let Some(reader) = state.reader.take() {
                reader.wake();
            }
        }
        Poll::Ready(())
    }

    /// The rest was sent: the connection goes back if the answer has ended as well.
    fn sent(&self) {
        let mut state = self.state();
        if let Some(give_back) = state.over.take()
            && let Some(connection) = state.connection.take()
        {
            drop(state);
            give_back.keep(connection);
        }
    }
}

/// Returns a connection to its server.
pub(in crate::upstream) struct GiveBack(Box<dyn FnOnce(Box<Http1>) + Send>);

impl GiveBack {
    pub(in crate::upstream) fn new(keep: impl FnOnce(Box<Http1>) + Send + 'static) -> GiveBack {
        GiveBack(Box::new(keep))
    }

    fn keep(self, connection: Box<Http1>) {
        if let Some(connection) = connection.end() {
            (self.0)(connection);
        }
    }
}

impl fmt::Debug for GiveBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GiveBack")
    }
}

impl Crossing {
    pub(in crate::upstream) fn new(connection: Box<Http1>) -> Box<Crossing> {
        let deadline = connection.deadline.twin();
        let both = Arc::new(Both(Mutex::new(State {
            connection: Some(connection),
            flaw: None,
            reader: None,
            over: None,
        })));
        let sending = Arc::clone(&both);
        let upload = tokio::spawn(async move {
            poll_fn(|context| sending.poll_send(context)).await;
            sending.sent();
        });
        Box::new(Crossing {
            both,
            deadline,
            upload: Task::of(&upload),
        })
    }

    /// The next piece of the answer's content.
    pub(in crate::upstream) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        let mut state = self.both.state();
        let Some(connection) = &mut state.connection else {
            let flaw = state.flaw.take().unwrap_or_else(ended_early);
            return Poll::Ready(Some(Err(flaw)));
        };
        let polled = connection.poll_frame(context);
        if polled.is_pending() {
            state.reader = Some(context.waker().clone());
        }
        polled
    }

    pub(in crate::upstream) fn is_end_stream(&self) -> bool {
        let state = self.both.state();
        let connection = state.connection.as_ref();
        connection.is_some_and(|connection| connection.is_end_stream())
    }

    pub(in crate::upstream) fn size_hint(&self) -> SizeHint {
        let state = self.both.state();
        let connection = state.connection.as_ref();
        connection.map_or(SizeHint::default(), |connection| connection.size_hint())
    }

    /// The answer was read to its end. Its server may still be reading: it gets the rest for
    /// `most` more time.
    pub(in crate::upstream) fn end(mut self, most: Duration, give_back: GiveBack) {
        let mut state = self.both.state();
        let is_sending = state.connection.as_ref().map(|one| one.is_sending());
        match is_sending {
            Some(false) => {
                let connection = state.connection.take();
                drop(state);
                if let Some(connection) = connection {
                    give_back.keep(connection);
                }
            }
            Some(true) => {
                state.over = Some(give_back);
                drop(state);
                if let Some(upload) = self.upload.take_unfinished()
                    && let Ok(runtime) = Handle::try_current()
                {
                    runtime.spawn(async move {
                        tokio::time::sleep(most).await;
                        upload.abort();
                    });
                }
            }
            None => {}
        }
    }
}

impl Drop for Crossing {
    fn drop(&mut self) {
        let mut state = self.both.state();
        if state.over.is_none() {
            state.connection = None;
        }
    }
}
