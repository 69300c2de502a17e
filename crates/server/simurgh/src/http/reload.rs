//! `POST /api/reload`: the server reads its settings again.

use axum::Json;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::control::read;
use super::error::ApiError;
use super::verbs::Authorized;
use crate::handle::Handle;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReloadBody {}

/// As SIGHUP. 200 names what has changed, and what needs a restart; 422 says why nothing has.
pub(super) async fn reload(caller: Authorized, body: Bytes) -> Result<Response, ApiError> {
    let ReloadBody {} = read(&body)?;
    let handle = Handle(caller.server);
    let reloaded = tokio::task::spawn_blocking(move || handle.reload()).await;
    let reloaded = reloaded.map_err(ApiError::for_now)?;
    let refused = |why| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "settings", why);
    Ok(Json(reloaded.map_err(refused)?).into_response())
}
