//! `/api/history` and `/api/history/topics`: stored histories for a back end in any language.

use std::sync::Arc;

use axum::Json;
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::response::{IntoResponse, Response};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use simurgh_core::{HistoryPage, HistoryTopic, KeptMessage, Position};
use simurgh_proto::message::Payload;

use super::error::ApiError;
use super::verbs::Authorized;
use crate::history::{HistoryCursor, HistoryError, PAGE_MESSAGES_MAX};
use crate::pubsub::PubSub;

/// The default number of messages or topics in one answer.
const LIMIT: usize = 100;

/// Numbers and positions are parsed by hand, for error messages in the API's words.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Params {
    topic: String,
    since: Option<String>,
    limit: Option<String>,
    reverse: Option<String>,
}

/// The history of a topic: 200, 401 without the token, 400 for a malformed query, 404 for a topic
/// without history, 503 when the server ends.
pub(super) async fn read(
    caller: Authorized,
    asked: Result<Query<Params>, QueryRejection>,
) -> Result<Response, ApiError> {
    let expected =
        "expected ?topic=NAME, optionally with &since=POSITION, &limit=NUMBER and &reverse=true";
    let Query(Params { topic, since, limit, reverse }) =
        asked.map_err(|_| ApiError::wrong(expected))?;
    let limit = read_limit(limit.as_deref()).map_err(ApiError::wrong)?;
    caller.check_topic(&topic)?;
    let mut query = PubSub::new(caller.server).history(topic).limit(limit);
    if let Some(since) = since {
        let expected = "since: expected a position, such as \"k7ku80.60\"";
        query = query.after(Position::parse(&since).ok_or_else(|| ApiError::wrong(expected))?);
    }
    match reverse.as_deref() {
        None | Some("false") => {}
        Some("true") => query = query.reverse(),
        Some(_) => return Err(ApiError::wrong("reverse: expected true or false")),
    }
    query.await.map(|page| told(&page)).map_err(refused)
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
pub(super) struct Which {
    topic: String,
}

/// Deletes the history of a topic: 200 with the last position, and otherwise as [`read`].
pub(super) async fn forget(
    caller: Authorized,
    which: Result<Query<Which>, QueryRejection>,
) -> Result<Response, ApiError> {
    let expected = "expected ?topic=NAME, and nothing else";
    let Query(Which { topic }) = which.map_err(|_| ApiError::wrong(expected))?;
    caller.check_topic(&topic)?;
    let position = PubSub::new(caller.server).forget(&topic).await.map_err(refused)?;
    Ok(Json(json!({"position": position.to_string()})).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listed {
    limit: Option<String>,
    after: Option<String>,
}

pub(super) async fn topics(
    caller: Authorized,
    listed: Result<Query<Listed>, QueryRejection>,
) -> Result<Response, ApiError> {
    let expected = "expected ?limit=NUMBER&after=NEXT; both are optional";
    let Query(Listed { limit, after }) = listed.map_err(|_| ApiError::wrong(expected))?;
    let limit = read_limit(limit.as_deref()).map_err(ApiError::wrong)?;
    let mut query = PubSub::new(Arc::clone(&caller.server)).history_topics().limit(limit);
    if let Some(after) = after {
        let expected = "after: expected the value of \"next\" on the page before";
        query = query.after(HistoryCursor::parse(&after).ok_or_else(|| ApiError::wrong(expected))?);
    }
    let page = query.await.map_err(refused)?;
    let row = |it: &HistoryTopic| {
        let HistoryTopic { name, messages, bytes, position, .. } = it;
        let position = position.to_string();
        json!({"topic": name, "messages": messages, "bytes": bytes, "position": position})
    };
    let usable = page.topics.iter().filter(|it| caller.check_topic(&it.name).is_ok());
    let topics: Vec<Value> = usable.map(row).collect();
    let next = page.next.map(|next| next.to_string());
    Ok(Json(json!({"topics": topics, "next": next})).into_response())
}

fn read_limit(limit: Option<&str>) -> Result<usize, String> {
    let Some(limit) = limit else { return Ok(LIMIT) };
    match limit.parse() {
        Ok(limit @ 1..=PAGE_MESSAGES_MAX) => Ok(limit),
        _ => Err(format!("limit: expected 1 to {PAGE_MESSAGES_MAX}")),
    }
}

fn refused(error: HistoryError) -> ApiError {
    match error {
        HistoryError::NoHistory => ApiError::not_found("no_history", error),
        HistoryError::NotConfirmed | HistoryError::Ended => ApiError::for_now(error),
    }
}
