//! What comes in: the methods that a transport calls, in the kinds that the crate's page tells.

use simurgh_channel::{HistoryMail, Mail, Node, SocketState};
use simurgh_proto::serializer::Frame;
use simurgh_proto::ws::CloseCode;
use simurgh_reactor::{Key, Next};

use crate::core::{Core, Received};
use crate::socket::Socket;
use crate::sockets::Sockets;

/// Input: what has happened.
impl<N: Node> Core<N> {
    /// A socket was let in: its record says where it leads and what is spoken.
    pub fn opened(&mut self, out: &mut impl Sockets, key: Key, state: SocketState) {
        self.begin_session(out, key, state);
    }

    /// A Channels message of a client.
    #[inline]
    pub fn message(&mut self, out: &mut impl Sockets, key: Key, received: Received<'_>) {
        self.act(out, key, received);
    }

    /// A message of a client that speaks no Channels.
    pub fn plain_message(&mut self, out: &mut impl Sockets, key: Key, frame: Frame<'_>) {
        self.act_plain(out, key, frame);
    }

    /// The client closes, with this code, or answers our close.
    pub fn peer_closed(&mut self, out: &mut impl Sockets, key: Key, code: Option<CloseCode>) {
        self.peer_closes(out, key, code);
    }

    /// The socket's peer has taken all that waited for it.
    pub fn drained(&mut self, out: &impl Sockets, key: Key) {
        if let Some(socket) = out.socket(key) {
            self.fanout.caught_up(&mut self.registry, socket.list);
        }
    }

    /// The connection is gone, and this was its record.
    pub fn closed(&mut self, out: &mut impl Sockets, key: Key, socket: Socket) {
        self.end_session(out, key, socket);
    }

    /// Something came from another thread.
    pub fn mail(&mut self, out: &mut impl Sockets, mail: Mail) {
        match mail {
            Mail::Broadcast(posted) => self.fanout.enqueue(&mut self.registry, posted),
            Mail::ToChannel(channel, what) => self.told(out, channel, what),
            Mail::Joined(key, ticket, answer) => self.joined(out, key, ticket, answer),
            Mail::Listen(topic, listener) => self.listen(topic, listener),
            Mail::Unlisten(topic, name) => self.unlisten(topic, name),
            Mail::NodeGone(node) => self.node_is_gone(node),
            Mail::Presence(topic, mail) => self.presence_came(out, &topic, mail),
            Mail::Push(push) => self.push_all(out, push),
            Mail::History(HistoryMail::Missed(key, ticket, missed, own)) => {
                self.heard_missed(out, key, ticket, (missed, own));
            }
            Mail::History(mail) => self.history_came(out, mail),
            Mail::Permit => self.fanout.permit_came(out),
            Mail::Drain(over) => self.begin_drain(out, over),
        }
    }
}

/// Commands: what the transport wants done.
impl<N: Node> Core<N> {
    /// Closes a socket and waits a while for the peer's answer; with the code that its reason has.
    pub fn close(&mut self, out: &mut impl Sockets, key: Key, code: CloseCode) {
        self.close_with(out, key, code);
    }

    /// Closes a socket whose peer broke the protocol: what else it sends is not looked at.
    pub fn fail(&mut self, out: &mut impl Sockets, key: Key, code: CloseCode) {
        self.fail_socket(out, key, code);
    }
}

/// Time: what is due at the end of a turn. Each says when it wants to be called again.
impl<N: Node> Core<N> {
    /// Ends what has taken too long, gets on with a drain, has idle channels hibernate, tells who
    /// has come and gone. Comes
    /// before [`fan_out`](Self::fan_out): whose time is up has channels that may broadcast their
    /// end.
    pub fn tick(&mut self, out: &mut impl Sockets) -> Next {
        let swept = self.sweep_sockets(out);
        let drained = self.drain_sockets(out);
        let hibernated = self.hibernate_channels(out);
        let present = self.tell_presences(out);
        let kept = self.sweep_history(out);
        let replayed = self.go_on_replaying(out);
        let now = out.now();
        let idle = swept.sooner(drained, now).sooner(hibernated, now);
        idle.sooner(present, now).sooner(kept, now).sooner(replayed, now)
    }

    /// Sends what is to be sent, for at most one slice.
    pub fn fan_out(&mut self, out: &mut impl Sockets) -> Next {
        let Some(mut slice) = self.fanout.begin_slice(out) else { return Next::Idle };
        while let Some(through) = self.fanout.go_on(&mut self.registry, out, &mut slice) {
            self.deliver_through(out, through);
        }
        self.fanout.end_slice(out, &slice)
    }

    /// Settles accounts at the very end of a turn: gives back what was withheld, counts what is
    /// under way, reads publishers again that were held.
    pub fn settle(&mut self, out: &mut impl Sockets) -> Next {
        let withheld = self.fanout.give_back_withheld(&mut self.registry, out);
        self.fanout.count_bytes();
        let held = self.fanout.release_held(out);
        withheld.sooner(held, out.now())
    }
}
