//! Clients: what they have joined, and what they hear is held against what their shard accepted.

use simurgh_proto::message::{Payload, Ref, events};
use simurgh_proto::serializer::ServerMessage;
use simurgh_proto::ws::Decoder;
use simurgh_reactor::Key;

use super::account::Account;
use super::plan::Plan;
use super::presences::View;
use crate::model::NONE;
use crate::payload;

/// A channel of a client.
#[derive(Debug, Clone)]
pub(crate) struct Current {
    pub(crate) join_ref: u32,
    pub(crate) chan: u32,
    pub(crate) is_joined: bool,
    /// Where it is in the line of its shard.
    at: usize,
    pub(crate) view: View,
}

impl Current {
    pub(crate) fn new(join_ref: u32, chan: u32) -> Self {
        Self { join_ref, chan, is_joined: false, at: 0, view: View::default() }
    }
}

/// A connection, from its client's end.
pub(crate) struct Line {
    pub(crate) slot: usize,
    pub(crate) start: usize,
    pub(crate) shard: usize,
    pub(crate) key: Key,
    /// Its number among all connections.
    pub(crate) conn: u32,
    pub(crate) decoder: Decoder,
}

/// A client.
pub(crate) struct Client {
    number: u32,
    /// Which of the ids its sockets have.
    pub(crate) id: Option<usize>,
    pub(crate) line: Option<Line>,
    pub(crate) refs: u32,
    /// What it has joined, by topic.
    pub(crate) channels: Vec<Option<Current>>,
}

impl Client {
    pub(crate) fn new(plan: &Plan, number: u32) -> Self {
        let channels = plan.topics.iter().map(|_| None).collect();
        Self { number, id: plan.id_of(number), line: None, refs: 0, channels }
    }

    /// Its connection is gone.
    pub(crate) fn disconnected(&mut self) {
        self.line = None;
        self.channels.iter_mut().for_each(|it| *it = None);
    }

    /// Something has come.
    pub(crate) fn hears(&mut self, plan: &Plan, account: &mut Account, it: &ServerMessage<'_>) {
        match it {
            ServerMessage::Reply { msg_ref, topic, status, .. } => {
                let Some(topic) = plan.topic_of(topic) else { return };
                let number = number_of(msg_ref);
                let Some(channel) = self.channels.get_mut(topic) else { return };
                let Some(current) = channel.as_mut().filter(|it| it.join_ref == number) else {
                    return;
                };
                let asked = account.joins.get(current.chan as usize);
                match asked.and_then(|it| it.from).filter(|_| &**status == "ok") {
                    Some(from) => (current.is_joined, current.at) = (true, from),
                    None => *channel = None,
                }
            }
            ServerMessage::Event(it) => {
                let Some(topic) = plan.topic_of(&it.topic) else { return };
                let refs = (&it.join_ref, &it.msg_ref);
                self.hears_event(account, topic, refs, (&it.event, &it.payload));
            }
        }
    }

    fn hears_event(
        &mut self,
        account: &mut Account,
        topic: usize,
        (join_ref, msg_ref): (&Ref<'_>, &Ref<'_>),
        (event, payload): (&str, &Payload<'_>),
    ) {
        let Some(channel) = self.channels.get_mut(topic) else { return };
        let Some(current) = channel.as_mut() else { return };
        let is_stale = !join_ref.is_null() && number_of(join_ref) != current.join_ref;
        if matches!(event, events::CLOSE | events::ERROR) {
            let of = if join_ref.is_null() { msg_ref } else { join_ref };
            if number_of(of) == current.join_ref {
                *channel = None;
            }
            return;
        }
        if is_stale || !current.is_joined {
            return;
        }
        let Some(start) = self.line.as_ref().map(|it| it.start) else { return };
        let who = self.number;
        if event.starts_with("presence_") {
            let json = payload.json().unwrap_or_default();
            account.note(|| format!("client {who} hears {event} on {topic}: {json}"));
            return account.hears_presence((start, topic), &mut current.view, event, json);
        }
        let id = payload::parse(payload).0;
        account.note(|| format!("client {who} hears #{id} on {topic}"));
        match account.next_for(current.chan, current.at) {
            Some((at, next)) if next == id => {
                current.at = at + 1;
                account.tally.count("heard", 1);
            }
            next => {
                let text = format!("client {who} hears #{id} on {topic}, where {next:?} is next");
                account.fail("heard", text);
            }
        }
    }

    /// Everything was told: nothing is missing, and who is present is known.
    pub(crate) fn rests(&self, account: &mut Account) {
        for (topic, it) in self.channels.iter().enumerate() {
            let Some(current) = it else { continue };
            let who = self.number;
            if !current.is_joined {
                account.fail("rest", format!("client {who} is not told of its join: {current:?}"));
            }
            if let Some(next) = account.next_for(current.chan, current.at) {
                account.fail("rest", format!("client {who} has not heard {next:?} on {topic}"));
            }
            let there = account.presences.of(topic);
            let known = current.view.sorted();
            if current.view.has_state && known != there {
                let text = format!("client {who} knows {known:?} on {topic}, of {there:?}");
                account.fail("present", text);
            }
            account.tally.count("views", u64::from(current.view.has_state));
        }
    }
}

fn number_of(it: &Ref<'_>) -> u32 {
    it.raw().trim_matches('"').parse().unwrap_or(NONE)
}
