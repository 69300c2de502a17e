//! One node's part in a cluster.

mod age;
mod asks;
mod awaits;
mod counts;
mod hear;
mod keep;
mod say;

use std::collections::{BTreeMap, VecDeque};
use std::task::Context;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use simurgh_presence::FromPeers;

pub use self::counts::ClusterCounts;

use self::age::LinkAsked;
use self::asks::Asks;
use self::awaits::Awaits;
use crate::adapter::{Adapter, Down, Event, Session, Wanted};
use crate::calls::{Answer, CallNumber, Calls};
use crate::disconnects::{DisconnectNumber, DisconnectOutcome, Disconnects, DisconnectsConfig};
use crate::duplicate_filter::DuplicateFilter;
use crate::envelope::{ENVELOPE_VERSION, Item};
use crate::history::{HistoryConfig, HistoryEvent, HistoryNotice, Keeping, StoreError, StoredAt};
use crate::interests::{Interests, InterestsConfig, Shards};
use crate::node_id::NodeId;
use crate::outbox::{Class, Outbox, OutboxConfig};
use crate::peers::{PeerEvent, Peers, PeersConfig};
use crate::presence::PresenceParts;
use crate::subject::{Interest, Prefix, Subject};
use crate::time::Time;

/// Events of the engine that one [`Cluster::poll`] takes.
const EVENTS_MAX: usize = 256;
/// Bytes of presences in parts that are put together at a time.
const PARTS_BYTES: usize = 64 << 20;
/// Nodes whose broadcasts are looked up for what came twice: each takes 32 kB.
const WINDOWS_MAX: usize = 1024;
/// After such a pause between two calls of [`Cluster::tick`] nobody knows what was missed in it:
/// the process did not run. More than whoever calls it lets pass, and less than it takes to notice
/// that a node is silent.
const PAUSE_NS: u64 = 5_000_000_000;
/// Notices that nobody has taken; the oldest go.
const NOTICES_MAX: usize = 1024;
/// Disconnects of other nodes that were done, so that none is done twice.
const DONE_MAX: usize = 16_384;

/// What a node's part in a cluster is made of.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// What all of its subjects begin with.
    pub prefix: Prefix,
    /// The name that outlives this start of the node.
    pub name: Box<str>,
    /// Of the program.
    pub version: Box<str>,
    /// What is wanted exactly, and how long after its end.
    pub interests: InterestsConfig,
    /// What waits for the engine.
    pub outbox: OutboxConfig,
    /// When nodes are silent, and gone.
    pub peers: PeersConfig,
    /// How long disconnects are asked for.
    pub disconnects: DisconnectsConfig,
    /// The bounds of kept topics; none, if there are none.
    pub history: Option<HistoryConfig>,
}

impl ClusterConfig {
    /// All else as it mostly is.
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
        }
    }
}

/// What comes of other nodes on this one.
pub trait LocalNode {
    /// A broadcast for the members on these shards, and for those who listen there.
    fn broadcast(&mut self, topic: &str, item: &Item<'_>, shards: Shards<'_>);

    /// All sockets with this id are to be closed, on whatever shard.
    fn disconnect(&mut self, socket_id: &str);

    /// Something for whoever history the presences of a topic here.
    fn presence(&mut self, topic: &str, what: FromPeers);

    /// A node is gone, and with it all who were present there.
    fn gone(&mut self, node: NodeId);

    /// What has become of a disconnect that this node has asked for.
    fn disconnected(&mut self, number: DisconnectNumber, outcome: DisconnectOutcome);

    /// Another node asks something of a service here; it is answered by
    /// [`Cluster::answer`] with its number, or waits in vain.
    fn called(&mut self, by: NodeId, number: u64, service: u16, body: Vec<u8>);

    /// It does not wait any more.
    fn hung_up(&mut self, by: NodeId, number: u64);

    /// What a call of this node is answered; nothing, if that will not be known any more. A call
    /// that was hung up is not answered.
    fn answered(&mut self, number: CallNumber, answer: Option<Answer>);

