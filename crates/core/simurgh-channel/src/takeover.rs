//! Two processes on one machine while the later one takes over from the earlier one.

use crate::broadcast::Broadcast;
use crate::cluster::Cluster;
use crate::history::KeptAt;
use crate::history::engine::NotKept;
use simurgh_data::prelude::*;

/// The other process. The earlier one sends it broadcasts to keep as to a broker
/// ([`ToCluster::Store`](crate::ToCluster::Store), [`Forget`](crate::ToCluster::Forget)), and gets
/// all that are stored from then on. Both send each other broadcasts without a history.
pub trait OtherProcess: Cluster {
    /// The later process has kept a broadcast; for this request of the earlier one, if it was one.
    fn kept(&self, broadcast: &Arc<Broadcast>, number: Option<u64>);

    /// The later process answers a request without a new broadcast.
    fn answer(&self, number: u64, outcome: Result<KeptAt, NotKept>);
}
