//! What the shards of a node share: mailboxes, bytes under way, the door to the cluster's thread.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use simurgh_core::{
    Audience, BroadcastError, Callback, ChannelId, ChannelLimits, Cluster, Config, FanoutPermits,
    JoinDecision, Kind, LinkedWork, Mail, Node, NodeHandle, PresenceCallback, PresenceConfig,
    Route, ToChannel, UserSocket, Work, guarded,
};
use simurgh_proto::message::Payload;
use simurgh_proto::topic::Pattern;
use simurgh_reactor::Key;

use super::app;
use super::machine::Door;
use super::world::Shared;
use crate::stage::{Fault, locked};

/// What changes of a node.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) mailboxes: Vec<VecDeque<Mail>>,
    pub(crate) charged: Vec<usize>,
    pub(crate) ended: Vec<bool>,
    deciding: VecDeque<(usize, Key, u32, JoinDecision)>,
}

/// The node.
pub(crate) struct SimNode {
    pub(crate) shared: Arc<Shared>,
    pub(crate) door: Arc<Door>,
    id: u64,
    shards: usize,
    /// What its clock showed when the world's showed nothing.
    pub(crate) skew_ms: AtomicU64,
    user_sockets: [UserSocket; 1],
    history_bytes: Vec<AtomicU64>,
    permits: FanoutPermits,
    state: Mutex<State>,
}

