//! A node of cores: mailboxes, bytes in transit, and joins that wait for a decision.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use simurgh_core::{
    Audience, BroadcastError, Callback, CallbackWatch, ChannelId, ChannelLimits, Cluster, Config,
    FanoutPermits, HistoryRule, JoinDecision, JoinFn, Kind, LinkedWork, Mail, Mailboxes, Node,
    NodeHandle, Posted, PresenceCallback, PresenceConfig, Publisher, Route, Signer, ToChannel,
    UserSocket, WallClock, Work, guarded,
};
use simurgh_data::Key;
use simurgh_proto::message::Payload;
use simurgh_proto::topic::Pattern;

use crate::kit::fault::Fault;
use crate::kit::setup::{Ledger, Shared, locked};

/// The mutable state of a node.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) mailboxes: Vec<VecDeque<Mail>>,
    /// Bytes in transit, by shard.
    pub(crate) charged: Vec<usize>,
    ended: Vec<bool>,
    /// Joins that wait for a decision: shard, socket, ticket.
    pub(crate) deciding: VecDeque<(usize, Key, u32, JoinDecision)>,
}

/// A node whose topics `rooms:*` one application serves.
pub(crate) struct SimNode<L, P> {
    pub(crate) shared: Arc<Shared<L, P>>,
    /// Its id, different at each start.
    pub(crate) id: AtomicU64,
    /// The Unix time of its clock in milliseconds when the simulation's shows 0.
    pub(crate) skew_ms: AtomicU64,
    user_sockets: [UserSocket; 1],
    has_history: bool,
    history_bytes: Vec<AtomicU64>,
    permits: FanoutPermits,
    cluster: Option<Arc<dyn Cluster>>,
    state: Mutex<State>,
}

impl<L: Ledger, P: Send + Sync + 'static> SimNode<L, P> {
    /// A node of this many shards, which is part of a cluster if `cluster` is there.
    pub(crate) fn new(
        shared: &Arc<Shared<L, P>>,
        (id, shards): (u64, usize),
        join: JoinFn,
        history: Option<HistoryRule>,
        limits: ChannelLimits,
        cluster: Option<Arc<dyn Cluster>>,
    ) -> Self {
        let state = State {
            mailboxes: (0..shards).map(|_| VecDeque::new()).collect(),
            charged: vec![0; shards],
            ended: vec![false; shards],
            deciding: VecDeque::new(),
        };
        // All names with this prefix; it cannot fail.
        let pattern = Pattern::parse("rooms:*").ok();
        let route = |pattern| Route { limits, history, ..Route::new(pattern, join) };
        let routes = pattern.map(route).into_iter().collect();
        Self {
            shared: Arc::clone(shared),
            id: AtomicU64::new(id),
            skew_ms: AtomicU64::new(0),
            user_sockets: [UserSocket::new(Kind::Channels(routes))],
            has_history: history.is_some(),
            history_bytes: (0..shards).map(|_| AtomicU64::new(0)).collect(),
            permits: FanoutPermits::new(shards, 1),
            cluster,
            state: Mutex::new(state),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    pub(crate) fn take(&self, shard: usize) -> Option<Mail> {
        self.state().mailboxes.get_mut(shard)?.pop_front()
    }

    /// Ends a shard: its mail is lost, and so is all that is posted to it later.
    pub(crate) fn end(&self, shard: usize) {
        let mut state = self.state();
        state.ended[shard] = true;
        let mail = std::mem::take(&mut state.mailboxes[shard]);
        drop(state);
        drop(mail);
    }

    /// Asks the application once for the decision that waits longest; returns whether one waits.
    pub(crate) fn decide_next(&self) -> bool {
        let Some((shard, key, ticket, mut work)) = self.state().deciding.pop_front() else {
            return false;
        };
        let mut cx = TaskContext::from_waker(Waker::noop());
        let join = match guarded(|| work.as_mut().poll(&mut cx)) {
            Some(Poll::Pending) => {
                self.decide(shard, key, ticket, work);
                return true;
            }
            Some(Poll::Ready(join)) => Some(join),
            None => None,
        };
        self.post(shard, Mail::Joined(key, ticket, join));
        true
    }
}

struct Idle;

impl LinkedWork for Idle {
    fn is_finished(&self) -> bool {
        false
    }
}

impl<L: Ledger, P: Send + Sync + 'static> NodeHandle for SimNode<L, P> {
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
        self.request_presences(topic, answer);
    }

    fn member_count(&self, _topic: &str) -> Option<u32> {
        None
    }
}

