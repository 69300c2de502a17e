//! What all handles of one test server share: the driver, and what each socket has heard.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use simurgh::driver::{Driver, Error, Event, MessageRef, Options, SocketId, What};
use simurgh::{Activity, Endpoint, Handle};
use simurgh_proto::message::Payload;

/// How long is waited for what has no time of its own: the reply to a join, room in a mailbox.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(5);
/// Asserts wait so long, unless they are told otherwise; as in Phoenix.
const ASSERT: Duration = Duration::from_millis(100);
/// The lock is given back so often while something is waited for.
const SLICE: Duration = Duration::from_millis(5);
/// What was taken is kept for the failure messages of later asserts, but not beyond so many.
const KEPT: usize = 1000;

/// A server under test, and its sockets.
pub(crate) struct Shared {
    state: Mutex<State>,
    pub(crate) endpoint: Endpoint,
    /// Where `connect` connects to.
    pub(crate) path: String,
    holders: Holders,
}

/// Knows whether anybody but the server itself could say something to a socket.
struct Holders {
    handle: Handle,
    /// Of the server while nobody else has a handle.
    references: usize,
    tasks: usize,
}

pub(crate) struct State {
    pub(crate) driver: Driver,
    pub(crate) mailboxes: Vec<Mailbox>,
    places: HashMap<SocketId, usize>,
    /// Which event each message was that a test sent.
    pub(crate) asked: HashMap<MessageRef, Box<str>>,
    /// The test's own socket, which receives broadcasts, and on which topics.
    pub(crate) listener: Option<usize>,
    pub(crate) topics: HashSet<Box<str>>,
    pub(crate) assert_time: Duration,
    pub(crate) refute_time: Duration,
    numbered: usize,
}

/// What one socket has received, in order.
pub(crate) struct Mailbox {
    pub(crate) socket: SocketId,
    /// As it is called in messages; none for the test's own.
    pub(crate) number: Option<usize>,
    entries: VecDeque<Entry>,
    /// How many are not kept any more.
    dropped: usize,
}

pub(crate) struct Entry {
    pub(crate) what: What,
    /// An assertion has found it; others pass it over.
    pub(crate) is_taken: bool,
}

