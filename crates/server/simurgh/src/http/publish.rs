//! `POST /api/broadcast`: a back end sends messages to the members of topics.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Display;

use axum::Json;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use simurgh_core::{Ids, KeptAt, Publisher};
use simurgh_proto::message::{Payload, events};
use simurgh_proto::serializer::json::compact;
use simurgh_shard::config::Scope;
use simurgh_socket::{PayloadShape, UserSocket};

use super::error::ApiError;
use super::supabase;
use super::verbs::Authorized;
use crate::history::{Confirmations, NotKept};
use crate::{Broadcast, BroadcastError};

const EXPECTED: &str = "expected {\"topic\": …, \"event\": …, \"payload\": {…}}, with \
    {\"topics\": [ … ]} for several topics, or {\"messages\": [ … ]}";

/// The most topics of one message.
const TOPICS_MAX: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Many<'a> {
    #[serde(borrow)]
    messages: Vec<Message<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message<'a> {
    #[serde(borrow)]
    topic: Option<Cow<'a, str>>,
    /// In place of `topic`, if it is the only message.
    #[serde(borrow, default)]
    topics: Option<Vec<Cow<'a, str>>>,
    #[serde(borrow)]
    event: Cow<'a, str>,
    #[serde(borrow)]
    payload: &'a RawValue,
    /// With the same id a message is kept once, if its topic has a history.
    id: Option<Value>,
    /// Supabase's clients send it.
    private: Option<bool>,
    /// Publishes it although no channel has the topic.
    #[serde(default)]
    allow_unserved: bool,
}

impl Message<'_> {
    /// Its topics, at least one.
    fn topics(&self) -> Result<&[Cow<'_, str>], String> {
        let topics = match (&self.topic, &self.topics) {
            (Some(topic), None) => std::slice::from_ref(topic),
            (None, Some(topics)) => topics,
            (None, None) => return Err("missing field `topic`".to_owned()),
            (Some(_), Some(_)) => return Err("topic and topics exclude each other".to_owned()),
        };
        if !(1..=TOPICS_MAX).contains(&topics.len()) {
            return Err(format!("topics: expected 1 to {TOPICS_MAX}, found {}", topics.len()));
        }
        if self.event.is_empty() || topics.iter().any(|topic| topic.is_empty()) {
            return Err("topic and event must not be empty".to_owned());
        }
        Ok(topics)
    }
}

/// Broadcasts the messages in order. It answers once every shard has them, and histories have
/// stored theirs.
/// - 202: their number, and positions if some are stored or have ids
/// - 400: a malformed body, or a payload that members may not send either
/// - 404: no channel has a topic
/// - 413: a payload too large for a broadcast
/// - 503: the server is congested
/// - 504: it is unknown whether all are stored
pub(super) async fn broadcast(caller: Authorized, body: Bytes) -> Result<Response, ApiError> {
    let messages = parse(&body).map_err(ApiError::wrong)?;
    let broadcasts = fitting(
        &caller.server.user_sockets,
        caller.server.config.outbound_bytes_max / 2,
        &messages,
    )?;
    drop(messages);
    // It may be large, and the answer may take long.
    drop(body);
    publish(&caller, broadcasts).await
}

#[derive(Debug)]
pub(super) struct Published {
    pub(super) broadcast: Broadcast,
    pub(super) id: Option<Box<str>>,
}

impl From<Broadcast> for Published {
    fn from(broadcast: Broadcast) -> Self {
        Self { broadcast, id: None }
    }
}

