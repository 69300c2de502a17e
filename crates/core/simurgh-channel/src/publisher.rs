//! Where a broadcast goes, whoever publishes it, and whether it may.

use simurgh_proto::message::Payload;
use simurgh_proto::message::events::{self, is_reserved};

use crate::broadcast::{
    Audience, Broadcast, BroadcastError, EVENT_BYTES_MAX, Publication, TOPIC_BYTES_MAX,
};
use crate::cluster::ToCluster;
use crate::flow::Posted;
use crate::history::engine::{self, FromEngine};
use crate::history::{HistoryMail, KeepRequest, KeptCallback, KeptFor};
use crate::id::ChannelId;
use crate::mail::Mail;
use crate::node::Node;
use crate::node_handle::ToChannel;
use simurgh_data::prelude::*;

/// What publishers need of a node.
pub trait Publisher: Node {
    /// Whether a topic has a history: then its home numbers broadcasts and passes them on, whoever
    /// publishes. Others go to the cluster and to all shards of this node.
    fn keeps(&self, topic: &str) -> bool {
        self.has_history() && self.user_sockets().any(|it| it.keeps(topic))
    }

    /// Sends a broadcast of this node to the other nodes.
    fn send_to_cluster(&self, broadcast: &Arc<Broadcast>) {
        self.void_grants_by(broadcast);
        if let Some(cluster) = self.cluster() {
            cluster.send(ToCluster::Broadcast(Arc::clone(broadcast)));
        }
        if let Some(other) = self.other_process() {
            other.send(ToCluster::Broadcast(Arc::clone(broadcast)));
        }
    }

    /// Whether publishers have to wait.
    fn is_congested(&self) -> bool {
        self.any_above(self.config().mailbox_bytes_max)
    }

    /// Whether publishers have to wait even on topics without broadcasts in flight.
    fn is_jammed(&self) -> bool {
        self.any_above(self.config().mailbox_bytes_max.saturating_mul(4))
    }

    /// Whether held publishers may continue: at half the limit, so that they are not held again at
    /// once.
    fn is_relieved(&self) -> bool {
        !self.any_above(self.config().mailbox_bytes_max / 2)
    }

    /// Whether more bytes than this are in flight to some shard.
    fn any_above(&self, bytes: usize) -> bool {
        (0..self.shards()).any(|shard| self.charged(shard) > bytes)
    }

    /// A broadcast from outside of channels, by any thread: to all shards, or to none when one of
    /// them has too much in flight. Several threads at once may exceed the limit by a little.
    ///
    /// # Errors
    /// As [`check`](Self::check), or too much is in flight.
    fn broadcast(&self, broadcast: Broadcast) -> Result<(), BroadcastError> {
        if self.keeps(broadcast.topic()) {
            return self.keep(broadcast, None, None);
        }
        self.may_broadcast(&broadcast)?;
        let broadcast = Arc::new(broadcast);
        self.send_to_cluster(&broadcast);
        self.broadcast_here(broadcast);
        Ok(())
    }

    /// The same for some of a channel that has ended since they were made.
    fn publish_late(&self, publications: Vec<Publication>) {
        for Publication { broadcast, id } in publications {
            let published = match id {
                Some(_) if self.keeps(broadcast.topic()) => self.keep(broadcast, id, None),
                _ => self.broadcast(broadcast),
            };
            if let Err(error) = published {
                tracing::warn!(%error, "dropped a broadcast of a channel that has ended");
            }
        }
    }

    /// A broadcast from outside of channels, by any thread, for this node alone.
    ///
    /// # Errors
    /// As [`check`](Self::check), or too much is in flight.
    fn broadcast_local(&self, broadcast: Broadcast) -> Result<(), BroadcastError> {
        self.may_broadcast(&broadcast)?;
        self.broadcast_here(Arc::new(broadcast));
        Ok(())
    }

    /// A broadcast that closes sockets also voids the cached answers about them.
    #[inline]
    fn void_grants_by(&self, broadcast: &Broadcast) {
        if broadcast.event() == events::DISCONNECT {
            self.void_grants(broadcast.topic());
        }
    }

    /// A broadcast of any origin for all shards of this node.
    fn broadcast_here(&self, broadcast: Arc<Broadcast>) {
        self.void_grants_by(&broadcast);
        for shard in 0..self.shards() {
            let posted = Posted::new(Arc::clone(&broadcast), None);
            self.post_charged(shard, posted);
        }
    }

