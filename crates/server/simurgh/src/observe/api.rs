//! The observer over HTTP: its page, and its data as JSON.

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Json, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Router, http::HeaderMap};
use serde::Deserialize;
use serde_json::json;
use simurgh_shard::mail::survey::Peer;
use simurgh_shard::view::{ConnectionOrder, TopicOrder};

use super::Observer;
use super::access::{self, Refusal};
use super::feed;
use super::lists::{self, ROWS_MAX, Wanted};
use super::nodes;

/// Bytes of a command: an id in JSON.
const ORDER_BYTES_MAX: usize = 1024;
/// The default number of rows.
const ROWS: usize = 50;

const PAGE: &str = include_str!("../../assets/observer.html");
const STYLE: &str = include_str!("../../assets/observer.css");
const SCRIPTS: [&str; 4] = [
    include_str!("../../assets/observer/tables.js"),
    include_str!("../../assets/observer/views.js"),
    include_str!("../../assets/observer/cluster.js"),
    include_str!("../../assets/observer/live.js"),
];

/// Shared by handlers, without keeping the server alive.
#[derive(Clone)]
struct Place {
    observer: Weak<Observer>,
    is_admin: bool,
}

/// `/observer/`, before all other routes. `access` decides who may see what.
pub(crate) fn router(observer: &Arc<Observer>, is_admin: bool) -> Router {
    const SCRIPT: &str = "text/javascript; charset=utf-8";
    const CSS: &str = "text/css; charset=utf-8";
    let place = Place { observer: Arc::downgrade(observer), is_admin };
    let figures = Router::new()
        .route("/observer/api/overview", get(overview))
        .route("/observer/api/topics", get(topics))
        .route("/observer/api/members", get(members))
        .route("/observer/api/connections", get(connections))
        .route("/observer/api/connection", get(connection))
        .route("/observer/api/cluster", get(cluster))
        .route("/observer/api/disconnect", post(disconnect))
        .route("/observer/api/feed", get(feed::feed))
        .layer(DefaultBodyLimit::max(ORDER_BYTES_MAX))
        .layer(middleware::from_fn_with_state(place.clone(), for_viewers));
    let script = simurgh_page::SCRIPTS.concat() + &SCRIPTS.concat();
    let style = simurgh_page::STYLE.to_owned() + STYLE;
    Router::new()
        .route("/observer", get(|| async { Redirect::temporary("observer/") }))
        .route("/observer/", get(|| async { Html(PAGE) }))
        .route("/observer/page.js", get(|| async { ([(header::CONTENT_TYPE, SCRIPT)], script) }))
        .route("/observer/page.css", get(|| async { ([(header::CONTENT_TYPE, CSS)], style) }))
        .route(
            "/observer/favicon.svg",
            get(|| async { ([(header::CONTENT_TYPE, "image/svg+xml")], simurgh_page::ICON) }),
        )
        .merge(figures)
        .layer(middleware::from_fn_with_state(place, in_place))
}

async fn in_place(State(place): State<Place>, request: Request, next: Next) -> Response {
    let Some(observer) = place.observer.upgrade() else { return ended() };
    let checked = access::check_place(
        &observer.server.config,
        place.is_admin,
        request.headers(),
        request.extensions(),
    );
    drop(observer);
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    response.headers_mut().extend(simurgh_page::HEADERS.map(|(name, value)| (Some(name), value)));
    response
}

/// Runs before the body is read.
async fn for_viewers(State(place): State<Place>, mut request: Request, next: Next) -> Response {
    let Some(observer) = place.observer.upgrade() else { return ended() };
    if let Err(refusal) = access::check_viewer(&observer.server.config, request.headers()) {
        return refusal.into_response();
    }
    request.extensions_mut().insert(Arc::clone(&observer));
    next.run(request).await
}

fn ended() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"error": "the server has ended"})))
        .into_response()
}

pub(super) type WithObserver = axum::Extension<Arc<Observer>>;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OverviewQuery {
    /// Include the last minutes.
    history: bool,
}

pub(super) type Params<T> = Result<Query<T>, QueryRejection>;

