//! An observer's queries to a shard, on the shard.
//!
//! Lists come from a walk over the records, about 100 µs in each millisecond, so that clients do
//! not notice; a list is a heap of the wanted size. Records do not count messages: during
//! observation a table beside them counts those of the connections that send most. Without queries
//! for a while all this is freed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use simurgh_core::{KeptView, Phase, Position, TICK, TopicId, TopicView, Wire, nanoseconds, until};
use simurgh_proto::ws::CloseCode;
use simurgh_reactor::{Key, Next};

use super::{Io, Shard};
use crate::mail::survey::{Answer, MembersHere, Peer, SAMPLE, ShardQuery, Surveyed, TopicCount};
use crate::view::{ConnectionOrder, ConnectionRow, Kept, TopicOrder};

/// Longest slice of a walk, and the time between two slices.
const SLICE: Duration = Duration::from_micros(100);
const SLICE_EVERY: Duration = Duration::from_millis(1);
/// Records between two reads of the clock.
const STRIDE: usize = 64;
/// The same for walks that search names or ask the system for addresses.
const SLOW_STRIDE: usize = 16;
/// Observation ends after this time without a query.
const KEPT: Duration = Duration::from_secs(20);
/// Shortest window of a rate.
const WINDOW_MIN: Duration = Duration::from_millis(900);
/// Rows made between two reads of the clock.
const ROWS_STRIDE: usize = 4;
/// Connections whose messages are counted.
const SENDERS_MAX: usize = 1024;
/// Topics in a row of a list, and in a single row; bytes of each name.
const TOPICS_IN_ROW: usize = 3;
const TOPICS_ALONE: usize = 100;
const NAME_BYTES_MAX: usize = 200;

#[derive(Default)]
pub(crate) struct Observed {
    walk: Option<Walk>,
    next_slice: u64,
    asked_ns: u64,
    topics: Window,
    senders: TopSenders,
}

/// A window in which something is counted.
#[derive(Default)]
struct Window {
    /// When it began, ns.
    since: Option<u64>,
    before_s: Option<f64>,
}

impl Window {
    /// Begins the next window if this one is long enough; returns whether it did.
    fn roll(&mut self, now_ns: u64) -> bool {
        let length = self.since.map(|since| until(now_ns, since));
        if length.is_some_and(|length| length < WINDOW_MIN) {
            return false;
        }
        self.since = Some(now_ns);
        self.before_s = length.map(|length| length.as_secs_f64());
        true
    }

    /// The rate of a count of the previous window.
    fn rate(&self, count: u32) -> Option<f64> {
        self.before_s.map(|seconds| f64::from(count) / seconds)
    }
}

/// Counts messages of the most frequent senders, too low by at most one in a thousand of all
/// messages (Misra and Gries).
#[derive(Default)]
struct TopSenders {
    window: Window,
    counts: HashMap<Key, u32>,
    before: HashMap<Key, u32>,
}

impl TopSenders {
    fn count(&mut self, key: Key) {
        if self.counts.len() >= SENDERS_MAX && !self.counts.contains_key(&key) {
            self.counts.retain(|_, count| {
                *count -= 1;
                *count > 0
            });
            return;
        }
        *self.counts.entry(key).or_default() += 1;
    }

    fn roll(&mut self, now_ns: u64) {
        if self.window.roll(now_ns) {
            self.before = std::mem::take(&mut self.counts);
        }
    }

    fn rate(&self, key: Key) -> Option<f64> {
        self.window.rate(self.before.get(&key).copied().unwrap_or(0))
    }
}

type Sorted<T> = std::vec::IntoIter<Reverse<(u64, T)>>;

/// The greatest of the offered items.
struct Top<T> {
    most: usize,
    heap: BinaryHeap<Reverse<(u64, T)>>,
}

impl<T: Ord + Copy> Top<T> {
    fn new(most: usize) -> Self {
        Self { most, heap: BinaryHeap::new() }
    }

    fn offer(&mut self, value: u64, it: T) {
        if self.heap.len() < self.most {
            self.heap.push(Reverse((value, it)));
        } else if let Some(mut least) = self.heap.peek_mut()
            && least.0.0 < value
        {
            *least = Reverse((value, it));
        }
    }

