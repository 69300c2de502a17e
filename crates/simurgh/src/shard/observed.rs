//! What somebody who looks is shown of a shard.
//!
//! Lists come from a walk over the records, some 100 µs in a millisecond, so that nobody notices; a
//! list is a heap of as many as are wanted. A record has no counter of its messages: while somebody
//! looks, the most talkative are counted beside the records. When nobody has asked for a while all
//! this is gone.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

use simurgh_proto::ws::CloseCode;
use simurgh_reactor::{Key, Next};

use super::conn::{Phase, Wire};
use super::lifecycle::TICK;
use super::members::{RELAY, SOCKET_ID};
use super::topics::{Topic, TopicId};
use super::{Io, Shard};
use crate::observe::{
    Answer, Ask, ConnectionOrder, ConnectionRow, Peer, Surveyed, TopicCount, TopicOrder,
};

/// Longest slice of a walk, and the time between two.
const SLICE: Duration = Duration::from_micros(100);
const SLICE_EVERY: Duration = Duration::from_millis(1);
/// Records between two looks at the clock.
const STRIDE: usize = 64;
/// The same where names are searched, or the system is asked for addresses.
const SLOW_STRIDE: usize = 16;
/// Without a question for so long nobody looks any more.
const KEPT: Duration = Duration::from_secs(20);
/// A rate is measured over no less.
const WINDOW_MIN: Duration = Duration::from_millis(900);
/// Rows that are put together between two looks at the clock.
const ROWS_STRIDE: usize = 4;
/// Connections whose messages are counted.
const TALKERS_MAX: usize = 1024;
/// Topics that a row names, and one alone; bytes of each name.
const TOPICS_IN_ROW: usize = 3;
const TOPICS_ALONE: usize = 100;
const NAME_BYTES_MAX: usize = 200;

/// Kept while somebody looks.
pub(super) struct Observed {
    walk: Option<Walk>,
    next_slice: Instant,
    asked: Instant,
    topics: Window,
    talkers: Talkers,
}

/// A stretch of time over which something is counted.
#[derive(Default)]
struct Window {
    since: Option<Instant>,
    /// How long the one before was, seconds.
    before_s: Option<f64>,
}

impl Window {
    /// Begins the next if this one is long enough; whether it did.
    fn roll(&mut self, now: Instant) -> bool {
        let length = self.since.map(|since| now.saturating_duration_since(since));
        if length.is_some_and(|length| length < WINDOW_MIN) {
            return false;
        }
        self.since = Some(now);
        self.before_s = length.map(|length| length.as_secs_f64());
        true
    }

    /// So many in the window before as a rate.
    fn rate(&self, count: u32) -> Option<f64> {
        self.before_s.map(|seconds| f64::from(count) / seconds)
    }
}

/// Counts messages of those who send the most: never more than by how many it would count too few
/// for everybody, which is at most one in a thousand of all (Misra and Gries).
#[derive(Default)]
struct Talkers {
    window: Window,
    counts: HashMap<Key, u32>,
    before: HashMap<Key, u32>,
}

impl Talkers {
    fn heard(&mut self, key: Key) {
        if self.counts.len() >= TALKERS_MAX && !self.counts.contains_key(&key) {
            self.counts.retain(|_, count| {
                *count -= 1;
                *count > 0
            });
            return;
        }
        *self.counts.entry(key).or_default() += 1;
    }

    fn roll(&mut self, now: Instant) {
        if self.window.roll(now) {
            self.before = std::mem::take(&mut self.counts);
        }
    }

    fn rate(&self, key: Key) -> Option<f64> {
        self.window.rate(self.before.get(&key).copied().unwrap_or(0))
    }
}

/// The greatest of what was offered.
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
    fn into_sorted(self) -> impl Iterator<Item = T> {
        self.heap.into_sorted_vec().into_iter().map(|Reverse((_, it))| it)
    }
}

/// A walk over the records that is under way.
struct Walk {
    cursor: u32,
    total: u64,
    busy: Duration,
    over: Over,
}

/// What a walk is to find, and the rows that are put together when it has: each costs some cache
/// misses and a system call, so a hundred of them are no matter of one turn either.
struct Rows<T, R> {
    top: Top<T>,
    /// The greatest last; none while the walk goes on.
    found: Option<Vec<T>>,
    rows: Vec<R>,
    answer: Answer<Surveyed<R>>,
}

