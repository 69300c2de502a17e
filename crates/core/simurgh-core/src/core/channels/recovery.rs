//! Histories from the side of channels: broadcasts that are to be kept, clients that resume, and
//! channels that have waited.

use simurgh_channel::{
    Broadcast, ChannelId, HistoryMail, KeepRequest, KeptFor, KeptMark, Missed, Node, NotKept,
    Publication, Reply,
};
use simurgh_data::{Key, Next};
use simurgh_proto::message::Payload;

use super::Channels;
use crate::barrier::{Barrier, Queued};
use crate::history::{Action, Resumption};
use crate::registry::VIA_CHANNEL;
use crate::socket::{Phase, Speaker};
use crate::sockets::Sockets;
use simurgh_data::prelude::*;

/// The reply to a message whose broadcast may be kept or not.
const UNCONFIRMED: &str = r#"{"reason":"unconfirmed"}"#;
const NOT_STORED: &str = r#"{"reason":"not stored"}"#;

impl<N: Node> Channels<N> {
    pub(crate) fn history_came(&mut self, out: &mut impl Sockets, mail: HistoryMail) {
        match mail {
            HistoryMail::Portion(channel, missed) => self.portion_came(out, channel, &missed),
            HistoryMail::Kept(channel, ticket, posted) => {
                self.fanout.enqueue(&mut self.registry, posted);
                self.confirmed(out, channel, ticket, None);
            }
            HistoryMail::Confirmed(channel, ticket, why) => {
                self.confirmed(out, channel, ticket, why);
            }
            HistoryMail::Notice(posted) => self.fanout.append(&mut self.registry, posted),
            mail => match self.histories.came(out.now(), mail) {
                Some(Action::Spread(spread)) => self.fanout.spread(&mut self.registry, spread),
                Some(Action::Portion(channel, missed)) => self.portion_came(out, channel, &missed),
                None => {}
            },
        }
    }

    /// A channel broadcasts on a topic whose broadcasts are kept. Returns whether the channel waits
    /// for that; an ended one does not.
    pub(crate) fn keep(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        Publication { broadcast, id }: Publication,
    ) -> bool {
        let Some(admitted) = self.fanout.admit(&mut self.registry, &broadcast) else {
            return false;
        };
        let topic = broadcast.topic();
        let home = self.node.home(topic);
        let confirms = id.is_none() && self.histories.confirms(home);
        let waits = confirms && self.registry.live(speaker.id).is_some();
        let mut kept_for = KeptFor::Nobody;
        if waits {
            let (channel, is_member) = (speaker.id, *topic == *speaker.topic);
            let ticket = self.barriers.raise(out, speaker.conn, channel);
            kept_for = KeptFor::Channel { channel, ticket, is_member };
        }
        let sender = if broadcast.except.is_some() { speaker.client } else { 0 };
        let is_counted = self.histories.counts_client(topic, home);
        let client = if is_counted { out.client(speaker.conn) } else { 0 };
        let charge = Some(Arc::clone(&admitted.charge));
        let keep = KeepRequest { broadcast, charge, sender, client, id, kept_for };
        if let Some(spread) = self.histories.publish(out.now(), keep, home) {
            self.fanout.spread(&mut self.registry, spread);
        }
        self.fanout.hold_back(out, speaker.conn, admitted);
        waits
    }

    /// Sends a member that has just joined what it has missed, without its own messages.
    pub(crate) fn send_missed(
        &mut self,
        out: &mut impl Sockets,
        membership: u32,
        resumption: &Resumption,
    ) {
        let Some(speaker) = self.speaker(out, membership) else { return };
        let Resumption { client, missed, .. } = resumption;
        self.histories.send_resumed(out, &speaker, resumption);
        self.send_portion(out, &speaker, *client, missed);
        match missed.more {
            // It may have ended by what it was sent.
            true if self.registry.live(speaker.id).is_none() => {}
            true => {
                self.registry.catches_up(membership, true);
                let ticket = self.barriers.raise(out, speaker.conn, speaker.id);
                self.histories.begin_replay(&speaker, resumption, ticket);
            }
            false => self.fanout.note_told(&mut self.registry, membership, missed.through),
        }
    }

    fn send_portion(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        client: u64,
        missed: &Arc<Missed>,
    ) {
        let member = self.registry.member(speaker.id.membership);
        let intercepts = member.is_some_and(|it| it.is(VIA_CHANNEL));
        self.histories.send_portion(out, speaker, client, missed, intercepts);
        if !intercepts {
            return;
        }
        for (position, it) in &missed.messages {
            let Some(membership) = self.registry.live(speaker.id) else { return };
            if self.barriers.ends(speaker.id) {
                return;
            }
            let payload = it.content.payload().into_owned();
            let mut broadcast = Broadcast::new(&*speaker.topic, it.content.event(), payload);
            let mark = KeptMark { position: *position, sender: it.sender, is_notice: false };
            broadcast.kept = Some(Box::new(mark));
            match client != 0 && it.sender == client {
                true => self.pass_over(out, membership, &broadcast),
                false => {
                    let broadcast = Arc::new(broadcast);
                    self.deliver_intercepted(out, membership, speaker.conn, &broadcast);
                }
            }
        }
    }

