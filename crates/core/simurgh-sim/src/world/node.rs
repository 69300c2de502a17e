//! A node that runs: mailboxes, bytes in transit, joins that wait for a decision, its shards, and
//! its part in the cluster.

use std::task::Context as TaskContext;

use simurgh_cluster::Time;
use simurgh_core::{Kind, SightingSink};

use super::*;
use crate::world::simulation::sightings;

/// A join that waits for its decision.
pub(crate) struct Decision {
    shard: usize,
    key: Key,
    ticket: u32,
    work: JoinDecision,
}

/// The mutable state of a node.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) mailboxes: Vec<VecDeque<Mail>>,
    /// Bytes in transit, by shard.
    pub(crate) charged: Vec<usize>,
    pub(crate) ended: Vec<bool>,
    pub(crate) deciding: VecDeque<Decision>,
    pub(crate) member_counts: Vec<i64>,
    /// For the next core: what it reports of members and users.
    pub(crate) seen: sightings::Seen,
    /// Something was charged that no callback broadcast.
    pub(crate) has_spoken: bool,
}

/// A node whose topics one application serves.
pub(crate) struct SimNode {
    pub(crate) shared: Arc<Shared>,
    /// The number of its start, and of its first shard among all shards.
    pub(crate) start: usize,
    pub(crate) first: usize,
    /// Its id, different at each start.
    pub(crate) id: AtomicU64,
    /// The Unix time of its clock in milliseconds when the simulation's shows 0.
    pub(crate) skew_ms: AtomicU64,
    user_sockets: Vec<UserSocket>,
    history_bytes: Vec<AtomicU64>,
    permits: FanoutPermits,
    pub(crate) permits_all: Option<usize>,
    /// Sockets that count towards the limit of connections.
    pub(crate) seats: AtomicI64,
    pub(crate) mailbox: Arc<Mailbox>,
    state: Mutex<State>,
}

impl SimNode {
    pub(crate) fn new(shared: &Arc<Shared>, id: u64, start: usize) -> Self {
        let mailbox = Arc::new(Mailbox::new(shared, start));
        let own = shared.ledger().starts[start].shards.clone();
        let (shards, permits) = (own.len(), shared.plan.app.permits(own.len()));
        let state = State {
            mailboxes: (0..shards).map(|_| VecDeque::new()).collect(),
            charged: vec![0; shards],
            ended: vec![false; shards],
            member_counts: vec![0; shared.plan.topics.names.len()],
            ..State::default()
        };
        Self {
            shared: Arc::clone(shared),
            start,
            first: own.start,
            id: AtomicU64::new(id),
            skew_ms: AtomicU64::new(0),
            user_sockets: user_sockets(shared, &mailbox),
            history_bytes: (0..shards).map(|_| AtomicU64::new(0)).collect(),
            permits_all: permits.left(),
            seats: AtomicI64::new(0),
            permits,
            mailbox,
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
        // It is dropped without the lock.
        drop(state);
        drop(mail);
    }

    /// Asks the application once for a decision; returns whether one waits.
    pub(crate) fn decide_next(&self, which: usize) -> bool {
        let mut state = self.state();
        let which = which.checked_rem(state.deciding.len()).unwrap_or(0);
        let Some(mut decision) = state.deciding.remove(which) else { return false };
        drop(state);
        let mut cx = TaskContext::from_waker(Waker::noop());
        let join = match guarded(|| decision.work.as_mut().poll(&mut cx)) {
            Some(Poll::Pending) => {
                self.state().deciding.push_back(decision);
                return true;
            }
            Some(Poll::Ready(join)) => Some(join),
            None => None,
        };
        let Decision { shard, key, ticket, .. } = decision;
        self.shared.ledger().has_decided(self.first + shard, ticket);
        self.post(shard, Mail::Joined(key, ticket, join));
        true
    }

    /// The result that broadcasting a payload of this many bytes on a topic must have.
    pub(crate) fn may_broadcast(&self, topic: &str, bytes: usize) -> Result<(), BroadcastError> {
        if topic.len() > TOPIC_BYTES_MAX {
            return Err(BroadcastError::TopicTooLong(topic.len()));
        }
        let bytes_max = self.config().broadcast_bytes_max();
        match self.is_congested() {
            _ if bytes > bytes_max => Err(BroadcastError::TooLarge { bytes, bytes_max }),
            true => Err(BroadcastError::Congested),
            false => Ok(()),
        }
    }

    fn count(&self, topic: &str, by: i64) {
        if let Some(topic) = self.shared.plan.topics.number(topic) {
            self.state().member_counts[usize::from(topic)] += by;
        }
    }

    /// Notes an event of presence; returns whether a planted fault loses it.
    fn loses_presence(&self, mail: &mut Mail) -> bool {
        let faults = &self.shared.faults;
        if let Mail::Presence(_, PresenceMail::Call(..), charge) = mail {
            charge.take_if(|_| faults.happens(Fault::Uncharged));
            if faults.happens(Fault::Untold) {
                return true;
            }
        }
        self.shared.ledger().presence_posts(self.start, mail);
        matches!(mail, Mail::Broadcast(_)) && faults.happens(Fault::Absent)
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
        let mut work = locked(&self.shared.linking).take();
        if self.shared.faults.happens(Fault::Unlink) {
            // Its drop would tell it.
            std::mem::forget(work.take());
        }
        Box::new(work.unwrap_or_default())
    }

    fn presence_config(&self) -> &PresenceConfig {
        &self.config().presence
    }

    fn list_presences(&self, topic: &str, answer: PresenceCallback) {
        self.request_presences(topic, answer);
    }

    fn member_count(&self, topic: &str) -> Option<u32> {
        let topic = self.shared.plan.topics.number(topic)?;
        let count = self.state().member_counts[usize::from(topic)].max(0) as u32;
        self.shared.plan.app.counts_members.then_some(count)
    }
}

impl Node for SimNode {
    fn config(&self) -> &Config {
        &self.shared.plan.config
    }

