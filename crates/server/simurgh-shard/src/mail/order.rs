//! Orders of back ends, which close or reach some sockets on every node.
//!
//! An order travels to other nodes as JSON. Each node carries it out once, and answers with the
//! number of sockets or channels that it concerned. A node that does not know an order does not
//! confirm it.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// An order, for the sockets of a [`SocketRef`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Close them with 1001, except the connections with these ids. Without `keep_grants` the
    /// cached answers about their users are void.
    Disconnect { of: SocketRef, except: Vec<String>, keep_grants: bool },
    /// End their channels of a topic.
    Kick { of: SocketRef, topic: String, rejoin: bool },
    /// Push an event on their channels of a topic. At most once for each socket.
    Push { of: SocketRef, topic: String, event: String, payload: Box<RawValue> },
}

impl Order {
    pub fn of(&self) -> &SocketRef {
        match self {
            Self::Disconnect { of, .. } | Self::Kick { of, .. } | Self::Push { of, .. } => of,
        }
    }
}

/// Receives the number of sockets or channels that an order concerned on a shard.
pub type Counted = Box<dyn FnOnce(u64) + Send>;

/// Names sockets, on all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketRef {
    /// The one with this [`ConnectionId`](crate::connection_id::ConnectionId).
    Connection(String),
    /// Those of a user: the subject of their token.
    User(String),
    /// Those to which the application's connect gave this id.
    Id(String),
}
