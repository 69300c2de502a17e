//! The channels of a shard: their callbacks, what follows from those, their ends, and how they
//! recover. Nothing here calls a session, a join or a timeout, which call this.

mod closing;
mod effects;
mod membership;
mod recovery;
mod refused;
mod waiting;

use simurgh_channel::metrics::ShardMetrics;
use simurgh_channel::{Node, UserSocket};
use simurgh_data::Key;

pub(super) use self::effects::CurrentMessage;
use crate::application::Application;
use crate::barrier::Barriers;
use crate::deadlines::Expiry;
use crate::fanout::{Fanout, Registry};
use crate::history::Histories;
use crate::meters::Meters;
use crate::presence::Presences;
use simurgh_data::prelude::*;

/// The components of a shard, between which only the core routes.
pub(crate) struct Channels<N: Node> {
    pub(super) node: Arc<N>,
    pub(super) metrics: Arc<ShardMetrics>,
    pub(super) registry: Registry,
    pub(super) fanout: Fanout<N>,
    pub(super) application: Application<N>,
    pub(super) presences: Box<Presences<N>>,
    pub(super) barriers: Box<Barriers>,
    pub(super) histories: Box<Histories<N>>,
    pub(super) meters: Option<Box<Meters>>,
    /// Boxed: unused by most shards, and rarely read.
    pub(super) expiry: Box<Expiry>,
    /// The socket whose channels are brought up to date before it is closed.
    closing: Option<Key>,
}

impl<N: Node> Channels<N> {
    pub(super) fn new(node: Arc<N>, shard: u16, metrics: Arc<ShardMetrics>, seed: u64) -> Self {
        let shared = || (Arc::clone(&node), Arc::clone(&metrics));
        let is_limited = node.user_sockets().any(UserSocket::is_limited);
        let rates = node.user_sockets().flat_map(UserSocket::rates);
        let meters = is_limited.then(|| Box::new(Meters::new(Arc::clone(&metrics), rates, seed)));
        let (histories, presences) = (shared(), shared());
        Self {
            registry: Registry::new(Arc::clone(&metrics), shard, seed),
            fanout: Fanout::new(Arc::clone(&node), Arc::clone(&metrics), shard, seed),
            application: Application::new(Arc::clone(&node), Arc::clone(&metrics), shard),
            presences: Box::new(Presences::new(presences.0, presences.1, shard, seed)),
            barriers: Box::default(),
            histories: Box::new(Histories::new(histories.0, histories.1, shard, seed)),
            meters,
            expiry: Box::default(),
            closing: None,
            metrics,
            node,
        }
    }

    #[cfg(test)]
    pub(crate) fn is_limited(&self) -> bool {
        self.meters.is_some()
    }
}
