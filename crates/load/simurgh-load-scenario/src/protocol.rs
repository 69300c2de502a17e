//! The protocols of other servers that sessions can use.

use serde::{Deserialize, Serialize};

use super::{Act, Connect};

/// The protocol of another server, in text frames of a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// Socket.IO 3 and 4 over Engine.IO 4. A topic is a namespace.
    SocketIo,
    /// Pusher Channels, protocol 7. A topic is a channel.
    Pusher,
    /// Rails' Action Cable. A topic is an identifier, in JSON.
    ActionCable,
    /// Centrifugo's JSON protocol. A topic is a channel.
    Centrifuge,
    /// `graphql-transport-ws`. A topic is the id of a subscription.
    GraphqlWs,
}

impl Protocol {
    /// The name in scenarios.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SocketIo => "socket.io",
            Self::Pusher => "pusher",
            Self::ActionCable => "actioncable",
            Self::Centrifuge => "centrifuge",
            Self::GraphqlWs => "graphql-ws",
        }
    }

    /// The subprotocol of a connect that names none.
    pub fn subprotocol(self) -> Option<&'static str> {
        match self {
            Self::ActionCable => Some("actioncable-v1-json"),
            Self::GraphqlWs => Some("graphql-transport-ws"),
            Self::SocketIo | Self::Pusher | Self::Centrifuge => None,
        }
    }

    /// Whether the client's first message has a payload: a token, for example.
    pub fn greets(self) -> bool {
        matches!(self, Self::Centrifuge | Self::GraphqlWs)
    }

    /// Whether clients may send pings, which the server answers. The other servers send them.
    pub fn has_heartbeat(self) -> bool {
        matches!(self, Self::Pusher | Self::GraphqlWs)
    }

    /// Whether the server replies to joins.
    pub fn replies_to_joins(self) -> bool {
        self != Self::GraphqlWs
    }

    /// Whether the server replies to leaves.
    pub fn replies_to_leaves(self) -> bool {
        self == Self::Centrifuge
    }

    /// Whether the server replies to a join, push or leave.
    pub(crate) fn replies_to(self, act: &Act) -> bool {
        match act {
            Act::Join(_) => self.replies_to_joins(),
            Act::Leave(_) => self.replies_to_leaves(),
            _ => matches!(self, Self::SocketIo | Self::Centrifuge | Self::GraphqlWs),
        }
    }
}

impl Connect {
    /// The subprotocols to offer: those of the step, or that of its protocol.
    pub fn offers(&self, protocol: Option<Protocol>) -> String {
        let own = self.subprotocols.join(", ");
        let usual = protocol.filter(|_| own.is_empty()).and_then(Protocol::subprotocol);
        usual.map_or(own, str::to_owned)
    }
}
