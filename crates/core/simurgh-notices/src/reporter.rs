//! The memberships of one node, and what each coordinator knows of them.
//!
//! A node reports for each key that its first membership there began, and that its last one ended.
//! At most one report of a partition is in flight. What changes meanwhile is gathered by key, so a
//! report has each key once, with its newest state; an answer that is lost costs only a repetition.

use core::mem;

use simurgh_data::prelude::*;

use crate::key::{Key, MILLISECOND, PARTITIONS, Reason, SECOND, Time};
use crate::keyed::{HasKey, Keyed};
use crate::report::{Change, Report, Verdict};

/// Ends are part of a state for so long, so that a new coordinator learns of them.
pub(crate) const ENDS_NS: u64 = 60 * SECOND;
/// Without changes, an empty report is sent after this time: the coordinator may have begun anew,
/// or have regarded this node as gone.
const CHECK_NS: u64 = 3 * SECOND;
/// A report that was not taken is repeated after this time.
const RETRY_NS: u64 = SECOND / 2;

#[derive(Debug)]
struct Local {
    key: Key,
    began_ms: u64,
    /// 0 while there are memberships.
    ended_ns: u64,
    count: u32,
    reason: Reason,
    partition: u8,
    /// It changed since the last report.
    is_changed: bool,
}

// Budget: 100 bytes for a membership, with its key and its place in the index.
const _: () = assert!(simurgh_data::Slab::<Local>::SLOT_BYTES <= 56);

impl HasKey for Local {
    fn key(&self) -> &Key {
        &self.key
    }
}

#[derive(Debug, Default)]
struct Part {
    leader: Option<u64>,
    version: u64,
    /// The version that the coordinator has; 0: it needs the whole state.
    taken: u64,
    changed: Vec<u32>,
    in_flight: Option<InFlight>,
    /// When a report may leave, and when one has to.
    retry_ns: u64,
    check_ns: u64,
}

#[derive(Debug)]
struct InFlight {
    call: u64,
    /// 0: its answer does not count any more.
    to: u64,
    keys: Vec<u32>,
}

/// The memberships of this node.
#[derive(Debug)]
pub struct Reporter {
    locals: Keyed<Local>,
    parts: [Part; PARTITIONS as usize],
    /// Ended keys, the oldest first.
    ended: VecDeque<(u64, u32)>,
    /// The number of the last report.
    call: u64,
}

impl Reporter {
    /// Without memberships. `seed` must not be guessable.
    pub fn new(seed: u64) -> Self {
        let parts = core::array::from_fn(|_| Part { version: 1, ..Part::default() });
        Self { locals: Keyed::new(seed), parts, ended: VecDeque::new(), call: 0 }
    }

    /// A membership begins.
    pub fn begin(&mut self, key: Key, time: Time) {
        let at = self.locals.find(&key).unwrap_or_else(|| {
            let (partition, began_ms) = (key.partition(), time.unix_ms);
            let (count, reason, is_changed) = (0, Reason::Closed, false);
            let local = Local { key, began_ms, ended_ns: 0, count, reason, partition, is_changed };
            self.locals.insert(local)
        });
        let Some(local) = self.locals.get_mut(at) else { return };
        local.count += 1;
        if local.count == 1 {
            (local.began_ms, local.ended_ns) = (time.unix_ms, 0);
            self.change(at);
        }
    }

    /// A membership ends.
    pub fn end(&mut self, key: &Key, reason: Reason, time: Time) {
        let Some(at) = self.locals.find(key) else { return };
        let Some(local) = self.locals.get_mut(at).filter(|local| local.count > 0) else { return };
        local.count -= 1;
        if local.count == 0 {
            (local.ended_ns, local.reason) = (time.ns.max(1), reason);
            self.ended.push_back((local.ended_ns, at));
            self.change(at);
        }
    }

    /// This node regards another one as the coordinator of a partition, or none.
    pub fn set_leader(&mut self, partition: u8, leader: Option<u64>) {
        let Some(part) = self.parts.get_mut(usize::from(partition)) else { return };
        if part.leader != leader {
            part.leader = leader;
            (part.taken, part.in_flight, part.retry_ns) = (0, None, 0);
        }
    }