async fn overview(
    observer: WithObserver,
    query: Params<OverviewQuery>,
) -> Result<Response, Response> {
    let Query(query) = query.map_err(wrong_query)?;
    let latest = observer.latest.borrow().clone();
    let mut overview = (*latest).clone();
    if query.history {
        overview.history = observer.points();
    }
    Ok(Json(overview).into_response())
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TopicsQuery {
    by: TopicOrder,
    search: String,
    most: Option<usize>,
}

impl TopicsQuery {
    pub(super) fn wanted(self) -> Wanted {
        Wanted::Topics { by: self.by, search: self.search, most: rows(self.most) }
    }
}

async fn topics(observer: WithObserver, query: Params<TopicsQuery>) -> Result<Response, Response> {
    let Query(query) = query.map_err(wrong_query)?;
    Ok(Json(&*lists::list(&observer, &query.wanted()).await).into_response())
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ConnectionsQuery {
    by: ConnectionOrder,
    /// An address, optionally with a port.
    peer: String,
    most: Option<usize>,
}

impl ConnectionsQuery {
    pub(super) fn wanted(self) -> Result<Wanted, Mistake> {
        let Self { by, peer, most } = self;
        let found = match peer.as_str() {
            "" => None,
            text => Some(parse_peer(text).ok_or_else(|| wrong(NO_PEER))?),
        };
        Ok(Wanted::Connections { by, peer: found, most: rows(most) })
    }
}

async fn connections(
    observer: WithObserver,
    query: Params<ConnectionsQuery>,
) -> Result<Response, Response> {
    let Query(query) = query.map_err(wrong_query)?;
    Ok(Json(&*lists::list(&observer, &query.wanted()?).await).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MembersQuery {
    topic: String,
    most: Option<usize>,
}

async fn members(
    observer: WithObserver,
    query: Params<MembersQuery>,
) -> Result<Response, Response> {
    let Query(MembersQuery { topic, most }) = query.map_err(wrong_query)?;
    Ok(Json(lists::members(&observer, &topic, rows(most)).await).into_response())
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoQuery {}

async fn cluster(observer: WithObserver, query: Params<NoQuery>) -> Result<Response, Response> {
    query.map_err(wrong_query)?;
    let overview = nodes::cluster(&observer).await.ok_or_else(no_cluster)?;
    Ok(Json(&*overview).into_response())
}

pub(super) fn no_cluster() -> Response {
    let text = "this server is no part of a cluster: its settings have no [cluster]";
    (StatusCode::NOT_FOUND, Json(json!({ "error": text }))).into_response()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    id: String,
}

async fn connection(observer: WithObserver, query: Params<Named>) -> Result<Response, Response> {
    let Query(Named { id }) = query.map_err(wrong_query)?;
    let key = lists::parse_id(&id).ok_or_else(|| wrong(NO_ID))?;
    match lists::connection(&observer, key).await {
        Some(row) => Ok(Json(row).into_response()),
        None => Err(gone()),
    }
}

async fn disconnect(
    observer: WithObserver,
    headers: HeaderMap,
    body: Result<Json<Named>, JsonRejection>,
) -> Result<Response, Response> {
    access::check_order(&observer.server.config).map_err(Refusal::into_response)?;
    let Json(Named { id }) = body.map_err(|error| wrong(&error.body_text()))?;
    let key = lists::parse_id(&id).ok_or_else(|| wrong(NO_ID))?;
    if !lists::disconnect(&observer, key).await {
        return Err(gone());
    }
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    tracing::info!(id, agent, "a connection was disconnected through the observer");
    Ok(Json(json!({"disconnected": id})).into_response())
}

const NO_PEER: &str =
    "peer: this is no address such as 192.0.2.7, 192.0.2.7:80 or [2001:db8::1]:80";
const NO_ID: &str = "id: this is no connection's id such as 0.17.2";

fn rows(most: Option<usize>) -> usize {
    most.unwrap_or(ROWS).clamp(1, ROWS_MAX)
}

fn parse_peer(text: &str) -> Option<Peer> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(Peer { address, port: None });
    }
    let address: std::net::SocketAddr = text.parse().ok()?;
    Some(Peer { address: address.ip(), port: Some(address.port()) })
}

#[derive(Debug)]
pub(super) struct Mistake(String);

impl From<Mistake> for Response {
    fn from(mistake: Mistake) -> Self {
        (StatusCode::BAD_REQUEST, Json(json!({ "error": mistake.0 }))).into_response()
    }
}

pub(super) fn wrong(text: &str) -> Mistake {
    Mistake(text.to_owned())
}

pub(super) fn wrong_query(error: QueryRejection) -> Mistake {
    Mistake(error.body_text())
}

fn gone() -> Response {
    let text = "there is no such connection, or it is closing already";
    (StatusCode::NOT_FOUND, Json(json!({ "error": text }))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_an_address_with_or_without_a_port() {
        let peer = |text: &str| parse_peer(text).map(|peer| (peer.address.to_string(), peer.port));
        assert_eq!(peer("192.0.2.7"), Some(("192.0.2.7".to_owned(), None)));
        assert_eq!(peer("192.0.2.7:80"), Some(("192.0.2.7".to_owned(), Some(80))));
        assert_eq!(peer("[::1]:80"), Some(("::1".to_owned(), Some(80))));
        assert_eq!(peer("::1"), Some(("::1".to_owned(), None)));
        for wrong in ["x", "192.0.2.7:", "192.0.2.7:99999", "1.2.3"] {
            assert_eq!(peer(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn our_own_files_fetch_nothing() {
        let script = SCRIPTS.concat();
        for text in [script.as_str(), STYLE, PAGE] {
            assert!(!text.contains("http://") && !text.contains("https://"));
        }
        for mark in ["innerHTML", "insertAdjacentHTML", "outerHTML", "eval(", "document.write"] {
            assert!(!script.contains(mark), "{mark}");
        }
    }
}
