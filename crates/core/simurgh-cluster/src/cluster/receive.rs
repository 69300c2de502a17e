//! Processing the events of the broker and the messages of other nodes.

use bytes::Bytes;
use simurgh_presence::{FromPeers, Owner};

use super::counts::count;
use super::{Cluster, DONE_MAX, LinkState, LocalNode, Notice, Ordered, Time, WINDOWS_MAX};
use crate::adapter::{Adapter, Event, Received, Session};
use crate::disconnects::DisconnectNumber;
use crate::envelope::{Draft, Envelope, Items, Kind};
use crate::log::Log;
use crate::message::Message;
use crate::node_id::NodeId;
use crate::outbox::Class;
use crate::peers::PeerEvent;
use crate::presence::{Part, PresenceUpdate};
use crate::subject::{Bucket, Interest, Space};
use simurgh_data::prelude::*;

/// How long after a node is gone it may repeat envelopes that the broker may not have: it returns,
/// or does not know that the broker has its bye.
const WINDOWS_KEPT_NS: u64 = 600 * 1_000_000_000;

/// Whether a duplicate of this kind would have an effect twice.
const fn is_counted(kind: Kind) -> bool {
    matches!(kind, Kind::Broadcast | Kind::Call | Kind::Return | Kind::HangUp)
}

impl<A: Adapter + ?Sized> Cluster<A> {
    pub(super) fn on_event(&mut self, event: Event, time: Time, local: &mut impl LocalNode) {
        match event {
            Event::Up { session, kept, log } => {
                if let Some(of_node) = &mut self.log {
                    of_node.up(log);
                }
                self.on_link_up(session, kept, time, local);
            }
            Event::Down(why) => {
                if let Some(history) = &mut self.history {
                    history.follows.down(false, time.ns);
                }
                self.session = None;
                self.peers.link_down(time.ns);
                self.link_probe = None;
                // Over the next link all presences are requested again.
                self.presence_requests.clear();
                self.waiters.give_all();
                self.enter(LinkState::Away, time);
                self.notice(Notice::Down(why));
            }
            Event::Received(Received { envelope, stored: Some(number), at_ms, .. }) => {
                self.receive_kept(&envelope, (number, at_ms), time, local);
            }
            Event::Received(Received { space, envelope, .. }) => {
                self.receive_envelope(space, &envelope, time, local);
            }
            Event::Lost(interests) => self.on_loss(&interests, time),
            Event::Room => (self.is_full, self.is_storage_full) = (false, false),
            Event::InForce(generation) => {
                self.waiters.in_force(generation);
                self.history_waiters.in_force(generation);
                self.begin_followed();
                self.link_probe_answered(generation, time);
            }
            answer if let Some(ticket) = answer.ticket().filter(|it| Log::is_of_log(*it)) => {
                self.log_answered(ticket, answer, time, local);
            }
            answer => self.history_answered(answer, time, local),
        }
    }

    fn on_link_up(
        &mut self,
        session: Session,
        kept: Option<u64>,
        time: Time,
        local: &mut impl LocalNode,
    ) {
        self.is_storage_full = false;
        if let Some(history) = &mut self.history {
            history.up(kept, time.ns);
        }
        self.counts.links += 1;
        if self.counts.links > 1 {
            self.counts.lost += 1;
        }
        self.session = Some(session);
        self.linked_ns = time.ns;
        self.is_full = false;
        self.outbox.mark_resent(Class::Presence);
        self.peers.link_up(time.ns);
        self.enter(LinkState::CatchingUp, time);
        self.send_hello(time);
        self.request_all_presences(None, time);
        self.handle_peer_events(time, local);
    }

    pub(super) fn request_all_presences(&mut self, of: Option<NodeId>, time: Time) {
        let topics = self.present_topics();
        self.counts.resyncs += topics.len() as u64;
        self.presence_requests.add_again(of, topics, time.ns);
    }

    fn present_topics(&self) -> Vec<Box<str>> {
        let wanted = self.interests.wanted();
        let present = wanted.filter(|it| it.space() == Some(Space::Presence));
        present.flat_map(|it| self.topics_of(&it)).collect()
    }

    fn topics_of(&self, interest: &Interest) -> Vec<Box<str>> {
        self.interests.topics_of(interest).map(Box::from).collect()
    }

