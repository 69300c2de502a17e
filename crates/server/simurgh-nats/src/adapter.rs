//! The adapter: successive links, and the state that outlives them.

use std::collections::VecDeque;
use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use simurgh_cluster::adapter::{Adapter, Down, Fetch, Number};
use simurgh_cluster::{
    Durations, Event, Generation, Interest, Measures, NodeId, QueueFull, Received, Session, Space,
    Subject, Ticket, Wanted,
};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::backoff;
use crate::config::{Config, Server};
use crate::connect::{self, ENVELOPE_BYTES_MAX, Established};
use crate::interests::Interests;
use crate::jetstream::requests::Asked;
use crate::jetstream::{Action, Epochs, INBOX_SID, JetStream};
use crate::link::{Incoming, Link};
use crate::outbox::Outbox;
use crate::timer::Timer;
use crate::wire::Message;

/// After a link that lasted this long, delays start with the shortest again.
const GOOD_LINK: Duration = Duration::from_secs(10);

/// NATS as the broker of a cluster.
///
/// All work is done in [`poll_event`](Adapter::poll_event): the owner polls it, with a waker, as
/// long as the node runs. The runtime must have I/O and time enabled; only lookups of servers'
/// names and new connections run as tasks there.
///
/// Dropping it ends its link at once: poll until [`in_flight`](Adapter::in_flight) is 0 so that
/// everything arrives. An envelope over 1 MB is dropped and counted
/// ([`Statistics::refused_large`]), because the broker would end the link.
pub struct NatsAdapter {
    config: Arc<Config>,
    runtime: Handle,
    random: fastrand::Rng,
    started: Instant,
    /// The connection's name in the broker's tools.
    name: String,
    state: State,
    interests: Interests,
    outbox: Outbox,
    jetstream: JetStream,
    /// Whether anything was refused since the last [`Event::Room`] because too much was in flight.
    was_full: WasFull,
    is_up: bool,
    events: VecDeque<Event>,
    last_down: Option<Down>,
    known_servers: Vec<Server>,
    failures: u32,
    sessions: u64,
    generation: u64,
    in_force: u64,
    waker: Option<Waker>,
    timer: Timer,
    /// The timer of tickets while there is no link.
    tickets_timer: Timer,
    statistics: Statistics,
    round_trips: Durations,
}

#[derive(Clone, Copy, Debug, Default)]
struct WasFull {
    outbox: bool,
    tickets: bool,
}

enum State {
    Idle,
    /// The timer ends at the next attempt.
    Waiting,
    Connecting(JoinHandle<Result<Established, Down>>),
    Linked(Box<Link>),
}

/// The counters of an adapter since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Links made.
    pub links: u64,
    /// Envelopes sent again after a link had broken.
    pub resent: u64,
    /// Messages that were dropped while interests changed: not wanted any more, or duplicates.
    pub unwanted: u64,
    /// Received messages that were dropped because they are larger than any envelope.
    pub too_large: u64,
    /// Published envelopes that were dropped because the broker does not accept their size.
    pub refused_large: u64,
    /// Subscriptions.
    pub subscriptions: usize,
    /// The time from the last PING to its answer.
    pub round_trip: Option<Duration>,
}

impl NatsAdapter {
    /// An adapter that connects when it is started. `runtime` must have I/O and time enabled.
    pub fn new(config: Config, runtime: Handle) -> Self {
        let interests = Interests::new(config.prefix.clone());
        let jetstream = JetStream::new(&config.prefix, config.streams.clone());
        Self {
            name: config.name.clone(),
            config: Arc::new(config),
            runtime,
            random: fastrand::Rng::new(),
            started: Instant::now(),
            state: State::Idle,
            interests,
            outbox: Outbox::default(),
            jetstream,
            was_full: WasFull::default(),
            is_up: false,
            events: VecDeque::new(),
            last_down: None,
            known_servers: Vec::new(),
            failures: 0,
            sessions: 0,
            generation: 0,
            in_force: 0,
            waker: None,
            timer: Timer::default(),
            tickets_timer: Timer::default(),
            statistics: Statistics::default(),
            round_trips: Durations::default(),
        }
    }

    /// The counters since it was made.
    pub fn statistics(&self) -> Statistics {
        let (resent, subscriptions) = (self.outbox.resent, self.interests.subscriptions());
        Statistics { resent, subscriptions, ..self.statistics }
    }

