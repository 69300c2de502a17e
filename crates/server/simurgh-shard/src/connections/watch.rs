//! The state that the parts of one HTTP connection share: the gate sets what it waits for and since
//! when, the task around hyper reads whose time is up, the service how to answer.
//!
//! There is no timer per request. The connection's task has one, which it sets again only when it
//! fires. No wait can be over before the shortest limit has passed since it began, so it is enough
//! to check that often.

use std::sync::LazyLock;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering::Relaxed,
};
use std::task::Context;
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;

use super::Side;
use crate::config::HttpConfig;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Wait {
    /// Nothing: the server is at work.
    Nothing,
    /// The first byte of the next request.
    Request,
    /// The rest of a head.
    Head,
    /// More of a body.
    Body,
    /// Nothing more, since it has shut its side: only its reading the answer shows that it still
    /// exists.
    Sign,
}

const WAITS: [Wait; 5] = [Wait::Nothing, Wait::Request, Wait::Head, Wait::Body, Wait::Sign];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overdue {
    /// No further request came: the connection is closed without an answer.
    Idle,
    /// A head did not end, or a body came too slowly: 408.
    Request,
    /// The client does not read its answer: nothing more can be sent.
    Answer,
}

/// The state of one connection, used by its task; other threads only read how long it has been
/// idle, and ask it to close. Times are those of `now_ms`.
#[derive(Debug, Default)]
pub struct Watch {
    wait: AtomicU8,
    /// When that wait began.
    since_ms: AtomicU64,
    /// When a write began to wait; 0 if none waits.
    write_since_ms: AtomicU64,
    /// Of the current answer; bytes count from the first wait on.
    answer: Progress,
    /// Of the current body.
    body: Progress,
    /// Heads given to hyper, stand-ins for refused ones included.
    heads: AtomicU64,
    /// Requests given to the service, and those whose answers are complete.
    requests: AtomicU64,
    answered: AtomicU64,
    /// The status that the last head is refused with; 0 if it is not refused.
    refusal: AtomicU16,
    /// Bytes after the last head are not trusted.
    is_last: AtomicBool,
    /// The status that the current request is given up with; 0 if it is not.
    given_up: AtomicU16,
    /// Bytes of bodies and answers in memory, and since when there are any.
    held: [AtomicUsize; 2],
    held_since_ms: AtomicU64,
    /// Set by other threads: it closes at once, since it holds too much memory.
    is_shed: AtomicBool,
    /// Set by other threads: it closes when it is idle.
    has_to_leave: AtomicBool,
    task: AtomicWaker,
}

/// How far a body or an answer has come: its bytes, and how long its client was waited for.
#[derive(Debug, Default)]
struct Progress {
    bytes: AtomicU64,
    waited_ms: AtomicU64,
}

impl Progress {
    fn begin(&self) {
        self.bytes.store(0, Relaxed);
        self.waited_ms.store(0, Relaxed);
    }

    fn add(&self, bytes: usize) {
        self.bytes.store(self.bytes.load(Relaxed).saturating_add(bytes as u64), Relaxed);
    }

    fn add_wait(&self, ms: u64) {
        self.waited_ms.store(self.waited_ms.load(Relaxed) + ms, Relaxed);
    }

    /// Remaining time, of which each byte earns some; `ms` is how long the present wait takes.
    fn left(&self, limit: Duration, limits: &HttpConfig, ms: u64) -> Option<Duration> {
        let bytes = self.bytes.load(Relaxed);
        let earned_ms = bytes.saturating_mul(1_000) / limits.body_rate_min.max(1);
        let limit = limit.saturating_add(Duration::from_millis(earned_ms));
        left(limit, self.waited_ms.load(Relaxed) + ms)
    }
}

fn left(limit: Duration, waited_ms: u64) -> Option<Duration> {
    limit.checked_sub(Duration::from_millis(waited_ms)).filter(|left| !left.is_zero())
}