impl Shared {
    pub(crate) fn new(endpoint: Endpoint, options: Options, path: String) -> Self {
        let handle = endpoint.handle();
        let Activity { tasks, holders, .. } = handle.activity();
        // And the driver's own.
        let holders = Holders { handle, references: holders + 1, tasks };
        let driver = Driver::with(&endpoint, options);
        let state = State {
            driver,
            mailboxes: Vec::new(),
            places: HashMap::new(),
            asked: HashMap::new(),
            listener: None,
            topics: HashSet::new(),
            assert_time: ASSERT,
            refute_time: ASSERT,
            numbered: 0,
        };
        Self { state: Mutex::new(state), endpoint, path, holders }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Whoever panicked with it has failed its test; the others' handles are as good as before.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at what was received, and again whenever there is more, until `look` has found
    /// something or time is over.
    pub(crate) fn look<T>(
        &self,
        time: Duration,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let end = Instant::now() + time;
        loop {
            let mut state = self.lock();
            state.take_in();
            if let Some(found) = look(&mut state) {
                return Some(found);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state.wait(left.min(SLICE));
        }
    }

    /// Asks something of the driver, again while too much is under way.
    pub(crate) fn ask<T>(
        &self,
        mut ask: impl FnMut(&mut Driver) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let end = Instant::now() + WAIT_MAX;
        loop {
            let mut state = self.lock();
            match ask(&mut state.driver) {
                Err(Error::Congested) if Instant::now() < end => state.wait(SLICE),
                other => return other,
            }
        }
    }

    /// Waits until the shards have nothing under way; whether that came in time.
    pub(crate) fn settle(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if self.is_done(left, |_| true) {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }

    /// Whether nothing can be received any more unless the test does something: the shards have
    /// nothing under way, no work is under way on tokio, and nobody has a handle with which a
    /// socket or a channel is reached.
    pub(crate) fn is_quiet(&self, time: Duration) -> bool {
        let is_nobody = |now: &Activity| self.holders.is_nobody(now);
        let now = self.holders.handle.activity();
        !now.is_draining && is_nobody(&now) && self.is_done(time, is_nobody)
    }

    /// Goes round the shards: whether each has done all it was asked, and none was asked anything
    /// meanwhile. `is_nobody` is asked before that is looked at: whatever was posted by somebody
    /// who has gone was posted by then.
    fn is_done(&self, time: Duration, is_nobody: impl Fn(&Activity) -> bool) -> bool {
        let activity = || self.holders.handle.activity();
        let before = activity().posted;
        match self.lock().driver.settle_within(time) {
            Ok(()) => {}
            Err(Error::Ended) => return true,
            Err(_) => return false,
        }
        // What was asked for the round itself is given back right after its answer.
        let is_empty = || {
            let now = activity();
            now.queued_bytes == 0 && is_nobody(&now)
        };
        let is_empty = (0..SPINS).any(|_| is_empty() || yield_now());
        is_empty && before.iter().zip(activity().posted).all(|(before, now)| now == before + 1)
    }
}

/// Looks at a shard that is about to give back what a round was charged with.
const SPINS: usize = 100;

/// Always false.
fn yield_now() -> bool {
    std::thread::yield_now();
    false
}

impl Holders {
    fn is_nobody(&self, now: &Activity) -> bool {
        now.tasks <= self.tasks && now.holders <= self.references
    }
}

impl State {
    /// A socket was opened; its place among the mailboxes.
    pub(crate) fn opened(&mut self, socket: SocketId, is_listener: bool) -> usize {
        let place = self.mailboxes.len();
        let number = (!is_listener).then(|| {
            self.numbered += 1;
            self.numbered
        });
        self.places.insert(socket, place);
        self.mailboxes.push(Mailbox { socket, number, entries: VecDeque::new(), dropped: 0 });
        place
    }

    /// Takes what is there into the mailboxes.
    pub(crate) fn take_in(&mut self) {
        while let Some(event) = self.driver.try_recv() {
            self.file(event);
        }
    }

    /// Waits until something more is heard.
    pub(crate) fn wait(&mut self, time: Duration) {
        let began = Instant::now();
        match self.driver.recv_timeout(time) {
            Some(event) => self.file(event),
            // Of a server that has ended nothing is waited for there.
            None => std::thread::sleep(time.saturating_sub(began.elapsed())),
        }
    }

    fn file(&mut self, Event { socket, what }: Event) {
        // That the test listens is answered to nobody.
        let mailbox = self.places.get(&socket).and_then(|place| self.mailboxes.get_mut(*place));
        if let Some(mailbox) = mailbox {
            mailbox.entries.push_back(Entry { what, is_taken: false });
        }
    }

    pub(crate) fn mailbox(&self, place: usize) -> Option<&Mailbox> {
        self.mailboxes.get(place)
    }
}

impl Mailbox {
    /// What was received, with its number, and whether it was taken.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.iter().enumerate().map(|(at, entry)| (self.dropped + at + 1, entry))
    }

    /// What no assertion has taken.
    pub(crate) fn left(&self) -> impl Iterator<Item = (usize, &What)> {
        self.entries().filter(|(_, entry)| !entry.is_taken).map(|(n, entry)| (n, &entry.what))
    }

    /// Has an entry taken.
    pub(crate) fn take(&mut self, number: usize) {
        if let Some(entry) = self.entries.get_mut(number.wrapping_sub(self.dropped + 1)) {
            entry.is_taken = true;
        }
        while self.entries.len() > KEPT && self.entries.front().is_some_and(|it| it.is_taken) {
            self.entries.pop_front();
            self.dropped += 1;
        }
    }

    /// Has all of them taken.
    pub(crate) fn take_all(&mut self) -> Vec<What> {
        let left = self.entries.iter_mut().filter(|entry| !entry.is_taken);
        left.map(|entry| {
            entry.is_taken = true;
            entry.what.clone()
        })
        .collect()
    }

    /// Whether the socket is closed, of which nothing more is received; with which code.
    pub(crate) fn closed(&self) -> Option<Option<u16>> {
        match self.entries.back().map(|entry| &entry.what) {
            Some(What::Closed { code }) => Some(*code),
            _ => None,
        }
    }

    /// Whether the server has answered a message that it knows no such topic, or that there is no
    /// channel.
    pub(crate) fn is_unmatched(response: &Payload<'_>) -> bool {
        response.json().is_some_and(|text| text == r#"{"reason":"unmatched topic"}"#)
    }
}