/// Sends the broadcasts in order; 202 with their number, 413, 503 or 504. If clients could not
/// receive one of them, it sends none and answers 400.
pub(super) async fn publish(
    caller: &Authorized,
    broadcasts: Vec<Published>,
) -> Result<Response, ApiError> {
    let server = &*caller.server;
    for (index, Published { broadcast, .. }) in broadcasts.iter().enumerate() {
        caller.check_topic(broadcast.topic())?;
        if broadcast.event() == events::DISCONNECT {
            caller.check_scope(Scope::Control)?;
        }
        if let Err(error) = server.check(broadcast)
            && !is_too_large(error)
        {
            return Err(ApiError::wrong(format_args!("message {index}: {error}")));
        }
    }
    let count = broadcasts.len();
    let has_ids = broadcasts.iter().any(|it| it.id.is_some());
    let are_kept: Vec<bool> =
        broadcasts.iter().map(|it| server.keeps(it.broadcast.topic())).collect();
    let kept = are_kept.iter().filter(|it| **it).count();
    let mut confirmations = Confirmations::new(server, kept);
    for (taken, (Published { broadcast, id }, is_kept)) in
        broadcasts.into_iter().zip(&are_kept).enumerate()
    {
        let sent = match is_kept {
            true => confirmations.keep(server, broadcast, id),
            false => server.broadcast(broadcast).map_err(NotKept::Refused),
        };
        if let Err(error) = sent {
            return Err(refused(&error).after(taken));
        }
    }
    if !has_ids && kept == 0 {
        return Ok((StatusCode::ACCEPTED, Json(json!({"taken": count}))).into_response());
    }
    let mut outcomes = confirmations.outcomes().await.into_iter();
    let mut positions = Vec::with_capacity(count);
    let mut duplicates = 0;
    for is_kept in are_kept {
        let outcome = is_kept.then(|| outcomes.next()).flatten();
        positions.push(match outcome {
            Some(Ok(KeptAt { position, is_duplicate })) => {
                duplicates += usize::from(is_duplicate);
                Some(position.to_string())
            }
            // Repeating the request would send it to local members again.
            None | Some(Err(NotKept::LocalOnly)) => None,
            // Those that are not confirmed are under way, all others were taken before.
            Some(Err(error @ NotKept::Unconfirmed(_))) => return Err(refused(&error).after(count)),
            Some(Err(error)) => return Err(refused(&error).after(positions.len())),
        });
    }
    let accepted = Accepted { accepted: count, positions, duplicates };
    Ok((StatusCode::ACCEPTED, Json(accepted)).into_response())
}

#[derive(Serialize)]
struct Accepted {
    accepted: usize,
    /// In the order of the messages; `None` if the topic has no history, or if the broker is down
    /// and the server is configured to continue without it.
    positions: Vec<Option<String>>,
    /// How many were kept before.
    duplicates: usize,
}

fn refused(error: &NotKept) -> ApiError {
    match error {
        NotKept::Refused(error) if is_too_large(*error) => too_large(error),
        NotKept::Unconfirmed(_) => ApiError::new(StatusCode::GATEWAY_TIMEOUT, "unconfirmed", error),
        // Any other error is temporary.
        _ => ApiError::for_now(error),
    }
}

pub(super) fn too_large(error: impl Display) -> ApiError {
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", error)
}

pub(super) fn is_too_large(error: BroadcastError) -> bool {
    use BroadcastError::{TooLarge, TooLargeForCluster};
    matches!(error, TooLarge { .. } | TooLargeForCluster { .. })
}

fn parse(body: &[u8]) -> Result<Vec<Message<'_>>, String> {
    // serde would also read a structure from an array.
    if !body.trim_ascii_start().starts_with(b"{") {
        has_many(body)?;
    }
    // In the other shape already the first key is unknown.
    let messages = match serde_json::from_slice::<Message<'_>>(body) {
        Ok(message) => vec![message],
        Err(of_one) => match serde_json::from_slice::<Many<'_>>(body) {
            Ok(many) => many.messages,
            Err(of_many) => {
                let error = if has_many(body)? { of_many } else { of_one };
                return Err(format!("{error}; {EXPECTED}"));
            }
        },
    };
    let is_alone = messages.len() == 1;
    for (index, message) in messages.iter().enumerate() {
        message.topics().map_err(|error| format!("message {index}: {error}"))?;
        if message.topics.is_some() && !is_alone {
            return Err(format!("message {index}: topics: only a single message may have them"));
        }
    }
    Ok(messages)
}

/// Whether a body has many messages or one, so that the error fits the intended shape.
fn has_many(body: &[u8]) -> Result<bool, String> {
    let keys = serde_json::from_slice::<HashMap<String, &RawValue>>(body);
    let keys = keys.map_err(|it| format!("the body is not a JSON object: {it}; {EXPECTED}"))?;
    Ok(keys.contains_key("messages"))
}

