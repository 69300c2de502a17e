//! V1: a message is a JSON object (PROTOCOL §3). Text only.
//!
//! A client must send `topic`, `event`, `payload` and `ref`, and may send `join_ref`; the server
//! writes exactly the first four. Unknown keys are ignored, of equal keys the last counts.
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{DecodeError, EncodeError, Kind, opened};
use crate::json::{Raw, escape_into};
use crate::message::{Message, Payload, Ref, events};

pub(super) fn decode(text: &str) -> Result<Message<'_>, DecodeError> {
    let [mut topic, mut event, mut payload, mut msg_ref, mut join_ref] = [None; 5];
    members(text, |key, value| {
        let field = match key {
            "topic" => &mut topic,
            "event" => &mut event,
            "payload" => &mut payload,
            "ref" => &mut msg_ref,
            "join_ref" => &mut join_ref,
            _ => return,
        };
        *field = Some(value);
    })?;
    Ok(Message {
        join_ref: join_ref.map_or(Ref::Null, Raw::msg_ref),
        msg_ref: msg_ref.map(Raw::msg_ref).ok_or(DecodeError::Shape)?,
        topic: topic.and_then(Raw::string).ok_or(DecodeError::Shape)?,
        event: event.and_then(Raw::string).ok_or(DecodeError::Shape)?,
        payload: payload.map(Raw::payload).ok_or(DecodeError::Shape)?,
    })
}

/// Reads the payload of a `phx_reply`, the same in both versions: status and response.
pub(super) fn decode_reply(text: &str) -> Result<(Cow<'_, str>, Payload<'_>), DecodeError> {
    let [mut status, mut response] = [None; 2];
    members(text, |key, value| match key {
        "status" => status = Some(value),
        "response" => response = Some(value),
        _ => {}
    })?;
    let status = status.and_then(Raw::string).ok_or(DecodeError::Shape)?;
    Ok((status, response.map(Raw::payload).ok_or(DecodeError::Shape)?))
}

/// Appends a reply; V1 has no join_ref.
pub(super) fn reply(
    out: &mut Vec<u8>,
    msg_ref: &Ref<'_>,
    topic: &str,
    status: &str,
    response: &str,
) -> Kind {
    head(out, topic, events::REPLY, response.len() + status.len() + msg_ref.raw().len());
    reply_payload(out, status, response);
    tail(out, msg_ref)
}

pub(super) fn event(
    out: &mut Vec<u8>,
    msg_ref: &Ref<'_>,
    topic: &str,
    event: &str,
    payload: &str,
) -> Kind {
    head(out, topic, event, payload.len() + msg_ref.raw().len());
    out.extend_from_slice(payload.as_bytes());
    tail(out, msg_ref)
}

/// Appends a message of a client, with its join_ref if it has one.
pub(super) fn message(
    out: &mut Vec<u8>,
    join_ref: &Ref<'_>,
    msg_ref: &Ref<'_>,
    topic: &str,
    event: &str,
    payload: &str,
) -> Kind {
    head(out, topic, event, payload.len() + msg_ref.raw().len() + join_ref.raw().len());
    out.extend_from_slice(payload.as_bytes());
    if let Ref::Json(raw) = join_ref {
        out.extend_from_slice(b",\"join_ref\":");
        out.extend_from_slice(raw.as_bytes());
    }
    tail(out, msg_ref)
}

/// Appends `{"status":s,"response":r}`, the payload of a reply in both versions.
pub(super) fn reply_payload(out: &mut Vec<u8>, status: &str, response: &str) {
    out.extend_from_slice(b"{\"status\":");
    escape_into(out, status);
    out.extend_from_slice(b",\"response\":");
    out.extend_from_slice(response.as_bytes());
    out.push(b'}');
}

/// The text of a payload; of a member's broadcast it is the payload of `broadcast`.
pub(super) fn text<'a>(payload: &'a Payload<'_>) -> Result<Cow<'a, str>, EncodeError> {
    let broadcast = match payload {
        Payload::Json(json) => return Ok(Cow::Borrowed(json)),
        Payload::Binary(_) => return Err(EncodeError::BinaryNeedsV2),
        Payload::User(broadcast) => broadcast,
    };
    let data = broadcast.json_text().ok_or(EncodeError::BinaryNeedsV2)?;
    let mut event = Vec::with_capacity(broadcast.event().len() + 2);
    escape_into(&mut event, broadcast.event());
    // Escaping UTF-8 yields UTF-8.
    let event = String::from_utf8(event).unwrap_or_default();
    Ok(Cow::Owned(match broadcast.metadata() {
        "" => format!(r#"{{"event":{event},"payload":{data},"type":"broadcast"}}"#),
        meta => format!(r#"{{"event":{event},"meta":{meta},"payload":{data},"type":"broadcast"}}"#),
    }))
}

/// Appends all up to the payload; `rest` is about how many bytes will follow.
fn head(out: &mut Vec<u8>, topic: &str, event: &str, rest: usize) {
    out.reserve(topic.len() + event.len() + rest + KEYS_BYTES);
    out.extend_from_slice(b"{\"topic\":");
    escape_into(out, topic);
    out.extend_from_slice(b",\"event\":");
    escape_into(out, event);
    out.extend_from_slice(b",\"payload\":");
}

fn tail(out: &mut Vec<u8>, msg_ref: &Ref<'_>) -> Kind {
    out.extend_from_slice(b",\"ref\":");
    out.extend_from_slice(msg_ref.raw().as_bytes());
    out.push(b'}');
    Kind::Text
}

/// Passes the members of the one object that `text` must be.
fn members<'a>(text: &'a str, member: impl FnMut(&str, Raw<'a>)) -> Result<(), DecodeError> {
    let mut scanner = opened(text, b'{')?;
    scanner.object(member)?;
    scanner.end()?;
    Ok(())
}

/// Room for the keys, quotes and brackets of a message, reply included.
const KEYS_BYTES: usize = 80;
