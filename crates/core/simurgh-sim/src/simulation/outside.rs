//! Effects of the transport and of observers on sockets, ends of waiting handlers and of linked
//! work, broadcasts by handles, questions from outside, and restarts.

use std::sync::Arc;

use crate::kit::delivery::RequestKind;
use crate::kit::setup::locked;
use simurgh_core::{Mailboxes, NETWORK, Phase, PresenceList};
use simurgh_proto::ws::CloseCode;

use super::client::Link;
use super::{NodeSimulation, Server};
use crate::app::Member;
use crate::app::handlers::Speech;
use crate::model::{Input, Intent, Life, code_bit};

impl NodeSimulation {
    pub(crate) fn kick(&mut self, conn: u32) {
        let Some(link) = self.links.get(conn as usize) else { return };
        let (shard, key, who) = (link.shard, link.key, link.name());
        let Some(was_open) = self.peer(conn).map(|it| it.socket.is_open()) else { return };
        self.tell(|| format!("somebody has {who} closed"));
        let mut model = self.shared.model();
        if let Some(it) = model.conn_mut(conn).filter(|_| was_open) {
            it.codes |= code_bit(1001);
        }
        model.counts.count("kicked", u64::from(was_open));
        drop(model);
        self.step(shard, Input::Other, 1, |core, net, _| {
            core.close(net, key, CloseCode::GOING_AWAY)
        });
        if was_open {
            self.must_be_over(conn, "somebody has it closed");
        }
    }

    /// The transport rejects a client's bytes, or there are too many.
    pub(crate) fn fail_socket(&mut self, conn: u32, code: CloseCode) {
        let Some(&Link { shard, key, .. }) = self.links.get(conn as usize) else { return };
        if let Some(it) = self.shared.model().conn_mut(conn) {
            it.codes |= code_bit(code.0);
            it.is_cut = true;
        }
        self.step(shard, Input::Other, 1, |core, net, _| core.fail(net, key, code));
        self.must_be_over(conn, "its bytes are wrong");
    }

    /// Checks that a socket that had to be closed has no session, and is read if it may answer.
    fn must_be_over(&self, conn: u32, why: &str) {
        let Some(peer) = self.peer(conn) else { return };
        let is_over = matches!(peer.socket.phase(), Phase::Closing | Phase::Ending);
        let is_unheard = peer.is_held && peer.socket.transport == NETWORK;
        if !is_over || is_unheard || peer.socket.channels() > 0 {
            let (phase, held) = (peer.socket.phase(), peer.is_held);
            let text = format!("socket {conn} is {phase:?} (held: {held}) although {why}");
            self.shared.model().fail("close", text);
        }
    }

    /// A client sends the same message several times, and all are read.
    pub(crate) fn burst(&mut self, conn: u32, topic: u8, c: u32) {
        if !self.shared.profile.features.is_limited {
            return;
        }
        let kind = match c % 16 {
            0..3 => RequestKind::Join,
            3 => RequestKind::Heartbeat,
            4 => RequestKind::Leave,
            _ => RequestKind::Event,
        };
        let phoenix = self.shared.model().topics.phoenix();
        let topic = if kind == RequestKind::Heartbeat { phoenix } else { topic };
        for n in 0..2 + c / 16 % 9 {
            self.say(conn, kind, topic, c.rotate_left(n), false);
        }
        self.read(conn, usize::MAX);
    }

    /// New cores start once all have drained and ended, as a new process does. Clients that had
    /// channels reconnect to any shard, and join them again.
    pub(crate) fn restart(&mut self, c: u32) {
        if !self.servers.iter().all(|it| it.has_ended) {
            return;
        }
        self.tell(|| "new cores start".to_owned());
        self.readings.clear();
        self.node.restart();
        let servers = std::mem::take(&mut self.servers);
        self.servers = servers.into_iter().map(|it| it.again(&self.node)).collect();
        self.shared.forget_all();
        self.shared.model().restart();
        self.check_end();
        for client in 0..self.current.len() {
            let c = c.wrapping_mul(0x9e37_79b1).wrapping_add(client as u32 * 0x9_1d3);
            self.come_back(client, c);
        }
    }

