//! `/healthz`: whether the server serves, and with what.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;

use simurgh_cluster::LinkState;
use simurgh_shard::cluster_inbox::ClusterInbox;
use simurgh_shard::server::Server;

pub(super) fn router(server: &Arc<Server>) -> Router {
    Router::new().route("/healthz", get(health)).with_state(server.cluster.clone())
}

/// The server serves its own clients, and has no link to other nodes.
#[derive(Serialize)]
struct Degraded {
    status: &'static str,
    /// How it stands with the link.
    cluster: &'static str,
    /// Since how many seconds.
    for_s: u64,
}

/// 200 with `ok`; while other nodes are away 200 with what is the matter, or 503 with it if the
/// query is `strict`.
async fn health(
    State(inbox): State<Option<Arc<ClusterInbox>>>,
    RawQuery(query): RawQuery,
) -> Response {
    let degraded = inbox.and_then(|inbox| {
        let view = inbox.view();
        let (cluster, for_s) = (view.state.name(), view.since.elapsed().as_secs());
        let is_away = view.state == LinkState::Away;
        is_away.then_some(Degraded { status: "degraded", cluster, for_s })
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