/// Converts messages to broadcasts if channels have their topics and accept the payloads: declared
/// ones as they declare, all others objects. A topic that a Supabase channel accepts with its
/// prefix gets the prefix. `bytes_max` is for the payload of several topics.
fn fitting(
    user_sockets: &[UserSocket],
    bytes_max: usize,
    messages: &[Message<'_>],
) -> Result<Vec<Published>, ApiError> {
    let mut broadcasts = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let at = |mut error: ApiError| {
            error.error.insert_str(0, &format!("message {index}: "));
            error
        };
        let topics = message.topics().map_err(ApiError::wrong).map_err(at)?;
        let bytes = message.payload.get().len().saturating_mul(topics.len());
        if topics.len() > 1 && bytes > bytes_max {
            let error =
                format!("the payload has {bytes} bytes for all topics, more than {bytes_max}");
            return Err(at(too_large(error)));
        }
        for topic in topics {
            broadcasts.push(to_published(user_sockets, message, topic).map_err(at)?);
        }
    }
    Ok(broadcasts)
}

fn to_published(
    user_sockets: &[UserSocket],
    message: &Message<'_>,
    topic: &str,
) -> Result<Published, ApiError> {
    let Message { event, payload: json, id, private, allow_unserved, .. } = message;
    // A disconnect's topic is the id of sockets.
    let is_disconnect = *event == events::DISCONNECT;
    let is_supabase = private.is_some() || (!is_disconnect && supabase::takes(user_sockets, topic));
    if is_supabase && !supabase::has_topic(user_sockets, topic) {
        let error = format!("private: no Supabase channel accepts \"realtime:{topic}\"");
        return Err(ApiError::wrong(error));
    }
    let needs_channel = !is_supabase && !allow_unserved && !is_disconnect;
    if needs_channel && !user_sockets.iter().any(|user_socket| user_socket.has_topic(topic)) {
        let error = format!(
            "topic: no channel has {topic:?}: declare one, or add \"allow_unserved\": true"
        );
        return Err(ApiError::not_found("unserved", error));
    }
    let payload = Payload::Json(json.get().into());
    let declared = user_sockets.iter().filter(|_| !is_supabase);
    let mut checked =
        declared.filter_map(|user_socket| user_socket.check(topic, event, &payload)).peekable();
    let undeclared = checked.peek().is_none().then(|| PayloadShape::Object.check(&payload));
    if let Some(misfit) = undeclared.into_iter().chain(checked).find_map(Result::err) {
        return Err(ApiError::misfit(&misfit, format_args!("for {event:?} on {topic:?}")));
    }
    let broadcast = if is_supabase {
        supabase::to_broadcast(topic, event, json)
    } else {
        let payload = Payload::Json(compact(json.get()).into_owned().into());
        Broadcast::new(topic, &**event, payload)
    };
    let id = id.as_ref().map(to_id).transpose().map_err(ApiError::wrong)?;
    Ok(Published { broadcast, id })
}

fn to_id(id: &Value) -> Result<Box<str>, String> {
    let expected = "id: expected a string of 1 to 128 bytes";
    match id {
        Value::String(id) if Ids::is_id(id) => Ok(id.as_str().into()),
        Value::String(id) => Err(format!("{expected}, found {}", id.len())),
        _ => Err(format!("{expected}, found no string")),
    }
}

#[cfg(test)]
mod tests {
    use simurgh_socket::ChannelRoute;

    use super::*;