    fn on_loss(&mut self, interests: &[Interest], time: Time) {
        self.counts.lost += 1;
        self.notice(Notice::Lost(interests.len()));
        self.history_lost(interests, time);
        for interest in interests {
            let topics = match interest.space() {
                Some(Space::Presence) => self.topics_of(interest),
                // Answers to this node and beats may be missing, of any topic.
                None => self.present_topics(),
                Some(_) => continue,
            };
            self.counts.resyncs += topics.len() as u64;
            self.presence_requests.add_again(None, topics, time.ns);
        }
    }

    fn receive_envelope(
        &mut self,
        space: Option<Space>,
        bytes: &Bytes,
        time: Time,
        local: &mut impl LocalNode,
    ) {
        let envelope = match Envelope::decode(bytes) {
            Ok(envelope) => envelope,
            Err(error) => return self.counts.count_unreadable(error),
        };
        let header = envelope.header;
        if header.origin == self.me {
            self.counts.own += 1;
            return;
        }
        if is_counted(header.kind) && !self.is_new(&envelope, space, time.ns) {
            self.counts.again += 1;
            return;
        }
        let message = match envelope.message() {
            Ok(message) => message,
            Err(error) => return self.counts.count_unreadable(error),
        };
        count(&mut self.counts.received, header.kind);
        if matches!(header.kind, Kind::Beat | Kind::Hello)
            && !header.flags.is_resent()
            && let Some(seen) = self.seen.get_mut(&header.origin)
        {
            seen.limit(header.n);
        }
        self.on_message(&envelope, message, time, local);
        if !is_counted(header.kind) {
            self.handle_peer_events(time, local);
        }
    }

    /// Whether an envelope is neither a duplicate nor out of order.
    fn is_new(&mut self, envelope: &Envelope<'_>, space: Option<Space>, now_ns: u64) -> bool {
        let (origin, n) = (envelope.header.origin, envelope.header.n);
        let bucket = space.map(|_| Bucket::of(envelope.topic));
        if let Some(seen) = self.seen.get_mut(&origin) {
            return seen.take(bucket, n);
        }
        if self.seen.len() >= WINDOWS_MAX {
            let gone = self.seen.iter().filter_map(|(node, it)| Some((it.gone_ns?, *node)));
            gone.min().map(|(_, longest)| self.seen.remove(&longest));
        }
        if self.seen.len() < WINDOWS_MAX {
            let gone_ns = self.peers.get(origin).is_none().then_some(now_ns);
            let seen = self.seen.entry(origin).or_default();
            seen.gone_ns = gone_ns;
            seen.take(bucket, n);
        }
        true
    }

    fn on_message(
        &mut self,
        envelope: &Envelope<'_>,
        message: Message<'_>,
        time: Time,
        local: &mut impl LocalNode,
    ) {
        let (origin, topic) = (envelope.header.origin, envelope.topic);
        let is_resent = envelope.header.flags.is_resent();
        match message {
            Message::Broadcasts(items) => self.deliver_broadcasts(topic, items, local),
            Message::Presence(part) => {
                let is_state = self.deliver_presence(origin, topic, part, local);
                if is_state && is_resent {
                    // It may be older than the last request, which may be lost.
                    self.presence_requests.add(Some(origin), topic, time.ns);
                }
            }
            Message::AskState(topics) => {
                for topic in topics {
                    local.presence(topic, FromPeers::StateWanted(Owner(origin.0)));
                }
            }
            Message::Beat(beat) => self.peers.heard(&beat, time.ns, time.unix_ms),
            Message::Hello(hello) => {
                if self.peers.hello(&hello, time.ns, time.unix_ms) {
                    self.send_hello(time);
                }
                // A late hello of a node that has sent a bye: it confirms nothing.
                if self.peers.get(origin).is_some() {
                    self.disconnects.hello(origin, time.ns);
                }
            }
            Message::Bye => self.peers.bye(origin, time.ns),
            Message::Disconnect { number } => {
                if self.done_before(origin, number).is_none() {
                    local.disconnect(topic);
                    self.remember(Ordered { by: origin, number, count: Some(0) });
                }
                if let Ok(answer) = Draft::answer(self.me, number) {
                    self.push(Class::Control, self.prefix.node(origin), answer, time);
                }
            }
            Message::Order { number, order } => match self.done_before(origin, number) {
                None => {
                    self.remember(Ordered { by: origin, number, count: None });
                    local.order(origin, number, order);
                }
                Some(Ordered { count: Some(count), .. }) => {
                    self.send_done(origin, number, count, time);
                }
                // It is being carried out.
                Some(Ordered { count: None, .. }) => {}
            },
            Message::Done { number, count } => {
                self.disconnects.done(origin, DisconnectNumber(number), count);
            }
            Message::Answer { number } => {
                self.disconnects.answered(origin, DisconnectNumber(number));
            }
            Message::Call(piece) => {
                if let Some((service, body)) = self.calls.called(origin, &piece) {
                    local.called(origin, piece.number, service, body);
                }
            }
            Message::Return(piece) => {
                if let Some((number, answer)) = self.calls.answered(origin, &piece) {
                    local.answered(number, answer);
                }
            }
            Message::HangUp { number } => local.hung_up(origin, number),
            Message::Grants(grants) => local.grants(grants),
            // A forget marker without a number has no position among the messages that it ends.
            Message::Forget => self.counts.broken += 1,
        }
    }

