//! What a client has missed: asked of the home of its topic, and told behind the reply to its join.

use std::sync::Arc;

use simurgh_history::{AT, RESUMED, Reason, encode_resumed};
use simurgh_proto::message::{Message, Payload};
use simurgh_proto::serializer::{Serializer, ServerMessage};
use simurgh_reactor::Run;

use super::call::{Ask, HistoryMail, Kept, Missed, Opted};
use crate::broadcast::{Broadcast, Mark};
use crate::core::Core;
use crate::frames::{kept, say};
use crate::mail::Mail;
use crate::node::Node;
use crate::registry::THROUGH;
use crate::socket::Speaker;
use crate::sockets::Sockets;
use crate::wire::Wire;

impl<N: Node> Core<N> {
    /// Answers what a client has missed of a topic that this shard keeps.
    pub(crate) fn missed(&mut self, out: &impl Sockets, ask: &Ask) -> Option<Arc<Missed>> {
        let now_ms = self.node.unix_ms(out.now().ns);
        let history = self.history.as_mut()?;
        Some(history.kept.missed(ask, &self.node.config().history, now_ms))
    }

    /// The same for a client of another shard.
    pub(super) fn answer_missed(&mut self, out: &impl Sockets, ask: &Ask) {
        if let Some(missed) = self.missed(out, ask) {
            let mail = HistoryMail::Missed(ask.conn, ask.ticket, missed);
            self.node.post(usize::from(ask.shard), Mail::History(mail));
        }
    }

    /// Tells a member that has just joined what it has missed, but for what its client has sent
    /// itself.
    pub(crate) fn tell_missed(&mut self, out: &mut impl Sockets, membership: u32, opted: &Opted) {
        let Opted { client, new, missed } = opted;
        let client = *client;
        let Some(speaker) = self.speaker(out, membership) else { return };
        let key = new.as_ref().map(|id| self.own_key(&speaker.topic, id.as_deref(), missed.after));
        self.fanout.is_at(&mut self.registry, membership, missed.head);
        let is_own = |kept: &Kept| client != 0 && kept.sender == client;
        let own = missed.messages.iter().filter(|(_, kept)| is_own(kept)).count();
        let count = missed.messages.len() - own;
        match missed.gap {
            None => self.metrics.resumed.add(1),
            Some(_) => self.metrics.resume_gaps.add(1),
        }
        self.metrics.resume_messages.add(count as u64);
        // Who says again what is of another epoch is told again, but who had not proved its first
        // join may do so the next time.
        if missed.gap.is_some_and(|gap| gap != Reason::Epoch || new.is_some())
            && let Some(history) = &mut self.history
        {
            history.departures.has_gap(membership, missed.after);
        }
        let mut payload = Vec::new();
        encode_resumed(&mut payload, missed.gap, count, key.as_deref());
        let payload = String::from_utf8(payload).unwrap_or_default();
        say(
            out,
            &self.metrics,
            speaker.conn,
            ServerMessage::Event(Message {
                join_ref: speaker.join_ref.as_ref(),
                msg_ref: kept::ref_of(missed.after),
                topic: (&*speaker.topic).into(),
                event: RESUMED.into(),
                payload: Payload::from_json(payload),
            }),
        );
        if self.registry.member(membership).is_some_and(|it| it.is(THROUGH)) {
            return self.tell_through(out, &speaker, client, missed);
        }
        let Some(serializer) = speaker.wire.serializer() else { return };
        self.metrics.messages_out.add(count as u64);
        if own == 0 {
            if let Some(run) = self.replay(out, &speaker, serializer, missed) {
                out.send_later(speaker.conn, run);
            }
            return;
        }
        out.send_with(speaker.conn, |out| {
            for (position, it) in &missed.messages {
                let named = (&*speaker.topic, it.what.event());
                let _ = match is_own(it) {
                    true => Ok(()),
                    false => kept::encode(out, serializer, named, &it.what.payload(), *position),
                };
            }
            // What it has sent itself moves its position on, too.
            if let Some((position, _)) = missed.messages.last().filter(|(_, it)| is_own(it)) {
                let join_ref = speaker.join_ref.as_ref();
                let topic = &speaker.topic;
                let _ = kept::notice(out, serializer, &join_ref, topic, AT, *position);
            }
        });
    }

    /// What all who have missed the same are sent, in one piece.
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
        let place = history.replays.get_mut(usize::from(speaker.wire == Wire::V2))?;
        if let Some((_, run)) = place.as_ref().filter(|(of, _)| Arc::ptr_eq(of, missed)) {
            return Some(run.clone());
        }
        let mut bytes = Vec::new();
        for (position, it) in &missed.messages {
            let named = (&*speaker.topic, it.what.event());
            let made = kept::encode(&mut bytes, serializer, named, &it.what.payload(), *position);
            self.metrics.errors_encode.add(u64::from(made.is_err()));
        }
        let run = Run::of(&out.share(bytes));
        *place = Some((Arc::clone(missed), run.clone()));
        Some(run)
    }

    /// The same by way of a channel that intercepts.
    fn tell_through(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        client: u64,
        missed: &Missed,
    ) {
        for (position, it) in &missed.messages {
            let Some(membership) = self.live(speaker.id) else { return };
            let payload = it.what.payload().into_owned();
            let mut broadcast = Broadcast::new(&*speaker.topic, it.what.event(), payload);
            let mark = Mark { position: *position, sender: it.sender };
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
