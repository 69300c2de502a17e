//! The broker: links, subscriptions, deliveries and storage.

use bytes::Bytes;
use simurgh_cluster::adapter::{Fetch, NotStored, Number};
use simurgh_cluster::{Event, Fetched, Received, Ticket};

use super::LogEntry;
use super::client::{Client, Command, Link, Request, ToNode};
use super::state::{Linked, State};
use super::stream::{Outcome, StoreRequest, Stream, unix_ms};
use super::subjects::{Name, republished, space};

impl State {
    pub(super) fn receive_at_engine(&mut self, node: usize) {
        let Some(client) = self.clients.get_mut(node) else { return };
        let is_gone = client.link == Link::None;
        let Some(command) = client.to_engine.pop() else { return };
        match command {
            Command::Connect { session, wanted } if !is_gone => self.link(node, session, wanted),
            Command::Interest(changes) if !is_gone => self.subscribe(node, changes),
            Command::Connect { .. } | Command::Interest(_) => {}
            Command::Publish(to, envelope) => {
                let received = Received { space: space(&to), envelope, stored: None, at_ms: 0 };
                self.deliver(Some(node as u32), &to, &received);
            }
            Command::Ping => self.tell(node, ToNode::Pong),
            Command::Ask(what, ticket) => self.answer(node, what, ticket),
            Command::Close => self.unsubscribe(node),
        }
    }

    fn answer(&mut self, node: usize, what: Request, ticket: Ticket) {
        let now_ns = self.now_ns;
        match what {
            Request::Store { to, id, age, envelope } => {
                let wish = StoreRequest { to: &to, id: &id, age, envelope };
                self.store(node, wish, ticket);
            }
            Request::Fetch(Fetch::After { subject, seq, count, bytes, from_leader }) => {
                let lag_ns = if from_leader { 0 } else { self.lag_ns() };
                let as_of_ns = now_ns.saturating_sub(lag_ns);
                let (of, most) = (subject.as_str(), (count, bytes));
                let kept = self.stream_of(node).map(|it| it.after(of, seq, most, now_ns, as_of_ns));
                self.answer_fetch(node, ticket, kept);
            }
            Request::Fetch(Fetch::LastOf { subjects }) => {
                let as_of_ns = now_ns.saturating_sub(self.lag_ns());
                let kept = self.stream_of(node).map(|it| it.last_of(&subjects, now_ns, as_of_ns));
                self.answer_fetch(node, ticket, kept);
            }
            Request::Fetch(Fetch::Since { age, .. }) => {
                let behind = self.stream_of(node).map(|it| it.since(age, now_ns));
                if behind.is_some() || self.engine.stream.is_none() {
                    let behind = behind.flatten();
                    self.tell(node, ToNode::Answer(ticket, Event::Since { ticket, behind }));
                }
            }
            Request::Purge { of, before } => {
                let why = match self.stream_of(node).map(|it| it.purge(&of, before, now_ns)) {
                    Some(()) => None,
                    None if self.engine.stream.is_some() => return,
                    None => Some(keeps_nothing()),
                };
                self.tell(node, ToNode::Answer(ticket, Event::Purged { ticket, why }));
            }
        }
    }

    fn lag_ns(&mut self) -> u64 {
        match *self.config.lag_ns.end() {
            0 => 0,
            _ => self.rng.within(&self.config.lag_ns),
        }
    }

    fn link(&mut self, node: usize, session: u64, wanted: Vec<Name>) {
        self.unsubscribe(node);
        for name in &wanted {
            self.subjects.subscribe(node as u32, name, true);
        }
        if let Some(linked) = self.engine.links.get_mut(node) {
            let compact_at = 2 * wanted.len() + 64;
            *linked = Some(Linked { session, subscriptions: wanted, compact_at });
        }
        let kept = self.engine.stream.as_ref().map(|it| it.epoch);
        self.tell(node, ToNode::Connected { kept });
    }

    fn subscribe(&mut self, node: usize, changes: Vec<(Name, bool)>) {
        let Some(linked) = self.engine.links.get_mut(node).and_then(Option::as_mut) else { return };
        for (name, is_wanted) in changes {
            self.subjects.subscribe(node as u32, &name, is_wanted);
            if is_wanted {
                linked.subscriptions.push(name);
            }
        }
        if linked.subscriptions.len() >= linked.compact_at {
            linked.subscriptions.retain(|name| self.subjects.is_subscribed(node as u32, name));
            linked.subscriptions.sort_unstable();
            linked.subscriptions.dedup();
            linked.compact_at = 2 * linked.subscriptions.len() + 64;
        }
        self.tell(node, ToNode::InForce);
    }

    /// The storage, if this node is linked to the group that has it.
    fn stream_of(&mut self, node: usize) -> Option<&mut Stream> {
        let group = self.clients.get(node).map_or(0, |it| it.group);
        let has_leader = !self.engine.has_no_leader;
        self.engine.stream.as_mut().filter(|_| group == 0 && has_leader)
    }