    fn user_socket(&self, index: u8) -> Option<&UserSocket> {
        self.user_sockets.get(usize::from(index))
    }

    fn id(&self) -> u64 {
        self.id.load(Relaxed)
    }

    fn has_history(&self) -> bool {
        self.shared.plan.history.is_some()
    }

    fn history_bytes(&self) -> &[AtomicU64] {
        &self.history_bytes
    }

    fn permits(&self) -> &FanoutPermits {
        &self.permits
    }

    fn cluster(&self) -> Option<&dyn simurgh_core::Cluster> {
        self.shared.plan.has_broker.then_some(&*self.mailbox)
    }

    fn decide(&self, shard: usize, key: Key, ticket: u32, work: JoinDecision) {
        self.shared.ledger().decides(ticket);
        let decision = Decision { shard, key, ticket, work };
        self.state().deciding.push_back(decision);
    }

    fn member_joined(&self, topic: &str) {
        if !self.shared.faults.happens(Fault::Miscount) {
            self.count(topic, 1);
        }
    }

    fn member_left(&self, topic: &str) {
        self.count(topic, -1);
    }

    fn sighting_sink(&self) -> Option<SightingSink> {
        sightings::sink(&self.shared, &self.state().seen)
    }

    fn user_of<'a>(&self, of: &'a Assigns) -> Option<&'a str> {
        sightings::user_of(of)
    }

    fn connection_id(&self, shard: u16, key: Key) -> String {
        format!("{shard}-{}-{}", key.slot, key.generation)
    }

    fn release_connection(&self) {
        if !self.shared.faults.happens(Fault::Seat) {
            self.seats.fetch_sub(1, Relaxed);
        }
    }
}

impl Mailboxes for SimNode {
    fn shards(&self) -> usize {
        self.history_bytes.len()
    }

    fn post_weighed(&self, shard: usize, bytes: usize, mail: Mail) {
        let is_of_presence = Ledger::is_of_presence(&mail);
        let is_free = is_of_presence && self.shared.faults.happens(Fault::Free);
        let mut state = self.state();
        state.charged[shard] += if is_free { 0 } else { bytes };
        // No publisher is paused for what its callback did not broadcast.
        state.has_spoken |= !matches!(mail, Mail::Broadcast(_)) || is_of_presence;
        drop(state);
        if !self.post(shard, mail) {
            self.discharge(shard, bytes);
        }
    }