    fn come_back(&mut self, client: usize, c: u32) {
        let Some(last) = self.links.iter().rposition(|it| it.client == client) else { return };
        // The client first reads what the old server sent.
        while self.take(last as u32, usize::MAX) {}
        let held: Vec<u8> = {
            let model = self.shared.model();
            let Some(link) = self.links.get(last) else { return };
            let holds = |it: &u8| link.session.holds(model.topics.name(*it));
            (0..model.topics.rooms as u8).filter(holds).collect()
        };
        if held.is_empty() {
            return;
        }
        self.connect(client as u16, c);
        let Some(conn) = self.link_of(client as u16) else { return };
        for topic in held {
            self.shared.model().counts.count("channels joined again after one", 1);
            self.say(conn, RequestKind::Join, topic, c >> 3, false);
        }
    }

    pub(crate) fn ask_who(&mut self, topic: u8) {
        if !self.shared.profile.features.is_present {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let name = shared.model().topics.name(topic).to_owned();
        self.tell(|| format!("somebody asks who is present in {name}"));
        let answer = move |list: PresenceList| {
            shared.model().presence_answers(topic, &list.json);
        };
        self.node.request_presences(&name, Box::new(answer));
    }

    /// Events of presence that are still to come, or topics that are kept without entries.
    pub(crate) fn presence_unrest(&self) -> Option<String> {
        let keeps_nothing = |it: &Server| {
            let counts = it.core.presences();
            counts.topics > 0 && counts.entries == 0
        };
        if let Some(shard) = self.servers.iter().position(keeps_nothing) {
            return Some(format!("shard {shard} keeps topics without presences"));
        }
        // A list that was asked for while another one was in transit.
        let is_due = |it: &Server| !it.has_ended && it.core.presences().is_due;
        if let Some(shard) = self.servers.iter().position(is_due) {
            return Some(format!("shard {shard} has something to tell"));
        }
        let metrics = || self.servers.iter().map(|it| &it.metrics);
        let kept = metrics().map(|it| it.presences.value()).sum();
        let refused = metrics().map(|it| it.errors_presence_refused.value()).sum();
        self.shared.model().presence_unrest(kept, refused)
    }

    /// Ends a waiting handler, whose channel may have ended meanwhile.
    pub(super) fn done(&mut self, which: usize, c: u32) {
        let mut model = self.shared.model();
        let which = which.checked_rem(model.handlers.len()).unwrap_or(0);
        if which >= model.handlers.len() {
            return;
        }
        let it = model.handlers.swap_remove(which);
        drop(model);
        let Some(handle) = self.shared.handle(it.chan) else { return };
        let (chan, task) = (it.chan, it.task);
        self.tell(|| format!("handler {task} of channel {chan} is done"));
        *locked(&self.shared.intent) = Some((chan, Intent::Done(task)));
        handle.visit(move |it: &mut Member, ctx| it.done(ctx, task, c));
    }

    pub(super) fn end_work(&mut self, which: usize) {
        let mut model = self.shared.model();
        let count = model.tasks.len();
        let Some(at) = count.checked_sub(1 + which % count.clamp(1, 16)) else { return };
        if let Some(task) = model.tasks.get_mut(at).filter(|it| !it.is_handler) {
            task.is_finished = true;
        }
    }

    pub(super) fn speak(&mut self, c: u32) {
        let mut model = self.shared.model();
        let chans = model.chans.len();
        let Some(chan) = chans.checked_sub(1 + c as usize % chans.clamp(1, 16)) else { return };
        let Some(it) = model.chans.get(chan) else { return };
        let Some(handle) = self.shared.handle(chan as u32) else { return };
        if it.life == Life::Ended {
            self.shared.forget(chan as u32);
        }
        let speech = Speech::new(&self.shared, &mut model, chan as u32, 1, c.rotate_right(8));
        drop(model);
        let expected = self.node.may_broadcast_bytes("", speech.payload.len());
        let done = speech.by(&self.shared, &handle);
        if done != expected {
            self.shared.model().fail("bounds", format!("{done:?}, not {expected:?}"));
        }
        self.tell(|| format!("the handle of channel {chan} broadcasts #{}: {done:?}", speech.id));
    }
}
