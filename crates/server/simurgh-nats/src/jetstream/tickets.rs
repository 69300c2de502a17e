//! Tickets that are not answered: their deadlines and repeats.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use simurgh_cluster::adapter::{NotStored, TICKET_SECONDS_MAX, TICKETS_MAX};
use simurgh_cluster::{Event, QueueFull, Ticket};

use super::fetch::{After, LastOf};
use super::publish::{Purge, Store};
use super::since::Since;

/// The most bytes of unconfirmed stores; a single envelope is always accepted.
pub(super) const STORE_BYTES_MAX: usize = 16 << 20;
/// The pauses before requests are repeated: a new leader of a stream on several servers needs some
/// five seconds.
const AGAIN_AFTER_MS: [u64; 3] = [AGAIN_FIRST_MS, 2_000, 4_000];
pub(super) const AGAIN_FIRST_MS: u64 = 1_000;
/// The pause after a request that the broker could not execute: at most 36 attempts in all.
const SOON_MS: u64 = 250;
const LATER_MS: u64 = 100;
/// The bits of a request's number that count the attempts.
const ATTEMPT_BITS: u32 = 16;

/// Identifies the request of an answer: a ticket may need several requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestNumber {
    pub(super) key: u64,
    pub(super) attempt: u16,
}

impl RequestNumber {
    pub(super) fn text(self) -> String {
        format!("{:x}", (self.key << ATTEMPT_BITS) | u64::from(self.attempt))
    }

    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let text = str::from_utf8(text).ok()?;
        let number = u64::from_str_radix(text, 16).ok()?;
        Some(Self { key: number >> ATTEMPT_BITS, attempt: number as u16 })
    }
}

#[derive(Debug)]
pub(super) enum What {
    Store(Store),
    Purge(Purge),
    After(After),
    LastOf(LastOf),
    Since(Since),
}

impl What {
    fn bytes(&self) -> usize {
        match self {
            Self::Store(store) => store.envelope.len(),
            _ => 0,
        }
    }

    /// The event if there is no answer.
    fn unanswered(self, ticket: Ticket, why: NotStored) -> Event {
        match self {
            Self::Store(_) => Event::NotStored { ticket, why },
            Self::Purge(_) => Event::Purged { ticket, why: Some(why) },
            Self::After(after) => after.unanswered(ticket),
            Self::LastOf(_) => Event::Fetched { ticket, kept: None },
            Self::Since(_) => Event::Since { ticket, behind: None },
        }
    }
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) ticket: Ticket,
    pub(super) what: What,
    until_ms: u64,
    attempt: u16,
    /// When it is repeated on this link; `None` before the first attempt.
    again_ms: Option<u64>,
    /// How often it was repeated without an answer.
    repeats: usize,
    /// The last attempt was answered: the broker could not execute it.
    is_answered: bool,
    /// The attempts that may have changed something.
    open: u64,
    why: Option<Box<str>>,
}

impl Pending {
    pub(super) fn ask(&mut self, now_ms: u64) -> u16 {
        self.attempt = self.attempt.wrapping_add(1);
        let after = AGAIN_AFTER_MS.get(self.repeats).copied();
        self.again_ms = Some(after.map_or(u64::MAX, |it| now_ms + it));
        self.is_answered = false;
        self.open |= bit(self.attempt);
        self.attempt
    }

    /// An attempt has failed without an effect.
    pub(super) fn attempt_failed(&mut self, attempt: u16, why: &str) {
        self.open &= !bit(attempt);
        self.why = Some(why.into());
    }

    /// The broker cannot execute it now, but may soon: repeats it soon. Returns when, if this was
    /// the last attempt.
    pub(super) fn ask_soon(&mut self, attempt: u16, now_ms: u64) -> Option<u64> {
        let is_meant = self.is_last(attempt) && self.again_ms.is_some();
        is_meant.then(|| {
            self.is_answered = true;
            *self.again_ms.insert(now_ms + SOON_MS)
        })
    }

    pub(super) fn last_attempt_failed(&mut self, why: &str) {
        self.attempt_failed(self.attempt, why);
    }

    pub(super) const fn may_be_done(&self) -> bool {
        self.open != 0
    }

    pub(super) fn is_last(&self, attempt: u16) -> bool {
        self.attempt == attempt
    }

    fn not_stored(&mut self) -> NotStored {
        match self.why.take() {
            Some(why) if !self.may_be_done() => NotStored::Refused(why),
            _ => NotStored::Unconfirmed,
        }
    }
}

/// Stores and purges have few attempts, so 64 bits are enough.
const fn bit(attempt: u16) -> u64 {
    1 << (attempt % 64)
}

/// All tickets without an answer, and the number of answers that were not polled.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    pending: HashMap<u64, Pending, RandomState>,
    store_bytes: usize,
    answered: usize,
    /// The earliest time at which something is due.
    pub(super) next_ms: Option<u64>,
    /// How often a request was repeated on the same link.
    pub(crate) repeats: u64,
}

