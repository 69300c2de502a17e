//! While the server listens on loopback, its own paths accept only known hosts.

use std::sync::{Arc, Weak};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use simurgh_shard::server::Server;

use super::error::ApiError;
use crate::access::{FOREIGN, is_known};

pub(super) fn for_known_hosts(router: Router, server: &Arc<Server>, is_admin: bool) -> Router {
    router.layer(from_fn_with_state((Arc::downgrade(server), is_admin), check))
}

async fn check(
    State((server, is_admin)): State<(Weak<Server>, bool)>,
    request: Request,
    next: Next,
) -> Response {
    let server = server.upgrade();
    if server.is_none_or(|server| is_known(&server.now().config, is_admin, request.headers())) {
        return next.run(request).await;
    }
    ApiError::new(StatusCode::MISDIRECTED_REQUEST, "host", FOREIGN).into_response()
}
