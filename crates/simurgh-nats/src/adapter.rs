//! The adapter: one link after the other, and what stays between them.

use std::collections::VecDeque;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use simurgh_cluster::adapter::{Adapter, Down, Fetch, NotStored};
use simurgh_cluster::{
    Durations, Event, Full, Generation, Interest, Measures, NodeId, Received, Session, Subject,
    Ticket, Wanted,
};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Sleep;

use crate::backoff;
use crate::config::{Config, Server};
use crate::connect::{self, ENVELOPE_BYTES_MAX, Established};
use crate::interests::Interests;
use crate::link::{Link, Said};
use crate::outbox::Outbox;

/// A link that lasted so long was a good one: after it, delays begin with the shortest again.
const GOOD_LINK: Duration = Duration::from_secs(10);
/// Questions about what is kept that wait for their answer.
const ANSWERS_MAX: usize = 1_024;

/// NATS as the engine of a cluster.
///
/// All of it happens in [`poll_event`](Adapter::poll_event): the owner polls it, with a waker, as
/// long as the node runs. The runtime whose handle it has must have I/O and time turned on; only
/// names of servers are looked up, and links are made, in tasks there.
///
/// Dropped, it ends its link at once: who wants what is under way to arrive polls until
/// [`under_way`](Adapter::under_way) is 0. An envelope over 1 MB is dropped and counted
/// ([`Statistics::refused_large`]): the engine would end the link over it.
pub struct NatsAdapter {
    config: Arc<Config>,
    runtime: Handle,
    random: fastrand::Rng,
    started: Instant,
    /// What the connection is called at the engine.
    name: String,
    state: State,
    interests: Interests,
    outbox: Outbox,
    events: VecDeque<Event>,
    /// Why there is no link, as it was said last.
    said: Option<Down>,
    /// Servers that the last one told of.
    told: Vec<Server>,
    failures: u32,
    sessions: u64,
    generation: u64,
    in_force: u64,
    waker: Option<Waker>,
    timer: Option<Pin<Box<Sleep>>>,
    statistics: Statistics,
    round_trips: Durations,
}

enum State {
    /// Not started.
    Idle,
    /// Until the timer ends.
    Waiting,
    Connecting(JoinHandle<Result<Established, Down>>),
    Linked(Box<Link>),
}

/// What an adapter has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Links that were made.
    pub links: u64,
    /// Envelopes that were sent again after a link had broken.
    pub resent: u64,
    /// Messages that were for no interest any more, or there already, while interests changed.
    pub unwanted: u64,
    /// Messages that were larger than an envelope may be, and not taken.
    pub too_large: u64,
    /// Envelopes that were larger than the engine takes, and not sent.
    pub refused_large: u64,
    /// Subscriptions that stand.
    pub subscriptions: usize,
    /// How long the last PING took until its answer was read.
    pub round_trip: Option<Duration>,
}

impl NatsAdapter {
    /// An adapter that connects when it is started. `runtime` has I/O and time turned on.
    pub fn new(config: Config, runtime: Handle) -> Self {
        let interests = Interests::new(config.prefix.clone());
        Self {
            name: config.name.clone(),
            config: Arc::new(config),
            runtime,
            random: fastrand::Rng::new(),
            started: Instant::now(),
            state: State::Idle,
            interests,
            outbox: Outbox::default(),
            events: VecDeque::new(),
            said: None,
            told: Vec::new(),
            failures: 0,
            sessions: 0,
            generation: 0,
            in_force: 0,
            waker: None,
            timer: None,
            statistics: Statistics::default(),
            round_trips: Durations::default(),
        }
    }

    /// What was counted.
    pub fn statistics(&self) -> Statistics {
        let (resent, subscriptions) = (self.outbox.resent(), self.interests.subscriptions());
        Statistics { resent, subscriptions, ..self.statistics }
    }

