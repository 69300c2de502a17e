//! Where everything is at rest nobody has missed anything, and when all have gone nothing is left.

use super::account::Made;
use super::world::{Server, World};
use crate::model::NONE;

impl World {
    fn is_at_rest(&self) -> bool {
        let state = self.node.state();
        let has_none = |it: &Server| {
            let all = |it: &crate::peer::Peer| {
                it.span.is_empty()
                    && it.inbound.is_empty()
                    && it.stash.is_empty()
                    && it.pipe.is_empty()
                    && it.waits() == 0
            };
            it.metrics.fanout_topics.value() == 0
                && it.core.replays() == 0
                && it.net.peers().all(all)
        };
        state.deciding.is_empty()
            && state.mailboxes.iter().all(|it| it.is_empty())
            && state.charged.iter().all(|it| *it == 0)
            && self.servers.iter().all(has_none)
    }

    /// Everything that is on its way comes, and is looked at.
    pub(super) fn rests(&mut self) {
        while self.notices() {}
        for _ in 0..2_000 {
            for shard in 0..self.servers.len() {
                while self.takes_mail(shard) {}
                while self.ends_turn(shard) {}
            }
            while self.decides() {}
            for client in 0..self.clients.len() {
                while self.reads(client, usize::MAX) {}
                while self.takes(client, usize::MAX) {}
            }
            if self.has_failed() {
                return;
            }
            if self.is_at_rest() {
                return self.looks();
            }
            self.clock_ns += 5_000_000;
        }
        let state = self.node.state();
        let mail: Vec<usize> = state.mailboxes.iter().map(|it| it.len()).collect();
        let mut text =
            format!("it does not come to rest: mail {mail:?}, bytes {:?}", state.charged);
        drop(state);
        for it in &self.servers {
            let held = |peer: &&crate::peer::Peer| peer.is_held || it.core.is_held_back(peer.key);
            let (fans_out, peers) = (it.metrics.fanout_topics.value(), it.net.peers().filter(held));
            let of = |peer: &crate::peer::Peer| {
                let is_back = it.core.is_held_back(peer.key);
                (peer.socket.phase(), is_back, peer.stash.len(), peer.inbound.len())
            };
            let held: Vec<_> = peers.map(of).collect();
            text.push_str(&format!("; fans out {fans_out}, held {held:?}"));
        }
        self.shared.account().fail("rest", text);
    }

    fn looks(&mut self) {
        let unconfirmed: u64 =
            self.servers.iter().map(|it| it.metrics.errors_unconfirmed.value()).sum();
        let mut account = self.shared.account();
        account.tally.unconfirmed = unconfirmed;
        for client in self.clients.iter().filter(|it| it.line.is_some()) {
            client.rests(&mut account);
        }
        let is_lost = |it: &Made| it.chan != NONE && !it.is_stored && !it.is_optional;
        let lost = account.made.iter().position(is_lost);
        if let Some(id) = lost.filter(|_| unconfirmed == 0) {
            account.fail("kept", format!("#{id} was broadcast, and is not stored"));
        }
        let heard = account.topics.iter().all(|it| it.heard.iter().all(|n| *n == it.stored.len()));
        if !heard {
            let text = "a shard has not heard all".to_owned();
            account.fail("kept", text);
        }
    }

    /// Everybody goes, and nothing is left.
    pub(crate) fn ends(&mut self) {
        if !self.has_failed() {
            self.rests();
        }
        (0..self.clients.len()).for_each(|client| self.vanishes(client));
        if !self.has_failed() {
            self.rests();
        }
        self.has_nothing_left();
    }

    /// Of sockets and of who waits nothing is left.
    pub(super) fn has_nothing_left(&self) {
        if self.has_failed() {
            return;
        }
        for (shard, server) in self.servers.iter().enumerate() {
            let left = server.core.history_waits();
            let it = &server.metrics;
            let gauges = [&it.sockets, &it.channels].map(|it| it.value());
            if left != 0 || gauges != [0; 2] {
                let text = format!("shard {shard}: {left} of history, gauges {gauges:?}");
                self.shared.account().fail("left", text);
            }
        }
    }
}
