//! Requests that wait for a topic that a broker numbers to be known here, and other deadlines.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use simurgh_channel::engine::is_of_nothing;
use simurgh_channel::{
    HistoryMail, HistoryPage, Mail, Missed, MissedRequest, Node, NotKept, PageCallback, Range,
    Requester, ToCluster,
};
use simurgh_data::Next;
use simurgh_history::{GapReason, Position, Since};

use super::followed::{Deadline, PendingRequest, Readiness, TopicState};
use crate::core::Core;
use crate::sockets::Sockets;

const ANSWERS_MAX: usize = 1 << 12;

/// The position of a client that claims one: on another node the topic may have been known to have
/// nothing up to there.
fn no_further(said: Position, head: Position) -> Position {
    let is_further = said.epoch == head.epoch && said.place > head.place;
    if is_further && is_of_nothing(said.place) { head } else { said }
}

impl<N: Node> Core<N> {
    /// Answers what a client has missed, now or when that is known.
    pub(super) fn request_when_known(&mut self, out: &impl Sockets, ask: Box<MissedRequest>) {
        let now_ns = out.now().ns;
        self.follow(&ask.topic, now_ns);
        match ask.requester {
            Requester::Join(..) => {
                let topic = ask.topic.clone();
                self.want(out, &topic, PendingRequest::Missed(ask));
            }
            // It is within what is here.
            Requester::Member(_) => self.answer_ask(out, ask, false),
        }
    }

    /// Answers a read of a topic, now or when it is known.
    pub(super) fn read_when_known(
        &mut self,
        out: &impl Sockets,
        topic: &str,
        range: Range,
        answer: PageCallback,
    ) {
        self.follow(topic, out.now().ns);
        self.want(out, topic, PendingRequest::Page(range, answer));
    }

    fn want(&mut self, out: &impl Sockets, topic: &str, what: PendingRequest) {
        let Some(history) = &mut self.history else { return };
        let Some(followed_topics) = &mut history.followed_topics else { return };
        let head = history.kept.head(topic);
        let is_ahead = match followed_topics.readiness(topic, what.starts_behind(), head) {
            Readiness::Known => return self.answer_wanted(out, topic, what, false),
            Readiness::Ahead => true,
            Readiness::Unknown => false,
            Readiness::Unavailable => return self.answer_wanted(out, topic, what, true),
        };
        if let Err(what) = followed_topics.wait(topic, is_ahead, what, out.now().ns) {
            return self.answer_wanted(out, topic, what, !is_ahead);
        }
        if is_ahead {
            self.check_topic(topic, out.now().ns);
        }
    }

    /// A client has received more elsewhere: this copy may lag behind.
    fn check_topic(&mut self, topic: &str, now_ns: u64) {
        if self.followed_topics().is_some_and(|it| it.is_to_check(topic, now_ns))
            && let Some(cluster) = self.node.cluster()
        {
            cluster.send(ToCluster::CheckTopic(topic.into()));
        }
    }

    pub(super) fn answer_ready(&mut self, out: &impl Sockets, topic: &str) {
        let Some(history) = &mut self.history else { return };
        let head = history.kept.head(topic);
        let Some(followed_topics) = &mut history.followed_topics else { return };
        let (ready, has_more, has_ahead) = followed_topics.take_ready(topic, head, ANSWERS_MAX);
        let is_away = followed_topics.is_unavailable(topic);
        if has_more {
            followed_topics.ready.push_back(Rc::from(topic));
        }
        if has_ahead {
            self.check_topic(topic, out.now().ns);
        }
        for what in ready {
            self.answer_wanted(out, topic, what, is_away);
        }
    }

    fn answer_wanted(
        &mut self,
        out: &impl Sockets,
        topic: &str,
        what: PendingRequest,
        is_away: bool,
    ) {
        match what {
            PendingRequest::Missed(ask) => self.answer_ask(out, ask, is_away),
            PendingRequest::Page(range, answer) => {
                let page = self.page_with_engine(out, topic, &range, is_away);
                if let Some(page) = page {
                    self.application.ask(|| answer(page));
                }
            }
        }
    }

