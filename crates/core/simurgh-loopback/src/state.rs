//! The state of a network: time, how links begin and end, and the broker at their other end, with
//! its subscriptions, deliveries and storage.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;
use simurgh_cluster::adapter::{Fetch, NotStored, Number, TICKET_SECONDS_MAX};
use simurgh_cluster::{
    Event, Generation, Interest, QueueFull, Received, SplitMix64, Ticket, Wanted,
};

use super::client::{Client, Command, Link, Linked, Name, Pending, Request, ToNode, space, whole};
use super::stream::{Stream, is_log, unix_ms};
use super::{LogEntry, NetworkConfig};

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) now_ns: u64,
    pub(super) rng: SplitMix64,
    pub(super) config: NetworkConfig,
    pub(super) clients: Vec<Client>,
    pub(super) is_alive: bool,
    pub(super) is_frozen: bool,
    /// The storage does not work, and does not answer.
    pub(super) has_no_leader: bool,
    /// `None` if the broker stores nothing.
    pub(super) stream: Option<Stream>,
    pub(super) log: Vec<LogEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Next {
    Timer,
    AtBroker,
    AtNode,
}

impl State {
    pub(super) fn advance(&mut self, until_ns: u64) {
        while let Some((at_ns, next, node)) = self.next().filter(|it| it.0 <= until_ns) {
            self.now_ns = self.now_ns.max(at_ns);
            match next {
                Next::Timer => self.timer(node),
                Next::AtBroker => self.receive_at_broker(node),
                Next::AtNode => self.receive_at_node(node),
            }
        }
        self.now_ns = self.now_ns.max(until_ns);
    }

    pub(super) fn wakers(&mut self) -> Vec<Waker> {
        let woken = self.clients.iter_mut().filter(|it| !it.inbox.is_empty());
        woken.filter_map(|it| it.waker.take()).collect()
    }

    pub(super) fn next(&self) -> Option<(u64, Next, usize)> {
        let is_running = self.is_alive && !self.is_frozen;
        let of_node = |(node, client): (usize, &Client)| {
            let to_broker = client.to_broker.front().filter(|_| is_running && !client.cannot_send);
            let to_node = client.to_node.front().filter(|_| !client.cannot_receive);
            let all = [
                (client.next_timer_ns(), Next::Timer),
                (to_broker.map(|it| it.0), Next::AtBroker),
                (to_node.map(|it| it.0), Next::AtNode),
            ];
            // Messages that have waited for the end of a fault arrive at once.
            let due =
                |(at_ns, next): (Option<u64>, Next)| Some((at_ns?.max(self.now_ns), next, node));
            all.into_iter().filter_map(due).min()
        };
        self.clients.iter().enumerate().filter_map(of_node).min()
    }

    pub(super) fn start(&mut self, node: usize) {
        let client = &mut self.clients[node];
        if client.link == Link::None {
            client.link = Link::Waiting { retry_at_ns: self.now_ns };
        }
    }

    pub(super) fn publish(&mut self, node: usize, to: Name, it: Bytes) -> Result<(), QueueFull> {
        self.clients[node].publish(to, it)?;
        self.send_published(node);
        Ok(())
    }

    pub(super) fn ask(
        &mut self,
        node: usize,
        it: Request,
        ticket: Ticket,
    ) -> Result<(), QueueFull> {
        let until_ns = self.now_ns + TICKET_SECONDS_MAX * 1_000_000_000;
        self.clients[node].ask(Pending { ticket, until_ns, what: it.clone() })?;
        if self.clients[node].link == Link::Up {
            self.send(node, Command::Ask(it, ticket));
        }
        Ok(())
    }

    pub(super) fn interest(&mut self, node: usize, changes: &[(Interest, Wanted)]) -> Generation {
        let client = &mut self.clients[node];
        changes.iter().for_each(|(interest, wanted)| client.want(interest, *wanted));
        client.generation += 1;
        let generation = Generation(client.generation);
        if client.link == Link::Up {
            self.send_changes(node);
        }
        generation
    }