    /// The next report, with its coordinator and its number. It has to be answered, unless the
    /// coordinator changes.
    pub fn next_report(&mut self, time: Time) -> Option<(u64, u64, Report)> {
        let due_ns = |part: &Part| part.due_ns().is_some_and(|due_ns| due_ns <= time.ns);
        let partition = self.parts.iter().position(due_ns)?;
        let part = self.parts.get_mut(partition)?;
        let (leader, from, to) = (part.leader?, part.taken, part.version);
        let partition = partition as u8;
        let mut keys = mem::take(&mut part.changed);
        if from == 0 {
            let of_it = self.locals.iter().filter(|(_, local)| local.partition == partition);
            keys = of_it.map(|(at, _)| at).collect();
        }
        let mut changes = Vec::with_capacity(keys.len());
        keys.retain(|at| {
            let local = self.locals.get_mut(*at).filter(|it| it.partition == partition);
            let Some(local) = local else { return false };
            let is_new = mem::take(&mut local.is_changed) || from == 0;
            if is_new {
                changes.push(local.to_change(time));
            }
            is_new
        });
        self.call += 1;
        let call = self.call;
        let part = self.parts.get_mut(usize::from(partition))?;
        part.in_flight = Some(InFlight { call, to, keys });
        Some((leader, call, Report { partition, from, to, changes }))
    }

    /// The report of a partition has its answer; `None`: it was lost.
    pub fn answered(&mut self, partition: u8, call: u64, verdict: Option<Verdict>, time: Time) {
        let Some(part) = self.parts.get_mut(usize::from(partition)) else { return };
        let in_flight = part.in_flight.take_if(|it| it.call == call);
        let Some(InFlight { to, keys, .. }) = in_flight else { return };
        match verdict {
            Some(Verdict::Taken) => {
                (part.taken, part.check_ns) = (to, time.ns.saturating_add(CHECK_NS));
                return;
            }
            Some(Verdict::StateWanted) => return part.need_state(),
            Some(Verdict::NotCoordinator) => part.need_state(),
            None => {}
        }
        part.retry_ns = time.ns.saturating_add(RETRY_NS);
        keys.into_iter().for_each(|at| self.mark(partition, at));
    }

    /// Forgets ends that are too old for a state.
    pub fn tick(&mut self, time: Time) {
        while let Some((ended_ns, at)) = self.ended.front().copied()
            && ended_ns.saturating_add(ENDS_NS) <= time.ns
        {
            self.ended.pop_front();
            let Some(local) = self.locals.get(at).filter(|it| it.ended_ns == ended_ns) else {
                continue;
            };
            let (is_changed, partition) = (local.is_changed, usize::from(local.partition));
            self.locals.remove(at);
            let Some(part) = self.parts.get_mut(partition) else { continue };
            if is_changed || part.in_flight.is_some() {
                // The coordinator may not know that it ended: the next state does not have it.
                part.need_state();
            }
        }
    }

    /// When it has something to do next by itself.
    pub fn next_ns(&self) -> Option<u64> {
        let retry_ns = self.parts.iter().filter_map(Part::due_ns).min();
        let ended_ns = self.ended.front().map(|(ended_ns, _)| ended_ns.saturating_add(ENDS_NS));
        [retry_ns, ended_ns].into_iter().flatten().min()
    }

    /// How many keys have memberships here, or ended in the last minute.
    pub fn len(&self) -> usize {
        self.locals.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.locals.len() == 0
    }

    fn change(&mut self, at: u32) {
        let Some(partition) = self.locals.get(at).map(|local| local.partition) else { return };
        if let Some(part) = self.parts.get_mut(usize::from(partition)) {
            part.version += 1;
        }
        self.mark(partition, at);
    }

    fn mark(&mut self, partition: u8, at: u32) {
        let local = self.locals.get_mut(at).filter(|local| local.partition == partition);
        if let Some(local) = local
            && !mem::replace(&mut local.is_changed, true)
            && let Some(part) = self.parts.get_mut(usize::from(partition))
        {
            part.changed.push(at);
        }
    }
}

impl Part {
    /// When its next report leaves.
    fn due_ns(&self) -> Option<u64> {
        let has_news = self.taken == 0 || !self.changed.is_empty();
        let due_ns = if has_news { self.retry_ns } else { self.check_ns.max(self.retry_ns) };
        (self.leader.is_some() && self.in_flight.is_none()).then_some(due_ns)
    }

    fn need_state(&mut self) {
        self.taken = 0;
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.to = 0;
        }
    }
}

impl Local {
    fn to_change(&self, time: Time) -> Change {
        let Self { key, began_ms, ended_ns, reason, .. } = self;
        let age_ms = time.ns.saturating_sub(*ended_ns) / MILLISECOND;
        let ended = (self.count == 0).then_some((age_ms, *reason));
        Change { key: key.clone(), began_ms: *began_ms, ended }
    }
}
