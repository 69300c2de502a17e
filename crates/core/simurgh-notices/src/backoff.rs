//! When a hook may be sent notices again.

use crate::key::SECOND;

/// Seconds between attempts; the last one counts from then on.
const PAUSES_S: [u64; 5] = [1, 5, 30, 120, 300];
/// The longest pause that a hook may ask for.
const ASKED_NS_MAX: u64 = 3600 * SECOND;
/// Pauses are spread by so many percent each way.
const SPREAD: u64 = 20;

/// The state of a hook, for all its partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
    until_ns: u64,
    is_stopped: bool,
}

impl Backoff {
    /// Whether the hook may be sent something now.
    pub fn may_send(&self, now_ns: u64) -> bool {
        !self.is_stopped && self.until_ns <= now_ns
    }

    /// The hook accepted something.
    pub fn accepted(&mut self) {
        *self = Self::default();
    }

    /// The hook cannot be reached or cannot accept anything now. It may have asked for a pause.
    /// `random` is any number.
    pub fn failed(&mut self, asked_ns: Option<u64>, random: u64, now_ns: u64) {
        let last = PAUSES_S.len() - 1;
        let pause_s = PAUSES_S.get(last.min(self.failures as usize)).copied().unwrap_or_default();
        let spread = 100 - SPREAD + random % (2 * SPREAD + 1);
        let pause_ns = pause_s * SECOND / 100 * spread;
        let pause_ns = pause_ns.max(asked_ns.unwrap_or_default().min(ASKED_NS_MAX));
        if self.until_ns > now_ns {
            // Another partition's batch failed at the same attempt.
            return;
        }
        self.failures = self.failures.saturating_add(1);
        self.until_ns = self.until_ns.max(now_ns.saturating_add(pause_ns));
    }

    /// The hook wants no notices any more, until it is resumed.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// The hook is sent notices again, at once.
    pub fn resume(&mut self) {
        *self = Self::default();
    }

    /// When it may be sent something; `None`: when it is resumed.
    pub fn next_ns(&self) -> Option<u64> {
        (!self.is_stopped).then_some(self.until_ns)
    }
}
