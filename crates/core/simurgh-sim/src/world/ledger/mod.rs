//! What was published on which node, what each shard received, and what happened to nodes.
//!
//! Each shard of each node has a list per topic of the broadcasts that it accepted, in its order,
//! which its members and listeners receive from their beginning on. What was published on a node
//! must be in all lists of that node, and on every other shard whose interest is certainly in
//! force, unless some node was notified of a loss.

mod log;
pub(crate) mod sessions;

use super::*;
pub(crate) use crate::world::ledger::log::{Entry, Log, TopicOrder};
use crate::world::ledger::sessions::Sessions;
pub(crate) use crate::world::ledger::sessions::streams::join_payload;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BroadcastInfo {
    pub(crate) topic: usize,
    /// The start of its node.
    pub(crate) node: usize,
    /// The shard of its channel, among all shards; `None` if it came from outside of channels.
    pub(crate) shard: Option<usize>,
    /// Its event, and whether V1 cannot send it.
    pub(crate) event: &'static str,
    pub(crate) is_binary: bool,
    pub(crate) except: u32,
    /// The channel whose callback made it, or [`NONE`].
    pub(crate) chan: u32,
    /// Its place among what its node has sent on its topic, once it was sent.
    pub(crate) place: Option<u64>,
    /// It was refused, or its node had ended.
    pub(crate) is_optional: bool,
    /// A join whose resume cannot be read.
    pub(crate) is_bad: bool,
    /// The bytes that it is charged with; 0 for one that cannot be sent.
    pub(crate) weight: u32,
    /// The sum of its payload; 0 if that is not known.
    pub(crate) sum: u32,
    /// How many broadcasts led to it, one causing the next.
    pub(crate) depth: u8,
    /// How many shards of its own node have accepted it.
    pub(crate) accepted: u8,
}

impl BroadcastInfo {
    pub(crate) fn new(topic: usize, node: usize) -> Self {
        Self { topic, node, event: "p", except: NONE, chan: NONE, ..Self::default() }
    }
}

/// A broadcast in the order of a shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LineEntry {
    pub(crate) id: u32,
    pub(crate) step: u32,
    pub(crate) except: u32,
    /// The letter of its event.
    pub(crate) word: u8,
}

#[derive(Debug, Default, Clone)]
struct Accepted {
    entries: Vec<LineEntry>,
    /// The last place by node, of broadcasts that this shard made, and of others.
    last: BTreeMap<(usize, bool), u64>,
}

#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) id: NodeId,
    pub(crate) is_alive: bool,
    pub(crate) says_bye: bool,
    /// Its shards, among all shards.
    pub(crate) shards: Range<usize>,
    said: Vec<u64>,
    pub(crate) losses: u64,
    pub(crate) dropped: u64,
}

/// A broadcast that a shard must receive, unless it is notified of a loss.
#[derive(Debug, Clone, Copy)]
struct DueDelivery {
    losses: u64,
    dropped: u64,
    partitions: u64,
}

#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) findings: Findings,
    pub(crate) clock_ns: u64,
    pub(crate) plan: Arc<Plan>,
    pub(crate) starts: Vec<Start>,
    /// The shard that has an input now, among all shards.
    pub(crate) running: Option<usize>,
    pub(crate) broadcasts: Vec<BroadcastInfo>,
    /// What each shard has accepted, by topic.
    lines: Vec<Vec<Accepted>>,
    deliveries: BTreeMap<(usize, u32), DueDelivery>,
    /// How often the engine was parted or healed, of which there is no notice.
    pub(crate) partitions: u64,
    pub(crate) is_parted: bool,
    pub(crate) presences: Presences,
    /// Which starts have noticed that others are gone.
    pub(crate) gone: BTreeSet<(usize, usize)>,
    pub(crate) disconnects: Vec<Disconnect>,
    /// What the broker has stored, where topics have a history.
    pub(crate) log: Log,
    /// The same of a node without a broker.
    pub(crate) orders: Vec<TopicOrder>,
    /// What each client knows of each topic that has a history.
    pub(crate) views: Vec<RefCell<TopicView>>,
    /// The time of the running shard: a turn has one time.
    pub(crate) now_ns: u64,
    pub(crate) sessions: Sessions,
    /// The latest decision about a join that was left open.
    pub(crate) decided: Option<sessions::Answer>,
    /// A list to be used again.
    pub(crate) spare: Option<Vec<sessions::Act>>,
}

impl Deref for Ledger {
    type Target = Findings;

    fn deref(&self) -> &Findings {
        &self.findings
    }
}

