//! The way of a broadcast into its topic's history.

use simurgh_channel::{HistoryMail, KeepRequest, KeptAt, KeptFor, Mail, Node, Posted};
use simurgh_data::Now;

use super::Histories;
use crate::application::ask;
use crate::fanout::Spread;
use simurgh_data::prelude::*;

impl<N: Node> Histories<N> {
    /// Whether a channel that broadcasts waits until this home of the topic, or a broker, confirms
    /// the broadcast.
    pub(crate) fn confirms(&self, home: usize) -> bool {
        self.uses_engine() || !self.is_home(home)
    }

    fn is_home(&self, home: usize) -> bool {
        home == usize::from(self.shard)
    }

    /// Whether the client that publishes on a topic counts: one alone has filled it until now.
    pub(crate) fn counts_client(&self, topic: &str, home: usize) -> bool {
        !self.is_home(home) || !self.kept.is_of_all(topic)
    }

    /// A channel broadcasts on a topic: its home numbers the broadcast and passes it on to all
    /// shards.
    pub(crate) fn publish(&mut self, now: Now, keep: KeepRequest, home: usize) -> Option<Spread> {
        let weight = keep.broadcast.weight();
        if self.is_home(home) {
            if self.uses_engine() {
                self.node.charge(home, weight);
            }
            return self.store(now, keep);
        }
        self.node.post_weighed(home, weight, Mail::History(HistoryMail::Keep(Box::new(keep))));
        None
    }

    /// Keeps a broadcast of a topic whose home this shard is. Returns what is passed on.
    pub(super) fn store(&mut self, now: Now, keep: KeepRequest) -> Option<Spread> {
        if self.uses_engine() {
            self.store_in_engine(now, keep);
            return None;
        }
        let KeepRequest { broadcast, charge, sender, client, id, kept_for } = keep;
        let now_ms = self.node.unix_ms(now.ns);
        let (position, broadcast) =
            self.kept.store(broadcast, id.as_deref(), sender, client, now_ms);
        let is_duplicate = broadcast.is_none();
        match is_duplicate {
            true => self.metrics.history_duplicates.add(1),
            false => self.metrics.history_kept.add(1),
        }
        self.keep_within_bounds();
        self.tell_predecessor(position, broadcast.as_ref(), &kept_for);
        let mut apart = None;
        match kept_for {
            KeptFor::Nobody | KeptFor::Predecessor(_) => {}
            KeptFor::Caller(answer) => {
                ask::<N, _>(&self.metrics, || answer(Ok(KeptAt { position, is_duplicate })));
            }
            KeptFor::Channel { channel, ticket, .. } => {
                let shard = usize::from(channel.shard);
                apart = Some(shard);
                if let Some(broadcast) = &broadcast {
                    let posted = Posted::new(Arc::clone(broadcast), charge.clone());
                    let mail = Mail::History(HistoryMail::Kept(channel, ticket, posted));
                    self.node.post_weighed(shard, broadcast.weight(), mail);
                }
            }
        }
        broadcast.map(|broadcast| Spread { broadcast, charge, apart })
    }
}
