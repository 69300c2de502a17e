//! Long-poll sessions: sockets within the process, whose messages wait for polls.

use super::NodeSimulation;
use crate::model::Input;

/// A session that is not polled for this long ends.
const UNPOLLED_NS: u64 = 15_000_000_000;
/// Of this many answers to polls one is lost.
const LOST: u32 = 64;

impl NodeSimulation {
    /// A client polls: it gets all that waits, or the answer is lost on its way.
    pub(crate) fn poll(&mut self, conn: u32, c: u32) {
        let is_lost = c.is_multiple_of(LOST);
        let has_messages = self.peer(conn).is_some_and(|it| !it.pipe.is_empty());
        if is_lost && has_messages {
            return self.lose_answer(conn);
        }
        if self.take(conn, usize::MAX) {
            self.shared.model().counts.count("polls", 1);
        }
    }

    /// Its next poll names an earlier answer than the server's last, which ends the session.
    fn lose_answer(&mut self, conn: u32) {
        let Some(peer) = self.peer_mut(conn).filter(|it| it.socket.is_open()) else { return };
        peer.pipe.clear();
        let link = &mut self.links[conn as usize];
        link.is_lost = true;
        let (shard, key, who) = (link.shard, link.key, link.name());
        self.tell(|| format!("an answer to {who} is lost"));
        let mut model = self.shared.model();
        model.counts.count("answers to polls lost", 1);
        model.conns[conn as usize].is_lost = true;
        drop(model);
        self.step(shard, Input::Ended(conn), 1, |core, net, _| core.peer_closed(net, key, None));
    }

    /// Ends the sessions of a shard that were not polled in time.
    pub(crate) fn end_unpolled(&mut self, shard: usize) {
        while let Some(conn) = self.unpolled(shard) {
            let link = &mut self.links[conn as usize];
            link.is_lost = true;
            let (key, who) = (link.key, link.name());
            self.tell(|| format!("{who} has not polled for too long"));
            self.shared.model().counts.count("sessions not polled", 1);
            self.servers[shard].net.removals.push(key);
        }
    }

    fn unpolled(&self, shard: usize) -> Option<u32> {
        self.current.iter().flatten().copied().find(|conn| {
            let link = self.links.get(*conn as usize);
            link.is_some_and(|it| {
                let is_over = |polled_ns| polled_ns + UNPOLLED_NS <= self.clock_ns;
                it.shard == shard && !it.is_lost && !it.is_over && it.polled_ns.is_some_and(is_over)
            })
        })
    }
}