    /// Of a kept topic that is followed here, or is not any more: in the engine's order, whoever
    /// published it.
    fn history(&mut self, topic: &str, what: HistoryEvent<'_>);

    /// What has become of a [`store`](Cluster::store), or of a [`forget`](Cluster::forget): of each
    /// once, before or after it is heard on its topic.
    fn stored(&mut self, topic: &str, number: u64, outcome: Result<StoredAt, StoreError>);
}

/// How it stands with the link to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// There is none.
    Away,
    /// There is one, and what has waited for it is on its way.
    CatchingUp,
    /// There is one.
    Up,
}

impl LinkState {
    /// `away`, `catching-up`, `up`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::CatchingUp => "catching-up",
            Self::Up => "up",
        }
    }
}

/// What whoever runs the node should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The link is in another state.
    State(LinkState),
    /// There is no link, and why.
    Down(Down),
    /// Something about other nodes.
    Peer(PeerEvent),
    /// Of what this node wants to hear, something may be lost: so many interests.
    Lost(usize),
    /// Something about what the engine history.
    History(HistoryNotice),
}

/// One node's part in a cluster, as a machine: what the node says goes to the others, what others
/// say comes to the node.
///
/// ```text
///  this node (shards, applications)                       other nodes
///     │ broadcast, topic_begins …                              ▲ │
///     ▼                              ┌──────────┐   publish    │ ▼
///  Cluster ── Outbox, asks ────────► │ Adapter  │ ──────────► engine
///     ▲  │                           │          │ ◄──────────
///     │  └─ Interests ─ interest ──► └──────────┘
///     │                                   │ poll_event
///     └── LocalNode ◄── envelopes: DuplicateFilter, Peers, PresenceParts ◄─┘
/// ```
/// What is kept has its own way, through a room of its own: see `keeping`.
///
/// # The kinds of methods, and their order
/// 1. *This node*: [`broadcast`](Cluster::broadcast), [`topic_begins`](Cluster::topic_begins),
///    [`presence`](Cluster::presence), [`disconnect`](Cluster::disconnect) and so on.
/// 2. *The engine*: [`poll`](Cluster::poll) takes what has happened there, and makes of it what
///    follows.
/// 3. *Time*: [`tick`](Cluster::tick), when [`next_ns`](Cluster::next_ns) says.
/// 4. [`settle`](Cluster::settle) after any of them: what has to leave is handed over.
/// 5. *Getters*.
pub struct Cluster<A> {
    adapter: A,
    me: NodeId,
    name: Box<str>,
    version: Box<str>,
    prefix: Prefix,
    /// The topic of the last broadcast, and where those go.
    last_topic: Option<(Box<str>, Subject)>,
    settings: Vec<(Box<str>, u64)>,
    envelopes: (u8, u8),
    interests: Interests,
    outbox: Outbox,
    /// What the adapter has not taken, with its number: it goes first.
    refused: Option<(Class, Subject, Bytes)>,
    is_full: bool,
    /// The number of the last envelope that was handed over.
    n: u64,
    peers: Peers,
    seen: HashMap<NodeId, DuplicateFilter, FixedState>,
    parts: PresenceParts,
    asks: Asks,
    disconnects: Disconnects,
    calls: Calls,
    awaits: Awaits,
    /// What the engine has told, and nothing was made of yet.
    events: VecDeque<Event>,
    /// Disconnects of others that were done, the oldest first.
    done: VecDeque<(NodeId, u64)>,
    state: LinkState,
    /// When the state became what it is.
    since_ns: u64,
    session: Option<Session>,
    /// When the last link was made.
    linked_ns: u64,
    /// When it was called last.
    ran_ns: u64,
    sockets: u64,
    is_draining: bool,
    has_said_bye: bool,
    counts: ClusterCounts,
    notices: VecDeque<Notice>,
    /// Nodes that are gone, and not back: what comes of them is late.
    departed: BTreeMap<NodeId, u64>,
    /// Before somebody is missed, the engine is to answer.
    link_asked: Option<LinkAsked>,
    /// None, if nothing is kept.
    keeping: Option<Box<Keeping>>,
    /// Kept topics whose interests are not in force yet.
    keep_awaits: Awaits,
    /// The adapter takes nothing more of what is kept.
    keep_is_full: bool,
}

