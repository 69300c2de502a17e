//! `POST /api/broadcast` and `GET /api/presence`: a back end in any language sends to the members
//! of a topic, and lists them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Display;
use std::iter;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Query};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use simurgh_core::{Ids, KeptAt, PresenceList, Publisher};
use simurgh_proto::message::Payload;
use simurgh_proto::serializer::json::compact;
use simurgh_shard::server::Server;
use simurgh_socket::{PayloadShape, UserSocket};

use super::supabase;
use crate::access::{Bearer, bearer};
use crate::history::{Confirmations, NotKept};
use crate::presence::Presence;
use crate::{Broadcast, BroadcastError};

const EXPECTED: &str =
    "expected {\"topic\": …, \"event\": …, \"payload\": {…}} or {\"messages\": [ … ]}";

pub(super) fn router(server: &Arc<Server>) -> Router {
    Router::new()
        .route("/api/broadcast", post(broadcast))
        .route("/api/presence", get(presence))
        .merge(super::disconnect::router())
        .merge(super::history::router())
        .layer(body_limit(server))
        .with_state(Arc::clone(server))
}

/// As many bytes as any body may have (`http_body_bytes_max`), in place of axum's 2 MB.
pub(super) fn body_limit(server: &Server) -> DefaultBodyLimit {
    let most = server.config.http.body_bytes_max;
    DefaultBodyLimit::max(usize::try_from(most).unwrap_or(usize::MAX))
}

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
    topic: Cow<'a, str>,
    #[serde(borrow)]
    event: Cow<'a, str>,
    #[serde(borrow)]
    payload: &'a RawValue,
    /// With the same id a message is kept once, if its topic has a history.
    id: Option<Value>,
    /// Supabase's clients send it.
    private: Option<bool>,
}

/// Broadcasts the messages in order. It answers once every shard has them, and histories have
/// stored theirs.
/// - 202: their number, and positions if some are stored or have ids
/// - 400: a malformed body, or a payload that members may not send either
/// - 401: no valid token
/// - 413: a payload too large for a broadcast
/// - 503: the server is congested
/// - 504: it is unknown whether all are stored
async fn broadcast(Authorized(server): Authorized, body: Bytes) -> Response {
    let messages = match parse(&body).and_then(|messages| fitting(&server.user_sockets, messages)) {
        Ok(messages) => messages,
        Err(error) => return wrong(error),
    };
    // It may be large, and the answer may take long.
    drop(body);
    publish(&server, messages).await
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
pub(super) async fn publish(server: &Server, broadcasts: Vec<Published>) -> Response {
    for (index, Published { broadcast, .. }) in broadcasts.iter().enumerate() {
        if let Err(error) = server.check(broadcast)
            && !is_too_large(error)
        {
            return wrong(format_args!("message {index}: {error}"));
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
            return refused(&error, taken);
        }
    }
    if !has_ids && kept == 0 {
        return (StatusCode::ACCEPTED, Json(json!({"taken": count}))).into_response();
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
            Some(Err(error @ NotKept::Unconfirmed(_))) => return refused(&error, count),
            Some(Err(error)) => return refused(&error, positions.len()),
        });
    }
    (StatusCode::ACCEPTED, Json(Accepted { accepted: count, positions, duplicates }))
        .into_response()
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

/// The response if the message after the first `taken` fails.
fn refused(error: &NotKept, taken: usize) -> Response {
    let said = Json(json!({"error": error.to_string(), "taken": taken}));
    match error {
        NotKept::Refused(error) if is_too_large(*error) => {
            (StatusCode::PAYLOAD_TOO_LARGE, said).into_response()
        }
        NotKept::Unconfirmed(_) => (StatusCode::GATEWAY_TIMEOUT, said).into_response(),
        // Any other error is temporary.
        _ => {
            let later = [(header::RETRY_AFTER, "1")];
            (StatusCode::SERVICE_UNAVAILABLE, later, said).into_response()
        }
    }
}

fn is_too_large(error: BroadcastError) -> bool {
    use BroadcastError::{TooLarge, TooLargeForCluster};
    matches!(error, TooLarge { .. } | TooLargeForCluster { .. })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    topic: String,
}

/// The members of a topic. 200 has the numbers of entries and keys, and the list as members get it
/// (a sample of a long one). 401 means no token, 400 no topic, and 503 that the server ends.
async fn presence(
    Authorized(server): Authorized,
    about: Result<Query<About>, QueryRejection>,
) -> Response {
    let Ok(Query(About { topic })) = about else {
        return wrong("expected ?topic=NAME, and nothing else");
    };
    match Presence::new(server).ask(&topic).await {
        Ok(PresenceList { entries, keys, json }) => {
            let Ok(presences) = RawValue::from_string(json) else {
                return StatusCode::INTERNAL_SERVER_ERROR.into_response();
            };
            let listed = Listed { topic: &topic, entries, keys, presences: &presences };
            Json(listed).into_response()
        }
        Err(error) => failed_for_now(error),
    }
}

#[derive(Serialize)]
struct Listed<'a> {
    topic: &'a str,
    entries: usize,
    keys: usize,
    presences: &'a RawValue,
}

/// The server, for a request with the token. Always a handler's first argument, so that no other
/// client makes the server buffer a body.
pub(super) struct Authorized(pub(super) Arc<Server>);

