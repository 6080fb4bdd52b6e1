//! `POST /api/v1/reload`: what `tidegate reload` does.

use http::StatusCode;
use serde_json::json;

use super::AdminState;
use super::answer::{Answer, Refusal, json_of};
use crate::config::render;
use crate::server::reload_request::ReloadError;

pub(super) async fn reload(state: &AdminState) -> Answer {
    let outcome = state.server.reload.ask().await;
    match &*outcome {
        Ok(reloaded) => Ok(json_of(&json!({
            "done": true,
            "changes": reloaded.changes,
            "restarts": reloaded.restarts,
            "warnings": render::human(&reloaded.warnings, false),
        }))),
        Err(error) => {
            let status = match error {
                ReloadError::NoFile => StatusCode::CONFLICT,
                ReloadError::Mistakes(_) => StatusCode::UNPROCESSABLE_ENTITY,
                ReloadError::Unusable(_) => StatusCode::UNPROCESSABLE_ENTITY,
                ReloadError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            };
            Err(Refusal::new(status, error.to_string()))
        }
    }
}
