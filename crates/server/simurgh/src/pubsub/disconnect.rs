//! Orders to sockets on all nodes, and their results.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use simurgh_core::{BroadcastError, Cluster, Node, Publisher, WallClock};
use simurgh_proto::message::events;
use simurgh_shard::access_list::ListIsFull;
use simurgh_shard::cluster_inbox::Disconnected;
use simurgh_shard::connection_id::ConnectionId;
use simurgh_shard::mail::Mail;
use simurgh_shard::mail::order::{Order, Rule, SocketRef};
use simurgh_shard::server::Server;
use simurgh_shard::takeover::ToOther;

use super::PubSub;
use crate::blocks;

/// How long to wait for the confirmations of a disconnect.
pub const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// The limit for the cluster's thread, which has a little longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(62);

/// Why the results of a disconnect are unknown. Sockets on this node were closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectError {
    /// The id or the message is too long; nothing was done.
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
        self.0.fits(socket_id, events::DISCONNECT, 0).map_err(DisconnectError::Refused)?;
        let of = SocketRef::Id(socket_id.to_owned());
        self.order(Order::Disconnect { of, except: Vec::new(), keep_grants: false }).await
    }

    /// Carries out an order on all nodes, likewise; the result counts sockets, or channels.
    pub(crate) async fn order(&self, order: Order) -> Result<Disconnected, DisconnectError> {
        let server = &self.0;
        let others = match &server.cluster {
            Some(inbox) if !is_here(server, &order) => {
                let bytes = serde_json::to_vec(&order).unwrap_or_default();
                let bytes_max = inbox.broadcast_bytes_max();
                if bytes.len() > bytes_max {
                    let bytes = bytes.len();
                    let error = BroadcastError::TooLargeForCluster { bytes, bytes_max };
                    return Err(DisconnectError::Refused(error));
                }
                Some(tokio::time::timeout(ANSWER_TIMEOUT, inbox.order(bytes)))
            }
            _ => None,
        };
        if let Some(link) = server.takeover.link() {
            link.post(ToOther::Order(serde_json::to_vec(&order).unwrap_or_default()));
        }
        let closed = carry_out(server, order).await.unwrap_or_default();
        let Some(others) = others else {
            return Ok(Disconnected { closed, ..Disconnected::default() });
        };
        match others.await {
            Ok(Ok(Some(done))) => Ok(Disconnected { closed: done.closed + closed, ..done }),
            Ok(Ok(None)) => Err(DisconnectError::TooMany),
            Ok(Err(_)) | Err(_) => Err(DisconnectError::Ended),
        }
    }
}

/// Whether an order names a connection of this node.
fn is_here(server: &Server, order: &Order) -> bool {
    let SocketRef::Connection(id) = order.of() else { return false };
    id.parse::<ConnectionId>().is_ok_and(|it| it.node == server.id)
}

/// Carries out an order on this node; returns how many sockets or channels it concerned.
///
/// # Errors
/// It is a rule for which the access list has no place.
pub(crate) async fn carry_out(server: &Arc<Server>, order: Order) -> Result<u64, ListIsFull> {
    if let Order::Access(rule) = &order {
        server.access_list.set(rule.clone(), server.unix_ms(0) / 1000)?;
        blocks::save(server).await;
        if rule.is_lifted {
            return Ok(0);
        }
    }
    // The user may have no socket here, and a cached answer all the same.
    if let Order::Access(Rule { of, .. }) | Order::Disconnect { of, keep_grants: false, .. } =
        &order
        && let SocketRef::User(name) | SocketRef::Id(name) = of
    {
        server.now().void_grants(name);
    }
    let order = Arc::new(order);
    let shards = 0..server.mailboxes.len() as u16;
    let answers = shards.map(|shard| {
        let (counted, answered) = server.answer();
        server.post_to(shard, Mail::Order(Arc::clone(&order), counted));
        answered
    });
    // A shard that has ended has no sockets, and drops its mail.
    Ok(join_all(answers).await.into_iter().filter_map(Result::ok).sum())
}
