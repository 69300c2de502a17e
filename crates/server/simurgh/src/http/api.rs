//! The server API below `/api/`: its routes, who may call them, and the list of a topic's members.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use simurgh_core::PresenceList;
use simurgh_shard::config::Scope;
use simurgh_shard::server::Server;

use super::block::{block, revoke, unblock};
use super::control::{disconnect, kick, push};
use super::error::ApiError;
use super::history;
use super::lists;
use super::publish::broadcast;
use super::verbs::{Authorized, Verb};
use crate::presence::Presence;

const BROADCAST: Verb = Verb::new("broadcast", "/api/broadcast", Scope::Publish);
const DISCONNECT: Verb = Verb::new("disconnect", "/api/disconnect", Scope::Control);
const KICK: Verb = Verb::new("kick", "/api/kick", Scope::Control);
const PUSH: Verb = Verb::new("push", "/api/push", Scope::Publish);
const BLOCK: Verb = Verb::new("block", "/api/block", Scope::Access);
const UNBLOCK: Verb = Verb::new("unblock", "/api/unblock", Scope::Access);
const REVOKE: Verb = Verb::new("revoke", "/api/revoke", Scope::Access);
const PRESENCE: Verb = Verb::new("presence", "/api/presence", Scope::Read);
const ONLINE: Verb = Verb::new("online", "/api/users/online", Scope::Read);
const TOPICS: Verb = Verb::new("topics", "/api/topics", Scope::Read);
const COUNTS: Verb = Verb::new("counts", "/api/counts", Scope::Read);
const CONNECTIONS: Verb = Verb::new("connections", "/api/connections", Scope::Read);
const HISTORY: Verb = Verb::new("history", "/api/history", Scope::Read);
const FORGET: Verb = Verb::new("forget", "/api/history", Scope::History);
const HISTORY_TOPICS: Verb = Verb::new("history_topics", "/api/history/topics", Scope::Read);

pub(super) fn router(server: &Arc<Server>) -> Router {
    Router::new()
        .merge(BROADCAST.route(server, post(broadcast)))
        .merge(DISCONNECT.route(server, post(disconnect)))
        .merge(KICK.route(server, post(kick)))
        .merge(PUSH.route(server, post(push)))
        .merge(BLOCK.route(server, post(block)))
        .merge(UNBLOCK.route(server, post(unblock)))
        .merge(REVOKE.route(server, post(revoke)))
        .merge(PRESENCE.route(server, get(presence)))
        .merge(ONLINE.route(server, post(lists::online)))
        .merge(TOPICS.route(server, get(lists::topics)))
        .merge(COUNTS.route(server, get(lists::counts)))
        .merge(CONNECTIONS.route(server, get(lists::connections)))
        .merge(HISTORY.route(server, get(history::read)))
        .merge(FORGET.route(server, delete(history::forget)))
        .merge(HISTORY_TOPICS.route(server, get(history::topics)))
        .method_not_allowed_fallback(wrong_method)
        .layer(body_limit(server))
        .with_state(Arc::clone(server))
}

/// The header `allow` lists the methods.
async fn wrong_method() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method", "wrong method: see the header allow")
}

/// As many bytes as any body may have (`http_body_bytes_max`), in place of axum's 2 MB.
pub(super) fn body_limit(server: &Server) -> DefaultBodyLimit {
    let most = server.config.http.body_bytes_max;
    DefaultBodyLimit::max(usize::try_from(most).unwrap_or(usize::MAX))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    topic: String,
}

/// The members of a topic. 200 has the numbers of entries and keys, and the list as members get it
/// (a sample of a long one). 401 means no token, 400 no topic, and 503 that the server ends.
async fn presence(
    caller: Authorized,
    about: Result<Query<About>, QueryRejection>,
) -> Result<Response, ApiError> {
    let expected = "expected ?topic=NAME, and nothing else";
    let Query(About { topic }) = about.map_err(|_| ApiError::wrong(expected))?;
    caller.check_topic(&topic)?;
    let list = Presence::new(caller.server).ask(&topic).await.map_err(ApiError::for_now)?;
    let PresenceList { entries, keys, json } = list;
    let presences = RawValue::from_string(json).map_err(ApiError::for_now)?;
    Ok(Json(Listed { topic: &topic, entries, keys, presences: &presences }).into_response())
}

#[derive(Serialize)]
struct Listed<'a> {
    topic: &'a str,
    entries: usize,
    keys: usize,
    presences: &'a RawValue,
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::{Request, header};
    use tower::ServiceExt;

    use super::*;

    #[test]
    fn presence_after_the_end_is_503_with_retry_after() {
        let builder = crate::Endpoint::builder()
            .configure(|config| config.api_token = Some("right".to_owned()));
        let endpoint = builder.start_local().unwrap();
        let router = router(&endpoint.presence().0);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let ask = |token: &str| {
            let request = Request::get("/api/presence?topic=a")
                .header(header::AUTHORIZATION, format!("Bearer {token}"));
            let request = request.body(Body::empty()).unwrap();
            runtime.block_on(router.clone().oneshot(request)).unwrap()
        };
        assert_eq!(ask("right").status(), StatusCode::OK);
        endpoint.stop();
        assert_eq!(ask("wrong").status(), StatusCode::UNAUTHORIZED);
        let answer = ask("right");
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.headers()[header::RETRY_AFTER], "1");
        let body = runtime.block_on(to_bytes(answer.into_body(), 1_000)).unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let error = "the server has stopped or is stopping";
        assert_eq!(body, serde_json::json!({"error": error, "code": "unavailable"}));
    }
}
