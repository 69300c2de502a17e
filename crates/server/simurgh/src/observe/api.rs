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
const FRONT: &str = include_str!("../../assets/front.js");
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
        .route("/observer/front.js", get(|| async { ([(header::CONTENT_TYPE, SCRIPT)], FRONT) }))
        .route("/observer/page.css", get(|| async { ([(header::CONTENT_TYPE, CSS)], style) }))
        .route(
            "/observer/favicon.svg",
            get(|| async { ([(header::CONTENT_TYPE, "image/svg+xml")], simurgh_page::ICON) }),
        )
        .merge(figures)
        .layer(middleware::from_fn_with_state(place, in_place))
}

async fn in_place(State(place): State<Place>, request: Request, next: Next) -> Response {
    let checked = place.observer.upgrade().ok_or(ENDED).and_then(|observer| {
        let (server, headers) = (observer.server.now(), request.headers());
        access::check_place(&server.config, place.is_admin, headers, request.extensions())
    });
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    response.headers_mut().extend(simurgh_page::HEADERS.map(|(name, value)| (Some(name), value)));
    response
}

/// Runs before the body is read.
async fn for_viewers(
    State(place): State<Place>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let observer = place.observer.upgrade().ok_or(ENDED)?;
    access::check_viewer(&observer.server.now().config, request.headers())?;
    request.extensions_mut().insert(observer);
    Ok(next.run(request).await)
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
) -> Result<Response, Refusal> {
    let Query(query) = query?;
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

async fn topics(observer: WithObserver, query: Params<TopicsQuery>) -> Result<Response, Refusal> {
    let Query(query) = query?;
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
    pub(super) fn wanted(self) -> Result<Wanted, Refusal> {
        let Self { by, peer, most } = self;
        let found = match peer.as_str() {
            "" => None,
            text => Some(parse_peer(text).ok_or(NO_PEER)?),
        };
        Ok(Wanted::Connections { by, peer: found, most: rows(most) })
    }
}

async fn connections(
    observer: WithObserver,
    query: Params<ConnectionsQuery>,
) -> Result<Response, Refusal> {
    let Query(query) = query?;
    Ok(Json(&*lists::list(&observer, &query.wanted()?).await).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MembersQuery {
    topic: String,
    most: Option<usize>,
}

async fn members(observer: WithObserver, query: Params<MembersQuery>) -> Result<Response, Refusal> {
    let Query(MembersQuery { topic, most }) = query?;
    Ok(Json(lists::members(&observer, &topic, rows(most)).await).into_response())
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoQuery {}

async fn cluster(observer: WithObserver, query: Params<NoQuery>) -> Result<Response, Refusal> {
    query?;
    let overview = nodes::cluster(&observer).await.ok_or(NO_CLUSTER)?;
    Ok(Json(&*overview).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    id: String,
}

async fn connection(observer: WithObserver, query: Params<Named>) -> Result<Response, Refusal> {
    let Query(Named { id }) = query?;
    let key = lists::parse_id(&id).ok_or(NO_ID)?;
    match lists::connection(&observer, key).await {
        Some(row) => Ok(Json(row).into_response()),
        None => Err(GONE),
    }
}

async fn disconnect(
    observer: WithObserver,
    headers: HeaderMap,
    body: Result<Json<Named>, JsonRejection>,
) -> Result<Response, Refusal> {
    access::check_order(&observer.server.now().config)?;
    let Json(Named { id }) = body.map_err(|error| Refusal::mistake(error.body_text()))?;
    let key = lists::parse_id(&id).ok_or(NO_ID)?;
    if !lists::disconnect(&observer, key).await {
        return Err(GONE);
    }
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    tracing::info!(id, agent, "disconnected a connection at the observer's request");
    Ok(Json(json!({"disconnected": id})).into_response())
}

const NO_PEER: Refusal = Refusal::new(
    StatusCode::BAD_REQUEST,
    "peer: expected an address, such as 192.0.2.7, 192.0.2.7:80 or [2001:db8::1]:80",
);
const NO_ID: Refusal =
    Refusal::new(StatusCode::BAD_REQUEST, "id: expected the id of a connection, such as 0.17.2");
const GONE: Refusal =
    Refusal::new(StatusCode::NOT_FOUND, "this connection does not exist, or is already closing");
pub(super) const NO_CLUSTER: Refusal = Refusal::new(
    StatusCode::NOT_FOUND,
    "this server is not in a cluster: its settings have no [cluster]",
);
const ENDED: Refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server has stopped");

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_is_an_address_with_an_optional_port() {
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
    fn observer_files_load_nothing_remote() {
        let script = SCRIPTS.concat();
        for text in [script.as_str(), STYLE, PAGE] {
            assert!(!text.contains("http://") && !text.contains("https://"));
        }
        for mark in ["innerHTML", "insertAdjacentHTML", "outerHTML", "eval(", "document.write"] {
            assert!(!script.contains(mark), "{mark}");
        }
    }
}
