//! `/healthz`: whether the server works, and with which links.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;

use simurgh_cluster::LinkState;
use simurgh_shard::server::Server;

pub(super) fn router(server: &Arc<Server>) -> Router {
    Router::new().route("/healthz", get(health)).with_state(Arc::clone(server))
}

/// 200 with `ok`; without a link to other nodes, or with an application that does not answer
/// questions, 200 with the problem. Without a link it is 503 if the query is `strict`.
async fn health(State(server): State<Arc<Server>>, RawQuery(query): RawQuery) -> Response {
    let degraded = server.cluster.as_ref().and_then(|inbox| {
        let view = inbox.view();
        let (cluster, for_s) = (view.state.name(), view.lasts().as_secs());
        let is_away = view.state == LinkState::Away;
        is_away.then(|| json!({"status": "degraded", "cluster": cluster, "for_s": for_s}))
    });
    match degraded {
        None => answered(&server),
        Some(degraded) => {
            let status = match query.as_deref() {
                Some("strict") => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::OK,
            };
            (status, Json(degraded)).into_response()
        }
    }
}

/// Other servers would not get better answers, so these problems never ask for one.
fn answered(server: &Server) -> Response {
    #[cfg(feature = "hooks")]
    {
        let hooks = crate::hooked::degraded(server);
        if !hooks.is_empty() {
            return Json(json!({"status": "degraded", "hooks": hooks})).into_response();
        }
    }
    let _ = server;
    "ok\n".into_response()
}