impl FromRequestParts<Arc<Server>> for Authorized {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, Response> {
        if bearer(&server.config, &parts.headers) == Bearer::Right {
            return Ok(Self(Arc::clone(server)));
        }
        let why = "the API token is missing or wrong: send the header authorization: Bearer TOKEN";
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        Err((challenge, failed(StatusCode::UNAUTHORIZED, why)).into_response())
    }
}

pub(super) fn failed(status: StatusCode, error: impl Display) -> Response {
    (status, Json(json!({"error": error.to_string()}))).into_response()
}

/// The error is temporary.
pub(super) fn failed_for_now(error: impl Display) -> Response {
    let later = [(header::RETRY_AFTER, "1")];
    (later, failed(StatusCode::SERVICE_UNAVAILABLE, error)).into_response()
}

pub(super) fn wrong(error: impl Display) -> Response {
    failed(StatusCode::BAD_REQUEST, error)
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
    for (index, message) in messages.iter().enumerate() {
        if message.topic.is_empty() || message.event.is_empty() {
            return Err(format!("message {index}: topic and event must not be empty"));
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

/// Converts messages to broadcasts if the topics' channels accept the payloads: declared ones as
/// they declare, all others objects. A topic that a Supabase channel accepts with its prefix gets
/// the prefix.
fn fitting(
    user_sockets: &[UserSocket],
    messages: Vec<Message<'_>>,
) -> Result<Vec<Published>, String> {
    let mut broadcasts = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let Message { topic, event, payload: json, id, private } = message;
        let is_supabase = private.is_some() || supabase::takes(user_sockets, topic);
        if is_supabase && !supabase::has_topic(user_sockets, topic) {
            return Err(format!(
                "message {index}: private: no Supabase channel accepts \"realtime:{topic}\""
            ));
        }
        let declared = user_sockets.iter().filter(|_| !is_supabase);
        let mut shapes = declared.filter_map(|user_socket| user_socket.shape(topic, event));
        let first = shapes.next().unwrap_or_default();
        let payload = Payload::Json(json.get().into());
        let misfit = |shape: PayloadShape| Some((shape.name(), shape.misfit(&payload)?));
        if let Some((expected, found)) = iter::once(first).chain(shapes).find_map(misfit) {
            return Err(format!(
                "message {index}: payload: expected {expected}, found {found}, for {event:?} on \
                 {topic:?}"
            ));
        }
        let broadcast = match is_supabase {
            true => supabase::to_broadcast(topic, event, json),
            false => to_broadcast(message),
        };
        let id = id.as_ref().map(to_id).transpose();
        let id = id.map_err(|error| format!("message {index}: {error}"))?;
        broadcasts.push(Published { broadcast, id });
    }
    Ok(broadcasts)
}

fn to_id(id: &Value) -> Result<Box<str>, String> {
    let expected = "id: expected a string of 1 to 128 bytes";
    match id {
        Value::String(id) if Ids::is_id(id) => Ok(id.as_str().into()),
        Value::String(id) => Err(format!("{expected}, found {}", id.len())),
        _ => Err(format!("{expected}, found no string")),
    }
}

fn to_broadcast(message: &Message<'_>) -> Broadcast {
    let payload = Payload::Json(compact(message.payload.get()).into_owned().into());
    Broadcast::new(&*message.topic, &*message.event, payload)
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
        assert_eq!((&*message.topic, &*message.event), ("a\"b", "é"));
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
    fn presence_after_the_end_is_503_with_retry_after() {
        let builder = crate::Endpoint::builder()
            .configure(|config| config.api_token = Some("right".to_owned()));
        let endpoint = builder.start_local().unwrap();
        let server = endpoint.presence().0;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let ask = |token: &str| {
            let request = axum::http::Request::builder()
                .header(header::AUTHORIZATION, format!("Bearer {token}"));
            let (mut parts, ()) = request.body(()).unwrap().into_parts();
            let about = Ok(Query(About { topic: "a".to_owned() }));
            runtime.block_on(async {
                match Authorized::from_request_parts(&mut parts, &server).await {
                    Ok(authorized) => presence(authorized, about).await,
                    Err(refused) => refused,
                }
            })
        };
        assert_eq!(ask("right").status(), StatusCode::OK);
        endpoint.stop();
        assert_eq!(ask("wrong").status(), StatusCode::UNAUTHORIZED);
        let answer = ask("right");
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.headers()[header::RETRY_AFTER], "1");
        let body = runtime.block_on(axum::body::to_bytes(answer.into_body(), 1_000)).unwrap();
        assert_eq!(&*body, br#"{"error":"the server has stopped or is stopping"}"#);
    }

    #[test]
    fn topics_of_supabase_channels_need_no_prefix() {
        let settings = simurgh_socket::supabase::Settings::default;
        let room = |_: &mut crate::ShardContext<'_>, _: Payload<'_>| crate::Join::error(json!({}));
        let user_socket =
            UserSocket::new("/socket").channel(ChannelRoute::supabase("realtime:*", settings()));
        let user_sockets = [user_socket.channel(ChannelRoute::on_shard("rooms:*", room))];
        let made = |body: serde_json::Value| {
            let made = fitting(&user_sockets, parse(body.to_string().as_bytes()).unwrap())?;
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
        let refused = fitting(&none, parse(private.to_string().as_bytes()).unwrap());
        assert!(refused.unwrap_err().starts_with("message 0: private: no Supabase channel"));
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
            let body = json!({"topic": topic, "event": event, "payload": payload}).to_string();
            fitting(&user_sockets, parse(body.as_bytes()).unwrap()).map(|messages| messages.len())
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
}
