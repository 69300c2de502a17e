//! Mail from other threads, and what is due at the end of a turn. The methods for messages and ends
//! of sockets are in `session`.

use simurgh_channel::{Mail, Node};
use simurgh_reactor::{Key, Next};

use crate::core::Core;
use crate::sockets::Sockets;

impl<N: Node> Core<N> {
    /// The socket's peer has taken everything that waited for it.
    pub fn drained(&mut self, out: &impl Sockets, key: Key) {
        if let Some(socket) = out.socket(key) {
            self.fanout.mark_caught_up(&mut self.registry, socket.list);
        }
    }

    /// Handles mail from another thread.
    pub fn mail(&mut self, out: &mut impl Sockets, mail: Mail) {
        match mail {
            Mail::Broadcast(posted) => self.fanout.enqueue(&mut self.registry, posted),
            Mail::ToChannel(channel, what) => self.handle_sent(out, channel, what),
            Mail::Joined(key, ticket, answer) => self.joined(out, key, ticket, answer),
            Mail::Listen(topic, listener) => self.listen(topic, listener),
            Mail::Unlisten(topic, name) => self.unlisten(topic, name),
            Mail::NodeGone(node) => self.presence.forget(node),
            Mail::Presence(topic, mail, charge) => self.presence_came(out, &topic, mail, charge),
            Mail::Push(push) => self.push_all(out, push),
            Mail::History(mail) => self.history_came(out, mail),
            Mail::Permit => self.fanout.permit_came(out),
            Mail::Drain(over) => self.begin_drain(out, over),
        }
    }
}

/// Each method returns when it must be called again.
impl<N: Node> Core<N> {
    /// Ends what has taken too long, continues a drain, has idle channels hibernate, sends changes
    /// of presence. Called before [`fan_out`](Self::fan_out), since channels that end now may
    /// broadcast.
    pub fn tick(&mut self, out: &mut impl Sockets) -> Next {
        let swept = self.sweep_sockets(out);
        let drained = self.drain_sockets(out);
        let hibernated = self.hibernate_channels(out);
        let present = self.send_presences(out);
        let kept = self.histories.sweep(out.now());
        let replayed = self.go_on_replaying(out);
        let now = out.now();
        let idle = swept.sooner(drained, now).sooner(hibernated, now);
        idle.sooner(present, now).sooner(kept, now).sooner(replayed, now)
    }

    /// Sends broadcasts, for at most one slice.
    pub fn fan_out(&mut self, out: &mut impl Sockets) -> Next {
        let Some(mut slice) = self.fanout.begin_slice(out) else { return Next::Idle };
        while let Some(through) = self.fanout.go_on(&mut self.registry, out, &mut slice) {
            self.deliver_through(out, through);
        }
        self.fanout.end_slice(out, &slice)
    }

    /// At the very end of a turn: releases withheld bytes, counts what is in flight, reads held
    /// publishers again.
    pub fn settle(&mut self, out: &mut impl Sockets) -> Next {
        let withheld = self.fanout.give_back_withheld(&mut self.registry, out);
        self.fanout.count_bytes();
        let held = self.fanout.release_held(out);
        withheld.sooner(held, out.now())
    }
}