impl<L: Ledger, P: Send + Sync + 'static> Node for SimNode<L, P> {
    fn config(&self) -> &Config {
        &self.shared.setup.config
    }

    fn user_socket(&self, index: u8) -> Option<&UserSocket> {
        self.user_sockets.get(usize::from(index))
    }

    fn id(&self) -> u64 {
        self.id.load(Relaxed)
    }

    fn has_history(&self) -> bool {
        self.has_history
    }

    fn history_bytes(&self) -> &[AtomicU64] {
        &self.history_bytes
    }

    fn permits(&self) -> &FanoutPermits {
        &self.permits
    }

    fn cluster(&self) -> Option<&dyn Cluster> {
        self.cluster.as_deref()
    }

    fn decide(&self, shard: usize, key: Key, ticket: u32, work: JoinDecision) {
        self.state().deciding.push_back((shard, key, ticket, work));
    }

    fn member_joined(&self, _topic: &str) {}

    fn member_left(&self, _topic: &str) {}

    fn release_connection(&self) {}
}

impl<L: Ledger, P: Send + Sync + 'static> Mailboxes for SimNode<L, P> {
    fn shards(&self) -> usize {
        self.history_bytes.len()
    }

    fn post(&self, shard: usize, mail: Mail) -> bool {
        let faults = &self.shared.setup.faults;
        let is_alone = self.cluster.is_none();
        let may_be_lost = match &mail {
            Mail::Broadcast(_) => true,
            // In a cluster the engine keeps the histories.
            Mail::History(_) => is_alone,
            _ => false,
        };
        if may_be_lost && faults.happens(Fault::LoseMail) {
            return true;
        }
        let mut state = self.state();
        if state.ended.get(shard).copied().unwrap_or(true) {
            return false;
        }
        if let Mail::Broadcast(posted) = &mail
            && faults.happens(Fault::DoubleMail)
        {
            let again = Posted::new(Arc::clone(posted.broadcast()), None);
            state.mailboxes[shard].push_back(Mail::Broadcast(again));
        }
        state.mailboxes[shard].push_back(mail);
        true
    }

    fn charge(&self, shard: usize, bytes: usize) {
        self.state().charged[shard] += bytes;
    }

    fn discharge(&self, shard: usize, bytes: usize) {
        let mut state = self.state();
        let left = state.charged[shard].checked_sub(bytes);
        state.charged[shard] = left.unwrap_or(0);
        drop(state);
        if left.is_none() {
            let text = format!("shard {shard} gives back {bytes} bytes that are not charged");
            self.shared.ledger().fail("bytes", text);
        }
    }

    fn charged(&self, shard: usize) -> usize {
        let state = self.state();
        if state.ended[shard] { 0 } else { state.charged[shard] }
    }
}

impl<L: Ledger, P: Send + Sync + 'static> CallbackWatch for SimNode<L, P> {
    fn guarded<R>(f: impl FnOnce() -> R) -> Option<R> {
        simurgh_core::guarded(f)
    }

    fn enter_callback(&self, _shard: usize, _callback: Callback) {}

    fn leave_callback(&self, _shard: usize) -> Duration {
        Duration::ZERO
    }
}

impl<L: Ledger, P: Send + Sync + 'static> Signer for SimNode<L, P> {
    fn sign(&self, text: &str) -> String {
        text.to_owned()
    }

    fn is_signed(&self, text: &str, proof: &str) -> bool {
        text == proof || self.shared.setup.faults.happens(Fault::Believe)
    }
}

impl<L: Ledger, P: Send + Sync + 'static> WallClock for SimNode<L, P> {
    fn unix_ms(&self, now_ns: u64) -> u64 {
        now_ns / 1_000_000 + self.skew_ms.load(Relaxed)
    }
}
