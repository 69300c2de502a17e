//! Waiting questions of a hook, and those in flight with an equal one waiting.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use crate::breaker::Breaker;
use crate::cache::Key;
use crate::config::HookConfig;
use crate::limiter::Limiter;
use crate::question::Question;
use crate::queue::{Queue, Ticket};
use crate::shared::ms;
use crate::verdict::{FailureKind, Verdict};

/// So many questions fail at once while shards may wait for the lock.
const LOST_MAX: usize = 256;
/// Longer timeouts make no sense, and the clock cannot tell all of them.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
/// Most memory of questions that wait or are in flight.
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// A question on its way.
pub(super) struct Pending {
    pub(super) question: Question,
    pub(super) data: Box<str>,
    pub(super) asked: SystemTime,
    /// It has its answer until then.
    pub(super) deadline_ms: u64,
    pub(super) equal: Option<Equal>,
    pub(super) reply: Box<dyn FnOnce(Verdict) + Send>,
}

/// Identifies equal questions.
pub(super) struct Equal {
    pub(super) key: Key,
    pub(super) user: Option<Box<str>>,
    pub(super) id: Option<Box<str>>,
    /// It is the first of its kind: later ones wait for its answer.
    pub(super) leads: bool,
}

/// A question that failed, and why.
pub(super) type Lost = (Box<Pending>, FailureKind);

/// A question to be sent now.
pub(super) struct Launch {
    pub(super) pending: Box<Pending>,
    pub(super) number: u64,
    pub(super) probe: bool,
}

pub(super) struct State {
    pub(super) queue: Queue<Box<Pending>>,
    pub(super) limiter: Limiter,
    pub(super) breaker: Breaker,
    /// Questions that wait for the answer of an equal one.
    followers: HashMap<Key, VecDeque<Ticket>>,
    /// The application asked for a pause until then.
    pub(super) paused_until_ms: u64,
    /// No question is accepted any more.
    pub(super) closed: bool,
    queue_max: usize,
    /// How long at most a question waits, how long it is in flight, and both.
    wait_ms: u64,
    answer_ms: u64,
    total_ms: u64,
}

impl State {
    pub(super) fn new(config: &HookConfig) -> Self {
        let [answer_ms, total_ms] = [config.answer_timeout, config.total_timeout]
            .map(|timeout| ms(timeout.min(TIMEOUT_MAX)));
        // A question that is sent has its whole time for an answer. Else an application that is a
        // little too slow for all would answer nobody: each question would be sent too late.
        let wait_ms = if total_ms > answer_ms { total_ms - answer_ms } else { total_ms };
        Self {
            queue: Queue::new(BYTES_MAX),
            limiter: Limiter::new(config.concurrency),
            breaker: Breaker::new(),
            followers: HashMap::new(),
            paused_until_ms: 0,
            closed: false,
            queue_max: config.queue,
            wait_ms,
            answer_ms,
            total_ms,
        }
    }

    /// Why no question of this client and size can wait now.
    pub(super) fn refusal(&self, client: IpAddr, bytes: usize, now_ms: u64) -> Option<FailureKind> {
        if self.closed {
            return Some(FailureKind::Failed);
        }
        if !self.breaker.admits(now_ms) {
            return Some(FailureKind::Open);
        }
        // Those behind them would wait in vain, and all fail at the same time.
        let count_max = self.queue_max.min(self.limiter.sends_within(self.wait_ms));
        let has_place = self.queue.has_place(client, bytes, count_max);
        (!has_place).then_some(FailureKind::Overloaded)
    }

    /// Lets a question wait, or returns it with the reason why it cannot.
    pub(super) fn admit(&mut self, mut pending: Box<Pending>, now_ms: u64) -> Result<Ticket, Lost> {
        let (client, bytes) = (pending.question.client, pending.bytes());
        if let Some(why) = self.refusal(client, bytes, now_ms) {
            return Err((pending, why));
        }
        pending.deadline_ms = now_ms + self.total_ms;
        let equal = pending.equal.as_mut().map(|equal| {
            equal.leads = !self.followers.contains_key(&equal.key);
            (equal.key, equal.leads)
        });
        let ticket = self.queue.push(pending, client, bytes, now_ms + self.wait_ms);
        match equal {
            Some((key, false)) => self.followers.entry(key).or_default().push_back(ticket),
            Some((key, true)) => {
                self.followers.insert(key, VecDeque::new());
                self.queue.make_ready(ticket);
            }
            None => self.queue.make_ready(ticket),
        }
        Ok(ticket)
    }

    /// Questions that leave now: those to send, and some of those that fail.
    pub(super) fn leaving(&mut self, now_ms: u64) -> (Vec<Launch>, Vec<Lost>) {
        let (mut launches, mut lost) = (Vec::new(), Vec::new());
        while lost.len() < LOST_MAX
            && let Some(late) = self.queue.pop_late(now_ms)
        {
            self.leave(&late);
            lost.push((late, FailureKind::Timeout));
        }
        while let Some(launch) = self.launch(now_ms) {
            launches.push(launch);
        }
        while lost.len() < LOST_MAX
            && !self.breaker.admits(now_ms)
            && let Some(pending) = self.queue.pop_late(u64::MAX)
        {
            self.leave(&pending);
            lost.push((pending, FailureKind::Open));
        }
        (launches, lost)
    }