    /// The server that this node is linked to, and its version.
    pub fn server(&self) -> Option<(String, &str)> {
        match &self.state {
            State::Linked(link) => Some((link.server.to_string(), &link.version)),
            _ => None,
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Wakes the owner: there is something to write, or an event.
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn connect(&mut self) {
        let mut servers = self.config.servers.clone();
        servers.extend(
            self.known_servers.iter().filter(|it| !self.config.servers.contains(it)).cloned(),
        );
        self.random.shuffle(&mut servers);
        let task = connect::connect(Arc::clone(&self.config), servers, self.name.clone());
        self.state = State::Connecting(self.runtime.spawn(task));
    }

    /// Begins a link: subscribes to all interests, and sends the queued envelopes.
    fn link(&mut self, established: Established) {
        self.statistics.links += 1;
        self.sessions += 1;
        self.known_servers.clone_from(&established.known_servers);
        let now_ms = self.now_ms();
        let version = established.version.clone();
        let mut link = Link::new(established, now_ms);
        self.jetstream.link(now_ms, &version, &mut link.out);
        self.interests.link(&mut link.out);
        link.changed(self.generation);
        self.outbox.link(link.next_ping, &mut link.out);
        link.unconfirmed += self.outbox.len();
        self.state = State::Linked(Box::new(link));
    }

    /// Ends the link, if there is one; another is tried later.
    fn fail(&mut self, down: Down) {
        let now_ms = self.now_ms();
        if let State::Linked(link) = &self.state
            && now_ms.saturating_sub(link.since_ms) >= GOOD_LINK.as_millis() as u64
        {
            self.failures = 0;
        }
        self.interests.unlink();
        self.outbox.unlink();
        self.jetstream.unlink();
        self.is_up = false;
        self.state = State::Waiting;
        let delay = backoff::delay(self.failures, &mut self.random);
        self.failures = self.failures.saturating_add(1);
        self.sleep_until(now_ms + delay.as_millis() as u64);
        if self.last_down.as_ref() != Some(&down) {
            self.last_down = Some(down.clone());
            self.events.push_back(Event::Down(down));
        }
    }

    fn sleep_until(&mut self, at_ms: u64) {
        self.timer.set(self.started + Duration::from_millis(at_ms), &self.runtime);
    }

    /// Handles timeouts of tickets while there is no link.
    fn turn_tickets(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.jetstream.tick(self.now_ms(), None, &mut self.events);
        if !self.events.is_empty() {
            return Poll::Ready(None);
        }
        let Some(next_ms) = self.jetstream.next_tick_ms() else { return Poll::Pending };
        let at = self.started + Duration::from_millis(next_ms);
        self.tickets_timer.set(at, &self.runtime);
        self.tickets_timer.poll(context).map(|()| None)
    }

    /// Works until it would block; ready with an event, or when `events` has some.
    fn turn(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        match &mut self.state {
            State::Idle => self.turn_tickets(context),
            State::Waiting => {
                if self.timer.poll(context).is_pending() {
                    return self.turn_tickets(context);
                }
                self.connect();
                Poll::Ready(None)
            }
            State::Connecting(task) => {
                let Poll::Ready(made) = Pin::new(task).poll(context) else {
                    return self.turn_tickets(context);
                };
                match made {
                    Ok(Ok(established)) => self.link(established),
                    Ok(Err(down)) => self.fail(down),
                    Err(error) => self.fail(connect::broken(error)),
                }
                Poll::Ready(None)
            }
            State::Linked(_) => self.turn_link(context),
        }
    }

    fn turn_link(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            let State::Linked(link) = &mut self.state else { return Poll::Ready(None) };
            match link.next() {
                Ok(Some(Incoming::Message(message))) if message.sid == INBOX_SID => {
                    self.on_answer(message);
                    if !self.events.is_empty() {
                        return Poll::Ready(None);
                    }
                }
                Ok(Some(Incoming::Message(message))) => match self.interests.accept(&message) {
                    Some(space) => return Poll::Ready(Some(self.received(space, message))),
                    None => self.statistics.unwanted += 1,
                },
                Ok(Some(Incoming::TooLarge(sid))) => {
                    self.statistics.too_large += 1;
                    if let Some(interest) = self.interests.interest(sid) {
                        return Poll::Ready(Some(Event::Lost(vec![interest])));
                    }
                }
                Ok(Some(Incoming::Pong { ping, round_trip })) => {
                    self.statistics.round_trip = Some(round_trip);
                    self.round_trips.add(round_trip);
                    self.pong(ping);
                    return Poll::Ready(None);
                }
                Ok(Some(Incoming::Servers(told))) => self.known_servers = told,
                Ok(Some(Incoming::Error(text))) => {
                    self.refused(&text);
                    return Poll::Ready(None);
                }
                Err(down) => {
                    self.fail(down);
                    return Poll::Ready(None);
                }
                Ok(None) => return self.turn_socket(context),
            }
        }
    }

    fn received(&mut self, space: Option<Space>, message: Message) -> Event {
        let (stored, at_ms) = message.stored_at().unzip();
        if let Some(Number { seq, .. }) = stored {
            self.jetstream.on_republished(message.subject(), seq);
        }
        let envelope = message.into_payload();
        Event::Received(Received { space, envelope, stored, at_ms: at_ms.unwrap_or(0) })
    }

    fn on_answer(&mut self, message: Message) {
        let now_ms = self.now_ms();
        let State::Linked(link) = &mut self.state else { return };
        let action = self.jetstream.on_answer(message, now_ms, &mut link.out, &mut self.events);
        self.act(action);
    }

    fn refused(&mut self, text: &str) {
        match self.jetstream.refused(text, self.now_ms(), &mut self.events) {
            Some(action) => self.act(action),
            // The node cannot work without it, even if the server continues.
            None => self.fail(connect::of_error(text)),
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Continue => self.report_up(),
            Action::Reconnect(why) => self.fail(Down::Broken(why)),
        }
    }

    /// Writes and reads more, after everything read so far is processed.
    fn turn_socket(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let now_ms = self.now_ms();
        let State::Linked(link) = &mut self.state else { return Poll::Ready(None) };
        link.needs_ping |= self.interests.tick(now_ms, link.next_ping, &mut link.out);
        if let Action::Reconnect(why) =
            self.jetstream.tick(now_ms, Some(&mut link.out), &mut self.events)
        {
            self.fail(Down::Broken(why));
            return Poll::Ready(None);
        }
        link.send_ping(now_ms);
        let written = link.poll_write(context);
        let read = link.poll_read(context, now_ms);
        let failed = match (written, read) {
            (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => Some(error),
            (_, Poll::Ready(Ok(()))) => return Poll::Ready(None),
            (_, Poll::Pending) => link.check(now_ms).err(),
        };
        if let Some(down) = failed {
            self.fail(down);
            return Poll::Ready(None);
        }
        let ticks = [self.interests.next_tick_ms, self.jetstream.next_tick_ms()];
        let next_ms = ticks.into_iter().flatten().fold(link.next_tick_ms(), u64::min);
        self.report_up();
        if !self.events.is_empty() {
            return Poll::Ready(None);
        }
        let next_ms = next_ms.max(now_ms + 1);
        let due = self.started + Duration::from_millis(next_ms);
        if self.timer.is_after(due) || self.timer.poll(context).is_ready() {
            self.sleep_until(next_ms);
            return self.timer.poll(context).map(|()| None);
        }
        Poll::Pending
    }

    /// A PING was answered: the broker has everything that was sent before it.
    fn pong(&mut self, ping: u64) {
        self.interests.pong(ping, self.now_ms());
        self.outbox.pong(ping);
        if let State::Linked(link) = &mut self.state {
            link.pong(ping);
        }
        self.report_up();
        self.make_room();
    }

    /// Reports the link once all interests are in force and the streams are checked, and which
    /// changes are in force.
    fn report_up(&mut self) {
        let now_ms = self.now_ms();
        let State::Linked(link) = &mut self.state else { return };
        let mut is_new = false;
        if !self.is_up
            && link.is_up()
            && let Some(Epochs { kept, log }) = self.jetstream.decided()
        {
            (self.is_up, self.last_down, is_new) = (true, None, true);
            self.events.push_back(Event::Up { session: Session(self.sessions), kept, log });
            self.jetstream.up(now_ms, &mut link.out, &mut self.events);
        }
        if self.is_up
            && let Some(generation) = link.generation()
            && generation > self.in_force
        {
            self.in_force = generation;
            self.events.push_back(Event::InForce(Generation(generation)));
        }
        if is_new {
            self.make_room();
        }
    }

    /// Reports that there is room, if something was refused and there is enough.
    fn make_room(&mut self) {
        let WasFull { outbox, tickets } = self.was_full;
        // Envelopes may be confirmed before `Up` is reported.
        let outbox_has = self.is_up && self.outbox.has_room();
        let has_room = (!outbox || outbox_has) && (!tickets || self.jetstream.tickets.has_room());
        if (outbox || tickets) && has_room {
            self.was_full = WasFull::default();
            self.events.push_back(Event::Room);
        }
    }

    fn next_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if event.ticket().is_some() {
            self.jetstream.tickets.taken();
            self.make_room();
        }
        Some(event)
    }

    fn ask(&mut self, asked: Asked) -> Result<(), QueueFull> {
        let now_ms = self.now_ms();
        let out = match &mut self.state {
            State::Linked(link) => Some(&mut link.out),
            _ => None,
        };
        let taken = self.jetstream.take(asked, out, now_ms, &mut self.events);
        self.was_full.tickets |= taken.is_err();
        self.wake();
        taken
    }
}

impl Adapter for NatsAdapter {
    fn start(&mut self, me: NodeId) {
        self.name = format!("simurgh {} {me}", self.config.name);
        self.connect();
        self.wake();
    }

