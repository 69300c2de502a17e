//! History: broadcasts that are kept for clients that return (docs/HISTORY.md).
//!
//! The history of a topic is kept by one shard, its home, which assigns the numbers. A broadcast on
//! such a topic is sent there by mail, is kept, and is passed on from there to all shards, so that
//! all members get the same order. What its channel does next waits until it is back.
//!
//! In a cluster a broker keeps and numbers the broadcasts of all nodes: the home sends them there
//! ([`to_engine`]), gets all of them in order, its own included, and passes them on
//! ([`from_engine`]). Requests for a topic that is not known yet wait ([`pending`]).

mod answer;
mod bounds;
mod content;
pub(crate) mod departures;
mod engine_numbers;
mod eviction;
pub(crate) mod followed;
mod from_engine;
mod holdings;
mod join_proof;
mod keep;
pub(crate) mod kept_topics;
mod last_positions;
pub(crate) mod missed;
mod pending;
mod read;
mod replay;
pub(crate) mod replays;
pub(crate) mod save;
mod stores;
mod to_engine;
pub(crate) mod view;
mod wait;

use simurgh_channel::{ChannelId, HistoryMail, Node, NotKept, Reply};
use simurgh_data::Key;
use simurgh_proto::message::Payload;

use crate::barrier::Barrier;
use crate::core::Core;
use crate::sockets::Sockets;

/// The reply to a message whose broadcast may be kept or not.
const UNCONFIRMED: &str = r#"{"reason":"unconfirmed"}"#;
const NOT_STORED: &str = r#"{"reason":"not stored"}"#;

impl<N: Node> Core<N> {
    pub(crate) fn history_came(&mut self, out: &mut impl Sockets, mail: HistoryMail) {
        match mail {
            HistoryMail::RequestMissed(ask) => match self.uses_engine() {
                false => self.answer_missed(out, &ask),
                true => self.request_when_known(out, ask),
            },
            HistoryMail::Evict => self.evict(),
            HistoryMail::Request(request) => self.answer(out, request),
            // Handled by the session.
            HistoryMail::Missed(..) => {}
            HistoryMail::Portion(channel, missed) => self.portion_came(out, channel, &missed),
            HistoryMail::Keep(keep) => {
                // Broadcasts count until the broker has answered.
                if !self.uses_engine() {
                    self.node.discharge(usize::from(self.shard), keep.broadcast.weight());
                }
                self.store(out, *keep);
            }
            HistoryMail::Kept(channel, ticket, posted) => {
                self.fanout.enqueue(&mut self.registry, posted);
                self.confirmed(out, channel, ticket);
            }
            HistoryMail::Confirmed(channel, ticket, None) => self.confirmed(out, channel, ticket),
            HistoryMail::Confirmed(channel, ticket, Some(why)) => {
                let history = self.history.as_mut();
                let barrier = history.and_then(|it| it.barriers.lower(channel, ticket));
                if let Some(barrier) = barrier {
                    self.report_not_kept(out, channel, barrier, &why);
                }
            }
            HistoryMail::Notice(posted) => self.fanout.append(&mut self.registry, posted),
            HistoryMail::Engine(topic, what) => self.engine_message(out, &topic, what),
            HistoryMail::Stored(number, outcome) => self.store_answered(out, number, outcome),
        }
    }

    /// It is not known in time whether broadcasts of a socket's channels are kept: their messages
    /// are answered so, and other effects of the callbacks are dropped.
    pub(crate) fn unconfirmed(&mut self, out: &mut impl Sockets, key: Key) {
        let Some(socket) = out.socket(key) else { return };
        for channel in self.channels_of(socket) {
            // A replay may take as long as it needs.
            if self.history.as_ref().is_some_and(|it| it.is_replaying(channel)) {
                self.waits_on(out, key);
                continue;
            }
            let barrier = self.history.as_mut().and_then(|it| it.barriers.take(channel));
            let Some(barrier) = barrier else { continue };
            self.report_not_kept(out, channel, barrier, &NotKept::Unconfirmed);
        }
    }

    /// A broadcast of a channel is not kept, or may not be: its message is answered so, and other
    /// effects of the callback are dropped.
    fn report_not_kept(
        &mut self,
        out: &mut impl Sockets,
        channel: ChannelId,
        mut barrier: Barrier,
        why: &NotKept,
    ) {
        let response = match why {
            NotKept::Unconfirmed => {
                self.metrics.errors_unconfirmed.add(1);
                UNCONFIRMED
            }
            NotKept::Refused(_) | NotKept::Full | NotKept::LocalOnly => {
                self.metrics.errors_not_stored.add(1);
                NOT_STORED
            }
        };
        let (message, lost) = barrier.fail();
        self.application.drop_guarded(lost);
        if let (Some(message), Some(membership)) = (message, self.live(channel)) {
            let reply = Reply::error(Payload::from_json(response));
            self.reply_to(out, membership, Some(message.as_ref()), reply);
        }
        self.resume_channel(out, channel, barrier);
    }
}

#[cfg(test)]
mod tests;
