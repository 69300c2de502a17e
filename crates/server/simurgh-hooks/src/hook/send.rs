//! The part of a hook that runs on the thread `simurgh-hooks`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::HeaderValue;
use tokio::time::{Instant, timeout_at};

use super::Hook;
use super::record::Matter;
use super::state::{Launch, Pending};
use crate::answer::outcome::{Outcome, Response, decide, unix_s};
use crate::answer::{Answer, Grant};
use crate::breaker::{Change, Fault};
use crate::cache::Granted;
use crate::client::Error;
use crate::limiter::Signal;
use crate::news::News;
use crate::question::Question;
use crate::queue::Ticket;
use crate::request::{Draft, child_of};
use crate::shared::{ms, unix_ms};
use crate::verdict::{FailureKind, Verdict};

/// A clock that differs by more is reported.
const CLOCK_DIFFERENCE_MAX_S: i64 = 60;

/// The end of a question that was sent.
struct Back {
    outcome: Outcome,
    body: Vec<u8>,
    time: Duration,
    trace: Option<HeaderValue>,
}

impl Hook {
    /// Sends questions until [`Hook::close`], and then those that still wait.
    pub(crate) async fn serve(self: Arc<Self>) {
        let mut idle_ends: Option<Instant> = None;
        loop {
            let next = self.send_waiting();
            if self.is_done() {
                return;
            }
            // Each question wakes this loop, and there may be hundreds of connections.
            let now = Instant::now();
            if idle_ends.is_none_or(|ends| ends <= now) {
                idle_ends = self.client.close_idle(now);
            }
            let woken = self.wake.notified();
            match [next, idle_ends].into_iter().flatten().min() {
                Some(until) => drop(timeout_at(until, woken).await),
                None => woken.await,
            }
        }
    }

