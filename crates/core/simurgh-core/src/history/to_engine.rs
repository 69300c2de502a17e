//! Requests to the broker that keeps broadcasts, and their outcomes.
//!
//! A broadcast counts for its home and its publisher's flow until it is answered, so publishers
//! that are faster than the broker are held.

use simurgh_channel::{
    HistoryMail, KeepRequest, KeptAt, KeptFor, Mail, Node, NotKept, StoreRequest, ToCluster, engine,
};
use simurgh_data::Now;
use simurgh_history::{Epoch, Position, StoredAt};

use super::Histories;
use super::stores::Pending;
use crate::application::ask;
use crate::prelude::*;

impl<N: Node> Histories<N> {
    pub(super) fn store_in_engine(&mut self, now: Now, keep: KeepRequest) {
        let KeepRequest { broadcast, charge, sender, client: _, id, kept_for } = keep;
        let (weight, asked_ns) = (broadcast.weight(), now.ns);
        let age = self.kept.rule(&broadcast.topic).map(|rule| rule.age);
        let pending = Pending { kept_for, charge, weight, asked_ns, is_stored: false };
        self.ask_engine(pending, |number| {
            ToCluster::Store(Box::new(StoreRequest { number, broadcast, sender, id, age }))
        });
    }

    pub(super) fn forget_in_engine(&mut self, now: Now, topic: Box<str>, kept_for: KeptFor) {
        let (charge, weight, asked_ns) = (None, 0, now.ns);
        let pending = Pending { kept_for, charge, weight, asked_ns, is_stored: false };
        self.ask_engine(pending, |number| ToCluster::Forget(topic, number));
    }

    fn ask_engine(&mut self, pending: Pending, what: impl FnOnce(u64) -> ToCluster) {
        let bytes_max = self.node.config().mailbox_bytes_max.saturating_mul(4);
        let is_full = self.node.charged(usize::from(self.shard)) > bytes_max;
        let noted = match self.followed.as_mut().filter(|_| !is_full) {
            Some(followed) => followed.stores.add(pending),
            None => Err(pending),
        };
        match (noted, self.node.cluster()) {
            (Ok(number), Some(cluster)) => cluster.send(what(number)),
            (Ok(_), None) => {}
            (Err(pending), _) => self.end_store(pending, Err(NotKept::Full)),
        }
    }

    pub(super) fn store_answered(
        &mut self,
        now: Now,
        number: u64,
        outcome: Result<StoredAt, NotKept>,
    ) {
        let Some(followed) = &mut self.followed else { return };
        let Some(pending) = followed.stores.unanswered(number) else { return };
        let outcome = outcome.map(|it| {
            let place = engine::place(it.seq, it.index);
            let position = Position { epoch: Epoch::from_seed(it.epoch), place };
            KeptAt { position, is_duplicate: it.is_duplicate }
        });
        if let Ok(at) = &outcome
            && !at.is_duplicate
            && matches!(pending.kept_for, KeptFor::Channel { is_member: true, .. })
        {
            // The broadcast is delivered before what its channel does behind it.
            pending.is_stored = true;
            return followed.await_delivery(number, *at, now.ns);
        }
        let Some(pending) = followed.stores.take(number) else { return };
        if outcome.as_ref().is_ok_and(|it| it.is_duplicate) {
            self.metrics.history_duplicates.add(1);
        }
        self.end_store(pending, outcome);
    }

    pub(super) fn end_store(&mut self, pending: Pending, outcome: Result<KeptAt, NotKept>) {
        let Pending { kept_for, charge, weight, .. } = pending;
        self.node.discharge(usize::from(self.shard), weight);
        drop(charge);
        if let Err(NotKept::Refused(why)) = &outcome {
            tracing::debug!(%why, "a broadcast was not stored");
        }
        match kept_for {
            KeptFor::Nobody => {}
            KeptFor::Caller(answer) => {
                ask::<N, _>(&self.metrics, || answer(outcome));
            }
            KeptFor::Channel { channel, ticket, .. } => {
                let why = outcome.err().filter(|it| *it != NotKept::LocalOnly);
                let word = HistoryMail::Confirmed(channel, ticket, why);
                self.node.post(usize::from(channel.shard), Mail::History(word));
            }
        }
    }

    pub(super) fn follow(&mut self, topic: &str, now_ns: u64) {
        let Some(wants) = self.retention(topic) else { return };
        if self.followed.as_mut().is_some_and(|followed| followed.is_to_follow(topic, now_ns))
            && let Some(cluster) = self.node.cluster()
        {
            cluster.send(ToCluster::Follow(topic.into(), wants));
        }
    }
}
