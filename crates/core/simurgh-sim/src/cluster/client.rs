//! Clients: what they have joined, and what they hear is held against what their shard accepted.

use simurgh_proto::message::{Payload, Ref, events};
use simurgh_proto::serializer::ServerMessage;
use simurgh_proto::ws::Decoder;
use simurgh_reactor::Key;

use super::account::Account;
use super::kept::ear::{Ear, Whose};
use super::plan::Plan;
use super::presences::View;
use crate::model::NONE;
use crate::payload;
use simurgh_history::Position;

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
    /// Where topics are kept, what it has heard of them.
    pub(crate) ears: Vec<Ear>,
    pub(crate) opts_in: bool,
    has_id: bool,
}

impl Client {
    pub(crate) fn new(plan: &Plan, number: u32) -> Self {
        let channels = plan.topics.iter().map(|_| None).collect();
        let kept = plan.kept.as_ref();
        let ears = plan.topics.iter().filter(|_| kept.is_some()).map(|_| Ear::default()).collect();
        let (opts_in, has_id) = kept.map_or((false, false), |it| it.client(plan.seed, number));
        let (id, line, refs) = (plan.id_of(number), None, 0);
        Self { number, id, line, refs, channels, ears, opts_in, has_id }
    }

    /// Its connection is gone.
    pub(crate) fn disconnected(&mut self) {
        self.line = None;
        self.channels.iter_mut().for_each(|it| *it = None);
        self.ears.iter_mut().for_each(Ear::disconnected);
        if !self.opts_in {
            // Who does not say where it stands may hear again what another node hears late.
            self.ears.iter_mut().for_each(|it| it.at = None);
        }
    }

    /// What it says of what it has heard as it joins.
    pub(crate) fn resumes(&mut self, topic: usize) -> String {
        let Some(ear) = self.ears.get_mut(topic).filter(|_| self.opts_in) else {
            return String::new();
        };
        ear.is_resumed = false;
        let since = ear.at.map_or_else(|| "null".to_owned(), |at| format!("\"{at}\""));
        let id = match self.has_id {
            true => format!(r#""id":"client-{:04}","#, self.number),
            false => String::new(),
        };
        format!(r#","simurgh":{{{id}"since":{since}}}"#)
    }

    /// Something has come.
    pub(crate) fn hears(&mut self, plan: &Plan, account: &mut Account, it: &ServerMessage<'_>) {
        match it {
            ServerMessage::Reply { msg_ref, topic, status, response, .. } => {
                let Some(topic) = plan.topic_of(topic) else { return };
                let number = number_of(msg_ref);
                let Some(channel) = self.channels.get_mut(topic) else { return };
                let Some(current) = channel.as_mut().filter(|it| it.join_ref == number) else {
                    if plan.kept.is_some() {
                        is_replied(account, status, response);
                    }
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
        let Some(current) = channel.as_mut() else {
            let at = Position::parse(msg_ref.raw().trim_matches('"'));
            if at.is_some() || (payload.binary().is_some() && self.opts_in) {
                self.hears_kept(account, topic, (event, payload, at), true);
            }
            return;
        };
        let is_stale = !join_ref.is_null() && number_of(join_ref) != current.join_ref;
        if matches!(event, events::CLOSE | events::ERROR) {
            let of = if join_ref.is_null() { msg_ref } else { join_ref };
            if number_of(of) == current.join_ref {
                *channel = None;
            }
            return;
        }
        let is_kept = !self.ears.is_empty() && !event.starts_with("presence_");
        if is_kept {
            let at = Position::parse(msg_ref.raw().trim_matches('"'));
            return self.hears_kept(account, topic, (event, payload, at), is_stale);
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

    /// Something of a kept topic.
    fn hears_kept(
        &mut self,
        account: &mut Account,
        topic: usize,
        (event, payload, at): (&str, &Payload<'_>, Option<Position>),
        is_dropped: bool,
    ) {
        let who = self.number;
        account.note(|| {
            let text = String::from_utf8_lossy(payload.data());
            let heard = if is_dropped { "drops" } else { "hears" };
            format!("client {who} {heard} {event} at {at:?} on {topic}: {text:.80}")
        });
        let whose = Whose { client: who, has_id: self.has_id, topic };
        let Some(ear) = self.ears.get_mut(topic) else { return };
        if self.opts_in {
            return ear.hears(account, whose, (event, payload, at), is_dropped);
        }
        let id = payload::parse(payload).0;
        let stored = account.kept.find(id, topic);
        if at.is_some() || event.starts_with("simurgh:") || stored.is_none() {
            let text = format!("client {who} hears {event} #{id} at {at:?}: {stored:?}");
            return account.fail("opted", text);
        }
        let before = std::mem::replace(&mut ear.at, stored);
        let is_again = before.zip(stored).is_some_and(|(before, stored)| {
            before.epoch == stored.epoch && before.place >= stored.place
        });
        account.tally.count("heard without a place", 1);
        if is_again && !is_dropped {
            let text = format!("client {who} hears #{id} at {stored:?} behind {before:?}");
            account.fail("twice", text);
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
            if let Some(ear) = self.ears.get(topic).filter(|_| self.opts_in) {
                ear.rests(account, Whose { client: who, has_id: self.has_id, topic });
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

/// What a channel says behind its broadcasts, it says when they are stored.
fn is_replied(account: &mut Account, status: &str, response: &Payload<'_>) {
    let text = String::from_utf8_lossy(response.data()).into_owned();
    if status == "ok" {
        let missing = account.kept.missing(payload::parse(response).0);
        account.tally.count("replies", 1);
        if let Some(id) = missing {
            account.fail("barrier", format!("{text} is said before #{id} is stored"));
        }
    } else if text.contains("unconfirmed") {
        account.tally.count("unconfirmed", 1);
    } else if text.contains("not stored") {
        account.tally.count("not stored", 1);
    }
}

fn number_of(it: &Ref<'_>) -> u32 {
    it.raw().trim_matches('"').parse().unwrap_or(NONE)
}
