//! One node's part in a cluster.

mod counts;
mod history;
mod interest_waiters;
mod link_probe;
mod log;
mod presence_requests;
mod receive;
mod send;

use core::task::Context;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use simurgh_history::{NotKept, StoredAt};
use simurgh_presence::FromPeers;

pub use self::counts::ClusterCounts;

use self::interest_waiters::InterestWaiters;
use self::link_probe::LinkProbe;
use self::presence_requests::PresenceRequests;
use crate::adapter::{Adapter, Down, Event, Session, Wanted};
use crate::calls::{Answer, CallNumber, Calls};
use crate::disconnects::{DisconnectNumber, DisconnectOutcome, Disconnects, DisconnectsConfig};
use crate::duplicate_filter::DuplicateFilter;
use crate::envelope::{ENVELOPE_VERSION, Item};
use crate::history::{History, HistoryConfig, HistoryEvent, HistoryNotice};
use crate::interests::{Interests, InterestsConfig, Shards};
use crate::log::{Log, LogEvent};
use crate::node_id::NodeId;
use crate::outbox::{Class, Outbox, OutboxConfig};
use crate::peers::{PeerEvent, Peers, PeersConfig};
use crate::presence::PresenceParts;
use crate::subject::{Interest, Prefix, Subject};
use crate::time::Time;
use simurgh_data::prelude::*;

/// The most events of the broker in one [`Cluster::poll`].
const EVENTS_MAX: usize = 256;
/// The most bytes of incomplete presence messages.
const PARTS_BYTES: usize = 64 << 20;
/// The most nodes whose broadcasts are filtered for duplicates: each takes 32 kB.
const WINDOWS_MAX: usize = 1024;
/// A longer pause between two calls of [`Cluster::tick`] means that the process did not run and may
/// have missed anything. It is more than callers let pass, and less than it takes to notice that a
/// node is silent.
const PAUSE_NS: u64 = 5_000_000_000;
/// The most notices that wait to be polled; the oldest are dropped.
const NOTICES_MAX: usize = 1024;
/// The most remembered disconnects of other nodes, so that none is done twice.
const DONE_MAX: usize = 16_384;

/// Settings of a node in a cluster.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// The prefix of all its subjects.
    pub prefix: Prefix,
    /// The node's name, which survives restarts.
    pub name: Box<str>,
    /// The version of the program.
    pub version: Box<str>,
    /// Subscriptions.
    pub interests: InterestsConfig,
    /// The queue for the broker.
    pub outbox: OutboxConfig,
    /// The times after which nodes are silent, and gone.
    pub peers: PeersConfig,
    /// Disconnects.
    pub disconnects: DisconnectsConfig,
    /// The bounds of topics with a history; `None` if there are no such topics.
    pub history: Option<HistoryConfig>,
    /// Whether the broker has the log of notices for this node.
    pub has_log: bool,
}

impl ClusterConfig {
    /// The default settings.
    pub fn new(prefix: Prefix, name: impl Into<Box<str>>) -> Self {
        Self {
            prefix,
            name: name.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            interests: InterestsConfig::default(),
            outbox: OutboxConfig::default(),
            peers: PeersConfig {
                envelopes: (ENVELOPE_VERSION, ENVELOPE_VERSION),
                ..PeersConfig::default()
            },
            disconnects: DisconnectsConfig::default(),
            history: None,
            has_log: false,
        }
    }
}

/// A disconnect or an order of another node.
#[derive(Clone, Copy, Debug)]
struct Ordered {
    by: NodeId,
    number: u64,
    /// How many sockets or channels it concerned; `None` while it is carried out.
    count: Option<u64>,
}

/// The local side of a cluster's node: what other nodes cause on this one.
pub trait LocalNode {
    /// A broadcast for the members and listeners on these shards.
    fn broadcast(&mut self, topic: &str, item: &Item<'_>, shards: Shards<'_>);

    /// Close all sockets with this id, on all shards.
    fn disconnect(&mut self, socket_id: &str);

    /// Carry out another node's order; [`Cluster::order_done`] answers it by its number. Each order
    /// comes once. One that is unknown must not be answered.
    fn order(&mut self, by: NodeId, number: u64, order: &[u8]);

    /// A message for the home shard of a topic's presences.
    fn presence(&mut self, topic: &str, what: FromPeers);

    /// A node is gone, and with it everyone present there.
    fn gone(&mut self, node: NodeId);

    /// Another node calls a service of this one; [`Cluster::answer`] answers it by its number.
    fn called(&mut self, _by: NodeId, _number: u64, _service: u16, _body: Vec<u8>) {}

    /// The caller has stopped waiting.
    fn hung_up(&mut self, _by: NodeId, _number: u64) {}

    /// The answer to a call of this node; `None` if it gets no answer. A call that was hung up gets
    /// no answer.
    fn answered(&mut self, _number: CallNumber, _answer: Option<Answer>) {}