    #[test]
    fn api_accepts_one_or_many_messages_and_explains_errors() {
        let one = br#"{"topic": "t", "event": "e", "payload": {"a": 1}}"#;
        assert_eq!(parse(one).unwrap().len(), 1);
        let many = br#"{"messages": [{"topic":"t","event":"e","payload":{}},
            {"topic":"u","event":"e","payload":{}}]}"#;
        assert_eq!(parse(many).unwrap().len(), 2);
        let escaped = br#" {"payload": {"a": "\u00e9"}, "event": "\u00e9", "topic": "a\"b"}"#;
        let message = &parse(escaped).unwrap()[0];
        assert_eq!((message.topic.as_deref(), &*message.event), (Some("a\"b"), "é"));
        assert_eq!(message.payload.get(), r#"{"a": "\u00e9"}"#);
        for (body, says) in [
            (&b"[]"[..], "not a JSON object"),
            (b" [\"t\",\"e\",{},null,null]", "not a JSON object"),
            (b"[[]]", "not a JSON object"),
            (b"", "not a JSON object"),
            (b"{\"messages\":[],\"topic\":\"t\"}", "unknown field `topic`, expected `messages`"),
            (b"{\"topic\":\"t\",\"messages\":[]}", "unknown field `topic`, expected `messages`"),
            (b"{\"topic\":\"t\"", "not a JSON object"),
            (b"{\"topic\":\"t\"}", "event"),
            (b"{\"topic\":\"\",\"event\":\"e\",\"payload\":{}}", "empty"),
            (b"{\"topic\":\"t\",\"event\":\"e\",\"payload\":{},\"x\":1}", "x"),
            (b"{\"messages\": 7}", "messages"),
        ] {
            let error = parse(body).err().unwrap();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn topics_of_supabase_channels_need_no_prefix() {
        let settings = simurgh_socket::supabase::Settings::default;
        let room = |_: &mut crate::ShardContext<'_>, _: Payload<'_>| crate::Join::error(json!({}));
        let user_socket =
            UserSocket::new("/socket").channel(ChannelRoute::supabase("realtime:*", settings()));
        let user_sockets = [user_socket.channel(ChannelRoute::on_shard("rooms:*", room))];
        let made = |body: serde_json::Value| {
            let made = fit(&user_sockets, &body).map_err(|error| error.error)?;
            let it = &made[0].broadcast;
            Ok((it.topic().to_owned(), it.event().to_owned(), it.payload().json() == Some("{}")))
        };
        let said = |topic: &str| json!({"topic": topic, "event": "e", "payload": {}});
        let heard = |topic: &str, event: &str, is_bare| {
            Ok::<_, String>((topic.to_owned(), event.to_owned(), is_bare))
        };
        assert_eq!(made(said("lobby")), heard("realtime:lobby", "broadcast", false));
        assert_eq!(made(said("rooms:a")), heard("rooms:a", "e", true));
        assert_eq!(made(said("realtime:a")), heard("realtime:a", "e", true), "as it is");
        let private = json!({"topic": "rooms:a", "event": "e", "payload": {}, "private": false});
        assert_eq!(made(private.clone()), heard("realtime:rooms:a", "broadcast", false));
        let wrong = json!({"topic": "lobby", "event": "e", "payload": 7});
        assert!(made(wrong).unwrap_err().starts_with("message 0: payload: expected object"));
        let none = [UserSocket::new("/socket").channel(ChannelRoute::on_shard("rooms:*", room))];
        let refused = fit(&none, &private).unwrap_err();
        assert!(refused.error.starts_with("message 0: private: no Supabase channel"));
    }

    #[test]
    fn payloads_must_have_the_shape_of_their_channel() {
        let specs = serde_json::from_value::<Vec<simurgh_socket::declared::ChannelSpec>>(json!([
            {"topic": "chat:*"},
            {"topic": "any:*", "payload_shape": "any",
             "event": [{"name": "strict", "payload_shape": "object"}]},
        ]));
        let defaults = simurgh_socket::declared::Defaults::default();
        let declared =
            simurgh_socket::declared::user_socket("/socket", &specs.unwrap(), defaults).unwrap();
        let in_rust = UserSocket::new("/other")
            .channel(ChannelRoute::on_shard("rust", |_, _| crate::Join::error(json!({}))));
        let user_sockets = [declared, in_rust];
        let answer = |topic: &str, event: &str, payload: serde_json::Value| {
            let mut body = json!({"topic": topic, "event": event, "payload": payload});
            body["allow_unserved"] = true.into();
            let found = fit(&user_sockets, &body);
            found.map(|messages| messages.len()).map_err(|error| error.error)
        };
        for topic in ["chat:a", "any:a", "rust", "nobody's"] {
            assert_eq!(answer(topic, "e", json!({})), Ok(1), "{topic}");
        }
        for (topic, event) in [("chat:a", "e"), ("any:a", "strict"), ("rust", "e"), ("none", "e")] {
            for (payload, found) in
                [(json!(null), "null"), (json!([1]), "array"), (json!(7), "number")]
            {
                let error = answer(topic, event, payload).unwrap_err();
                let says = format!("message 0: payload: expected object, found {found}");
                assert!(error.starts_with(&says), "{error}");
            }
        }
        assert_eq!(answer("any:a", "e", json!(null)), Ok(1));
    }

    #[cfg(feature = "schema")]
    #[test]
    fn published_payload_that_breaks_a_schema_is_refused_with_its_place() {
        let specs = json!([{"topic": "chat:*", "event": [
            {"name": "say", "schema": {"properties": {"body": {"maxLength": 3}}}},
        ]}]);
        let specs: Vec<simurgh_socket::declared::ChannelSpec> =
            serde_json::from_value(specs).unwrap();
        let defaults = simurgh_socket::declared::Defaults::default();
        let chat = simurgh_socket::declared::user_socket("/socket", &specs, defaults).unwrap();
        let publish = |event: &str, body: &str| {
            let message = json!({"topic": "chat:a", "event": event, "payload": {"body": body}});
            fit(std::slice::from_ref(&chat), &message)
        };
        assert!(publish("say", "abc").is_ok() && publish("other", "abcd").is_ok());
        let refused = publish("say", "abcd").unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.code), (400, "invalid"));
        let fields = json!({"expected": "schema", "at": "/body", "rule": "maxLength"});
        assert_eq!(refused.fields, fields);
    }

    #[test]
    fn topic_without_a_channel_is_404_unless_allowed() {
        let room = |_: &mut crate::ShardContext<'_>, _: Payload<'_>| crate::Join::error(json!({}));
        let rooms = UserSocket::new("/socket").channel(ChannelRoute::on_shard("rooms:*", room));
        let plain = UserSocket::plain("/plain", "prices", |_, _| crate::Join::error(json!({})));
        let user_sockets = [rooms, plain];
        let status = |topics: &[&str], event: &str, allow: Option<bool>| {
            let mut body = json!({"topics": topics, "event": event, "payload": {}});
            if let Some(allow) = allow {
                body["allow_unserved"] = allow.into();
            }
            fit(&user_sockets, &body).map_or_else(|error| error.status.as_u16(), |_| 202)
        };
        for (topics, event, allow, expected) in [
            (&["rooms:1", "prices"][..], "e", None, 202),
            (&["rooms:1", "room:1"], "e", None, 404),
            (&["rooms:1", "room:1"], "e", Some(false), 404),
            (&["rooms:1", "room:1"], "e", Some(true), 202),
            (&["user_socket:7"], "disconnect", None, 202),
        ] {
            assert_eq!(status(topics, event, allow), expected, "{topics:?} {event} {allow:?}");
        }
        let body = json!({"topic": "room:1", "event": "e", "payload": {}});
        let error = fit(&user_sockets, &body).unwrap_err();
        assert_eq!(error.code, "unserved");
        assert!(error.error.starts_with("message 0: topic: no channel has \"room:1\""));
    }

    #[test]
    fn one_payload_goes_to_many_topics_within_bounds() {
        let room = |_: &mut crate::ShardContext<'_>, _: Payload<'_>| crate::Join::error(json!({}));
        let user_sockets = [UserSocket::new("/socket").channel(ChannelRoute::on_shard("*", room))];
        let topics = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
        let body = |count: usize| json!({"topics": topics(count), "event": "e", "payload": {}});
        let made = fit(&user_sockets, &body(1_000)).unwrap();
        assert_eq!(made.len(), 1_000);
        assert_eq!(made[999].broadcast.topic(), "999");
        for wrong in [body(0), body(1_001), json!({"messages": [body(2), body(1)]})] {
            assert!(parse(wrong.to_string().as_bytes()).is_err());
        }
        let mut large = body(1_000);
        large["payload"] = json!({"a": "a".repeat(2_000)});
        let error = fit(&user_sockets, &large).unwrap_err();
        assert_eq!((error.status.as_u16(), error.code), (413, "too_large"));
    }

    fn fit(user_sockets: &[UserSocket], body: &Value) -> Result<Vec<Published>, ApiError> {
        let body = body.to_string();
        fitting(user_sockets, 1 << 20, &parse(body.as_bytes()).unwrap())
    }
}
