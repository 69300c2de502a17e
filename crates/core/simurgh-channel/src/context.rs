//! The interface of callbacks: a [`ShardContext`] collects effects, which the shard then carries
//! out.

use core::any::Any;
use core::future::Future;
use core::time::Duration;

use simurgh_history::{Position, Resume};
use simurgh_proto::message::{OwnedRef, Payload, Ref};
use simurgh_proto::topic::subtopic;
use simurgh_proto::ws::CloseCode;

use crate::broadcast::{Audience, Publication};
use crate::clock::Lifetime;
use crate::id::ChannelId;
use crate::limit::Limit;
use crate::metrics::ShardMetrics;
use crate::node_handle::{LinkedWork, NodeHandle};
use crate::outcome::{Reply, ReplyRef};
use crate::presence::PresenceCall;
use simurgh_data::prelude::*;

/// A value that an application keeps with a socket.
pub type Assigns = Arc<dyn Any + Send + Sync>;

/// The state that the application's connect gave a socket; may be empty.
#[derive(Default, derive_more::Debug)]
#[debug("SocketState {{ id: {id:?}, .. }}")]
pub struct SocketState {
    /// The topic on which a `disconnect` closes the socket.
    pub id: Option<Box<str>>,
    /// Read by channels with [`OnShard::assigns`].
    pub assigns: Option<Assigns>,
    /// How long it may stay open; `None`: forever.
    pub lifetime: Option<Lifetime>,
}

impl SocketState {
    /// Whether nothing is set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.id.is_none() && self.assigns.is_none() && self.lifetime.is_none()
    }
}

/// A long message as its channel's definition has prepared it on the thread that read it.
pub type Prepared = Box<dyn Any + Send>;

/// A callback's view of its socket and topic, and everything it may do.
///
/// Pushes, replies and broadcasts are sent in the order they are made (PROTOCOL §6), also those
/// made before a panic. Its scope `S` has what depends on the kind of the callback: on a shard
/// ([`ShardContext`]) or in an `async fn`.
#[derive(derive_more::Debug, derive_more::Deref, derive_more::DerefMut)]
#[debug("Context {{ topic: {:?}, .. }}", _0.topic())]
pub struct Context<S: Scope>(pub(crate) S);

/// The context of a callback that runs on the shard.
pub type ShardContext<'a> = Context<OnShard<'a>>;

/// The part of a [`Context`] that depends on the kind of the callback.
#[doc(hidden)]
pub trait Scope {
    /// Collects the effects.
    type Effects: Effects;
    fn node(&self) -> &Arc<dyn NodeHandle>;
    fn topic(&self) -> &str;
    /// The node, the topic and the effects.
    fn parts(&mut self) -> (&dyn NodeHandle, &str, &mut Self::Effects);
}

/// Collects what callbacks do.
#[doc(hidden)]
pub trait Effects {
    /// Adds one effect.
    fn add(&mut self, effect: Effect);
}

impl Effects for Vec<Effect> {
    fn add(&mut self, effect: Effect) {
        self.push(effect);
    }
}

/// The scope of a callback that runs on the shard.
#[derive(derive_more::Debug)]
#[debug("OnShard {{ topic: {topic:?}, .. }}")]
pub struct OnShard<'a> {
    #[doc(hidden)]
    pub effects: &'a mut Vec<Effect>,
    #[doc(hidden)]
    pub node: &'a Arc<dyn NodeHandle>,
    #[doc(hidden)]
    pub metrics: &'a ShardMetrics,
    #[doc(hidden)]
    pub socket: Option<&'a SocketState>,
    #[doc(hidden)]
    pub topic: &'a str,
    #[doc(hidden)]
    pub channel: ChannelId,
    #[doc(hidden)]
    pub message: Option<Ref<'a>>,
    // The prepared form of a long message.
    #[doc(hidden)]
    pub prepared: Option<Prepared>,
    // The joining client's progress, by its own account.
    #[doc(hidden)]
    pub resume: Option<&'a Resume>,
}

impl Scope for OnShard<'_> {
    type Effects = Vec<Effect>;

    fn node(&self) -> &Arc<dyn NodeHandle> {
        self.node
    }

    fn topic(&self) -> &str {
        self.topic
    }

    fn parts(&mut self) -> (&dyn NodeHandle, &str, &mut Vec<Effect>) {
        (&**self.node, self.topic, self.effects)
    }
}

