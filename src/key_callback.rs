//! Asks a service about API keys, on a thread of its own.
//!
//! The stages decide what is asked, and cache the answers (`exchange::key_callback` of
//! `crates/core`). This room sends the questions: GET with the key in `Authorization: Bearer KEY`.
//! A question never outlasts the callback's timeout.
//!
//! ```text
//! KeyCallback::ask   a worker's request waits         core
//! ask_all            a task for each question         here
//! CallbackClient     kept connections, HTTP/1.1       client
//! read_answer        status and JSON                  answer
//! ```

mod answer;
mod client;

use std::io;
use std::sync::{Arc, Mutex};

use tidegate_core::exchange::key_callback::{KeyAnswer, KeyCallback, KeyQuestion};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::clock;
use crate::config::KeyCallbackSettings;
use crate::limit::key::KeyDigest;
use crate::store::known_keys::RegisteredKeys;
use crate::telemetry::panics::{lock, spawn_thread};
use client::CallbackClient;

/// The callback in use. Its thread ends with the last handle.
#[derive(Debug, Default)]
pub(crate) struct KeyCallbacks(Mutex<Option<Arc<KeyCallback>>>);

impl KeyCallbacks {
    /// The callback with these settings. It keeps its answers while the URL is the same.
    pub(crate) fn follow(
        &self,
        settings: Option<&Arc<KeyCallbackSettings>>,
    ) -> io::Result<Option<Arc<KeyCallback>>> {
        let mut current = lock(&self.0);
        let new = match (current.as_ref(), settings) {
            (_, None) => None,
            (Some(known), Some(settings)) if known.settings() == settings => {
                Some(Arc::clone(known))
            }
            (Some(known), Some(settings)) if known.settings().endpoint == settings.endpoint => {
                Some(known.renewed(settings))
            }
            (_, Some(settings)) => Some(start(settings)?),
        };
        current.clone_from(&new);
        Ok(new)
    }
}

fn start(settings: &Arc<KeyCallbackSettings>) -> io::Result<Arc<KeyCallback>> {
    let (callback, questions) = KeyCallback::new(settings);
    let client = Arc::new(CallbackClient::new(settings));
    spawn_thread("keys", move || ask_all(client, questions))?;
    Ok(callback)
}

/// The clients of those keys that the service knows. Asks without the cache, and blocks: for an
/// operator.
pub(crate) fn ask_now(
    settings: &Arc<KeyCallbackSettings>,
    keys: Vec<Vec<u8>>,
) -> io::Result<RegisteredKeys> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let client = CallbackClient::new(settings);
    let clients = keys.into_iter().filter_map(|key| {
        let deadline = clock::now() + settings.timeout;
        match runtime.block_on(client.ask_until(&key, deadline)) {
            KeyAnswer::Known(client) => Some((KeyDigest::new(&key), client)),
            KeyAnswer::Unknown | KeyAnswer::Failed(_) => None,
        }
    });
    Ok(RegisteredKeys::of_clients(clients))
}

/// Asks until the callback is dropped, each question by its own settings. A panic costs one
/// question.
async fn ask_all(mut client: Arc<CallbackClient>, mut questions: mpsc::Receiver<KeyQuestion>) {
    let mut asking = JoinSet::new();
    while let Some(question) = questions.recv().await {
        while asking.try_join_next().is_some() {}
        if !client.follows(question.settings()) {
            client = Arc::new(CallbackClient::new(question.settings()));
        }
        let client = Arc::clone(&client);
        asking.spawn(async move {
            let answer = client.ask_service(&question).await;
            question.answer(answer);
        });
    }
}
