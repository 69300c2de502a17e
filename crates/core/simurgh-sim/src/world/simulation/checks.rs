//! Checks after each step of a core: bounds, waits, permits and counters.

use super::*;
use crate::world::Shard;
use crate::world::ledger::sessions::{Input, ticks};
use crate::world::node::SimNode;

/// Publishers that are read again in one turn at most.
const RELEASED_MAX: usize = 16;

impl Simulation {
    pub(crate) fn check_step(&mut self, slot: usize, shard: usize, input: Input) {
        let shared = Arc::clone(&self.shared);
        let Some(running) = self.nodes[slot].as_mut() else { return };
        let Some(server) = running.shards.get_mut(shard) else { return };
        let number = running.node.first + shard;
        let mut ledger = shared.ledger();
        ledger.running = None;
        let tick = server.net.now.tick;
        if input == Input::Tick && !ledger.sessions.waiting.is_empty() {
            let net = &server.net;
            ledger.check_waiting(|conn| {
                let phase = net.peers().find(|peer| peer.conn == conn)?.socket.phase();
                let is_closed = matches!(phase, Phase::Closing | Phase::Ending);
                Some((phase == Phase::Waiting, is_closed))
            });
        }
        let idle = shared.plan.config.idle_timeout.map(ticks);
        while let Some(key) = server.net.touched.pop() {
            let Some(peer) = server.net.peer(key) else { continue };
            if matches!(peer.socket.phase(), Phase::Closing | Phase::Ending) {
                let silent = tick.wrapping_sub(peer.heard_tick);
                ledger.over(peer.conn, idle.is_some_and(|idle| silent > idle));
            }
        }
        if let Input::Ended(conn) = input {
            ledger.over(conn, false);
        }
        let net = &server.net;
        ledger.sync_holds(|conn| {
            let peer = net.peers().find(|peer| peer.conn == conn)?;
            Some(peer.socket.phase() == Phase::Waiting)
        });
        let publisher = ledger.end_step(number);
        ledger.check_counters(number, &server.metrics);
        let (seats, open) =
            (running.node.seats.load(Relaxed), ledger.sessions.open_sockets(number));
        if seats != open as i64 {
            ledger.fail("seats", format!("{seats} seats are taken, {open} sockets open"));
        }
        drop(ledger);
        let wrong = match input {
            Input::Settle => {
                server.wrong_settled(&running.node).or_else(|| wrong_charges(&running.node))
            }
            Input::FanOut => {
                let late = server.net.sent_late.get();
                (late > 0).then(|| ("slice", format!("{shard} sends {late} times after its time")))
            }
            _ => None,
        };
        let wrong = wrong.or_else(|| server.wrong_closing()).or_else(|| {
            let is_jammed = running.node.is_jammed() && !running.node.state().has_spoken;
            let conn = publisher.filter(|_| is_jammed)?;
            let peer = server.net.peers().find(|peer| peer.conn == conn)?;
            let is_read = peer.socket.is_open() && !peer.is_held;
            is_read.then(|| ("held", format!("socket {conn} publishes and is read")))
        });
        let wrong = wrong.or_else(|| wrong_permits(&running.node, &running.shards));
        if let Some((rule, text)) = wrong {
            shared.ledger().fail(rule, text);
        }
    }

    /// The clients that are present in each topic are counted.
    pub(super) fn check_census(&self) {
        let counts_members = self.shared.plan.app.counts_members;
        for running in self.running_nodes().filter(|_| counts_members) {
            let mut ledger = self.shared.ledger();
            let mut counts = vec![0_i64; self.shared.plan.topics.names.len()];
            let shards = &ledger.starts[running.start].shards;
            let is_here = |chan: &&Chan| {
                let shard = ledger.sessions.shard_of(chan.conn);
                chan.life == Life::Live && shards.contains(&shard)
            };
            for chan in ledger.sessions.chans.iter().filter(is_here) {
                counts[usize::from(chan.topic)] += 1;
            }
            let counted = running.node.state().member_counts.clone();
            if counts != counted {
                let text = format!("the counts of members are {counted:?}, there are {counts:?}");
                ledger.fail("census", text);
            }
        }
    }
}