    fn post(&self, shard: usize, mut mail: Mail) -> bool {
        let faults = &self.shared.faults;
        if Ledger::is_of_presence(&mail) && self.loses_presence(&mut mail) {
            return false;
        }
        let may_be_lost = match &mail {
            Mail::Broadcast(_) => !Ledger::is_of_presence(&mail),
            Mail::Permit if faults.happens(Fault::LosePermit) => return true,
            // In a cluster the engine keeps the histories.
            Mail::History(_) => self.shared.plan.is_one_node(),
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
            && may_be_lost
            && faults.happens(Fault::DoubleMail)
        {
            let again = Posted::new(Arc::clone(posted.broadcast()), None);
            state.mailboxes[shard].push_back(Mail::Broadcast(again));
        }
        state.mailboxes[shard].push_back(mail);
        true
    }

    /// The running shard accepts a broadcast.
    fn charge(&self, shard: usize, bytes: usize) {
        self.state().charged[shard] += bytes;
        self.shared.ledger().charges(self.first + shard, bytes);
    }

    fn discharge(&self, shard: usize, bytes: usize) {
        if self.shared.faults.happens(Fault::Forget) {
            return;
        }
        let mut state = self.state();
        let left = state.charged[shard].checked_sub(bytes);
        state.charged[shard] = left.unwrap_or(0);
        drop(state);
        if left.is_none() {
            let text = format!("shard {shard} gives back {bytes} bytes that are not charged");
            self.shared.fail("bytes", text);
        }
    }

    fn charged(&self, shard: usize) -> usize {
        let state = self.state();
        if state.ended[shard] { 0 } else { state.charged[shard] }
    }
}

impl CallbackWatch for SimNode {
    fn guarded<R>(f: impl FnOnce() -> R) -> Option<R> {
        simurgh_core::guarded(f)
    }
}

impl Signer for SimNode {
    fn sign(&self, text: &str) -> String {
        text.to_owned()
    }

    fn is_signed(&self, text: &str, proof: &str) -> bool {
        text == proof || self.shared.faults.happens(Fault::Believe)
    }
}

impl WallClock for SimNode {
    fn unix_ms(&self, now_ns: u64) -> u64 {
        now_ns / 1_000_000 + self.skew_ms.load(Relaxed)
    }
}

/// The user socket of clients with channels, and that of plain sockets.
fn user_sockets(shared: &Arc<Shared>, mailbox: &Arc<Mailbox>) -> Vec<UserSocket> {
    let plan = &shared.plan;
    let history = plan.history.as_ref().map(|it| it.rule);
    let limits = mistaken(shared, plan.app.limits.unwrap_or_default());
    let join = app::join(shared, mailbox);
    let prepare = (plan.app.prepare_above > 0).then(|| app::prepare(shared));
    let (of_channel, of_plain) = (limits.of_channel(), join.clone());
    let route =
        |pattern| Route { prepare, limits: of_channel, history, ..Route::new(pattern, join) };
    // All names with this prefix; it cannot fail.
    let pattern = Pattern::parse("rooms:*").ok();
    let mut channels = UserSocket::new(Kind::Channels(pattern.map(route).into_iter().collect()));
    channels.channels_max = plan.app.channels_max;
    let mut plain = UserSocket::new(Kind::Plain { topic: "plain:0".to_owned(), join: of_plain });
    for socket in [&mut channels, &mut plain] {
        socket.count_members = plan.app.counts_members;
        socket.limits = limits.of_socket();
    }
    vec![channels, plain]
}

/// The limits of the core, with a planted fault.
fn mistaken(shared: &Shared, mut limits: Limits) -> Limits {
    let faults = &shared.faults;
    if faults.happens(Fault::Unlimit) {
        return Limits::default();
    }
    let (is_more, is_silent) = (faults.happens(Fault::Overfill), faults.happens(Fault::Silence));
    for quota in limits.socket.iter_mut().chain(&mut limits.channel).flatten() {
        quota.burst += u64::from(is_more);
        if is_silent && quota.policy == LimitPolicy::Reply {
            quota.policy = LimitPolicy::Drop;
        }
    }
    limits
}

pub(crate) struct RunningNode {
    pub(crate) slot: usize,
    /// The number of its start, and in the network.
    pub(crate) start: usize,
    pub(crate) node: Arc<SimNode>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) thread: ClusterThread,
    /// The simulation's time at which its clock showed 0.
    born_ns: u64,
    pub(crate) is_draining: bool,
    pub(crate) is_frozen: bool,
    /// When it last did not run, or was not linked as it should be.
    pub(crate) unlinked_ns: u64,
}

