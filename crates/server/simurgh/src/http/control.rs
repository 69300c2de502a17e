//! `POST /api/push`, `/api/kick` and `/api/disconnect`: orders to sockets, on all nodes.

use axum::Json;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use simurgh_core::Publisher;
use simurgh_proto::message::Payload;
use simurgh_proto::serializer::json::compact;
use simurgh_shard::cluster_inbox::Disconnected;
use simurgh_shard::connection_id::ConnectionId;
use simurgh_shard::mail::order::{Order, SocketRef};

use super::error::ApiError;
use super::publish::{is_too_large, too_large};
use super::verbs::Authorized;
use crate::Broadcast;
use crate::pubsub::{DisconnectError, PubSub};

const EXPECTED: &str = "expected one of \"connection\", \"user\" and \"id\"";
/// The most connections that a disconnect may spare.
const EXCEPT_MAX: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DisconnectBody {
    connection: Option<String>,
    user: Option<Value>,
    id: Option<String>,
    #[serde(default)]
    except: Vec<String>,
    #[serde(default)]
    keep_grants: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KickBody {
    connection: Option<String>,
    user: Option<Value>,
    id: Option<String>,
    topic: String,
    #[serde(default)]
    rejoin: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PushBody {
    connection: Option<String>,
    user: Option<Value>,
    id: Option<String>,
    topic: String,
    event: String,
    payload: Box<RawValue>,
}

/// Closes sockets with 1001. 200 once all nodes have confirmed it. 202 names the missing nodes, if
/// some do not confirm within a minute or are disconnected. 400 means a malformed body, and 503
/// that too many requests wait for other nodes, or that the server ends.
pub(super) async fn disconnect(caller: Authorized, body: Bytes) -> Result<Response, ApiError> {
    let DisconnectBody { connection, user, id, except, keep_grants } = read(&body)?;
    let of = to_ref(connection, user, id)?;
    if except.len() > EXCEPT_MAX {
        return Err(ApiError::wrong(format_args!("except: at most {EXCEPT_MAX} connections")));
    }
    for connection in &except {
        check_connection("except", connection)?;
    }
    Ok(closed(order(caller, Order::Disconnect { of, except, keep_grants }).await?))
}

/// Ends the channels of some sockets on a topic; otherwise as [`disconnect`].
pub(super) async fn kick(caller: Authorized, body: Bytes) -> Result<Response, ApiError> {
    let KickBody { connection, user, id, topic, rejoin } = read(&body)?;
    let of = to_ref(connection, user, id)?;
    caller.check_topic(&topic)?;
    Ok(closed(order(caller, Order::Kick { of, topic, rejoin }).await?))
}

/// Pushes an event on the channels of some sockets on a topic; 413 if the payload is too large,
/// otherwise as [`disconnect`].
pub(super) async fn push(caller: Authorized, body: Bytes) -> Result<Response, ApiError> {
    let PushBody { connection, user, id, topic, event, payload } = read(&body)?;
    let of = to_ref(connection, user, id)?;
    caller.check_topic(&topic)?;
    let payload = compact(payload.get()).into_owned();
    let broadcast = Broadcast::new(&*topic, &*event, Payload::from_json(&*payload).into_owned());
    caller.server.check(&broadcast).map_err(|error| match is_too_large(error) {
        true => too_large(error),
        false => ApiError::wrong(error),
    })?;
    if event.is_empty() {
        return Err(ApiError::wrong("event: must not be empty"));
    }
    let payload = RawValue::from_string(payload).map_err(ApiError::wrong)?;
    Ok(answer(order(caller, Order::Push { of, topic, event, payload }).await?, "delivered"))
}

/// The answer to an order that closes sockets or channels.
pub(super) fn closed(done: Disconnected) -> Response {
    answer(done, "closed")
}

/// The answer to an order, with the number of sockets or channels by this name.
fn answer(done: Disconnected, count: &str) -> Response {
    let Disconnected { confirmed, missing, closed } = done;
    let status = if missing.is_empty() { StatusCode::OK } else { StatusCode::ACCEPTED };
    let body = json!({"confirmed": confirmed, "missing": missing, count: closed});
    (status, Json(body)).into_response()
}

pub(super) fn read<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, ApiError> {
    // serde would also read a structure from an array.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(ApiError::wrong("the body is not a JSON object"));
    }
    serde_json::from_slice(body).map_err(ApiError::wrong)
}

fn to_ref(
    connection: Option<String>,
    user: Option<Value>,
    id: Option<String>,
) -> Result<SocketRef, ApiError> {
    match (connection, user, id) {
        (Some(connection), None, None) => {
            check_connection("connection", &connection)?;
            Ok(SocketRef::Connection(connection))
        }
        (None, Some(user), None) => Ok(SocketRef::User(to_user(user)?)),
        (None, None, Some(id)) if !id.is_empty() => Ok(SocketRef::Id(id)),
        (None, None, Some(_)) => Err(ApiError::wrong("id: must not be empty")),
        _ => Err(ApiError::wrong(EXPECTED)),
    }
}

fn check_connection(key: &str, connection: &str) -> Result<(), ApiError> {
    let parsed = connection.parse::<ConnectionId>();
    parsed.map(drop).map_err(|error| ApiError::wrong(format_args!("{key}: {error}")))
}

/// A user is a text or a number, as the subject of a token.
pub(super) fn to_user(user: Value) -> Result<String, ApiError> {
    match user {
        Value::String(user) => Ok(user),
        Value::Number(user) => Ok(user.to_string()),
        _ => Err(ApiError::wrong("user: expected a string or a number")),
    }
}

pub(super) async fn order(caller: Authorized, order: Order) -> Result<Disconnected, ApiError> {
    let Authorized { server, caller } = caller;
    let verb = match order {
        Order::Disconnect { .. } => "disconnect",
        Order::Kick { .. } => "kick",
        Order::Push { .. } => "push",
        Order::Access(_) => "access",
    };
    let done = PubSub::new(server.clone()).order(order).await.map_err(|error| match error {
        DisconnectError::Refused(error) if is_too_large(error) => too_large(error),
        DisconnectError::Refused(error) => ApiError::wrong(error),
        error => ApiError::for_now(error),
    })?;
    let (token, count) = (caller.name(&server.config), done.closed);
    tracing::debug!(verb, token, count, "carried out an order of the server API");
    Ok(done)
}
