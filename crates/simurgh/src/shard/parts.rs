//! Frames of long payloads, in parts: the few bytes around a payload are made, and the payload
//! stays where it lies. So a long broadcast is in memory once, whatever its readers speak and on
//! however many shards they are, and saying it costs a turn no copy.

use std::sync::Arc;

use simurgh_proto::message::Payload;
use simurgh_proto::serializer::EncodeError;
use simurgh_proto::ws::{self, OpCode};
use simurgh_reactor::Shared;

use super::Io;
use crate::channel::Broadcast;

/// Longer payloads are not copied into their frames.
pub(super) const LONG_BYTES: usize = 64 << 10;
/// Stands for the payload while the rest of a text is written: no JSON text holds it, for strings
/// have their control characters escaped.
const HOLE: char = '\0';

/// What keeps a payload.
pub(super) trait Keeps: 'static {
    fn payload(&self) -> &Payload<'static>;
}

impl Keeps for Payload<'static> {
    fn payload(&self) -> &Payload<'static> {
        self
    }
}

impl Keeps for Arc<Broadcast> {
    fn payload(&self) -> &Payload<'static> {
        Broadcast::payload(self)
    }
}

struct Kept<K>(K);

impl<K: Keeps> AsRef<[u8]> for Kept<K> {
    fn as_ref(&self) -> &[u8] {
        match self.0.payload() {
            Payload::Json(text) => text.as_bytes(),
            Payload::Binary(data) => data,
        }
    }
}

/// A frame in parts. `write` appends a message without its frame's head, and is given what stands
/// for the payload.
pub(super) fn frame_around<K: Keeps>(
    io: &Io,
    keeper: K,
    write: impl FnOnce(&mut Vec<u8>, &Payload<'_>) -> Result<OpCode, EncodeError>,
) -> Result<Shared, EncodeError> {
    let hole = match keeper.payload() {
        Payload::Json(_) => Payload::from_json(HOLE.encode_utf8(&mut [0; 4]).to_owned()),
        // Binary comes last in all that it is written into.
        Payload::Binary(_) => Payload::from_bytes(&[][..]),
    };
    let mut text = Vec::new();
    let op = write(&mut text, &hole)?;
    let place = text.iter().position(|byte| hole.json().is_some() && *byte == HOLE as u8);
    let tail = place.map(|at| text.split_off(at)).and_then(|tail| Some(tail.get(1..)?.to_vec()));
    let tail = tail.unwrap_or_default();
    let bytes = text.len() + keeper.payload().len() + tail.len();
    let mut head = Vec::with_capacity(16 + text.len());
    ws::encode_head(op, bytes, &mut head);
    head.append(&mut text);
    let (head, body) = (io.share(head), io.share(Kept(keeper)));
    if !tail.is_empty() {
        body.go_on_in(&io.share(tail));
    }
    head.go_on_in(&body);
    Ok(head)
}
