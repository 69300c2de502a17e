//! How time advances: which shards and threads run, what is read and received, and in which order.

use std::collections::BTreeSet;
use std::sync::Arc;

use simurgh_data::Key;

use super::Simulation;
use crate::world::Shard;
use crate::world::running::RunningNode;
use crate::world::thread::Command;

impl Simulation {
    /// Ends a turn of a shard, and the shard if it has drained; returns whether it has more to do.
    pub(crate) fn turn(&mut self, slot: usize, shard: usize) -> bool {
        self.end_unpolled(shard);
        let has_more = self.finish_turn(slot, shard);
        self.shared.ledger().counts.count("slices cut", u64::from(has_more));
        let it = self.shard(slot, shard).filter(|it| it.net.stops && !it.has_ended);
        if it.is_some() && !self.is_frozen(slot) && self.shared.plan.alone.is_none() {
            self.end_shard(slot, shard);
            return false;
        }
        has_more
    }

    /// Ends a shard that has drained; with its last shard a node of several says bye.
    fn end_shard(&mut self, slot: usize, shard: usize) {
        self.shared.note(|| format!("shard {shard} of node {slot} ends"));
        let Some(it) = self.shard(slot, shard) else { return };
        let keys: Vec<Key> = it.net.peers().map(|peer| peer.key).collect();
        keys.into_iter().for_each(|key| self.end_connection(slot, shard, key));
        let seed = self.shared.plan.seed;
        let Some(running) = self.running(slot) else { return };
        let it = &mut running.shards[shard];
        it.core.retire();
        it.has_ended = true;
        // What it had in transit is lost with it.
        it.core = Shard::new(&running.node, shard, Arc::clone(&it.metrics), seed).core;
        running.node.end(shard);
        let (start, has_ended) = (running.start, running.shards.iter().all(|it| it.has_ended));
        if self.shared.plan.is_one_node() {
            self.shared.ledger().sessions.shard_ended();
        } else if has_ended && let Some(running) = self.running(slot) {
            running.mailbox.post(Command::Bye);
            self.shared.ledger().starts[start].says_bye = true;
        }
    }

    pub(crate) fn run_thread(&mut self, slot: usize) {
        let clock_ns = self.clock_ns;
        let Some(running) = self.running(slot).filter(|it| !it.is_frozen) else { return };
        let sockets = running.shards.iter().map(|it| it.metrics.sockets.value()).sum();
        let time = running.time(clock_ns);
        let has_ended = running.thread.turn(time, sockets);
        let published = running.thread.take_published();
        let gone = std::mem::take(&mut running.thread.gone);
        self.expect_deliveries(slot, published);
        gone.into_iter().for_each(|(node, why)| self.check_gone(slot, node, why));
        self.check_bounds(slot);
        if has_ended {
            self.end_node(slot);
        }
    }

    fn expect_deliveries(&mut self, slot: usize, published: Vec<(u32, u64)>) {
        for (id, dropped) in published {
            let topic = self.shared.ledger().broadcasts[id as usize].topic as u8;
            let name = self.shared.plan.topics.name(topic);
            let others = self.running_nodes().filter(|it| it.slot != slot);
            for running in others.filter(|it| {
                self.network.is_settled(it.link) && self.network.is_heard(it.link, name)
            }) {
                let mut ledger = self.shared.ledger();
                let (start, first) = (running.start, running.node.first);
                let mut shards: BTreeSet<usize> =
                    running.thread.shards(name).into_iter().map(|it| first + it).collect();
                // A channel that is a member before another node publishes gets it, too.
                shards.extend(ledger.members(start, topic));
                shards.iter().for_each(|it| ledger.expect_delivery(id, dropped, start, *it));
            }
        }
    }

    /// Runs everything that is due once, in an order of the seed.
    fn run_all(&mut self) {
        let count = self.nodes.len();
        let first = self.rng.usize(..count);
        for slot in (0..count).map(|it| (first + it) % count) {
            let clock_ns = self.clock_ns;
            let Some(running) = self.running(slot).filter(|it| !it.is_frozen) else { continue };
            let (local_ns, shards) = (running.local_ns(clock_ns), running.shards.len());
            let is_machine_first = clock_ns.is_multiple_of(2);
            if is_machine_first && running.thread.is_due(local_ns) {
                self.run_thread(slot);
            }
            if let Some(running) = self.running(slot) {
                let waiting = running.node.state().deciding.len();
                (0..waiting).for_each(|_| _ = running.node.decide_next(0));
            }
            for shard in 0..shards {
                let mut has_run = false;
                while self.take_mail(slot, shard) {
                    has_run = true;
                }
                let is_due = |it: &Shard| it.next_ns <= local_ns;
                let server = self.running(slot).and_then(|it| it.shards.get(shard));
                if has_run || server.is_some_and(is_due) {
                    self.turn(slot, shard);
                }
            }
            if self.running(slot).is_some_and(|it| it.thread.is_due(local_ns)) {
                self.run_thread(slot);
            }
        }
        for client in 0..self.clients.len() {
            self.read(client, usize::MAX);
            while self.receive(client, usize::MAX) {}
        }
    }

    pub(crate) fn pass(&mut self, span_ns: u64) {
        let end_ns = self.clock_ns + span_ns;
        loop {
            self.run_all();
            self.check_links();
            if self.clock_ns >= end_ns || self.shared.has_failed() {
                return;
            }
            let next_ns = self.running_nodes().filter_map(RunningNode::next_ns).min();
            let next_ns = next_ns.into_iter().chain(self.network.next_at_ns()).min();
            let soon_ns = self.clock_ns + self.quantum_ns;
            self.clock_ns = next_ns.unwrap_or(end_ns).max(soon_ns).min(end_ns);
            self.shared.ledger().clock_ns = self.clock_ns;
            self.network.advance(self.clock_ns);
            self.read_log();
        }
    }
}