/// One action of a callback, carried out when it has returned.
#[derive(Debug, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Effect {
    /// An event for this member alone.
    Push(Box<str>, Payload<'static>),
    /// An event for the members of this topic, or of another.
    Broadcast(Option<Box<str>>, Box<str>, Payload<'static>, Audience),
    /// The same, for the members of any topic.
    #[strum(serialize = "broadcast")]
    Publish(Publication),
    /// The channel subscribes to a further topic.
    Subscribe(Box<str>),
    /// The channel unsubscribes from it.
    Unsubscribe(Box<str>),
    /// The event that an intercepted broadcast became for this member, if any, with the broadcast's
    /// position.
    #[strum(serialize = "push")]
    #[doc(hidden)]
    At(Position, Option<(Box<str>, Payload<'static>)>),
    /// The answer to a message.
    Reply(ReplyRef, Reply),
    /// A value is kept with the socket.
    Assign(Assigns),
    /// A change of its presence.
    Presence(PresenceCall),
    /// Work that ends with the channel.
    #[strum(serialize = "spawn_linked")]
    Link(Box<dyn LinkedWork>),
    /// No more messages of the client are wanted until [`Effect::Proceed`].
    Hold,
    /// More messages of the client are wanted.
    #[strum(serialize = "hold")]
    Proceed,
    /// How long the socket may stay open from now on.
    #[strum(serialize = "expire_in")]
    Expire(Option<Lifetime>),
    /// The socket closes.
    #[strum(serialize = "close_socket")]
    Close(CloseCode),
    /// The socket closes because it exceeds a limit.
    #[strum(serialize = "close_socket")]
    Exceed(Limit),
}

/// An interceptor's effects for a broadcast at a position, for a member that receives positions:
/// the last event it pushes carries it, so a client that has the position has all of the broadcast.
pub fn at_position(mut effects: Vec<Effect>, position: Position) -> Vec<Effect> {
    let last = effects.iter().rposition(|it| matches!(it, Effect::Push(..)));
    let at = last.unwrap_or(effects.len());
    let push = match last.map(|at| effects.remove(at)) {
        Some(Effect::Push(event, payload)) => Some((event, payload)),
        _ => None,
    };
    effects.insert(at, Effect::At(position, push));
    effects
}

impl Effect {
    /// Whether it is carried out after the end of its channel.
    pub fn outlives(&self) -> bool {
        matches!(self, Self::Broadcast(..) | Self::Publish(_))
    }

    /// The name of the method that made it, for the log.
    pub fn name(&self) -> &'static str {
        self.into()
    }
}

impl<S: Scope> Context<S> {
    /// A context of this scope.
    #[doc(hidden)]
    pub fn new(scope: S) -> Self {
        Self(scope)
    }

    /// Pushes an event to this member alone.
    pub fn push(&mut self, event: &str, payload: impl Into<Payload<'static>>) {
        self.add(Effect::Push(event.into(), payload.into()));
    }

    /// Broadcasts to all members of this topic, this one included.
    pub fn broadcast(&mut self, event: &str, payload: impl Into<Payload<'static>>) {
        self.publish(None, event, payload.into(), Audience::All);
    }

    /// Broadcasts to all members of this topic except this one.
    pub fn broadcast_from(&mut self, event: &str, payload: impl Into<Payload<'static>>) {
        self.publish(None, event, payload.into(), Audience::Others);
    }

    /// Broadcasts to all members of another topic.
    pub fn broadcast_to(&mut self, topic: &str, event: &str, payload: impl Into<Payload<'static>>) {
        self.publish(Some(topic.into()), event, payload.into(), Audience::All);
    }

    fn publish(
        &mut self,
        topic: Option<Box<str>>,
        event: &str,
        payload: Payload<'static>,
        audience: Audience,
    ) {
        self.add(Effect::Broadcast(topic, event.into(), payload, audience));
    }

    /// Subscribes this channel to a further topic: its broadcasts are passed to
    /// [`ShardChannel::handle_broadcast`](crate::ShardChannel::handle_broadcast).
    pub fn subscribe(&mut self, topic: &str) {
        self.add(Effect::Subscribe(topic.into()));
    }

    /// Ends what [`subscribe`](Self::subscribe) began.
    pub fn unsubscribe(&mut self, topic: &str) {
        self.add(Effect::Unsubscribe(topic.into()));
    }

    /// Closes every socket with this id, on every shard, with 1001 (PROTOCOL §7).
    pub fn disconnect(&mut self, socket_id: &str) {
        self.broadcast_to(
            socket_id,
            simurgh_proto::message::events::DISCONNECT,
            Payload::EMPTY_OBJECT,
        );
    }

    /// Closes this socket with a close code, 1012 for one that should reconnect elsewhere.
    pub fn close_socket(&mut self, code: CloseCode) {
        self.add(Effect::Close(code));
    }

    /// Runs work on tokio, away from the shard, to its end, even if the channel ends first; use
    /// [`handle`](OnShard::handle) to bring its result back.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.node().spawn(Box::pin(work));
    }

    /// Runs work on tokio that is dropped when the channel ends.
    pub fn spawn_linked(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        let work = self.0.node().spawn_linked(Box::pin(work));
        self.add(Effect::Link(work));
    }

    /// How many members this topic has on all shards; `None` if no user socket counts them
    /// ([`UserSocket::count_members`](crate::UserSocket::count_members)).
    pub fn member_count(&self) -> Option<u32> {
        self.0.node().member_count(self.0.topic())
    }

    fn add(&mut self, effect: Effect) {
        self.0.parts().2.add(effect);
    }
}

impl OnShard<'_> {
    /// The topic of this channel.
    pub fn topic(&self) -> &str {
        self.topic
    }

    /// The part of the topic behind the first colon: `lobby` of `rooms:lobby`, or the whole topic.
    pub fn subtopic(&self) -> &str {
        subtopic(self.topic)
    }

    /// The id the socket was given by its connect function.
    pub fn socket_id(&self) -> Option<&str> {
        self.socket.and_then(|socket| socket.id.as_deref())
    }

    /// The client's progress by the param `simurgh` of its join (docs/HISTORY.md). `None` without
    /// that param, if the topic has no history, and in all callbacks except the join function.
    pub fn resume(&self) -> Option<&Resume> {
        self.resume
    }

    /// The value that the connect function, or a channel since, has assigned to the socket, if it
    /// is of this type.
    pub fn assigns<T: Any>(&self) -> Option<&T> {
        self.assigned()?.downcast_ref()
    }

    /// Keeps a value with the socket, in place of the previous one: all its channels read it with
    /// [`assigns`](Self::assigns).
    pub fn assign(&mut self, value: impl Any + Send + Sync) {
        self.effects.push(Effect::Assign(Arc::new(value)));
    }

    /// Has this socket closed with 3000 after so much time, in place of an earlier limit; `None`:
    /// never. The close may be late by up to an eighth of the server's shortest time limit
    /// (PROTOCOL §7.2).
    pub fn expire_in(&mut self, time: Option<Duration>) {
        self.effects.push(Effect::Expire(time.map(Lifetime::from)));
    }

    /// Names the message that is being handled, to answer it later with
    /// [`ChannelHandle::reply`](crate::ChannelHandle::reply). `None` in callbacks that are not
    /// about a message of the client.
    pub fn reply_ref(&self) -> Option<ReplyRef> {
        self.message.as_ref().map(|message| ReplyRef(OwnedRef::from(message)))
    }

    /// The value that is kept with the socket.
    #[doc(hidden)]
    pub fn assigned(&self) -> Option<&Assigns> {
        let assigned = self.effects.iter().rev().find_map(|effect| match effect {
            Effect::Assign(value) => Some(value),
            _ => None,
        });
        assigned.or_else(|| self.socket?.assigns.as_ref())
    }

    /// Adds effects that were recorded elsewhere.
    #[doc(hidden)]
    pub fn carry_out(&mut self, effects: impl IntoIterator<Item = Effect>) {
        self.effects.extend(effects);
    }

    /// The prepared form of the message, if it is of this type.
    #[doc(hidden)]
    pub fn take_prepared<T: Any>(&mut self) -> Option<T> {
        Some(*self.prepared.take()?.downcast().ok()?)
    }

    /// Counts a payload that its channel does not take.
    #[doc(hidden)]
    pub fn count_wrong_payload(&self) {
        self.metrics.errors_wrong_payload.add(1);
    }

    /// Counts an action that a socket's token does not allow.
    #[doc(hidden)]
    pub fn count_unauthorized(&self) {
        self.metrics.errors_unauthorized.add(1);
    }
}
