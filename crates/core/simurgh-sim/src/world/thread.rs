//! The cluster thread of a simulated node: the mailbox of what shards send it, and the node that
//! [`NodeThread`] serves.

use std::fmt::Display;

use simurgh_cluster::{NotKept, Time};

use super::*;

/// As in `simurgh_shard::cluster_inbox`.
const AROUND_BYTES: usize = 256;

pub(crate) enum Command {
    Core(ToCluster),
    /// Close all sockets with an id on all other nodes; with its number in the ledger.
    Disconnect(Box<str>, usize),
    /// A join waits until the interest in its topic is in force, which sets the flag.
    AwaitTopic(Box<str>, Arc<AtomicBool>),
    Drain,
    Bye,
}

pub(crate) struct Mailbox {
    shared: Arc<Shared>,
    start: usize,
    queue: Mutex<Vec<Command>>,
}

impl Mailbox {
    pub(crate) fn new(shared: &Arc<Shared>, start: usize) -> Self {
        Self { shared: Arc::clone(shared), start, queue: Mutex::default() }
    }

    pub(crate) fn post(&self, command: Command) {
        locked(&self.queue).push(command);
    }
}

impl simurgh_core::Cluster for Mailbox {
    fn send(&self, what: ToCluster) {
        if let ToCluster::Broadcast(broadcast) = &what
            && broadcast.event() != events::DISCONNECT
        {
            let id = payload::parse(broadcast.payload()).0;
            self.shared.ledger().note_published(self.start, id);
        }
        self.post(Command::Core(what));
    }

    fn broadcast_bytes_max(&self) -> usize {
        ENVELOPE_BYTES_MAX - AROUND_BYTES
    }
}

pub(crate) struct LocalShards {
    node: Arc<SimNode>,
    time: Time,
    /// Broadcasts given to the cluster in this turn, and how many had been dropped by then.
    pub(crate) published: Vec<(u32, u64)>,
    /// A broadcast of another node that a planted fault holds back, and its shards.
    held: Option<(Arc<Broadcast>, Vec<usize>)>,
}

type Thread<A> = NodeThread<A, LocalShards>;

impl ThreadNode for LocalShards {
    type Mail = Command;
    type Awaiting = Arc<AtomicBool>;

    fn time(&self) -> Time {
        self.time
    }

    fn take_mail(&mut self, empty: Vec<Command>) -> Vec<Command> {
        mem::replace(&mut *locked(&self.node.mailbox.queue), empty)
    }

    fn handle<A: Adapter + ?Sized>(thread: &mut Thread<A>, command: Command, time: Time) {
        match command {
            Command::Core(what) => handle_core(thread, what, time),
            Command::Disconnect(id, number) => disconnect(thread, &id, number, time),
            Command::AwaitTopic(topic, told) => thread.await_topic(&topic, told, time),
            Command::Drain => thread.cluster.drain(time),
            Command::Bye => thread.bye(time),
        }
    }

    fn subscribed(&mut self, told: Arc<AtomicBool>) {
        self.node.shared.ledger().count("waited until heard", 1);
        told.store(true, Relaxed);
    }

    fn broadcast_here(&mut self, broadcast: Broadcast) {
        let id = payload::parse(broadcast.payload()).0;
        let mut ledger = self.node.shared.ledger();
        ledger.count("heard here only", 1);
        ledger.note_published(self.node.start, id);
        drop(ledger);
        self.node.broadcast_here(Arc::new(broadcast));
    }

    fn undelivered(&mut self, broadcast: &Broadcast, error: &dyn Display) {
        if broadcast.event() == events::DISCONNECT {
            self.node.shared.fail("outcome", error.to_string());
        } else {
            self.published.pop();
        }
    }
}

fn handle_core<A: Adapter + ?Sized>(thread: &mut Thread<A>, what: ToCluster, time: Time) {
    let NodeThread { cluster, local, .. } = thread;
    let (shared, start) = (&local.node.shared, local.node.start);
    match &what {
        ToCluster::Broadcast(it) if it.event() != events::DISCONNECT => {
            let id = payload::parse(it.payload()).0;
            local.published.push((id, dropped(cluster)));
        }
        ToCluster::TopicEnds(topic, shard) => {
            let shard = local.node.first + usize::from(*shard);
            shared.ledger().forget_deliveries(shard, topic);
        }
        ToCluster::Presence(topic, what) => {
            shared.note(|| format!("start {start} says of presences of {topic}: {what:?}"));
        }
        _ => {}
    }
    thread.handle_core(what, time);
}

/// Closes the sockets with an id on all other nodes; `number` is that in the ledger.
fn disconnect<A: Adapter + ?Sized>(thread: &mut Thread<A>, id: &str, number: usize, time: Time) {
    let shared = Arc::clone(&thread.local.node.shared);
    let reply: DisconnectReply = Box::new(move |_, outcome| {
        shared.note(|| format!("disconnect {number}: {outcome:?}"));
        outcome.into_iter().for_each(|it| shared.ledger().check_outcome(number, &it));
    });
    if let Err(error) = thread.disconnect(id, Some(reply), time) {
        thread.local.node.shared.fail("outcome", error.to_string());
    }
}

impl LocalShards {
    fn note(&self, text: impl FnOnce() -> String) {
        self.node.shared.note(|| format!("start {} {}", self.node.start, text()));
    }
}

