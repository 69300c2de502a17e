//! A [`Check`] searches the messages that a socket has received.

pub(crate) mod report;

use std::sync::Arc;
use std::time::{Duration, Instant};

use simurgh::driver::{MessageRef, What};

use crate::expect::{Expect, Misfit, Seen};
use crate::fail;
use crate::state::{Mailbox, Shared, State};
use report::Findings;

/// How often a refutation checks while the server is busy.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Searches the messages that one socket has received.
pub struct Check {
    pub(crate) shared: Arc<Shared>,
    pub(crate) at: usize,
    pub(crate) sort: Sort,
}

pub(crate) enum Sort {
    /// A push or a broadcast, on one topic or on any.
    Push(Option<Box<str>>),
    /// A broadcast, received by the test's own socket.
    Broadcast(Box<str>),
    Reply(MessageRef, Box<str>),
    /// The reply to a join, even if an assertion has already taken it.
    Joined(MessageRef, Box<str>),
}

/// The accepted events, or statuses of replies.
#[derive(Debug)]
pub struct Words(pub(crate) Option<Vec<String>>);

impl Words {
    /// Any event or status.
    pub fn any() -> Self {
        Self(None)
    }

    /// Only this one.
    pub fn one(word: impl AsRef<str>) -> Self {
        Self::these(&[word.as_ref()])
    }

    /// Any of these.
    pub fn these(words: &[&str]) -> Self {
        Self(Some(words.iter().map(|word| (*word).to_owned()).collect()))
    }

    fn take(&self, word: &str) -> bool {
        self.0.as_ref().is_none_or(|words| words.iter().any(|it| it == word))
    }
}

enum Fit<T> {
    Not,
    /// Its topic or its word differs; whether everything else fits.
    Elsewhere(String, bool),
    Misfit(Misfit),
    Fits(T),
}

impl Check {
    /// Waits for the message and takes it; panics if it does not come in time.
    #[track_caller]
    pub fn assert<E: Expect>(self, words: Words, expect: E, timeout_ms: Option<u64>) -> E::Value {
        let time = timeout_ms.map_or_else(|| self.shared.lock().assert_time, Duration::from_millis);
        match self.find(&words, &expect, time) {
            Some((value, _)) => value,
            None => fail(&self.missing(&words, &expect, time)),
        }
    }

