//! `POST /api/block`, `/api/unblock` and `/api/revoke`: who may not connect or join, on all nodes.

use axum::body::Bytes;
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;
use simurgh_core::WallClock;
use simurgh_proto::topic::Pattern;
use simurgh_shard::mail::order::{Order, Rule, SocketRef};

use super::control::{closed, order, read, to_user};
use super::error::ApiError;
use super::verbs::Authorized;

/// The longest time of a rule, and the default.
const LASTS_S_MAX: u64 = 30 * 24 * 3600;
/// How long a block stays lifted that this node does not know: longer than an order takes.
const LIFTED_S: u64 = 120;
/// The longest user, token id and pattern, bytes.
const NAME_BYTES_MAX: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockBody {
    user: Value,
    topic: Option<String>,
    until: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UnblockBody {
    user: Value,
    topic: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RevokeBody {
    user: Option<Value>,
    jti: Option<String>,
    issued_before: Option<u64>,
    until: Option<u64>,
}

/// Refuses a user's connects, or joins to topics of a pattern, and closes the user's sockets. The
/// answers are those of [`disconnect`](super::control::disconnect); 503 also means that the list
/// is full.
pub(super) async fn block(caller: Authorized, body: Bytes) -> Result<Response, ApiError> {
    let BlockBody { user, topic, until } = read(&body)?;
    check_pattern(&caller, topic.as_deref())?;
    let until = to_end(until, now_ms(&caller) / 1000)?;
    let of = SocketRef::User(to_user(user)?);
    let rule = Rule { of, issued_before: None, topic, is_lifted: false, set_ms: 0, until };
    set(caller, rule).await
}

/// Lifts a block of the same user and pattern.
pub(super) async fn unblock(caller: Authorized, body: Bytes) -> Result<Response, ApiError> {
    let UnblockBody { user, topic } = read(&body)?;
    check_pattern(&caller, topic.as_deref())?;
    let until = now_ms(&caller) / 1000 + LIFTED_S;
    let of = SocketRef::User(to_user(user)?);
    let rule = Rule { of, issued_before: None, topic, is_lifted: true, set_ms: 0, until };
    set(caller, rule).await
}

/// Refuses one token by its `jti`, or a user's tokens from before a time, and closes their sockets.
pub(super) async fn revoke(caller: Authorized, body: Bytes) -> Result<Response, ApiError> {
    let RevokeBody { user, jti, issued_before, until } = read(&body)?;
    let now_s = now_ms(&caller) / 1000;
    let (of, issued_before) = match (user, jti) {
        (Some(user), None) => (SocketRef::User(to_user(user)?), issued_before.unwrap_or(now_s)),
        (None, Some(jti)) if issued_before.is_none() => (SocketRef::Token(jti), u64::MAX),
        _ => {
            let expected = "expected \"user\", optionally with \"issued_before\", or \"jti\"";
            return Err(ApiError::wrong(expected));
        }
    };
    let until = to_end(until, now_s)?;
    let issued_before = Some(issued_before);
    set(caller, Rule { of, issued_before, topic: None, is_lifted: false, set_ms: 0, until }).await
}

fn now_ms(caller: &Authorized) -> u64 {
    caller.server.unix_ms(0)
}

fn to_end(until: Option<u64>, now_s: u64) -> Result<u64, ApiError> {
    let last = now_s + LASTS_S_MAX;
    match until {
        None => Ok(last),
        // A caller's clock may be ahead.
        Some(until) if until > now_s && until <= last + 60 => Ok(until),
        Some(_) => Err(ApiError::wrong("until: expected Unix seconds within the next 30 days")),
    }
}

fn check_pattern(caller: &Authorized, topic: Option<&str>) -> Result<(), ApiError> {
    let Some(topic) = topic else { return Ok(()) };
    match Pattern::parse(topic) {
        Ok(Pattern::Literal(topic)) => caller.check_topic(&topic),
        Ok(Pattern::Prefix(prefix)) => caller.check_topic_prefix(&prefix),
        Err(error) => Err(ApiError::wrong(format_args!("topic: {error}"))),
    }
}

async fn set(caller: Authorized, mut rule: Rule) -> Result<Response, ApiError> {
    if let SocketRef::User(name) | SocketRef::Token(name) = &rule.of {
        let longest = name.len().max(rule.topic.as_ref().map_or(0, String::len));
        if name.is_empty() || longest > NAME_BYTES_MAX {
            let error = format!("user, jti and topic: expected 1 to {NAME_BYTES_MAX} bytes");
            return Err(ApiError::wrong(error));
        }
    }
    let (list, now_ms) = (&caller.server.access_list, now_ms(&caller));
    list.date(&mut rule, now_ms);
    // Before other nodes are asked, which then have a place for it, too.
    list.set(rule.clone(), now_ms / 1000).map_err(ApiError::for_now)?;
    Ok(closed(order(caller, Order::Access(rule)).await?))
}
