//! `POST /api/disconnect`: closes all sockets with an id on all nodes, and says who has done so.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;

use super::api::{is_authorized, unauthorized};
use crate::cluster_inbox::Disconnected;
use crate::pubsub::{DisconnectError, PubSub};
use crate::server::Server;

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new().route("/api/disconnect", post(disconnect))
}

/// Whose sockets.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Whose {
    id: String,
}

/// 200 once all nodes have confirmed it, 202 if some have not within a minute, or are not heard any
/// more: which, stands in the answer. 401 without the token, 400 for a body of another shape, 503
/// while too much is under way.
async fn disconnect(State(server): State<Arc<Server>>, request: Request) -> Response {
    if !is_authorized(&server, request.headers()) {
        return unauthorized();
    }
    let body = match Bytes::from_request(request, &()).await {
        Ok(body) => body,
        Err(rejection) => return rejection.into_response(),
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

fn wrong(error: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({"error": error}))).into_response()
}

fn not_done(error: DisconnectError) -> Response {
    let said = Json(json!({"error": error.to_string()}));
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], said).into_response()
}
