//! Clients: what they have joined, and what they receive compared with what their shard accepted.

mod alone;
mod view;

use crate::kit::client::Connection;
use crate::kit::{EVENTS, payload, refs};
use simurgh_core::Wire;
use simurgh_history::Position;
use simurgh_proto::message::{Payload, Ref, events};
use simurgh_proto::serializer::ServerMessage;

pub(crate) use self::view::TopicView;
use crate::kit::presences::View;
use crate::world::app::PUSH;
use crate::world::ledger::Ledger;
use crate::world::plan::{Habits, Plan};

/// Reasons of errors that a client may be told, besides those with a number.
const REASONS: [&str; 6] =
    ["unmatched topic", "unconfirmed", "not stored", "join timed out", "rate_limited", "congested"];
const BAD_RESUME: &str = r#"{"reason":"bad resume"}"#;

#[derive(Debug, Clone)]
pub(crate) struct Joined {
    pub(crate) join_ref: u32,
    pub(crate) chan: u32,
    pub(crate) is_joined: bool,
    at: usize,
    pub(crate) view: View,
}

impl Joined {
    pub(crate) fn new(join_ref: u32, chan: u32) -> Self {
        Self { join_ref, chan, is_joined: false, at: 0, view: View::default() }
    }
}

pub(crate) struct Client {
    number: u32,
    pub(crate) id: Option<usize>,
    pub(crate) connection: Option<Connection>,
    pub(crate) refs: u32,
    pub(crate) channels: Vec<Option<Joined>>,
    pub(crate) views: Vec<TopicView>,
    pub(crate) wire: Wire,
    habits: Habits,
    pub(crate) session: Session,
}

/// The session of a client of one node.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// The refs of its last joins, by topic; 0 for none.
    pub(crate) joins: Vec<u32>,
    /// How many messages with refs outside its session it has sent.
    pub(crate) odd: u32,
    /// When its long-poll session was last polled; `None` for other connections.
    pub(crate) polled_ns: Option<u64>,
}

impl Client {
    pub(crate) fn disconnected(&mut self) {
        self.connection = None;
        self.channels.iter_mut().for_each(|it| *it = None);
        self.views.iter_mut().for_each(TopicView::disconnected);
        if !self.habits.opts_in {
            // Without a position it may receive again what another node receives late.
            self.views.iter_mut().for_each(|it| it.at = None);
        }
    }

    pub(crate) fn new(plan: &Plan, number: u32) -> Self {
        let channels = plan.topics.iter().map(|_| None).collect();
        let habits = plan.habits(number);
        let topics = 0..plan.history.as_ref().map_or(0, |_| plan.topics.len());
        let views = topics.map(|topic| TopicView::new(number, habits, topic)).collect();
        let (id, connection, refs, wire) = (plan.id_of(number), None, 0, Wire::V2);
        let session = Session::default();
        Self { number, id, connection, refs, channels, views, wire, habits, session }
    }

    /// Whether it has the answer to its resume, if it sent one.
    pub(crate) fn is_resumed(&self, topic: usize) -> bool {
        self.views.get(topic).is_none_or(|view| view.is_resumed || !self.habits.opts_in)
    }

    /// Whether it may join a topic now. A client of a node without an engine also joins again. With
    /// V1, whose messages do not name their join, it joins once on a connection.
    pub(crate) fn may_join(&self, topic: usize) -> bool {
        let view = self.views.get(topic);
        match &self.channels[topic] {
            None => self.wire == Wire::V2 || view.is_some_and(|it| !it.has_joined),
            Some(current) => {
                let is_alone = view.is_some_and(|it| it.is_alone);
                is_alone && self.wire == Wire::V2 && current.is_joined && self.is_resumed(topic)
            }
        }
    }

    /// The member of its join's payload with which it resumes.
    pub(crate) fn resume_member(&mut self, ledger: &Ledger, topic: usize, c: u32) -> String {
        let is_v1 = self.wire == Wire::V1;
        let Some(view) = self.views.get_mut(topic) else { return String::new() };
        view.begin(ledger, is_v1);
        if self.habits.opts_in { view.resume_member(ledger, c) } else { String::new() }
    }

    pub(crate) fn receive(&mut self, plan: &Plan, ledger: &mut Ledger, it: &ServerMessage<'_>) {
        match it {
            ServerMessage::Reply { msg_ref, topic, status, response, .. } => {
                let Some(topic) = plan.topic_of(topic) else { return };
                let number = refs::number(msg_ref.raw(), false);
                let Some(channel) = self.channels.get_mut(topic) else { return };
                let Some(current) = channel.as_mut().filter(|it| it.join_ref == number) else {
                    if plan.history.is_some() {
                        check_reply(ledger, status, response);
                    }
                    return;
                };
                let is_bad = response.data() == BAD_RESUME.as_bytes();
                if self.views.get(topic).is_some_and(|it| it.is_bad() != is_bad) {
                    let text = format!("client {}: {status}, {response:?}", self.number);
                    ledger.fail("bad", text);
                }
                ledger.counts.count("refused", u64::from(is_bad));
                let asked = ledger.joins.get(current.chan as usize);
                match asked.and_then(|it| it.from).filter(|_| &**status == "ok") {
                    Some(from) => {
                        (current.is_joined, current.at) = (true, from);
                        self.views.get_mut(topic).into_iter().for_each(TopicView::joined);
                    }
                    None => *channel = None,
                }
            }
            ServerMessage::Event(it) => {
                let Some(topic) = plan.topic_of(&it.topic) else { return };
                self.receive_event(
                    ledger,
                    topic,
                    (&it.join_ref, &it.msg_ref),
                    (&it.event, &it.payload),
                );
            }
        }
    }

