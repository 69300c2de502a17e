//! The state of a network: time, what nodes do, and how their links begin and end.

use std::task::Waker;

use bytes::Bytes;
use simurgh_cluster::adapter::TICKET_SECONDS_MAX;
use simurgh_cluster::{Generation, Interest, QueueFull, SplitMix64, Subject, Ticket, Wanted};

use super::client::{Client, Command, Link, Pending, Request, ToNode};
use super::stream::Stream;
use super::subjects::{Name, Subjects};
use super::{LogEntry, NetworkConfig};

#[derive(Debug)]
pub(super) struct State {
    pub(super) now_ns: u64,
    pub(super) rng: SplitMix64,
    pub(super) config: NetworkConfig,
    pub(super) subjects: Subjects,
    pub(super) clients: Vec<Client>,
    pub(super) engine: Engine,
}

#[derive(Debug, Default)]
pub(super) struct Engine {
    pub(super) is_alive: bool,
    pub(super) is_frozen: bool,
    /// The storage does not work, and does not answer.
    pub(super) has_no_leader: bool,
    /// How often the broker was started.
    pub(super) boot: u64,
    /// `None` if the broker stores nothing.
    pub(super) stream: Option<Stream>,
    pub(super) log: Vec<LogEntry>,
    pub(super) links: Vec<Option<Linked>>,
}

