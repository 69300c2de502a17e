//! Kept broadcasts in the form for members that receive positions: the position is the ref of a
//! text, and a message of its own before a binary frame, which has no field for it.

use alloc::borrow::Cow;

use simurgh_history::{AT, NEXT, Position};
use simurgh_proto::message::{Message, Payload, Ref};
use simurgh_proto::serializer::{EncodeError, Serializer, ServerMessage};
use simurgh_proto::ws::{self, OpCode};

use crate::socket::Speaker;
use crate::wire::op_code;
use simurgh_data::prelude::*;

pub(crate) fn ref_of(position: Position) -> Ref<'static> {
    Ref::Json(Cow::Owned(format!("\"{position}\"")))
}

/// Appends the frame, or both, of a broadcast at its position. If the serializer cannot carry it,
/// the position advances all the same.
pub(crate) fn encode(
    out: &mut Vec<u8>,
    serializer: Serializer,
    (topic, event): (&str, &str),
    payload: &Payload<'_>,
    position: Position,
) -> Result<(), EncodeError> {
    match payload {
        Payload::Json(_) => text(out, serializer, &Ref::Null, (topic, event), payload, position),
        Payload::Binary(_) | Payload::User(_) => {
            let before = out.len();
            notice(out, serializer, &Ref::Null, topic, NEXT, position)?;
            let frame =
                |out: &mut Vec<u8>| serializer.broadcast(out, topic, event, payload).map(op_code);
            let made = ws::encode_with(out, frame);
            if made.is_err() {
                out.truncate(before);
                notice(out, serializer, &Ref::Null, topic, AT, position)?;
            }
            Ok(())
        }
    }
}

pub(crate) fn notice(
    out: &mut Vec<u8>,
    serializer: Serializer,
    join_ref: &Ref<'_>,
    topic: &str,
    event: &str,
    position: Position,
) -> Result<(), EncodeError> {
    let payload = Payload::EMPTY_OBJECT;
    text(out, serializer, join_ref, (topic, event), &payload, position)
}

fn text(
    out: &mut Vec<u8>,
    serializer: Serializer,
    join_ref: &Ref<'_>,
    (topic, event): (&str, &str),
    payload: &Payload<'_>,
    position: Position,
) -> Result<(), EncodeError> {
    ws::encode_with(out, |out| {
        write_text(out, serializer, join_ref, (topic, event), payload, position)
    })
}

pub(crate) fn write_text(
    out: &mut Vec<u8>,
    serializer: Serializer,
    join_ref: &Ref<'_>,
    (topic, event): (&str, &str),
    payload: &Payload<'_>,
    position: Position,
) -> Result<OpCode, EncodeError> {
    let message = Message {
        join_ref: join_ref.clone(),
        msg_ref: ref_of(position),
        topic: topic.into(),
        event: event.into(),
        payload: payload.borrow(),
    };
    serializer.server(out, &ServerMessage::Event(message)).map(op_code)
}

pub(crate) fn pushed<'a>(
    speaker: &'a Speaker,
    position: Position,
    push: &'a Option<(Box<str>, Payload<'static>)>,
) -> impl Iterator<Item = ServerMessage<'a>> {
    let event = move |msg_ref, event: &'a str, payload| {
        let join_ref = speaker.join_ref.as_ref();
        let topic = (&*speaker.topic).into();
        ServerMessage::Event(Message { join_ref, msg_ref, topic, event: event.into(), payload })
    };
    let notice = move |name| event(ref_of(position), name, Payload::EMPTY_OBJECT);
    let (before, push) = match push {
        None => (Some(notice(AT)), None),
        Some((name, payload @ Payload::Json(_))) => {
            (None, Some(event(ref_of(position), name, payload.borrow())))
        }
        Some((name, payload)) if speaker.wire.serializer() == Some(Serializer::V2) => {
            (Some(notice(NEXT)), Some(event(Ref::Null, name, payload.borrow())))
        }
        // It has no form there, which is counted elsewhere.
        Some((name, payload)) => (Some(notice(AT)), Some(event(Ref::Null, name, payload.borrow()))),
    };
    before.into_iter().chain(push)
}
