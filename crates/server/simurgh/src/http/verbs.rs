//! The verbs of the server API, and which token may use each.

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use simurgh_shard::config::Scope;
use simurgh_shard::server::Server;

use super::error::ApiError;
use crate::access::{Caller, caller};

/// A route of the server API.
#[derive(Debug)]
pub(super) struct Verb {
    /// In metrics.
    pub(super) name: &'static str,
    pub(super) path: &'static str,
    pub(super) scope: Scope,
}

impl Verb {
    pub(super) const fn new(name: &'static str, path: &'static str, scope: Scope) -> Self {
        Self { name, path, scope }
    }

    /// Its route, for callers with a token of its scope. The token is checked before the body is
    /// read, so that no other client makes the server buffer one.
    pub(super) fn route(
        &'static self,
        server: &Arc<Server>,
        route: MethodRouter<Arc<Server>>,
    ) -> Router<Arc<Server>> {
        let check = from_fn_with_state((Arc::clone(server), self), check);
        Router::new().route(self.path, route.route_layer(check))
    }
}

async fn check(
    State((server, verb)): State<(Arc<Server>, &'static Verb)>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = caller(&server.config, request.headers());
    let response = match caller {
        None => unauthorized().into_response(),
        Some(caller) if !caller.has(&server.config, verb.scope) => {
            without_scope(&server, caller, verb.scope).into_response()
        }
        Some(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
    };
    let token = caller.map_or("", |caller| caller.name(&server.config));
    server.api_requests.count(verb.name, token, response.status().as_u16());
    response
}

fn unauthorized() -> ApiError {
    let why = "the API token is missing or wrong: send the header authorization: Bearer TOKEN";
    ApiError::new(StatusCode::UNAUTHORIZED, "token", why)
}

fn without_scope(server: &Server, caller: Caller, scope: Scope) -> ApiError {
    let (token, scope) = (caller.name(&server.config), scope.name());
    let error = format!("the token {token:?} lacks the scope {scope:?}: add it in [[api]]");
    ApiError::new(StatusCode::FORBIDDEN, "scope", error)
}

/// The server and the caller, for a request that [`Verb::route`] has let in.
#[derive(Clone)]
pub(super) struct Authorized {
    pub(super) server: Arc<Server>,
    pub(super) caller: Caller,
}

impl Authorized {
    /// Whether the caller may use a topic.
    pub(super) fn check_topic(&self, topic: &str) -> Result<(), ApiError> {
        let config = &self.server.config;
        if self.caller.may_use(config, topic) {
            return Ok(());
        }
        let token = self.caller.name(config);
        let error = format!("the token {token:?} may not use the topic {topic:?}");
        Err(ApiError::new(StatusCode::FORBIDDEN, "topic", error))
    }

    /// Whether the caller may use all topics that begin so.
    pub(super) fn check_topic_prefix(&self, prefix: &str) -> Result<(), ApiError> {
        let config = &self.server.config;
        if self.caller.may_use_all(config, prefix) {
            return Ok(());
        }
        let token = self.caller.name(config);
        let error = format!(
            "the token {token:?} may not list all topics with the prefix {prefix:?}: add the \
             prefix of its topics"
        );
        Err(ApiError::new(StatusCode::FORBIDDEN, "topic", error))
    }

    /// Whether the caller has a further scope.
    pub(super) fn check_scope(&self, scope: Scope) -> Result<(), ApiError> {
        match self.caller.has(&self.server.config, scope) {
            true => Ok(()),
            false => Err(without_scope(&self.server, self.caller, scope)),
        }
    }
}

impl FromRequestParts<Arc<Server>> for Authorized {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, ApiError> {
        let caller = parts.extensions.get().copied().ok_or_else(unauthorized)?;
        Ok(Self { server: Arc::clone(server), caller })
    }
}
