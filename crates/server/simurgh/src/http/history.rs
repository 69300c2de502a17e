//! `/api/history` and `/api/history/topics`: stored histories for a back end in any language.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use simurgh_core::{HistoryPage, HistoryTopic, KeptMessage, Position};
use simurgh_proto::message::Payload;
use simurgh_shard::server::Server;

use super::api::{is_authorized, unauthorized, wrong};
use crate::history::{HistoryCursor, HistoryError, HistoryTopics, PAGE_MESSAGES_MAX};
use crate::pubsub::PubSub;

/// The default number of messages or topics in one answer.
const LIMIT: usize = 100;

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new()
        .route("/api/history", get(read).delete(forget))
        .route("/api/history/topics", get(topics))
}

/// Numbers and positions are parsed by hand, for error messages in the API's words.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    topic: String,
    since: Option<String>,
    limit: Option<String>,
    reverse: Option<String>,
}

/// The history of a topic: 200, 401 without the token, 400 for a malformed query, 404 for a topic
/// without history, 503 when the server ends.
async fn read(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    asked: Result<Query<Params>, QueryRejection>,
) -> Response {
    if !is_authorized(&server, &headers) {
        return unauthorized();
    }
    let Ok(Query(asked)) = asked else {
        return wrong(
            "expected ?topic=NAME, perhaps with &since=POSITION, &limit=NUMBER and &reverse=true, \
             and nothing else",
        );
    };
    let Params { topic, since, limit, reverse } = asked;
    let mut query = PubSub::new(server).history(topic);
    match since.as_deref().map(Position::parse) {
        None => {}
        Some(Some(position)) => query = query.after(position),
        Some(None) => return wrong("since: expected a position, as \"k7ku80.60\""),
    }
    match read_limit(limit.as_deref()) {
        Ok(limit) => query = query.limit(limit),
        Err(error) => return wrong(&error),
    }
    match reverse.as_deref() {
        None | Some("false") => {}
        Some("true") => query = query.reverse(),
        Some(_) => return wrong("reverse: expected true or false"),
    }
    match query.await {
        Ok(page) => told(&page),
        Err(error) => refused(error),
    }
}

fn told(page: &HistoryPage) -> Response {
    let HistoryPage { gap, first, position, messages } = page;
    let payloads: Vec<_> = messages.iter().map(KeptMessage::payload).collect();
    Json(Page {
        epoch: position.epoch.to_string(),
        first: first.map(|it| it.to_string()),
        position: position.to_string(),
        recovered: gap.is_none(),
        reason: gap.map(|it| it.as_str()),
        messages: messages
            .iter()
            .zip(&payloads)
            .map(|(it, payload)| to_told(it, payload))
            .collect(),
    })
    .into_response()
}

fn to_told<'a>(message: &'a KeptMessage, payload: &'a Payload<'_>) -> MessageView<'a> {
    let position = message.position.to_string();
    MessageView { position, event: message.event(), payload: to_json(payload), at: message.at_ms }
}

#[derive(Serialize)]
struct Page<'a> {
    epoch: String,
    first: Option<String>,
    position: String,
    recovered: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    messages: Vec<MessageView<'a>>,
}

#[derive(Serialize)]
struct MessageView<'a> {
    position: String,
    event: &'a str,
    payload: Content<'a>,
    at: u64,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Json(&'a RawValue),
    Binary { base64: String },
}

/// JSON unchanged; bytes, and payloads of an application that are not JSON, in Base64.
fn to_json<'a>(payload: &'a Payload<'_>) -> Content<'a> {
    match payload.json().map(serde_json::from_str) {
        Some(Ok(json)) => Content::Json(json),
        _ => Content::Binary { base64: STANDARD.encode(payload.data()) },
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    topic: String,
}

/// Deletes the history of a topic: 200 with the last position, and otherwise as [`read`].
async fn forget(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    which: Result<Query<Which>, QueryRejection>,
) -> Response {
    if !is_authorized(&server, &headers) {
        return unauthorized();
    }
    let Ok(Query(Which { topic })) = which else {
        return wrong("expected ?topic=NAME, and nothing else");
    };
    match PubSub::new(server).forget(&topic).await {
        Ok(position) => Json(json!({"position": position.to_string()})).into_response(),
        Err(error) => refused(error),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    limit: Option<String>,
    after: Option<String>,
}

async fn topics(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    listed: Result<Query<Listed>, QueryRejection>,
) -> Response {
    if !is_authorized(&server, &headers) {
        return unauthorized();
    }
    let Ok(Query(Listed { limit, after })) = listed else {
        return wrong("expected ?limit=NUMBER&after=NEXT, either of them or none");
    };
    let limit = match read_limit(limit.as_deref()) {
        Ok(limit) => limit,
        Err(error) => return wrong(&error),
    };
    let mut query = PubSub::new(server).history_topics().limit(limit);
    match after.as_deref().map(HistoryCursor::parse) {
        None => {}
        Some(Some(next)) => query = query.after(next),
        Some(None) => return wrong("after: expected what the page before had as \"next\""),
    }
    match query.await {
        Ok(page) => Json(Listing::of(page)).into_response(),
        Err(error) => refused(error),
    }
}

#[derive(Serialize)]
struct Listing {
    topics: Vec<Topic>,
    next: Option<String>,
}

impl Listing {
    fn of(page: HistoryTopics) -> Self {
        let topics = page.topics.into_iter().map(|it| {
            let HistoryTopic { name, messages, bytes, position, .. } = it;
            Topic { topic: name, messages, bytes, position: position.to_string() }
        });
        Self { topics: topics.collect(), next: page.next.map(|it| it.to_string()) }
    }
}

#[derive(Serialize)]
struct Topic {
    topic: Box<str>,
    messages: usize,
    bytes: u64,
    position: String,
}

fn read_limit(limit: Option<&str>) -> Result<usize, String> {
    let Some(limit) = limit else { return Ok(LIMIT) };
    match limit.parse() {
        Ok(limit @ 1..=PAGE_MESSAGES_MAX) => Ok(limit),
        _ => Err(format!("limit: expected 1 to {PAGE_MESSAGES_MAX}")),
    }
}

fn refused(error: HistoryError) -> Response {
    let said = Json(json!({"error": error.to_string()}));
    match error {
        HistoryError::NoHistory => (StatusCode::NOT_FOUND, said).into_response(),
        HistoryError::NotConfirmed | HistoryError::Ended => {
            let later = [(header::RETRY_AFTER, "1")];
            (StatusCode::SERVICE_UNAVAILABLE, later, said).into_response()
        }
    }
}
