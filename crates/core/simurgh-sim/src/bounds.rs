//! The bounds that a configuration promises, held against every step.
//!
//! How many bytes a flow has under way only the core knows, so it is held against two sums that are
//! known: what certainly is under way of it (in mailboxes, or accepted since the shard last fanned
//! out), and what certainly is all that can be.

use simurgh_core::{Node, Phase};
use simurgh_reactor::Key;
use simurgh_sim_kit::NONE;
use simurgh_sim_kit::peer::{Flow, Peer};

use crate::checks::check_waits;
use crate::model::{Input, Model, Published};
use crate::node::{SimNode, State};
use crate::simulation::{NodeSimulation, Server};

/// Publishers that are read again in one turn at most.
const RELEASED_MAX: usize = 16;
const SECOND: u64 = 1_000_000_000;

/// Bytes that are certainly under way, by their flow.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    topics: usize,
    shards: usize,
    known: Vec<Known>,
}

#[derive(Clone, Debug)]
struct Known {
    epoch: u32,
    mailed: Vec<usize>,
    /// Published and accepted since its shard last fanned out.
    fresh: usize,
}

/// What a shard may give back although it is awaited.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    since_ns: u64,
    allowed: u128,
}

impl Flows {
    pub(crate) fn new(shards: usize, topics: usize) -> Self {
        let one = Known { epoch: 0, mailed: vec![0; shards], fresh: 0 };
        Self { topics, shards, known: vec![one; shards * topics] }
    }

    fn of(&mut self, flow: Flow) -> Option<&mut Known> {
        let place = flow.shard * self.topics + usize::from(flow.topic);
        let it = self.known.get_mut(place).filter(|_| flow.shard < self.shards)?;
        if it.epoch < flow.epoch {
            (it.epoch, it.fresh) = (flow.epoch, 0);
        }
        Some(it)
    }

    /// A broadcast comes into a mailbox, or leaves it.
    pub(crate) fn mail(&mut self, mailbox: usize, flow: Flow, bytes: usize, comes: bool) {
        if let Some(place) = self.of(flow).and_then(|it| it.mailed.get_mut(mailbox)) {
            *place = if comes { *place + bytes } else { place.saturating_sub(bytes) };
        }
    }

    /// A shard fans out, and may be done with what it had.
    pub(crate) fn fanned_out(&mut self, shard: usize) {
        let first = shard * self.topics;
        let all = self.known.get_mut(first..first + self.topics).unwrap_or_default();
        all.iter_mut().for_each(|it| it.fresh = 0);
    }

    /// What certainly is under way, with what comes to it.
    fn add(&mut self, flow: Flow, fresh: usize) -> usize {
        // One that was held for it in another epoch may have been held for another flow.
        let Some(it) = self.of(flow).filter(|it| it.epoch == flow.epoch) else { return 0 };
        it.fresh += fresh;
        it.mailed.iter().copied().max().unwrap_or(0).max(it.fresh)
    }
}

impl SimNode {
    /// A shard broadcasts for one of its sockets: notes whether that must not be read any more.
    pub(crate) fn judge(&self, model: &mut Model, state: &mut State, shard: usize, bytes: usize) {
        let Some(Published { conn, flow, has_members }) = model.now.published.take() else {
            return;
        };
        model.now.published_bytes += bytes;
        model.now.flows.push((conn, flow));
        let max = self.shared.profile.config.mailbox_bytes_max;
        // While a shard fans out it may be done with anything.
        let is_fresh = has_members && model.input != Input::FanOut;
        let fresh = if is_fresh { bytes } else { 0 };
        let under_way = state.flows.add(flow, fresh);
        // What nobody here is to get is given back before anything is looked at.
        let back = if has_members { 0 } else { bytes };
        let is_above = |limit: usize| {
            let all = state.charged.iter().zip(&state.ended).enumerate();
            all.into_iter().any(|(at, (it, has_ended))| {
                let charged = if at == shard { it.saturating_sub(back) } else { *it };
                !has_ended && charged > limit
            })
        };
        let is_too_much = under_way > flow_bytes_max(max)
            || (under_way > bytes && is_above(max))
            || is_above(max.saturating_mul(4));
        if is_too_much && conn != NONE {
            model.now.must_hold.push(conn);
        }
    }
}

/// An eighth of what may be under way is the most that one topic's publishers of one shard have.
fn flow_bytes_max(mailbox_bytes_max: usize) -> usize {
    mailbox_bytes_max / 8
}

impl NodeSimulation {
    /// Who published too much is not read; who did not, is.
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
        // A flow has no more than all shards, nor has any of these.
        let all = state.charged.iter().sum::<usize>() + state.done_in_step;
        let max = self.shared.profile.config.mailbox_bytes_max;
        // A channel that held it may have let it go in the same step.
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

    /// Notes for which flow somebody was held in this step, if it published on one alone.
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

    /// The open socket of a connection, if it is on this shard.
    pub(crate) fn open_peer(&self, shard: usize, conn: u32) -> Option<&Peer> {
        let link = self.links.get(conn as usize).filter(|it| it.shard == shard)?;
        self.servers.get(shard)?.net.peer(link.key).filter(|it| it.socket.is_open())
    }
}

impl Server {
    /// A turn is over: who is held has a reason, and who has one is held; what was given back
    /// although it is awaited is no more than the pace allows; nobody has more before it than may
    /// wait for it.
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

    /// What was given back in this turn although it is awaited, if that is too much.
    fn gives_too_much(&mut self, node: &SimNode, model: &Model) -> Option<usize> {
        let config = &node.shared.profile.config;
        let state = node.state();
        let (given, heaviest) = (state.done_in_step, state.heaviest as u128);
        let topics = model.topics.names.len() as u128;
        let half = config.outbound_bytes_max as f64 / 2.0;
        let pace = topics * (half / config.slow_after.as_secs_f64()).ceil() as u128;
        let now_ns = self.net.now.ns;
        let passed = now_ns.saturating_sub(self.pace.since_ns).min(SECOND);
        // What is saved up is less than the next broadcast weighs, for each topic.
        let most = (topics * heaviest + pace) * u128::from(SECOND);
        let allowed = (self.pace.allowed + pace * u128::from(passed)).min(most);
        let left = allowed.checked_sub(given as u128 * u128::from(SECOND));
        self.pace = Pace { since_ns: now_ns, allowed: left.unwrap_or(0) };
        if left.is_none() { Some(given) } else { None }
    }
}
