//! The node of a world whose topics are kept: mailboxes, bytes under way, joins that are decided.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use simurgh_core::{
    Audience, BroadcastError, Callback, ChannelId, Config, FanoutPermits, JoinDecision, Kind,
    LinkedWork, Mail, Node, NodeHandle, PresenceCallback, PresenceConfig, Route, ToChannel,
    UserSocket, Work,
};
use simurgh_proto::message::Payload;
use simurgh_proto::topic::Pattern;
use simurgh_reactor::Key;

use super::Plan;
use super::account::Account;
use super::app;
use crate::stage::{Fault, Stage, locked};

/// What all parts of such a world share.
#[derive(Debug)]
pub(crate) struct Shared {
    account: Mutex<Account>,
    pub(crate) plan: Plan,
    pub(crate) stage: Arc<Stage>,
}

impl Shared {
    pub(crate) fn new(plan: &Plan) -> Self {
        let profile = plan.profile();
        let account = Account::new(plan.topics, plan.shards, plan.rule, plan.limits.clone());
        let stage = Arc::new(Stage::new(profile, plan.fault));
        Self { account: Mutex::new(account), plan: plan.clone(), stage }
    }

    /// The account of everything. Nobody panics while it is held.
    pub(crate) fn account(&self) -> MutexGuard<'_, Account> {
        locked(&self.account)
    }
}

/// A join that is being decided.
pub(crate) struct Decision {
    pub(crate) shard: usize,
    pub(crate) key: Key,
    pub(crate) ticket: u32,
    pub(crate) work: JoinDecision,
}

/// What changes of a node.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) mailboxes: Vec<VecDeque<Mail>>,
    pub(crate) charged: Vec<usize>,
    pub(crate) deciding: VecDeque<Decision>,
}

/// The node.
pub(crate) struct KeptNode {
    pub(crate) shared: Arc<Shared>,
    user_sockets: [UserSocket; 1],
    permits: FanoutPermits,
    /// How often it has started again.
    pub(crate) starts: AtomicU64,
    history_bytes: Vec<AtomicU64>,
    state: Mutex<State>,
}

impl KeptNode {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let shards = shared.plan.shards;
        let state = State {
            mailboxes: (0..shards).map(|_| VecDeque::new()).collect(),
            charged: vec![0; shards],
            deciding: VecDeque::new(),
        };
        Self {
            user_sockets: [user_socket(&shared)],
            permits: FanoutPermits::new(shards, 1),
            starts: AtomicU64::new(0),
            history_bytes: (0..shards).map(|_| AtomicU64::new(0)).collect(),
            state: Mutex::new(state),
            shared,
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Takes the next mail out of a mailbox.
    pub(crate) fn take(&self, shard: usize) -> Option<Mail> {
        self.state().mailboxes.get_mut(shard)?.pop_front()
    }
}

fn user_socket(shared: &Arc<Shared>) -> UserSocket {
    // All names that begin so; it cannot fail.
    let pattern = Pattern::parse("rooms:*").ok();
    let (join, history) = (app::join(shared), Some(shared.plan.rule));
    let route = |pattern| Route {
        pattern,
        join,
        prepare: None,
        limits: simurgh_core::ChannelLimits::default(),
        history,
    };
    UserSocket::new(Kind::Channels(pattern.map(route).into_iter().collect()))
}

/// Work that does nothing.
struct Idle;

impl LinkedWork for Idle {
    fn is_finished(&self) -> bool {
        false
    }
}

impl NodeHandle for KeptNode {
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

impl Node for KeptNode {
    fn config(&self) -> &Config {
        &self.shared.stage.profile.config
    }

    fn user_socket(&self, index: u8) -> Option<&UserSocket> {
        self.user_sockets.get(usize::from(index))
    }

    fn id(&self) -> u64 {
        self.shared.plan.seed.wrapping_add(self.starts.load(Relaxed) << 32)
    }

    fn has_history(&self) -> bool {
        true
    }

    fn sign(&self, text: &str) -> String {
        text.to_owned()
    }

    fn is_signed(&self, text: &str, proof: &str) -> bool {
        text == proof || self.shared.stage.is_faulty(Fault::Believe)
    }

    fn history_bytes(&self) -> &[AtomicU64] {
        &self.history_bytes
    }

    fn unix_ms(&self, now_ns: u64) -> u64 {
        now_ns / 1_000_000
    }

    fn permits(&self) -> &FanoutPermits {
        &self.permits
    }

    fn shards(&self) -> usize {
        self.shared.plan.shards
    }

    fn post(&self, shard: usize, mail: Mail) -> bool {
        let stage = &self.shared.stage;
        let is_history = matches!(mail, Mail::History(_) | Mail::Broadcast(_));
        if is_history && stage.is_faulty(Fault::LoseMail) {
            return true;
        }
        if let Mail::Broadcast(posted) = &mail
            && stage.is_faulty(Fault::DoubleMail)
        {
            let again = simurgh_core::Posted::new(Arc::clone(posted.broadcast()), None);
            if let Some(mailbox) = self.state().mailboxes.get_mut(shard) {
                mailbox.push_back(Mail::Broadcast(again));
            }
        }
        if let Some(mailbox) = self.state().mailboxes.get_mut(shard) {
            mailbox.push_back(mail);
        }
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
        self.state().charged.get(shard).copied().unwrap_or(0)
    }

    fn decide(&self, shard: usize, key: Key, ticket: u32, work: JoinDecision) {
        self.state().deciding.push_back(Decision { shard, key, ticket, work });
    }

    fn enter_callback(&self, _shard: usize, _callback: Callback) {}

    fn leave_callback(&self, _shard: usize) -> Duration {
        Duration::ZERO
    }

    fn member_joined(&self, _topic: &str) {}

    fn member_left(&self, _topic: &str) {}

    fn release_connection(&self) {}
}
