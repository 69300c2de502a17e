//! Passes messages from other nodes to the shards of this node.

use std::sync::Arc;

use simurgh_cluster::{
    Answer, CallNumber, DisconnectNumber, DisconnectOutcome, Except, HistoryEvent, HistoryItem,
    HistoryPosition, Item, LocalNode, NodeId, Shards, StoreError, StoredAt,
};
use simurgh_core::{Broadcast, ChannelId, FromEngine, Mail, Node, Posted, PresenceMail};
use simurgh_presence::{FromPeers, Owner};
use simurgh_proto::message::{Payload, events};
use simurgh_shard::server::Server;

use super::served::{Serve, Served};

pub(super) struct Shard {
    pub(super) server: Arc<Server>,
    pub(super) serve: Serve,
    /// Broadcasts that a congested shard has not taken.
    pub(super) dropped: u64,
    /// Broadcasts to be kept that only local members have received, because there was no link.
    pub(super) local_only: u64,
    /// Results of disconnects that this node has requested.
    pub(super) outcomes: Vec<(DisconnectNumber, DisconnectOutcome)>,
    pub(super) served: Served,
    pub(super) answers: Vec<(CallNumber, Option<Answer>)>,
}

impl LocalNode for Shard {
    fn broadcast(&mut self, topic: &str, item: &Item<'_>, shards: Shards<'_>) {
        let payload = item.payload.to_payload().into_owned();
        let broadcast = Arc::new(Broadcast::new(topic, item.event, payload));
        let bytes_max = self.server.limits.mailbox_bytes_max.saturating_mul(4);
        for shard in shards.map(usize::from) {
            if self.server.charged(shard) > bytes_max {
                self.dropped += 1;
                continue;
            }
            self.server.post_charged(shard, Posted::new(Arc::clone(&broadcast), None));
        }
    }

    fn disconnect(&mut self, socket_id: &str) {
        let disconnect = Broadcast::new(socket_id, events::DISCONNECT, Payload::EMPTY_OBJECT);
        self.server.broadcast_here(Arc::new(disconnect));
    }

    fn presence(&mut self, topic: &str, what: FromPeers) {
        self.server.post_home(topic, PresenceMail::Peers(what), None);
    }

    fn gone(&mut self, node: NodeId) {
        self.served.gone(node);
        for shard in 0..self.server.shards() {
            self.server.post(shard, Mail::NodeGone(Owner(node.0)));
        }
    }

    fn disconnected(&mut self, number: DisconnectNumber, outcome: DisconnectOutcome) {
        self.outcomes.push((number, outcome));
    }

    fn called(&mut self, by: NodeId, number: u64, service: u16, body: Vec<u8>) {
        self.served.begin(&self.server, &self.serve, (by, number), service, body);
    }

    fn hung_up(&mut self, by: NodeId, number: u64) {
        self.served.end(by, number);
    }

    fn answered(&mut self, number: CallNumber, answer: Option<Answer>) {
        self.answers.push((number, answer));
    }

    fn history(&mut self, topic: &str, what: HistoryEvent<'_>) {
        self.server.post_kept(topic, from_engine(topic, what));
    }

    fn stored(&mut self, _: &str, number: u64, outcome: Result<StoredAt, StoreError>) {
        let outcome = match outcome {
            Ok(at) => Ok(at),
            Err(StoreError::Unconfirmed) => Err(simurgh_core::NotKept::Unconfirmed),
            Err(StoreError::Refused(why)) => Err(simurgh_core::NotKept::Refused(why)),
            Err(StoreError::Full) => Err(simurgh_core::NotKept::Full),
        };
        self.server.post_stored(number, outcome);
    }
}

fn from_engine(topic: &str, what: HistoryEvent<'_>) -> FromEngine {
    match what {
        HistoryEvent::Begun { epoch, floor, purged, head, messages } => {
            let messages = messages.iter().map(|it| kept_item(topic, it)).collect();
            FromEngine::Begun { epoch, floor, purged, head, messages }
        }
        HistoryEvent::Next(item) => FromEngine::Next(kept_item(topic, &item)),
        HistoryEvent::Gap { through } => FromEngine::Gap { through },
        HistoryEvent::Purged(HistoryPosition { seq, index }) => FromEngine::Purged { seq, index },
        HistoryEvent::Unknown => FromEngine::Unknown,
        HistoryEvent::Unavailable => FromEngine::Unavailable,
        HistoryEvent::Known => FromEngine::Known,
        HistoryEvent::Ended => FromEngine::Ended,
    }
}

fn kept_item(topic: &str, kept: &HistoryItem<'_>) -> simurgh_core::KeptItem {
    let HistoryItem { seq, index, at_ms, mine, item } = *kept;
    let payload = item.payload.to_payload().into_owned();
    let mut broadcast = Broadcast::new(topic, item.event, payload);
    if let (Some(_), Some(Except { shard, membership, generation })) = (mine, item.except) {
        broadcast = broadcast.but_for(ChannelId { shard, membership, generation });
    }
    let sender = item.exclusion.unwrap_or(0);
    simurgh_core::KeptItem { seq, index, at_ms, mine, sender, broadcast }
}
