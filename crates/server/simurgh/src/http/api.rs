//! The server API below `/api/`: its routes, who may call them, and the list of a topic's members.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use simurgh_core::PresenceList;
use simurgh_shard::server::Server;

use super::error::ApiError;
use super::publish::broadcast;
use crate::access::{Bearer, bearer};
use crate::presence::Presence;

pub(super) fn router(server: &Arc<Server>) -> Router {
    Router::new()
        .route("/api/broadcast", post(broadcast))
        .route("/api/presence", get(presence))
        .merge(super::disconnect::router())
        .merge(super::history::router())
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
    Authorized(server): Authorized,
    about: Result<Query<About>, QueryRejection>,
) -> Result<Response, ApiError> {
    let expected = "expected ?topic=NAME, and nothing else";
    let Query(About { topic }) = about.map_err(|_| ApiError::wrong(expected))?;
    let list = Presence::new(server).ask(&topic).await.map_err(ApiError::for_now)?;
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

/// The server, for a request with the token. Always a handler's first argument, so that no other
/// client makes the server buffer a body.
pub(super) struct Authorized(pub(super) Arc<Server>);

impl FromRequestParts<Arc<Server>> for Authorized {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, ApiError> {
        if bearer(&server.config, &parts.headers) == Bearer::Right {
            return Ok(Self(Arc::clone(server)));
        }
        let why = "the API token is missing or wrong: send the header authorization: Bearer TOKEN";
        Err(ApiError::new(StatusCode::UNAUTHORIZED, "token", why))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header;

    use super::*;

    #[test]
    fn presence_after_the_end_is_503_with_retry_after() {
        let builder = crate::Endpoint::builder()
            .configure(|config| config.api_token = Some("right".to_owned()));
        let endpoint = builder.start_local().unwrap();
        let server = endpoint.presence().0;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let ask = |token: &str| {
            let request = axum::http::Request::builder()
                .header(header::AUTHORIZATION, format!("Bearer {token}"));
            let (mut parts, ()) = request.body(()).unwrap().into_parts();
            let about = Ok(Query(About { topic: "a".to_owned() }));
            runtime.block_on(async {
                match Authorized::from_request_parts(&mut parts, &server).await {
                    Ok(authorized) => presence(authorized, about).await.into_response(),
                    Err(refused) => refused.into_response(),
                }
            })
        };
        assert_eq!(ask("right").status(), StatusCode::OK);
        endpoint.stop();
        assert_eq!(ask("wrong").status(), StatusCode::UNAUTHORIZED);
        let answer = ask("right");
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.headers()[header::RETRY_AFTER], "1");
        let body = runtime.block_on(axum::body::to_bytes(answer.into_body(), 1_000)).unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let error = "the server has stopped or is stopping";
        assert_eq!(body, serde_json::json!({"error": error, "code": "unavailable"}));
    }
}
