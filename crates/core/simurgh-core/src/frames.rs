//! Messages as frames, whole or in parts.
//!
//! A long payload is not copied into its frame: only the few bytes around it are made. So a long
//! broadcast is in memory once for all serializers and shards, and sending it costs a turn no copy.

pub(crate) mod kept;

use simurgh_channel::Broadcast;
use simurgh_channel::metrics::ShardMetrics;
use simurgh_data::{Key, Run, Shared};
use simurgh_history::{AT, NEXT, Position};
use simurgh_proto::message::{Payload, Ref};
use simurgh_proto::serializer::{EncodeError, Kind, Serializer, ServerMessage};
use simurgh_proto::ws::{self, CloseCode, DEFLATE_BYTES_MIN, OpCode};

use crate::sockets::Sockets;
use crate::wire::{Form, Wire, op_code};
use simurgh_data::prelude::*;

/// Longer payloads are not copied into their frames.
pub(crate) const LONG_BYTES: usize = 64 << 10;
/// In place of the payload while the rest of a text is written: no JSON text contains it, since
/// control characters in strings are escaped.
const PLACEHOLDER: char = '\0';

pub(crate) fn send(
    out: &mut impl Sockets,
    metrics: &ShardMetrics,
    key: Key,
    message: ServerMessage<'_>,
) {
    let Some(socket) = out.socket(key).filter(|socket| socket.is_open()) else { return };
    let wire = socket.wire;
    metrics.messages_out.add(1);
    if wire == Wire::Values {
        return out.deliver(key, &message);
    }
    if message.payload().len() > LONG_BYTES {
        return send_long(out, metrics, key, wire, message);
    }
    if wire.has_deflate() && message.payload().len() >= DEFLATE_BYTES_MIN {
        return send_compressed(out, metrics, key, wire, &message);
    }
    out.send_with(key, |out| {
        if let Err(error) = ws::encode_with(out, |out| write(out, wire, &message)) {
            not_encodable(metrics, error);
        }
    });
}

/// Sends a message without copying its payload, unless that is borrowed.
#[cold]
fn send_long(
    out: &mut impl Sockets,
    metrics: &ShardMetrics,
    key: Key,
    wire: Wire,
    mut message: ServerMessage<'_>,
) {
    let payload = message.replace_payload(Payload::NULL).into_owned();
    let placeholder = placeholder(&payload, wire);
    let made = frame_around(out, Data(payload), placeholder, |out, placeholder| {
        // The bytes around a payload are not kept longer than its message.
        let mut message = message;
        message.replace_payload(placeholder.clone().into_owned());
        write(out, wire, &message)
    });
    match made {
        Ok(frame) => out.send_later(key, Run::of(&frame)),
        Err(error) => not_encodable(metrics, error),
    }
}

#[cold]
fn send_compressed(
    out: &mut impl Sockets,
    metrics: &ShardMetrics,
    key: Key,
    wire: Wire,
    message: &ServerMessage<'_>,
) {
    let mut frame = Vec::new();
    if let Err(error) = ws::encode_with(&mut frame, |frame| write(frame, wire, message)) {
        return not_encodable(metrics, error);
    }
    out.compress(message.topic(), &mut frame);
    out.send_with(key, |out| out.extend_from_slice(&frame));
}

fn not_encodable(metrics: &ShardMetrics, error: EncodeError) {
    metrics.errors_encode.add(1);
    tracing::debug!(%error, "cannot encode a message for its receiver");
}

pub(crate) fn send_close(out: &mut impl Sockets, key: Key, code: Option<CloseCode>, reason: &str) {
    match out.socket(key).map(|socket| socket.wire) {
        None => {}
        Some(Wire::Values) => out.deliver_close(key, code),
        Some(_) => {
            out.send_with(key, |out| match code {
                Some(code) => ws::encode_close(code, reason, None, out),
                None => ws::encode(OpCode::Close, &[], None, out),
            });
        }
    }
}

pub(crate) fn close_reason(code: CloseCode) -> &'static str {
    match code {
        CloseCode::GOING_AWAY => "disconnected",
        CloseCode::TRY_AGAIN => "too much unfinished",
        CloseCode::RESTART => "server restarts",
        CloseCode::PROTOCOL => "protocol error or idle",
        CloseCode::UNAUTHORIZED => "token expired",
        _ => "",
    }
}

fn write(
    out: &mut Vec<u8>,
    wire: Wire,
    message: &ServerMessage<'_>,
) -> Result<OpCode, EncodeError> {
    match wire.serializer() {
        Some(serializer) => serializer.server(out, message).map(op_code),
        None => Ok(op_code(plain_message(out, message.payload()))),
    }
}

fn plain_message(out: &mut Vec<u8>, payload: &Payload<'_>) -> Kind {
    match payload {
        Payload::Json(text) => {
            out.extend_from_slice(text.as_bytes());
            Kind::Text
        }
        Payload::Binary(_) | Payload::User(_) => {
            out.extend_from_slice(payload.data());
            Kind::Binary
        }
    }
}

/// The frame of a broadcast in a form; `None`, and an error is counted, if it has none.
pub(crate) fn broadcast_frame(
    out: &mut impl Sockets,
    broadcast: &Arc<Broadcast>,
    form: Form,
    errors: &mut u64,
) -> Option<Shared> {
    let made = if broadcast.payload().len() > LONG_BYTES {
        long_frame(out, broadcast, form)
    } else {
        // Its weight is about the size of its frame.
        let mut bytes = Vec::with_capacity(broadcast.weight());
        encode_broadcast(&mut bytes, broadcast, form).map(|()| {
            if form.wire.has_deflate() && bytes.len() >= DEFLATE_BYTES_MIN {
                out.compress(broadcast.topic(), &mut bytes);
                bytes.shrink_to_fit();
            }
            out.share(bytes)
        })
    };
    match made {
        Ok(frame) => Some(frame),
        Err(_) if broadcast.is_notice() => None,
        Err(error) => {
            *errors += 1;
            tracing::debug!(topic = broadcast.topic(), %error, "cannot encode a broadcast for a \
                member");
            None
        }
    }
}