    /// The greatest first.
    fn into_sorted(self) -> Sorted<T> {
        self.heap.into_sorted_vec().into_iter()
    }
}

struct Walk {
    cursor: u32,
    total: u64,
    busy: Duration,
    over: Over,
}

/// The items that a walk looks for, and the rows made of them: a row costs some cache misses and a
/// system call, so making a hundred of them is sliced as well.
struct Rows<T, R> {
    top: Top<T>,
    /// None until the walk ends.
    found: Option<Sorted<T>>,
    rows: Vec<R>,
    answer: Answer<Surveyed<R>>,
}

impl<T: Ord + Copy, R> Rows<T, R> {
    fn new(most: usize, answer: Answer<Surveyed<R>>) -> Self {
        Self { top: Top::new(most), found: None, rows: Vec::new(), answer }
    }

    fn finish(&mut self) {
        self.found = Some(std::mem::replace(&mut self.top, Top::new(0)).into_sorted());
    }

    /// Makes some rows; returns whether they were the last.
    fn put_together(&mut self, row: impl Fn(T) -> Option<R>) -> bool {
        let Some(found) = &mut self.found else { return false };
        let some = found.by_ref().take(ROWS_STRIDE);
        self.rows.extend(some.filter_map(|Reverse((_, it))| row(it)));
        found.len() == 0
    }

    fn send(self, total: u64, sample: Vec<u64>, busy: Duration) {
        let _ = self.answer.send(Surveyed { rows: self.rows, total, sample, busy });
    }
}

enum Over {
    Topics {
        by: TopicOrder,
        search: Box<str>,
        roll: bool,
        sample: Top<()>,
        rows: Rows<TopicId, TopicCount>,
    },
    /// By their slots.
    Kept {
        search: Box<str>,
        rows: Rows<u32, TopicCount>,
    },
    Connections {
        by: ConnectionOrder,
        peer: Option<Peer>,
        rows: Rows<Key, ConnectionRow>,
    },
}

impl Observed {
    pub(crate) fn count(&mut self, key: Key) {
        self.senders.count(key);
    }

    fn begin(&mut self, over: Over) {
        self.walk = Some(Walk { cursor: 0, total: 0, busy: Duration::ZERO, over });
    }
}

impl Shard {
    /// Answers, or begins a walk for the answer. A walk in progress is dropped: an observer waits
    /// only for its last query.
    pub(crate) fn answer_query(&mut self, io: &mut Io, ask: ShardQuery) {
        let now_ns = io.now().ns;
        // The observer may be gone.
        match ask {
            ShardQuery::Counts { topics, answer } => {
                let counts = topics.iter().map(|name| self.topic_count(name)).collect();
                let _ = answer.send(counts);
            }
            ShardQuery::Members { topic, most, answer } => {
                let _ = answer.send(self.members_of(io, &topic, most));
            }
            ShardQuery::Connection { key, answer } => {
                let _ = answer.send(self.row(io, key, TOPICS_ALONE));
            }
            ShardQuery::Disconnect { key, answer } => {
                let _ = answer.send(self.disconnect(io, key));
            }
            ShardQuery::Topics { by: TopicOrder::Kept, search, most, answer } => {
                let rows = Rows::new(most, answer);
                self.observed(now_ns).begin(Over::Kept { search, rows });
            }
            ShardQuery::Topics { by, search, most, answer } => {
                let observed = self.observed(now_ns);
                let roll = observed.topics.roll(now_ns);
                let rows = Rows::new(most, answer);
                let sample = Top::new(SAMPLE);
                observed.begin(Over::Topics { by, search, roll, sample, rows });
            }
            ShardQuery::Connections { by, peer, most, answer } => {
                let observed = self.observed(now_ns);
                observed.senders.roll(now_ns);
                observed.begin(Over::Connections { by, peer, rows: Rows::new(most, answer) });
            }
        }
    }

    fn observed(&mut self, now_ns: u64) -> &mut Observed {
        let observed = self.observed.get_or_insert_default();
        observed.asked_ns = now_ns;
        observed
    }

