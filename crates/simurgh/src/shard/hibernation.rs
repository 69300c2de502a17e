//! Hibernation: what channels and topics release while nothing happens on them.
//!
//! A hand goes round the memberships once in each [`Config::hibernate_after`](crate::Config). Whom
//! it finds as it left them has said and heard nothing through its channel since; its channel is
//! asked once to release what it can. Neither a timer nor a time stamp is kept for that, only two
//! bits, and when all hibernate there is no hand.

use std::time::{Duration, Instant};

use simurgh_reactor::Next;

use super::callback::{Notice, guarded};
use super::{Io, Shard};
use crate::channel::Reason;
use crate::hub::Hub;
use crate::watchdog::Callback;

/// Longest slice of a round.
const SLICE: Duration = Duration::from_micros(200);
/// Records between two looks at the clock.
const STRIDE: u32 = 32;

pub(super) struct Hibernation {
    every: Option<Duration>,
    next: Instant,
    /// The next record of a round that has begun.
    hand: Option<Hand>,
    /// Something was released in this round.
    has_released: bool,
}

#[derive(Clone, Copy)]
enum Hand {
    Membership(u32),
    Topic(usize),
}

impl Hibernation {
    pub(super) fn new(hub: &Hub) -> Self {
        let every = hub.config.hibernate_after;
        let next = Instant::now() + every.unwrap_or_default();
        Self { every, next, hand: None, has_released: false }
    }
}

impl Shard {
    /// Gets on with a round, or begins one.
    pub(super) fn hibernate(&mut self, io: &mut Io, now: Instant) -> Next {
        let Some(every) = self.hibernation.every else { return Next::Idle };
        let mut hand = match self.hibernation.hand {
            Some(hand) => hand,
            None if self.members.awake() == 0 => return Next::Idle,
            None if now < self.hibernation.next => {
                return Next::After(self.hibernation.next - now);
            }
            None => {
                self.hibernation.next = now + every;
                Hand::Membership(0)
            }
        };
        let deadline = now + SLICE;
        let mut steps: u32 = 0;
        loop {
            let next = match hand {
                Hand::Membership(id) if id < self.members.end() => {
                    self.hibernate_one(io, id);
                    Hand::Membership(id + 1)
                }
                Hand::Membership(_) => Hand::Topic(0),
                Hand::Topic(slot) if slot < self.topics.slots() => {
                    self.hibernation.has_released |= self.topics.shrink(slot);
                    Hand::Topic(slot + 1)
                }
                Hand::Topic(_) => break,
            };
            hand = next;
            steps += 1;
            if steps.is_multiple_of(STRIDE) && Instant::now() >= deadline {
                self.hibernation.hand = Some(hand);
                return Next::Now;
            }
        }
        self.hibernation.hand = None;
        if std::mem::take(&mut self.hibernation.has_released) {
            self.tidy_soon(now);
        }
        match self.members.awake() {
            0 => Next::Idle,
            _ => Next::After(self.hibernation.next.saturating_duration_since(now)),
        }
    }

    /// Has a channel hibernate that nothing has happened on since the last round.
    fn hibernate_one(&mut self, io: &mut Io, membership: u32) {
        let Some(channel) = self.members.send_to_sleep(membership) else { return };
        let watch = self.hub.watches.get(usize::from(self.index));
        if let Some(watch) = watch {
            watch.enter(Callback::Hibernate, Instant::now());
        }
        let has_panicked = guarded(|| channel.hibernate()).is_none();
        if let Some(watch) = watch {
            watch.leave();
        }
        self.hibernation.has_released = true;
        if has_panicked {
            self.metrics.errors_callback_panic.add(1);
            self.end_channel(io, membership, Reason::Crashed, Notice::Error);
        }
        self.metrics.channels_hibernating.set(self.members.hibernating() as u64);
    }
}
