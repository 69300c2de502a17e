//! Behind which number nothing of a topic was removed that nobody has seen.
//!
//! Of a topic of which the engine has little, or nothing, there may have been more: what has a
//! lower number than the first that is there may be missing. That is true and says little: a client
//! that has heard everything, of a topic in which little is said, would be told on another node
//! that it has missed something.
//!
//! An engine removes of a topic what is older than its age; what is beyond its count, and then as
//! many are there as are wanted, or those have grown too old since; and what somebody wished to
//! forget, and then the wish is there, or has grown too old. So where fewer are there than are
//! wanted, and no wish, nothing was removed but what is too old. Behind which number nothing is,
//! the engine is asked: once for each of its logs and each age, whatever the topic. An engine that
//! removes for other reasons, its size being bounded, does not say.
//!
//! Its clock may be another's when a leader is: so it is asked for what is younger by a margin, and
//! the answer is used for half of that. What was removed by hand, or with a shorter age before that
//! of its pattern was changed, is not known of.

use std::collections::VecDeque;
use std::time::Duration;

use super::asks::Asked;
use super::follow::{Id, Stage};
use super::follows::{Follows, SECOND, stream_of};
use super::said::Retention;
use crate::adapter::{Fetch, Ticket};
use crate::subject::{Space, Subject};
use crate::time::Time;

const MILLISECOND: u64 = 1_000_000;
/// So much younger than a topic's age is what is asked for; or half of that age.
const MARGIN_MS: u64 = 60_000;
/// Clocks may differ by as much as half the margin of this.
const AGE_MS_MIN: u64 = 10_000;
/// What the engine has not said is asked for again after this.
const AGAIN_NS: u64 = 10 * SECOND;
/// A topic that is to begin waits so long for the answer.
const WAIT_NS: u64 = SECOND / 2;
/// Logs by ages of which it is remembered.
const KNOWN_MAX: usize = 256;

/// Of all logs.
#[derive(Debug, Default)]
pub(super) struct Floors {
    known: Vec<Known>,
    /// Which of them are to be asked for, with a subject of each one's log.
    asks: VecDeque<(usize, Subject)>,
    /// Topics that wait for an answer, and until when; the first are the first to end.
    waiting: VecDeque<(u64, Id)>,
}

/// Of one log, and one age.
#[derive(Debug)]
struct Known {
    stream: usize,
    age_ms: u64,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// It was asked for then, or is to be.
    Asked { at_ns: u64 },
    /// Behind this number nothing is too old; asked for then, and answered then by the wall clock.
    Behind { seq: u64, at_ns: u64, at_ms: u64 },
    /// The engine does not say; it is asked again then.
    Unsaid { until_ns: u64 },
}

/// How much younger it is asked for, in milliseconds.
const fn margin_ms(age_ms: u64) -> u64 {
    if age_ms / 2 < MARGIN_MS { age_ms / 2 } else { MARGIN_MS }
}

/// For how long an answer is used.
const fn good_for_ms(age_ms: u64) -> u64 {
    margin_ms(age_ms) / 2
}

impl Known {
    fn is_of(&self, stream: usize, age_ms: u64) -> bool {
        (self.stream, self.age_ms) == (stream, age_ms)
    }

    /// Whether it is to be asked for.
    fn is_due(&self, now_ns: u64) -> bool {
        match self.state {
            State::Asked { .. } => false,
            State::Behind { at_ns, .. } => {
                now_ns.saturating_sub(at_ns) >= good_for_ms(self.age_ms) * MILLISECOND
            }
            State::Unsaid { until_ns } => until_ns <= now_ns,
        }
    }
}

impl Follows {
    /// Has it asked, if a topic is about to begin of which it is not known; until when that is
    /// waited for.
    pub(super) fn want_floor(&mut self, at: u32, now_ns: u64) -> Option<u64> {
        let follow = self.table.get(at).filter(|it| it.stage == Stage::Filling)?;
        let (stream, age_ms) = (stream_of(&follow.name), whole_seconds(self.wants(follow)));
        if age_ms < AGE_MS_MIN {
            return None;
        }
        let subject = self.prefix.topic(Space::Store, &follow.name);
        let Floors { known, asks, .. } = &mut self.floors;
        let place = known.iter().position(|it| it.is_of(stream, age_ms));
        let place = match place {
            Some(place) => place,
            None if known.len() >= KNOWN_MAX => return None,
            None => {
                known.push(Known { stream, age_ms, state: State::Unsaid { until_ns: 0 } });
                known.len() - 1
            }
        };
        let found = known.get_mut(place)?;
        if let State::Asked { at_ns } = found.state {
            return Some(at_ns + WAIT_NS).filter(|it| *it > now_ns);
        }
        if !found.is_due(now_ns) {
            return None;
        }
        found.state = State::Asked { at_ns: now_ns };
        asks.push_back((place, subject));
        Some(now_ns + WAIT_NS)
    }