impl SimNode {
    pub(crate) fn new(shared: &Arc<Shared>, door: Arc<Door>, id: u64, shards: usize) -> Self {
        let state = State {
            mailboxes: (0..shards).map(|_| VecDeque::new()).collect(),
            charged: vec![0; shards],
            ended: vec![false; shards],
            deciding: VecDeque::new(),
        };
        // All names that begin so; it cannot fail.
        let pattern = Pattern::parse("rooms:*").ok();
        let (join, limits) = (app::join(shared, &door), ChannelLimits::default());
        let history = shared.plan.kept.as_ref().map(|it| it.rule);
        let route = |pattern| Route { pattern, join, prepare: None, limits, history };
        Self {
            shared: Arc::clone(shared),
            door,
            id,
            shards,
            skew_ms: AtomicU64::new(0),
            history_bytes: (0..shards).map(|_| AtomicU64::new(0)).collect(),
            user_sockets: [UserSocket::new(Kind::Channels(
                pattern.map(route).into_iter().collect(),
            ))],
            permits: FanoutPermits::new(shards, 1),
            state: Mutex::new(state),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Takes the next mail out of a mailbox.
    pub(crate) fn take(&self, shard: usize) -> Option<Mail> {
        self.state().mailboxes.get_mut(shard)?.pop_front()
    }

    pub(crate) fn has_mail(&self, shard: usize) -> bool {
        self.state().mailboxes.get(shard).is_some_and(|it| !it.is_empty())
    }

    /// A shard has ended: nothing is put into its mailbox any more.
    pub(crate) fn end(&self, shard: usize) {
        let mut state = self.state();
        if let Some(ended) = state.ended.get_mut(shard) {
            *ended = true;
        }
        let mail = state.mailboxes.get_mut(shard).map(std::mem::take);
        drop(state);
        drop(mail);
    }

    /// Decides the joins that wait, as far as they can be.
    pub(crate) fn decides(&self) {
        let deciding = std::mem::take(&mut self.state().deciding);
        for (shard, key, ticket, mut work) in deciding {
            let mut cx = TaskContext::from_waker(Waker::noop());
            match guarded(|| work.as_mut().poll(&mut cx)) {
                Some(Poll::Pending) => self.decide(shard, key, ticket, work),
                Some(Poll::Ready(join)) => {
                    self.post(shard, Mail::Joined(key, ticket, Some(join)));
                }
                None => drop(self.post(shard, Mail::Joined(key, ticket, None))),
            }
        }
    }

    /// Whether joins wait to be decided.
    pub(crate) fn is_deciding(&self) -> bool {
        !self.state().deciding.is_empty()
    }
}

/// Work that does nothing.
struct Idle;

impl LinkedWork for Idle {
    fn is_finished(&self) -> bool {
        false
    }
}

impl NodeHandle for SimNode {
    fn send(&self, channel: ChannelId, what: ToChannel) {
        self.post(usize::from(channel.shard), Mail::ToChannel(channel, what));
    }

    fn broadcast_by(
        &self,
        channel: ChannelId,
        event: &str,
        payload: Payload<'static>,
        audience: Audience,
    ) -> Result<(), BroadcastError> {
        self.broadcast_for(channel, event, payload, audience)
    }

    fn spawn(&self, _work: Work) {}

    fn spawn_linked(&self, _work: Work) -> Box<dyn LinkedWork> {
        Box::new(Idle)
    }

    fn presence_config(&self) -> &PresenceConfig {
        &self.config().presence
    }

    fn list_presences(&self, topic: &str, answer: PresenceCallback) {
        self.ask_presences(topic, answer);
    }

    fn member_count(&self, _topic: &str) -> Option<u32> {
        None
    }
}

impl Node for SimNode {
    fn config(&self) -> &Config {
        &self.shared.stage.profile.config
    }

    fn user_socket(&self, index: u8) -> Option<&UserSocket> {
        self.user_sockets.get(usize::from(index))
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn has_history(&self) -> bool {
        self.shared.plan.kept.is_some()
    }

    fn sign(&self, text: &str) -> String {
        text.to_owned()
    }

    fn is_signed(&self, text: &str, proof: &str) -> bool {
        text == proof
    }

    fn history_bytes(&self) -> &[AtomicU64] {
        &self.history_bytes
    }

    fn unix_ms(&self, now_ns: u64) -> u64 {
        now_ns / 1_000_000 + self.skew_ms.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn permits(&self) -> &FanoutPermits {
        &self.permits
    }

    fn cluster(&self) -> Option<&dyn Cluster> {
        Some(&*self.door)
    }

    fn shards(&self) -> usize {
        self.shards
    }

    fn post(&self, shard: usize, mail: Mail) -> bool {
        let stage = &self.shared.stage;
        let is_broadcast = matches!(mail, Mail::Broadcast(_));
        if is_broadcast && stage.is_faulty(Fault::LoseMail) {
            return true;
        }
        let mut state = self.state();
        if state.ended.get(shard).copied().unwrap_or(true) {
            return false;
        }
        let Some(mailbox) = state.mailboxes.get_mut(shard) else { return false };
        if let Mail::Broadcast(posted) = &mail
            && stage.is_faulty(Fault::DoubleMail)
        {
            let again = simurgh_core::Posted::new(Arc::clone(posted.broadcast()), None);
            mailbox.push_back(Mail::Broadcast(again));
        }
        mailbox.push_back(mail);
        true
    }

    fn charge(&self, shard: usize, bytes: usize) {
        if let Some(charged) = self.state().charged.get_mut(shard) {
            *charged += bytes;
        }
    }

    fn discharge(&self, shard: usize, bytes: usize) {
        let mut state = self.state();
        let Some(charged) = state.charged.get_mut(shard) else { return };
        let left = charged.checked_sub(bytes);
        *charged = left.unwrap_or(0);
        drop(state);
        if left.is_none() {
            let text = format!("shard {shard} gives back {bytes} bytes that are not charged");
            self.shared.account().fail("bytes", text);
        }
    }

    fn charged(&self, shard: usize) -> usize {
        let state = self.state();
        match state.ended.get(shard) {
            Some(false) => state.charged.get(shard).copied().unwrap_or(0),
            _ => 0,
        }
    }

    fn decide(&self, shard: usize, key: Key, ticket: u32, work: JoinDecision) {
        self.state().deciding.push_back((shard, key, ticket, work));
    }

    fn enter_callback(&self, _shard: usize, _callback: Callback) {}

    fn leave_callback(&self, _shard: usize) -> Duration {
        Duration::ZERO
    }

    fn member_joined(&self, _topic: &str) {}

    fn member_left(&self, _topic: &str) {}

    fn release_connection(&self) {}
}