#[derive(Debug)]
pub(super) struct Linked {
    pub(super) session: u64,
    /// May contain ended subscriptions and duplicates.
    pub(super) subscriptions: Vec<Name>,
    pub(super) compact_at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Next {
    Timer,
    AtEngine,
    AtNode,
}

impl State {
    pub(super) fn advance(&mut self, until_ns: u64) {
        while let Some((at_ns, next, node)) = self.next() {
            if at_ns > until_ns {
                break;
            }
            self.now_ns = self.now_ns.max(at_ns);
            match next {
                Next::Timer => self.timer(node),
                Next::AtEngine => self.receive_at_engine(node),
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
        let is_running = self.engine.is_alive && !self.engine.is_frozen;
        let mut first: Option<(u64, Next, usize)> = None;
        let mut offer = |at_ns: Option<u64>, next, node| {
            // Messages that have waited for the end of a fault arrive at once.
            let at = at_ns.map(|at_ns| (at_ns.max(self.now_ns), next, node));
            if let Some(at) = at
                && first.is_none_or(|first| at < first)
            {
                first = Some(at);
            }
        };
        for (node, client) in self.clients.iter().enumerate() {
            offer(client.next_timer_ns(), Next::Timer, node);
            if is_running && !client.cannot_send {
                offer(client.to_engine.next_at_ns(), Next::AtEngine, node);
            }
            if !client.cannot_receive {
                offer(client.to_node.next_at_ns(), Next::AtNode, node);
            }
        }
        first
    }

    pub(super) fn start(&mut self, node: usize) {
        let now_ns = self.now_ns;
        if let Some(client) = self.clients.get_mut(node)
            && client.link == Link::None
        {
            client.link = Link::Waiting { retry_at_ns: now_ns };
        }
    }

    pub(super) fn publish(
        &mut self,
        node: usize,
        to: &Subject,
        envelope: Bytes,
    ) -> Result<(), QueueFull> {
        let to = to.as_str().into();
        self.clients.get_mut(node).ok_or(QueueFull)?.publish(to, envelope)?;
        self.send_published(node);
        Ok(())
    }

    pub(super) fn ask(
        &mut self,
        node: usize,
        what: Request,
        ticket: Ticket,
    ) -> Result<(), QueueFull> {
        let until_ns = self.now_ns + TICKET_SECONDS_MAX * 1_000_000_000;
        let pending = Pending { ticket, until_ns, what };
        let client = self.clients.get_mut(node).ok_or(QueueFull)?;
        let command = (client.link == Link::Up).then(|| pending.command());
        client.ask(pending)?;
        command.into_iter().for_each(|it| self.send(node, it));
        Ok(())
    }

    pub(super) fn interest(&mut self, node: usize, changes: &[(Interest, Wanted)]) -> Generation {
        let Some(client) = self.clients.get_mut(node) else { return Generation(0) };
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
        self.unsubscribe(node);
        let Some(client) = self.clients.get_mut(node) else { return };
        if client.is_linked() && !client.cannot_send {
            client.to_engine.push(self.now_ns, Command::Close);
        } else {
            client.to_engine.clear();
        }
        client.end();
    }

    /// Finds the dead links after a change of links or of the broker.
    pub(super) fn watch_links(&mut self) {
        let is_frozen = self.engine.is_frozen;
        for client in self.clients.iter_mut().filter(|it| it.is_linked()) {
            let is_stalled = is_frozen || client.cannot_send || client.cannot_receive;
            if !is_stalled {
                client.dead_at_ns = None;
            } else if client.dead_at_ns.is_none() {
                let after_ns = self.rng.within(&self.config.dead_after_ns);
                client.dead_at_ns = Some(self.now_ns + after_ns);
            }
        }
    }

    /// Ends links of a broker that was restarted or does not run, as soon as the node can notice.
    pub(super) fn end_broken(&mut self) {
        for node in 0..self.clients.len() {
            let boot = self.engine.boot;
            let is_broken = self.clients.get(node).is_some_and(|it| {
                let is_old = it.boot != boot || !self.engine.is_alive;
                it.is_linked() && is_old && !it.cannot_send && !it.cannot_receive
            });
            if is_broken {
                self.end_link(node, "it was reset");
            }
        }
    }

    pub(super) fn end_link(&mut self, node: usize, why: &str) {
        let Some(client) = self.clients.get_mut(node) else { return };
        if !client.is_linked() {
            return;
        }
        // A frozen broker will read what was sent; everything else is lost.
        let is_left = self.engine.is_alive && self.engine.is_frozen && !client.cannot_send;
        if is_left {
            client.to_engine.push(self.now_ns, Command::Close);
        } else {
            client.to_engine.clear();
        }
        let retry_at_ns = self.retry_at_ns(node);
        if let Some(client) = self.clients.get_mut(node) {
            client.end_link(why, retry_at_ns);
        }
        if !is_left {
            self.unsubscribe(node);
        }
    }

    /// 100 ms, doubled with each attempt up to 5 s, times 0.5 to 1.5.
    fn retry_at_ns(&mut self, node: usize) -> u64 {
        let attempts = self.clients.get(node).map_or(0, |it| it.attempts);
        let base_ns = (100_000_000 << attempts.min(6)).min(5_000_000_000);
        self.now_ns + self.rng.within(&(base_ns / 2..=base_ns * 3 / 2))
    }

    fn timer(&mut self, node: usize) {
        let now_ns = self.now_ns;
        let Some(client) = self.clients.get_mut(node) else { return };
        client.give_up_tickets(now_ns);
        if client.dead_at_ns.take_if(|at_ns| *at_ns <= now_ns).is_some() {
            self.end_link(node, "it is silent");
        } else if let Link::Waiting { retry_at_ns } = client.link
            && retry_at_ns <= now_ns
        {
            self.connect(node);
        }
    }

    fn connect(&mut self, node: usize) {
        let Engine { is_alive, is_frozen, boot, .. } = self.engine;
        let Some(client) = self.clients.get_mut(node) else { return };
        let is_reachable = !client.cannot_send && !client.cannot_receive && !is_frozen;
        if !is_alive || !is_reachable {
            // There is no answer for a while, or the connection is refused at once.
            let (why, after_ns) = match is_reachable {
                true => ("it was refused", 0),
                false => ("it is silent", 1_000_000_000),
            };
            let retry_at_ns = self.retry_at_ns(node) + after_ns;
            if let Some(client) = self.clients.get_mut(node) {
                client.end_link(why, retry_at_ns);
            }
            return;
        }
        client.boot = boot;
        let connect = client.begin_link();
        self.send(node, connect);
    }

    fn send(&mut self, node: usize, command: Command) {
        let at_ns = self.now_ns + self.rng.within(&self.config.delay_ns);
        if let Some(client) = self.clients.get_mut(node) {
            client.to_engine.push(at_ns, command);
        }
    }

    fn send_published(&mut self, node: usize) {
        while let Some(client) = self.clients.get_mut(node).filter(|it| it.link == Link::Up)
            && let Some((to, envelope)) = client.next_unsent()
        {
            self.send(node, Command::Publish(to, envelope));
        }
        let up = self.clients.get_mut(node).filter(|it| it.link == Link::Up);
        if up.is_some_and(Client::begin_ping) {
            self.send(node, Command::Ping);
        }
    }

    fn send_changes(&mut self, node: usize) {
        if let Some(changes) = self.clients.get_mut(node).and_then(Client::take_changes) {
            self.send(node, Command::Interest(changes));
        }
    }

    fn receive_at_node(&mut self, node: usize) {
        let Some(client) = self.clients.get_mut(node) else { return };
        let Some((session, told)) = client.to_node.pop() else { return };
        if session != client.session || !client.is_linked() {
            return;
        }
        match told {
            ToNode::Message { subject, received, .. } => client.receive(&subject, received),
            ToNode::Missed(subject) => client.lose(&subject),
            ToNode::Connected { kept } => {
                client.confirm_interests();
                self.finish_link(node, kept);
            }
            ToNode::InForce => {
                client.confirm_interests();
                if client.link == Link::Connecting {
                    let kept = self.engine.stream.as_ref().map(|it| it.epoch);
                    self.finish_link(node, kept);
                } else {
                    client.report_in_force();
                    self.send_changes(node);
                }
            }
            ToNode::Pong => {
                client.confirm_published();
                self.send_published(node);
            }
            ToNode::Answer(ticket, event) => client.answer(ticket, event),
        }
    }

    /// Reports `Up`, unless interests have changed since the link began.
    fn finish_link(&mut self, node: usize, kept: Option<u64>) {
        let Some(client) = self.clients.get_mut(node) else { return };
        if let Some(changes) = client.take_changes() {
            return self.send(node, Command::Interest(changes));
        }
        client.report_up(kept);
        client.report_in_force();
        let again: Vec<Command> = client.tickets.iter().map(Pending::command).collect();
        for command in again {
            self.send(node, command);
        }
        self.send_published(node);
    }
}
