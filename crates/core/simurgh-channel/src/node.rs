//! The node of a core, as its shards see it.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::AtomicU64;
use core::time::Duration;

use simurgh_data::Key;
use simurgh_history::StoredAt;
use simurgh_proto::message::Payload;
use simurgh_proto::message::events::is_reserved;

use crate::broadcast::{Broadcast, BroadcastError, EVENT_BYTES_MAX, TOPIC_BYTES_MAX};
use crate::channel::Join;
use crate::cluster::{Cluster, ToCluster};
use crate::config::Config;
use crate::flow::{Charge, Posted};
use crate::history::engine::{self, FromEngine, NotKept};
use crate::history::{HistoryMail, HistoryRequest, KeepRequest, KeptCallback, KeptFor};
use crate::id::ChannelId;
use crate::mail::Mail;
use crate::node_handle::{Audience, NodeHandle, ToChannel};
use crate::permits::FanoutPermits;
use crate::presence::{PresenceCallback, PresenceMail, home_shard};
use crate::user_socket::UserSocket;

/// Work that decides about a join.
pub type JoinDecision = Pin<Box<dyn Future<Output = Join> + Send>>;

/// Which of the application's functions a shard is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Callback {
    /// The decision about a connection.
    Connect = 1,
    /// The decision about a join.
    Join,
    /// [`ShardChannel::after_join`](crate::ShardChannel::after_join).
    AfterJoin,
    /// [`ShardChannel::handle_in`](crate::ShardChannel::handle_in).
    HandleIn,
    /// [`ShardHandleInfo::handle_info`](crate::ShardHandleInfo::handle_info).
    HandleInfo,
    /// [`ShardChannel::handle_out`](crate::ShardChannel::handle_out).
    HandleOut,
    /// [`ShardChannel::handle_broadcast`](crate::ShardChannel::handle_broadcast).
    HandleBroadcast,
    /// [`ShardChannel::terminate`](crate::ShardChannel::terminate).
    Terminate,
    /// [`ShardChannel::hibernate`](crate::ShardChannel::hibernate).
    Hibernate,
}

impl Callback {
    /// All of them, in the order of their numbers, which begin with 1.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Its name in the application's code.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The node that a core is a shard of: the mailboxes of the other shards, and what all shards
/// share. Bytes of broadcasts in flight are charged to the shard that they are sent to.
pub trait Node: NodeHandle + Sized + 'static {
    /// Limits and times.
    fn config(&self) -> &Config;

    /// A user socket by its place.
    fn user_socket(&self, index: u8) -> Option<&UserSocket>;

    /// All user sockets, in the order of their places.
    fn user_sockets(&self) -> impl Iterator<Item = &UserSocket> {
        (0..=u8::MAX).map_while(|index| self.user_socket(index))
    }

    /// A number that is different for each start of each node, by more than the number of shards.
    fn id(&self) -> u64;

    /// Whether some topics' broadcasts are kept.
    fn has_history(&self) -> bool;

    /// Bytes that each shard keeps of topics' broadcasts.
    fn history_bytes(&self) -> &[AtomicU64];

    /// Signs a text as this node, or another with its secret.
    fn sign(&self, text: &str) -> String;

    /// Whether this is the signature of the text, in constant time.
    fn is_signed(&self, text: &str, proof: &str) -> bool;

    /// Milliseconds since 1970 at a time of the shards' clock.
    fn unix_ms(&self, now_ns: u64) -> u64;

    /// The permits to fan out.
    fn permits(&self) -> &FanoutPermits;

    /// The other nodes; `None` if this is the only one.
    fn cluster(&self) -> Option<&dyn Cluster> {
        None
    }

    /// How many shards there are.
    fn shards(&self) -> usize;

    /// Posts to a shard; `false` if that has ended.
    fn post(&self, shard: usize, mail: Mail) -> bool;

    /// Charges bytes in flight to a shard.
    fn charge(&self, shard: usize, bytes: usize);

    /// Releases charged bytes.
    fn discharge(&self, shard: usize, bytes: usize);

    /// Bytes in flight to a shard; 0 for one that has ended, since those are never released.
    fn charged(&self, shard: usize) -> usize;

    /// Has a join decided on another thread: [`Mail::Joined`] is sent back, unless it takes far too
    /// long.
    fn decide(&self, shard: usize, key: Key, ticket: u32, work: JoinDecision);

    /// A shard enters code of the application.
    fn enter_callback(&self, shard: usize, callback: Callback);

    /// The shard has returned. Returns how long the callback took.
    fn leave_callback(&self, shard: usize) -> Duration;

    /// Runs code of the application; `None` if it panicked.
    fn guarded<R>(f: impl FnOnce() -> R) -> Option<R>;

    /// A topic has one more member, over all shards.
    fn member_joined(&self, topic: &str);

    /// A topic has one member less.
    fn member_left(&self, topic: &str);

    /// A socket has closed: another connection may take its place.
    fn release_connection(&self);

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
        if let Some(cluster) = self.cluster() {
            cluster.send(ToCluster::Broadcast(Arc::clone(&broadcast)));
        }
        self.broadcast_here(broadcast);
        Ok(())
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

    /// A broadcast of any origin for all shards of this node.
    fn broadcast_here(&self, broadcast: Arc<Broadcast>) {
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

    /// Whether the broadcasts of a topic are kept.
    fn keeps(&self, topic: &str) -> bool {
        self.has_history() && self.user_sockets().any(|it| it.keeps(topic))
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
        let (shard, weight) = (home_shard(broadcast.topic(), self.shards()), broadcast.weight());
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
        let shard = home_shard(topic, self.shards());
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

    /// The outcome of a store or a purge with this number.
    fn post_stored(&self, number: u64, outcome: Result<StoredAt, NotKept>) {
        let shard = engine::shard_of(number);
        if shard < self.shards() {
            self.post(shard, Mail::History(HistoryMail::Stored(number, outcome)));
        }
    }

    /// Requests something about the history of a topic, from any thread.
    fn request_history(&self, request: HistoryRequest) {
        let shard = match &request {
            HistoryRequest::Read(topic, ..) | HistoryRequest::Forget(topic, _) => {
                home_shard(topic, self.shards())
            }
            HistoryRequest::Topics(shard, ..) => usize::from(*shard),
        };
        self.post(shard, Mail::History(HistoryMail::Request(request)));
    }

    /// Implements [`NodeHandle::broadcast_by`].
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

    /// Posts to the shard that keeps a topic's presences, and charges the bytes to it; `charge`
    /// counts them in the flow of the member that caused them.
    fn post_home(&self, topic: &str, mail: PresenceMail, charge: Option<Arc<Charge>>) {
        let (shard, bytes) = (home_shard(topic, self.shards()), mail.weight() + topic.len());
        self.post_weighed(shard, bytes, Mail::Presence(topic.into(), mail, charge));
    }

    /// Implements [`NodeHandle::list_presences`].
    fn request_presences(&self, topic: &str, callback: PresenceCallback) {
        self.post_home(topic, PresenceMail::List(callback), None);
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

    /// Posts a broadcast to a shard and charges its bytes to it.
    fn post_charged(&self, shard: usize, posted: Posted) {
        let weight = posted.broadcast().weight();
        self.post_weighed(shard, weight, Mail::Broadcast(posted));
    }

    /// Posts to a shard and charges these bytes to it.
    fn post_weighed(&self, shard: usize, bytes: usize, mail: Mail) {
        self.charge(shard, bytes);
        if !self.post(shard, mail) {
            self.discharge(shard, bytes);
        }
    }
}