    /// Accepts no more questions.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
    }

    fn is_done(&self) -> bool {
        let state = self.lock();
        state.closed && state.queue.len() == 0 && state.limiter.in_flight() == 0
    }

    /// Sends what may be sent. Returns when to look again.
    fn send_waiting(self: &Arc<Self>) -> Option<Instant> {
        let mut state = self.lock();
        let now_ms = self.now_ms();
        let (launches, lost) = state.leaving(now_ms);
        let next_ms = state.next_ms(now_ms);
        drop(state);
        for (pending, kind) in lost {
            let verdict = self.fail(pending.question.kind, pending.equal.as_ref(), kind);
            (pending.reply)(verdict);
        }
        for launch in launches {
            tokio::spawn(Arc::clone(self).run(launch));
        }
        next_ms.map(|next_ms| self.started + Duration::from_millis(next_ms))
    }

    /// Sends a question, and then those that wait for its end.
    async fn run(self: Arc<Self>, launch: Launch) {
        let mut next = Some(launch);
        while let Some(launch) = next {
            let Pending { question, data, asked, deadline_ms, .. } = &*launch.pending;
            let body = self.template.body(question.kind.type_word(), data, *asked);
            let back = self.exchange(question, body, *deadline_ms).await;
            next = self.finish(launch, back);
        }
    }

    async fn exchange(&self, question: &Question, body: Bytes, deadline_ms: u64) -> Back {
        let sent = Instant::now();
        let deadline = self.started + Duration::from_millis(deadline_ms);
        let parent = question.traceparent.as_ref();
        let draft = Draft {
            template: &self.template,
            path: question.kind.index(),
            id: &self.shared.next_id(),
            body,
            forwarded: &question.forwarded,
            traceparent: parent.and_then(|parent| child_of(parent, self.shared.span())),
        };
        let sending = self.client.send(|| draft.request(unix_s(SystemTime::now())));
        let came = timeout_at(deadline, sending).await;
        let now = SystemTime::now();
        let (outcome, body) = match came {
            Ok(Ok(response)) => {
                self.compare_clocks(&response, now);
                let outcome = decide(question.kind, &response, now, &self.config.limits);
                (outcome, response.body.unwrap_or_default())
            }
            Ok(Err(error)) => (broken(&error), Vec::new()),
            Err(_) => (late(sent.elapsed()), Vec::new()),
        };
        Back { outcome, body, time: sent.elapsed(), trace: draft.traceparent }
    }

    /// Caches, counts and answers. Returns the question to be sent next.
    fn finish(&self, launch: Launch, back: Back) -> Option<Launch> {
        let Launch { pending, number, probe } = launch;
        self.report(&pending, &back);
        let Back { outcome, body, time, .. } = back;
        let (mut fault, pause, mut signal) = match &outcome {
            Outcome::Failed { fault, pause, signal, .. } => (Some(*fault), *pause, *signal),
            Outcome::Allowed(_) | Outcome::Refused { .. } => (None, None, Signal::Answered),
        };
        let failure = fault.map_or(FailureKind::Failed, FailureKind::from);
        // Cached before equal questions stop waiting for it, so that later ones find it.
        let verdict = self.decide(&pending, outcome, &body);
        let (client, now_ms) = (pending.question.client, self.now_ms());
        let mut state = self.lock();
        let weighs = fault.is_none_or(|fault| state.breaker.weighs(now_ms, fault, client));
        if !weighs {
            // As good as an answer: the application is there.
            (fault, signal) = (None, Signal::Answered);
        } else if let Some(pause) = pause {
            state.paused_until_ms = state.paused_until_ms.max(now_ms + ms(pause));
        }
        state.limiter.finish(number, signal, time);
        let counts = weighs || probe;
        let change = counts.then(|| state.breaker.record(now_ms, fault, probe)).flatten();
        state.queue.release(client, pending.bytes());
        let followers = state.end_lead(&pending);
        drop(state);
        if let Some(change) = change {
            self.report_breaker(change);
        }
        let kind = pending.question.kind;
        let verdict = verdict.unwrap_or_else(|| self.fail(kind, pending.equal.as_ref(), failure));
        (pending.reply)(verdict);
        for ticket in followers {
            self.release(ticket);
        }
        let mut state = self.lock();
        let next = state.launch(now_ms);
        let is_due = state.closed || state.next_ms(now_ms).is_some_and(|next_ms| next_ms <= now_ms);
        drop(state);
        if is_due || self.client.has_one_idle() {
            self.wake.notify_one();
        }
        next
    }

    /// Ends the wait of a question for an equal one: it takes the answer from the cache, else it is
    /// sent itself.
    fn release(&self, ticket: Ticket) {
        let mut state = self.lock();
        let pending = state.queue.get_mut(ticket);
        let equal =
            pending.and_then(|it| it.equal.as_ref().map(|equal| (equal, it.question.client)));
        let cached = |(equal, client)| self.cached(equal, client, SystemTime::now());
        let Some(verdict) = equal.and_then(cached) else {
            state.queue.make_ready(ticket);
            return;
        };
        let released = state.queue.remove(ticket);
        drop(state);
        self.record().figures.shared += 1;
        if let Some(pending) = released {
            (pending.reply)(verdict);
        }
    }

    /// Counts and caches a decision. `None`: there is none.
    fn decide(&self, pending: &Pending, outcome: Outcome, body: &[u8]) -> Option<Verdict> {
        let kind = pending.question.kind;
        match outcome {
            Outcome::Allowed(grant) if self.is_void(pending, &grant) => None,
            Outcome::Allowed(grant) => {
                self.record().of(kind).allowed += 1;
                self.keep(pending, &grant, body);
                Some(Verdict::Allowed(Arc::new(grant.answer)))
            }
            Outcome::Refused { refusal, cache_for, .. } => {
                self.record().of(kind).refused += 1;
                let refusal = Arc::new(refusal);
                if let (Some(equal), Some(max)) = (&pending.equal, self.config.cache_max) {
                    let time = max.min(Duration::from_secs(cache_for));
                    let until_ms = unix_ms(SystemTime::now() + time);
                    let (key, client) = (equal.key, pending.question.client);
                    self.shared.cache(&key).refuse(key, client, Arc::clone(&refusal), until_ms);
                }
                Some(Verdict::Refused(refusal))
            }
            Outcome::Failed { .. } => None,
        }
    }

    /// Whether its user was disconnected while the question was in flight: the client asks again.
    fn is_void(&self, pending: &Pending, grant: &Grant) -> bool {
        let Answer::Connect(answer) = &grant.answer else { return false };
        let (user, id) = (answer.user.as_deref(), self.shared.id_of()(answer));
        self.shared.voids().has_ended([user, id.as_deref()], unix_ms(pending.asked))
    }

    /// Caches a grant, if it says so.
    fn keep(&self, pending: &Pending, grant: &Grant, body: &[u8]) {
        let (Some(equal), Some(max)) = (&pending.equal, self.config.cache_max) else { return };
        let (user, id, ends) = match &grant.answer {
            Answer::Connect(answer) => {
                let id = self.shared.id_of()(answer).map(String::into_boxed_str);
                (answer.user.as_deref().map(Into::into), id, answer.expires_at)
            }
            Answer::Join(_) | Answer::Message(_) => (equal.user.clone(), equal.id.clone(), None),
        };
        let lasting = |seconds: u64| seconds.saturating_mul(1000).min(ms(max));
        let answered_ms = unix_ms(SystemTime::now());
        let ends_ms = ends.map_or(u64::MAX, |ends| ends.saturating_mul(1000));
        let fresh_until_ms = answered_ms.saturating_add(lasting(grant.cache_for)).min(ends_ms);
        // JSON is UTF-8, and its strings were read.
        let Ok(body) = std::str::from_utf8(body) else { return };
        if fresh_until_ms <= answered_ms {
            return;
        }
        let granted = Granted {
            kind: pending.question.kind,
            body: body.into(),
            user,
            id,
            asked_ms: unix_ms(pending.asked),
            answered_ms,
            fresh_until_ms,
            stale_until_ms: fresh_until_ms.saturating_add(lasting(grant.stale_for)),
        };
        if self.shared.voids().admits(&granted) {
            self.shared.tell(|| News::grant(&equal.key, &granted));
            let client = pending.question.client;
            self.shared.cache(&equal.key).grant(equal.key, Some(client), granted);
        }
    }

    pub(super) fn compare_clocks(&self, response: &Response, now: SystemTime) {
        let Some(date) = response.date else { return };
        let difference = unix_s(date).cast_signed() - unix_s(now).cast_signed();
        let differs = difference.abs() > CLOCK_DIFFERENCE_MAX_S;
        let mut record = self.record();
        record.figures.clock_difference_s = difference;
        let is_due = differs && record.is_due(Matter::Clock, self.now_ms());
        drop(record);
        if is_due {
            let hook = self.name();
            tracing::warn!(hook, seconds = difference, "the application's clock differs from ours");
        }
    }

    /// Writes the lines of a question that are due, without the lock: a shard may wait for it.
    fn report(&self, pending: &Pending, back: &Back) {
        let (hook, kind) = (self.name(), pending.question.kind);
        let (question, time) = (kind.word(), back.time);
        let trace = back.trace.as_ref().and_then(|trace| trace.to_str().ok());
        let mut record = self.record();
        record.time(kind, time);
        let now_ms = self.now_ms();
        let (outcome, note) = match &back.outcome {
            Outcome::Allowed(grant) => ("allowed", record.unknown(kind, &grant.unknown)),
            Outcome::Refused { note, .. } => {
                let note = note.clone().filter(|_| record.is_due(Matter::Refusal, now_ms));
                ("refused", note)
            }
            Outcome::Failed { note, .. } => {
                let is_due = record.is_due(Matter::Failure, now_ms);
                ("failed", is_due.then(|| note.clone()))
            }
        };
        drop(record);
        if let Some(note) = note {
            tracing::warn!(hook, question, trace, "question {outcome}: {note}");
        }
        tracing::debug!(hook, question, outcome, ?time, trace, "a question was sent");
    }

    fn report_breaker(&self, change: Change) {
        let hook = self.name();
        match change {
            Change::Opened { pause_ms } => {
                tracing::warn!(hook, pause_ms, "questions fail too often: the hook is not asked");
            }
            Change::Closed => tracing::info!(hook, "questions are answered again"),
        }
    }
}

fn broken(error: &Error) -> Outcome {
    let (fault, signal) = match error {
        Error::Connect(_) => (Fault::Away, Signal::Congested),
        Error::Http(_) => (Fault::Silent, Signal::Neutral),
    };
    Outcome::Failed { fault, pause: None, signal, note: error.to_string() }
}

fn late(time: Duration) -> Outcome {
    let note = format!("no answer within {time:.1?}");
    Outcome::Failed { fault: Fault::Late, pause: None, signal: Signal::Congested, note }
}
