//! `POST /api/disconnect`: closes all sockets with an id on all nodes.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;
use simurgh_shard::cluster_inbox::Disconnected;
use simurgh_shard::server::Server;

use super::api::{authorized_body, wrong};
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

/// 200 once all nodes have confirmed it; 202 with the missing nodes if some have not within a
/// minute, or have disconnected; 401 without the token, 400 for a malformed body, 503 while the
/// server is congested.
async fn disconnect(State(server): State<Arc<Server>>, request: Request) -> Response {
    let body = match authorized_body(&server, request).await {
        Ok(body) => body,
        Err(response) => return response,
    };
    let id = match serde_json::from_slice::<Whose>(&body) {
        Ok(Whose { id }) if !id.is_empty() => id,
        Ok(_) => return wrong("the id of sockets is not empty"),
        Err(error) => return wrong(&format!("{error}; expected {{\"id\": \"user_sockets:42\"}}")),
    };
    match PubSub::new(server).disconnect_everywhere(&id).await {
        Ok(done @ Disconnected { .. }) if done.missing.is_empty() => Json(done).into_response(),
        Ok(done) => (StatusCode::ACCEPTED, Json(done)).into_response(),
        Err(error) => not_done(error),
    }
}

fn not_done(error: DisconnectError) -> Response {
    if let DisconnectError::Refused(BroadcastError::TopicTooLong(_)) = error {
        return wrong(&error.to_string());
    }
    let said = Json(json!({"error": error.to_string()}));
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], said).into_response()
}