    /// Continues a walk for one slice; returns when it has to run again.
    pub(crate) fn survey(&mut self, io: &mut Io) -> Next {
        let Some(observed) = &mut self.observed else { return Next::Idle };
        let began = io.clock_ns();
        let Some(mut walk) = observed.walk.take() else {
            let quiet = until(began, observed.asked_ns);
            if quiet < KEPT {
                return Next::After(KEPT - quiet);
            }
            self.observed = None;
            return Next::Idle;
        };
        if began < observed.next_slice {
            let wait = until(observed.next_slice, began);
            observed.walk = Some(walk);
            return Next::After(wait);
        }
        observed.next_slice = began + nanoseconds(SLICE_EVERY);
        let cpu_before = cpu_time();
        let mut is_over = self.step(io, &mut walk);
        while !is_over && until(io.clock_ns(), began) < SLICE {
            is_over = self.step(io, &mut walk);
        }
        walk.busy += cpu_time().saturating_sub(cpu_before);
        if is_over {
            walk.answer();
            return Next::After(KEPT);
        }
        if let Some(observed) = &mut self.observed {
            observed.walk = Some(walk);
        }
        Next::After(SLICE_EVERY)
    }

    /// Visits some records, or makes some rows; returns whether they were the last.
    fn step(&mut self, io: &mut Io, walk: &mut Walk) -> bool {
        match &mut walk.over {
            Over::Topics { rows, .. } if rows.found.is_some() => rows.put_together(|id| {
                let count = self.counted(self.core.topic(id)?);
                Some(TopicCount { kept: self.kept(&count.topic), ..count })
            }),
            Over::Kept { rows, .. } if rows.found.is_some() => rows.put_together(|place| {
                let it = self.core.kept().at(place)?;
                Some(self.topic_count(it.name))
            }),
            Over::Connections { rows, .. } if rows.found.is_some() => {
                rows.put_together(|key| self.row(io, key, TOPICS_IN_ROW))
            }
            _ => {
                self.look(io, walk);
                false
            }
        }
    }

    fn look(&mut self, io: &mut Io, walk: &mut Walk) {
        let is_over = match &mut walk.over {
            Over::Topics { by, search, roll, sample, rows } => {
                let stride = if search.is_empty() { STRIDE } else { SLOW_STRIDE };
                self.core.visit_topics(&mut walk.cursor, stride, *roll, |id, topic| {
                    // A topic that only waits to leave the fan-out has no members.
                    if topic.members > 0 && topic.name.contains(&**search) {
                        walk.total += 1;
                        sample.offer(hash(topic.name), ());
                        rows.top.offer(topic_value(topic, *by), id);
                    }
                });
                walk.cursor == 0
            }
            Over::Kept { search, rows } => {
                let stride = if search.is_empty() { STRIDE } else { SLOW_STRIDE };
                self.core.kept().visit(&mut walk.cursor, stride, |place, it| {
                    if it.name.contains(&**search) {
                        walk.total += 1;
                        rows.top.offer(it.bytes, place);
                    }
                });
                walk.cursor == 0
            }
            Over::Connections { by: ConnectionOrder::Rate, peer: None, rows } => {
                // Connections that have sent nothing do not count, and need no walk.
                walk.total = io.len() as u64;
                let senders = self.observed.as_ref().map(|observed| &observed.senders.before);
                for (key, count) in senders.into_iter().flatten() {
                    if io.conn_ref(*key).is_some() {
                        rows.top.offer(u64::from(*count), *key);
                    }
                }
                true
            }
            Over::Connections { by, peer, rows } => {
                let stride = if peer.is_some() { SLOW_STRIDE } else { STRIDE };
                let mut keys = Vec::with_capacity(stride);
                io.sweep(&mut walk.cursor, stride, |_, _| true, &mut keys);
                for key in keys {
                    if peer.is_some_and(|peer| !is_from(io, key, peer)) {
                        continue;
                    }
                    walk.total += 1;
                    let value = connection_value(io, key, *by);
                    // Most connections have no queue and are left out of that order.
                    if value > 0 || peer.is_some() {
                        rows.top.offer(value, key);
                    }
                }
                walk.cursor == 0
            }
        };
        if is_over {
            match &mut walk.over {
                Over::Topics { rows, .. } => rows.finish(),
                Over::Kept { rows, .. } => rows.finish(),
                Over::Connections { rows, .. } => rows.finish(),
            }
        }
    }

