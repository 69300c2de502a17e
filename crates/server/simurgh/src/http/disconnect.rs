//! `POST /api/disconnect`: closes all sockets with an id on all nodes.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use simurgh_shard::cluster_inbox::Disconnected;
use simurgh_shard::server::Server;

use super::api::{Authorized, failed_for_now, wrong};
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
async fn disconnect(Authorized(server): Authorized, body: Bytes) -> Response {
    let id = match serde_json::from_slice::<Whose>(&body) {
        Ok(Whose { id }) if !id.is_empty() => id,
        Ok(_) => return wrong("id: must not be empty"),
        Err(error) => {
            return wrong(format_args!("{error}; expected {{\"id\": \"user_sockets:42\"}}"));
        }
    };
    match PubSub::new(server).disconnect_everywhere(&id).await {
        Ok(done @ Disconnected { .. }) if done.missing.is_empty() => Json(done).into_response(),
        Ok(done) => (StatusCode::ACCEPTED, Json(done)).into_response(),
        Err(error @ DisconnectError::Refused(BroadcastError::TopicTooLong(_))) => wrong(error),
        Err(error) => failed_for_now(error),
    }
}
