//! The server API below `/api/`: its routes, who may call them, and the list of a topic's members.

use std::sync::Arc;

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
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
#[cfg(feature = "hooks")]
use super::notices;
use super::publish::broadcast;
use super::reload::reload;
use super::verbs::{Authorized, router_of, verb};
use crate::presence::Presence;

pub(super) fn router(server: &Arc<Server>) -> Router {
    let verbs = [
        verb("reload", "/api/reload", Scope::Reload, post(reload)),
        verb("broadcast", "/api/broadcast", Scope::Publish, post(broadcast)),
        verb("disconnect", "/api/disconnect", Scope::Control, post(disconnect)),
        verb("kick", "/api/kick", Scope::Control, post(kick)),
        verb("push", "/api/push", Scope::Publish, post(push)),
        verb("block", "/api/block", Scope::Access, post(block)),
        verb("unblock", "/api/unblock", Scope::Access, post(unblock)),
        verb("revoke", "/api/revoke", Scope::Access, post(revoke)),
        verb("presence", "/api/presence", Scope::Read, get(presence)),
        verb("online", "/api/users/online", Scope::Read, post(lists::online)),
        verb("topics", "/api/topics", Scope::Read, get(lists::topics)),
        verb("counts", "/api/counts", Scope::Read, get(lists::counts)),
        verb("connections", "/api/connections", Scope::Read, get(lists::connections)),
        #[cfg(feature = "hooks")]
        verb("stays", "/api/stays", Scope::Notices, get(notices::stays)),
        #[cfg(feature = "hooks")]
        verb("notices", "/api/notices", Scope::Notices, get(notices::status)),
        #[cfg(feature = "hooks")]
        verb("dead", "/api/notices/dead", Scope::Notices, get(notices::dead)),
        #[cfg(feature = "hooks")]
        verb("delete", "/api/notices/delete", Scope::Notices, post(notices::delete)),
        #[cfg(feature = "hooks")]
        verb("replay", "/api/notices/replay", Scope::Notices, post(notices::replay)),
        #[cfg(feature = "hooks")]
        verb("resume", "/api/notices/resume", Scope::Notices, post(notices::resume)),
        verb("history", "/api/history", Scope::Read, get(history::read)),
        verb("forget", "/api/history", Scope::History, delete(history::forget)),
        verb("history_topics", "/api/history/topics", Scope::Read, get(history::topics)),
    ];
    router_of(server, verbs)
        .method_not_allowed_fallback(wrong_method)
        .with_state(Arc::clone(server))
}

/// The header `allow` lists the methods.
async fn wrong_method() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method", "wrong method: see the header allow")
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