impl<A: Adapter> Cluster<A> {
    /// Of a node that has just been started; `seed` is nobody's to guess. Its adapter begins to
    /// connect.
    pub fn new(config: ClusterConfig, mut adapter: A, me: NodeId, seed: u64, time: Time) -> Self {
        let (name, version, prefix) = (config.name, config.version, config.prefix);
        let peers = config.peers;
        let (settings, envelopes) = (peers.settings.clone(), peers.envelopes);
        let keeping = config.history.map(|it| Box::new(Keeping::new(it, me, &prefix, seed ^ 2)));
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
            asks: Asks::default(),
            disconnects: Disconnects::new(config.disconnects),
            calls: Calls::default(),
            awaits: Awaits::default(),
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
            departed: BTreeMap::new(),
            link_asked: None,
            keeping,
            keep_awaits: Awaits::default(),
            keep_is_full: false,
        }
    }

    /// Takes what has happened at the engine; whether there may be more, to be taken at once.
    /// The waker of the context is woken when there is something after that.
    ///
    /// Where members come and go on other threads, do it in two steps, and between them what those
    /// have told: a member whose join was answered before another node spoke is then known.
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

    /// Takes what has happened at the engine, and makes nothing of it; whether there may be more.
    pub fn receive(&mut self, context: &mut Context<'_>) -> bool {
        while self.events.len() < EVENTS_MAX {
            match self.adapter.poll_event(context) {
                std::task::Poll::Ready(event) => self.events.push_back(event),
                std::task::Poll::Pending => return false,
            }
        }
        true
    }

    /// Does what follows from what was received.
    pub fn handle_events(&mut self, time: Time, local: &mut impl LocalNode) {
        while let Some(event) = self.events.pop_front() {
            self.happened(event, time, local);
        }
        self.tell_kept(local);
    }

    /// Does what is due. To be called once a second at least: what came meanwhile may be missing
    /// otherwise.
    pub fn tick(&mut self, time: Time, local: &mut impl LocalNode) {
        let ran_ns = std::mem::replace(&mut self.ran_ns, time.ns);
        if time.ns.saturating_sub(ran_ns) > PAUSE_NS {
            // Nobody was silent for a node that did not look.
            self.ask_again(None, time);
        }
        self.interests.tick(time.ns);
        self.tick_kept(time, local);
        self.age_peers(time);
        if self.peers.beat_due(time.ns) && !self.has_said_bye {
            self.say_beat(time);
        }
        self.look_at_peers(time, local);
        self.disconnects.tick(time.ns);
        self.say_disconnects(time);
        while let Some((number, outcome)) = self.disconnects.poll_outcome() {
            local.disconnected(number, outcome);
        }
        let dropped = self.outbox.expire(time.ns);
        self.counts.add(dropped);
        self.ask(time, local);
    }

    /// When [`tick`](Self::tick) has something to do next.
    pub fn next_ns(&self) -> Option<u64> {
        let all = [
            self.interests.next_ns(),
            self.peers_next_ns(),
            self.disconnects.next_ns(),
            self.outbox.next_ns(),
            self.asks.next_ns(),
            self.keep_next_ns(),
        ];
        all.into_iter().flatten().min()
    }

    /// The name by which this node is known.
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// How it stands with the link, and since when.
    pub fn state(&self) -> (LinkState, u64) {
        (self.state, self.since_ns)
    }

    /// The number of the link; none, while there is none.
    pub fn session(&self) -> Option<Session> {
        self.session
    }

    /// The other nodes.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// What is wanted.
    pub fn interests(&self) -> &Interests {
        &self.interests
    }

    /// What waits to be handed over.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// What was counted.
    pub fn counts(&self) -> &ClusterCounts {
        &self.counts
    }

    /// Its engine.
    pub fn adapter(&self) -> &A {
        &self.adapter
    }

    /// The same, to be looked at closely by whoever tests.
    pub fn adapter_mut(&mut self) -> &mut A {
        &mut self.adapter
    }

    /// The next thing that whoever runs the node should know.
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
