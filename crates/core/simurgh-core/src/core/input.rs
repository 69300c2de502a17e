//! Mail from other threads, and what is due at the end of a turn. The methods for messages and ends
//! of sockets are in `session`.

use simurgh_channel::{HistoryMail, Mail, Node, Reason};
use simurgh_data::{Key, Next};
use simurgh_proto::ws::CloseCode;

use crate::core::Core;
use crate::deadlines::{Deadlines, Due, Excuses, closes_until_ns};
use crate::socket::{Phase, Socket};
use crate::sockets::Sockets;

impl<N: Node> Core<N> {
    /// The socket's peer has taken everything that waited for it.
    pub fn drained(&mut self, out: &impl Sockets, key: Key) {
        if let Some(socket) = out.socket(key) {
            self.channels.fanout.mark_caught_up(&mut self.channels.registry, socket.list);
        }
    }

    /// Handles mail from another thread.
    pub fn mail(&mut self, out: &mut impl Sockets, mail: Mail) {
        match mail {
            Mail::Broadcast(posted) => {
                self.channels.fanout.enqueue(&mut self.channels.registry, posted)
            }
            Mail::ToChannel(channel, what) => self.handle_sent(out, channel, what),
            Mail::Joined(key, ticket, answer) => self.joined(out, key, ticket, answer),
            Mail::Listen(topic, listener) => {
                let wants = self.channels.histories.retention(&topic);
                self.channels.fanout.listen(topic, listener, wants);
            }
            Mail::Unlisten(topic, name) => {
                self.channels.fanout.unlisten(&self.channels.registry, topic, name)
            }
            Mail::NodeGone(node) => self.channels.presences.forget(node),
            Mail::Presence(topic, mail, charge) => {
                self.channels.presences.came(out.now(), &topic, mail, charge);
            }
            Mail::Push(push) => self.push_all(out, push),
            Mail::History(HistoryMail::Missed(key, ticket, missed, own)) => {
                self.missed_came(out, key, ticket, missed, own);
            }
            Mail::History(mail) => self.channels.history_came(out, mail),
            Mail::Permit => self.channels.fanout.permit_came(out),
            Mail::Drain(over) => self.deadlines.begin_drain(out, over),
        }
    }
}

/// Each method returns when it must be called again.
impl<N: Node> Core<N> {
    /// Ends what has taken too long, continues a drain, has idle channels hibernate, sends changes
    /// of presence. Called before [`fan_out`](Self::fan_out), since channels that end now may
    /// broadcast.
    pub fn tick(&mut self, out: &mut impl Sockets) -> Next {
        let swept = self.end_overdue(out);
        let drained = self.drain_sockets(out);
        let hibernated = self.hibernate_channels(out);
        let present = self.channels.presences.send(out.now());
        let kept = self.channels.histories.sweep(out.now());
        let replayed = self.channels.go_on_replaying(out);
        let now = out.now();
        let idle = swept.sooner(drained, now).sooner(hibernated, now);
        idle.sooner(present, now).sooner(kept, now).sooner(replayed, now)
    }

    fn end_overdue(&mut self, out: &mut impl Sockets) -> Next {
        if let Some(next) = self.deadlines.find(out, &mut self.channels.expiry, &*self.node) {
            if let Some(meters) = self.channels.meters.as_mut().filter(|_| out.count() == 0) {
                meters.clear();
            }
            return next;
        }
        let until_ns = closes_until_ns(out);
        while let Some(key) = self.deadlines.next() {
            let excuses = Excuses {
                waits_on_history: self.channels.barriers.holds_socket(key),
                is_held_back: self.channels.fanout.holds_back(key),
            };
            match Deadlines::judge(
                out,
                key,
                excuses,
                &mut self.channels.expiry,
                &*self.node,
                &self.metrics,
            ) {
                Some(Due::Close(code)) => self.channels.close(out, key, code),
                Some(Due::EndWait) => self.end_wait(out, key),
                None => {}
            }
            if out.clock_ns() >= until_ns {
                break;
            }
        }
        let now = out.now();
        let (next, is_round) = self.deadlines.end(&mut self.channels.expiry, now);
        if let Some(meters) = self.channels.meters.as_mut().filter(|_| is_round) {
            meters.age(now.ns);
        }
        next
    }

    /// A socket has waited too long for a broadcast to be kept, for the decision about a join, or
    /// for a channel that handles messages so slowly that its socket is not read.
    fn end_wait(&mut self, out: &mut impl Sockets, key: Key) {
        if self.channels.barriers.holds_socket(key) {
            return self.channels.unconfirmed(out, key);
        }
        let full = out.socket(key).and_then(|socket| socket.own.as_ref()?.full);
        match full.and_then(|channel| self.channels.registry.live(channel)) {
            Some(membership) => {
                self.metrics.errors_decision_timeout.add(1);
                self.channels.end_channel(out, membership, Reason::Crashed);
            }
            None => self.join_overdue(out, key),
        }
    }

    /// Closes as many sockets as the drain should have closed by now.
    pub(crate) fn drain_sockets(&mut self, out: &mut impl Sockets) -> Next {
        let is_empty = self.deadlines.is_draining() && out.count() == 0;
        let may_end = is_empty && self.node.may_end(usize::from(self.shard));
        let keys = match self.deadlines.drain(out, may_end) {
            Ok(keys) => keys,
            Err(next) => return next,
        };
        let (until_ns, mut closed) = (closes_until_ns(out), 0);
        for key in keys {
            if out.clock_ns() >= until_ns {
                break;
            }
            closed += 1;
            match out.socket(key).map(Socket::phase) {
                Some(Phase::Open | Phase::Waiting | Phase::Connecting) => {
                    self.channels.close(out, key, CloseCode::RESTART);
                }
                Some(_) => out.close(key),
                None => {}
            }
        }
        self.deadlines.note_drained(closed)
    }

    pub(crate) fn hibernate_channels(&mut self, out: &mut impl Sockets) -> Next {
        let (registry, application) = (&mut self.channels.registry, &self.channels.application);
        let (next, crashed) = self.deadlines.hibernate(out, registry, application);
        for membership in crashed {
            self.channels.end_channel(out, membership, Reason::Crashed);
        }
        next
    }

    /// Sends broadcasts, for at most one slice.
    pub fn fan_out(&mut self, out: &mut impl Sockets) -> Next {
        let Some(mut slice) = self.channels.fanout.begin_slice(out) else { return Next::Idle };
        while let Some(through) =
            self.channels.fanout.go_on(&mut self.channels.registry, out, &mut slice)
        {
            let channel = self.channels.registry.id_of(through.membership, through.generation);
            self.channels.pass_through(out, through);
            self.channels.end_if_stopped(out, channel);
        }
        self.channels.fanout.end_slice(out, &slice)
    }

    /// At the very end of a turn: releases withheld bytes, counts what is in flight, reads held
    /// publishers again, reports members and users for notices.
    pub fn settle(&mut self, out: &mut impl Sockets) -> Next {
        let withheld = self.channels.fanout.give_back_withheld(&mut self.channels.registry, out);
        self.channels.fanout.count_bytes();
        let held = self.channels.fanout.release_held(out);
        self.channels.hand_over_sightings();
        withheld.sooner(held, out.now())
    }
}
