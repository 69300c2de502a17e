//! `POST /api/disconnect`: closes all sockets with an id on all nodes.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use simurgh_shard::server::Server;

use super::api::Authorized;
use super::error::ApiError;
use crate::BroadcastError;
use crate::pubsub::{DisconnectError, PubSub};

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new().route("/api/disconnect", post(disconnect))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Whose {
    id: String,
}

/// 200 once all nodes have confirmed it. 202 names the missing nodes, if some do not confirm within
/// a minute or are disconnected. 401 means no token, 400 a malformed body, and 503 that the server
/// is congested.
async fn disconnect(Authorized(server): Authorized, body: Bytes) -> Result<Response, ApiError> {
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