    fn store(&mut self, node: usize, wish: StoreRequest<'_>, ticket: Ticket) {
        let now_ns = self.now_ns;
        let keeps = self.engine.stream.is_some();
        let (to, envelope) = (republished(wish.to), wish.envelope.clone());
        let outcome = self.stream_of(node).map(|it| it.store(wish, now_ns));
        let answer = match outcome {
            Some(Outcome::New(number)) => {
                // A broker may answer before or after it publishes.
                let stored = Event::Stored { ticket, seq: number.seq, is_duplicate: false };
                if self.rng.happens(500_000) {
                    self.republish(&to, envelope, number);
                    stored
                } else {
                    self.tell(node, ToNode::Answer(ticket, stored));
                    return self.republish(&to, envelope, number);
                }
            }
            Some(Outcome::Duplicate(seq)) => Event::Stored { ticket, seq, is_duplicate: true },
            // A group without storage asks the other group, which does not answer.
            None if keeps => return,
            None => Event::NotStored { ticket, why: keeps_nothing() },
        };
        self.tell(node, ToNode::Answer(ticket, answer));
    }

    fn republish(&mut self, to: &Name, envelope: Bytes, number: Number) {
        if self.config.has_log {
            self.engine.log.push(LogEntry::Stored(number.seq, envelope.clone()));
        }
        let (space, at_ms) = (space(to), unix_ms(self.now_ns));
        let received = Received { space, envelope, stored: Some(number), at_ms };
        self.deliver(None, to, &received);
    }

    fn answer_fetch(&mut self, node: usize, ticket: Ticket, kept: Option<Fetched>) {
        if kept.is_some() || self.engine.stream.is_none() {
            self.tell(node, ToNode::Answer(ticket, Event::Fetched { ticket, kept }));
        }
    }

    /// Delivers a message to all subscribed nodes except its publisher.
    fn deliver(&mut self, from: Option<u32>, subject: &Name, received: &Received) {
        let Self { subjects, clients, rng, config, engine, now_ns, .. } = self;
        let group = from.and_then(|from| clients.get(from as usize)).map_or(0, |it| it.group);
        for node in subjects.receivers(subject).filter(|node| Some(*node) != from) {
            let linked = engine.links.get(node as usize).and_then(Option::as_ref);
            let (Some(linked), Some(client)) = (linked, clients.get_mut(node as usize)) else {
                continue;
            };
            if client.group != group {
                continue;
            }
            if client.to_node.len() >= config.pending_max {
                // A node that is too slow loses its link.
                if client.is_linked() {
                    client.dead_at_ns = Some(*now_ns);
                }
                continue;
            }
            let is_stored = received.stored.is_some();
            if is_stored && rng.happens(config.vanish_per_million) {
                continue;
            }
            let told = match rng.happens(client.lossy_per_million) {
                true => ToNode::Missed(Name::clone(subject)),
                false => ToNode::Message {
                    from,
                    subject: Name::clone(subject),
                    received: received.clone(),
                },
            };
            let told = match rng.happens(config.reorder_per_million) {
                true => overtake(client, from, linked.session, told),
                false => told,
            };
            let at_ns = *now_ns + rng.within(&config.delay_ns);
            client.to_node.push(at_ns, (linked.session, told));
            if is_stored && rng.happens(config.double_per_million) {
                let (from, subject, received) = (None, Name::clone(subject), received.clone());
                let again = ToNode::Message { from, subject, received };
                client.to_node.push(at_ns, (linked.session, again));
            }
        }
    }

    fn tell(&mut self, node: usize, told: ToNode) {
        let linked = self.engine.links.get(node).and_then(Option::as_ref);
        let Some(session) = linked.map(|it| it.session) else { return };
        let at_ns = self.now_ns + self.rng.within(&self.config.delay_ns);
        if let Some(client) = self.clients.get_mut(node) {
            client.to_node.push(at_ns, (session, told));
        }
    }

    /// Forgets a node's link and what was in flight, after the broker has ended.
    pub(super) fn forget_link(&mut self, node: usize) {
        self.unsubscribe(node);
        if let Some(client) = self.clients.get_mut(node) {
            client.to_engine.clear();
            client.to_node.clear();
        }
    }

    pub(super) fn unsubscribe(&mut self, node: usize) {
        let Some(linked) = self.engine.links.get_mut(node).and_then(Option::take) else { return };
        for name in &linked.subscriptions {
            self.subjects.subscribe(node as u32, name, false);
        }
    }
}

fn keeps_nothing() -> NotStored {
    NotStored::Refused("this engine keeps nothing".into())
}

/// Lets a message overtake the last one in flight, if another publisher sent that. Returns the
/// message that is last now.
fn overtake(client: &mut Client, from: Option<u32>, session: u64, told: ToNode) -> ToNode {
    match client.to_node.last_mut() {
        Some((of, last @ ToNode::Message { .. })) if *of == session && is_of_other(last, from) => {
            std::mem::replace(last, told)
        }
        _ => told,
    }
}

fn is_of_other(told: &ToNode, publisher: Option<u32>) -> bool {
    matches!(told, ToNode::Message { from, .. } if *from != publisher)
}
