//! The cluster's thread of a node, modelled on `simurgh::cluster`: the mailbox of what shards send
//! it, what it does with input from other nodes, and its turns.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use simurgh_cluster::{
    Answer, CallNumber, Cluster, DisconnectNumber, DisconnectOutcome, ENVELOPE_BYTES_MAX, Except,
    GoneReason, HistoryEvent, HistoryItem, HistoryPosition, Item, ItemPayload, LinkState,
    LocalNode, NodeId, Notice, PeerEvent, Shards, Space, StoreError, StoreItem, StoredAt, Time,
};
use simurgh_core::{
    Broadcast, ChannelId, FromEngine, Mail, Node, Posted, PresenceMail, StoreRequest, ToCluster,
};
use simurgh_presence::{FromPeers, Owner};
use simurgh_proto::message::{Payload, events};
use simurgh_sim_kit::fault::Fault;
use simurgh_sim_kit::payload;
use simurgh_sim_kit::setup::locked;

use crate::plan::SECOND;
use crate::watched::WatchedAdapter;
use crate::{Shared, SimNode};

/// As in `simurgh::cluster::door`.
const AROUND_BYTES: usize = 256;
/// As in `simurgh::cluster::run`.
const ROUNDS_MAX: usize = 16;
const CHECK_NS: u64 = SECOND;
const FLUSH_NS: u64 = 5 * SECOND;

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

    pub(crate) fn has_mail(&self) -> bool {
        !locked(&self.queue).is_empty()
    }

    fn take(&self) -> Vec<Command> {
        std::mem::take(&mut *locked(&self.queue))
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

struct LocalShards {
    node: Arc<SimNode>,
    start: usize,
    outcomes: Vec<(DisconnectNumber, DisconnectOutcome)>,
}

impl LocalNode for LocalShards {
    fn broadcast(&mut self, topic: &str, item: &Item<'_>, shards: Shards<'_>) {
        let payload = item.payload.to_payload().into_owned();
        let broadcast = Arc::new(Broadcast::new(topic, item.event, payload));
        for shard in shards.map(usize::from) {
            self.node.post_charged(shard, Posted::new(Arc::clone(&broadcast), None));
        }
    }

    fn disconnect(&mut self, socket_id: &str) {
        let id = payload::number(socket_id.as_bytes().get(5..).unwrap_or_default()).0;
        let mut ledger = self.node.shared.ledger();
        ledger.note(|| format!("start {} closes sockets of {socket_id}", self.start));
        ledger.note_closed(self.start, id as usize);
        drop(ledger);
        let disconnect = Broadcast::new(socket_id, events::DISCONNECT, Payload::EMPTY_OBJECT);
        self.node.broadcast_here(Arc::new(disconnect));
    }

    fn presence(&mut self, topic: &str, what: FromPeers) {
        let (start, mut ledger) = (self.start, self.node.shared.ledger());
        ledger.note(|| format!("start {start} hears of presences of {topic}: {what:?}"));
        drop(ledger);
        self.node.post_home(topic, PresenceMail::Peers(what), None);
    }

    fn gone(&mut self, node: NodeId) {
        for shard in 0..self.node.shards() {
            self.node.post(shard, Mail::NodeGone(Owner(node.0)));
        }
    }

    fn disconnected(&mut self, number: DisconnectNumber, outcome: DisconnectOutcome) {
        self.outcomes.push((number, outcome));
    }

    // No call to another node is made here.

    fn called(&mut self, _by: NodeId, _number: u64, _service: u16, _body: Vec<u8>) {}

    fn hung_up(&mut self, _by: NodeId, _number: u64) {}

    fn answered(&mut self, _number: CallNumber, _answer: Option<Answer>) {}

    fn history(&mut self, topic: &str, what: HistoryEvent<'_>) {
        let (start, mut ledger) = (self.start, self.node.shared.ledger());
        ledger.note(|| format!("start {start} is told of {topic}: {what:?}"));
        drop(ledger);
        let setup = &self.node.shared.setup;
        let is_lost = match what {
            HistoryEvent::Next(_) => setup.faults.happens(Fault::LoseKept),
            HistoryEvent::Gap { .. } => setup.faults.happens(Fault::HideGap),
            _ => false,
        };
        if is_lost {
            return;
        }
        self.node.post_kept(topic, from_engine(topic, what));
    }

    fn stored(&mut self, topic: &str, number: u64, outcome: Result<StoredAt, StoreError>) {
        let (start, mut ledger) = (self.start, self.node.shared.ledger());
        ledger.note(|| format!("start {start} is told of {topic}, {number}: {outcome:?}"));
        drop(ledger);
        let outcome = match outcome {
            Err(_) if self.node.shared.setup.faults.happens(Fault::Promise) => {
                Ok(StoredAt { epoch: 1, seq: 1, index: 0, is_duplicate: false })
            }
            Ok(at) => Ok(at),
            Err(StoreError::Unconfirmed) => Err(simurgh_core::NotKept::Unconfirmed),
            Err(StoreError::Refused(why)) => Err(simurgh_core::NotKept::Refused(why)),
            Err(StoreError::Full) => Err(simurgh_core::NotKept::Full),
        };
        self.node.post_stored(number, outcome);
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

#[derive(Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

pub(crate) struct ClusterThread {
    pub(crate) node: Cluster<WatchedAdapter>,
    local: LocalShards,
    mailbox: Arc<Mailbox>,
    waiting: HashMap<DisconnectNumber, usize>,
    awaits: HashMap<u64, Arc<AtomicBool>>,
    last_await: u64,
    frame: Vec<u8>,
    bye_ns: Option<u64>,
    woken: Arc<WakeFlag>,
    pub(crate) next_ns: u64,
    /// Broadcasts given to the cluster in this turn, and how many had been dropped by then.
    pub(crate) published: Vec<(u32, u64)>,
    pub(crate) gone: Vec<(NodeId, GoneReason)>,
    losses: u64,
}

impl ClusterThread {
    pub(crate) fn new(
        cluster: Cluster<WatchedAdapter>,
        node: &Arc<SimNode>,
        mailbox: &Arc<Mailbox>,
        start: usize,
    ) -> Self {
        let local = LocalShards { node: Arc::clone(node), start, outcomes: Vec::new() };
        Self {
            node: cluster,
            local,
            mailbox: Arc::clone(mailbox),
            waiting: HashMap::new(),
            awaits: HashMap::new(),
            last_await: 0,
            frame: Vec::new(),
            bye_ns: None,
            woken: Arc::new(WakeFlag(AtomicBool::new(true))),
            next_ns: 0,
            published: Vec::new(),
            gone: Vec::new(),
            losses: 0,
        }
    }

    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.next_ns <= now_ns || self.woken.0.load(Relaxed) || self.mailbox.has_mail()
    }

    /// Runs one turn; returns whether the node has sent its last message.
    pub(crate) fn turn(&mut self, time: Time, sockets: u64) -> bool {
        self.woken.0.store(false, Relaxed);
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut context = Context::from_waker(&waker);
        for round in 0.. {
            let has_more = self.node.receive(&mut context);
            let has_mail = self.take_mail(time);
            self.node.handle_events(time, &mut self.local);
            self.node.tick(time, &mut self.local);
            let has_said = self.node.settle(time);
            if self.bye_ns.is_some_and(|until| self.node.is_flushed() || until <= time.ns) {
                self.report();
                return true;
            }
            if !has_mail && !has_more && !has_said {
                break;
            }
            if round == ROUNDS_MAX {
                waker.wake_by_ref();
                break;
            }
        }
        self.node.set_sockets(sockets);
        self.report();
        let soon = time.ns.saturating_add(CHECK_NS);
        self.next_ns = self.node.next_ns().map_or(soon, |it| it.min(soon));
        false
    }

    fn take_mail(&mut self, time: Time) -> bool {
        let commands = self.mailbox.take();
        let has_mail = !commands.is_empty();
        for command in commands {
            match command {
                Command::Core(what) => self.handle(what, time),
                Command::Disconnect(socket_id, number) => {
                    self.disconnect(&socket_id, Some(number), time);
                }
                Command::AwaitTopic(topic, told) => {
                    self.last_await += 1;
                    self.awaits.insert(self.last_await, told);
                    self.node.await_topic(&topic, self.last_await, time);
                }
                Command::Drain => self.node.drain(time),
                Command::Bye => {
                    self.node.bye(time);
                    self.bye_ns.get_or_insert(time.ns.saturating_add(FLUSH_NS));
                }
            }
        }
        has_mail
    }

    fn handle(&mut self, what: ToCluster, time: Time) {
        match what {
            ToCluster::Broadcast(it) if it.event() == events::DISCONNECT => {
                self.disconnect(it.topic(), None, time);
            }
            ToCluster::Broadcast(broadcast) => self.publish(&broadcast, time),
            ToCluster::TopicBegins(topic, shard, wanted) => {
                self.node.topic_begins(&topic, shard, wanted, time);
            }
            ToCluster::TopicEnds(topic, shard) => {
                let shared = &self.local.node.shared;
                if let Some(number) = shared.plan.topic_of(&topic) {
                    let start = self.local.start;
                    shared.ledger().forget_deliveries(start, usize::from(shard), number);
                }
                self.node.topic_ends(&topic, shard, time);
            }
            ToCluster::Presence(topic, what) => {
                let start = self.local.start;
                let mut ledger = self.local.node.shared.ledger();
                ledger.note(|| format!("start {start} says of presences of {topic}: {what:?}"));
                drop(ledger);
                self.node.presence(&topic, what, time, &mut self.local);
            }
            ToCluster::Store(store) => self.store(*store, time),
            ToCluster::Follow(topic, wanted) => {
                self.node.follow(&topic, wanted, time, &mut self.local);
            }
            ToCluster::CheckTopic(topic) => self.node.check_topic(&topic),
            ToCluster::Forget(topic, number) => {
                self.node.forget(&topic, number, time, &mut self.local);
            }
        }
    }

    fn store(&mut self, asked: StoreRequest, time: Time) {
        let StoreRequest { number, broadcast, sender, id, age } = asked;
        let payload = ItemPayload::of(broadcast.payload(), &mut self.frame);
        let mut item = Item::new(broadcast.event(), payload);
        item.except = broadcast.except().map(|it| {
            let ChannelId { shard, membership, generation } = it;
            Except { shard, membership, generation }
        });
        item.exclusion = (sender != 0).then_some(sender);
        let store = StoreItem { number, item, id: id.as_deref(), age };
        self.node.store(broadcast.topic(), store, time, &mut self.local);
    }

    fn publish(&mut self, broadcast: &Broadcast, time: Time) {
        let id = payload::parse(broadcast.payload()).0;
        let payload = ItemPayload::of(broadcast.payload(), &mut self.frame);
        let item = Item::new(broadcast.event(), payload);
        let before = dropped(&self.node);
        if self.node.broadcast(broadcast.topic(), &item, time).is_ok() {
            self.published.push((id, before));
        }
    }

    fn disconnect(&mut self, socket_id: &str, number: Option<usize>, time: Time) {
        match (self.node.disconnect(socket_id, time), number) {
            (Ok(asked), Some(number)) => drop(self.waiting.insert(asked, number)),
            (Ok(_), None) => {}
            (Err(error), _) => {
                self.local.node.shared.ledger().fail("outcome", error.to_string());
            }
        }
    }

    fn report(&mut self) {
        let shared = Arc::clone(&self.local.node.shared);
        let mut ledger = shared.ledger();
        let start = self.local.start;
        for (asked, outcome) in self.local.outcomes.drain(..) {
            if let Some(number) = self.waiting.remove(&asked) {
                ledger.note(|| format!("disconnect {number}: {outcome:?}"));
                ledger.check_outcome(number, &outcome);
            }
        }
        while let Some(number) = self.node.poll_awaited() {
            if let Some(told) = self.awaits.remove(&number) {
                ledger.counts.count("waited until heard", 1);
                told.store(true, Relaxed);
            }
        }
        while let Some(notice) = self.node.poll_notice() {
            ledger.note(|| format!("start {start} is told {notice:?}"));
            match notice {
                Notice::State(LinkState::Away) | Notice::Down(_) | Notice::Lost(_) => {
                    self.losses += 1
                }
                Notice::Peer(PeerEvent::Gone(node, why)) => self.gone.push((node, why)),
                Notice::State(_) | Notice::Peer(_) | Notice::History(_) => {}
            }
        }
        let dropped = dropped(&self.node);
        if let Some(it) = ledger.starts.get_mut(start) {
            it.losses = self.losses;
            it.dropped = dropped;
        }
    }

    /// Whether broadcasts on a topic certainly arrive here from now on.
    pub(crate) fn is_heard(&self, topic: &str) -> bool {
        let covering = self.node.interests().covering(Space::Broadcast, topic);
        covering.is_some_and(|it| self.node.adapter().is_in_force(&it, topic))
    }

    pub(crate) fn shards(&self, topic: &str) -> BTreeSet<usize> {
        let shards = self.node.interests().shards(topic);
        shards.into_iter().flatten().map(usize::from).collect()
    }
}

/// How many broadcasts a node dropped, by its counters.
fn dropped(node: &Cluster<WatchedAdapter>) -> u64 {
    let counts = node.counts();
    counts.dropped.by_age + counts.dropped.by_bytes
}