    /// Another node shares cached answers of applications. They may come twice, late, or not.
    fn grants(&mut self, _grants: &[u8]) {}

    /// An event of a followed topic, in the broker's order, whichever node published it.
    fn history(&mut self, topic: &str, what: HistoryEvent<'_>);

    /// The outcome of a [`store`](Cluster::store) or a [`forget`](Cluster::forget): once for each,
    /// before or after the message is received on its topic.
    fn stored(&mut self, topic: &str, number: u64, outcome: Result<StoredAt, NotKept>);

    /// An event of the log of notices.
    fn log(&mut self, _event: LogEvent) {}
}

/// The state of the link to the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum LinkState {
    /// There is no link.
    #[default]
    Away,
    /// There is a link, and what has waited for it is being sent.
    CatchingUp,
    /// There is a link.
    Up,
}

impl LinkState {
    /// `away`, `catching-up`, `up`.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A notice for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The state of the link has changed.
    State(LinkState),
    /// There is no link, for this reason.
    Down(Down),
    /// An event of another node.
    Peer(PeerEvent),
    /// Messages for so many interests may have been lost.
    Lost(usize),
    /// Something about the broker's storage.
    History(HistoryNotice),
}

/// One node of a cluster, as a state machine: it sends what the node publishes, and passes on what
/// other nodes send.
///
/// ```text
///  this node (shards, applications)                       other nodes
///     │ broadcast, topic_begins …                              ▲ │
///     ▼                              ┌──────────┐   publish    │ ▼
///  Cluster ── Outbox, requests ────► │ Adapter  │ ──────────► broker
///     ▲  │                           │          │ ◄──────────
///     │  └─ Interests ─ interest ──► └──────────┘
///     │                                   │ poll_event
///     └── LocalNode ◄── envelopes: DuplicateFilter, Peers, PresenceParts ◄─┘
/// ```
/// Stored messages pass through the module `history`.
///
/// # The kinds of methods, and their order
/// 1. *This node*: [`broadcast`](Cluster::broadcast), [`topic_begins`](Cluster::topic_begins),
///    [`presence`](Cluster::presence), [`disconnect`](Cluster::disconnect) and so on.
/// 2. *The broker*: [`poll`](Cluster::poll) takes its events and processes them.
/// 3. *Time*: [`tick`](Cluster::tick), when [`next_ns`](Cluster::next_ns) says.
/// 4. [`settle`](Cluster::settle) after any of them: hands over what is to be sent.
/// 5. *Getters*.
pub struct Cluster<A: ?Sized> {
    adapter: Box<A>,
    me: NodeId,
    name: Box<str>,
    version: Box<str>,
    prefix: Prefix,
    last_topic: Option<(Box<str>, Subject)>,
    settings: Vec<(Box<str>, u64)>,
    envelopes: (u8, u8),
    interests: Interests,
    outbox: Outbox,
    /// An envelope that the adapter did not take, sent first.
    refused: Option<(Class, Subject, Bytes)>,
    is_full: bool,
    n: u64,
    peers: Peers,
    seen: HashMap<NodeId, DuplicateFilter, FixedState>,
    parts: PresenceParts,
    presence_requests: PresenceRequests,
    disconnects: Disconnects,
    calls: Calls,
    waiters: InterestWaiters,
    events: VecDeque<Event>,
    /// Disconnects and orders of others, oldest first.
    done: VecDeque<Ordered>,
    state: LinkState,
    since_ns: u64,
    session: Option<Session>,
    linked_ns: u64,
    ran_ns: u64,
    sockets: u64,
    is_draining: bool,
    has_said_bye: bool,
    counts: ClusterCounts,
    notices: VecDeque<Notice>,
    link_probe: Option<LinkProbe>,
    /// `None` if no topic has a history.
    history: Option<Box<History>>,
    history_waiters: InterestWaiters,
    log: Option<Box<Log>>,
    /// The adapter takes no tickets.
    is_storage_full: bool,
}

