//! `/healthz`: whether the server works, and with which links.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;

use simurgh_cluster::LinkState;
use simurgh_shard::cluster_inbox::ClusterInbox;
use simurgh_shard::server::Server;

pub(super) fn router(server: &Arc<Server>) -> Router {
    Router::new().route("/healthz", get(health)).with_state(server.cluster.clone())
}

/// 200 with `ok`; without a link to other nodes 200 with the problem, or 503 if the query is
/// `strict`.
async fn health(
    State(inbox): State<Option<Arc<ClusterInbox>>>,
    RawQuery(query): RawQuery,
) -> Response {
    let degraded = inbox.and_then(|inbox| {
        let view = inbox.view();
        let (cluster, for_s) = (view.state.name(), view.lasts().as_secs());
        let is_away = view.state == LinkState::Away;
        is_away.then(|| json!({"status": "degraded", "cluster": cluster, "for_s": for_s}))
    });
    match degraded {
        None => "ok\n".into_response(),
        Some(degraded) => {
            let status = match query.as_deref() {
                Some("strict") => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::OK,
            };
            (status, Json(degraded)).into_response()
        }
    }
}