    fn topic_count(&self, name: &str) -> TopicCount {
        let topic = self.core.find_topic(name).and_then(|id| self.core.topic(id));
        let none = || TopicCount { topic: name.into(), ..TopicCount::default() };
        let count = topic.map_or_else(none, |topic| self.counted(topic));
        TopicCount { kept: self.kept(name), ..count }
    }

    /// The history of a topic, if it is kept here.
    fn kept(&self, name: &str) -> Option<Kept> {
        let KeptView { messages, bytes, head, marks, .. } = self.core.kept().find(name)?;
        let floor = Position { place: marks.floor, ..head };
        let lost = (marks.floor.seq > 0).then(|| marks.reason.as_str().to_owned());
        Some(Kept {
            messages: messages as u64,
            bytes,
            epoch: head.epoch.to_string(),
            head: head.to_string(),
            floor: floor.to_string(),
            lost,
        })
    }

    fn counted(&self, topic: TopicView<'_>) -> TopicCount {
        let window = self.observed.as_ref().map(|observed| &observed.topics);
        TopicCount {
            topic: topic.name.into(),
            members: topic.members as u64,
            deliveries_per_s: window.and_then(|window| window.rate(topic.deliveries_before)),
            kept: None,
        }
    }

    fn members_of(&self, io: &Io, name: &str, most: usize) -> MembersHere {
        let kept = self.kept(name);
        let Some(id) = self.core.find_topic(name) else {
            return MembersHere { kept, ..MembersHere::default() };
        };
        let total = self.core.topic(id).map_or(0, |topic| topic.members as u64);
        let first = self.core.members(id).take(most);
        let rows = first.filter_map(|key| self.row(io, key, TOPICS_IN_ROW)).collect();
        MembersHere { total, rows, kept }
    }

    fn row(&self, io: &Io, key: Key, topics_most: usize) -> Option<ConnectionRow> {
        let socket = &io.conn_ref(key)?.socket;
        let now = io.now().tick;
        let (age, age_is_more) = socket.age_ticks(now);
        let has_request = !matches!(socket.phase(), Phase::Head | Phase::Full);
        let user_socket =
            self.server.user_sockets.get(usize::from(socket.user_socket())).filter(|_| has_request);
        let topics = self.core.topics_of(socket).take(topics_most).map(|name| shortened(&name));
        let socket_id = socket.state().and_then(|state| state.id.as_deref());
        let senders = self.observed.as_ref().map(|observed| &observed.senders);
        let limit_met = self.core.limit_met(key, io.now().ns);
        Some(ConnectionRow {
            id: format!("{}.{}.{}", self.index, key.slot, key.generation),
            peer: io.peer_addr(key).ok().map(|peer| peer.to_string()),
            path: user_socket
                .map(|user_socket| user_socket.parts().path.clone())
                .unwrap_or_default(),
            wire: wire_name(socket.wire()).to_owned(),
            state: phase_name(socket.phase()).to_owned(),
            socket_id: socket_id.map(shortened),
            channels: u64::from(socket.channels()),
            topics: topics.collect(),
            age_s: (TICK * age).as_secs(),
            age_is_more,
            quiet_s: (TICK * now.saturating_sub(socket.last_heard())).as_secs_f64(),
            queued_bytes: io.queued(key) as u64,
            messages_per_s: senders.and_then(|senders| senders.rate(key)),
            limit: limit_met.map(|(limit, _)| limit.name().to_owned()),
            limited: limit_met.map_or(0, |(_, count)| count.into()),
        })
    }

    fn disconnect(&mut self, io: &mut Io, key: Key) -> bool {
        let Some(conn) = io.conn_ref(key) else { return false };
        if matches!(conn.socket.phase(), Phase::Closing | Phase::Ending) {
            return false;
        }
        let is_open = conn.socket.is_open();
        self.metrics.observer_disconnects.add(1);
        let peer = io.peer_addr(key).ok();
        tracing::info!(
            shard = self.index,
            slot = key.slot,
            ?peer,
            "disconnected a socket at the observer's request"
        );
        if is_open {
            let (core, mut out) = self.parts(io);
            core.close(&mut out, key, CloseCode::GOING_AWAY);
        } else {
            io.close(key);
        }
        true
    }
}

