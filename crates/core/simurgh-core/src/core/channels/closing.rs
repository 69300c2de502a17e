//! Ends of channels and sockets. Part of `effects`: each calls the other.

use simurgh_channel::{ChannelId, Effect, Node, PresenceCall, Reason};
use simurgh_data::Key;
use simurgh_notices::Reason as Why;
use simurgh_proto::message::Ref;
use simurgh_proto::session::server as session;
use simurgh_proto::ws::CloseCode;

use super::Channels;
use super::sightings::why_closed;
use crate::barrier::Queued;
use crate::frames::{close_reason, send, send_close};
use crate::registry::{DELIVERING, List, TRACKS};
use crate::socket::{Own, Phase, Speaker};
use crate::sockets::{AbandonReason, Sockets};
use simurgh_data::prelude::*;

impl<N: Node> Channels<N> {
    /// Ends a channel once it has got what was broadcast before. If it is being brought up to date,
    /// it ends after the message for which that is done. The first reason counts.
    pub(crate) fn end_channel(&mut self, out: &mut impl Sockets, membership: u32, reason: Reason) {
        let Some(it) = self.registry.member(membership) else { return };
        let (id, is_seeing) = (self.registry.id_of(membership, it.generation), it.is(DELIVERING));
        if self.barriers.admit(id, Queued::End(reason)).is_none() {
            return;
        }
        self.metrics.count_end(reason);
        if !is_seeing {
            self.bring_up_to_date(out, membership);
            if let Some(membership) = self.registry.live(id) {
                self.end_now(out, membership, reason);
            }
        } else {
            self.barriers.stop(id, reason);
        }
    }

    /// Ends a channel that stopped itself while it intercepted a broadcast, now that the message
    /// behind that is sent; if the channel waits, after that.
    pub(crate) fn end_if_stopped(&mut self, out: &mut impl Sockets, channel: ChannelId) {
        if let Some(reason) = self.barriers.take_stopped(channel)
            && let Some(membership) = self.registry.live(channel)
        {
            self.end_now(out, membership, reason);
        }
    }

    /// Ends a channel: notifies the client, takes it out of every table, lets it clean up.
    pub(crate) fn end_now(&mut self, out: &mut impl Sockets, membership: u32, reason: Reason) {
        let Some(speaker) = self.speaker(out, membership) else { return };
        // A plain client is notified by the end of its socket, which ends the channel too: that is
        // done last, so that the channel is given its own reason.
        let is_plain = speaker.wire.is_plain();
        if !is_plain {
            self.notify(out, &speaker, reason);
        }
        let effects = self.take_out(out, &speaker, reason);
        self.apply(out, &speaker, effects);
        if is_plain {
            self.notify(out, &speaker, reason);
        }
    }

    pub(crate) fn notify(&mut self, out: &mut impl Sockets, speaker: &Speaker, reason: Reason) {
        let is_fault = reason.is_for_rejoin();
        if speaker.wire.is_plain() {
            let code = if is_fault { CloseCode::INTERNAL } else { CloseCode::NORMAL };
            return self.close(out, speaker.conn, code);
        }
        // Null if the client gave none.
        let join_ref = if speaker.is_given { speaker.join_ref.as_ref() } else { Ref::Null };
        let notice = match is_fault {
            true => session::crashed(&join_ref, &speaker.topic),
            false => session::closed(&join_ref, &speaker.topic),
        };
        send(out, &self.metrics, speaker.conn, notice);
    }

    /// Closes a socket from our side and waits a while for the peer's answer.
    pub(crate) fn close(&mut self, out: &mut impl Sockets, key: Key, code: CloseCode) {
        self.close_because(out, key, code, close_reason(code), why_closed(code));
    }

    pub(crate) fn close_because(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        code: CloseCode,
        reason: &'static str,
        why: Why,
    ) {
        let Some(socket) = out.socket(key) else { return };
        match socket.phase {
            Phase::Connecting => return out.abandon(key, AbandonReason::Drain),
            Phase::Open | Phase::Waiting if self.closing != Some(key) => {}
            _ => return,
        }
        // An interceptor that is brought up to date may close this socket, too, or end its channel.
        self.closing = Some(key);
        for channel in self.registry.channels_of(socket.list) {
            if let Some(membership) = self.registry.live(channel) {
                self.bring_up_to_date(out, membership);
            }
        }
        self.closing = None;
        self.end_channels(out, key, why);
        let tick = out.now().tick;
        let Some(socket) = out.socket_mut(key) else { return };
        socket.enter(Phase::Closing, tick);
        let is_driven = socket.is_driven();
        send_close(out, key, Some(code), reason);
        // A held socket must be read for the answer; one within the process needs none.
        match is_driven {
            true => out.close(key),
            false => out.release(key),
        }
    }

    /// Ends all channels of a socket that is about to close, without a message to its client.
    pub(crate) fn end_channels(&mut self, out: &mut impl Sockets, key: Key, why: Why) {
        let Some(socket) = out.socket_mut(key).filter(|socket| socket.is_open()) else { return };
        socket.phase = Phase::Ending;
        let (list, own) = (core::mem::take(&mut socket.list), socket.own.take());
        self.socket_ended(own.as_deref(), why);
        self.end_memberships(out, list, own, why);
    }

    /// Ends the memberships of a closed socket. Of the effects of their channels only broadcasts
    /// are carried out.
    pub(crate) fn end_memberships(
        &mut self,
        out: &mut impl Sockets,
        mut list: List,
        own: Option<Box<Own>>,
        why: Why,
    ) {
        let state = own.as_ref().map(|own| &own.state);
        while let Some(it) = self.registry.member(list.first()) {
            let (current, is_joined, tracks) = (list.first(), it.is_joined(), it.is(TRACKS));
            let speaker = if is_joined { self.speaker(out, current) } else { None };
            let Some(left) = self.registry.leave(&mut list, current) else { break };
            let channel = self.has_left(left);
            if let Some(speaker) = speaker {
                self.report(state, &speaker, Some(why));
                if tracks {
                    let (registry, fanout) = (&mut self.registry, &mut self.fanout);
                    self.presences.post(registry, fanout, out, &speaker, PresenceCall::End);
                }
                let mut effects = self.barriers.take_effects(speaker.id);
                effects.extend(self.application.terminate(
                    state,
                    &speaker,
                    channel,
                    Reason::Closed,
                ));
                effects.retain(Effect::outlives);
                self.apply(out, &speaker, effects);
            }
        }
        if let Some(own) = own {
            self.application.drop_guarded(own);
        }
    }
}