impl<T: Ord + Copy, R> Rows<T, R> {
    fn new(most: usize, answer: Answer<Surveyed<R>>) -> Self {
        Self { top: Top::new(most), found: None, rows: Vec::new(), answer }
    }

    /// The walk is over.
    fn finish(&mut self) {
        let top = std::mem::replace(&mut self.top, Top::new(0));
        let mut found: Vec<T> = top.into_sorted().collect();
        found.reverse();
        self.found = Some(found);
    }

    /// Puts some rows together; whether they were the last.
    fn put_together(&mut self, row: impl Fn(T) -> Option<R>) -> bool {
        let Some(found) = &mut self.found else { return false };
        for _ in 0..ROWS_STRIDE {
            let Some(it) = found.pop() else { return true };
            self.rows.extend(row(it));
        }
        found.is_empty()
    }

    fn send(self, total: u64, busy: Duration) {
        let _ = self.answer.send(Surveyed { rows: self.rows, total, busy });
    }
}

enum Over {
    Topics { by: TopicOrder, search: Box<str>, roll: bool, rows: Rows<TopicId, TopicCount> },
    Connections { by: ConnectionOrder, peer: Option<Peer>, rows: Rows<Key, ConnectionRow> },
}

impl Observed {
    fn new(now: Instant) -> Self {
        Self {
            walk: None,
            next_slice: now,
            asked: now,
            topics: Window::default(),
            talkers: Talkers::default(),
        }
    }

    /// A message came from a client.
    pub(super) fn heard(&mut self, key: Key) {
        self.talkers.heard(key);
    }
}

impl Shard {
    /// Answers, or begins a walk for the answer. A walk that is under way is given up: whoever asks
    /// waits for the last, so nobody waits for that any more.
    pub(super) fn asked(&mut self, io: &mut Io, ask: Ask) {
        let now = Instant::now();
        // A receiver that is gone wants no answer.
        match ask {
            Ask::Counts { topics, answer } => {
                let counts = topics.iter().map(|name| self.topic_count(name)).collect();
                let _ = answer.send(counts);
            }
            Ask::Members { topic, most, answer } => {
                let _ = answer.send(self.members_of(io, &topic, most));
            }
            Ask::Connection { key, answer } => {
                let _ = answer.send(self.row(io, key, TOPICS_ALONE));
            }
            Ask::Disconnect { key, answer } => {
                let _ = answer.send(self.disconnect(io, key));
            }
            Ask::Topics { by, search, most, answer } => {
                let observed = self.observed(now);
                let roll = observed.topics.roll(now);
                let rows = Rows::new(most, answer);
                observed.begin(Over::Topics { by, search, roll, rows });
            }
            Ask::Connections { by, peer, most, answer } => {
                let observed = self.observed(now);
                observed.talkers.roll(now);
                observed.begin(Over::Connections { by, peer, rows: Rows::new(most, answer) });
            }
        }
    }

    fn observed(&mut self, now: Instant) -> &mut Observed {
        let observed = self.observed.get_or_insert_with(|| Box::new(Observed::new(now)));
        observed.asked = now;
        observed
    }

    /// Goes on with a walk, for one slice; says when it has to run again.
    pub(super) fn survey(&mut self, io: &mut Io) -> Next {
        let Some(observed) = &mut self.observed else { return Next::Idle };
        let began = Instant::now();
        let Some(mut walk) = observed.walk.take() else {
            let quiet = began.saturating_duration_since(observed.asked);
            if quiet < KEPT {
                return Next::After(KEPT - quiet);
            }
            self.observed = None;
            return Next::Idle;
        };
        if began < observed.next_slice {
            let wait = observed.next_slice - began;
            observed.walk = Some(walk);
            return Next::After(wait);
        }
        observed.next_slice = began + SLICE_EVERY;
        loop {
            let is_over = self.step(io, &mut walk);
            let took = began.elapsed();
            if is_over {
                walk.answer(took);
                return Next::After(KEPT);
            }
            if took >= SLICE {
                walk.busy += took;
                break;
            }
        }
        if let Some(observed) = &mut self.observed {
            observed.walk = Some(walk);
        }
        Next::After(SLICE_EVERY)
    }