impl RunningNode {
    /// Starts a node of a slot; `None` without a valid plan for it, which does not occur.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        network: &Network,
        slot: usize,
        clock_ns: u64,
    ) -> Option<Self> {
        let plan = &shared.plan;
        let shards = plan.nodes.get(slot).copied()?;
        let mut ledger = shared.ledger();
        let seed = hashed(plan.seed ^ 0x4e_4f_44_45, &ledger.starts.len().to_le_bytes());
        let id = NodeId(seed | 1);
        let start = ledger.start(id, shards);
        ledger.note(|| format!("node {slot} starts as start {start}, {shards} shards"));
        drop(ledger);
        let node = Arc::new(SimNode::new(shared, id.0, start));
        node.skew_ms.store(plan.skew_ms(seed % 5_000), Relaxed);
        let shard = |it| Shard::new(&node, it, Arc::default(), seed.rotate_left(9));
        let adapter = network.adapter(&Prefix::new("sim").ok()?);
        let config = plan.cluster(&format!("node-{slot}"))?;
        let time = Time { ns: 0, unix_ms: clock_ns / 1_000_000 };
        let cluster = Cluster::new(config, Box::new(adapter), id, seed.rotate_left(17), time);
        Some(Self {
            slot,
            start,
            thread: ClusterThread::new(cluster, Arc::clone(&node)),
            shards: (0..shards).map(shard).collect(),
            node,
            born_ns: clock_ns,
            is_draining: false,
            is_frozen: false,
            unlinked_ns: clock_ns,
        })
    }

    /// A hash of everything that it has sent.
    pub(crate) fn hash(&self) -> u64 {
        self.shards.iter().fold(0, |hash, it| hash ^ it.net.hash.rotate_left(7))
    }

    /// The simulation's time when its clock shows this.
    pub(crate) fn clock_ns(&self, local_ns: u64) -> u64 {
        local_ns.saturating_add(self.born_ns)
    }

    pub(crate) fn local_ns(&self, clock_ns: u64) -> u64 {
        clock_ns - self.born_ns
    }

    pub(crate) fn time(&self, clock_ns: u64) -> Time {
        let ns = self.local_ns(clock_ns);
        let skew_ms = self.node.skew_ms.load(Relaxed);
        Time { ns, unix_ms: clock_ns / 1_000_000 + skew_ms }
    }

    /// The simulation's time of its next turn; never, while it is frozen.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        if self.is_frozen {
            return None;
        }
        let state = self.node.state();
        let is_busy = !state.deciding.is_empty() || state.mailboxes.iter().any(|it| !it.is_empty());
        if is_busy || self.thread.is_due(0) {
            return Some(0);
        }
        let servers = self.shards.iter().filter(|it| !it.has_ended).map(|it| it.next_ns).min();
        let local_ns = servers.unwrap_or(u64::MAX).min(self.thread.next_ns);
        Some(self.clock_ns(local_ns))
    }

    pub(crate) fn is_linked(&self, network: &Network) -> bool {
        let is_broken = self.is_frozen || network.link_faults(self.start) != (false, false);
        !is_broken && self.thread.node.cluster.state().0 != LinkState::Away
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.is_draining && !self.is_frozen
    }
}
