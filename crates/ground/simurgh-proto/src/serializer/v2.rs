//! V2: a message is a JSON array of five, or a binary frame (PROTOCOL §3, §4).
//!
//! Text written here has no whitespace: some clients cannot read it (PROTOCOL §13). In a binary
//! frame each field's length is one byte, so a field has at most 255 bytes.
use alloc::borrow::Cow;
use alloc::vec::Vec;

use super::{DecodeError, EncodeError, Kind, ServerMessage, opened, utf8, v1};
use crate::json::{Raw, escape_into};
use crate::message::user::USER_BROADCAST;
use crate::message::{Message, Payload, Ref, UserBroadcast, events};

/// Reads a text message of either side. Elements after the fifth are checked and ignored.
pub(super) fn decode_text(text: &str) -> Result<Message<'_>, DecodeError> {
    let mut scanner = opened(text, b'[')?;
    scanner.expect(b'[')?;
    let mut fields = [None; 5];
    let mut count = 0;
    scanner.blanks();
    if !scanner.take(b']') {
        loop {
            scanner.blanks();
            let value = scanner.value()?;
            if let Some(field) = fields.get_mut(count) {
                *field = Some(value);
            }
            count += 1;
            scanner.blanks();
            if !scanner.take(b',') {
                break;
            }
        }
        scanner.expect(b']')?;
    }
    scanner.end()?;
    let [Some(join_ref), Some(msg_ref), Some(topic), Some(event), Some(payload)] = fields else {
        return Err(DecodeError::Shape);
    };
    Ok(Message {
        join_ref: Raw::msg_ref(join_ref),
        msg_ref: Raw::msg_ref(msg_ref),
        topic: topic.string().ok_or(DecodeError::Shape)?,
        event: event.string().ok_or(DecodeError::Shape)?,
        payload: payload.payload(),
    })
}

/// Reads the binary frame that a client may send: a push, of any event.
pub(super) fn decode_push(frame: &[u8]) -> Result<Message<'_>, DecodeError> {
    match frame.first() {
        Some(&PUSH) => {}
        Some(&kind) => return Err(DecodeError::UnknownKind(kind)),
        None => return Err(DecodeError::Truncated),
    }
    let ([join_ref, msg_ref, topic, event], data) = fields(frame, 0)?;
    let refs = [join_ref, msg_ref].map(Ref::from_text);
    Ok(message(refs, topic, event, binary_payload(data)))
}

/// Reads a Supabase client's broadcast, for members the event `broadcast` (PROTOCOL §11).
pub(super) fn decode_user_push(frame: &[u8]) -> Result<Message<'_>, DecodeError> {
    let ([join_ref, msg_ref, topic], _) = fields(frame, USER_HEAD_BYTES)?;
    let (refs, broadcast) = ([join_ref, msg_ref].map(Ref::from_text), UserBroadcast::read(frame)?);
    Ok(message(refs, topic, events::BROADCAST, Payload::User(broadcast)))
}

pub(super) fn decode_server_binary(frame: &[u8]) -> Result<ServerMessage<'_>, DecodeError> {
    let event = match frame.first() {
        Some(&PUSH) => {
            let ([join_ref, topic, event], data) = fields(frame, 0)?;
            message([Ref::from_text(join_ref), Ref::Null], topic, event, binary_payload(data))
        }
        Some(&REPLY) => {
            let ([join_ref, msg_ref, topic, status], data) = fields(frame, 0)?;
            return Ok(ServerMessage::Reply {
                join_ref: Ref::from_text(join_ref),
                msg_ref: Ref::from_text(msg_ref),
                topic: Cow::Borrowed(topic),
                status: Cow::Borrowed(status),
                response: binary_payload(data),
            });
        }
        Some(&BROADCAST) => {
            let ([topic, event], data) = fields(frame, 0)?;
            message([Ref::Null, Ref::Null], topic, event, binary_payload(data))
        }
        Some(&USER_BROADCAST) => {
            let ([topic], _) = fields(frame, USER_HEAD_BYTES)?;
            let payload = Payload::User(UserBroadcast::read(frame)?);
            message([Ref::Null, Ref::Null], topic, events::BROADCAST, payload)
        }
        Some(&kind) => return Err(DecodeError::UnknownKind(kind)),
        None => return Err(DecodeError::Truncated),
    };
    Ok(ServerMessage::Event(event))
}

fn message<'a>(
    [join_ref, msg_ref]: [Ref<'a>; 2],
    topic: &'a str,
    event: &'a str,
    payload: Payload<'a>,
) -> Message<'a> {
    Message { join_ref, msg_ref, topic: topic.into(), event: event.into(), payload }
}

