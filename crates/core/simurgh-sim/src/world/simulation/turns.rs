//! How time advances: which shards and threads run, what is read and received, and in which order.

use super::Simulation;
use crate::world::Shard;
use crate::world::running::RunningNode;
use crate::world::thread::Command;

impl Simulation {
    pub(crate) fn complete_turn(&mut self, slot: usize, shard: usize) {
        if !self.is_frozen(slot) {
            self.finish_turn(slot, shard);
            self.end_shard(slot, shard);
        }
    }

    /// Ends a shard that has drained; with its last shard a node says bye.
    fn end_shard(&mut self, slot: usize, shard: usize) {
        let is_alone = self.shared.plan.is_one_node();
        let Some(running) = self.running(slot).filter(|_| !is_alone) else { return };
        let start = running.start;
        let Some(server) = running.shards.get_mut(shard) else { return };
        if !server.net.stops || server.has_ended {
            return;
        }
        server.has_ended = true;
        server.core.retire();
        running.node.end(shard);
        if running.shards.iter().all(|it| it.has_ended) {
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
            let topic = self.shared.ledger().broadcasts[id as usize].topic;
            let name = &self.shared.plan.topics[topic];
            let others = self.running_nodes().filter(|it| it.slot != slot);
            for running in others.filter(|it| {
                self.network.is_settled(it.link) && self.network.is_heard(it.link, name)
            }) {
                let mut ledger = self.shared.ledger();
                let mut shards = running.thread.shards(name);
                // A channel that is a member before another node publishes gets it, too.
                shards.extend(ledger.members(running.start, topic));
                shards
                    .iter()
                    .for_each(|it| ledger.expect_delivery(id, dropped, running.start, *it));
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
                    self.complete_turn(slot, shard);
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
