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
    /// Add a rule to the access list, close the sockets that it is about with 1001, and void the
    /// cached answers about its user.
    Access(Rule),
}

impl Order {
    pub fn of(&self) -> &SocketRef {
        match self {
            Self::Disconnect { of, .. }
            | Self::Kick { of, .. }
            | Self::Push { of, .. }
            | Self::Access(Rule { of, .. }) => of,
        }
    }
}

/// A block of a user, or a revocation of a user's tokens or of one token. Times are Unix seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    pub of: SocketRef,
    /// A revocation: of tokens that were issued before this time, and of those without a time.
    pub issued_before: Option<u64>,
    /// A block of joins to the topics of this pattern; without it, of connects.
    pub topic: Option<String>,
    /// The block is lifted. It stays in the list, so that no other node brings it back.
    pub is_lifted: bool,
    /// When the block was set or lifted, in milliseconds: the latest counts.
    pub set_ms: u64,
    /// The end of the rule.
    pub until: u64,
}

/// Receives the number of sockets or channels that an order concerned on a shard.
pub type Counted = Box<dyn FnOnce(u64) + Send>;

/// Names sockets, on all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketRef {
    /// The one with this [`ConnectionId`](crate::connection_id::ConnectionId).
    Connection(String),
    /// Those of a user: the subject of their token.
    User(String),
    /// Those to which the application's connect gave this id.
    Id(String),
    /// Those whose token has this id, its claim `jti`.
    Token(String),
}
