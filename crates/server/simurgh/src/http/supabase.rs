//! HTTP requests of a back end to Supabase channels, as to Supabase (PROTOCOL §11.6).
//!
//! `POST /realtime/v1/api/broadcast` takes many messages, `…/api/broadcast/TOPIC/events/EVENT` one,
//! whose payload is the body. Topics are named without `realtime:`.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use axum::routing::post;
use serde::Deserialize;
use serde_json::value::RawValue;
use simurgh_proto::message::{Payload, UserBroadcast, events};
use simurgh_proto::serializer::json::compact;
use simurgh_shard::config::Scope;
use simurgh_shard::server::Server;
use simurgh_socket::supabase::TOPIC_PREFIX;
use simurgh_socket::{PayloadShape, UserSocket};

use super::error::ApiError;
use super::publish::{Published, publish};
use super::verbs::{Authorized, router_of, verb};
use crate::{Broadcast, BroadcastError};

const MANY: &str = "/realtime/v1/api/broadcast";
const ONE: &str = "/realtime/v1/api/broadcast/{topic}/events/{event}";
const ONE_BELOW: &str = "/api/broadcast/{topic}/events/{event}";

pub(super) fn router(server: &Arc<Server>) -> axum::Router {
    let verbs = [(MANY, post(many)), (ONE, post(one)), (ONE_BELOW, post(one))];
    let verbs = verbs.map(|(path, route)| verb("broadcast", path, Scope::Publish, route));
    router_of(server, verbs).with_state(Arc::clone(server))
}

/// Whether a back end's message for a topic goes to Supabase channels: no channel accepts the topic
/// itself, and one of them does with the prefix.
pub(super) fn takes(user_sockets: &[UserSocket], topic: &str) -> bool {
    user_sockets.iter().all(|user_socket| user_socket.is_supabase(topic).is_none())
        && has_topic(user_sockets, topic)
}

/// Whether a Supabase channel accepts a topic that is named without its prefix.
pub(super) fn has_topic(user_sockets: &[UserSocket], topic: &str) -> bool {
    if !user_sockets.iter().any(UserSocket::speaks_supabase) {
        return false;
    }
    let topic = format!("{TOPIC_PREFIX}{topic}");
    user_sockets.iter().any(|user_socket| user_socket.is_supabase(&topic) == Some(true))
}

pub(super) fn to_broadcast(topic: &str, event: &str, payload: &RawValue) -> Broadcast {
    let payload = compact(payload.get());
    let payload = format!(
        r#"{{"event":{},"payload":{payload},"type":"broadcast"}}"#,
        serde_json::Value::from(event)
    );
    let topic = format!("{TOPIC_PREFIX}{topic}");
    Broadcast::new(topic, events::BROADCAST, Payload::from_json(payload))
}

#[derive(Deserialize)]
struct Many<'a> {
    #[serde(borrow)]
    messages: Vec<Message<'a>>,
}

/// The channel decides whether a topic is private, so `private` is ignored, as are unknown keys.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    topic: Cow<'a, str>,
    #[serde(borrow)]
    event: Cow<'a, str>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// 202 when every shard has them. 401 means no token, and 400 that the body is not JSON. 422 means
/// that it is malformed, or that no channel accepts the topic. 413 and 503 are those of `POST
/// /api/broadcast`.
async fn many(caller: Authorized, body: Bytes) -> Result<Response, ApiError> {
    let broadcasts = read(&caller.server.user_sockets, &body)
        .map_err(|(status, error)| ApiError::new(status, "invalid", error))?;
    publish(&caller, broadcasts).await
}

fn unprocessable(error: impl Display) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", error)
}

fn read(user_sockets: &[UserSocket], body: &[u8]) -> Result<Vec<Published>, (StatusCode, String)> {
    let expected = "expected {\"messages\": [{\"topic\": …, \"event\": …, \"payload\": {…}}]}";
    let Many { messages } = serde_json::from_slice::<Many<'_>>(body).map_err(|error| {
        let status = match error.is_data() {
            true => StatusCode::UNPROCESSABLE_ENTITY,
            false => StatusCode::BAD_REQUEST,
        };
        (status, format!("{error}; {expected}"))
    })?;
    let messages = messages.into_iter().enumerate();
    let broadcasts = messages.map(|(index, Message { topic, event, payload })| {
        let at = |why: String| format!("message {index}: {why}");
        check(user_sockets, &topic, &event).map_err(at)?;
        let shape = PayloadShape::Object;
        match shape.misfit(&Payload::from_json(payload.get())) {
            None => Ok(to_broadcast(&topic, &event, payload).into()),
            Some(found) => Err(at(format!("payload: expected object, found {found}"))),
        }
    });
    let unprocessable = |error| (StatusCode::UNPROCESSABLE_ENTITY, error);
    broadcasts.collect::<Result<_, String>>().map_err(unprocessable)
}

