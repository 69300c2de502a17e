//! Sending: broadcasts, topics, presences, disconnects, calls and beats of this node.

use simurgh_history::Retention;
use simurgh_presence::{FromPeers, Owner, ToPeers};

use super::counts::count;
use super::{Cluster, LinkState, LocalNode, Time};
use crate::adapter::Adapter;
use crate::beat::{Beat, Hello};
use crate::calls::{CALL_BYTES_MAX, CALL_PIECE_BYTES, CallError, CallNumber, call_drafts};
use crate::disconnects::{DisconnectNumber, TooManyDisconnects};
use crate::envelope::{Draft, EncodeError, Header, Item, Kind, resent, stamped};
use crate::node_id::NodeId;
use crate::outbox::{Class, OUTBOX_ENTRY_BYTES};
use crate::presence::{ask_drafts, delta_drafts, state_drafts};
use crate::subject::{Space, Subject, TOKEN_BYTES_MAX};
use simurgh_data::prelude::*;

/// How long after a link is made the other nodes are still unknown.
const UNKNOWN_NS: u64 = 300_000_000;
/// The bytes of a call's envelope around its piece, with room to spare.
const AROUND_PIECE_BYTES: usize = 256;

impl<A: Adapter + ?Sized> Cluster<A> {
    /// Sends a broadcast to the members of its topic on all other nodes.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn broadcast(
        &mut self,
        topic: &str,
        item: &Item<'_>,
        time: Time,
    ) -> Result<(), EncodeError> {
        let draft = Draft::broadcast(self.me, topic, item)?;
        let to = self.broadcasts_of(topic);
        self.push(Class::Plain, to, draft, time);
        Ok(())
    }

    fn broadcasts_of(&mut self, topic: &str) -> Subject {
        if let Some((last, subject)) = &self.last_topic
            && **last == *topic
        {
            return subject.clone();
        }
        let subject = self.prefix.topic(Space::Broadcast, topic);
        let is_short = topic.len() <= TOKEN_BYTES_MAX;
        self.last_topic = is_short.then(|| (topic.into(), subject.clone()));
        subject
    }

    /// Sends a broadcast to the members of its topic on one other node.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn direct(
        &mut self,
        node: NodeId,
        topic: &str,
        item: &Item<'_>,
        time: Time,
    ) -> Result<(), EncodeError> {
        let draft = Draft::broadcast(self.me, topic, item)?;
        self.push(Class::Plain, self.prefix.node(node), draft, time);
        Ok(())
    }

    /// A shard has its first member or listener of a topic. If the topic has a history here, it is
    /// [followed](Self::follow) as long as there is any.
    pub fn topic_begins(&mut self, topic: &str, shard: u16, wants: Option<Retention>, time: Time) {
        self.interests.begin(topic, shard, time.ns);
        if let Some(wants) = wants {
            self.keep(topic, wants);
        }
    }

    /// Subscribes to a topic before a member joins; [`poll_awaited`](Self::poll_awaited) returns
    /// this number when the broker has the subscription. Without a link it does so at once: nothing
    /// can be received then, and the next link has the subscription.
    pub fn await_topic(&mut self, topic: &str, number: u64, time: Time) {
        self.interests.expect(topic, time.ns);
        match self.state {
            LinkState::Away => self.waiters.give(number),
            _ => self.waiters.push(number),
        }
    }

    /// The number of an awaited topic whose subscription is in force.
    pub fn poll_awaited(&mut self) -> Option<u64> {
        self.waiters.pop()
    }

    /// A shard has no member or listener of a topic any more.
    pub fn topic_ends(&mut self, topic: &str, shard: u16, time: Time) {
        self.interests.end(topic, shard, time.ns);
    }

    /// Sends a message of the home shard of a topic's presences.
    pub fn presence(&mut self, topic: &str, what: ToPeers, time: Time, local: &mut impl LocalNode) {
        let drafts = match what {
            ToPeers::Begin => {
                self.interests.begin_presence(topic, time.ns);
                return self.begin_presence(topic, time, local);
            }
            ToPeers::End => return self.interests.end_presence(topic, time.ns),
            ToPeers::RequestState(owner) => {
                return self.presence_requests.add(Some(NodeId(owner.0)), topic, time.ns);
            }
            ToPeers::Delta(delta) => delta_drafts(topic, &delta)
                .map(|it| (self.prefix.topic(Space::Presence, topic), it)),
            ToPeers::State(owner, state) => {
                state_drafts(topic, &state).map(|it| (self.prefix.node(NodeId(owner.0)), it))
            }
        };
        match drafts {
            Ok((to, drafts)) => {
                drafts.into_iter().for_each(|it| self.push(Class::Presence, to.clone(), it, time));
            }
            Err(_) => self.counts.refused_large += 1,
        }
    }

    /// Requests a topic's presences from all others, and sends the home shard the list of those
    /// nodes as soon as they are known.
    fn begin_presence(&mut self, topic: &str, time: Time, local: &mut impl LocalNode) {
        let is_away = self.state == LinkState::Away;
        // After some time the other nodes have announced themselves.
        if is_away || time.ns.saturating_sub(self.linked_ns) >= UNKNOWN_NS {
            let nodes = self.peers.live().filter(|_| !is_away).map(|it| Owner(it.0)).collect();
            local.presence(topic, FromPeers::Requested(nodes));
        }
        if !is_away {
            self.presence_requests.add(None, topic, time.ns);
        }
    }

    /// Has all sockets with an id closed on all other nodes. [`poll_outcome`](Self::poll_outcome)
    /// always returns the outcome.
    ///
    /// # Errors
    /// Too many disconnects are open.
    pub fn disconnect(
        &mut self,
        socket_id: &str,
        time: Time,
    ) -> Result<DisconnectNumber, TooManyDisconnects> {
        let here: Vec<NodeId> = self.peers.iter().map(|it| it.id()).collect();
        let lost: Vec<NodeId> = self.peers.unaccounted().collect();
        let number = self.disconnects.start(socket_id, here, lost, time.ns)?;
        self.send_disconnects(time);
        Ok(number)
    }

    /// Has an order carried out on all other nodes, likewise; it has at least one byte.
    ///
    /// # Errors
    /// As [`disconnect`](Self::disconnect).
    pub fn order(
        &mut self,
        order: &[u8],
        time: Time,
    ) -> Result<DisconnectNumber, TooManyDisconnects> {
        let here: Vec<NodeId> = self.peers.iter().map(|it| it.id()).collect();
        let lost: Vec<NodeId> = self.peers.unaccounted().collect();
        let number = self.disconnects.order(order, here, lost, time.ns)?;
        self.send_disconnects(time);
        Ok(number)
    }

    /// This node has carried out another node's order, which concerned so many sockets or channels.
    pub fn order_done(&mut self, by: NodeId, number: u64, count: u64, time: Time) {
        let mut done = self.done.iter_mut().rev();
        if let Some(it) = done.find(|it| (it.by, it.number) == (by, number)) {
            it.count = Some(count);
            self.send_done(by, number, count, time);
        }
    }

    pub(super) fn send_done(&mut self, by: NodeId, number: u64, count: u64, time: Time) {
        if let Ok(done) = Draft::done(self.me, number, count) {
            self.push(Class::Control, self.prefix.node(by), done, time);
        }
    }

    /// Calls a service on another node, under a number that no other call has;
    /// [`LocalNode::answered`] gets the answer, unless the call is [hung up](Self::hang_up) before.
    /// The caller decides how long to wait.
    ///
    /// # Errors
    /// The call was not made.
    pub fn call(
        &mut self,
        node: NodeId,
        number: CallNumber,
        (service, body): (u16, &[u8]),
        time: Time,
    ) -> Result<(), CallError> {
        if self.peers.get(node).is_none() {
            return Err(CallError::NoSuchNode);
        }
        self.check_call(body)?;
        self.calls.start(number, node)?;
        self.send_call(Kind::Call, node, (number.0, service), body, time);
        Ok(())
    }

    /// Refuses a longer answer: the call then gets none.
    pub fn bound_answer(&mut self, number: CallNumber, bytes_max: usize) {
        self.calls.bound(number, bytes_max);
    }

    /// Ends a call.
    pub fn hang_up(&mut self, number: CallNumber, time: Time) {
        if let Some(node) = self.calls.end(number)
            && let Ok(draft) = Draft::hang_up(self.me, number.0)
        {
            self.push(Class::Call, self.prefix.node(node), draft, time);
        }
    }

    /// Answers a call of another node.
    ///
    /// # Errors
    /// The answer is not sent.
    pub fn answer(
        &mut self,
        node: NodeId,
        number: u64,
        (status, body): (u16, &[u8]),
        time: Time,
    ) -> Result<(), CallError> {
        self.check_call(body)?;
        self.send_call(Kind::Return, node, (number, status), body, time);
        Ok(())
    }

    /// Refuses a body unless there is room for all of its pieces.
    fn check_call(&self, body: &[u8]) -> Result<(), CallError> {
        if body.len() > CALL_BYTES_MAX {
            return Err(CallError::TooLarge(body.len()));
        }
        let pieces = 1 + body.len() / CALL_PIECE_BYTES;
        let bytes = body.len() + pieces * (OUTBOX_ENTRY_BYTES + AROUND_PIECE_BYTES);
        if bytes <= self.outbox.room(Class::Call) { Ok(()) } else { Err(CallError::Busy) }
    }

    fn send_call(&mut self, kind: Kind, node: NodeId, head: (u64, u16), body: &[u8], time: Time) {
        for draft in call_drafts(kind, self.me, head, body).into_iter().flatten() {
            self.push(Class::Call, self.prefix.node(node), draft, time);
        }
    }

    /// Shares cached answers of applications with all other nodes, at most once, like broadcasts.
    pub fn grants(&mut self, grants: &[u8], time: Time) {
        match Draft::grants(self.me, grants) {
            Ok(draft) => self.push(Class::Plain, self.prefix.nodes(), draft, time),
            Err(_) => self.counts.refused_large += 1,
        }
    }

    /// Sets the number of open sockets.
    pub fn set_sockets(&mut self, sockets: u64) {
        self.sockets = sockets;
    }

    /// This node closes its sockets and is about to end; other nodes are informed at once.
    pub fn drain(&mut self, time: Time) {
        if !core::mem::replace(&mut self.is_draining, true) {
            self.report_peers_soon();
            self.send_beat(time);
        }
    }

    /// Sends a bye, the node's last message. It may end when [`is_flushed`](Self::is_flushed).
    pub fn bye(&mut self, time: Time) {
        if !core::mem::replace(&mut self.has_said_bye, true)
            && let Ok(bye) = Draft::bye(self.me)
        {
            // In the last class, so that it is sent last.
            self.push(Class::Plain, self.prefix.nodes(), bye, time);
        }
    }

    /// Whether the broker has confirmed everything.
    pub fn is_flushed(&self) -> bool {
        let has_stored = self.history.as_ref().is_none_or(|it| it.stores.is_empty());
        let has_said = self.outbox.is_empty() && self.refused.is_none();
        has_stored && has_said && self.adapter.in_flight() == 0
    }

    /// Hands over what is to be sent, as much as the adapter takes. Returns whether there was
    /// something. Call it after every other method.
    pub fn settle(&mut self, time: Time) -> bool {
        let mut has_said = false;
        for step in self.interests.take_changes() {
            self.waiters.last_change = self.adapter.interest(&step);
            has_said = true;
        }
        self.waiters.changes_sent();
        self.history_waiters.last_change = self.waiters.last_change;
        self.history_waiters.changes_sent();
        self.begin_followed();
        while !self.is_full {
            let next = self.refused.take().or_else(|| {
                let (class, to, envelope) = self.outbox.pop()?;
                self.n += 1;
                Some((class, to, stamped(envelope, self.n)))
            });
            let Some((class, to, envelope)) = next else { break };
            match self.adapter.publish(&to, envelope.clone()) {
                Ok(()) => {
                    has_said = true;
                    if let Ok(header) = Header::read(&envelope) {
                        count(&mut self.counts.published, header.kind);
                    }
                }
                Err(_) => {
                    self.is_full = true;
                    self.refused = Some((class, to, envelope));
                }
            }
        }
        has_said |= self.settle_log(time);
        has_said |= self.settle_history(time);
        if self.state == LinkState::CatchingUp && self.outbox.is_empty() && self.refused.is_none() {
            self.enter(LinkState::Up, time);
        }
        has_said
    }

    /// Sends the requests for presences that are due, and informs the home shards to which nodes.
    pub(super) fn request_presences(&mut self, time: Time, local: &mut impl LocalNode) {
        let all: Arc<[Owner]> = self.peers.live().map(|it| Owner(it.0)).collect();
        for (of, topics) in self.presence_requests.take(time.ns) {
            let asked = of.map_or_else(|| Arc::clone(&all), |it| [Owner(it.0)].into());
            for topic in &topics {
                local.presence(topic, FromPeers::RequestedAgain(Arc::clone(&asked)));
            }
            let to = of.map_or_else(|| self.prefix.nodes(), |node| self.prefix.node(node));
            let Ok(drafts) = ask_drafts(self.me, topics.iter().map(|it| &**it)) else {
                self.counts.refused_large += 1;
                continue;
            };
            for draft in drafts {
                self.push(Class::Presence, to.clone(), draft, time);
            }
        }
    }

    pub(super) fn send_disconnects(&mut self, time: Time) {
        while let Some(send) = self.disconnects.poll_send() {
            let to = send.to.map_or_else(|| self.prefix.nodes(), |it| self.prefix.node(it));
            let draft = match send.order {
                [] => Draft::disconnect(self.me, send.socket_id, send.number.0),
                order => Draft::order(self.me, send.number.0, order),
            };
            match draft {
                Ok(draft) => self.push(Class::Control, to, draft, time),
                Err(_) => self.counts.refused_large += 1,
            }
        }
    }

    pub(super) fn send_beat(&mut self, time: Time) {
        let beat = self.own_beat(time).draft();
        self.send_own(beat, time);
    }

    /// Tells the other nodes of other settings, which all must share.
    pub fn set_settings(&mut self, settings: Vec<(Box<str>, u64)>, time: Time) {
        if self.settings != settings {
            self.peers.set_settings(settings.clone());
            self.settings = settings;
            self.send_hello(time);
        }
    }

    pub(super) fn send_hello(&mut self, time: Time) {
        let hello = Hello { beat: self.own_beat(time), settings: self.settings.clone() };
        self.send_own(hello.draft(), time);
    }

    fn send_own(&mut self, draft: Result<Draft, EncodeError>, time: Time) {
        match draft {
            Ok(draft) => self.push(Class::Control, self.prefix.nodes(), draft, time),
            Err(_) => self.counts.refused_large += 1,
        }
    }

    fn own_beat(&self, time: Time) -> Beat {
        Beat {
            id: self.me,
            name: self.name.clone(),
            version: self.version.clone(),
            envelopes: self.envelopes,
            sockets: self.sockets,
            is_draining: self.is_draining,
            unix_ms: time.unix_ms,
        }
    }

    pub(super) fn push(&mut self, class: Class, to: Subject, draft: Draft, time: Time) {
        let mut envelope = draft.unnumbered();
        if class == Class::Presence && self.session.is_none() {
            envelope = resent(envelope);
        }
        match self.outbox.push(class, to, envelope, time.ns) {
            Ok(dropped) => self.counts.dropped += dropped,
            Err(why) => self.counts.refuse(why),
        }
    }
}