    fn page_with_engine(
        &mut self,
        out: &impl Sockets,
        topic: &str,
        range: &Range,
        is_away: bool,
    ) -> Option<HistoryPage> {
        let now_ms = self.node.unix_ms(out.now().ns);
        let history = self.history.as_mut()?;
        let away = is_away.then_some(GapReason::Unavailable);
        let Some(head) = history.kept.head(topic) else {
            let position = history.followed_topics.as_ref()?.unknown_position;
            let (gap, first, messages) = (Some(GapReason::Unavailable), None, Vec::new());
            return Some(HistoryPage { gap, first, position, messages });
        };
        let mut range = *range;
        range.since = range.since.map(|it| no_further(it, head));
        let page = history.kept.read(topic, &range, now_ms);
        Some(HistoryPage { gap: page.gap.or(away), ..page })
    }

    /// Sends the shard of a client what that has missed, as far as it is here; `is_away`: what the
    /// broker has is unknown.
    fn answer_ask(&mut self, out: &impl Sockets, mut ask: Box<MissedRequest>, is_away: bool) {
        let now_ns = out.now().ns;
        let now_ms = self.node.unix_ms(now_ns);
        let Some(history) = &mut self.history else { return };
        let Some(followed_topics) = &mut history.followed_topics else { return };
        let unknown_position = followed_topics.unknown_position;
        let followed = followed_topics.open(&ask.topic);
        followed.answered_ns = Some(now_ns);
        let (missed, own) = match history.kept.head(&ask.topic) {
            Some(head) => {
                ask.since = match ask.since {
                    Since::After(it) => Since::After(no_further(it, head)),
                    since => since,
                };
                ask.is_away = is_away;
                history.kept.missed(&ask, &self.node.config().history, now_ms)
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
    pub(super) fn expire_pending(&mut self, out: &impl Sockets) -> Next {
        let now_ns = out.now().ns;
        let give_up = self.node.config().history.confirm_timeout.saturating_mul(2);
        let Some(followed_topics) = self.followed_topics() else { return Next::Idle };
        let ready = core::mem::take(&mut followed_topics.ready);
        for topic in ready {
            self.answer_ready(out, &topic);
        }
        for _ in 0..ANSWERS_MAX {
            let due = self.followed_topics().and_then(|it| it.take_due(now_ns));
            let Some(due) = due else { break };
            self.is_due(out, due, now_ns);
        }
        let give_up_ns = u64::try_from(give_up.as_nanos()).unwrap_or(u64::MAX);
        if let Some(old_ns) = now_ns.checked_sub(give_up_ns) {
            for _ in 0..ANSWERS_MAX {
                let old = self.followed_topics().and_then(|it| it.stores.take_old(old_ns));
                let Some(old) = old else { break };
                self.end_store(old, Err(NotKept::Unconfirmed));
            }
        }
        let Some(followed_topics) = self.followed_topics() else { return Next::Idle };
        if !followed_topics.ready.is_empty() {
            return Next::Now;
        }
        let oldest_ns = followed_topics.stores.oldest_ns().map(|it| it.saturating_add(give_up_ns));
        let next_ns = followed_topics.next_ns().into_iter().chain(oldest_ns).min();
        next_ns.map_or(Next::Idle, |next_ns| {
            Next::After(Duration::from_nanos(next_ns.saturating_sub(now_ns)))
        })
    }

    fn is_due(&mut self, out: &impl Sockets, due: Deadline, now_ns: u64) {
        let Some(history) = &mut self.history else { return };
        let Some(followed_topics) = &mut history.followed_topics else { return };
        match due {
            Deadline::Topic(topic) => {
                let is_known = followed_topics
                    .topics
                    .get(&topic)
                    .is_some_and(|it| it.state == TopicState::Live);
                let overdue = followed_topics.take_overdue(&topic, 1, now_ns);
                for what in overdue {
                    self.answer_wanted(out, &topic, what, !is_known);
                }
            }
            Deadline::Store(number, at) => {
                if let Some(pending) = followed_topics.stores.take(number) {
                    self.end_store(pending, Ok(at));
                }
            }
        }
    }
}
