//! The state that all handles of a test server share: the driver, and the messages of each socket.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use simurgh::driver::{Driver, DriverError, Event, MessageRef, Options, SocketId, What};
use simurgh::{Activity, Endpoint, Handle};

/// How long calls without a timeout wait: for the reply to a join, or space in a mailbox.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(5);
/// As in Phoenix.
const ASSERT: Duration = Duration::from_millis(100);
/// How often a waiting assertion releases the lock.
const SLICE: Duration = Duration::from_millis(5);
/// How many taken messages are kept for later failure messages.
const KEPT: usize = 1000;

pub(crate) struct Shared {
    state: Mutex<State>,
    pub(crate) endpoint: Endpoint,
    /// The path that `connect` uses.
    pub(crate) path: String,
    handle: Handle,
    /// References to the server while the application has no handle, and tasks while it has none.
    holders: usize,
    tasks: usize,
}

pub(crate) struct State {
    pub(crate) driver: Driver,
    pub(crate) mailboxes: Vec<Mailbox>,
    places: HashMap<SocketId, usize>,
    pub(crate) asked: HashMap<MessageRef, Box<str>>,
    /// The test's own socket, which receives broadcasts, and its index.
    pub(crate) listener: Option<(usize, SocketId)>,
    pub(crate) topics: HashSet<Box<str>>,
    pub(crate) assert_time: Duration,
    pub(crate) refute_time: Duration,
    pub(crate) numbered: usize,
}

pub(crate) struct Mailbox {
    /// Its number in failure messages; `None` for the test's own socket.
    pub(crate) number: Option<usize>,
    entries: VecDeque<Entry>,
    dropped: usize,
}

pub(crate) struct Entry {
    pub(crate) what: What,
    /// An assertion has found it; other assertions skip it.
    pub(crate) is_taken: bool,
}

impl Shared {
    pub(crate) fn new(endpoint: Endpoint, options: Options, path: String) -> Self {
        let handle = endpoint.handle();
        let Activity { tasks, holders, .. } = handle.activity();
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
        // One more: the driver's own.
        Self { state: Mutex::new(state), endpoint, path, handle, holders: holders + 1, tasks }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked with the lock has failed its own test; the state is still valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `look` on the received messages, again when more arrive, until it returns something or
    /// the time is over.
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

    /// Retries while the server is congested.
    pub(crate) fn ask<T>(
        &self,
        mut ask: impl FnMut(&mut Driver) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let end = Instant::now() + WAIT_MAX;
        loop {
            let mut state = self.lock();
            match ask(&mut state.driver) {
                Err(DriverError::Congested) if Instant::now() < end => state.wait(SLICE),
                other => return other,
            }
        }
    }

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

    /// Whether nothing more can be received unless the test acts: the shards are idle, no task runs
    /// on tokio, and the application holds no handle of a socket or a channel.
    pub(crate) fn is_quiet(&self, time: Duration) -> bool {
        let is_nobody = |now: &Activity| now.tasks <= self.tasks && now.holders <= self.holders;
        let now = self.handle.activity();
        !now.is_draining && is_nobody(&now) && self.is_done(time, is_nobody)
    }

    /// Whether each shard has done its work and received no new mail meanwhile. `is_nobody` is
    /// checked before the mailboxes: a holder that is gone by then has posted its mail already.
    fn is_done(&self, time: Duration, is_nobody: impl Fn(&Activity) -> bool) -> bool {
        let began = Instant::now();
        let activity = || self.handle.activity();
        let before = activity().posted;
        match self.lock().driver.settle_within(time) {
            Ok(()) => {}
            Err(DriverError::Ended) => return true,
            Err(_) => return false,
        }
        // A shard releases the bytes of this round's own mail right after its answer.
        let is_empty = || {
            let now = activity();
            now.queued_bytes == 0 && is_nobody(&now)
        };
        let mut spins = (0..SPINS).take_while(|_| began.elapsed() <= time);
        let is_empty = spins.any(|_| is_empty() || yield_now());
        is_empty && before.iter().zip(activity().posted).all(|(before, now)| now == before + 1)
    }
}

/// How often to check for a shard to release those bytes.
const SPINS: usize = 100;

fn yield_now() -> bool {
    std::thread::yield_now();
    false
}

impl State {
    pub(crate) fn opened(&mut self, socket: SocketId, is_listener: bool) -> usize {
        let place = self.mailboxes.len();
        let number = (!is_listener).then(|| {
            self.numbered += 1;
            self.numbered
        });
        self.places.insert(socket, place);
        self.mailboxes.push(Mailbox { number, entries: VecDeque::new(), dropped: 0 });
        place
    }

    pub(crate) fn take_in(&mut self) {
        while let Some(event) = self.driver.try_recv() {
            self.file(event);
        }
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        let began = Instant::now();
        match self.driver.recv_timeout(time) {
            Some(event) => self.file(event),
            // If the server has ended, `recv_timeout` returns at once.
            None => std::thread::sleep(time.saturating_sub(began.elapsed())),
        }
    }

    fn file(&mut self, Event { socket, what }: Event) {
        // Replies to the test's own pushes are not kept.
        let mailbox = self.places.get(&socket).and_then(|place| self.mailboxes.get_mut(*place));
        if let Some(mailbox) = mailbox {
            mailbox.entries.push_back(Entry { what, is_taken: false });
        }
    }
}

impl Mailbox {
    pub(crate) fn entries(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.iter().enumerate().map(|(at, entry)| (self.dropped + at + 1, entry))
    }

    pub(crate) fn left(&self) -> impl Iterator<Item = (usize, &What)> {
        self.entries().filter(|(_, entry)| !entry.is_taken).map(|(n, entry)| (n, &entry.what))
    }

    pub(crate) fn take(&mut self, number: usize) {
        if let Some(entry) = self.entries.get_mut(number.wrapping_sub(self.dropped + 1)) {
            entry.is_taken = true;
        }
        while self.entries.len() > KEPT && self.entries.front().is_some_and(|it| it.is_taken) {
            self.entries.pop_front();
            self.dropped += 1;
        }
    }

    pub(crate) fn take_all(&mut self) -> Vec<What> {
        let left = self.entries.iter_mut().filter(|entry| !entry.is_taken);
        left.map(|entry| {
            entry.is_taken = true;
            entry.what.clone()
        })
        .collect()
    }

    /// Whether the socket is closed, after which it receives nothing.
    pub(crate) fn is_closed(&self) -> bool {
        self.entries.back().is_some_and(|entry| matches!(entry.what, What::Closed { .. }))
    }

    pub(crate) fn name(&self) -> String {
        self.number.map_or_else(|| "the test".to_owned(), |number| format!("socket {number}"))
    }
}