/// CPU time of this thread: while others have its core, a walk costs nothing.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

impl Walk {
    fn answer(self) {
        let busy = self.busy;
        match self.over {
            Over::Topics { rows, sample, .. } => {
                let sample = sample.heap.into_iter().map(|Reverse((hash, ()))| hash).collect();
                rows.send(self.total, sample, busy);
            }
            Over::Kept { rows, .. } => rows.send(self.total, Vec::new(), busy),
            Over::Connections { rows, .. } => rows.send(self.total, Vec::new(), busy),
        }
    }
}

/// The same on all shards.
fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

fn topic_value(topic: TopicView<'_>, by: TopicOrder) -> u64 {
    match by {
        TopicOrder::Members => topic.members as u64,
        // `Kept` has its own walk.
        TopicOrder::Deliveries | TopicOrder::Kept => u64::from(topic.deliveries_before),
    }
}

fn connection_value(io: &Io, key: Key, by: ConnectionOrder) -> u64 {
    let Some(conn) = io.conn_ref(key) else { return 0 };
    match by {
        ConnectionOrder::Queue => io.queued(key) as u64,
        ConnectionOrder::Age => u64::from(conn.socket.age_ticks(io.now().tick).0) + 1,
        ConnectionOrder::Channels => u64::from(conn.socket.channels()),
        ConnectionOrder::Rate => 0,
    }
}

fn is_from(io: &Io, key: Key, peer: Peer) -> bool {
    io.peer_addr(key).is_ok_and(|it| {
        it.ip().to_canonical() == peer.address.to_canonical()
            && peer.port.is_none_or(|port| it.port() == port)
    })
}

fn shortened(name: &str) -> String {
    name.get(..name.floor_char_boundary(NAME_BYTES_MAX)).unwrap_or_default().to_owned()
}

fn wire_name(wire: Wire) -> &'static str {
    match wire {
        Wire::V1 | Wire::V1Deflate => "v1",
        Wire::V2 | Wire::V2Deflate => "v2",
        Wire::Plain | Wire::PlainDeflate => "plain",
        Wire::Values => "values",
    }
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Head => "head",
        Phase::Full => "full",
        Phase::Relay => "relay",
        Phase::Connecting | Phase::Waiting => "pending",
        Phase::Open => "open",
        Phase::Closing => "closing",
        Phase::Ending => "ending",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_entries_are_listed_in_order() {
        let mut top = Top::new(3);
        for value in [5, 1, 9, 7, 3, 8, 2] {
            top.offer(value, value);
        }
        let sorted: Vec<_> = top.into_sorted().map(|Reverse((_, it))| it).collect();
        assert_eq!(sorted, [9, 8, 7]);
        let mut none = Top::new(0);
        none.offer(1, 1);
        assert_eq!(none.into_sorted().count(), 0);
    }

    #[test]
    fn busiest_sender_is_found_among_many() {
        let mut senders = TopSenders::default();
        let key = |slot| Key { slot, generation: 0 };
        for round in 0..100_000_u32 {
            senders.count(key(round));
            if round % 10 == 0 {
                senders.count(key(u32::MAX));
            }
        }
        assert!(senders.counts.len() <= SENDERS_MAX);
        let most = senders.counts.iter().max_by_key(|(_, count)| **count);
        let (found, count) = most.map(|(key, count)| (*key, *count)).unwrap();
        assert_eq!(found, key(u32::MAX));
        assert!((9_800..=10_000).contains(&count), "{count}");
    }

    #[test]
    fn rate_needs_two_separate_samples() {
        let mut window = Window::default();
        assert!(window.roll(7));
        assert_eq!(window.rate(5), None);
        assert!(!window.roll(7 + WINDOW_MIN.as_nanos() as u64 / 2));
        assert!(window.roll(7 + 2_000_000_000));
        assert_eq!(window.rate(5), Some(2.5));
    }
}