    fn publish(&mut self, to: &Subject, envelope: Bytes) -> Result<(), QueueFull> {
        if envelope.len() > ENVELOPE_BYTES_MAX {
            // The broker would end the link.
            self.statistics.refused_large += 1;
            return Ok(());
        }
        let bytes = envelope.len();
        let taken = match &mut self.state {
            State::Linked(link) => {
                let out = Some((link.next_ping, &mut link.out));
                self.outbox.publish(to, envelope, out).inspect(|()| {
                    link.unconfirmed += 1;
                    link.unconfirmed_bytes += bytes;
                })
            }
            _ => self.outbox.publish(to, envelope, None),
        };
        self.was_full.outbox |= taken.is_err();
        self.wake();
        taken
    }

    fn store(
        &mut self,
        to: &Subject,
        id: &str,
        age: Option<Duration>,
        envelope: Bytes,
        ticket: Ticket,
    ) -> Result<(), QueueFull> {
        self.ask(self.jetstream.store((to, id, age), envelope, ticket))
    }

    fn purge(&mut self, of: &Subject, before: u64, ticket: Ticket) -> Result<(), QueueFull> {
        self.ask(self.jetstream.purge(of, before, ticket))
    }

    fn interest(&mut self, changes: &[(Interest, Wanted)]) -> Generation {
        self.generation += 1;
        match &mut self.state {
            State::Linked(link) => {
                self.interests.change(changes, link.next_ping, &mut link.out);
                link.changed(self.generation);
            }
            _ => self.interests.change(changes, 0, &mut BytesMut::new()),
        }
        self.wake();
        Generation(self.generation)
    }