    /// Whether a payload of this size may be broadcast with these names: the rule for channels,
    /// which pass on what was checked when it came in.
    ///
    /// # Errors
    /// The event is reserved, a name is too long, or the payload is too large for readers here or
    /// for the other nodes.
    fn fits(&self, topic: &str, event: &str, bytes: usize) -> Result<(), BroadcastError> {
        if is_reserved(event) {
            return Err(BroadcastError::Reserved);
        }
        if event.len() > EVENT_BYTES_MAX {
            return Err(BroadcastError::EventTooLong(event.len()));
        }
        if topic.len() > TOPIC_BYTES_MAX {
            return Err(BroadcastError::TopicTooLong(topic.len()));
        }
        let bytes_max = self.config().broadcast_bytes_max();
        if bytes > bytes_max {
            return Err(BroadcastError::TooLarge { bytes, bytes_max });
        }
        let Some(cluster) = self.cluster() else { return Ok(()) };
        let bytes_max = cluster.broadcast_bytes_max().saturating_sub(topic.len() + event.len());
        match bytes > bytes_max {
            true => Err(BroadcastError::TooLargeForCluster { bytes, bytes_max }),
            false => Ok(()),
        }
    }

    /// A broadcast from outside of channels, by any thread, on a topic whose broadcasts are kept:
    /// one with an id is kept and delivered only once. `callback` receives where it is kept.
    ///
    /// # Errors
    /// As [`check`](Self::check), or too much is in flight.
    fn keep(
        &self,
        broadcast: Broadcast,
        id: Option<Box<str>>,
        callback: Option<KeptCallback>,
    ) -> Result<(), BroadcastError> {
        self.may_broadcast(&broadcast)?;
        let (shard, weight) = (self.home(broadcast.topic()), broadcast.weight());
        let kept_for = callback.map_or(KeptFor::Nobody, KeptFor::Caller);
        let keep = KeepRequest { broadcast, charge: None, sender: 0, client: 0, id, kept_for };
        self.post_weighed(shard, weight, Mail::History(HistoryMail::Keep(Box::new(keep))));
        Ok(())
    }

    /// An event of the broker for a topic whose broadcasts it keeps, for the topic's home, in the
    /// order of the cluster's thread. Publishers on other nodes cannot be paused from here, so
    /// when far too much is in flight to the home a broadcast is dropped, and members receive a
    /// gap.
    fn post_kept(&self, topic: &str, what: FromEngine) {
        let shard = self.home(topic);
        let bytes_max = self.config().mailbox_bytes_max.saturating_mul(4);
        let what = match what {
            FromEngine::Next(item) if item.mine.is_none() && self.charged(shard) > bytes_max => {
                FromEngine::Gap { through: item.seq }
            }
            what => what,
        };
        let bytes = engine::weight(&what) + topic.len();
        let mail = Mail::History(HistoryMail::Engine(topic.into(), what));
        self.post_weighed(shard, bytes, mail);
    }

    /// Implements [`NodeHandle::broadcast_by`](crate::NodeHandle::broadcast_by).
    ///
    /// # Errors
    /// As [`check`](Self::check), or too much is in flight.
    fn broadcast_for(
        &self,
        channel: ChannelId,
        event: &str,
        payload: Payload<'static>,
        audience: Audience,
    ) -> Result<(), BroadcastError> {
        // The topic is known when the broadcast arrives at its channel, and has to fit then, too.
        let topic_bytes = if self.cluster().is_some() { TOPIC_BYTES_MAX } else { 0 };
        self.fits("", event, payload.len() + topic_bytes)?;
        self.has_room()?;
        let what = ToChannel::Broadcast(event.into(), payload, audience);
        let (shard, bytes) = (usize::from(channel.shard), what.weight());
        self.post_weighed(shard, bytes, Mail::ToChannel(channel, what));
        Ok(())
    }

    /// Whether a broadcast from outside of channels is one that clients can receive: the rule for
    /// all entrances outside of shards (PROTOCOL §6.3).
    ///
    /// # Errors
    /// As [`fits`](Self::fits), or the payload is no JSON that a client may send. Members of plain
    /// sockets receive any text.
    fn check(&self, broadcast: &Broadcast) -> Result<(), BroadcastError> {
        let (topic, payload) = (broadcast.topic(), broadcast.payload());
        self.fits(topic, broadcast.event(), payload.len())?;
        if self.user_sockets().any(|user_socket| user_socket.is_plain_on(topic)) {
            return Ok(());
        }
        payload.validate().map_err(BroadcastError::Payload)
    }

    /// Whether a broadcast that may be refused is taken.
    fn may_broadcast(&self, broadcast: &Broadcast) -> Result<(), BroadcastError> {
        self.check(broadcast)?;
        self.has_room()
    }

    /// Whether there is room for one more broadcast.
    fn has_room(&self) -> Result<(), BroadcastError> {
        if self.is_congested() {
            return Err(BroadcastError::Congested);
        }
        Ok(())
    }
}

impl<N: Node> Publisher for N {}
