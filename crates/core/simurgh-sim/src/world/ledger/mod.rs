//! What was published on which node, what each shard received, and what happened to nodes.
//!
//! Each shard of each node has a list per topic of the broadcasts that it accepted, in its order,
//! which its members and listeners receive from their beginning on. What was published on a node
//! must be in all lists of that node, and on every other shard whose interest is certainly in
//! force, unless some node was notified of a loss.

mod disconnects;
mod log;
pub(crate) mod sessions;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::kit::NONE;
use crate::kit::findings::Findings;
use crate::kit::presences::Presences;
use simurgh_cluster::NodeId;

pub(crate) use self::disconnects::Disconnect;
pub(crate) use self::log::{Entry, Log};
use self::sessions::Sessions;
use crate::kit::payload;
use crate::world::alone::Order;
use crate::world::plan::Plan;
use simurgh_proto::message::Payload;

/// Broadcasts the payload of a number by the handle of a channel; to others only, if so.
pub(crate) type Handle = Arc<dyn Fn(bool, u32) + Send + Sync>;

/// The source of broadcasts that were not made by a channel of the shard.
const BY_MAIL: u16 = u16::MAX;

#[derive(Debug, Clone, Copy)]
pub(crate) struct BroadcastInfo {
    pub(crate) topic: usize,
    pub(crate) node: usize,
    /// The shard of its channel; `None` if it came from outside of channels.
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
    /// The bytes that it is charged with; 0 for one that cannot be sent.
    pub(crate) weight: u32,
    /// The sum of its payload; 0 if that is not known.
    pub(crate) sum: u32,
    /// How many broadcasts led to it, one causing the next.
    pub(crate) depth: u8,
    /// How many shards have accepted it.
    pub(crate) accepted: u8,
}

impl BroadcastInfo {
    pub(crate) fn new(topic: usize, node: usize) -> Self {
        Self {
            topic,
            node,
            shard: None,
            event: "p",
            is_binary: false,
            except: NONE,
            chan: NONE,
            place: None,
            is_optional: false,
            weight: 0,
            sum: 0,
            depth: 0,
            accepted: 0,
        }
    }
}

/// A broadcast in the order of a shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LineEntry {
    pub(crate) id: u32,
    /// The step in which it was accepted.
    pub(crate) step: u32,
    pub(crate) except: u32,
    /// The letter of its event.
    pub(crate) word: u8,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct JoinRequest {
    pub(crate) topic: usize,
    pub(crate) node: usize,
    pub(crate) shard: usize,
    pub(crate) client: u32,
    /// The place in the order from which on its client is a member.
    pub(crate) from: Option<usize>,
}

#[derive(Debug, Default, Clone)]
struct Accepted {
    entries: Vec<LineEntry>,
    /// The last place by node, and by shard for those made by shards of this node.
    last: BTreeMap<(usize, u16), u64>,
}

#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) id: NodeId,
    pub(crate) is_alive: bool,
    pub(crate) says_bye: bool,
    lines: Vec<Vec<Accepted>>,
    said: Vec<u64>,
    pub(crate) losses: u64,
    pub(crate) dropped: u64,
}

/// A broadcast that a shard must receive, unless it is notified of a loss.
#[derive(Debug, Clone, Copy)]
struct DueDelivery {
    topic: usize,
    losses: u64,
    dropped: u64,
    partitions: u64,
}

#[derive(Default)]
pub(crate) struct Ledger {
    findings: Findings,
    pub(crate) clock_ns: u64,
    pub(crate) plan: Arc<Plan>,
    pub(crate) starts: Vec<Start>,
    pub(crate) running: Option<(usize, usize)>,
    pub(crate) broadcasts: Vec<BroadcastInfo>,
    pub(crate) joins: Vec<JoinRequest>,
    pub(crate) handles: Vec<(u32, Handle)>,
    members: BTreeMap<(usize, usize, usize), usize>,
    deliveries: BTreeMap<(usize, usize, u32), DueDelivery>,
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
    pub(crate) order: Order,
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

impl DerefMut for Ledger {
    fn deref_mut(&mut self) -> &mut Findings {
        &mut self.findings
    }
}

impl Ledger {
    pub(crate) fn new(plan: Arc<Plan>) -> Self {
        let shards = plan.nodes.first().copied().unwrap_or_default();
        let order = Order::new(plan.topics.len(), shards);
        let sessions = Sessions::new(&plan);
        let broadcasts = match plan.single {
            Some(_) => sessions::disconnects(&sessions.topics).collect(),
            None => Vec::new(),
        };
        Self { plan, order, sessions, broadcasts, ..Self::default() }
    }

    pub(crate) fn start(&mut self, id: NodeId, shards: usize) -> usize {
        let topics = self.plan.topics.len();
        self.starts.push(Start {
            id,
            is_alive: true,
            says_bye: false,
            lines: vec![vec![Accepted::default(); topics]; shards],
            said: vec![0; topics],
            losses: 0,
            dropped: 0,
        });
        self.starts.len() - 1
    }

