//! Checks after each step of a core: bounds, waits, permits and counters.

use super::*;

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
        if input == Input::Tick {
            ledger.check_waiting(number, |conn| server.net.phase(conn));
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
        ledger.sync_holds(|conn| server.net.phase(conn));
        let publisher = ledger.end_step(number);
        ledger.check_counters(number, &server.metrics);
        let (seats, open) =
            (running.node.seats.load(Relaxed), ledger.sessions.open_sockets(number));
        if seats != open as i64 {
            ledger.fail("seats", format!("{seats} seats are taken, {open} sockets open"));
        }
        drop(ledger);
        if input == Input::Settle {
            server.check_settled(&running.node);
            server.check_sightings(&running.node);
            check_charges(&running.node);
        }
        let late = server.net.sent_late.get();
        if input == Input::FanOut && late > 0 {
            shared.fail("slice", format!("{shard} sends {late} times after its time"));
        }
        server.check_closing(&shared);
        let is_jammed = running.node.is_jammed() && !running.node.state().has_spoken;
        if let Some(conn) = publisher.filter(|_| is_jammed)
            && let Some(peer) = server.net.peers().find(|peer| peer.conn == conn)
            && peer.socket.is_open()
            && !peer.is_held
        {
            shared.fail("held", format!("socket {conn} publishes and is read"));
        }
        check_permits(&running.node, &running.shards);
    }

    /// The clients that are present in each topic are counted.
    pub(super) fn check_census(&self) {
        let counts_members = self.shared.plan.app.counts_members;
        for running in self.running_nodes().filter(|_| counts_members) {
            let ledger = self.shared.ledger();
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

/// All mail in a mailbox is charged to its shard, and calls of presence also to their topics.
fn check_charges(node: &SimNode) {
    let state = node.state();
    // What other nodes say of presences is charged to nobody.
    let is_one_node = node.shared.plan.is_one_node();
    for (shard, (mailbox, charged)) in state.mailboxes.iter().zip(&state.charged).enumerate() {
        let present: usize = mailbox.iter().map(weight).sum();
        if present > *charged && is_one_node {
            let text = format!("{present} bytes wait for shard {shard}, {charged} charged");
            node.shared.fail("bytes", text);
        }
        for mail in mailbox {
            if let Mail::Presence(_, call @ PresenceMail::Call(..), charge) = mail
                && charge.as_ref().is_none_or(|charge| charge.bytes() < call.weight())
            {
                node.shared.fail("bytes", format!("{mail:?} is not charged to its topic"));
            }
        }
    }
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

/// Every permit is free, in transit, or with a shard that has something to fan out.
fn check_permits(node: &SimNode, shards: &[Shard]) {
    let Some((left, all)) = node.permits().left().zip(node.permits_all) else { return };
    let state = node.state();
    let mail = state.mailboxes.iter().flatten();
    let posted = mail.filter(|mail| matches!(mail, Mail::Permit)).count();
    let is_busy = |it: &&Shard| !it.has_ended && it.metrics.fanout_topics.value() > 0;
    let busy = shards.iter().filter(is_busy).count();
    if !(left + posted..=left + posted + busy).contains(&all) {
        let text = format!("{left} of {all} left, {posted} on the way, {busy} shards busy");
        node.shared.fail("permits", text);
    }
}

impl Shard {
    /// After a turn exactly the right sockets are held, and none has too much queued.
    fn check_settled(&self, node: &SimNode) {
        let ledger = node.shared.ledger();
        let released = self.net.released.len();
        if released > RELEASED_MAX || (released > 0 && node.is_jammed()) {
            ledger.fail("bounds", format!("{released} publishers are read again"));
        }
        for peer in self.net.peers().filter(|peer| peer.socket.is_open()) {
            let (conn, queued) = (peer.conn, peer.queue.len());
            let waits = peer.socket.phase() == Phase::Waiting;
            if waits != ledger.sessions.waits(conn) && !node.has_history() {
                let it = ledger.sessions.conn(conn);
                ledger.fail("held", format!("socket {conn} waits: {waits}, {it:?}"));
            }
            if peer.is_held != (waits || self.core.is_held_back(peer.key)) {
                ledger.fail("bounds", format!("socket {conn} is held: {}", peer.is_held));
            }
            if queued > node.config().outbound_bytes_max && !peer.is_mute {
                ledger.fail("bounds", format!("{queued} bytes wait for socket {conn}"));
            }
        }
    }

    /// A closing socket is read, so that the answer to its close arrives.
    fn check_closing(&self, shared: &Shared) {
        let held = self.net.holds.iter().filter_map(|key| self.net.peer(*key));
        for peer in held.filter(|it| it.is_held && it.socket.transport == NETWORK) {
            if peer.socket.phase() == Phase::Closing {
                shared.fail("deaf", format!("{} closes, and its answer is not read", peer.conn));
            }
        }
    }
}
