//! Once everything is delivered, no client has missed anything; when all left, nothing is kept.

use crate::kit::NONE;
use crate::kit::peer::Peer;
use crate::kit::shard::Turns;

use super::ledger::BroadcastInfo;
use super::simulation::{HistorySimulation, Shard};

impl HistorySimulation {
    fn is_at_rest(&self) -> bool {
        let state = self.node.state();
        let has_none = |it: &Shard| {
            let all = |it: &Peer| {
                it.span.is_empty()
                    && it.inbound.is_empty()
                    && it.stash.is_empty()
                    && it.pipe.is_empty()
                    && it.queue.is_empty()
            };
            it.metrics.fanout_topics.value() == 0
                && it.core.replays() == 0
                && it.net.peers().all(all)
        };
        state.deciding.is_empty()
            && state.mailboxes.iter().all(|it| it.is_empty())
            && state.charged.iter().all(|it| *it == 0)
            && self.shards.iter().all(has_none)
    }

    /// Delivers everything in transit, and checks the state.
    pub(super) fn rest(&mut self) {
        while self.notice_gone() {}
        for _ in 0..2_000 {
            for shard in 0..self.shards.len() {
                while self.take_mail(0, shard) {}
                while self.finish_turn(0, shard) {}
            }
            while self.node.decide_next() {}
            for client in 0..self.clients.len() {
                while self.read(client, usize::MAX) {}
                while self.receive(client, usize::MAX) {}
            }
            if self.shared.has_failed() {
                return;
            }
            if self.is_at_rest() {
                return self.check_rest();
            }
            self.clock_ns += 5_000_000;
        }
        let state = self.node.state();
        let mail: Vec<usize> = state.mailboxes.iter().map(|it| it.len()).collect();
        let text = format!("it does not come to rest: mail {mail:?}, bytes {:?}", state.charged);
        drop(state);
        self.shared.ledger().fail("rest", text);
    }

    fn check_rest(&mut self) {
        let unconfirmed: u64 =
            self.shards.iter().map(|it| it.metrics.errors_unconfirmed.value()).sum();
        let mut ledger = self.shared.ledger();
        let before = ledger.counts.of("unconfirmed");
        ledger.counts.count("unconfirmed", unconfirmed - before);
        for client in self.clients.iter().filter(|it| it.connection.is_some()) {
            client.check_rest(&mut ledger);
        }
        let is_lost = |it: &BroadcastInfo| it.chan != NONE && !it.is_stored && !it.is_optional;
        let lost = ledger.broadcasts.iter().position(is_lost);
        if let Some(id) = lost.filter(|_| unconfirmed == 0) {
            ledger.fail("kept", format!("#{id} was broadcast, and is not stored"));
        }
        let heard = ledger.topics.iter().all(|it| it.heard.iter().all(|n| *n == it.stored.len()));
        if !heard {
            let text = "a shard has not heard all".to_owned();
            ledger.fail("kept", text);
        }
    }

    pub(super) fn end_all(&mut self) {
        if !self.shared.has_failed() {
            self.rest();
        }
        (0..self.clients.len()).for_each(|client| self.vanish(client));
        if !self.shared.has_failed() {
            self.rest();
        }
        self.check_left();
        // The handles and the node refer to each other.
        self.shared.ledger().handles.clear();
    }

    pub(super) fn check_left(&self) {
        if self.shared.has_failed() {
            return;
        }
        for (shard, server) in self.shards.iter().enumerate() {
            let left = server.core.history_waits();
            let it = &server.metrics;
            let gauges = [&it.sockets, &it.channels].map(|it| it.value());
            if left != 0 || gauges != [0; 2] {
                let text = format!("shard {shard}: {left} of history, gauges {gauges:?}");
                self.shared.ledger().fail("left", text);
            }
        }
    }
}
