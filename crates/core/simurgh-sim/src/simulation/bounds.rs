//! Checks after every step the bounds that a configuration promises.

use crate::kit::peer::{Flow, Peer};
use simurgh_core::{Mail, Node, Phase, PresenceMail};
use simurgh_reactor::Key;

use super::checks::check_waits;
use super::{NodeSimulation, Server};
use crate::model::{Input, Model};
use crate::node::SimNode;
use crate::node::flows::flow_bytes_max;

/// Publishers that are read again in one turn at most.
const RELEASED_MAX: usize = 16;
const SECOND: u64 = 1_000_000_000;

/// How many bytes a shard may give back before all sockets have them.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    since_ns: u64,
    allowed: u128,
}

impl NodeSimulation {
    /// Sockets that published too much are not read; all others are.
    pub(crate) fn check_publishers(&self, shard: usize, model: &mut Model) {
        if model.now.published_bytes == 0 {
            return;
        }
        let is_read = |it: &&u32| self.open_peer(shard, **it).is_some_and(|it| !it.is_held);
        if let Some(conn) = model.now.must_hold.iter().find(is_read) {
            let text = format!("socket {conn} has more under way than it may, and is read");
            return model.fail("bounds", text);
        }
        let Some(server) = self.servers.get(shard).filter(|it| !it.net.holds.is_empty()) else {
            return;
        };
        let state = self.node.state();
        // A flow has at most the bytes of all shards, and so has each of these; calls whose changes
        // wait for the next diff are in no mailbox, and those of this step no longer wait.
        let changing = self.changing_bytes().max(state.changing_before);
        let all = state.charged.iter().sum::<usize>() + state.done_in_step + changing;
        let max = self.shared.profile.config.mailbox_bytes_max;
        // A channel that held the socket may have released it in the same step.
        let is_open = |it: &&Key| {
            let peer = server.net.peer(**it).filter(|it| it.is_held);
            peer.is_some_and(|it| it.socket.phase() == Phase::Open)
        };
        let held = server.net.holds.iter().find(is_open);
        if let Some(key) = held.filter(|_| all <= flow_bytes_max(max)) {
            model
                .fail("bounds", format!("{key:?} is held although only {all} bytes are under way"));
        }
    }

    /// All mail in a mailbox is charged to its shard, and calls of presence also to their topics.
    pub(crate) fn check_charges(&self, model: &mut Model) {
        let state = self.node.state();
        for (shard, (mailbox, charged)) in state.mailboxes.iter().zip(&state.charged).enumerate() {
            let present: usize = mailbox.iter().map(|it| weight(&it.mail)).sum();
            if present > *charged {
                let text = format!("{present} bytes wait for shard {shard}, {charged} charged");
                return model.fail("bytes", text);
            }
            if let Some(mail) = mailbox.iter().find(|it| is_uncharged(&it.mail)) {
                return model.fail("bytes", format!("{:?} is not charged to its topic", mail.mail));
            }
        }
    }

    /// The fan-out ends with the first reading of the clock that shows that its time is over.
    pub(crate) fn check_slice(&self, shard: usize, input: Input, model: &mut Model) {
        let sent = self.servers.get(shard).map_or(0, |it| it.net.sent_late.get());
        if input == Input::FanOut && sent > 0 {
            model.fail("slice", format!("shard {shard} sends {sent} times after its time"));
        }
    }

    /// Bytes of calls of presence whose changes wait for the next diff.
    pub(crate) fn changing_bytes(&self) -> usize {
        self.servers.iter().map(|it| it.core.presence_bytes()).sum()
    }

    /// Notes for which flow sockets were held in this step, if they published on one only.
    pub(crate) fn note_holds(&mut self, shard: usize, flows: &[(u32, Flow)]) {
        let Some(server) = self.servers.get_mut(shard) else { return };
        for at in 0..server.net.holds.len() {
            let Some(key) = server.net.holds.get(at).copied() else { return };
            let is_held_back = server.core.is_held_back(key);
            let Some(peer) = server.net.peer_mut(key) else { continue };
            let mut all = flows.iter().filter(|(conn, _)| *conn == peer.conn).map(|(_, it)| *it);
            let first = all.next().filter(|_| is_held_back);
            peer.held_for = first.filter(|it| all.all(|other| other == *it));
        }
    }

    pub(crate) fn open_peer(&self, shard: usize, conn: u32) -> Option<&Peer> {
        let link = self.links.get(conn as usize).filter(|it| it.shard == shard)?;
        self.servers.get(shard)?.net.peer(link.key).filter(|it| it.socket.is_open())
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

fn is_uncharged(mail: &Mail) -> bool {
    let Mail::Presence(_, call @ PresenceMail::Call(..), charge) = mail else { return false };
    charge.as_ref().is_none_or(|charge| charge.bytes() < call.weight())
}

impl Server {
    /// Checks the end of a turn: exactly the sockets that must be held are held, no more bytes were
    /// given back early than the pace allows, and no socket has more queued than it may.
    pub(crate) fn check_settled(&mut self, node: &SimNode, model: &mut Model) {
        let config = &node.shared.profile.config;
        if let Some(given) = self.gives_too_much(node, model) {
            model.fail("bounds", format!("{given} bytes are given back before their time"));
        }
        let released = self.net.released.len();
        if released > RELEASED_MAX || (released > 0 && node.is_jammed()) {
            model.fail("bounds", format!("{released} publishers are read again"));
        }
        for at in 0..released {
            let key = self.net.released.get(at).copied();
            let Some(peer) = key.and_then(|key| self.net.peer_mut(key)) else { continue };
            let Some(flow) = peer.held_for.take() else { continue };
            let left = node.state().flows.add(flow, 0);
            let half = flow_bytes_max(config.mailbox_bytes_max) / 2;
            if left > half || (left > 0 && !node.is_relieved()) {
                let text = format!("socket {} is read again: {left} bytes left", peer.conn);
                model.fail("bounds", text);
            }
        }
        for peer in self.net.peers() {
            check_waits(peer, model);
            let (conn, waits) = (peer.conn, peer.queue.len());
            let is_awaiting = peer.socket.phase() == Phase::Waiting;
            let is_to_be = is_awaiting || self.core.is_held_back(peer.key);
            if peer.socket.is_open() && peer.is_held != is_to_be {
                model.fail("bounds", format!("socket {conn} is held: {}", peer.is_held));
            }
            if waits > config.outbound_bytes_max && !peer.is_mute {
                model.fail("bounds", format!("{waits} bytes wait for socket {conn}"));
            }
        }
    }

    /// The bytes that were given back early in this turn, if they are too many.
    fn gives_too_much(&mut self, node: &SimNode, model: &Model) -> Option<usize> {
        let config = &node.shared.profile.config;
        let state = node.state();
        let (given, heaviest) = (state.done_in_step, state.heaviest as u128);
        let topics = model.topics.names.len() as u128;
        let half = config.outbound_bytes_max as f64 / 2.0;
        let pace = topics * (half / config.slow_after.as_secs_f64()).ceil() as u128;
        let now_ns = self.net.now.ns;
        let passed = now_ns.saturating_sub(self.pace.since_ns).min(SECOND);
        // For each topic, less than the weight of the next broadcast is saved up.
        let most = (topics * heaviest + pace) * u128::from(SECOND);
        let allowed = (self.pace.allowed + pace * u128::from(passed)).min(most);
        let left = allowed.checked_sub(given as u128 * u128::from(SECOND));
        self.pace = Pace { since_ns: now_ns, allowed: left.unwrap_or(0) };
        if left.is_none() { Some(given) } else { None }
    }
}