    /// Whether a topic has to wait for it.
    pub(super) fn awaits_floor(&mut self, id: Id, now_ns: u64) -> bool {
        let Some(at) = self.current(id) else { return false };
        let until_ns = self.want_floor(at, now_ns);
        self.floors.waiting.extend(until_ns.map(|it| (it, id)));
        until_ns.is_some()
    }

    /// The next question for it.
    pub(super) fn next_floor(&mut self, ticket: Ticket, now_ns: u64) -> Option<Fetch> {
        let (place, subject) = self.floors.asks.pop_front()?;
        let known = self.floors.known.get_mut(place)?;
        known.state = State::Asked { at_ns: now_ns };
        let age = Duration::from_millis(known.age_ms - margin_ms(known.age_ms));
        self.tickets.insert(ticket, Asked::Floor(place, subject.clone(), self.era));
        Some(Fetch::Since { subject, age })
    }

    /// The adapter has not taken the question.
    pub(super) fn floor_not_asked(&mut self, place: usize, subject: Subject) {
        self.floors.asks.push_front((place, subject));
    }

    /// The engine has said it, or has not.
    pub(super) fn floor_is(&mut self, ticket: Ticket, behind: Option<u64>, time: Time) {
        let Some(Asked::Floor(place, _, era)) = self.tickets.remove(&ticket) else { return };
        // Numbers of another epoch say nothing.
        let behind = behind.filter(|_| era == self.era);
        if let Some(known) = self.floors.known.get_mut(place) {
            known.state = match (known.state, behind) {
                (State::Asked { at_ns }, Some(seq)) => {
                    State::Behind { seq, at_ns, at_ms: time.unix_ms }
                }
                _ => State::Unsaid { until_ns: time.ns.saturating_add(AGAIN_NS) },
            };
        }
        self.end_floor_waits(u64::MAX);
    }

    /// Lets those go on that have waited long enough.
    pub(super) fn end_floor_waits(&mut self, now_ns: u64) {
        while let Some((_, id)) = self.floors.waiting.pop_front_if(|it| it.0 <= now_ns) {
            self.asks.push_back(id);
        }
    }

    /// When [`end_floor_waits`](Self::end_floor_waits) has something to do.
    pub(super) fn floor_waits_until_ns(&self) -> Option<u64> {
        self.floors.waiting.front().map(|it| it.0)
    }

    /// What is known of another epoch is of no use.
    pub(super) fn forget_floors(&mut self) {
        for known in &mut self.floors.known {
            if let State::Behind { .. } | State::Unsaid { .. } = known.state {
                known.state = State::Unsaid { until_ns: 0 };
            }
        }
    }

    /// Behind which number nothing of a topic is too old to be there, if that is known now.
    pub(super) fn floor_of(&self, at: u32, time: Time) -> Option<u64> {
        let follow = self.table.get(at)?;
        let (stream, age_ms) = (stream_of(&follow.name), whole_seconds(self.wants(follow)));
        let known = self.floors.known.iter().find(|it| it.is_of(stream, age_ms))?;
        let State::Behind { seq, at_ns, at_ms } = known.state else { return None };
        // A machine that stood still counts no time of its own.
        let good_for_ms = good_for_ms(age_ms);
        let is_good = time.ns.saturating_sub(at_ns) < good_for_ms * MILLISECOND
            && (at_ms..at_ms.saturating_add(good_for_ms)).contains(&time.unix_ms);
        is_good.then_some(seq)
    }
}

/// The age that the engine has with what is stored of a topic.
const fn whole_seconds(wants: Retention) -> u64 {
    wants.age_ms / 1_000 * 1_000
}