    /// The node's adapter was dropped: what it has sent stays in flight, and it receives nothing.
    pub(super) fn leave(&mut self, node: usize) {
        let client = std::mem::take(&mut self.clients[node]);
        if client.is_linked() && !client.cannot_send {
            let left = &mut self.clients[node];
            (left.to_broker, left.group) = (client.to_broker, client.group);
            push(&mut left.to_broker, self.now_ns, Command::Close);
        }
    }

    /// Finds the dead links after a change of links or of the broker.
    pub(super) fn watch_links(&mut self) {
        for client in self.clients.iter_mut().filter(|it| it.is_linked()) {
            let is_stalled = self.is_frozen || client.cannot_send || client.cannot_receive;
            if !is_stalled {
                client.dead_at_ns = None;
            } else if client.dead_at_ns.is_none() {
                let after_ns = self.rng.within(&self.config.dead_after_ns);
                client.dead_at_ns = Some(self.now_ns + after_ns);
            }
        }
    }

    /// The broker ends, with everything in flight and all that it knows of links.
    pub(super) fn kill(&mut self) {
        (self.is_alive, self.is_frozen) = (false, false);
        for client in &mut self.clients {
            (client.linked, client.is_broken) = (None, true);
            client.to_broker.clear();
            client.to_node.clear();
        }
        self.end_broken();
    }

    /// Ends links of a broker that has ended, as soon as the node can notice.
    pub(super) fn end_broken(&mut self) {
        for node in 0..self.clients.len() {
            let it = &self.clients[node];
            if it.is_broken && !it.cannot_send && !it.cannot_receive {
                self.end_link(node, "it was reset");
            }
        }
    }

    pub(super) fn end_link(&mut self, node: usize, why: &str) {
        if !self.clients[node].is_linked() {
            return;
        }
        let retry_at_ns = self.retry_at_ns(node);
        let client = &mut self.clients[node];
        // A frozen broker will read what was sent; everything else is lost.
        if self.is_alive && self.is_frozen && !client.cannot_send {
            push(&mut client.to_broker, self.now_ns, Command::Close);
        } else {
            client.to_broker.clear();
            client.linked = None;
        }
        client.end_link(why, retry_at_ns);
    }

    /// 100 ms, doubled with each attempt up to 5 s, times 0.5 to 1.5.
    fn retry_at_ns(&mut self, node: usize) -> u64 {
        let attempts = self.clients[node].attempts;
        let base_ns = (100_000_000 << attempts.min(6)).min(5_000_000_000);
        self.now_ns + self.rng.within(&(base_ns / 2..=base_ns * 3 / 2))
    }

    fn timer(&mut self, node: usize) {
        let now_ns = self.now_ns;
        let client = &mut self.clients[node];
        client.give_up(|it| it.until_ns <= now_ns);
        if client.dead_at_ns.take_if(|at_ns| *at_ns <= now_ns).is_some() {
            self.end_link(node, "it is silent");
        } else if let Link::Waiting { retry_at_ns } = client.link
            && retry_at_ns <= now_ns
        {
            self.connect(node);
        }
    }

    fn connect(&mut self, node: usize) {
        let client = &mut self.clients[node];
        let is_reachable = !client.cannot_send && !client.cannot_receive && !self.is_frozen;
        if self.is_alive && is_reachable {
            let connect = client.begin_link();
            return self.send(node, connect);
        }
        // There is no answer for a while, or the connection is refused at once.
        let (why, after_ns) = match is_reachable {
            true => ("it was refused", 0),
            false => ("it is silent", 1_000_000_000),
        };
        let retry_at_ns = self.retry_at_ns(node) + after_ns;
        self.clients[node].end_link(why, retry_at_ns);
    }

    fn send(&mut self, node: usize, command: Command) {
        let at_ns = self.now_ns + self.rng.within(&self.config.delay_ns);
        push(&mut self.clients[node].to_broker, at_ns, command);
    }

    fn send_published(&mut self, node: usize) {
        if self.clients[node].link == Link::Up {
            let unsent = self.clients[node].take_unsent();
            unsent.into_iter().for_each(|command| self.send(node, command));
        }
    }

    fn send_changes(&mut self, node: usize) {
        if let Some(changes) = self.clients[node].take_changes() {
            self.send(node, Command::Interest(changes));
        }
    }

