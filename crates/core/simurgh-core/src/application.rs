//! Running the application's code, each callback under `catch_unwind`. A callback changes nothing
//! of the core: it fills a list of effects, which the caller gets whether the callback returned or
//! panicked.

use crate::seeded_state::HashMap;
use simurgh_data::prelude::*;

use simurgh_channel::metrics::ShardMetrics;
use simurgh_channel::{
    Callback, ChannelId, Effect, LinkedWork, NO_MEMBERSHIP, Node, NodeHandle, OnShard, Prepared,
    Publisher, Reason, ShardChannel, ShardContext, SocketState, ToChannel,
};
use simurgh_history::Resume;
use simurgh_proto::message::Ref;

use crate::socket::Speaker;

/// The most lists of effects that are kept for the next callbacks; and the most effects of each.
const SPARE_MAX: usize = 8;
const SPARE_EFFECTS_MAX: usize = 256;

pub(crate) struct Application<N> {
    node: Arc<N>,
    node_handle: Arc<dyn NodeHandle>,
    metrics: Arc<ShardMetrics>,
    shard: u16,
    /// Lists of effects, kept so that callbacks need not allocate them.
    spare: Vec<Vec<Effect>>,
    /// Work that ends with its channel, by membership. `None` until there is some.
    linked: Option<Box<Linked>>,
}

/// Clients do not choose memberships, so they cannot make them collide.
type Linked = HashMap<u32, Vec<Box<dyn LinkedWork>>>;

pub(crate) struct Subject<'a> {
    pub(crate) socket: Option<&'a SocketState>,
    pub(crate) topic: &'a str,
    pub(crate) channel: ChannelId,
    pub(crate) message: Option<Ref<'a>>,
    pub(crate) prepared: Option<Prepared>,
    /// What the client of a join has received, if it reports that and the topic has a history.
    pub(crate) resume: Option<&'a Resume>,
}

impl<N: Node> Application<N> {
    pub(crate) fn new(node: Arc<N>, metrics: Arc<ShardMetrics>, shard: u16) -> Self {
        let node_handle = Arc::clone(&node) as Arc<dyn NodeHandle>;
        Self { node, node_handle, metrics, shard, spare: Vec::new(), linked: None }
    }

    pub(crate) fn reload(&mut self, node: &Arc<N>) {
        self.node_handle = Arc::clone(node) as Arc<dyn NodeHandle>;
        self.node = Arc::clone(node);
    }

    /// Not a channel of this shard: a join function runs before there is one.
    pub(crate) fn nobody(&self) -> ChannelId {
        ChannelId { shard: self.shard, membership: NO_MEMBERSHIP, generation: 0 }
    }

    /// Runs application code with a context. Returns `None` if it panicked, and the effects made
    /// until then.
    #[inline]
    pub(crate) fn run<R>(
        &mut self,
        about: Subject<'_>,
        callback: Callback,
        f: impl FnOnce(&mut ShardContext<'_>) -> R,
    ) -> (Option<R>, Vec<Effect>) {
        let Subject { socket, topic, channel, message, prepared, resume } = about;
        let mut effects = self.spare.pop().unwrap_or_default();
        let shard = usize::from(self.shard);
        let mut ctx = ShardContext::new(OnShard {
            effects: &mut effects,
            node: &self.node_handle,
            metrics: &self.metrics,
            socket,
            topic,
            channel,
            message,
            prepared,
            resume,
        });
        self.node.enter_callback(shard, callback);
        let result = N::guarded(|| f(&mut ctx));
        let took = self.node.leave_callback(shard);
        if took > self.node.config().callback_warning {
            self.metrics.slow_callbacks.add(1);
            tracing::warn!(
                shard,
                topic,
                callback = callback.name(),
                took_ms = took.as_millis() as u64,
                "a callback blocked its shard: use Context::spawn or Join::later for long work"
            );
        }
        if result.is_none() {
            self.metrics.errors_callback_panic.add(1);
            tracing::error!(shard, topic, callback = callback.name(), "callback panicked");
        }
        (result, effects)
    }

    /// Lets a channel clean up and drops it, each under its own guard. Returns its effects.
    pub(crate) fn terminate(
        &mut self,
        socket: Option<&SocketState>,
        speaker: &Speaker,
        channel: Option<Box<dyn ShardChannel>>,
        reason: Reason,
    ) -> Vec<Effect> {
        self.unlink(speaker.id.membership);
        let Some(mut channel) = channel else { return Vec::new() };
        let topic = &*speaker.topic;
        let (channel_id, message, prepared) = (speaker.id, None, None);
        let about = Subject { socket, topic, channel: channel_id, message, prepared, resume: None };
        let (_, effects) =
            self.run(about, Callback::Terminate, |ctx| channel.terminate(ctx, &reason));
        self.drop_guarded(channel);
        effects
    }

    pub(crate) fn link(&mut self, membership: u32, work: Box<dyn LinkedWork>) {
        let all = self.linked.get_or_insert_default().entry(membership).or_default();
        // Ended work is dropped as the list grows, so the list stays within twice the running work.
        if all.len() == all.capacity() {
            all.retain(|work| !work.is_finished());
        }
        all.push(work);
    }

    fn unlink(&mut self, membership: u32) {
        let works = self.linked.as_mut().and_then(|linked| linked.remove(&membership));
        if let Some(works) = works {
            self.drop_guarded(works);
        }
    }

    /// Asks a channel to release what it can. Returns `false` if it panicked.
    pub(crate) fn hibernate(&self, channel: &mut dyn ShardChannel) -> bool {
        let shard = usize::from(self.shard);
        self.node.enter_callback(shard, Callback::Hibernate);
        let is_well = self.ask(|| channel.hibernate()).is_some();
        self.node.leave_callback(shard);
        is_well
    }

    /// Calls a function without effects; `None` if it panicked.
    pub(crate) fn ask<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        ask::<N, R>(&self.metrics, f)
    }

    pub(crate) fn drop_guarded<T>(&self, value: T) {
        self.ask(|| drop(value));
    }

    /// Handles what was sent to a channel that has ended, or to one whose join is not decided.
    pub(crate) fn drop_sent(&self, channel: ChannelId, what: ToChannel) {
        if channel.membership == NO_MEMBERSHIP {
            self.metrics.errors_before_join.add(1);
            tracing::warn!(
                ?what,
                "dropped a message to a handle of a join function, because its channel does not \
                 exist yet: create the handle in after_join"
            );
        }
        match what {
            // An asynchronous handler may have sent something whose drop takes long.
            ToChannel::Message(message) => self.node.spawn(Box::pin(async move { drop(message) })),
            ToChannel::Publish(publications) => self.node.publish_late(publications),
            what => self.drop_guarded(what),
        }
    }

    /// Keeps an empty list for the next callbacks, unless it grew unusually large.
    pub(crate) fn keep(&mut self, effects: Vec<Effect>) {
        debug_assert!(effects.is_empty(), "it was carried out");
        if self.spare.len() < SPARE_MAX && effects.capacity() <= SPARE_EFFECTS_MAX {
            self.spare.push(effects);
        }
    }
}

/// Calls a function of the application that has no effects. Returns `None` if it panicked, which is
/// counted.
pub(crate) fn ask<N: Node, R>(metrics: &ShardMetrics, f: impl FnOnce() -> R) -> Option<R> {
    let answer = N::guarded(f);
    if answer.is_none() {
        metrics.errors_callback_panic.add(1);
    }
    answer
}

#[cfg(test)]
mod tests;