/// Milliseconds since some moment of this process.
fn now_ms() -> u64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(BEGAN.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Watch {
    /// Starts a wait for the client. A wait that continues keeps its start.
    pub fn wait_for(&self, what: Wait) {
        if self.wait() != what {
            self.wait.store(what as u8, Relaxed);
            self.since_ms.store(now_ms(), Relaxed);
        }
    }

    pub fn body_came(&self, bytes: usize) {
        if self.wait() == Wait::Body {
            self.body.add_wait(now_ms().saturating_sub(self.since_ms.load(Relaxed)));
            self.wait.store(Wait::Nothing as u8, Relaxed);
        }
        self.body.add(bytes);
    }

    /// A head is complete. `is_last`: bytes after this request are not trusted.
    pub fn head_came(&self, is_last: bool) {
        self.wait.store(Wait::Nothing as u8, Relaxed);
        self.body.begin();
        self.answer.begin();
        self.heads.store(self.heads.load(Relaxed) + 1, Relaxed);
        if is_last {
            self.is_last.store(true, Relaxed);
        }
    }

    /// The last head stands in for one that is refused.
    pub fn refuse(&self, status: u16) {
        self.refusal.store(status, Relaxed);
        self.head_came(true);
    }

    /// A write was taken, at least in part, or has to wait. A client cannot be expected to send the
    /// next request while it receives an answer, so that wait begins again.
    pub fn wrote(&self, taken: Option<usize>) {
        let since_ms = self.write_since_ms.load(Relaxed);
        if let Some(bytes) = taken {
            if since_ms != 0 {
                self.answer.add_wait(now_ms().saturating_sub(since_ms));
                self.write_since_ms.store(0, Relaxed);
            }
            if self.answer.waited_ms.load(Relaxed) > 0 {
                self.answer.add(bytes);
            }
            self.wait.store(Wait::Nothing as u8, Relaxed);
        } else if since_ms == 0 {
            self.write_since_ms.store(now_ms().max(1), Relaxed);
        }
    }

    pub fn is_writing(&self) -> bool {
        self.write_since_ms.load(Relaxed) != 0
    }

    /// The current request is refused with this status, whatever it waits for.
    pub fn give_up(&self, status: u16) {
        self.given_up.store(status, Relaxed);
        self.is_last.store(true, Relaxed);
    }

    /// The status of [`give_up`](Self::give_up).
    pub fn given_up(&self) -> Option<u16> {
        Some(self.given_up.load(Relaxed)).filter(|status| *status != 0)
    }

    pub(super) fn hold(&self, side: Side, bytes: usize) {
        if self.held_of(side).fetch_add(bytes, Relaxed) == 0 {
            self.held_since_ms.store(now_ms(), Relaxed);
        }
    }

    pub(super) fn release(&self, side: Side, bytes: usize) {
        self.held_of(side).fetch_sub(bytes, Relaxed);
    }

    /// Bytes in memory of this side, and how long there have been any, ms. From any thread.
    pub(super) fn held(&self, side: Side) -> (usize, u64) {
        let since_ms = self.held_since_ms.load(Relaxed);
        (self.held_of(side).load(Relaxed), now_ms().saturating_sub(since_ms))
    }

    fn held_of(&self, side: Side) -> &AtomicUsize {
        let [inbound, outbound] = &self.held;
        match side {
            Side::Inbound => inbound,
            Side::Outbound => outbound,
        }
    }

    /// Its memory is needed: a request is refused with 503, and an unread answer is cut off. From
    /// any thread.
    pub(super) fn shed(&self, side: Side) {
        if side == Side::Inbound {
            self.give_up(503);
        }
        self.is_shed.store(true, Relaxed);
        self.task.wake();
    }

    pub fn is_shed(&self) -> bool {
        self.is_shed.load(Relaxed)
    }

    /// Whether its answer is cut off: nothing more is written.
    pub fn is_cut_off(&self) -> bool {
        self.is_shed() && self.given_up().is_none()
    }

    /// Sets the task that is woken when the connection has to close.
    pub fn is_watched_by(&self, context: &Context<'_>) {
        self.task.register(context.waker());
    }

    /// Its place is needed: it closes after the current answer, or at once without one. From any
    /// thread.
    pub fn ask_to_leave(&self) {
        self.has_to_leave.store(true, Relaxed);
        self.task.wake();
    }

    pub fn has_to_leave(&self) -> bool {
        self.has_to_leave.load(Relaxed)
    }

    /// When it began to wait for its next request, unless it is already closing. From any
    /// thread.
    pub fn idle_since_ms(&self) -> Option<u64> {
        (self.is_idle() && !self.has_to_leave()).then(|| self.since_ms.load(Relaxed))
    }

    /// Whether the connection only waits for the next request.
    pub fn is_idle(&self) -> bool {
        self.wait() == Wait::Request && !self.is_answering()
    }

    /// The service received a request; returns its number, from 1 on.
    pub fn request_came(&self) -> u64 {
        let number = self.requests.load(Relaxed) + 1;
        self.requests.store(number, Relaxed);
        number
    }

    pub fn answered(&self) {
        self.answered.store(self.answered.load(Relaxed) + 1, Relaxed);
        self.wait.store(Wait::Nothing as u8, Relaxed);
    }

    pub fn is_answering(&self) -> bool {
        self.requests.load(Relaxed) > self.answered.load(Relaxed)
    }

    /// The status to refuse this request with, if it is refused.
    pub fn refusal_of(&self, number: u64) -> Option<u16> {
        let refusal = self.refusal.load(Relaxed);
        (refusal != 0 && number == self.heads.load(Relaxed)).then_some(refusal)
    }

    pub fn is_last(&self, number: u64) -> bool {
        self.is_last.load(Relaxed) && number == self.heads.load(Relaxed)
    }

    /// The overdue action, or when to check again. `idle_limit` is the present limit of idle time.
    pub fn look(&self, limits: &HttpConfig, idle_limit: Duration) -> Result<Duration, Overdue> {
        let shortest = limits.shortest_timeout();
        let now_ms = now_ms();
        let write_left = match self.write_since_ms.load(Relaxed) {
            0 => shortest,
            since_ms => {
                let (ms, limit) = (now_ms.saturating_sub(since_ms), limits.write_timeout);
                let silence = left(limit, ms).ok_or(Overdue::Answer)?;
                silence.min(self.answer.left(limit, limits, ms).ok_or(Overdue::Answer)?)
            }
        };
        let ms = now_ms.saturating_sub(self.since_ms.load(Relaxed));
        let read_left = match self.wait() {
            Wait::Nothing => shortest,
            Wait::Request | Wait::Head if self.is_answering() => shortest,
            Wait::Request => left(idle_limit, ms).ok_or(Overdue::Idle)?,
            Wait::Head => left(limits.head_timeout, ms).ok_or(Overdue::Request)?,
            Wait::Body => {
                self.body.left(limits.body_timeout, limits, ms).ok_or(Overdue::Request)?
            }
            Wait::Sign => left(limits.idle_timeout, ms).ok_or(Overdue::Answer)?,
        };
        Ok(shortest.min(write_left).min(read_left))
    }

    fn wait(&self) -> Wait {
        let wait = usize::from(self.wait.load(Relaxed));
        WAITS.get(wait).copied().unwrap_or(Wait::Nothing)
    }

    #[cfg(test)]
    pub(super) fn be_idle_since(&self, ms: u64) {
        self.wait.store(Wait::Request as u8, Relaxed);
        self.since_ms.store(ms, Relaxed);
    }
}