impl Tickets {
    /// # Errors
    /// There are too many tickets.
    pub(super) fn take(
        &mut self,
        key: u64,
        ticket: Ticket,
        what: What,
        now_ms: u64,
    ) -> Result<(), QueueFull> {
        let bytes = what.bytes();
        let is_too_much =
            bytes > 0 && self.store_bytes > 0 && self.store_bytes + bytes > STORE_BYTES_MAX;
        if self.is_full() || is_too_much {
            return Err(QueueFull);
        }
        self.store_bytes += bytes;
        let until_ms = now_ms + TICKET_SECONDS_MAX * 1_000;
        let pending = Pending {
            ticket,
            what,
            until_ms,
            attempt: 0,
            again_ms: None,
            repeats: 0,
            is_answered: false,
            open: 0,
            why: None,
        };
        self.pending.insert(key, pending);
        self.due(until_ms);
        Ok(())
    }

    pub(super) fn is_full(&self) -> bool {
        self.pending.len() + self.answered >= TICKETS_MAX
    }

    pub(crate) fn has_room(&self) -> bool {
        self.pending.len() + self.answered <= TICKETS_MAX / 2
            && self.store_bytes <= STORE_BYTES_MAX / 2
    }

    /// Adds an answer of a ticket that is not in the list.
    pub(super) fn answer(&mut self, events: &mut impl Extend<Event>, event: Event) {
        self.answered += 1;
        events.extend([event]);
    }

    pub(crate) fn taken(&mut self) {
        self.answered = self.answered.saturating_sub(1);
    }

    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Pending> {
        self.pending.get_mut(&key)
    }

    pub(super) fn done(&mut self, key: u64, events: &mut impl Extend<Event>, event: Event) {
        if let Some(pending) = self.pending.remove(&key) {
            self.store_bytes -= pending.what.bytes();
            self.answer(events, event);
        }
    }

    /// Ends a ticket that the broker did not answer.
    pub(super) fn give_up(&mut self, key: u64, events: &mut impl Extend<Event>) {
        if let Some(mut pending) = self.pending.remove(&key) {
            self.store_bytes -= pending.what.bytes();
            let why = pending.not_stored();
            let event = pending.what.unanswered(pending.ticket, why);
            self.answer(events, event);
        }
    }

    /// The broker stores nothing: refuses every ticket that it cannot have executed before.
    pub(super) fn refuse_all(&mut self, why: &str, events: &mut impl Extend<Event>) {
        let is_fetch = |it: &What| matches!(it, What::After(_) | What::LastOf(_) | What::Since(_));
        for key in self.keys(|it| !it.may_be_done() || is_fetch(&it.what)) {
            if let Some(pending) = self.pending.get_mut(&key) {
                pending.why = Some(why.into());
            }
            self.give_up(key, events);
        }
    }

    /// The keys of the selected tickets, in the order of the calls.
    pub(super) fn keys(&self, is_meant: impl Fn(&Pending) -> bool) -> Vec<u64> {
        let mut keys: Vec<u64> =
            self.pending.iter().filter(|it| is_meant(it.1)).map(|it| *it.0).collect();
        keys.sort_unstable();
        keys
    }

    pub(super) fn due(&mut self, at_ms: u64) {
        self.next_ms = Some(self.next_ms.map_or(at_ms, |it| it.min(at_ms)));
    }

    /// Gives up tickets whose time is over. Returns those to request again, in the order of the
    /// calls: none without a link, and later while the output is full.
    pub(super) fn tick(
        &mut self,
        now_ms: u64,
        (is_linked, is_free): (bool, bool),
        events: &mut impl Extend<Event>,
    ) -> Vec<u64> {
        if self.next_ms.is_none_or(|it| it > now_ms) {
            return Vec::new();
        }
        for key in self.keys(|it| it.until_ms <= now_ms) {
            self.give_up(key, events);
        }
        let mut again = Vec::new();
        self.next_ms = None;
        for (key, pending) in &mut self.pending {
            let mut due_ms = pending.until_ms;
            match pending.again_ms {
                Some(at_ms) if is_linked && at_ms <= now_ms && !is_free => {
                    due_ms = due_ms.min(now_ms + LATER_MS);
                }
                Some(at_ms) if is_linked && at_ms <= now_ms => {
                    pending.repeats += usize::from(!pending.is_answered);
                    self.repeats += 1;
                    again.push(*key);
                }
                Some(at_ms) if is_linked => due_ms = due_ms.min(at_ms),
                _ => {}
            }
            self.next_ms = Some(self.next_ms.map_or(due_ms, |it: u64| it.min(due_ms)));
        }
        again.sort_unstable();
        again
    }
}
