//! `/api/v1/config`, the configuration in effect with every default and without secrets; and
//! `/api/v1/reload`.

use std::collections::BTreeMap;

use http::{StatusCode, header};

use super::request::ApiRequest;
use super::response::{ApiError, ApiResult, json_response, with_type};
use super::schema::described;
use crate::config::{effective, environment, render};
use crate::server::control::ReloadError;

described! {
    struct SecretMarks {
        secrets: BTreeMap<String, String>,
    }

    struct ReloadDone as "Reloaded" {
        done: bool,
        changes: Vec<String>,
        restarts: Vec<String>,
        warnings: String,
    }
}

fn source(request: &ApiRequest) -> Result<String, ApiError> {
    request
        .state
        .inspect(|snapshot| snapshot.config.sources.text.clone())
}

/// The configuration as TOML, or as JSON if `Accept` names it.
pub(super) fn config(request: &ApiRequest) -> ApiResult {
    let config = effective::effective(&source(request)?, &environment);
    let accept = request.header(header::ACCEPT);
    let wants_json = accept.is_some_and(|accept| accept.contains("application/json"));
    Ok(match wants_json {
        true => json_response(&config),
        false => with_type(StatusCode::OK, "application/toml", effective::toml(&config)),
    })
}

/// The mark that stands for each secret. Marks are keyed with the token.
pub(super) fn secrets(request: &ApiRequest) -> Result<SecretMarks, ApiError> {
    let authorization = request.headers.get(header::AUTHORIZATION);
    // Behind `Bearer `, which was checked before.
    let token = authorization.and_then(|value| value.as_bytes().get(7..));
    let token = token.unwrap_or_default().trim_ascii();
    Ok(SecretMarks {
        secrets: effective::marks(&source(request)?, &environment, token),
    })
}

/// Reads the configuration again, as `tidegate reload` does.
pub(super) async fn reload(request: ApiRequest) -> Result<ReloadDone, ApiError> {
    let outcome = request.state.server.reload.request().await;
    match &*outcome {
        Ok(reloaded) => Ok(ReloadDone {
            done: true,
            changes: reloaded.changes.clone(),
            restarts: reloaded.restarts.clone(),
            warnings: render::human(&reloaded.warnings, false),
        }),
        Err(error) => {
            let status = match error {
                ReloadError::NoFile => StatusCode::CONFLICT,
                ReloadError::Mistakes(_) | ReloadError::Unusable(_) => {
                    StatusCode::UNPROCESSABLE_ENTITY
                }
                ReloadError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            };
            Err(ApiError::new(status, error.to_string()))
        }
    }
}