fn binary_payload(data: &[u8]) -> Payload<'_> {
    Payload::Binary(Cow::Borrowed(data))
}

pub(super) fn reply(
    out: &mut Vec<u8>,
    join_ref: &Ref<'_>,
    msg_ref: &Ref<'_>,
    topic: &str,
    status: &str,
    response: &str,
) -> Kind {
    head(out, join_ref, msg_ref, topic, events::REPLY, status.len() + response.len());
    v1::reply_payload(out, status, response);
    out.push(b']');
    Kind::Text
}

pub(super) fn event(
    out: &mut Vec<u8>,
    join_ref: &Ref<'_>,
    msg_ref: &Ref<'_>,
    topic: &str,
    event: &str,
    payload: &str,
) -> Kind {
    head(out, join_ref, msg_ref, topic, event, payload.len());
    out.extend_from_slice(payload.as_bytes());
    out.push(b']');
    Kind::Text
}

/// Appends all up to the payload, of which `payload_bytes` will follow.
fn head(
    out: &mut Vec<u8>,
    join_ref: &Ref<'_>,
    msg_ref: &Ref<'_>,
    topic: &str,
    event: &str,
    payload_bytes: usize,
) {
    let (join_ref, msg_ref) = (join_ref.raw(), msg_ref.raw());
    let fields_bytes = join_ref.len() + msg_ref.len() + topic.len() + event.len();
    out.reserve(fields_bytes + payload_bytes + BRACKETS_BYTES);
    out.push(b'[');
    out.extend_from_slice(join_ref.as_bytes());
    out.push(b',');
    out.extend_from_slice(msg_ref.as_bytes());
    out.push(b',');
    escape_into(out, topic);
    out.push(b',');
    escape_into(out, event);
    out.push(b',');
}

/// Appends a binary frame.
pub(super) fn binary<const N: usize>(
    out: &mut Vec<u8>,
    kind: u8,
    fields: [&str; N],
    data: &[u8],
) -> Result<Kind, EncodeError> {
    frame(out, kind, fields, &[], data)
}

/// Appends a Supabase frame.
pub(super) fn user<const N: usize>(
    out: &mut Vec<u8>,
    kind: u8,
    fields: [&str; N],
    broadcast: &UserBroadcast<'_>,
) -> Result<Kind, EncodeError> {
    let (head, rest) = broadcast.common();
    frame(out, kind, fields, &head, rest)
}

/// Appends kind, lengths, the rest of the head, fields and data.
#[inline]
fn frame<const N: usize>(
    out: &mut Vec<u8>,
    kind: u8,
    fields: [&str; N],
    head: &[u8],
    data: &[u8],
) -> Result<Kind, EncodeError> {
    let mut lengths = [0; N];
    for (length, field) in lengths.iter_mut().zip(fields) {
        *length = u8::try_from(field.len()).map_err(|_| EncodeError::FieldTooLong)?;
    }
    let fields_bytes = fields.iter().map(|field| field.len()).sum::<usize>();
    out.reserve(1 + N + head.len() + fields_bytes + data.len());
    out.push(kind);
    out.extend_from_slice(&lengths);
    out.extend_from_slice(head);
    for field in fields {
        out.extend_from_slice(field.as_bytes());
    }
    out.extend_from_slice(data);
    Ok(Kind::Binary)
}

/// The `N` fields after the kind byte, their lengths and this many more bytes; and what follows
/// them.
fn fields<const N: usize>(
    frame: &[u8],
    head_bytes: usize,
) -> Result<([&str; N], &[u8]), DecodeError> {
    let header = frame.get(1..).ok_or(DecodeError::Truncated)?;
    let (lengths, rest) = header.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
    let mut rest = rest.get(head_bytes..).ok_or(DecodeError::Truncated)?;
    let mut fields = [""; N];
    for (field, &length) in fields.iter_mut().zip(lengths) {
        let (bytes, after) =
            rest.split_at_checked(usize::from(length)).ok_or(DecodeError::Truncated)?;
        *field = utf8(bytes)?;
        rest = after;
    }
    Ok((fields, rest))
}

/// Bytes between the lengths and the fields of a Supabase frame.
const USER_HEAD_BYTES: usize = 3;
pub(super) const PUSH: u8 = 0;
pub(super) const REPLY: u8 = 1;
pub(super) const BROADCAST: u8 = 2;

/// Room for brackets, commas, quotes and a reply's keys.
const BRACKETS_BYTES: usize = 40;
