//! The channels of a shard: their callbacks, what follows from those, their ends, and how they
//! recover. Nothing here calls a session, a join or a timeout, which call this.

mod closing;
mod effects;
mod membership;
mod recovery;
mod refused;
mod sightings;
mod waiting;

use simurgh_channel::metrics::ShardMetrics;
use simurgh_channel::{Node, Rate, UserSocket};
use simurgh_data::Key;

pub(super) use self::effects::CurrentMessage;
use self::sightings::Sightings;
use crate::application::Application;
use crate::barrier::Barriers;
use crate::deadlines::Expiry;
use crate::fanout::{Fanout, Registry};
use crate::history::Histories;
use crate::meters::Meters;
use crate::presence::Presences;
use crate::registry::COUNTED;
use crate::socket::Socket;
use crate::sockets::Sockets;
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
    /// `None` if no hook wants notices.
    pub(super) sightings: Option<Box<Sightings>>,
    /// Boxed: unused by most shards, and rarely read.
    pub(super) expiry: Box<Expiry>,
    /// The socket whose channels are brought up to date before it is closed.
    closing: Option<Key>,
}

impl<N: Node> Channels<N> {
    pub(super) fn new(node: Arc<N>, shard: u16, metrics: Arc<ShardMetrics>, seed: u64) -> Self {
        let shared = || (Arc::clone(&node), Arc::clone(&metrics));
        let meters = meters(&*node, &metrics, seed);
        let (histories, presences) = (shared(), shared());
        let sink = node.sighting_sink();
        Self {
            registry: Registry::new(Arc::clone(&metrics), shard, seed),
            fanout: Fanout::new(Arc::clone(&node), Arc::clone(&metrics), shard, seed),
            application: Application::new(Arc::clone(&node), Arc::clone(&metrics), shard),
            presences: Box::new(Presences::new(presences.0, presences.1, shard, seed)),
            barriers: Box::default(),
            histories: Box::new(Histories::new(histories.0, histories.1, shard, seed)),
            meters,
            sightings: sink.map(|sink| Box::new(Sightings { sink, seen: Vec::new() })),
            expiry: Box::default(),
            closing: None,
            metrics,
            node,
        }
    }

    pub(super) fn reload(&mut self, out: &mut impl Sockets, node: &Arc<N>) {
        // Full buckets: those of one rate mean nothing for another.
        if rates(&*self.node).ne(rates(&**node)) || self.meters.is_none() {
            self.meters = meters(&**node, &self.metrics, self.histories.seed());
        }
        let counts_more = counts_more(&*self.node, &**node);
        self.node = Arc::clone(node);
        self.fanout.reload(node);
        self.application.reload(node);
        self.presences.reload(node);
        self.histories.reload(node);
        if counts_more {
            self.count_members(out);
        }
    }

    /// Counts members of user sockets that were not counted until now.
    fn count_members(&mut self, out: &impl Sockets) {
        for membership in 0..self.registry.end() {
            let Some(member) = self.registry.member(membership) else { continue };
            let user_socket = out.socket(member.conn).map(Socket::user_socket);
            let user_socket = user_socket.and_then(|index| self.node.user_socket(index));
            let is_new = member.is_joined() && !member.is(COUNTED);
            if is_new && user_socket.is_some_and(|user_socket| user_socket.count_members) {
                if let Some(topic) = self.registry.topic(member.topic) {
                    self.node.member_joined(&topic.name);
                }
                self.registry.mark(membership, COUNTED, true);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_limited(&self) -> bool {
        self.meters.is_some()
    }
}

/// Whether a user socket counts members that did not before.
fn counts_more<N: Node>(old: &N, new: &N) -> bool {
    let mut both = old.user_sockets().zip(new.user_sockets());
    both.any(|(old, new)| !old.count_members && new.count_members)
}

fn rates<N: Node>(node: &N) -> impl Iterator<Item = Rate> {
    node.user_sockets().flat_map(UserSocket::rates)
}

/// `None` if nothing is limited.
fn meters<N: Node>(node: &N, metrics: &Arc<ShardMetrics>, seed: u64) -> Option<Box<Meters>> {
    let is_limited = node.user_sockets().any(UserSocket::is_limited);
    is_limited.then(|| Box::new(Meters::new(Arc::clone(metrics), rates(node), seed)))
}