    /// What another node has ordered under this number before.
    fn done_before(&self, by: NodeId, number: u64) -> Option<Ordered> {
        self.done.iter().rev().find(|it| (it.by, it.number) == (by, number)).copied()
    }

    fn remember(&mut self, ordered: Ordered) {
        if self.done.len() >= DONE_MAX {
            self.done.pop_front();
        }
        self.done.push_back(ordered);
    }

    pub(super) fn deliver_broadcasts(
        &mut self,
        topic: &str,
        items: Items<'_>,
        local: &mut impl LocalNode,
    ) {
        let Some(shards) = self.interests.shards(topic) else {
            self.counts.unwanted += 1;
            return self.interests.count_unwanted(topic);
        };
        for item in items {
            local.broadcast(topic, &item, shards.clone());
        }
    }

    /// Returns whether it was all of a node's state.
    fn deliver_presence(
        &mut self,
        origin: NodeId,
        topic: &str,
        part: Part<'_>,
        local: &mut impl LocalNode,
    ) -> bool {
        // Its entries would never be removed; once it is a peer its presences are requested.
        if self.peers.get(origin).is_none() {
            self.counts.late += 1;
            return false;
        }
        match self.parts.take(part) {
            Ok(None) => {}
            Ok(Some(PresenceUpdate::Delta(delta))) => {
                local.presence(topic, FromPeers::Delta(delta))
            }
            Ok(Some(PresenceUpdate::Snapshot(state))) => {
                local.presence(topic, FromPeers::State(state));
                return true;
            }
            Err(error) => self.counts.count_unreadable(error),
        }
        false
    }

    pub(super) fn handle_peer_events(&mut self, time: Time, local: &mut impl LocalNode) {
        while let Some(event) = self.peers.poll_event() {
            self.report_peers_soon();
            match &event {
                PeerEvent::Joined(node) => {
                    self.seen.entry(*node).and_modify(|it| it.gone_ns = None);
                    // Known by a beat, so its hello was lost: it may have received no disconnect.
                    self.disconnects.hello(*node, time.ns);
                    // The request to all nodes over a new link may have been too early for it.
                    self.request_all_presences(Some(*node), time);
                }
                // No request was sent to it while it was silent. Where a beat is lost, the last
                // change of a topic may be, and each time that its version was repeated.
                PeerEvent::Back(node) | PeerEvent::Missed(node) => {
                    self.request_all_presences(Some(*node), time);
                }
                PeerEvent::Gone(node, why) => {
                    self.parts.forget(*node);
                    self.disconnects.gone(*node, *why);
                    self.calls.gone(*node).into_iter().for_each(|it| local.answered(it, None));
                    self.seen.entry(*node).and_modify(|it| it.gone_ns = Some(time.ns));
                    self.seen.retain(|_, it| {
                        it.gone_ns.is_none_or(|ns| time.ns.saturating_sub(ns) < WINDOWS_KEPT_NS)
                    });
                    local.gone(*node);
                }
                _ => {}
            }
            self.notice(Notice::Peer(event));
        }
        self.send_disconnects(time);
    }
}