    /// The server that this node is linked to and its version, as it says.
    pub fn server(&self) -> Option<(String, &str)> {
        match &self.state {
            State::Linked(link) => Some((link.server().to_string(), link.version())),
            _ => None,
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// There is something to write, or to tell.
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn connect(&mut self) {
        let mut servers = self.config.servers.clone();
        servers.extend(self.told.iter().filter(|it| !self.config.servers.contains(it)).cloned());
        self.random.shuffle(&mut servers);
        let task = connect::connect(Arc::clone(&self.config), servers, self.name.clone());
        self.state = State::Connecting(self.runtime.spawn(task));
    }

    /// A server has answered: everything that is wanted is subscribed to, and what waits is sent.
    fn link(&mut self, established: Established) {
        self.statistics.links += 1;
        self.sessions += 1;
        self.told.clone_from(&established.told);
        let mut link = Link::new(established, self.now_ms());
        self.interests.link(link.out());
        link.changed(self.generation);
        let ping = link.next_ping();
        self.outbox.link(ping, link.out());
        link.published_many(self.outbox.len());
        self.state = State::Linked(Box::new(link));
    }

    /// There is no link: what there was is dropped, and another is tried later.
    fn fail(&mut self, down: Down) {
        let now_ms = self.now_ms();
        if let State::Linked(link) = &self.state
            && now_ms.saturating_sub(link.since_ms()) >= GOOD_LINK.as_millis() as u64
        {
            self.failures = 0;
        }
        self.interests.unlink();
        self.outbox.unlink();
        self.state = State::Waiting;
        let delay = backoff::delay(self.failures, &mut self.random);
        self.failures = self.failures.saturating_add(1);
        self.sleep_until(now_ms + delay.as_millis() as u64);
        if self.said.as_ref() != Some(&down) {
            self.said = Some(down.clone());
            self.events.push_back(Event::Down(down));
        }
    }

    fn sleep_until(&mut self, at_ms: u64) {
        let at = self.started + Duration::from_millis(at_ms);
        match &mut self.timer {
            Some(timer) => timer.as_mut().reset(at.into()),
            None => {
                let _runtime = self.runtime.enter();
                self.timer = Some(Box::pin(tokio::time::sleep_until(at.into())));
            }
        }
    }

    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.timer {
            Some(timer) => timer.as_mut().poll(context),
            None => Poll::Pending,
        }
    }

    /// Goes on as far as it goes; ready with an event, or when something is in `events`.
    fn turn(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        match &mut self.state {
            State::Idle => Poll::Pending,
            State::Waiting => {
                std::task::ready!(self.poll_timer(context));
                self.connect();
                Poll::Ready(None)
            }
            State::Connecting(task) => {
                match std::task::ready!(Pin::new(task).poll(context)) {
                    Ok(Ok(established)) => self.link(established),
                    Ok(Err(down)) => self.fail(down),
                    Err(error) => self.fail(connect::broken(error.to_string())),
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
                Ok(Some(Said::Message(message))) => match self.interests.hear(&message) {
                    Some(space) => {
                        let stored = message.stored();
                        let envelope = message.into_payload();
                        let received = Received { space, envelope, stored, at_ms: 0 };
                        return Poll::Ready(Some(Event::Received(received)));
                    }
                    None => self.statistics.unwanted += 1,
                },
                Ok(Some(Said::TooLarge(sid))) => {
                    self.statistics.too_large += 1;
                    if let Some(interest) = self.interests.interest(sid) {
                        return Poll::Ready(Some(Event::Lost(vec![interest])));
                    }
                }
                Ok(Some(Said::Pong { ping, round_trip })) => {
                    self.statistics.round_trip = Some(round_trip);
                    self.round_trips.add(round_trip);
                    self.pong(ping);
                    return Poll::Ready(None);
                }
                Ok(Some(Said::Servers(told))) => self.told = told,
                Err(down) => {
                    self.fail(down);
                    return Poll::Ready(None);
                }
                Ok(None) => return self.turn_socket(context),
            }
        }
    }

    /// Everything that was read is done: writes and reads more.
    fn turn_socket(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let now_ms = self.now_ms();
        let State::Linked(link) = &mut self.state else { return Poll::Ready(None) };
        let ping = link.next_ping();
        if self.interests.tick(now_ms, ping, link.out()) {
            link.needs_ping();
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
        let next = link.next_tick_ms().min(self.interests.next_tick_ms().unwrap_or(u64::MAX));
        let due = self.started + Duration::from_millis(next.max(now_ms + 1));
        let is_late = self.timer.as_ref().is_none_or(|timer| timer.deadline() > due.into());
        if is_late || self.poll_timer(context).is_ready() {
            self.sleep_until(next.max(now_ms + 1));
            if self.poll_timer(context).is_ready() {
                return Poll::Ready(None);
            }
        }
        Poll::Pending
    }

    /// A PING was answered: everything that was said before it is at the engine.
    fn pong(&mut self, ping: u64) {
        let now_ms = self.now_ms();
        self.interests.pong(ping, now_ms);
        let has_room = self.outbox.pong(ping);
        let State::Linked(link) = &mut self.state else { return };
        if link.pong(ping) {
            self.said = None;
            let session = Session(self.sessions);
            self.events.push_back(Event::Up { session, kept: None });
        }
        if let Some(generation) = link.generation()
            && generation > self.in_force
        {
            self.in_force = generation;
            self.events.push_back(Event::InForce(Generation(generation)));
        }
        if has_room {
            self.events.push_back(Event::Room);
        }
    }
}

impl Adapter for NatsAdapter {
    fn start(&mut self, me: NodeId) {
        self.name = format!("simurgh {} {me}", self.config.name);
        self.connect();
        self.wake();
    }

    fn publish(&mut self, to: &Subject, envelope: Bytes) -> Result<(), Full> {
        if envelope.len() > ENVELOPE_BYTES_MAX {
            // The engine would end the link over it.
            self.statistics.refused_large += 1;
            return Ok(());
        }
        match &mut self.state {
            State::Linked(link) => {
                let bytes = envelope.len();
                let ping = link.next_ping();
                self.outbox.publish(to, envelope, Some((ping, link.out())))?;
                link.published(bytes);
            }
            _ => self.outbox.publish(to, envelope, None)?,
        }
        self.wake();
        Ok(())
    }

    fn store(
        &mut self,
        _to: &Subject,
        _id: &str,
        _age: Option<Duration>,
        _envelope: Bytes,
        ticket: Ticket,
    ) -> Result<(), Full> {
        if self.events.len() >= ANSWERS_MAX {
            return Err(Full);
        }
        let why =
            NotStored::Refused("this adapter keeps nothing: no topic of a cluster can".into());
        self.events.push_back(Event::NotStored { ticket, why });
        self.wake();
        Ok(())
    }

    fn interest(&mut self, changes: &[(Interest, Wanted)]) -> Generation {
        self.generation += 1;
        match &mut self.state {
            State::Linked(link) => {
                let ping = link.next_ping();
                self.interests.change(changes, ping, link.out());
                link.changed(self.generation);
            }
            _ => self.interests.change(changes, 0, &mut BytesMut::new()),
        }
        self.wake();
        Generation(self.generation)
    }

    fn purge(&mut self, _of: &Subject, _before: u64, ticket: Ticket) -> Result<(), Full> {
        if self.events.len() >= ANSWERS_MAX {
            return Err(Full);
        }
        let why = NotStored::Refused("this adapter keeps nothing".into());
        self.events.push_back(Event::Purged { ticket, why: Some(why) });
        self.wake();
        Ok(())
    }

    fn fetch(&mut self, _what: Fetch, ticket: Ticket) -> Result<(), Full> {
        if self.events.len() >= ANSWERS_MAX {
            return Err(Full);
        }
        self.events.push_back(Event::Fetched { ticket, kept: None });
        self.wake();
        Ok(())
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
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

    fn under_way(&self) -> usize {
        self.outbox.len()
    }

    fn measures(&self) -> Measures {
        let engine = self.server().map(|(server, version)| format!("{server}, NATS {version}"));
        let round_trip = self.statistics.round_trip.filter(|_| engine.is_some());
        Measures { engine, keeping: None, round_trip, round_trips: self.round_trips }
    }
}

impl Drop for NatsAdapter {
    fn drop(&mut self) {
        if let State::Connecting(task) = &self.state {
            task.abort();
        }
    }
}

/// Neither credentials nor what is under way.
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

/// An error of the link's, in the words of the system.
pub(crate) fn of_io(error: &io::Error) -> Down {
    connect::broken(error.to_string())
}
