//! `POST /api/v1/reload`: what `tidegate reload` does.

use http::StatusCode;

use super::AdminState;
use super::respond::{ApiError, ApiResult, json_of};
use super::schema::described;
use crate::config::render;
use crate::server::reload_request::ReloadError;

described! {
    struct ReloadDone as "Reloaded" {
        done: bool,
        changes: Vec<String>,
        restarts: Vec<String>,
        warnings: String,
    }
}

pub(super) async fn reload(state: &AdminState) -> ApiResult {
    let outcome = state.server.reload.request().await;
    match &*outcome {
        Ok(reloaded) => Ok(json_of(&ReloadDone {
            done: true,
            changes: reloaded.changes.clone(),
            restarts: reloaded.restarts.clone(),
            warnings: render::human(&reloaded.warnings, false),
        })),
        Err(error) => {
            let status = match error {
                ReloadError::NoFile => StatusCode::CONFLICT,
                ReloadError::Mistakes(_) => StatusCode::UNPROCESSABLE_ENTITY,
                ReloadError::Unusable(_) => StatusCode::UNPROCESSABLE_ENTITY,
                ReloadError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            };
            Err(ApiError::new(status, error.to_string()))
        }
    }
}