    /// A node has ended: nothing more is expected of it, and it has no members.
    pub(crate) fn node_ended(&mut self, start: usize) {
        self.starts[start].is_alive = false;
        self.starts[start].lines.clear();
        let made = &self.broadcasts;
        self.deliveries.retain(|(to, _, id), _| *to != start && made[*id as usize].node != start);
        self.handles.retain(|it| self.joins[it.0 as usize].node != start);
        self.members.retain(|at, _| at.0 != start);
        self.presences.node_ended(start);
    }

    pub(crate) fn member_joined(&mut self, start: usize, topic: usize, shard: usize) {
        *self.members.entry((start, topic, shard)).or_default() += 1;
    }

    pub(crate) fn member_left(&mut self, start: usize, topic: usize, shard: usize) {
        if let Some(count) = self.members.get_mut(&(start, topic, shard)) {
            *count = count.saturating_sub(1);
        }
    }

    pub(crate) fn members(&self, start: usize, topic: usize) -> Vec<usize> {
        let all = self.members.range((start, topic, 0)..=(start, topic, usize::MAX));
        all.filter(|it| *it.1 > 0).map(|it| it.0.2).collect()
    }

    pub(crate) fn start_of(&self, id: NodeId) -> Option<usize> {
        self.starts.iter().position(|it| it.id == id)
    }

    pub(crate) fn is_alive(&self, start: usize) -> bool {
        self.starts.get(start).is_some_and(|it| it.is_alive)
    }

    pub(crate) fn new_broadcast(&mut self, topic: usize, node: usize, except: u32) -> u32 {
        self.add(BroadcastInfo { event: "c", except, ..BroadcastInfo::new(topic, node) })
    }

    pub(crate) fn add(&mut self, made: BroadcastInfo) -> u32 {
        self.broadcasts.push(made);
        self.broadcasts.len() as u32 - 1
    }