    fn portion_came(&mut self, out: &mut impl Sockets, channel: ChannelId, missed: &Arc<Missed>) {
        let speaker = self.registry.live(channel).and_then(|it| self.speaker(out, it));
        let Some(speaker) = speaker else { return };
        if !self.histories.portion_came(out, &speaker, missed) {
            return;
        }
        self.send_portion(out, &speaker, speaker.client, missed);
        let is_ended = self.barriers.ends(channel);
        if let Some(ticket) = self.histories.portion_sent(channel, missed, is_ended) {
            self.registry.catches_up(channel.membership, false);
            self.fanout.note_told(&mut self.registry, channel.membership, missed.through);
            self.confirmed(out, channel, ticket, None);
        }
    }

    pub(crate) fn go_on_replaying(&mut self, out: &mut impl Sockets) -> Next {
        let (next, ended) = self.histories.go_on(out, &self.registry, &self.barriers);
        for (channel, ticket) in ended {
            self.confirmed(out, channel, ticket, None);
        }
        next
    }

    /// What a channel has waited for under this number is over, or has failed.
    fn confirmed(
        &mut self,
        out: &mut impl Sockets,
        channel: ChannelId,
        ticket: u32,
        failed: Option<NotKept>,
    ) {
        if let Some(barrier) = self.barriers.lower(channel, ticket) {
            self.resume_channel(out, channel, barrier, failed);
        }
    }

    /// It is not known in time whether broadcasts of a socket's channels are kept.
    pub(crate) fn unconfirmed(&mut self, out: &mut impl Sockets, key: Key) {
        let Some(socket) = out.socket(key) else { return };
        for channel in self.registry.channels_of(socket.list) {
            if self.histories.is_replaying(&self.barriers, channel) {
                let tick = out.now().tick;
                if let Some(socket) = out.socket_mut(key).filter(|it| it.phase == Phase::Waiting) {
                    socket.enter(Phase::Waiting, tick);
                }
            } else if let Some(barrier) = self.barriers.take(channel) {
                self.resume_channel(out, channel, barrier, Some(NotKept::Unconfirmed));
            }
        }
    }

    /// Carries out what has waited, up to the next broadcast that must be kept. If a broadcast is
    /// not kept, or may not be, its message is answered so, and other effects of its callback are
    /// dropped.
    fn resume_channel(
        &mut self,
        out: &mut impl Sockets,
        channel: ChannelId,
        mut barrier: Barrier,
        failed: Option<NotKept>,
    ) {
        if let Some(why) = failed {
            self.report_not_kept(out, channel, &mut barrier, &why);
        }
        let Some(speaker) = self.registry.live(channel).and_then(|it| self.speaker(out, it)) else {
            return;
        };
        self.barriers.resume_reading(out, speaker.conn);
        while let Some((call, later)) = barrier.next() {
            let outer = self.barriers.enter(Some(call));
            match later {
                // Messages of a handle to a channel that has ended are dropped.
                later if self.registry.live(channel).is_none() => {
                    self.application.drop_guarded(later)
                }
                Queued::Effect(effect) => self.apply(out, &speaker, vec![effect]),
                Queued::Broadcast(broadcast) => {
                    let membership = channel.membership;
                    let member = self.registry.member(membership);
                    match member.is_some_and(|it| it.is(VIA_CHANNEL)) {
                        true => self.deliver_intercepted(out, membership, speaker.conn, &broadcast),
                        false => self.fanout.deliver_one(out, speaker.conn, &broadcast, false),
                    }
                }
                Queued::End(reason) => {
                    self.end_channel(out, channel.membership, reason);
                    self.end_if_stopped(out, channel);
                }
            }
            self.barriers.leave(outer);
            if self.barriers.has(channel) {
                self.barriers.wait_again(channel, barrier);
                break;
            }
        }
        self.end_if_stopped(out, channel);
        self.read_again(out, speaker.conn);
    }

    fn report_not_kept(
        &mut self,
        out: &mut impl Sockets,
        channel: ChannelId,
        barrier: &mut Barrier,
        why: &NotKept,
    ) {
        let (response, errors) = match why {
            NotKept::Unconfirmed => (UNCONFIRMED, &self.metrics.errors_unconfirmed),
            NotKept::Refused(_) | NotKept::Full | NotKept::LocalOnly => {
                (NOT_STORED, &self.metrics.errors_not_stored)
            }
        };
        errors.add(1);
        let (message, lost) = barrier.fail();
        self.application.drop_guarded(lost);
        if let (Some(message), Some(membership)) = (message, self.registry.live(channel)) {
            let reply = Reply::error(Payload::from_json(response));
            self.reply_to(out, membership, Some(message.as_ref()), reply);
        }
    }
}
