//! The results of a disconnect on all nodes.

use std::time::Duration;

use simurgh_core::BroadcastError;
use simurgh_proto::message::{Payload, events};
use simurgh_shard::cluster_inbox::Disconnected;

use super::PubSub;

/// How long to wait for the confirmations of a disconnect.
pub const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// The limit for the cluster's thread, which has a little longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(62);

/// Why the results of a disconnect are unknown. Sockets on this node were closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectError {
    /// This node's shards accept nothing more; no sockets were closed.
    #[error("{0}")]
    Refused(BroadcastError),
    /// Too many disconnects already wait for other nodes, which were not asked.
    #[error("too many disconnects wait for other nodes: try again later")]
    TooMany,
    /// The server ends.
    #[error("the server is stopping")]
    Ended,
}

impl PubSub {
    /// Closes every socket with this id on all nodes, with 1001, and reports which nodes have done
    /// so: once all have, or after [`DISCONNECT_TIMEOUT`]. The request is repeated to nodes that do
    /// not answer, and sent to those that join meanwhile. On an error at most sockets on this node
    /// were closed.
    pub async fn disconnect_everywhere(
        &self,
        socket_id: &str,
    ) -> Result<Disconnected, DisconnectError> {
        let Some(inbox) = &self.0.cluster else {
            let disconnect = || self.disconnect(socket_id);
            return disconnect()
                .map(|()| Disconnected::default())
                .map_err(DisconnectError::Refused);
        };
        self.broadcast_local(socket_id, events::DISCONNECT, Payload::EMPTY_OBJECT)
            .map_err(DisconnectError::Refused)?;
        let told = tokio::time::timeout(ANSWER_TIMEOUT, inbox.disconnect(socket_id)).await;
        match told {
            Ok(Ok(Some(disconnected))) => Ok(disconnected),
            Ok(Ok(None)) => Err(DisconnectError::TooMany),
            Ok(Err(_)) | Err(_) => Err(DisconnectError::Ended),
        }
    }
}
