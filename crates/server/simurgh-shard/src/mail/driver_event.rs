//! The events of driven sockets, as values.

use std::fmt;
use std::sync::Arc;

use simurgh_core::Broadcast;
use simurgh_proto::message::{Message, Payload, Ref, events};
use simurgh_proto::serializer::ServerMessage;
use simurgh_reactor::Key;

/// The id of a driven socket of one server; never used again after it is closed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId {
    pub key: Key,
    pub shard: u16,
}

impl SocketId {
    pub fn shard(self) -> usize {
        usize::from(self.shard)
    }

    /// The socket's place on its shard, which a later socket may reuse: with [`shard`](Self::shard)
    /// an index for the driver's own tables.
    pub fn slot(self) -> usize {
        self.key.slot as usize
    }
}

impl fmt::Debug for SocketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SocketId({}.{}.{})", self.shard, self.key.slot, self.key.generation)
    }
}

/// The id of a sent message, for the reply to it. A message that was sent to many sockets at once
/// has the same id on all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageRef(pub u64);

/// An event of a driven socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub socket: SocketId,
    pub what: What,
}

/// The kinds of events with their content.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// The reply to a join, a leave or a push.
    Reply(ReceivedReply),
    /// A push to this socket alone, or a broadcast: clients cannot tell them apart either.
    Message(Received),
    /// A channel ended as intended (`phx_close`).
    ChannelClosed {
        /// Its topic.
        topic: Box<str>,
    },
    /// A channel crashed (`phx_error`); it may be joined again.
    ChannelCrashed {
        /// Its topic.
        topic: Box<str>,
    },
    /// The socket is closed, with this code if there was one; its last event.
    Closed {
        /// Close code (RFC 6455 §7.4).
        code: Option<u16>,
    },
}

/// The reply to a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedReply {
    /// The message that it answers; `None` for a reply to an unknown ref.
    pub to: Option<MessageRef>,
    pub topic: Box<str>,
    /// `ok`, `error`, or another status of the application's.
    pub status: Box<str>,
    pub response: Payload<'static>,
}

/// An event that was received. The content of a broadcast is shared by all its receivers.
#[derive(Clone)]
pub struct Received(Content);

#[derive(Clone)]
enum Content {
    Shared(Arc<Broadcast>),
    Own(Box<(Box<str>, Box<str>, Payload<'static>)>),
}

impl Received {
    pub fn own(topic: &str, event: &str, payload: Payload<'static>) -> Self {
        Self(Content::Own(Box::new((topic.into(), event.into(), payload))))
    }

    pub fn shared(broadcast: &Arc<Broadcast>) -> Self {
        Self(Content::Shared(Arc::clone(broadcast)))
    }

    /// The topic; empty for a message of a plain socket.
    pub fn topic(&self) -> &str {
        match &self.0 {
            Content::Shared(broadcast) => broadcast.topic(),
            Content::Own(own) => &own.0,
        }
    }

    /// The event; `text` or `binary` for a message of a plain socket.
    pub fn event(&self) -> &str {
        match &self.0 {
            Content::Shared(broadcast) => broadcast.event(),
            Content::Own(own) => &own.1,
        }
    }

    pub fn payload(&self) -> &Payload<'static> {
        match &self.0 {
            Content::Shared(broadcast) => broadcast.payload(),
            Content::Own(own) => &own.2,
        }
    }

    fn own_bytes(&self) -> usize {
        match &self.0 {
            Content::Shared(_) => 0,
            Content::Own(own) => size_of_val(&**own) + own.0.len() + own.1.len() + own.2.len(),
        }
    }
}

impl PartialEq for Received {
    fn eq(&self, other: &Self) -> bool {
        (self.topic(), self.event(), self.payload())
            == (other.topic(), other.event(), other.payload())
    }
}

impl Eq for Received {}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("topic", &self.topic())
            .field("event", &self.event())
            .field("payload", self.payload())
            .finish()
    }
}

/// The kinds of [`What`], for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Ok,
    NotOk,
    Message,
    ChannelClosed,
    ChannelCrashed,
    Closed,
}

pub fn kind(message: &ServerMessage<'_>) -> EventKind {
    match message {
        ServerMessage::Reply { status, .. } if status == "ok" => EventKind::Ok,
        ServerMessage::Reply { .. } => EventKind::NotOk,
        ServerMessage::Event(Message { event, .. }) => match &**event {
            events::CLOSE => EventKind::ChannelClosed,
            events::ERROR => EventKind::ChannelCrashed,
            _ => EventKind::Message,
        },
    }
}

impl What {
    pub fn of(message: &ServerMessage<'_>) -> Self {
        match message {
            ServerMessage::Reply { msg_ref, topic, status, response, .. } => {
                Self::Reply(ReceivedReply {
                    to: MessageRef::read(msg_ref),
                    topic: (&**topic).into(),
                    status: (&**status).into(),
                    response: response.into(),
                })
            }
            ServerMessage::Event(Message { topic, event, payload, .. }) => match &**event {
                events::CLOSE => Self::ChannelClosed { topic: (&**topic).into() },
                events::ERROR => Self::ChannelCrashed { topic: (&**topic).into() },
                _ => Self::Message(Received::own(topic, event, payload.into())),
            },
        }
    }

    /// Bytes that it is charged with until the driver takes it.
    pub fn weight(&self) -> usize {
        let more = match self {
            Self::Reply(ReceivedReply { topic, status, response, .. }) => {
                topic.len() + status.len() + response.len()
            }
            Self::Message(message) => message.own_bytes(),
            Self::ChannelClosed { topic } | Self::ChannelCrashed { topic } => topic.len(),
            Self::Closed { .. } => 0,
        };
        size_of::<Event>() + more
    }
}

impl MessageRef {
    /// As in a message: a string, as the official client writes it.
    pub fn write(self) -> Ref<'static> {
        Ref::from_json(format!("\"{}\"", self.0))
    }

    fn read(text: &Ref<'_>) -> Option<Self> {
        let digits = text.raw().strip_prefix('"')?.strip_suffix('"')?;
        digits.parse().ok().map(Self)
    }
}

/// Why a request for a socket failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The connection was refused with an HTTP status: by the user socket, by the application, or
    /// because the server is full.
    #[error("the connection was refused with {status}{}", after_colon(body))]
    Refused {
        /// The status: usually 403; 404 where no user socket is mounted.
        status: u16,
        /// The application's body.
        body: String,
    },
    /// Too many undelivered bytes in a shard; try again later.
    #[error("too many bytes are in flight: try again later")]
    Congested,
    #[error("the server has stopped")]
    Ended,
    /// The answer did not arrive in time.
    #[error("the expected event did not arrive in time")]
    TimedOut,
}

fn after_colon(body: &str) -> String {
    if body.is_empty() { String::new() } else { format!(": {}", body.trim_end()) }
}