    /// Waits until the message cannot come any more or the time is over; panics if it comes.
    #[track_caller]
    pub fn refute<E: Expect>(self, words: Words, expect: E, timeout_ms: Option<u64>) {
        let time = timeout_ms.map_or_else(|| self.shared.lock().refute_time, Duration::from_millis);
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let is_over = left.is_zero() || self.shared.is_quiet(left);
            let found = self.shared.look(Duration::ZERO, |state| {
                let mailbox = state.mailboxes.get(self.at)?;
                mailbox.left().find_map(|(number, what)| match self.fit(what, &words, &expect) {
                    Fit::Fits(_) => Some(number),
                    _ => None,
                })
            });
            if let Some(number) = found {
                let state = self.shared.lock();
                let text = report::unwanted(&self, &state, &words, expect.text(), number);
                drop(state);
                fail(&text);
            }
            if is_over {
                return;
            }
            self.shared.lock().wait(left.min(LOOK_AGAIN));
        }
    }

    /// Waits for the message and takes it; also returns its event or status.
    pub(crate) fn find<E: Expect>(
        &self,
        words: &Words,
        expect: &E,
        time: Duration,
    ) -> Option<(E::Value, Box<str>)> {
        let found = self.shared.look(time, |state| {
            let mailbox = state.mailboxes.get_mut(self.at)?;
            let mut is_decided = mailbox.is_closed();
            let mut found = None;
            for (number, entry) in mailbox.entries() {
                if entry.is_taken && !matches!(self.sort, Sort::Joined(..)) {
                    continue;
                }
                match self.fit(&entry.what, words, expect) {
                    Fit::Fits(value) => {
                        found = Some((number, value, word(&entry.what).into()));
                        break;
                    }
                    Fit::Not => {}
                    // A message gets only one reply.
                    Fit::Elsewhere(..) | Fit::Misfit(_) => is_decided |= self.is_for_reply(),
                }
            }
            if let Some((number, value, word)) = found {
                mailbox.take(number);
                return Some(Some((value, word)));
            }
            is_decided.then_some(None)
        });
        found.flatten()
    }

    fn is_for_reply(&self) -> bool {
        matches!(self.sort, Sort::Reply(..) | Sort::Joined(..))
    }

    fn fit<E: Expect>(&self, what: &What, words: &Words, expect: &E) -> Fit<E::Value> {
        let (topic, payload, wanted) = match (&self.sort, what) {
            (Sort::Push(topic), What::Message(it)) => (it.topic(), it.payload(), topic.as_deref()),
            (Sort::Broadcast(topic), What::Message(it)) => {
                (it.topic(), it.payload(), Some(&**topic))
            }
            (Sort::Reply(to, _) | Sort::Joined(to, _), What::Reply(it)) if it.to == Some(*to) => {
                (&*it.topic, &it.response, None)
            }
            _ => return Fit::Not,
        };
        let read = expect.read(Seen { payload, is_plain: topic.is_empty() });
        let (word, is_right) = (word(what), words.take(word(what)));
        if let Some(wanted) = wanted.filter(|wanted| *wanted != topic) {
            let is_it = is_right && read.is_ok();
            return Fit::Elsewhere(format!("arrived on {topic}, not on {wanted}"), is_it);
        }
        match read {
            Ok(value) if is_right => Fit::Fits(value),
            Err(misfit) if is_right => Fit::Misfit(misfit),
            read => Fit::Elsewhere(format!("is {word:?}"), read.is_ok() && expect.text().is_some()),
        }
    }

    pub(crate) fn missing<E: Expect>(&self, words: &Words, expect: &E, time: Duration) -> String {
        let state = self.shared.lock();
        let mut findings = Findings::default();
        for (number, entry) in state.mailboxes.get(self.at).into_iter().flat_map(Mailbox::entries) {
            let is_taken = entry.is_taken && !matches!(self.sort, Sort::Joined(..));
            match (self.fit(&entry.what, words, expect), is_taken) {
                (Fit::Fits(_), true) => findings
                    .hint(format!("message {number} matches, but an earlier assertion used it")),
                (Fit::Misfit(misfit), false) => findings.near(number, &misfit),
                (Fit::Elsewhere(..), false) if self.is_for_reply() => {
                    findings.hint(format!("the reply came with status {}", word(&entry.what)));
                }
                (Fit::Elsewhere(how, true), false) => {
                    findings.hint(format!("message {number} would match, but {how}"));
                }
                _ => {}
            }
        }
        self.look_at_others(&state, words, expect, &mut findings);
        report::missing(self, &state, words, expect.text(), time, findings)
    }

    /// Whether another socket has received it.
    fn look_at_others<E: Expect>(
        &self,
        state: &State,
        words: &Words,
        expect: &E,
        findings: &mut Findings,
    ) {
        if !matches!(self.sort, Sort::Push(_)) {
            return;
        }
        for (at, mailbox) in state.mailboxes.iter().enumerate() {
            let Some(number) = mailbox.number.filter(|_| at != self.at) else { continue };
            let is_it = |what| matches!(self.fit(what, words, expect), Fit::Fits(_));
            if mailbox.left().any(|(_, what)| is_it(what)) {
                findings.hint(format!("socket {number} received one"));
            }
        }
    }
}

fn word(what: &What) -> &str {
    match what {
        What::Message(message) => message.event(),
        What::Reply(reply) => &reply.status,
        _ => "",
    }
}