    fn receive_at_node(&mut self, node: usize) {
        let client = &mut self.clients[node];
        let Some((_, (session, told))) = client.to_node.pop_front() else { return };
        if session != client.session || !client.is_linked() {
            return;
        }
        match told {
            ToNode::Message { subject, received, .. } => client.receive(&subject, received),
            ToNode::Missed(subject) => client.lose(&subject),
            ToNode::InForce => {
                client.in_force = client.asked.take().unwrap_or(client.in_force);
                if client.link == Link::Connecting {
                    return self.finish_link(node);
                }
                client.report_in_force();
                self.send_changes(node);
            }
            ToNode::Pong => {
                client.confirm_published();
                self.send_published(node);
            }
            ToNode::Answer(ticket, event) => client.answer(ticket, event),
        }
    }

    /// Reports `Up`, unless interests have changed since the link began.
    fn finish_link(&mut self, node: usize) {
        let client = &mut self.clients[node];
        if let Some(changes) = client.take_changes() {
            return self.send(node, Command::Interest(changes));
        }
        client.report_up(self.stream.as_ref().map(|it| it.epoch));
        client.report_in_force();
        let again = client.tickets.iter().map(|it| Command::Ask(it.what.clone(), it.ticket));
        let again: Vec<Command> = again.collect();
        again.into_iter().for_each(|command| self.send(node, command));
        self.send_published(node);
    }

    fn receive_at_broker(&mut self, node: usize) {
        let client = &mut self.clients[node];
        let Some((_, command)) = client.to_broker.pop_front() else { return };
        let is_gone = client.link == Link::None;
        match command {
            Command::Connect { session, wanted } if !is_gone => {
                client.linked = Some(Linked { session, subscriptions: wanted });
                self.tell(node, ToNode::InForce);
            }
            Command::Interest(changes) if !is_gone => {
                let Some(linked) = &mut client.linked else { return };
                for (name, is_wanted) in changes {
                    match is_wanted {
                        true => linked.subscriptions.insert(name),
                        false => linked.subscriptions.remove(&name),
                    };
                }
                self.tell(node, ToNode::InForce);
            }
            Command::Connect { .. } | Command::Interest(_) => {}
            Command::Publish(to, envelope) => {
                let received = Received { space: space(&to), envelope, stored: None, at_ms: 0 };
                self.deliver(Some(node), &to, &received);
            }
            Command::Ping => self.tell(node, ToNode::Pong),
            Command::Ask(what, ticket) => self.answer(node, what, ticket),
            Command::Close => client.linked = None,
        }
    }

    fn answer(&mut self, node: usize, what: Request, ticket: Ticket) {
        let now_ns = self.now_ns;
        let as_of_ns = now_ns.saturating_sub(self.lag_ns(&what));
        let is_reachable = self.clients[node].group == 0 && !self.has_no_leader;
        let event = match (self.stream.as_mut(), what) {
            (None, what) => {
                let why = NotStored::Refused("this broker stores nothing".into());
                what.unanswered(ticket, why)
            }
            // A group without storage asks the other group, which does not answer.
            (Some(_), _) if !is_reachable => return,
            (Some(stream), Request::Store { to, id, age, envelope }) => {
                let stored = stream.store((&to, &id), age, envelope.clone(), now_ns);
                let seq = stored.map_or_else(|seq| seq, |number| number.seq);
                let is_duplicate = stored.is_err();
                let answer = Event::Stored { ticket, seq, is_duplicate };
                // A broker may answer before or after it publishes.
                let (Ok(number), false) = (stored, is_log(&to)) else {
                    return self.tell(node, ToNode::Answer(ticket, answer));
                };
                if self.rng.happens(500_000) {
                    self.republish(&to, envelope, number);
                } else {
                    self.tell(node, ToNode::Answer(ticket, answer));
                    return self.republish(&to, envelope, number);
                }
                answer
            }
            (Some(stream), Request::Fetch(Fetch::After { subject, seq, count, bytes, .. })) => {
                let (of, most) = (subject.as_str(), (count, bytes));
                let kept = Some(stream.after(of, seq, most, now_ns, as_of_ns));
                Event::Fetched { ticket, kept }
            }
            (Some(stream), Request::Fetch(Fetch::LastOf { subjects })) => {
                Event::Fetched { ticket, kept: Some(stream.last_of(&subjects, now_ns, as_of_ns)) }
            }
            (Some(stream), Request::Fetch(Fetch::Since { age, .. })) => {
                Event::Since { ticket, behind: stream.since(age, now_ns) }
            }
            (Some(stream), Request::Purge { of, before }) => {
                stream.purge(&of, before, now_ns);
                Event::Purged { ticket, why: None }
            }
        };
        self.tell(node, ToNode::Answer(ticket, event));
    }

