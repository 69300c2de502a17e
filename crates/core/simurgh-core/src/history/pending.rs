//! Requests that wait for a topic that a broker numbers to be known here, and other deadlines.

use simurgh_channel::engine::is_of_nothing;
use simurgh_channel::{
    HistoryMail, HistoryPage, Mail, Missed, MissedRequest, Node, NotKept, PageCallback, Range,
    Requester, ToCluster, nanoseconds, until,
};
use simurgh_data::{Next, Now};
use simurgh_history::{GapReason, Position, Since};

use super::Histories;
use super::followed::{Deadline, PendingRequest, Readiness, TopicState};
use crate::application::ask;
use simurgh_data::prelude::*;

const ANSWERS_MAX: usize = 1 << 12;

/// The position of a client that claims one: on another node the topic may have been known to have
/// nothing up to there.
fn no_further(said: Position, head: Position) -> Position {
    let is_further = said.epoch == head.epoch && said.place > head.place;
    if is_further && is_of_nothing(said.place) { head } else { said }
}

impl<N: Node> Histories<N> {
    /// Answers what a client has missed, now or when that is known.
    pub(super) fn request_when_known(&mut self, now: Now, ask: Box<MissedRequest>) {
        if self.has_successor() {
            let (missed, own) = self.kept_missed(now, &ask);
            return self.post_missed(&ask, missed, own);
        }
        self.follow(&ask.topic, now.ns);
        match ask.requester {
            Requester::Join(..) => {
                let topic = ask.topic.clone();
                self.want(now, &topic, PendingRequest::Missed(ask));
            }
            // It is within what is here.
            Requester::Member(_) => self.answer_ask(now, ask, false),
        }
    }

    /// Answers a read of a topic, now or when it is known.
    pub(super) fn read_when_known(
        &mut self,
        now: Now,
        topic: &str,
        range: Range,
        answer: PageCallback,
    ) {
        self.follow(topic, now.ns);
        self.want(now, topic, PendingRequest::Page(range, answer));
    }

    fn want(&mut self, now: Now, topic: &str, what: PendingRequest) {
        let Some(followed) = &mut self.followed else { return };
        let head = self.kept.head(topic);
        let is_ahead = match followed.readiness(topic, what.starts_behind(), head) {
            Readiness::Known => return self.answer_wanted(now, topic, what, false),
            Readiness::Ahead => true,
            Readiness::Unknown => false,
            Readiness::Unavailable => return self.answer_wanted(now, topic, what, true),
        };
        if let Err(what) = followed.wait(topic, is_ahead, what, now.ns) {
            return self.answer_wanted(now, topic, what, !is_ahead);
        }
        if is_ahead {
            self.check_topic(topic, now.ns);
        }
    }

    /// A client has received more elsewhere: this copy may lag behind.
    fn check_topic(&mut self, topic: &str, now_ns: u64) {
        if self.followed.as_mut().is_some_and(|followed| followed.is_to_check(topic, now_ns))
            && let Some(cluster) = self.node.cluster()
        {
            cluster.send(ToCluster::CheckTopic(topic.into()));
        }
    }

    pub(super) fn answer_ready(&mut self, now: Now, topic: &str) {
        let Some(followed) = &mut self.followed else { return };
        let head = self.kept.head(topic);
        let (ready, has_more, has_ahead) = followed.take_ready(topic, head, ANSWERS_MAX);
        let is_away = followed.is_unavailable(topic);
        if has_more {
            followed.ready.push_back(Rc::from(topic));
        }
        if has_ahead {
            self.check_topic(topic, now.ns);
        }
        for what in ready {
            self.answer_wanted(now, topic, what, is_away);
        }
    }

    fn answer_wanted(&mut self, now: Now, topic: &str, what: PendingRequest, is_away: bool) {
        match what {
            PendingRequest::Missed(ask) => self.answer_ask(now, ask, is_away),
            PendingRequest::Page(range, answer) => {
                if let Some(page) = self.page_with_engine(now, topic, &range, is_away) {
                    ask::<N, _>(&self.metrics, || answer(page));
                }
            }
        }
    }

