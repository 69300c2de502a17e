//! A node's end of its link: the state of its adapter.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use simurgh_cluster::adapter::{
    Down, Fetch, IN_FLIGHT_BYTES_MAX, IN_FLIGHT_MAX, NotStored, TICKETS_MAX,
};
use simurgh_cluster::{
    Event, Generation, Interest, Prefix, QueueFull, Received, Session, Space, Ticket, Wanted,
    resent,
};

/// The text of a subject or a wildcard.
pub(super) type Name = Arc<str>;

#[derive(Debug)]
pub(super) enum Command {
    Connect {
        session: u64,
        wanted: BTreeSet<Name>,
    },
    /// Changes of interests, applied in one step.
    Interest(Vec<(Name, bool)>),
    Publish(Name, Bytes),
    Ping,
    Ask(Request, Ticket),
    Close,
}

#[derive(Debug)]
pub(super) enum ToNode {
    /// A published message and its publisher; `None` for a stored message.
    Message {
        from: Option<usize>,
        subject: Name,
        received: Received,
    },
    Missed(Name),
    InForce,
    Pong,
    Answer(Ticket, Event),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Link {
    #[default]
    None,
    /// The adapter waits for its next attempt to connect.
    Waiting {
        retry_at_ns: u64,
    },
    /// The adapter has sent its connect, or waits for its interests to be in force.
    Connecting,
    Up,
}

/// What the broker knows of a link.
#[derive(Debug)]
pub(super) struct Linked {
    pub(super) session: u64,
    pub(super) subscriptions: BTreeSet<Name>,
}

/// A ticket that waits for its answer, with the request to repeat on another link.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) ticket: Ticket,
    pub(super) until_ns: u64,
    pub(super) what: Request,
}

#[derive(Clone, Debug)]
pub(super) enum Request {
    Store { to: Name, id: Box<str>, age: Option<Duration>, envelope: Bytes },
    Fetch(Fetch),
    Purge { of: Name, before: u64 },
}

