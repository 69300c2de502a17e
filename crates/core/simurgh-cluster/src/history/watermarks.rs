//! From which number on a topic is complete, if the broker may have removed messages.
//!
//! A topic of which the broker has little or nothing may have had more: every number below the
//! first that is there may be missing. That is true but too careful: a client that has received
//! everything of a quiet topic would be told on another node that it missed something.
//!
//! A broker removes messages that are older than the topic's age; those beyond its count, and then
//! as many are there as are wanted, or those have grown too old since; and purged ones, and then
//! the purge is there, or has grown too old. So if fewer messages are there than are wanted, and no
//! purge, only messages that are too old were removed. The broker is asked behind which number
//! nothing is too old: once for each of its streams and each age, whatever the topic. A broker
//! that also removes messages to bound its size does not answer.
//!
//! A new leader of the stream may have another clock: so a margin is taken off the requested age,
//! and the answer is used for half of that. What was removed by hand, or with a shorter age before
//! the age of its pattern was changed, is not seen.

use core::time::Duration;

use super::topic::TopicId;
use crate::subject::Subject;
use crate::time::{MILLISECOND, SECOND, Time};
use simurgh_data::prelude::*;

/// The margin below a topic's age, unless half of the age is less.
const MARGIN_MS: u64 = 60_000;
/// The shortest requested age: clocks may differ by half of its margin.
const AGE_MS_MIN: u64 = 10_000;
/// How long to wait before asking a broker again that did not answer.
const RETRY_NS: u64 = 10 * SECOND;
/// How long a topic waits for the answer before it begins without.
const WAIT_NS: u64 = SECOND / 2;
/// The most remembered watermarks.
const KNOWN_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Watermarks {
    known: Vec<Watermark>,
    /// Places in `known` to request, each with a subject of its stream.
    queue: VecDeque<(usize, Subject)>,
    /// Topics that wait for an answer, and until when, earliest first.
    waiting: VecDeque<(u64, TopicId)>,
}

#[derive(Debug)]
struct Watermark {
    stream: usize,
    age_ms: u64,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// When it was requested, or is about to be.
    Requested { at_ns: u64 },
    /// Nothing behind this number is too old; with the times of request and answer.
    Behind { seq: u64, at_ns: u64, at_ms: u64 },
    /// The broker has not answered; it is asked again at this time.
    Unknown { until_ns: u64 },
}

const fn margin_ms(age_ms: u64) -> u64 {
    if age_ms / 2 < MARGIN_MS { age_ms / 2 } else { MARGIN_MS }
}

/// For how long an answer is used.
const fn good_for_ms(age_ms: u64) -> u64 {
    margin_ms(age_ms) / 2
}

impl Watermark {
    fn is_of(&self, stream: usize, age_ms: u64) -> bool {
        (self.stream, self.age_ms) == (stream, age_ms)
    }

    fn is_due(&self, now_ns: u64) -> bool {
        match self.state {
            State::Requested { .. } => false,
            State::Behind { at_ns, .. } => {
                now_ns.saturating_sub(at_ns) >= good_for_ms(self.age_ms) * MILLISECOND
            }
            State::Unknown { until_ns } => until_ns <= now_ns,
        }
    }
}

impl Watermarks {
    /// Queues a request unless the watermark is known. Returns until when to wait for the answer.
    pub(super) fn request(
        &mut self,
        (stream, age_ms): (usize, u64),
        subject: impl FnOnce() -> Subject,
        now_ns: u64,
    ) -> Option<u64> {
        if age_ms < AGE_MS_MIN {
            return None;
        }
        let place = match self.known.iter().position(|it| it.is_of(stream, age_ms)) {
            Some(place) => place,
            None if self.known.len() >= KNOWN_MAX => return None,
            None => {
                let state = State::Unknown { until_ns: 0 };
                self.known.push(Watermark { stream, age_ms, state });
                self.known.len() - 1
            }
        };
        let found = self.known.get_mut(place)?;
        if let State::Requested { at_ns } = found.state {
            return Some(at_ns + WAIT_NS).filter(|it| *it > now_ns);
        }
        if !found.is_due(now_ns) {
            return None;
        }
        found.state = State::Requested { at_ns: now_ns };
        self.queue.push_back((place, subject()));
        Some(now_ns + WAIT_NS)
    }

    pub(super) fn wait(&mut self, until_ns: u64, id: TopicId) {
        self.waiting.push_back((until_ns, id));
    }

    /// The next request: its place, a subject of its stream, and the age.
    pub(super) fn next(&mut self, now_ns: u64) -> Option<(usize, Subject, Duration)> {
        let (place, subject) = self.queue.pop_front()?;
        let found = self.known.get_mut(place)?;
        found.state = State::Requested { at_ns: now_ns };
        let age = Duration::from_millis(found.age_ms - margin_ms(found.age_ms));
        Some((place, subject, age))
    }

    /// Queues a request again that the adapter did not take.
    pub(super) fn put_back(&mut self, place: usize, subject: Subject) {
        self.queue.push_front((place, subject));
    }

    pub(super) fn answered(&mut self, place: usize, behind: Option<u64>, time: Time) {
        let Some(found) = self.known.get_mut(place) else { return };
        found.state = match (found.state, behind) {
            (State::Requested { at_ns }, Some(seq)) => {
                State::Behind { seq, at_ns, at_ms: time.unix_ms }
            }
            _ => State::Unknown { until_ns: time.ns.saturating_add(RETRY_NS) },
        };
    }

    pub(super) fn pop_waiting(&mut self, now_ns: u64) -> Option<TopicId> {
        self.waiting.pop_front_if(|it| it.0 <= now_ns).map(|(_, id)| id)
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.waiting.front().map(|it| it.0)
    }

    /// Forgets the numbers, which are of another epoch.
    pub(super) fn forget(&mut self) {
        for it in &mut self.known {
            if let State::Behind { .. } | State::Unknown { .. } = it.state {
                it.state = State::Unknown { until_ns: 0 };
            }
        }
    }

    pub(super) fn get(&self, (stream, age_ms): (usize, u64), time: Time) -> Option<u64> {
        let found = self.known.iter().find(|it| it.is_of(stream, age_ms))?;
        let State::Behind { seq, at_ns, at_ms } = found.state else { return None };
        // The monotonic clock may stop while the machine sleeps.
        let good_for_ms = good_for_ms(age_ms);
        let is_good = time.ns.saturating_sub(at_ns) < good_for_ms * MILLISECOND
            && (at_ms..at_ms.saturating_add(good_for_ms)).contains(&time.unix_ms);
        is_good.then_some(seq)
    }
}