    /// By how much the copy lags behind that answers a request.
    fn lag_ns(&mut self, what: &Request) -> u64 {
        let may_lag = matches!(
            what,
            Request::Fetch(Fetch::After { from_leader: false, .. } | Fetch::LastOf { .. })
        );
        match *self.config.lag_ns.end() {
            0 => 0,
            _ if !may_lag => 0,
            _ => self.rng.within(&self.config.lag_ns),
        }
    }

    /// Publishes what was stored to those that subscribe to the topic's broadcasts.
    fn republish(&mut self, stored: &str, envelope: Bytes, number: Number) {
        self.log.push(LogEntry::Stored(number.seq, envelope.clone()));
        let to = Name::from(stored.replacen(".h.", ".b.", 1));
        let (space, at_ms) = (space(&to), unix_ms(self.now_ns));
        let received = Received { space, envelope, stored: Some(number), at_ms };
        self.deliver(None, &to, &received);
    }

    /// Delivers a message to all subscribed nodes except its publisher.
    fn deliver(&mut self, from: Option<usize>, subject: &Name, received: &Received) {
        let Self { clients, rng, config, now_ns, .. } = self;
        let group = from.and_then(|from| clients.get(from)).map_or(0, |it| it.group);
        let whole = whole(subject);
        for (node, client) in clients.iter_mut().enumerate() {
            let linked = client.linked.as_ref().filter(|it| it.hears(subject, whole.as_deref()));
            let Some(session) = linked.map(|it| it.session) else { continue };
            if Some(node) == from || client.group != group {
                continue;
            }
            let is_stored = received.stored.is_some();
            if is_stored && rng.happens(config.vanish_per_million) {
                continue;
            }
            let message = || {
                let (subject, received) = (Name::clone(subject), received.clone());
                ToNode::Message { from, subject, received }
            };
            let told = match rng.happens(client.lossy_per_million) {
                true => ToNode::Missed(Name::clone(subject)),
                false => message(),
            };
            let told = match rng.happens(config.reorder_per_million) {
                true => overtake(client, from, session, told),
                false => told,
            };
            let at_ns = *now_ns + rng.within(&config.delay_ns);
            push(&mut client.to_node, at_ns, (session, told));
            if is_stored && rng.happens(config.double_per_million) {
                push(&mut client.to_node, at_ns, (session, message()));
            }
        }
    }

    fn tell(&mut self, node: usize, told: ToNode) {
        let Some(session) = self.clients[node].linked.as_ref().map(|it| it.session) else { return };
        let at_ns = self.now_ns + self.rng.within(&self.config.delay_ns);
        push(&mut self.clients[node].to_node, at_ns, (session, told));
    }
}

impl Linked {
    /// Whether it receives messages on a subject that this wildcard matches.
    pub(super) fn hears(&self, subject: &str, whole: Option<&str>) -> bool {
        let has = |name: &str| self.subscriptions.contains(name);
        has(subject) || whole.is_some_and(has)
    }
}

/// Adds what arrives at this time, but never before what was sent earlier.
fn push<T>(queue: &mut VecDeque<(u64, T)>, at_ns: u64, item: T) {
    let last_ns = queue.back().map_or(0, |it| it.0);
    queue.push_back((last_ns.max(at_ns), item));
}

/// Lets a message overtake the last one in flight, if another publisher sent that. Returns the
/// message that is last now.
fn overtake(client: &mut Client, from: Option<usize>, session: u64, told: ToNode) -> ToNode {
    if let Some((_, (of, last))) = client.to_node.back_mut()
        && *of == session
        && let ToNode::Message { from: by, .. } = last
        && *by != from
    {
        return std::mem::replace(last, told);
    }
    told
}