impl<A: Adapter + ?Sized> Cluster<A> {
    /// A node that was just started; `seed` must not be guessable. Its adapter begins to connect.
    pub fn new(
        config: ClusterConfig,
        mut adapter: Box<A>,
        me: NodeId,
        seed: u64,
        time: Time,
    ) -> Self {
        let (name, version, prefix) = (config.name, config.version, config.prefix);
        let peers = config.peers;
        let (settings, envelopes) = (peers.settings.clone(), peers.envelopes);
        let history = config.history.map(|it| Box::new(History::new(it, me, &prefix, seed ^ 2)));
        adapter.start(me);
        adapter.interest(&[(Interest::Nodes, Wanted::Yes), (Interest::Node(me), Wanted::Yes)]);
        Self {
            adapter,
            me,
            prefix,
            last_topic: None,
            settings,
            envelopes,
            interests: Interests::new(&config.interests, seed),
            outbox: Outbox::new(config.outbox),
            refused: None,
            is_full: false,
            n: 0,
            peers: Peers::new(me, &name, peers, seed ^ 1),
            name,
            version,
            seen: HashMap::with_hasher(FixedState::with_seed(seed)),
            parts: PresenceParts::new(PARTS_BYTES),
            presence_requests: PresenceRequests::default(),
            disconnects: Disconnects::new(config.disconnects),
            calls: Calls::default(),
            waiters: InterestWaiters::default(),
            events: VecDeque::new(),
            done: VecDeque::new(),
            state: LinkState::Away,
            since_ns: time.ns,
            session: None,
            linked_ns: time.ns,
            ran_ns: time.ns,
            sockets: 0,
            is_draining: false,
            has_said_bye: false,
            counts: ClusterCounts::default(),
            notices: VecDeque::new(),
            link_probe: None,
            history,
            history_waiters: InterestWaiters::default(),
            log: config.has_log.then(Box::default),
            is_storage_full: false,
        }
    }

    /// Receives the broker's events and processes them. Returns whether there may be more. The
    /// waker of the context is woken when there are more after that.
    ///
    /// If members join and leave on other threads, call `receive` and `handle_events` instead, and
    /// apply what those threads have sent between the two: then a member whose join was answered
    /// before another node published is known.
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        time: Time,
        local: &mut impl LocalNode,
    ) -> bool {
        let has_more = self.receive(context);
        self.handle_events(time, local);
        has_more
    }

    /// Receives the broker's events without processing them. Returns whether there may be more.
    pub fn receive(&mut self, context: &mut Context<'_>) -> bool {
        while self.events.len() < EVENTS_MAX {
            match self.adapter.poll_event(context) {
                core::task::Poll::Ready(event) => self.events.push_back(event),
                core::task::Poll::Pending => return false,
            }
        }
        true
    }

    /// Processes the received events.
    pub fn handle_events(&mut self, time: Time, local: &mut impl LocalNode) {
        while let Some(event) = self.events.pop_front() {
            self.on_event(event, time, local);
        }
        self.report_history(local);
    }

    /// Does what is due. Call it at least once a second: otherwise messages of the time between may
    /// be taken for missing.
    pub fn tick(&mut self, time: Time, local: &mut impl LocalNode) {
        let ran_ns = core::mem::replace(&mut self.ran_ns, time.ns);
        if time.ns.saturating_sub(ran_ns) > PAUSE_NS {
            // No node becomes silent for the time in which this process did not run.
            self.request_all_presences(None, time);
        }
        self.interests.tick(time.ns);
        self.tick_history(time, local);
        self.age_peers(time);
        if self.peers.beat_due(time.ns) && !self.has_said_bye {
            self.send_beat(time);
        }
        self.handle_peer_events(time, local);
        self.disconnects.tick(time.ns);
        self.send_disconnects(time);
        self.counts.dropped += self.outbox.expire(time.ns);
        self.request_presences(time, local);
        self.tick_log(time, local);
    }

    /// When [`tick`](Self::tick) has something to do next.
    pub fn next_ns(&self) -> Option<u64> {
        let peers_ns = match self.link_probe {
            // They are aged when it is answered.
            Some(_) => self.peers.next_beat_ns(),
            None => self.peers.next_ns(),
        };
        let all = [
            self.interests.next_ns(),
            peers_ns,
            self.disconnects.next_ns(),
            self.outbox.next_ns(),
            self.presence_requests.next_ns(),
            self.history_next_ns(),
            self.log_next_ns(),
        ];
        all.into_iter().flatten().min()
    }

    /// The id of this node.
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// The state of the link, and since when.
    pub fn state(&self) -> (LinkState, u64) {
        (self.state, self.since_ns)
    }

    /// The number of the link; `None` without a link.
    pub fn session(&self) -> Option<Session> {
        self.session
    }

    /// The other nodes.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Its subscriptions.
    pub fn interests(&self) -> &Interests {
        &self.interests
    }

    /// The queue for the broker.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// The counters.
    pub fn counts(&self) -> &ClusterCounts {
        &self.counts
    }

    /// The adapter.
    pub fn adapter(&self) -> &A {
        &self.adapter
    }

    /// The adapter, for tests.
    pub fn adapter_mut(&mut self) -> &mut A {
        &mut self.adapter
    }

    /// The next outcome of a disconnect that this node has asked for.
    pub fn poll_outcome(&mut self) -> Option<(DisconnectNumber, DisconnectOutcome)> {
        self.disconnects.poll_outcome()
    }

    /// The next notice for the operator.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    fn notice(&mut self, notice: Notice) {
        if self.notices.len() >= NOTICES_MAX {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }

    fn enter(&mut self, state: LinkState, time: Time) {
        if self.state != state {
            (self.state, self.since_ns) = (state, time.ns);
            self.notice(Notice::State(state));
        }
    }
}
