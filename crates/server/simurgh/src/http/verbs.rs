//! The verbs of the server API, and which token may use each.

use std::fmt::Display;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use simurgh_shard::config::Scope;
use simurgh_shard::server::Server;
use tracing::{Instrument as _, Span};

use super::error::ApiError;
use crate::access::{Caller, caller};

/// A verb of the server API.
#[derive(Clone, Copy)]
pub(super) struct Verb {
    /// In metrics.
    name: &'static str,
    path: &'static str,
    scope: Scope,
}

type Route = MethodRouter<Arc<Server>>;

pub(super) fn verb(
    name: &'static str,
    path: &'static str,
    scope: Scope,
    route: Route,
) -> (Verb, Route) {
    (Verb { name, path, scope }, route)
}

/// The routes of verbs, for callers with a token of their scope. The token is checked before the
/// body is read, so that no other client makes the server buffer one. A body may have as many bytes
/// as any other (`http_body_bytes_max`), in place of axum's 2 MB.
pub(super) fn router_of<const N: usize>(
    server: &Arc<Server>,
    verbs: [(Verb, Route); N],
) -> Router<Arc<Server>> {
    let bytes_max = usize::try_from(server.config.http.body_bytes_max).unwrap_or(usize::MAX);
    let router = verbs.into_iter().fold(Router::new(), |router, (verb, route)| {
        let check = from_fn_with_state((Arc::clone(server), verb), check);
        router.route(verb.path, route.route_layer(check))
    });
    router.layer(DefaultBodyLimit::max(bytes_max))
}

async fn check(
    State((server, verb)): State<(Arc<Server>, Verb)>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = caller(&server.config, request.headers());
    let span = span_of(request.headers());
    let response = match caller {
        None => unauthorized().into_response(),
        Some(caller) if !caller.has(&server.config, verb.scope) => {
            without_scope(&server, caller, verb.scope).into_response()
        }
        Some(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).instrument(span.clone()).await
        }
    };
    let token = caller.map_or("", |caller| caller.name(&server.config));
    let status = response.status().as_u16();
    server.api_requests.count(verb.name, token, status);
    let verb = verb.name;
    span.in_scope(|| tracing::debug!(verb, token, status, "answered a request to the server API"));
    response
}

/// All lines of the log that a request causes on this thread have the trace of its `traceparent`
/// (W3C Trace Context), if it has one.
fn span_of(headers: &HeaderMap) -> Span {
    const BYTES: usize = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".len();
    let trace = headers.get("traceparent").and_then(|trace| trace.to_str().ok()?.get(..BYTES));
    let is_hex = |trace: &&str| trace.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    match trace.filter(is_hex) {
        Some(trace) => tracing::error_span!("request", trace),
        None => Span::none(),
    }
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

/// The server and the caller, for a request that [`check`] has let in.
#[derive(Clone)]
pub(super) struct Authorized {
    pub(super) server: Arc<Server>,
    pub(super) caller: Caller,
}

impl Authorized {
    /// Whether the caller may use a topic.
    pub(super) fn check_topic(&self, topic: &str) -> Result<(), ApiError> {
        let token = self.caller.token(&self.server.config);
        self.check_use(
            token.is_none_or(|token| token.may_use(topic)),
            format_args!("use the topic {topic:?}"),
        )
    }

    /// Whether the caller may use all topics that begin so.
    pub(super) fn check_topic_prefix(&self, prefix: &str) -> Result<(), ApiError> {
        let what = "add the prefix of its topics";
        let token = self.caller.token(&self.server.config);
        let may_use = token.is_none_or(|token| token.may_use_all(prefix));
        self.check_use(may_use, format_args!("list all topics with the prefix {prefix:?}: {what}"))
    }

    fn check_use(&self, may_use: bool, what: impl Display) -> Result<(), ApiError> {
        if may_use {
            return Ok(());
        }
        let token = self.caller.name(&self.server.config);
        let error = format!("the token {token:?} may not {what}");
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