    fn fetch(&mut self, what: Fetch, ticket: Ticket) -> Result<(), QueueFull> {
        self.ask(self.jetstream.fetch(what, ticket))
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        loop {
            if let Some(event) = self.next_event() {
                return Poll::Ready(event);
            }
            match self.turn(context) {
                Poll::Ready(Some(event)) => return Poll::Ready(event),
                Poll::Ready(None) => {}
                Poll::Pending => {
                    self.waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.outbox.len()
    }

    fn measures(&self) -> Measures {
        let engine = self.server().map(|(server, version)| format!("{server}, NATS {version}"));
        let round_trip = self.statistics.round_trip.filter(|_| engine.is_some());
        let (keeping, repeated) = (self.jetstream.describe(), self.jetstream.tickets.repeats);
        Measures { engine, keeping, repeated, round_trip, round_trips: self.round_trips }
    }
}

impl Drop for NatsAdapter {
    fn drop(&mut self) {
        if let State::Connecting(task) = &self.state {
            task.abort();
        }
    }
}

/// Shows neither credentials nor envelopes.
impl std::fmt::Debug for NatsAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_linked = matches!(self.state, State::Linked(_));
        f.debug_struct("NatsAdapter")
            .field("name", &self.name)
            .field("is_linked", &is_linked)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}
