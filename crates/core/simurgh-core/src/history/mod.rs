//! History: broadcasts that are kept for clients that return (docs/HISTORY.md).
//!
//! One shard, its home, keeps the history of a topic and assigns the numbers. A broadcast on such a
//! topic is sent there by mail, is kept, and is passed on from there to all shards, so that all
//! members get the same order. What its channel does next waits until it is back.
//!
//! In a cluster a broker keeps and numbers the broadcasts of all nodes: the home sends them there,
//! gets all of them in order, its own included, and passes them on ([`engine`]). Requests for a
//! topic that is not known yet wait ([`pending`]).
//!
//! [`Histories`] has the state of a shard: as a home of topics, and for members here whose clients
//! resume. It returns what only the core can do.

mod answer;
mod bounds;
mod content;
mod departures;
mod engine;
mod engine_numbers;
mod eviction;
mod followed;
mod holdings;
mod kept_topics;
mod last_positions;
mod pending;
mod publish;
mod replays;
mod resume;
mod save;
mod stores;
mod takeover;
mod view;

use simurgh_channel::metrics::ShardMetrics;
use simurgh_channel::{
    ChannelId, HistoryMail, HistoryRequest, HistoryRule, KeptAt, KeptFor, Missed, Node, NotKept,
    Requester, UserSocket,
};
use simurgh_data::{Key, Now, Run};
use simurgh_history::{Epoch, Retention};
use simurgh_proto::topic::Pattern;

use self::bounds::SWEEP_STEPS;
use self::departures::Departures;
use self::followed::FollowedTopics;
pub use self::kept_topics::KeptTopics;
use self::replays::Replays;
pub(crate) use self::resume::{Recovery, Resumption};
pub use self::save::SavedHistory;
pub use self::takeover::{HandedOver, HandedOverNumbers};
pub use self::view::KeptView;
use crate::application::ask;
use crate::fanout::Spread;
use crate::wire::Wire;
use simurgh_data::prelude::*;

/// The histories of topics with their home on this shard, and its channels that wait for one.
pub(crate) struct Histories<N: Node> {
    node: Arc<N>,
    metrics: Arc<ShardMetrics>,
    shard: u16,
    kept: KeptTopics,
    /// `None` without a broker.
    followed: Option<Box<FollowedTopics>>,
    departures: Departures,
    replays: Replays,
    /// Missed messages as V1 and V2 clients receive them.
    encoded: Vec<(Wire, Arc<Missed>, Run)>,
    next_round_ns: u64,
}

/// What follows from mail.
pub(crate) enum Action {
    Spread(Spread),
    /// What a member here has missed.
    Portion(ChannelId, Arc<Missed>),
}

impl<N: Node> Histories<N> {
    pub(crate) fn new(node: Arc<N>, metrics: Arc<ShardMetrics>, shard: u16, seed: u64) -> Self {
        let rules = rules(&*node);
        let uses_engine = !rules.is_empty() && node.cluster().is_some();
        let mut kept = KeptTopics::new(rules, Epoch::from_seed(node.id()), seed);
        kept.has_engine_numbers = uses_engine;
        let followed = uses_engine.then(|| Box::new(FollowedTopics::new(shard, node.id(), seed)));
        Self {
            node,
            metrics,
            shard,
            kept,
            followed,
            departures: Departures::new(seed),
            replays: Replays::default(),
            encoded: Vec::new(),
            next_round_ns: 0,
        }
    }

    pub(crate) fn reload(&mut self, node: &Arc<N>) {
        self.node = Arc::clone(node);
        self.kept.change_rules(rules(&**node));
        self.count();
    }

    pub(crate) fn seed(&self) -> u64 {
        self.kept.seed
    }

    pub(crate) fn retention(&self, topic: &str) -> Option<Retention> {
        self.kept.rule(topic).map(|rule| rule.retention())
    }

    fn uses_engine(&self) -> bool {
        self.followed.is_some()
    }

    /// Handles mail for the home of a topic. The core handles mail for sockets and members.
    pub(crate) fn came(&mut self, now: Now, mail: HistoryMail) -> Option<Action> {
        if !self.kept.has_rules() {
            return None;
        }
        match mail {
            HistoryMail::RequestMissed(ask) if self.uses_engine() => {
                self.request_when_known(now, ask);
            }
            HistoryMail::RequestMissed(ask) => {
                let (missed, own) = self.kept_missed(now, &ask);
                match ask.requester {
                    // By mail, other broadcasts would be kept before it arrives.
                    Requester::Member(channel) if ask.shard == self.shard => {
                        return Some(Action::Portion(channel, missed));
                    }
                    _ => self.post_missed(&ask, missed, own),
                }
            }
            HistoryMail::Evict => self.evict(),
            HistoryMail::Request(request) => self.answer(now, request),
            HistoryMail::Keep(keep) => {
                // Broadcasts count until the broker has answered.
                if !self.uses_engine() {
                    self.node.discharge(usize::from(self.shard), keep.broadcast.weight());
                }
                return self.store(now, *keep).map(Action::Spread);
            }
            HistoryMail::Engine(topic, what) => self.engine_message(now, &topic, what),
            HistoryMail::Stored(number, outcome) => self.store_answered(now, number, outcome),
            HistoryMail::Missed(..)
            | HistoryMail::Portion(..)
            | HistoryMail::Kept(..)
            | HistoryMail::Confirmed(..)
            | HistoryMail::Notice(_) => {}
        }
        None
    }

    /// Answers about topics of this shard. With a broker these are the topics that this node
    /// follows, and a purge is for all nodes.
    fn answer(&mut self, now: Now, request: HistoryRequest) {
        let (now_ms, uses_engine) = (self.node.unix_ms(now.ns), self.uses_engine());
        match request {
            HistoryRequest::Read(topic, range, answer) if uses_engine && !self.has_successor() => {
                self.read_when_known(now, &topic, range, answer);
            }
            HistoryRequest::Read(topic, range, answer) => {
                let page = self.kept.read(&topic, &range, now_ms);
                ask::<N, _>(&self.metrics, || answer(page));
            }
            HistoryRequest::Forget(topic, answer) if uses_engine => {
                let answer = |it: Result<KeptAt, NotKept>| answer(it.map(|at| at.position));
                self.forget_in_engine(now, topic, KeptFor::Caller(Box::new(answer)));
            }
            HistoryRequest::Forget(topic, answer) => {
                let position = self.kept.purge(&topic, now_ms);
                self.count();
                ask::<N, _>(&self.metrics, || answer(Ok(position)));
            }
            HistoryRequest::Topics(_, from, limit, answer) => {
                let topics = self.kept.list(from, limit, SWEEP_STEPS);
                ask::<N, _>(&self.metrics, || answer(topics));
            }
        }
    }

    /// The topics with their home here.
    pub(crate) fn kept(&self) -> &KeptTopics {
        &self.kept
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, conn: Key) {
        self.departures.forget(conn);
    }

    /// Entries that are kept: waiting channels and sockets, requests, and how far clients have got.
    pub(crate) fn waits(&self) -> usize {
        let followed = self.followed.as_ref().map_or(0, |followed| followed.len());
        self.departures.len() + self.replays.len() + followed
    }
}

/// The history rule of each pattern of topics; the first that matches a topic counts.
fn rules<N: Node>(node: &N) -> Vec<(Pattern, HistoryRule)> {
    let histories = node.user_sockets().flat_map(UserSocket::histories);
    histories.map(|(pattern, rule)| (pattern.clone(), rule)).collect()
}

#[cfg(test)]
mod tests;
