//! `POST /api/users/online`, and `GET /api/topics`, `/api/counts` and `/api/connections`: what is
//! on all nodes.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use axum::Json;
use axum::body::Bytes;
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use simurgh_shard::cluster_inbox::NodeName;
use simurgh_shard::mail::question::{
    ConnectionInfo, ConnectionsOf, Counts, Found, Question, ROWS_MAX,
};

use super::control::{read, to_user};
use super::error::ApiError;
use super::verbs::Authorized;
use crate::questions::ask_everywhere;

/// The default number of rows.
const LIMIT: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Users {
    users: Vec<Value>,
}

/// For each user the number of connections and the beginning of the oldest; null for a user who has
/// none. 503 if a node does not answer: null would be a guess.
pub(super) async fn online(caller: Authorized, body: Bytes) -> Result<Response, ApiError> {
    let Users { users } = read(&body)?;
    if !(1..=ROWS_MAX).contains(&users.len()) {
        return Err(ApiError::wrong(format_args!("users: expected 1 to {ROWS_MAX}")));
    }
    let users = users.into_iter().map(to_user).collect::<Result<Vec<String>, _>>()?;
    let (found, missing) = ask(&caller, Question::Online { users: users.clone() }).await?;
    if !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|it| &*it.name).collect();
        let error = format!("no answer of the nodes {}: try again later", names.join(", "));
        return Err(ApiError::for_now(error));
    }
    let rows = users.into_iter().map(|user| {
        let online = found.users.get(&user).filter(|it| it.connections > 0);
        let row =
            online.map(|it| json!({"connections": it.connections, "since": to_time(it.since)}));
        (user, row)
    });
    Ok(Json(rows.collect::<BTreeMap<_, _>>()).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopicsQuery {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    after: String,
    limit: Option<String>,
}

/// Topics with members, in the order of their names.
pub(super) async fn topics(
    caller: Authorized,
    query: Result<Query<TopicsQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let expected = "expected ?prefix=TEXT&after=NEXT&limit=NUMBER; all are optional";
    let Query(TopicsQuery { prefix, after, limit }) =
        query.map_err(|_| ApiError::wrong(expected))?;
    let limit = to_limit(limit.as_deref())?;
    // The name of the next page may be one that the token may not know.
    caller.check_topic_prefix(&prefix)?;
    let (found, missing) = ask(&caller, Question::Topics { prefix, after, limit }).await?;
    let next = found.next().map(str::to_owned);
    let usable = found.topics.into_iter().filter(|it| caller.check_topic(&it.0).is_ok());
    let topics: Vec<_> =
        usable.map(|(topic, members)| json!({"topic": topic, "members": members})).collect();
    let body = json!({"topics": topics, "next": next, "missing": missing});
    Ok(Json(body).into_response())
}

/// The numbers of connections and channels.
pub(super) async fn counts(caller: Authorized) -> Result<Response, ApiError> {
    let (found, missing) = ask(&caller, Question::Counts).await?;
    let Counts { connections, channels } = found.counts;
    let body = json!({"connections": connections, "channels": channels, "missing": missing});
    Ok(Json(body).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConnectionsQuery {
    user: Option<String>,
    topic: Option<String>,
    #[serde(default)]
    after: String,
    limit: Option<String>,
}

/// The connections of a user or of a topic's members, in the order of their ids.
pub(super) async fn connections(
    caller: Authorized,
    query: Result<Query<ConnectionsQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let expected = "expected ?user=USER or ?topic=NAME, optionally with &after=NEXT&limit=NUMBER";
    let Query(ConnectionsQuery { user, topic, after, limit }) =
        query.map_err(|_| ApiError::wrong(expected))?;
    let of = match (user, topic) {
        (Some(user), None) => ConnectionsOf::User(user),
        (None, Some(topic)) => {
            caller.check_topic(&topic)?;
            ConnectionsOf::Topic(topic)
        }
        _ => return Err(ApiError::wrong(expected)),
    };
    let limit = to_limit(limit.as_deref())?;
    let (found, missing) = ask(&caller, Question::Connections { of, after, limit }).await?;
    let next = found.next().map(str::to_owned);
    let connections: Vec<_> =
        found.connections.into_iter().map(|row| to_row(&caller, row)).collect();
    let body = json!({"connections": connections, "next": next, "missing": missing});
    Ok(Json(body).into_response())
}

fn to_row(caller: &Authorized, (connection, info): (String, ConnectionInfo)) -> Value {
    let ConnectionInfo { node, user, id, peer, path, since, mut topics } = info;
    topics.retain(|topic| caller.check_topic(topic).is_ok());
    json!({
        "connection": connection, "node": node, "user": user, "id": id, "peer": peer, "path": path,
        "since": to_time(since), "topics": topics,
    })
}

async fn ask(caller: &Authorized, question: Question) -> Result<(Found, Vec<NodeName>), ApiError> {
    ask_everywhere(&caller.server, question).await.map_err(ApiError::for_now)
}

/// RFC 3339, as `2026-11-27T10:00:00Z`. Another node may claim any time.
fn to_time(unix_s: u64) -> String {
    const YEAR_9999: u64 = 253_402_300_799;
    let time = UNIX_EPOCH + Duration::from_secs(unix_s.min(YEAR_9999));
    humantime::format_rfc3339_seconds(time).to_string()
}

fn to_limit(limit: Option<&str>) -> Result<usize, ApiError> {
    let Some(limit) = limit else { return Ok(LIMIT) };
    match limit.parse() {
        Ok(limit @ 1..=ROWS_MAX) => Ok(limit),
        _ => Err(ApiError::wrong(format_args!("limit: expected 1 to {ROWS_MAX}"))),
    }
}