type Wrong = Option<(&'static str, String)>;

/// All mail in a mailbox is charged to its shard, and calls of presence also to their topics.
fn wrong_charges(node: &SimNode) -> Wrong {
    let state = node.state();
    // What other nodes say of presences is charged to nobody.
    let is_one_node = node.shared.plan.is_one_node();
    for (shard, (mailbox, charged)) in state.mailboxes.iter().zip(&state.charged).enumerate() {
        let present: usize = mailbox.iter().map(weight).sum();
        if present > *charged && is_one_node {
            let text = format!("{present} bytes wait for shard {shard}, {charged} charged");
            return Some(("bytes", text));
        }
        if let Some(mail) = mailbox.iter().find(|mail| is_uncharged(mail)) {
            return Some(("bytes", format!("{mail:?} is not charged to its topic")));
        }
    }
    None
}

/// The bytes that a mail takes in a mailbox, at least.
fn weight(mail: &Mail) -> usize {
    match mail {
        Mail::Broadcast(posted) => posted.broadcast().weight(),
        Mail::Presence(_, mail, _) => mail.weight(),
        Mail::Push(push) => push.weight(),
        Mail::ToChannel(_, what) => what.weight(),
        _ => 0,
    }
}

fn is_uncharged(mail: &Mail) -> bool {
    let Mail::Presence(_, call @ PresenceMail::Call(..), charge) = mail else { return false };
    charge.as_ref().is_none_or(|charge| charge.bytes() < call.weight())
}

/// Every permit is free, in transit, or with a shard that has something to fan out.
fn wrong_permits(node: &SimNode, shards: &[Shard]) -> Wrong {
    let (left, all) = node.permits().left().zip(node.permits_all)?;
    let posted = node.permits_posted.load(Relaxed);
    let is_busy = |it: &&Shard| !it.has_ended && it.metrics.fanout_topics.value() > 0;
    let busy = shards.iter().filter(is_busy).count();
    let is_right = (left + posted..=left + posted + busy).contains(&all);
    let text = || format!("{left} of {all} left, {posted} on the way, {busy} shards busy");
    (!is_right).then(|| ("permits", text()))
}

impl Shard {
    /// Checks the end of a turn: exactly the sockets that must be held are held, and no socket has
    /// more queued than it may.
    fn wrong_settled(&self, node: &SimNode) -> Wrong {
        let released = self.net.released.len();
        if released > RELEASED_MAX || (released > 0 && node.is_jammed()) {
            return Some(("bounds", format!("{released} publishers are read again")));
        }
        let ledger = node.shared.ledger();
        for peer in self.net.peers().filter(|peer| peer.socket.is_open()) {
            let (conn, queued) = (peer.conn, peer.queue.len());
            let waits = peer.socket.phase() == Phase::Waiting;
            if waits != ledger.sessions.waits(conn) && !node.has_history() {
                let it = ledger.sessions.conn(conn);
                return Some(("held", format!("socket {conn} waits: {waits}, {it:?}")));
            }
            if peer.is_held != (waits || self.core.is_held_back(peer.key)) {
                return Some(("bounds", format!("socket {conn} is held: {}", peer.is_held)));
            }
            if queued > node.config().outbound_bytes_max && !peer.is_mute {
                return Some(("bounds", format!("{queued} bytes wait for socket {conn}")));
            }
        }
        None
    }

    /// A closing socket is read, so that the answer to its close arrives.
    fn wrong_closing(&self) -> Wrong {
        let mut held = self.net.holds.iter().filter_map(|key| self.net.peer(*key));
        let peer = held.find(|it| {
            let is_closing = it.socket.phase() == Phase::Closing;
            is_closing && it.socket.transport == NETWORK && it.is_held
        })?;
        Some(("deaf", format!("socket {} closes, and its answer is not read", peer.conn)))
    }
}