impl LocalNode for LocalShards {
    fn broadcast(&mut self, topic: &str, item: &Item<'_>, shards: Shards<'_>) {
        let broadcast = Arc::new(item.to_broadcast(topic));
        let faults = &self.node.shared.faults;
        if faults.happens(Fault::LoseEnvelope) {
            return;
        }
        let posted = (broadcast, shards.map(usize::from).collect());
        if faults.happens(Fault::SwapEnvelopes) {
            self.held = Some(posted);
            return;
        }
        for (broadcast, shards) in [Some(posted), self.held.take()].into_iter().flatten() {
            for shard in shards {
                self.node.post_charged(shard, Posted::new(Arc::clone(&broadcast), None));
            }
        }
    }

    fn disconnect(&mut self, socket_id: &str) {
        let id = payload::number(socket_id.as_bytes().get(4..).unwrap_or_default()).0;
        self.note(|| format!("closes sockets of {socket_id}"));
        let disconnects = &mut self.node.shared.ledger().disconnects;
        for it in disconnects.iter_mut().filter(|it| it.id == id as usize) {
            it.done.insert(self.node.start);
        }
        let disconnect = Broadcast::new(socket_id, events::DISCONNECT, Payload::EMPTY_OBJECT);
        self.node.broadcast_here(Arc::new(disconnect));
    }

    fn order(&mut self, by: NodeId, _: u64, _: &[u8]) {
        self.node.shared.fail("order", format!("{by} orders something"));
    }

    fn presence(&mut self, topic: &str, what: FromPeers) {
        self.note(|| format!("receives presences of {topic}: {what:?}"));
        self.node.post_home(topic, PresenceMail::Peers(what), None);
    }

    fn gone(&mut self, node: NodeId) {
        for shard in 0..self.node.shards() {
            self.node.post(shard, Mail::NodeGone(Owner(node.0)));
        }
    }

    fn history(&mut self, topic: &str, what: HistoryEvent<'_>) {
        self.note(|| format!("receives, of {topic}: {what:?}"));
        let faults = &self.node.shared.faults;
        let is_lost = match what {
            HistoryEvent::Next(_) => faults.happens(Fault::LoseKept),
            HistoryEvent::Gap { .. } => faults.happens(Fault::HideGap),
            _ => false,
        };
        if is_lost {
            return;
        }
        self.node.post_kept(topic, what.map(|item| item.to_kept(topic)));
    }

    fn stored(&mut self, topic: &str, number: u64, outcome: Result<StoredAt, NotKept>) {
        self.note(|| format!("receives, of {topic}, {number}: {outcome:?}"));
        let promise = StoredAt { epoch: 1, seq: 1, index: 0, is_duplicate: false };
        let promises = || self.node.shared.faults.happens(Fault::Promise);
        let outcome = outcome.or_else(|why| if promises() { Ok(promise) } else { Err(why) });
        self.node.post_stored(number, outcome);
    }
}

#[derive(Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

pub(crate) struct ClusterThread {
    pub(crate) node: NodeThread<Loopback, LocalShards>,
    woken: Arc<WakeFlag>,
    pub(crate) next_ns: u64,
    pub(crate) gone: Vec<(NodeId, GoneReason)>,
}

impl ClusterThread {
    pub(crate) fn new(cluster: Cluster<Loopback>, node: Arc<SimNode>) -> Self {
        let history = node.shared.plan.history.as_ref();
        let is_local_when_away = history.is_some_and(|it| it.is_local_when_away);
        let (time, published, held) = (Time::default(), Vec::new(), None);
        let local = LocalShards { node, time, published, held };
        Self {
            node: NodeThread::new(cluster, local, is_local_when_away),
            woken: Arc::new(WakeFlag(AtomicBool::new(true))),
            next_ns: 0,
            gone: Vec::new(),
        }
    }

    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        let has_mail = !locked(&self.node.local.node.mailbox.queue).is_empty();
        self.next_ns <= now_ns || self.woken.0.load(Relaxed) || has_mail
    }

    /// Runs one turn; returns whether the node has sent its last message.
    pub(crate) fn turn(&mut self, time: Time, sockets: u64) -> bool {
        self.woken.0.store(false, Relaxed);
        let waker = Waker::from(Arc::clone(&self.woken));
        self.node.local.time = time;
        let has_ended = self.node.turn(&mut Context::from_waker(&waker)).is_ready();
        self.next_ns = self.node.next_ns();
        let NodeThread { cluster, local, .. } = &mut self.node;
        cluster.set_sockets(sockets);
        let mut ledger = local.node.shared.ledger();
        let start = local.node.start;
        while let Some(notice) = cluster.poll_notice() {
            ledger.note(|| format!("start {start} is told {notice:?}"));
            match notice {
                Notice::State(LinkState::Away) | Notice::Down(_) | Notice::Lost(_) => {
                    ledger.starts[start].losses += 1;
                }
                Notice::Peer(PeerEvent::Gone(node, why)) => self.gone.push((node, why)),
                Notice::State(_) | Notice::Peer(_) | Notice::History(_) => {}
            }
        }
        ledger.starts[start].dropped = dropped(cluster);
        has_ended
    }

    pub(crate) fn shards(&self, topic: &str) -> BTreeSet<usize> {
        let shards = self.node.cluster.interests().shards(topic);
        shards.into_iter().flatten().map(usize::from).collect()
    }
}

/// How many broadcasts a node dropped, by its counters.
fn dropped<A: ?Sized + Adapter>(node: &Cluster<A>) -> u64 {
    let counts = node.counts();
    counts.dropped.by_age + counts.dropped.by_bytes
}