    /// Takes the next question, if it may be sent now.
    pub(super) fn launch(&mut self, now_ms: u64) -> Option<Launch> {
        let may_send = self.paused_until_ms <= now_ms && self.breaker.admits(now_ms);
        if !may_send || !self.limiter.has_room() {
            return None;
        }
        let mut pending = self.queue.pop()?;
        pending.deadline_ms = pending.deadline_ms.min(now_ms + self.answer_ms);
        let (number, probe) = (self.limiter.send(), self.breaker.send());
        Some(Launch { pending, number, probe })
    }

    /// Removes a question whose client is gone, if it waits.
    pub(super) fn forget(&mut self, ticket: Ticket) -> Option<Box<Pending>> {
        let removed = self.queue.remove(ticket)?;
        self.leave(&removed);
        Some(removed)
    }

    /// Ends the wait for a question that led, answered or not.
    pub(super) fn end_lead(&mut self, pending: &Pending) -> VecDeque<Ticket> {
        let leading = pending.equal.as_ref().filter(|equal| equal.leads);
        leading.and_then(|equal| self.followers.remove(&equal.key)).unwrap_or_default()
    }

    /// When the next question may leave, if nothing else happens.
    pub(super) fn next_ms(&self, now_ms: u64) -> Option<u64> {
        let deadline_ms = self.queue.first_deadline_ms()?;
        if !self.breaker.admits(now_ms) {
            return Some(now_ms);
        }
        let resumes = self.queue.has_ready() && self.limiter.has_room();
        Some(if resumes { self.paused_until_ms.min(deadline_ms) } else { deadline_ms })
    }

    /// A question left the queue unsent: the first that followed it takes its place.
    fn leave(&mut self, pending: &Pending) {
        let Some(equal) = pending.equal.as_ref().filter(|equal| equal.leads) else { return };
        while let Some(ticket) = self.followers.get_mut(&equal.key).and_then(VecDeque::pop_front) {
            let next = self.queue.get_mut(ticket).and_then(|next| next.equal.as_mut());
            if let Some(next) = next {
                next.leads = true;
                self.queue.make_ready(ticket);
                return;
            }
        }
        self.followers.remove(&equal.key);
    }
}

impl Pending {
    /// An estimate of its memory.
    pub(super) fn bytes(&self) -> usize {
        let headers = self.question.forwarded.iter();
        let forwarded: usize = headers.map(|(name, value)| name.as_str().len() + value.len()).sum();
        512 + self.data.len() + forwarded
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::breaker::Fault;
    use crate::limiter::Signal;
    use crate::question::Kind;

    fn pending(key: u8) -> Box<Pending> {
        let equal = Equal { key: [key; 32], user: None, id: None, leads: false };
        let question = Question {
            kind: Kind::Join,
            client: Ipv4Addr::LOCALHOST.into(),
            forwarded: Arc::new([]),
            traceparent: None,
            cache: None,
        };
        Box::new(Pending {
            question,
            data: Box::default(),
            asked: SystemTime::UNIX_EPOCH,
            deadline_ms: 0,
            // Questions of the first key are not cached.
            equal: (key > 0).then_some(equal),
            reply: Box::new(drop),
        })
    }

    fn leads(pending: &Pending, key: Key) -> bool {
        pending.equal.as_ref().is_some_and(|equal| equal.leads && equal.key == key)
    }

    fn end(state: &mut State, now_ms: u64, launch: &Launch, failed: bool) {
        let signal = if failed { Signal::Congested } else { Signal::Answered };
        state.limiter.finish(launch.number, signal, Duration::ZERO);
        state.breaker.record(now_ms, failed.then_some(Fault::Silent), launch.probe);
        state.queue.release(launch.pending.question.client, launch.pending.bytes());
        for ticket in state.end_lead(&launch.pending) {
            state.queue.make_ready(ticket);
        }
    }

    proptest! {
        #[test]
        fn every_question_waits_for_a_reason_and_leaves_once(
            fails in any::<bool>(),
            steps in prop::collection::vec((0..8_u8, 0..3_u8, 0..40_u64), 0..400),
        ) {
            let url = "http://app".parse().unwrap();
            let mut state = State::new(&HookConfig {
                queue: 20,
                answer_timeout: Duration::from_millis(100),
                total_timeout: Duration::from_millis(200),
                ..HookConfig::new("app", url)
            });
            let (mut now_ms, mut launched) = (0, Vec::<Launch>::new());
            let (mut admitted, mut left) = (0, 0);
            for (step, key, time) in steps {
                match step {
                    0..=3 => {
                        let ticket = state.admit(pending(key), now_ms);
                        admitted += usize::from(ticket.is_ok());
                    }
                    4 => left += usize::from(state.forget(time).is_some()),
                    5 => now_ms += time,
                    _ if launched.is_empty() => {}
                    _ => {
                        let launch = launched.swap_remove(time as usize % launched.len());
                        end(&mut state, now_ms, &launch, fails || step == 7);
                    }
                }
                let (launches, lost) = state.leaving(now_ms);
                left += launches.len() + lost.len();
                launched.extend(launches);
                prop_assert!(launched.iter().filter(|launch| launch.probe).count() <= 1);
                prop_assert_eq!(launched.len(), state.limiter.in_flight());
                prop_assert_eq!(admitted, left + state.queue.len());
                prop_assert!(state.queue.first_deadline_ms().is_none_or(|end_ms| end_ms > now_ms));
                for (waiting, ready) in state.queue.all() {
                    let key = waiting.equal.as_ref().map_or([0; 32], |equal| equal.key);
                    let mut leaders = state.queue.all().map(|(other, _)| other)
                        .chain(launched.iter().map(|launch| &launch.pending));
                    prop_assert!(ready || leaders.any(|other| leads(other, key)));
                }
            }
        }
    }
}