    fn receive_event(
        &mut self,
        ledger: &mut Ledger,
        topic: usize,
        (join_ref, msg_ref): (&Ref<'_>, &Ref<'_>),
        (event, payload): (&str, &Payload<'_>),
    ) {
        let Some(channel) = self.channels.get_mut(topic) else { return };
        let is_here_only =
            EVENTS.contains(&event) && ledger.is_here_only(payload::parse(payload).0);
        let Some(current) = channel.as_mut() else {
            let at = Position::parse(msg_ref.raw().trim_matches('"'));
            let is_binary = payload.binary().is_some() && self.habits.opts_in && !is_here_only;
            if at.is_some() || is_binary {
                self.receive_stored(ledger, topic, (event, payload, at), true);
            }
            return;
        };
        let is_stale =
            !join_ref.is_null() && refs::number(join_ref.raw(), false) != current.join_ref;
        if matches!(event, events::CLOSE | events::ERROR) {
            let of = if join_ref.is_null() { msg_ref } else { join_ref };
            if refs::number(of.raw(), false) == current.join_ref {
                *channel = None;
            }
            return;
        }
        if event == PUSH {
            return check_reply(ledger, "ok", payload);
        }
        let is_stored = !self.views.is_empty() && !event.starts_with("presence_") && !is_here_only;
        if is_stored {
            let at = Position::parse(msg_ref.raw().trim_matches('"'));
            return self.receive_stored(ledger, topic, (event, payload, at), is_stale);
        }
        if is_stale || !current.is_joined {
            return;
        }
        let Some(start) = self.connection.as_ref().map(|it| it.start) else { return };
        let who = self.number;
        if event.starts_with("presence_") {
            let json = payload.json().unwrap_or_default();
            ledger.note(|| format!("client {who} hears {event} on {topic}: {json}"));
            return ledger.receive_presence((start, topic), &mut current.view, event, json);
        }
        let id = payload::parse(payload).0;
        ledger.note(|| format!("client {who} hears #{id} on {topic}"));
        match ledger.next_for(current.chan, current.at) {
            Some((at, next)) if next == id => {
                current.at = at + 1;
                ledger.counts.count("heard", 1);
            }
            next => {
                let text = format!("client {who} hears #{id} on {topic}, where {next:?} is next");
                ledger.fail("heard", text);
            }
        }
    }

    fn receive_stored(
        &mut self,
        ledger: &mut Ledger,
        topic: usize,
        (event, payload, at): (&str, &Payload<'_>, Option<Position>),
        is_dropped: bool,
    ) {
        let who = self.number;
        ledger.note(|| {
            let text = String::from_utf8_lossy(payload.data());
            let heard = if is_dropped { "drops" } else { "hears" };
            format!("client {who} {heard} {event} at {at:?} on {topic}: {text:.80}")
        });
        let Some(view) = self.views.get_mut(topic) else { return };
        if self.habits.opts_in {
            return view.receive(ledger, (event, payload, at), is_dropped);
        }
        let id = payload::parse(payload).0;
        let stored = ledger.log.find(id, topic);
        if at.is_some() || event.starts_with("simurgh:") || stored.is_none() {
            let text = format!("client {who} hears {event} #{id} at {at:?}: {stored:?}");
            return ledger.fail("opted", text);
        }
        ledger.counts.count("heard without a place", 1);
        view.receive_live(ledger, id, stored, is_dropped);
    }

    pub(crate) fn check_rest(&self, ledger: &mut Ledger) {
        for (topic, it) in self.channels.iter().enumerate() {
            let Some(current) = it else { continue };
            let who = self.number;
            if !current.is_joined {
                ledger.fail("rest", format!("client {who} is not told of its join: {current:?}"));
            }
            if let Some(view) = self.views.get(topic) {
                view.check_rest(ledger);
            }
            if let Some(next) = ledger.next_for(current.chan, current.at) {
                ledger.fail("rest", format!("client {who} has not heard {next:?} on {topic}"));
            }
            let there = ledger.presences.of(topic);
            let known = current.view.sorted();
            if current.view.has_state && known != there {
                let text = format!("client {who} knows {known:?} on {topic}, of {there:?}");
                ledger.fail("present", text);
            }
            ledger.counts.count("views", u64::from(current.view.has_state));
        }
    }
}

/// A reply after broadcasts comes once they are stored.
fn check_reply(ledger: &mut Ledger, status: &str, response: &Payload<'_>) {
    let text = String::from_utf8_lossy(response.data()).into_owned();
    if status == "ok" {
        let missing = ledger.missing(payload::parse(response).0);
        ledger.counts.count("replies", 1);
        if let Some(id) = missing {
            ledger.fail("barrier", format!("{text} is said before #{id} is stored"));
        }
    } else if text.contains("unconfirmed") {
        ledger.counts.count("unconfirmed", 1);
    } else if text.contains("not stored") {
        ledger.counts.count("not stored", 1);
    } else if text.contains("rate_limited") {
        ledger.counts.count("over a limit", 1);
    } else if text != "{}" && !REASONS.iter().any(|it| text.contains(it)) {
        ledger.fail("reply", format!("a client receives {status} {text}"));
    }
}
