//! History: what was broadcast on a topic and is kept, for clients that come back (HISTORY).
//!
//! The history of a topic is kept by one shard, its home, which gives the numbers. A broadcast on
//! such a topic goes there by mail, is kept, and is passed on from there to all shards, so that all
//! members hear the same order. What its channel does behind it waits until it is back.

pub(crate) mod call;
pub(crate) mod departures;
pub(crate) mod home;
mod keep;
pub(crate) mod keys;
mod missed;
pub(crate) mod rule;
mod wait;

use self::call::HistoryMail;
use crate::barrier::{Barrier, Later};
use crate::core::Core;
use crate::id::ChannelId;
use crate::node::Node;
use crate::sockets::Sockets;

impl<N: Node> Core<N> {
    /// Something about the history of a topic.
    pub(crate) fn history_came(&mut self, out: &mut impl Sockets, mail: HistoryMail) {
        match mail {
            HistoryMail::Ask(ask) => self.answer_missed(out, &ask),
            HistoryMail::Missed(..) => {}
            HistoryMail::Keep(keep) => {
                self.node.done(usize::from(self.shard), keep.broadcast.weight());
                self.store(out, *keep);
            }
            HistoryMail::Kept(channel, ticket, posted) => {
                self.fanout.enqueue(&mut self.registry, posted);
                let history = self.history.as_mut();
                let barrier = history.and_then(|it| it.barriers.lower(channel, ticket));
                if let Some(barrier) = barrier {
                    self.go_on(out, channel, barrier);
                }
            }
        }
    }

    /// Carries out what has waited, up to the next broadcast that is waited for.
    fn go_on(&mut self, out: &mut impl Sockets, channel: ChannelId, mut barrier: Barrier) {
        let Some(speaker) = self.live(channel).and_then(|it| self.speaker(out, it)) else {
            return;
        };
        self.lowered(out, speaker.conn);
        while let Some(later) = barrier.next() {
            match later {
                Later::Effect(effect) => self.apply(out, &speaker, vec![effect]),
                Later::End(reason) => {
                    if let Some(membership) = self.live(channel) {
                        self.end_channel(out, membership, reason);
                    }
                }
            }
            if self.waits(channel) {
                if let Some(history) = &mut self.history {
                    history.barriers.wait_again(channel, barrier);
                }
                break;
            }
        }
        self.end_as_wanted(out, channel);
        self.read_on(out, speaker.conn);
    }
}

#[cfg(test)]
mod tests;