fn check(user_sockets: &[UserSocket], topic: &str, event: &str) -> Result<(), String> {
    if topic.is_empty() || event.is_empty() {
        return Err("topic and event must not be empty".to_owned());
    }
    // Binary frames take no longer one.
    if u8::try_from(event.len()).is_err() {
        return Err(format!("event: {}", BroadcastError::EventTooLong(event.len())));
    }
    match has_topic(user_sockets, topic) {
        true => Ok(()),
        false => Err(format!("topic: no channel accepts \"{TOPIC_PREFIX}{topic}\"")),
    }
}

/// The same for one message: JSON, or with `content-type: application/octet-stream` raw bytes,
/// which only members with V2 receive. 415 for another type.
async fn one(
    caller: Authorized,
    Path((topic, event)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let content_type = headers.get(header::CONTENT_TYPE);
    let essence = content_type.and_then(|it| it.to_str().ok()?.split(';').next());
    let is_raw = match essence.map(str::trim) {
        Some("application/octet-stream") => true,
        Some("application/json") => false,
        _ => {
            let expected = "expected application/json or application/octet-stream";
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(ApiError::new(status, "content_type", expected));
        }
    };
    check(&caller.server.user_sockets, &topic, &event).map_err(unprocessable)?;
    let broadcast = if is_raw {
        UserBroadcast::raw(&event, &body)
    } else {
        let json = serde_json::from_slice::<&RawValue>(&body)
            .map_err(|error| ApiError::wrong(format_args!("not JSON: {error}")))?;
        UserBroadcast::json(&event, &compact(json.get()))
    };
    let broadcast = broadcast.map_err(|error| unprocessable(format_args!("event: {error}")))?;
    let (topic, payload) = (format!("{TOPIC_PREFIX}{topic}"), Payload::User(broadcast));
    publish(&caller, vec![Broadcast::new(topic, events::BROADCAST, payload).into()]).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use simurgh_socket::ChannelRoute;

    use super::*;
    use simurgh_socket::supabase::Settings;

    fn user_sockets() -> Vec<UserSocket> {
        let other = |_: &mut crate::ShardContext<'_>, _: Payload<'_>| crate::Join::error(json!({}));
        let supabase = UserSocket::new("/socket")
            .channel(ChannelRoute::supabase("realtime:*", Settings::default()));
        vec![supabase.channel(ChannelRoute::on_shard("rooms:*", other))]
    }

    #[test]
    fn topics_get_their_prefix_unless_a_channel_matches() {
        let user_sockets = user_sockets();
        assert!(takes(&user_sockets, "lobby") && takes(&user_sockets, "a:b"));
        assert!(!takes(&user_sockets, "rooms:1") && !takes(&user_sockets, "realtime:lobby"));
        let none = [UserSocket::new("/socket")];
        assert!(!takes(&none, "lobby") && !has_topic(&none, "lobby"));
        let payload = RawValue::from_string(r#"{ "a": [1, 2] }"#.to_owned()).unwrap();
        let made = to_broadcast("lobby", "cur\"sor", &payload);
        assert_eq!((made.topic(), made.event()), ("realtime:lobby", "broadcast"));
        let expected = r#"{"event":"cur\"sor","payload":{"a":[1,2]},"type":"broadcast"}"#;
        assert_eq!(made.payload().json(), Some(expected));
    }

    #[test]
    fn errors_have_their_status() {
        let user_sockets = user_sockets();
        let said = |body: &str| read(&user_sockets, body.as_bytes()).map(|it| it.len());
        let good = r#"{"messages":[{"topic":"a","event":"e","payload":{},"private":true},
            {"topic":"b","event":"e","payload":{},"id":"x"}]}"#;
        assert_eq!(said(good), Ok(2));
        assert_eq!(said(r#"{"messages":[]}"#), Ok(0));
        let event = "e".repeat(256);
        let long = format!(r#"{{"messages":[{{"topic":"a","event":"{event}","payload":{{}}}}]}}"#);
        for (body, status, says) in [
            ("", 400, "EOF"),
            ("{", 400, "EOF"),
            ("nonsense", 400, "expected"),
            ("[]", 422, "expected"),
            ("{}", 422, "messages"),
            (r#"{"messages":7}"#, 422, "expected a sequence"),
            (r#"{"messages":[{"topic":"a","event":"e"}]}"#, 422, "payload"),
            (r#"{"messages":[{"topic":7,"event":"e","payload":{}}]}"#, 422, "string"),
            (r#"{"messages":[{"topic":"","event":"e","payload":{}}]}"#, 422, "message 0"),
            (r#"{"messages":[{"topic":"a","event":"e","payload":[]}]}"#, 422, "found array"),
            (&long, 422, "256 bytes is too long"),
        ] {
            let (found, error) = said(body).unwrap_err();
            assert_eq!(found.as_u16(), status, "{body}: {error}");
            assert!(error.contains(says), "{body}: {error}");
        }
    }
}
