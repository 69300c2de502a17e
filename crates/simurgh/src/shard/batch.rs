//! What a topic's members are sent: broadcasts encoded once for each wire, and put together for all
//! who stand at the same place.

use std::rc::Rc;
use std::sync::Arc;

use simurgh_proto::message::Payload;
use simurgh_proto::serializer::EncodeError;
use simurgh_proto::ws::{self, OpCode};
use simurgh_reactor::{Run, Shared};

use super::Io;
use super::callback::{op_code, plain_message};
use super::conn::Wire;
use super::parts::{LONG_BYTES, frame_around};
use super::topics::Topic;
use crate::channel::Broadcast;

/// Largest burst that is put together for single writes; a larger one is gathered by the system.
const WHOLE_BYTES_MAX: usize = 64 << 10;

/// What members who stand at the same place of a topic's log are sent on one wire.
pub(super) struct Batch {
    /// Which topic: this very name, not one that reads the same and not the slot, which another
    /// topic may have by now. It cannot be freed and taken anew while it is held here.
    topic: Rc<str>,
    from: u32,
    to: u32,
    /// Its frames; none if nothing of it has a form on this wire.
    run: Option<Run>,
    /// The same in one piece, if it is a short burst of several.
    whole: Vec<u8>,
    /// How many broadcasts that is, for the counters.
    pub(super) count: u32,
    /// Memberships that one of these broadcasts is not for.
    pub(super) except: Vec<u32>,
}

impl Batch {
    #[inline(never)]
    pub(super) fn new(io: &Io, topic: &mut Topic, from: u32, wire: Wire, errors: &mut u64) -> Self {
        let except = topic.log.pending(from).filter_map(|it| Some(it.except?.membership)).collect();
        let (name, to) = (Rc::clone(&topic.name), topic.log.head());
        let mut batch =
            Self { topic: name, from, to, run: None, whole: Vec::new(), count: 0, except };
        let encode = |it: &Arc<Broadcast>| frame(io, it, wire, errors);
        topic.log.runs(
            from,
            wire,
            |_| true,
            encode,
            |run, count| {
                batch.run = Some(run.clone());
                batch.count = count;
            },
        );
        if let Some(run) = batch.run.as_ref().filter(|run| run.single().is_none())
            && run.len() <= WHOLE_BYTES_MAX
        {
            batch.whole.reserve_exact(run.len());
            run.frames().for_each(|frame| batch.whole.extend_from_slice(frame.as_bytes()));
        }
        batch
    }

    #[inline]
    pub(super) fn is_of(&self, topic: &Rc<str>, from: u32, to: u32) -> bool {
        self.from == from && self.to == to && Rc::ptr_eq(&self.topic, topic)
    }

    /// Its run, and the bytes that it is in one piece; these are empty if the system is to gather
    /// them.
    #[inline]
    pub(super) fn output(&self) -> Option<(&Run, &[u8])> {
        let run = self.run.as_ref()?;
        Some((run, run.single().map_or(&*self.whole, Shared::as_bytes)))
    }

    /// The same, if it is in one piece and for everybody.
    #[inline]
    pub(super) fn for_all(&self) -> Option<(&Run, &[u8])> {
        self.output().filter(|(_, whole)| !whole.is_empty() && self.except.is_empty())
    }
}

/// The frame of a broadcast on a wire; none, and an error is counted, if it has no form there.
pub(super) fn frame(
    io: &Io,
    broadcast: &Arc<Broadcast>,
    wire: Wire,
    errors: &mut u64,
) -> Option<Shared> {
    let made = if broadcast.payload.len() > LONG_BYTES {
        frame_around(io, Arc::clone(broadcast), |out, payload| say(out, broadcast, payload, wire))
    } else {
        // What it weighs is what its frame comes to, or a little more.
        let mut bytes = Vec::with_capacity(broadcast.weight());
        encode(&mut bytes, broadcast, wire).map(|()| io.share(bytes))
    };
    match made {
        Ok(frame) => Some(frame),
        Err(error) => {
            *errors += 1;
            tracing::debug!(topic = broadcast.topic(), %error, "broadcast not encodable");
            None
        }
    }
}

pub(super) fn encode(
    out: &mut Vec<u8>,
    broadcast: &Broadcast,
    wire: Wire,
) -> Result<(), EncodeError> {
    ws::encode_with(out, |out| say(out, broadcast, &broadcast.payload, wire))
}

/// A broadcast, with a payload that may stand for its own, without its frame's head.
fn say(
    out: &mut Vec<u8>,
    broadcast: &Broadcast,
    payload: &Payload<'_>,
    wire: Wire,
) -> Result<OpCode, EncodeError> {
    let Broadcast { topic, event, .. } = broadcast;
    match wire.serializer() {
        Some(serializer) => serializer.broadcast(out, topic, event, payload).map(op_code),
        None => Ok(op_code(plain_message(out, payload))),
    }
}