    fn page_with_engine(
        &mut self,
        now: Now,
        topic: &str,
        range: &Range,
        is_away: bool,
    ) -> Option<HistoryPage> {
        let now_ms = self.node.unix_ms(now.ns);
        let away = is_away.then_some(GapReason::Unavailable);
        let Some(head) = self.kept.head(topic) else {
            let position = self.followed.as_ref()?.unknown_position;
            let (gap, first, messages) = (Some(GapReason::Unavailable), None, Vec::new());
            return Some(HistoryPage { gap, first, position, messages });
        };
        let mut range = *range;
        range.since = range.since.map(|it| no_further(it, head));
        let page = self.kept.read(topic, &range, now_ms);
        Some(HistoryPage { gap: page.gap.or(away), ..page })
    }

    /// Sends the shard of a client what that has missed, as far as it is here; `is_away`: what the
    /// broker has is unknown.
    fn answer_ask(&mut self, now: Now, mut ask: Box<MissedRequest>, is_away: bool) {
        let Some(topics) = &mut self.followed else { return };
        let unknown_position = topics.unknown_position;
        let followed = topics.open(&ask.topic);
        followed.answered_ns = Some(now.ns);
        let (missed, own) = match self.kept.head(&ask.topic) {
            Some(head) => {
                ask.since = match ask.since {
                    Since::After(it) => Since::After(no_further(it, head)),
                    since => since,
                };
                ask.is_away = is_away;
                self.kept_missed(now, &ask)
            }
            None => {
                // Members continue from their position, if the topic begins there again. A client
                // without a position keeps its own: it may move to another node before the topic
                // begins here, and get the rest there.
                let through = followed.was_at.unwrap_or(unknown_position);
                let mut after = through;
                if followed.was_at.is_none() {
                    let position = match ask.since {
                        Since::After(it) => Some(it),
                        _ => None,
                    };
                    followed.stray = followed.stray.with(position);
                    after = position.unwrap_or(through);
                }
                let gap = Some(GapReason::Unavailable);
                let messages = Vec::new();
                (Arc::new(Missed { gap, after, through, more: false, count: 0, messages }), 0)
            }
        };
        self.post_missed(&ask, missed, own);
    }

    /// Sends what a client has missed to its shard, and how much of it the client has sent itself.
    pub(super) fn post_missed(&self, ask: &MissedRequest, missed: Arc<Missed>, own: usize) {
        let mail = match ask.requester {
            Requester::Join(conn, ticket) => HistoryMail::Missed(conn, ticket, missed, own),
            Requester::Member(channel) => HistoryMail::Portion(channel, missed),
        };
        self.node.post(usize::from(ask.shard), Mail::History(mail));
    }

    /// Answers requests that have waited too long with what is known, and gives up stores without
    /// answer.
    pub(super) fn expire_pending(&mut self, now: Now) -> Next {
        let Some(followed) = &mut self.followed else { return Next::Idle };
        for topic in core::mem::take(&mut followed.ready) {
            self.answer_ready(now, &topic);
        }
        for _ in 0..ANSWERS_MAX {
            let due = self.followed.as_mut().and_then(|followed| followed.take_due(now.ns));
            let Some(due) = due else { break };
            self.is_due(now, due);
        }
        let give_up = nanoseconds(self.node.config().history.confirm_timeout.saturating_mul(2));
        if let Some(old_ns) = now.ns.checked_sub(give_up) {
            for _ in 0..ANSWERS_MAX {
                let old = self.followed.as_mut().and_then(|it| it.stores.take_old(old_ns));
                let Some(old) = old else { break };
                self.end_store(old, Err(NotKept::Unconfirmed));
            }
        }
        let Some(followed) = &self.followed else { return Next::Idle };
        if !followed.ready.is_empty() {
            return Next::Now;
        }
        let oldest_ns =
            followed.stores.oldest_ns().map(|asked_ns| asked_ns.saturating_add(give_up));
        let next_ns = followed.next_ns().into_iter().chain(oldest_ns).min();
        next_ns.map_or(Next::Idle, |next_ns| Next::After(until(next_ns, now.ns)))
    }

    fn is_due(&mut self, now: Now, due: Deadline) {
        let Some(followed) = &mut self.followed else { return };
        match due {
            Deadline::Topic(topic) => {
                let state = followed.topics.get(&topic).map(|it| it.state);
                for what in followed.take_overdue(&topic, 1, now.ns) {
                    self.answer_wanted(now, &topic, what, state != Some(TopicState::Live));
                }
            }
            Deadline::Store(number, at) => {
                if let Some(pending) = followed.stores.take(number) {
                    self.end_store(pending, Ok(at));
                }
            }
        }
    }
}