    /// Looks at some records, or puts some rows together; whether they were the last.
    fn step(&mut self, io: &mut Io, walk: &mut Walk) -> bool {
        let is_over = match &mut walk.over {
            Over::Topics { rows, .. } if rows.found.is_some() => {
                return rows.put_together(|id| Some(self.counted(self.topics.get(id)?)));
            }
            Over::Connections { rows, .. } if rows.found.is_some() => {
                return rows.put_together(|key| self.row(io, key, TOPICS_IN_ROW));
            }
            Over::Topics { by, search, roll, rows } => {
                let places = if search.is_empty() { STRIDE } else { SLOW_STRIDE };
                self.topics.visit(&mut walk.cursor, places, |id, topic| {
                    if *roll {
                        topic.deliveries_before = std::mem::take(&mut topic.deliveries);
                    }
                    // One that only waits to leave the fan-out has no members.
                    if topic.members.len() > 0 && topic.name.contains(&**search) {
                        walk.total += 1;
                        rows.top.offer(topic_value(topic, *by), id);
                    }
                });
                walk.cursor == 0
            }
            Over::Connections { by: ConnectionOrder::Rate, peer: None, rows } => {
                // Who sent nothing has no place among them; that needs no walk.
                walk.total = io.len() as u64;
                let talkers = self.observed.as_ref().map(|observed| &observed.talkers.before);
                for (key, count) in talkers.into_iter().flatten() {
                    if io.conn_ref(*key).is_some() {
                        rows.top.offer(u64::from(*count), *key);
                    }
                }
                true
            }
            Over::Connections { by, peer, rows } => {
                let places = if peer.is_some() { SLOW_STRIDE } else { STRIDE };
                let mut keys = Vec::with_capacity(places);
                io.sweep(&mut walk.cursor, places, |_, _| true, &mut keys);
                for key in keys {
                    if peer.is_some_and(|peer| !is_from(io, key, peer)) {
                        continue;
                    }
                    walk.total += 1;
                    let value = connection_value(io, key, *by);
                    // Nothing waits for most: they are no part of that order.
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
                Over::Connections { rows, .. } => rows.finish(),
            }
        }
        false
    }

    fn topic_count(&self, name: &str) -> TopicCount {
        let topic = self.topics.find(name).and_then(|id| self.topics.get(id));
        topic.map_or_else(TopicCount::default, |topic| self.counted(topic))
    }

    fn counted(&self, topic: &Topic) -> TopicCount {
        let window = self.observed.as_ref().map(|observed| &observed.topics);
        TopicCount {
            topic: (&*topic.name).into(),
            members: topic.members.len() as u64,
            deliveries_per_s: window.and_then(|window| window.rate(topic.deliveries_before)),
        }
    }

    fn members_of(&self, io: &Io, name: &str, most: usize) -> (u64, Vec<ConnectionRow>) {
        let topic = self.topics.find(name).and_then(|id| self.topics.get(id));
        let Some(topic) = topic else { return (0, Vec::new()) };
        let members = (0..topic.members.len()).filter_map(|at| topic.members.get(at));
        let rows = members.take(most).filter_map(|it| self.row(io, it.conn, TOPICS_IN_ROW));
        (topic.members.len() as u64, rows.collect())
    }

    fn row(&self, io: &Io, key: Key, topics_most: usize) -> Option<ConnectionRow> {
        let conn = io.conn_ref(key)?;
        let now = io.now().tick;
        let (age, age_is_more) = conn.age_ticks(now);
        let has_request = !matches!(conn.phase, Phase::Head | Phase::Full);
        let mount = self.hub.mounts.get(usize::from(conn.mount)).filter(|_| has_request);
        let mut topics = Vec::new();
        let mut next = conn.memberships;
        while let Some(it) = self.members.get(next).filter(|_| topics.len() < topics_most) {
            next = it.next;
            if !it.is(SOCKET_ID | RELAY) {
                topics.extend(self.topics.get(it.topic).map(|topic| shortened(&topic.name)));
            }
        }
        let socket_id = conn.socket.as_ref().and_then(|socket| socket.id.as_deref());
        let talkers = self.observed.as_ref().map(|observed| &observed.talkers);
        Some(ConnectionRow {
            id: format!("{}.{}.{}", self.index, key.slot, key.generation),
            peer: io.peer_addr(key).ok().map(|peer| peer.to_string()),
            path: mount.map(|mount| mount.path.clone()).unwrap_or_default(),
            wire: wire_name(conn.wire).to_owned(),
            state: phase_name(conn.phase).to_owned(),
            socket_id: socket_id.map(shortened),
            channels: u64::from(conn.channels),
            topics,
            age_s: (TICK * age).as_secs(),
            age_is_more,
            quiet_s: (TICK * now.saturating_sub(conn.last_heard)).as_secs_f64(),
            queued_bytes: io.queued(key) as u64,
            messages_per_s: talkers.and_then(|talkers| talkers.rate(key)),
        })
    }

    /// Closes a connection for somebody who looks.
    fn disconnect(&mut self, io: &mut Io, key: Key) -> bool {
        let Some(conn) = io.conn_ref(key) else { return false };
        let is_open = match conn.phase {
            Phase::Open => true,
            Phase::Pending => conn.is_upgraded(),
            Phase::Closing | Phase::Ending => return false,
            Phase::Head | Phase::Full => false,
        };
        self.metrics.observer_disconnects.add(1);
        let peer = io.peer_addr(key).ok();
        tracing::info!(shard = self.index, slot = key.slot, ?peer, "disconnected by an observer");
        if is_open {
            self.close_socket(io, key, CloseCode::GOING_AWAY);
        } else {
            io.close(key);
        }
        true
    }
}

impl Walk {
    /// Sends the rows, now that all are there.
    fn answer(self, took: Duration) {
        let busy = self.busy + took;
        match self.over {
            Over::Topics { rows, .. } => rows.send(self.total, busy),
            Over::Connections { rows, .. } => rows.send(self.total, busy),
        }
    }
}

impl Observed {
    fn begin(&mut self, over: Over) {
        self.walk = Some(Walk { cursor: 0, total: 0, busy: Duration::ZERO, over });
    }
}

fn topic_value(topic: &Topic, by: TopicOrder) -> u64 {
    match by {
        TopicOrder::Members => topic.members.len() as u64,
        TopicOrder::Deliveries => u64::from(topic.deliveries_before),
    }
}

fn connection_value(io: &Io, key: Key, by: ConnectionOrder) -> u64 {
    let Some(conn) = io.conn_ref(key) else { return 0 };
    match by {
        ConnectionOrder::Queue => io.queued(key) as u64,
        // Everybody has an age.
        ConnectionOrder::Age => u64::from(conn.age_ticks(io.now().tick).0) + 1,
        ConnectionOrder::Channels => u64::from(conn.channels),
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
        Wire::V1 => "v1",
        Wire::V2 => "v2",
        Wire::Plain => "plain",
        Wire::Values => "values",
    }
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Head => "head",
        Phase::Full => "full",
        Phase::Pending => "pending",
        Phase::Open => "open",
        Phase::Closing => "closing",
        Phase::Ending => "ending",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_are_kept_in_order() {
        let mut top = Top::new(3);
        for value in [5, 1, 9, 7, 3, 8, 2] {
            top.offer(value, value);
        }
        assert_eq!(top.into_sorted().collect::<Vec<_>>(), [9, 8, 7]);
        let mut none = Top::new(0);
        none.offer(1, 1);
        assert_eq!(none.into_sorted().count(), 0);
    }

    #[test]
    fn whoever_talks_most_is_found_among_a_crowd() {
        let mut talkers = Talkers::default();
        let key = |slot| Key { slot, generation: 0 };
        for round in 0..100_000_u32 {
            talkers.heard(key(round));
            if round % 10 == 0 {
                talkers.heard(key(u32::MAX));
            }
        }
        assert!(talkers.counts.len() <= TALKERS_MAX);
        let most = talkers.counts.iter().max_by_key(|(_, count)| **count);
        let (found, count) = most.map(|(key, count)| (*key, *count)).unwrap();
        assert_eq!(found, key(u32::MAX));
        assert!((9_800..=10_000).contains(&count), "{count}");
    }

    #[test]
    fn a_rate_needs_two_looks_that_are_apart() {
        let (mut window, now) = (Window::default(), Instant::now());
        assert!(window.roll(now));
        assert_eq!(window.rate(5), None);
        assert!(!window.roll(now + WINDOW_MIN / 2));
        assert!(window.roll(now + Duration::from_secs(2)));
        assert_eq!(window.rate(5), Some(2.5));
    }
}
