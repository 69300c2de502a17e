//! Missed messages of a client: requested from its topic's home, and sent behind the join's reply.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use simurgh_channel::{Broadcast, Kept, KeptMark, Missed, MissedRequest, Node};
use simurgh_data::Run;
use simurgh_history::{AT, GapReason, RESUMED, encode_resumed};
use simurgh_proto::message::{Message, Payload};
use simurgh_proto::serializer::{Serializer, ServerMessage};

use super::answer::ANSWERS_MAX;
use crate::core::Core;
use crate::frames::{kept, send};
use crate::registry::VIA_CHANNEL;
use crate::socket::Speaker;
use crate::sockets::Sockets;
use crate::wire::Wire;

pub(crate) struct Resumption {
    pub(crate) client: u64,
    /// The client joins for the first time, with this id, if that must be proved later.
    pub(crate) new: Option<Option<String>>,
    pub(crate) partial: bool,
    pub(crate) missed: Arc<Missed>,
    pub(crate) own: usize,
}

impl<N: Node> Core<N> {
    /// Answers what a client has missed of a topic of this shard, and how much of it the client has
    /// sent itself.
    pub(crate) fn missed(
        &mut self,
        out: &impl Sockets,
        ask: &MissedRequest,
    ) -> Option<(Arc<Missed>, usize)> {
        let now_ms = self.node.unix_ms(out.now().ns);
        let history = self.history.as_mut()?;
        Some(history.kept.missed(ask, &self.node.config().history, now_ms))
    }

    /// Sends a member that has just joined what it has missed, without its own messages.
    pub(crate) fn send_missed(
        &mut self,
        out: &mut impl Sockets,
        membership: u32,
        resumption: &Resumption,
    ) {
        let Resumption { client, new, partial, missed, own } = resumption;
        let Some(speaker) = self.speaker(out, membership) else { return };
        // If nothing is known of a topic, there is no first join to prove.
        let first = new.as_ref().filter(|_| missed.gap != Some(GapReason::Unavailable));
        let key = first.map(|id| self.own_key(&speaker.topic, id.as_deref(), missed.after));
        self.metrics.count_resume(missed.gap);
        let mut payload = Vec::new();
        let count = missed.count.saturating_sub(*own);
        encode_resumed(&mut payload, missed.gap, count, key.as_deref());
        // A client without the proof may prove its first join the next time.
        if new.is_some()
            && missed.gap.is_some()
            && let Some(history) = &mut self.history
        {
            history.departures.has_gap(membership, missed.after);
        }
        self.send_portion(out, &speaker, *client, missed, Some((RESUMED, payload)));
        match missed.more {
            // It may have ended by what it was sent.
            true if self.live(speaker.id).is_none() => {}
            true => self.begin_replay(out, &speaker, missed.through, *partial),
            false => self.fanout.note_told(&mut self.registry, membership, missed.through),
        }
    }

    fn send_gap(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        missed: &Missed,
        (event, payload): (&str, Vec<u8>),
    ) {
        // A client with a position of another epoch receives it again.
        if missed.gap.is_some_and(|gap| gap != GapReason::Epoch)
            && let Some(history) = &mut self.history
        {
            history.departures.has_gap(speaker.id.membership, missed.after);
        }
        let payload = String::from_utf8(payload).unwrap_or_default();
        send(
            out,
            &self.metrics,
            speaker.conn,
            ServerMessage::Event(Message {
                join_ref: speaker.join_ref.as_ref(),
                msg_ref: kept::ref_of(missed.after),
                topic: (&*speaker.topic).into(),
                event: event.into(),
                payload: Payload::from_json(payload),
            }),
        );
    }

    pub(super) fn send_portion(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        client: u64,
        missed: &Arc<Missed>,
        word: Option<(&str, Vec<u8>)>,
    ) {
        if let Some(word) = word {
            self.send_gap(out, speaker, missed, word);
        }
        let is_own = |kept: &Kept| client != 0 && kept.sender == client;
        let own = missed.messages.iter().filter(|(_, kept)| is_own(kept)).count();
        let count = (missed.messages.len() - own) as u64;
        self.metrics.resume_messages.add(count);
        let member = self.registry.member(speaker.id.membership);
        if member.is_some_and(|it| it.is(VIA_CHANNEL)) {
            return self.send_via_channel(out, speaker, client, missed);
        }
        let Some(serializer) = speaker.wire.serializer() else { return };
        self.metrics.messages_out.add(count);
        if own == 0 {
            if let Some(run) = self.replay(out, speaker, serializer, missed) {
                out.send_later(speaker.conn, run);
            }
            return;
        }
        out.send_with(speaker.conn, |out| {
            for (position, it) in &missed.messages {
                let named = (&*speaker.topic, it.content.event());
                let _ = match is_own(it) {
                    true => Ok(()),
                    false => kept::encode(out, serializer, named, &it.content.payload(), *position),
                };
            }
            // The client's own broadcast advances its position, too.
            if let Some((position, _)) = missed.messages.last().filter(|(_, it)| is_own(it)) {
                let join_ref = speaker.join_ref.as_ref();
                let topic = &speaker.topic;
                let _ = kept::notice(out, serializer, &join_ref, topic, AT, *position);
            }
        });
    }

    fn replay(
        &mut self,
        out: &impl Sockets,
        speaker: &Speaker,
        serializer: Serializer,
        missed: &Arc<Missed>,
    ) -> Option<Run> {
        if missed.messages.is_empty() {
            return None;
        }
        let history = self.history.as_mut()?;
        let encoded = history.encoded.get_mut(usize::from(speaker.wire == Wire::V2))?;
        if let Some((_, run)) = encoded.iter().find(|(of, _)| Arc::ptr_eq(of, missed)) {
            return Some(run.clone());
        }
        let mut bytes = Vec::new();
        for (position, it) in &missed.messages {
            let named = (&*speaker.topic, it.content.event());
            let made =
                kept::encode(&mut bytes, serializer, named, &it.content.payload(), *position);
            self.metrics.errors_encode.add(u64::from(made.is_err()));
        }
        let run = Run::of(&out.share(bytes));
        encoded.truncate(ANSWERS_MAX - 1);
        encoded.insert(0, (Arc::clone(missed), run.clone()));
        Some(run)
    }

    fn send_via_channel(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        client: u64,
        missed: &Missed,
    ) {
        for (position, it) in &missed.messages {
            let Some(membership) = self.live(speaker.id) else { return };
            if self.ends_behind(speaker.id) {
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
}