/// The position of a broadcast, for members that receive positions, and the serializer.
///
/// # Errors
/// It is a notice, which only these members get.
#[inline]
fn position_of(
    broadcast: &Broadcast,
    form: Form,
) -> Result<Option<(Serializer, Position)>, EncodeError> {
    let Some(mark) = &broadcast.kept else { return Ok(None) };
    let serializer = form.wire.serializer().filter(|_| form.has_positions);
    match serializer {
        Some(serializer) => Ok(Some((serializer, mark.position))),
        None if mark.is_notice => Err(EncodeError::UserBroadcastIsNoReply),
        None => Ok(None),
    }
}

fn long_frame(
    out: &impl Sockets,
    broadcast: &Arc<Broadcast>,
    form: Form,
) -> Result<Shared, EncodeError> {
    let (topic, event) = (broadcast.topic(), broadcast.event());
    let data = Data(Arc::clone(broadcast));
    let placeholder = placeholder(broadcast.payload(), form.wire);
    let Some((serializer, position)) = position_of(broadcast, form)? else {
        return frame_around(out, data, placeholder, |out, payload| {
            write_broadcast(out, broadcast, payload, form.wire)
        });
    };
    if matches!(broadcast.payload(), Payload::Json(_)) {
        return frame_around(out, data, placeholder, |out, payload| {
            kept::write_text(out, serializer, &Ref::Null, (topic, event), payload, position)
        });
    }
    let made = frame_around(out, data, placeholder, |out, payload| {
        write_broadcast(out, broadcast, payload, form.wire)
    });
    let notice = if made.is_ok() { NEXT } else { AT };
    let mut bytes = Vec::new();
    kept::notice(&mut bytes, serializer, &Ref::Null, topic, notice, position)?;
    let before = out.share(bytes);
    if let Ok(frame) = made {
        before.go_on_in(&frame);
    }
    Ok(before)
}

pub(crate) fn encode_broadcast(
    out: &mut Vec<u8>,
    broadcast: &Broadcast,
    form: Form,
) -> Result<(), EncodeError> {
    let payload = broadcast.payload();
    if let Some((serializer, position)) = position_of(broadcast, form)? {
        let named = (broadcast.topic(), broadcast.event());
        return kept::encode(out, serializer, named, payload, position);
    }
    ws::encode_with(out, |out| write_broadcast(out, broadcast, payload, form.wire))
}

fn write_broadcast(
    out: &mut Vec<u8>,
    broadcast: &Broadcast,
    payload: &Payload<'_>,
    wire: Wire,
) -> Result<OpCode, EncodeError> {
    let (topic, event) = (broadcast.topic(), broadcast.event());
    match wire.serializer() {
        Some(serializer) => serializer.broadcast(out, topic, event, payload).map(op_code),
        None => Ok(op_code(plain_message(out, payload))),
    }
}

struct Data<T>(T);

impl AsRef<[u8]> for Data<Payload<'static>> {
    fn as_ref(&self) -> &[u8] {
        self.0.data()
    }
}

impl AsRef<[u8]> for Data<Arc<Broadcast>> {
    fn as_ref(&self) -> &[u8] {
        self.0.payload().data()
    }
}

/// The placeholder of a payload on a wire, and whether it is searched there: binary is always last.
fn placeholder(payload: &Payload<'_>, wire: Wire) -> (Payload<'static>, bool) {
    let (mut bytes, is_text) = ([0; 4], wire.serializer() == Some(Serializer::V1));
    let text = PLACEHOLDER.encode_utf8(&mut bytes);
    match payload {
        Payload::Json(_) => (Payload::from_json(text.to_owned()), true),
        Payload::Binary(_) => (Payload::from_bytes(&[][..]), false),
        Payload::User(broadcast) if is_text => {
            (Payload::User(broadcast.with_data(text.as_bytes())), true)
        }
        Payload::User(broadcast) => (Payload::User(broadcast.with_data(&[])), false),
    }
}

/// A frame in parts around the bytes of a payload. `write` appends a message without its frame's
/// head, with a placeholder for the payload.
fn frame_around(
    out: &impl Sockets,
    data: impl AsRef<[u8]> + 'static,
    (placeholder, is_in_text): (Payload<'static>, bool),
    write: impl FnOnce(&mut Vec<u8>, &Payload<'_>) -> Result<OpCode, EncodeError>,
) -> Result<Shared, EncodeError> {
    let mut text = Vec::new();
    let op = write(&mut text, &placeholder)?;
    let place = text.iter().position(|byte| is_in_text && *byte == PLACEHOLDER as u8);
    let tail = place.map(|at| text.split_off(at)).and_then(|tail| Some(tail.get(1..)?.to_vec()));
    let tail = tail.unwrap_or_default();
    let bytes = text.len() + data.as_ref().len() + tail.len();
    let mut head = Vec::with_capacity(16 + text.len());
    ws::encode_head(op, bytes, &mut head);
    head.append(&mut text);
    let (head, body) = (out.share(head), out.share(data));
    if !tail.is_empty() {
        body.go_on_in(&out.share(tail));
    }
    head.go_on_in(&body);
    Ok(head)
}

#[cfg(test)]
mod tests;
