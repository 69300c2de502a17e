//! `POST /api/disconnect`: closes all sockets with an id on all nodes.

use axum::Json;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use serde::Deserialize;

use super::error::ApiError;
use super::verbs::Authorized;
use crate::BroadcastError;
use crate::pubsub::{DisconnectError, PubSub};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Whose {
    id: String,
}

/// 200 once all nodes have confirmed it. 202 names the missing nodes, if some do not confirm within
/// a minute or are disconnected. 401 means no token, 400 a malformed body, and 503 that the server
/// is congested.
pub(super) async fn disconnect(
    Authorized { server, .. }: Authorized,
    body: Bytes,
) -> Result<Response, ApiError> {
    let Whose { id } = serde_json::from_slice(&body).map_err(|error| {
        ApiError::wrong(format_args!("{error}; expected {{\"id\": \"user_sockets:42\"}}"))
    })?;
    if id.is_empty() {
        return Err(ApiError::wrong("id: must not be empty"));
    }
    match PubSub::new(server).disconnect_everywhere(&id).await {
        Ok(done) if done.missing.is_empty() => Ok(Json(done).into_response()),
        Ok(done) => Ok((StatusCode::ACCEPTED, Json(done)).into_response()),
        Err(error @ DisconnectError::Refused(BroadcastError::TopicTooLong(_))) => {
            Err(ApiError::wrong(error))
        }
        Err(error) => Err(ApiError::for_now(error)),
    }
}
