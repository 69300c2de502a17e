//! What has become of a disconnect on all nodes.

use std::time::Duration;

use simurgh_core::BroadcastError;
use simurgh_proto::message::{Payload, events};
use simurgh_shard::cluster_inbox::Disconnected;

use super::PubSub;

/// How long a disconnect is asked for before it is known who has not confirmed it.
pub const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// The thread that asks has a little longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(62);

/// Why it is not known what has become of a disconnect. Sockets on this node were closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectError {
    /// This node's shards take nothing more; none were closed.
    #[error("{0}")]
    Refused(BroadcastError),
    /// Too many disconnects wait for other nodes already: those were not asked.
    #[error("too many disconnects wait for other nodes, try again later")]
    TooMany,
    /// The server ends.
    #[error("the server ends")]
    Ended,
}

impl PubSub {
    /// Closes every socket with this id on all nodes, with 1001, and says which have done so: once
    /// all have, or after [`DISCONNECT_TIMEOUT`]. It is asked of nodes again that do not answer,
    /// and of those that come meanwhile. A server that is no part of a cluster has no others to
    /// wait for.
    ///
    /// # Errors
    /// Sockets were closed here, at most.
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
