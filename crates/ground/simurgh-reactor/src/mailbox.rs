//! The only way into a shard.
//!
//! Any thread posts; posting never blocks. A mail and its effects count in bytes from the post
//! until [`Mailbox::discharge`], so a publisher that is faster than a fan-out gets its mail back
//! instead of filling memory. A shard that runs is not woken: the eventfd is written only when the
//! loop has announced that it is about to wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::mpsc::{self, Receiver, Sender};

use thiserror::Error;

use crate::wake::WakeSet;

/// The sending half of a shard's mailbox: cheap to clone, usable from every thread.
#[derive(derive_more::Debug)]
#[debug("Mailbox({state:?})")]
pub struct Mailbox<M> {
    sender: Sender<M>,
    state: Arc<MailboxState>,
}

/// A mail that was refused because the mailbox holds its limit of bytes or the shard has ended.
#[derive(derive_more::Debug, Error)]
#[debug("Full(..)")]
#[error("the shard's mailbox is full")]
pub struct Full<M>(pub M);

impl<M> Mailbox<M> {
    /// Posts `mail`, which weighs `bytes` until [`Mailbox::discharge`] gives them back. A mail that
    /// weighs more than the whole limit is accepted when the mailbox is empty.
    pub fn post(&self, mail: M, bytes: usize) -> Result<(), Full<M>> {
        let before = self.state.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before != 0 && before.saturating_add(bytes) > self.state.bytes_max {
            self.discharge(bytes);
            return Err(Full(mail));
        }
        self.sender.send(mail).map_err(|refused| {
            self.discharge(bytes);
            Full(refused.0)
        })?;
        self.state.posted.fetch_add(1, Ordering::Relaxed);
        self.state.wake_if_asleep();
        Ok(())
    }

    /// Posts control mail, which has no weight; `false` only once the shard has ended.
    pub fn post_anyway(&self, mail: M) -> bool {
        let posted = self.sender.send(mail).is_ok();
        if posted {
            self.state.posted.fetch_add(1, Ordering::Relaxed);
        }
        self.state.wake_if_asleep();
        posted
    }

    /// Counts bytes that bypass the mailbox; [`Mailbox::discharge`] gives them back.
    pub fn charge(&self, bytes: usize) {
        self.state.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives back the bytes of a mail whose effect is over.
    pub fn discharge(&self, bytes: usize) {
        let before = self.state.bytes.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "more bytes given back than were posted");
    }

    /// Bytes posted and not yet given back.
    pub fn bytes(&self) -> usize {
        self.state.bytes.load(Ordering::Relaxed)
    }

    /// Mails posted so far. Minus [`crate::Counts::mails`], it is the number that wait.
    pub fn posted(&self) -> u64 {
        self.state.posted.load(Ordering::Relaxed)
    }

    /// The limit of [`Mailbox::bytes`].
    pub fn bytes_max(&self) -> usize {
        self.state.bytes_max
    }

    /// Index of the shard of this mailbox.
    pub fn shard(&self) -> usize {
        self.state.shard
    }
}

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), state: Arc::clone(&self.state) }
    }
}

#[derive(Debug)]
pub(crate) struct MailboxState {
    shard: usize,
    bytes: AtomicUsize,
    posted: AtomicU64,
    bytes_max: usize,
    /// The loop waits, or is about to: a sender has to wake it.
    asleep: AtomicBool,
    stop: AtomicBool,
    wakes: Arc<WakeSet>,
}

impl MailboxState {
    /// Wakes the shard unless it runs. Pairs with [`Inbox::fall_asleep`]: either the poster sees
    /// `asleep`, or the loop sees the mail before it waits.
    pub(crate) fn wake_if_asleep(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            WakeSet::wake(&self.wakes, self.shard);
        }
    }

    pub(crate) fn ask_to_stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake_if_asleep();
    }
}

pub(crate) struct Inbox<M> {
    receiver: Receiver<M>,
    state: Arc<MailboxState>,
    found: Option<M>,
}

impl<M> Inbox<M> {
    pub(crate) fn next(&mut self) -> Option<M> {
        self.found.take().or_else(|| self.receiver.try_recv().ok())
    }

    /// The state that both sides share, to ask the shard to stop.
    pub(crate) fn state(&self) -> Arc<MailboxState> {
        Arc::clone(&self.state)
    }

    pub(crate) fn asked_to_stop(&self) -> bool {
        self.state.stop.load(Ordering::Acquire)
    }

    /// Its waker has woken the loop.
    pub(crate) fn woken(&self) {
        self.state.wakes.woken(self.state.shard);
    }

    /// Announces that the loop is about to wait; `false` if there is something to do first.
    pub(crate) fn fall_asleep(&mut self) -> bool {
        self.state.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.found = self.found.take().or_else(|| self.receiver.try_recv().ok());
        let quiet = self.found.is_none() && !self.asked_to_stop();
        if !quiet {
            self.awake();
        }
        quiet
    }

    pub(crate) fn awake(&self) {
        self.state.asleep.store(false, Ordering::Relaxed);
    }
}

pub(crate) fn mailbox<M>(
    shard: usize,
    bytes_max: usize,
    wakes: Arc<WakeSet>,
) -> (Mailbox<M>, Inbox<M>) {
    let (sender, receiver) = mpsc::channel();
    let state = Arc::new(MailboxState {
        shard,
        bytes: AtomicUsize::new(0),
        posted: AtomicU64::new(0),
        bytes_max,
        asleep: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        wakes,
    });
    (Mailbox { sender, state: Arc::clone(&state) }, Inbox { receiver, state, found: None })
}
