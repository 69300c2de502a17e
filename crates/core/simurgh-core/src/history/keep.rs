//! The way of a broadcast into its topic's history.

use alloc::boxed::Box;
use alloc::sync::Arc;

use simurgh_channel::{Broadcast, HistoryMail, KeepRequest, KeptAt, KeptFor, Mail, Node, Posted};
use simurgh_history::Position;

use crate::core::Core;
use crate::history::departures::Left;
use crate::registry::{POSITIONS, VIA_CHANNEL};
use crate::socket::Speaker;
use crate::sockets::Sockets;

impl<N: Node> Core<N> {
    #[inline]
    pub(crate) fn keeps(&self, topic: &str) -> bool {
        self.history.as_ref().is_some_and(|it| it.kept.rule(topic).is_some())
    }

    /// A channel broadcasts on a topic whose broadcasts are kept: its home numbers it and passes it
    /// on to all shards. Returns whether the channel waits for that; an ended one does not.
    pub(crate) fn keep(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        broadcast: Broadcast,
        home: usize,
    ) -> bool {
        let Some(admitted) = self.fanout.admit(&mut self.registry, &broadcast) else {
            return false;
        };
        let (charge, weight) = (Some(Arc::clone(&admitted.charge)), broadcast.weight());
        let member = self.registry.member(speaker.id.membership);
        let is_live = member.is_some_and(|it| it.generation == speaker.id.generation);
        let (is_home, uses_engine) = (home == usize::from(self.shard), self.uses_engine());
        let waits = is_live && (!is_home || uses_engine);
        let mut kept_for = KeptFor::Nobody;
        if waits && let Some(history) = &mut self.history {
            let ticket = history.barriers.next_ticket();
            self.raise(out, speaker, ticket);
            let is_member = *broadcast.topic == *speaker.topic;
            kept_for = KeptFor::Channel { channel: speaker.id, ticket, is_member };
        }
        let sender = if broadcast.except.is_some() { speaker.client } else { 0 };
        let kept = self.history.as_ref().map(|history| &history.kept);
        let client = match kept.filter(|_| is_home) {
            Some(kept) if kept.is_of_all(broadcast.topic()) => 0,
            _ => out.client(speaker.conn),
        };
        let keep = KeepRequest { broadcast, charge, sender, client, id: None, kept_for };
        match is_home {
            true => {
                if uses_engine {
                    self.node.charge(home, weight);
                }
                self.store(out, keep);
            }
            false => {
                let mail = Mail::History(HistoryMail::Keep(Box::new(keep)));
                self.node.post_weighed(home, weight, mail);
            }
        }
        self.fanout.hold_back(out, speaker.conn, admitted);
        waits
    }

    /// Whether a broadcast is from a member's own client, and not for it.
    pub(crate) fn is_of_client(&self, membership: u32, broadcast: &Broadcast) -> bool {
        let sender = broadcast.kept.as_ref().map_or(0, |mark| mark.sender);
        let keys = self.fanout.keys.as_ref().filter(|_| sender != 0);
        keys.is_some_and(|keys| keys.get(membership) == sender)
    }

    pub(crate) fn has_seen(&mut self, membership: u32, broadcast: &Broadcast) {
        if let (Some(history), Some(position)) = (&mut self.history, broadcast.position())
            && self.registry.member(membership).is_some_and(|it| it.is(POSITIONS))
        {
            history.departures.has_seen(membership, position);
        }
    }

    /// A channel whose client receives positions is about to end. The client may join again on the
    /// same connection: it has what was sent on it by now.
    pub(crate) fn note_left(&mut self, out: &impl Sockets, speaker: &Speaker) {
        let Some(it) = self.registry.member(speaker.id.membership) else { return };
        if !it.is(POSITIONS) {
            return;
        }
        let intercepts = it.is(VIA_CHANNEL);
        let topic = self.registry.topic(it.topic).and_then(|it| it.deliveries.told.as_deref());
        let (last, gap) = (topic.map(|it| it.last), topic.and_then(|it| it.gap));
        let Some(history) = &mut self.history else { return };
        let own = history.departures.gap(speaker.id.membership);
        // The later of its own position, sent as it joined, and that of all members.
        let is_later =
            |own: &Position| gap.is_none_or(|gap| gap.epoch == own.epoch && gap.place <= own.place);
        let gap = own.filter(is_later).or(gap);
        let seen = history.departures.leaves(speaker.id.membership);
        let told = history.replays.told(speaker.id);
        let position = if intercepts { seen } else { told.or(last) };
        // A client that was sent the unknown position was sent nothing.
        let unknown_position = history.followed_topics.as_ref().map(|it| it.unknown_position.epoch);
        let position = position.filter(|it| Some(it.epoch) != unknown_position);
        if let Some(position) = position {
            let (tick, how) = (out.now().tick, Left { intercepts, gap });
            history.departures.note(speaker.conn, &speaker.topic, position, tick, how);
        }
    }

    /// Keeps a broadcast of a topic whose home this shard is, and passes it on.
    pub(super) fn store(&mut self, out: &impl Sockets, keep: KeepRequest) {
        let Some(history) = &mut self.history else { return };
        if history.followed_topics.is_some() {
            return self.store_in_engine(out, keep);
        }
        let KeepRequest { broadcast, charge, sender, client, id, kept_for } = keep;
        let now_ms = self.node.unix_ms(out.now().ns);
        let (position, broadcast) =
            history.kept.store(broadcast, id.as_deref(), sender, client, now_ms);
        let is_duplicate = broadcast.is_none();
        match is_duplicate {
            true => self.metrics.history_duplicates.add(1),
            false => self.metrics.history_kept.add(1),
        }
        self.keep_within_bounds();
        let apart = match kept_for {
            KeptFor::Channel { channel, .. } => Some(usize::from(channel.shard)),
            KeptFor::Nobody | KeptFor::Caller(_) => None,
        };
        if let Some(broadcast) = broadcast {
            if let KeptFor::Channel { channel, ticket, .. } = kept_for {
                let posted = Posted::new(Arc::clone(&broadcast), charge.clone());
                let mail = Mail::History(HistoryMail::Kept(channel, ticket, posted));
                self.node.post_weighed(usize::from(channel.shard), broadcast.weight(), mail);
            }
            self.fanout.spread(&mut self.registry, broadcast, charge, apart);
        }
        if let KeptFor::Caller(answer) = kept_for {
            self.application.ask(|| answer(Ok(KeptAt { position, is_duplicate })));
        }
    }
}