    /// Makes a payload, with a word for the application and this many bytes more.
    pub(crate) fn payload(
        &mut self,
        made: BroadcastInfo,
        word: u32,
        pad: usize,
    ) -> (u32, Payload<'static>) {
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
        let topics = &self.sessions.topics;
        let is_refused = bytes > self.sessions.bytes_max() || topics.over == Some(topic);
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

    /// A shard of a node without others accepts a broadcast.
    fn append(&mut self, shard: usize, topic: u8, id: u32, word: u8, except: u32) {
        let step = self.step;
        let made = self.broadcasts.get_mut(id as usize);
        if let Some(made) = made.filter(|made| made.event != sessions::DISCONNECT) {
            made.accepted = made.accepted.saturating_add(1);
        }
        let start = self.starts.len() - 1;
        if let Some(line) = self.accepted(start, shard, usize::from(topic)) {
            line.entries.push(LineEntry { id, step, except, word });
        }
        self.expect_listeners(shard, topic, id, except);
    }

    /// Whether a broadcast to be stored was delivered on its own node only.
    pub(crate) fn is_here_only(&self, id: u32) -> bool {
        let made = self.broadcasts.get(id as usize);
        self.plan.history.is_some() && made.is_some_and(|it| it.place.is_some())
    }

    /// The first broadcast before a reply that is neither stored nor delivered here only.
    pub(crate) fn missing(&self, said: u32) -> Option<u32> {
        let ids = self.log.said(said).iter().copied();
        ids.into_iter().find(|id| !self.log.has(*id) && !self.is_here_only(*id))
    }

    fn accepted(&mut self, start: usize, shard: usize, topic: usize) -> Option<&mut Accepted> {
        self.starts.get_mut(start)?.lines.get_mut(shard)?.get_mut(topic)
    }

    /// The broadcasts that a shard has accepted so far.
    pub(crate) fn accepted_entries(
        &mut self,
        start: usize,
        shard: usize,
        topic: usize,
    ) -> &[LineEntry] {
        self.accepted(start, shard, topic).map_or(&[], |line| &line.entries)
    }

    /// A node publishes a broadcast to the others; the running shard has accepted it.
    pub(crate) fn note_published(&mut self, start: usize, id: u32) {
        let Some(made) = self.broadcasts.get_mut(id as usize) else {
            return self.fail("said", format!("#{id} is said, and nobody made it"));
        };
        let topic = made.topic;
        let is_wrong = made.node != start || made.place.is_some();
        made.shard = self.running.filter(|it| it.0 == start).map(|it| it.1);
        let said = &mut self.starts[start].said[topic];
        made.place = Some(*said);
        *said += 1;
        if is_wrong {
            let text =
                format!("#{id} is said by node {start}: {:?}", self.broadcasts.get(id as usize));
            return self.fail("said", text);
        }
        self.counts.count("said", 1);
        if let Some((_, shard)) = self.running.filter(|it| it.0 == start) {
            self.accept(start, shard, topic, id);
        }
    }

    pub(crate) fn accept(&mut self, start: usize, shard: usize, topic: usize, id: u32) {
        self.note(|| format!("shard {shard} of start {start} accepts #{id}"));
        let made = self.broadcasts.get(id as usize).filter(|it| it.topic == topic);
        let Some((made, place)) = made.and_then(|it| it.place.map(|place| (it, place))) else {
            return self.fail("order", format!("start {start} hears #{id}, which nobody said"));
        };
        let is_own = made.node == start && made.shard == Some(shard);
        let by = (made.node, if is_own { shard as u16 } else { BY_MAIL });
        let is_remote = made.node != start;
        let (step, except) = (self.step, made.except);
        let Some(line) = self.accepted(start, shard, topic) else { return };
        let last = line.last.insert(by, place);
        line.entries.push(LineEntry { id, step, except, word: 0 });
        if last.is_some_and(|last| last >= place) {
            let text = format!(
                "shard {shard} of start {start} hears #{id} of start {} at place {place}, behind \
                 {last:?}",
                by.0
            );
            self.fail("order", text);
        }
        if is_remote {
            self.counts.count("heard elsewhere", 1);
        }
        self.deliveries.remove(&(start, shard, id));
    }

    /// A broadcast is in transit to a shard whose interest is certain.
    pub(crate) fn expect_delivery(&mut self, id: u32, dropped: u64, start: usize, shard: usize) {
        if self.is_parted {
            return;
        }
        let (topic, losses) = (self.broadcasts[id as usize].topic, self.starts[start].losses);
        let due = DueDelivery { topic, losses, dropped, partitions: self.partitions };
        self.deliveries.insert((start, shard, id), due);
        self.counts.count("certain", 1);
    }

    pub(crate) fn forget_deliveries(&mut self, start: usize, shard: usize, topic: usize) {
        let is_it = |at: &(usize, usize, u32)| (at.0, at.1) == (start, shard);
        self.deliveries.retain(|at, due| !is_it(at) || due.topic != topic);
    }

    /// Everything had time to arrive: for what did not, there must be a notice of a loss.
    pub(crate) fn check_deliveries(&mut self) {
        let mut lost = 0;
        let mut silent = None;
        for ((start, shard, id), due) in std::mem::take(&mut self.deliveries) {
            let by = &self.starts[self.broadcasts[id as usize].node];
            let to = &self.starts[start];
            let is_ending = to.losses != due.losses || by.dropped != due.dropped;
            if is_ending || self.partitions != due.partitions {
                lost += 1;
            } else {
                silent.get_or_insert((start, shard, id));
            }
        }
        self.counts.count("lost and told", lost);
        if let Some((start, shard, id)) = silent {
            let text =
                format!("shard {shard} of start {start} has not received #{id}, without a word");
            self.fail("lost", text);
        }
        self.check_own();
    }

    /// Members on the publisher's own node get everything.
    fn check_own(&mut self) {
        let mut wrong = None;
        for (start, it) in self.starts.iter().enumerate().filter(|it| it.1.is_alive) {
            for (shard, lines) in it.lines.iter().enumerate() {
                for (topic, line) in lines.iter().enumerate() {
                    let is_own =
                        |entry: &&LineEntry| self.broadcasts[entry.id as usize].node == start;
                    let own = line.entries.iter().filter(is_own).count();
                    let said = it.said[topic];
                    if said != own as u64 {
                        wrong = Some(format!(
                            "shard {shard} of start {start} has {own} of {said} on topic {topic}"
                        ));
                    }
                }
            }
        }
        // Kept broadcasts go through the engine.
        let has_history = self.plan.history.is_some();
        let is_unsaid = |it: &BroadcastInfo| it.place.is_none() && !it.is_optional && !has_history;
        let unsaid = self.broadcasts.iter().position(|it| is_unsaid(it) && self.is_alive(it.node));
        if let Some(id) = unsaid {
            wrong = Some(format!("#{id} was made, and not said: {:?}", self.broadcasts.get(id)));
        }
        if let Some(text) = wrong {
            self.fail("own", text);
        }
    }

    /// The next place in a list that is for a channel, from one place on.
    pub(crate) fn next_for(&mut self, chan: u32, from: usize) -> Option<(usize, u32)> {
        let request = self.joins[chan as usize];
        let lines = self.starts[request.node].lines.get(request.shard)?;
        let mut rest = lines[request.topic].entries.iter().enumerate().skip(from);
        let found = rest.find(|(_, entry)| entry.except != chan)?;
        Some((found.0, found.1.id))
    }

    pub(crate) fn alive(&self) -> BTreeSet<usize> {
        let all = self.starts.iter().enumerate();
        all.filter(|it| it.1.is_alive).map(|it| it.0).collect()
    }
}