impl Request {
    /// The answer to a ticket of which the broker has not stored or fetched anything.
    pub(super) fn unanswered(&self, ticket: Ticket, why: NotStored) -> Event {
        match self {
            Self::Store { .. } => Event::NotStored { ticket, why },
            Self::Fetch(Fetch::Since { .. }) => Event::Since { ticket, behind: None },
            Self::Fetch(_) => Event::Fetched { ticket, kept: None },
            Self::Purge { .. } => Event::Purged { ticket, why: Some(why) },
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Client {
    pub(super) prefix: Option<Prefix>,
    pub(super) link: Link,
    /// The number of the current or last link; 0 before the first.
    pub(super) session: u64,
    /// The broker has ended since this link began.
    pub(super) is_broken: bool,
    /// The link as the broker knows it; it may have ended here, or have begun anew.
    pub(super) linked: Option<Linked>,
    pub(super) attempts: u32,
    /// When the adapter notices that the link is dead.
    pub(super) dead_at_ns: Option<u64>,
    pub(super) to_broker: VecDeque<(u64, Command)>,
    pub(super) to_node: VecDeque<(u64, (u64, ToNode))>,
    pub(super) cannot_send: bool,
    pub(super) cannot_receive: bool,
    /// The group of the partitioned broker that the node is linked to.
    pub(super) group: usize,
    pub(super) lossy_per_million: u32,

    wants: BTreeMap<Name, Interest>,
    /// Changes of interests that were not sent.
    changes: Vec<(Name, bool)>,
    pub(super) generation: u64,
    /// The generation that was sent to the broker and is not confirmed.
    pub(super) asked: Option<u64>,
    pub(super) in_force: u64,
    said_in_force: u64,

    /// Published envelopes that are not confirmed.
    pub(super) outbox: VecDeque<(Name, Bytes)>,
    outbox_bytes: usize,
    /// How many envelopes of the outbox were sent over this link.
    sent: usize,
    /// How many of them were sent before the ping that is not answered.
    pinged: Option<usize>,
    pub(super) tickets: Vec<Pending>,
    reported_epoch: Option<u64>,
    answers: usize,
    was_full: bool,

    pub(super) inbox: VecDeque<Event>,
    inbox_max: usize,
    received: usize,
    lost: Vec<Name>,
    said_down: Option<Down>,
    pub(super) waker: Option<Waker>,
}

impl Client {
    pub(super) fn new(prefix: Prefix, inbox_max: usize, lossy_per_million: u32) -> Self {
        Self { prefix: Some(prefix), inbox_max, lossy_per_million, ..Self::default() }
    }

    /// Whether the broker may have a link to it.
    pub(super) fn is_linked(&self) -> bool {
        matches!(self.link, Link::Connecting | Link::Up)
    }

    pub(super) fn publish(&mut self, to: Name, envelope: Bytes) -> Result<(), QueueFull> {
        let is_full = self.outbox.len() >= IN_FLIGHT_MAX
            || self.outbox_bytes.saturating_add(envelope.len()) > IN_FLIGHT_BYTES_MAX;
        if is_full && !self.outbox.is_empty() {
            self.was_full = true;
            return Err(QueueFull);
        }
        self.outbox_bytes += envelope.len();
        self.outbox.push_back((to, envelope));
        Ok(())
    }

    pub(super) fn ask(&mut self, pending: Pending) -> Result<(), QueueFull> {
        if self.tickets.len() + self.answers >= TICKETS_MAX {
            self.was_full = true;
            return Err(QueueFull);
        }
        self.tickets.push(pending);
        Ok(())
    }

    pub(super) fn want(&mut self, interest: &Interest, wanted: Wanted) {
        let Some(prefix) = &self.prefix else { return };
        let name = Name::from(prefix.filter(interest).as_str());
        match wanted {
            Wanted::Yes => self.wants.insert(Name::clone(&name), interest.clone()),
            Wanted::No => self.wants.remove(&name),
        };
        self.changes.push((name, wanted == Wanted::Yes));
    }

    pub(super) fn poll(&mut self, waker: &Waker) -> Option<Event> {
        let Some(mut event) = self.inbox.pop_front() else {
            self.waker = Some(waker.clone());
            return None;
        };
        match &mut event {
            Event::Received(_) => self.received -= 1,
            Event::Lost(interests) => {
                let wants = &self.wants;
                let lost = self.lost.drain(..).filter_map(|name| wants.get(&name).cloned());
                *interests = lost.collect();
                // These interests have all ended meanwhile.
                if interests.is_empty() {
                    return self.poll(waker);
                }
            }
            event if event.ticket().is_some() => {
                self.answers -= 1;
                self.make_room();
            }
            _ => {}
        }
        Some(event)
    }

    /// Begins a link with all interests; from here on only changes are sent.
    pub(super) fn begin_link(&mut self) -> Command {
        (self.link, self.is_broken) = (Link::Connecting, false);
        self.session += 1;
        self.changes.clear();
        self.asked = Some(self.generation);
        let wanted = self.wants.keys().map(Name::clone).collect();
        Command::Connect { session: self.session, wanted }
    }

    /// Whether the broker has confirmed all changes of interests.
    pub(super) fn is_settled(&self) -> bool {
        self.in_force == self.generation
    }

    pub(super) fn wanted_topics(&self) -> usize {
        let is_of_topic = |it: &&Interest| matches!(it, Interest::Exact(..) | Interest::Whole(..));
        self.wants.values().filter(is_of_topic).count()
    }

    /// The changes that were not sent, unless others are unconfirmed.
    pub(super) fn take_changes(&mut self) -> Option<Vec<(Name, bool)>> {
        if self.asked.is_some() || self.is_settled() {
            return None;
        }
        self.asked = Some(self.generation);
        Some(std::mem::take(&mut self.changes))
    }

    /// Ends the link: it delivers nothing more, and what was sent over it may be lost.
    pub(super) fn end_link(&mut self, why: &str, retry_at_ns: u64) {
        self.link = Link::Waiting { retry_at_ns };
        self.dead_at_ns = None;
        self.attempts += 1;
        self.to_node.clear();
        for (_, envelope) in self.outbox.iter_mut().take(self.sent) {
            *envelope = resent(std::mem::take(envelope));
        }
        (self.sent, self.pinged, self.asked) = (0, None, None);
        let down = Down::Broken(why.into());
        if self.said_down.as_ref() != Some(&down) {
            self.said_down = Some(down.clone());
            match self.inbox.back_mut() {
                Some(last @ Event::Down(_)) => *last = Event::Down(down),
                _ => self.inbox.push_back(Event::Down(down)),
            }
        }
    }

    pub(super) fn report_up(&mut self, kept: Option<u64>) {
        self.link = Link::Up;
        self.attempts = 0;
        self.said_down = None;
        // Of the links that began and ended before the node polled, only the last is reported.
        while let [.., Event::Up { .. }, Event::Down(_)] = self.inbox.make_contiguous() {
            self.inbox.truncate(self.inbox.len() - 2);
        }
        if self.reported_epoch != kept {
            // The others use numbers of the other epoch.
            self.give_up(|it| !matches!(it.what, Request::Store { .. }));
        }
        self.reported_epoch = kept;
        self.inbox.push_back(Event::Up { session: Session(self.session), kept, log: kept });
    }

    /// Answers the tickets that have timed out, or whose request makes no sense any more.
    pub(super) fn give_up(&mut self, is_over: impl Fn(&Pending) -> bool) {
        for pending in self.tickets.extract_if(.., |pending| is_over(pending)) {
            let answer = pending.what.unanswered(pending.ticket, NotStored::Unconfirmed);
            self.inbox.push_back(answer);
            self.answers += 1;
        }
    }

    /// Reports which changes are in force, if that has changed.
    pub(super) fn report_in_force(&mut self) {
        if self.in_force == self.said_in_force {
            return;
        }
        self.said_in_force = self.in_force;
        let event = Event::InForce(Generation(self.in_force));
        match self.inbox.back_mut() {
            Some(last @ Event::InForce(_)) => *last = event,
            _ => self.inbox.push_back(event),
        }
    }

    /// What was not sent over this link, and a ping behind it if none is unanswered.
    pub(super) fn take_unsent(&mut self) -> Vec<Command> {
        let unsent = self.outbox.iter().skip(self.sent);
        let publish =
            |(to, envelope): &(Name, Bytes)| Command::Publish(Name::clone(to), envelope.clone());
        let mut commands: Vec<Command> = unsent.map(publish).collect();
        self.sent = self.outbox.len();
        if self.pinged.is_none() && self.sent > 0 {
            self.pinged = Some(self.sent);
            commands.push(Command::Ping);
        }
        commands
    }

    /// Confirms what was sent before the ping.
    pub(super) fn confirm_published(&mut self) {
        let count = self.pinged.take().unwrap_or(0);
        self.sent -= count;
        for (_, envelope) in self.outbox.drain(..count) {
            self.outbox_bytes -= envelope.len();
        }
        self.make_room();
    }

    /// Reports `Room` if an envelope was refused and enough room is free.
    fn make_room(&mut self) {
        let is_half = self.outbox.len() <= IN_FLIGHT_MAX / 2
            && self.outbox_bytes <= IN_FLIGHT_BYTES_MAX / 2
            && self.tickets.len() + self.answers <= TICKETS_MAX / 2;
        if self.was_full && is_half {
            self.was_full = false;
            self.inbox.push_back(Event::Room);
        }
    }

    pub(super) fn receive(&mut self, subject: &str, received: Received) {
        if self.received >= self.inbox_max {
            return self.lose(subject);
        }
        self.received += 1;
        self.inbox.push_back(Event::Received(received));
    }

    /// Records which interests would have received a lost message.
    pub(super) fn lose(&mut self, subject: &str) {
        let is_said = !self.lost.is_empty();
        for name in [Some(subject.to_owned()), whole(subject)].into_iter().flatten() {
            let name = Name::from(name);
            if self.wants.contains_key(&name) && !self.lost.contains(&name) {
                self.lost.push(name);
            }
        }
        if !is_said && !self.lost.is_empty() {
            self.inbox.push_back(Event::Lost(Vec::new()));
        }
    }

    pub(super) fn answer(&mut self, ticket: Ticket, event: Event) {
        if let Some(at) = self.tickets.iter().position(|it| it.ticket == ticket) {
            self.tickets.remove(at);
            self.answers += 1;
            self.inbox.push_back(event);
        }
    }

    pub(super) fn next_timer_ns(&self) -> Option<u64> {
        let retry_at_ns = match self.link {
            Link::Waiting { retry_at_ns } => Some(retry_at_ns),
            _ => None,
        };
        let until_ns = self.tickets.first().map(|it| it.until_ns);
        [retry_at_ns, self.dead_at_ns, until_ns].into_iter().flatten().min()
    }
}

/// The wildcard that matches a subject; `None` for one without a topic.
pub(super) fn whole(subject: &str) -> Option<String> {
    let (start, _) = subject.rsplit_once('.').filter(|_| space(subject).is_some())?;
    Some(format!("{start}.*"))
}

/// The space by the letter behind the prefix; `None` for the subject of all nodes, or of one.
pub(super) fn space(subject: &str) -> Option<Space> {
    match subject.split('.').nth(1) {
        Some("b") => Some(Space::Broadcast),
        Some("h") => Some(Space::Store),
        Some("p") => Some(Space::Presence),
        _ => None,
    }
}
