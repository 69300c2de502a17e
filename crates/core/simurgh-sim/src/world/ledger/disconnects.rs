//! Disconnects of socket ids: which nodes were asked and have done it, and their outcomes.

use std::collections::BTreeSet;

use simurgh_cluster::DisconnectOutcome;

use super::Ledger;
use crate::world::plan::SECOND;

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
    pub(crate) fn note_closed(&mut self, start: usize, id: usize) {
        for it in self.disconnects.iter_mut().filter(|it| it.id == id) {
            it.done.insert(start);
        }
    }

    pub(crate) fn check_outcome(&mut self, number: usize, outcome: &DisconnectOutcome) {
        self.counts.count("outcomes", 1);
        let starts_of = |nodes: &[simurgh_cluster::NodeId]| -> BTreeSet<usize> {
            nodes.iter().filter_map(|it| self.start_of(*it)).collect()
        };
        let (confirmed, missing) = (starts_of(&outcome.confirmed), starts_of(&outcome.missing));
        let Some(it) = self.disconnects.get_mut(number) else { return };
        let was_told = !std::mem::replace(&mut it.waits, false);
        let untrue: Vec<usize> = confirmed.difference(&it.done).copied().collect();
        let (known, done) = (it.known.clone(), it.done.clone());
        // A node that was known, runs and has not done it may still serve such a socket.
        let unsaid = |start: &usize| {
            let is_alive = self.starts.get(*start).is_some_and(|it| it.is_alive && !it.says_bye);
            is_alive && !done.contains(start) && !missing.contains(start)
        };
        let unsaid: Vec<usize> = known.iter().copied().filter(unsaid).collect();
        self.counts.count("missing", missing.len() as u64);
        if was_told || !untrue.is_empty() || !unsaid.is_empty() {
            let text = format!(
                "disconnect {number} is told as {outcome:?}: confirmed {untrue:?} have not done \
                 it, {unsaid:?} are alive and not named, told before: {was_told}"
            );
            self.fail("outcome", text);
        }
    }

    /// All faults were repaired once: every running node has carried out the disconnects.
    pub(crate) fn check_disconnects(&mut self, mended_ns: u64) {
        let now_ns = self.clock_ns;
        let mut wrong = None;
        for (number, it) in self.disconnects.iter().enumerate() {
            let is_over = now_ns > it.at_ns + LIFE_NS + 2 * SECOND;
            if !self.is_alive(it.by) {
                continue;
            }
            if it.waits && is_over {
                wrong = Some(format!("nobody is told what became of disconnect {number}"));
            }
            let is_due =
                mended_ns + 2 * SPAN_NS < it.at_ns + LIFE_NS && mended_ns + 2 * SPAN_NS < now_ns;
            let left =
                it.alive.iter().find(|start| self.is_alive(**start) && !it.done.contains(start));
            if let Some(start) = left.filter(|_| is_due) {
                wrong = Some(format!("start {start} has not done disconnect {number}: {it:?}"));
            }
        }
        if let Some(text) = wrong {
            self.fail("disconnect", text);
        }
    }
}
