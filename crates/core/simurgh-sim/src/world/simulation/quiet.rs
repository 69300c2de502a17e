//! One node at rest: everything is delivered. When all have left, nothing is left.

use std::time::Duration;

use simurgh_core::{NETWORK, Phase};
use simurgh_data::Now;

use super::Simulation;
use crate::world::Shard;
use crate::world::ledger::sessions::ticks;

const ROUNDS_MAX: u64 = 4_000;

impl Simulation {
    /// Delivers everything, and checks that all clients have received what was due.
    pub(super) fn rest_one_node(&mut self) {
        self.shared.ledger().counts.count("rests", 1);
        let shards = self.shared.plan.nodes[0];
        // Frames of replays are kept for a while.
        let (least, pause_ns) = match self.shared.plan.alone {
            Some(_) => (20, 50_000_000),
            None => (0, 5_000_000),
        };
        for round in 0..ROUNDS_MAX {
            let mut is_busy = false;
            for shard in 0..shards {
                while self.take_mail(0, shard) {
                    is_busy = true;
                }
            }
            while self.was_read(0) {
                is_busy = true;
            }
            for client in 0..self.clients.len() {
                is_busy |= self.read(client, usize::MAX);
                is_busy |= self.take_all(client);
            }
            for shard in 0..shards {
                is_busy |= self.turn(0, shard);
            }
            self.clock_ns += pause_ns;
            if self.shared.has_failed() {
                return;
            }
            is_busy |= self.node(0).is_some_and(|node| node.decide_next(0));
            if !is_busy && round >= least && self.unrest().is_none() {
                self.shared.ledger().check_delivered();
                self.check_histories();
                return self.check_census();
            }
            // Only events of presence are still to come.
            if !is_busy && self.presence_unrest().is_some() {
                self.clock_ns += 60_000_000;
            }
        }
        let text = self.unrest().unwrap_or_default();
        self.shared.ledger().fail("rest", format!("it does not come to rest: {text}"));
    }

    fn check_histories(&self) {
        if self.shared.plan.alone.is_none() {
            return;
        }
        let shards = self.running_nodes().flat_map(|it| &it.shards);
        let unconfirmed = shards.map(|it| it.metrics.errors_unconfirmed.value()).sum();
        let mut ledger = self.shared.ledger();
        ledger.check_stored(unconfirmed);
        ledger.check_views();
    }

    fn take_all(&mut self, client: usize) -> bool {
        let mut has_taken = false;
        self.polls(client);
        while self.receive(client, usize::MAX) {
            has_taken = true;
        }
        has_taken
    }

    fn unrest(&self) -> Option<String> {
        let running = self.nodes[0].as_ref()?;
        let state = running.node.state();
        for (shard, it) in running.shards.iter().enumerate().filter(|(_, it)| !it.has_ended) {
            if state.charged[shard] > 0 {
                return Some(format!("bytes under way in shard {shard}: {:?}", state.charged));
            }
            if it.metrics.fanout_topics.value() > 0 {
                return Some(format!("shard {shard} fans out"));
            }
        }
        drop(state);
        for client in 0..self.clients.len() {
            let Some((conn, _, shard, key)) = self.line(client) else { continue };
            let Some(peer) = running.shards[shard].net.peer(key) else { continue };
            if peer.is_held && peer.socket.phase() != Phase::Waiting {
                return Some(format!("socket {conn} is held"));
            }
            let has_all = peer.queue.is_empty() && peer.pipe.is_empty() && peer.heard.is_empty();
            if !has_all && !peer.is_mute {
                return Some(format!("socket {conn} has not taken all"));
            }
        }
        self.presence_unrest()
    }

    /// Events of presence that are still to come, or topics that are kept without entries.
    fn presence_unrest(&self) -> Option<String> {
        let shards = &self.nodes[0].as_ref()?.shards;
        let keeps_nothing = |server: &Shard| {
            let counts = server.core.presences();
            counts.topics > 0 && counts.entries == 0
        };
        if let Some(shard) = shards.iter().position(keeps_nothing) {
            return Some(format!("shard {shard} keeps topics without presences"));
        }
        // A list that was asked for while another one was in transit.
        let is_due = |it: &Shard| !it.has_ended && it.core.presences().is_due;
        if let Some(shard) = shards.iter().position(is_due) {
            return Some(format!("shard {shard} has something to tell"));
        }
        let kept = shards.iter().map(|server| server.metrics.presences.value()).sum();
        let refused =
            shards.iter().map(|server| server.metrics.errors_presence_refused.value()).sum();
        self.shared.ledger().presence_unrest(kept, refused)
    }

    /// All clients fall silent: undecided joins time out, and sockets may close for their silence.
    pub(super) fn fall_silent(&mut self) {
        let config = self.shared.plan.config.clone();
        let longest = config.decision_timeout + config.idle_timeout.unwrap_or_default();
        let until_ns = self.clock_ns + (longest + Duration::from_secs(20)).as_nanos() as u64;
        while self.clock_ns < until_ns && !self.shared.has_failed() {
            (0..self.shared.plan.nodes[0]).for_each(|shard| _ = self.turn(0, shard));
            while self.was_read(0) {}
            (0..self.clients.len()).for_each(|client| _ = self.take_all(client));
            self.clock_ns += 500_000_000;
        }
        let forgotten = (0..self.clients.len()).find(|client| self.is_forgotten(*client));
        if let Some(client) = forgotten {
            let text = format!("client {client} is connected after {longest:?} of silence");
            self.shared.ledger().fail("silence", text);
        }
    }

    /// Whether a socket's time was over long ago.
    fn is_forgotten(&self, client: usize) -> bool {
        const SLACK: u32 = 100;
        let config = &self.shared.plan.config;
        let Some((_, _, shard, key)) = self.line(client) else { return false };
        let Some(running) = self.nodes[0].as_ref() else { return false };
        let Some(peer) = running.shards[shard].net.peer(key) else { return false };
        let silent = Now::from_ns(self.local_ns(0)).tick.saturating_sub(peer.socket.last_heard());
        let limit = match peer.socket.phase() {
            Phase::Waiting => Some(config.decision_timeout),
            Phase::Open if peer.socket.transport == NETWORK && peer.inbound.is_empty() => {
                config.idle_timeout
            }
            _ => None,
        };
        limit.is_some_and(|limit| silent > ticks(limit) + SLACK)
    }
}
