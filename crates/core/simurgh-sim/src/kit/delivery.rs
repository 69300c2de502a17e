//! Short forms of what clients ask and are sent: numbers stand for topics, refs and payloads.

use simurgh_core::Wire;
use simurgh_proto::message::events;
use simurgh_proto::serializer::ServerMessage;

use crate::kit::payload;
use crate::kit::presence::letter_of;
use crate::kit::refs;
use crate::kit::topics::Topics;

/// What a client's message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Heartbeat,
    Join,
    Leave,
    /// Any other event.
    Event,
}

/// A message of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: RequestKind,
    pub(crate) topic: u8,
    /// 0 for none.
    pub(crate) join_ref: u32,
    /// 0 for none.
    pub(crate) msg_ref: u32,
    /// The number of its payload.
    pub(crate) id: u32,
}

/// The kinds of messages that a client is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryKind {
    Reply,
    /// A push or a broadcast: V1 cannot tell them apart.
    Event,
    Close,
    Error,
    /// A message without a serializer.
    Raw,
}

/// One message that a client is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) kind: DeliveryKind,
    /// The first letter of the event, or of the status.
    pub(crate) word: u8,
    /// 0 for none.
    pub(crate) join_ref: u32,
    /// 0 for none.
    pub(crate) msg_ref: u32,
    /// The number of the payload.
    pub(crate) id: u32,
}

impl Delivery {
    pub(crate) fn reply(join_ref: u32, msg_ref: u32, word: u8, id: u32) -> Self {
        Self { kind: DeliveryKind::Reply, word, join_ref, msg_ref, id }
    }

    /// A push or a broadcast.
    pub(crate) fn event(word: u8, join_ref: u32, id: u32) -> Self {
        Self { kind: DeliveryKind::Event, word, join_ref, msg_ref: 0, id }
    }

    /// A message without a serializer.
    pub(crate) fn raw(id: u32) -> Self {
        Self { kind: DeliveryKind::Raw, word: 0, join_ref: 0, msg_ref: 0, id }
    }

    /// The same message after encoding for a wire.
    pub(crate) fn on(self, wire: Wire) -> Self {
        match wire {
            Wire::V2 | Wire::Values => self,
            Wire::V1 => Self { join_ref: 0, ..self },
            Wire::Plain => Self::raw(self.id),
        }
    }

    /// The short form of a server's message, with its topic and the sum of its payload.
    pub(crate) fn of(topics: &Topics, message: &ServerMessage<'_>) -> (Option<u8>, Self, u32) {
        let (kind, word, refs, topic, payload) = match message {
            ServerMessage::Reply { join_ref, msg_ref, topic, status, response } => {
                (DeliveryKind::Reply, letter(status), [join_ref, msg_ref], topic, response)
            }
            ServerMessage::Event(it) => {
                let (kind, word) = match &*it.event {
                    events::CLOSE => (DeliveryKind::Close, 0),
                    events::ERROR => (DeliveryKind::Error, 0),
                    other => (DeliveryKind::Event, letter(other)),
                };
                (kind, word, [&it.join_ref, &it.msg_ref], &it.topic, &it.payload)
            }
        };
        let is_binary = payload.binary().is_some();
        let [join_ref, msg_ref] = refs.map(|it| refs::number(it.raw(), is_binary));
        let it = Self { kind, word, join_ref, msg_ref, id: payload::parse(payload).0 };
        (topics.number(topic), it, payload::sum(payload))
    }
}

/// The letter of an event or a status.
pub(crate) fn letter(word: &str) -> u8 {
    letter_of(word).unwrap_or_else(|| word.as_bytes().first().copied().unwrap_or_default())
}