/// A payload and its number.
pub(crate) type Made = (u32, Payload<'static>);

impl Ledger {
    pub(crate) fn new(plan: Arc<Plan>) -> Self {
        let topics = plan.topics.names.len();
        let heard = vec![0; plan.nodes.first().copied().unwrap_or_default()];
        let order = |_| TopicOrder { heard: heard.clone(), ..TopicOrder::default() };
        let orders = (0..topics).map(order).collect();
        let sessions = Sessions::new(&plan);
        let broadcasts = sessions::disconnects(&plan.topics).collect();
        let rooms = plan.history.as_ref().map_or(0, |_| plan.topics.rooms);
        let of_client = |client| (0..rooms).map(move |topic| (client as u32, topic));
        let all = (0..plan.clients).flat_map(of_client);
        let views = all.map(|(client, topic)| {
            let habits = plan.habits(client);
            RefCell::new(TopicView { client, habits, topic, ..TopicView::default() })
        });
        let views = views.collect();
        Self { plan, orders, sessions, broadcasts, views, ..Self::default() }
    }

    pub(crate) fn start(&mut self, id: NodeId, shards: usize) -> usize {
        let (start, topics) = (self.starts.len(), self.plan.topics.names.len());
        let first = self.lines.len();
        self.lines.resize_with(first + shards, || vec![Accepted::default(); topics]);
        self.sessions.add_shards(start, shards);
        self.presences.refused = 0;
        self.starts.push(Start {
            id,
            is_alive: true,
            says_bye: false,
            shards: first..first + shards,
            said: vec![0; topics],
            losses: 0,
            dropped: 0,
        });
        start
    }

    /// A node has ended: nothing more is expected of it, and it has no members.
    pub(crate) fn node_ended(&mut self, start: usize) {
        self.starts[start].is_alive = false;
        let shards = self.starts[start].shards.clone();
        self.lines[shards.clone()].iter_mut().for_each(Vec::clear);
        let made = &self.broadcasts;
        let is_over =
            |shard: &usize, id: u32| shards.contains(shard) || made[id as usize].node == start;
        self.deliveries.retain(|(shard, id), _| !is_over(shard, *id));
        self.presences.node_ended(start);
        self.sessions.node_ended(shards);
    }

    pub(crate) fn start_of(&self, id: NodeId) -> Option<usize> {
        self.starts.iter().position(|it| it.id == id)
    }

    pub(crate) fn is_alive(&self, start: usize) -> bool {
        self.starts.get(start).is_some_and(|it| it.is_alive)
    }

    /// Whether a topic has a history.
    pub(crate) fn is_kept(&self, topic: u8) -> bool {
        self.plan.history.is_some() && usize::from(topic) < self.plan.topics.rooms
    }

    pub(crate) fn add(&mut self, made: BroadcastInfo) -> u32 {
        self.broadcasts.push(made);
        self.broadcasts.len() as u32 - 1
    }

    /// Makes a payload, with a word for the application and this many bytes more.
    pub(crate) fn payload(&mut self, made: BroadcastInfo, word: u32, pad: usize) -> Made {
        let id = self.add(made);
        let payload = payload::make(id, word, pad, made.is_binary);
        let sum = payload::sum(&payload);
        let weight = self.weight(made.topic as u8, made.event, payload.len());
        let made = &mut self.broadcasts[id as usize];
        (made.sum, made.weight) = (sum, weight);
        (id, payload)
    }

    /// The bytes that a broadcast is charged with; 0 for one that cannot be sent.
    pub(crate) fn weight(&self, topic: u8, event: &str, bytes: usize) -> u32 {
        let topics = &self.plan.topics;
        let is_refused = bytes > self.sessions.bytes_max || topics.over == Some(topic);
        if is_refused { 0 } else { (bytes + topics.name(topic).len() + event.len() + 64) as u32 }
    }

    /// The number and the word of a payload, which must have the very bytes it was made of.
    pub(crate) fn given(&mut self, payload: &Payload<'_>) -> (u32, u32) {
        let (id, word) = payload::parse(payload);
        let made = self.broadcasts.get(id as usize);
        if made.is_some_and(|made| made.sum != 0 && made.sum != payload::sum(payload)) {
            self.fail("payload", format!("#{id} is handed over in other bytes"));
        }
        (id, word)
    }

    /// Whether a broadcast to be stored was delivered on its own node only.
    pub(crate) fn is_here_only(&self, id: u32) -> bool {
        let made = self.broadcasts.get(id as usize);
        self.plan.history.is_some() && made.is_some_and(|it| it.place.is_some())
    }

    fn accepted(&mut self, shard: usize, topic: usize) -> Option<&mut Accepted> {
        self.lines.get_mut(shard)?.get_mut(topic)
    }

    /// A node publishes a broadcast to the others.
    pub(crate) fn note_published(&mut self, start: usize, id: u32) {
        let Some(made) = self.broadcasts.get_mut(id as usize) else {
            return self.fail("said", format!("#{id} is said, and nobody made it"));
        };
        if made.node != start || made.place.is_some() {
            return self.findings.fail("said", format!("#{id} comes from start {start}: {made:?}"));
        }
        made.shard = self.running;
        let said = &mut self.starts[start].said[made.topic];
        made.place = Some(*said);
        *said += 1;
    }

    /// Checks the order in which a shard accepts the broadcasts of each node.
    fn check_place(&mut self, shard: usize, id: u32) {
        let BroadcastInfo { node, shard: by, topic, place, .. } = self.broadcasts[id as usize];
        let start = self.sessions.start_of(shard);
        let Some(place) = place else {
            return self.fail("order", format!("start {start} accepts #{id}, which nobody said"));
        };
        self.count("heard elsewhere", u64::from(node != start));
        self.deliveries.remove(&(shard, id));
        let Some(line) = self.accepted(shard, topic) else { return };
        let last = line.last.insert((node, by == Some(shard)), place);
        if last.is_some_and(|last| last >= place) {
            let text =
                format!("shard {shard} accepts #{id} of start {node}, {place} behind {last:?}");
            self.fail("order", text);
        }
    }

    /// A broadcast is in transit to a shard whose interest is certain.
    pub(crate) fn expect_delivery(&mut self, id: u32, dropped: u64, start: usize, shard: usize) {
        if self.is_parted {
            return;
        }
        let losses = self.starts[start].losses;
        let due = DueDelivery { losses, dropped, partitions: self.partitions };
        self.deliveries.insert((shard, id), due);
        self.count("certain", 1);
    }

    pub(crate) fn forget_deliveries(&mut self, shard: usize, topic: &str) {
        let (made, topic) = (&self.broadcasts, self.plan.topics.number(topic).map(usize::from));
        self.deliveries.retain(|at, _| at.0 != shard || Some(made[at.1 as usize].topic) != topic);
    }

    /// Everything had time to arrive: for what did not, there must be a notice of a loss.
    pub(crate) fn check_deliveries(&mut self) {
        for ((shard, id), due) in std::mem::take(&mut self.deliveries) {
            let by = &self.starts[self.broadcasts[id as usize].node];
            let to = &self.starts[self.sessions.start_of(shard)];
            let is_ending = to.losses != due.losses || by.dropped != due.dropped;
            if is_ending || self.partitions != due.partitions {
                self.count("lost and told", 1);
            } else {
                self.fail("lost", format!("shard {shard} has not received #{id}, without a word"));
            }
        }
    }
}

/// How long a disconnect is repeated.
const LIFE_NS: u64 = 60 * SECOND;
/// The longest span between two repetitions, and some more until a link is back.
const SPAN_NS: u64 = 17 * SECOND;

#[derive(Debug)]
pub(crate) struct Disconnect {
    pub(crate) id: usize,
    pub(crate) by: usize,
    pub(crate) at_ns: u64,
    /// The other starts that were alive, and those of them that the asking node knew.
    pub(crate) alive: BTreeSet<usize>,
    pub(crate) known: BTreeSet<usize>,
    pub(crate) done: BTreeSet<usize>,
    pub(crate) waits: bool,
}

impl Ledger {
    pub(crate) fn check_outcome(&mut self, number: usize, outcome: &DisconnectOutcome) {
        self.count("outcomes", 1);
        let starts_of = |nodes: &[NodeId]| -> BTreeSet<usize> {
            nodes.iter().filter_map(|it| self.start_of(*it)).collect()
        };
        let (confirmed, missing) = (starts_of(&outcome.confirmed), starts_of(&outcome.missing));
        let was_told = !std::mem::replace(&mut self.disconnects[number].waits, false);
        let Disconnect { done, known, .. } = &self.disconnects[number];
        let untrue: Vec<_> = confirmed.difference(done).collect();
        // A node that was known, runs and has not done it may still serve such a socket.
        let unsaid = |start: &&usize| {
            let Start { is_alive, says_bye, .. } = self.starts[**start];
            is_alive && !says_bye && !done.contains(start) && !missing.contains(start)
        };
        let unsaid: Vec<_> = known.iter().filter(unsaid).collect();
        self.count("missing", missing.len() as u64);
        if was_told || !untrue.is_empty() || !unsaid.is_empty() {
            let text = format!("not done by {untrue:?}, not named: {unsaid:?}, again: {was_told}");
            self.fail("outcome", format!("disconnect {number} is {outcome:?}: {text}"));
        }
    }

    /// All faults were repaired once: every running node has carried out the disconnects.
    pub(crate) fn check_disconnects(&self, mended_ns: u64) {
        let now_ns = self.clock_ns;
        let all = self.disconnects.iter().enumerate();
        for (number, it) in all.filter(|(_, it)| self.is_alive(it.by)) {
            if it.waits && now_ns > it.at_ns + LIFE_NS + 2 * SECOND {
                self.fail("disconnect", format!("no caller got the outcome of {number}"));
            }
            let is_due =
                mended_ns + 2 * SPAN_NS < it.at_ns + LIFE_NS && mended_ns + 2 * SPAN_NS < now_ns;
            let left =
                it.alive.iter().find(|start| self.is_alive(**start) && !it.done.contains(start));
            if let Some(start) = left.filter(|_| is_due) {
                self.fail("disconnect", format!("start {start} has not done {number}: {it:?}"));
            }
        }
    }
}
