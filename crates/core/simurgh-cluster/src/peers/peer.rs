//! One other node.

use core::time::Duration;

use super::PeersConfig;
use crate::beat::Beat;
use crate::node_id::NodeId;
use simurgh_data::prelude::*;

/// The number of clock differences compared: that of the fastest beat is nearest to the truth.
const OFFSETS: usize = 8;
/// A longer delay is ignored: a clock was set.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// Another node that was started under this one's name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Successor {
    pub(super) id: Option<NodeId>,
    pub(super) since_ns: u64,
    pub(super) since_aged_ns: u64,
}

/// Another node that is not gone.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its last beat. The time in it is by its own clock: to be shown, not compared.
    pub beat: Beat,
    pub(super) joined_ns: u64,
    /// When its last beat was received, by this node's clock.
    pub heard_ns: u64,
    pub(super) heard_aged_ns: u64,
    /// Whether no beat was received for a while: it is shown, and no requests are sent to it.
    pub is_silent: bool,
    /// Whether it has no version of envelopes in common with this node.
    pub is_incompatible: bool,
    /// Whether another living node has its name.
    pub has_namesake: bool,
    /// Whether it takes part in notices.
    pub has_notices: bool,
    pub(super) successor: Option<Successor>,
    pub(super) differing: Vec<u32>,
    /// Its clock minus ours at its last beats, in milliseconds.
    offsets_ms: [Option<i64>; OFFSETS],
    beats: usize,
    /// How much longer its last beat took than the fastest of its last eight, to a millisecond: an
    /// estimate, which a step of either clock makes wrong for eight beats. `None` before the second
    /// beat, and if it would be more than a minute.
    pub delay: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Age {
    Alive,
    Silent,
    Gone,
    Replaced,
}

impl Peer {
    pub(super) fn new(beat: &Beat, now_ns: u64, aged_ns: u64) -> Self {
        Self {
            beat: beat.clone(),
            joined_ns: now_ns,
            heard_ns: now_ns,
            heard_aged_ns: aged_ns,
            is_silent: false,
            is_incompatible: false,
            has_namesake: false,
            has_notices: false,
            successor: None,
            differing: Vec::new(),
            offsets_ms: [None; OFFSETS],
            beats: 0,
            delay: None,
        }
    }

    pub(super) fn note_beat(&mut self, beat: &Beat, now_ns: u64, aged_ns: u64, unix_ms: u64) {
        self.beat.clone_from(beat);
        self.heard_ns = now_ns;
        self.heard_aged_ns = aged_ns;
        self.is_silent = false;
        let offset_ms = i64::try_from(i128::from(beat.unix_ms) - i128::from(unix_ms)).ok();
        if let Some(offset) = self.offsets_ms.get_mut(self.beats % OFFSETS) {
            *offset = offset_ms;
        }
        self.beats = self.beats.wrapping_add(1);
        let fastest_ms = self.clock_offset_ms().filter(|_| self.beats > 1);
        let late_ms = fastest_ms.zip(offset_ms).map(|(fastest, this)| fastest.abs_diff(this));
        self.delay = late_ms.map(Duration::from_millis).filter(|it| *it <= DELAY_MAX);
    }

    pub(super) fn age(&self, config: &PeersConfig, aged_ns: u64) -> Age {
        let is_over = |since_ns: u64, span_ns| aged_ns.saturating_sub(since_ns) >= span_ns;
        let quiet_since_ns = |it: Successor| it.since_aged_ns.max(self.heard_aged_ns);
        if self.successor.is_some_and(|it| is_over(quiet_since_ns(it), config.replaced_ns)) {
            Age::Replaced
        } else if is_over(self.heard_aged_ns, config.gone_ns) {
            Age::Gone
        } else if is_over(self.heard_aged_ns, config.silent_ns) {
            Age::Silent
        } else {
            Age::Alive
        }
    }

    /// When it reaches its next state, by the aging clock.
    pub(super) fn next_aged_ns(&self, config: &PeersConfig) -> u64 {
        let span_ns = if self.is_silent { config.gone_ns } else { config.silent_ns };
        let next_ns = self.heard_aged_ns.saturating_add(span_ns.min(config.gone_ns));
        let replaced_ns = self
            .successor
            .map(|it| it.since_aged_ns.max(self.heard_aged_ns).saturating_add(config.replaced_ns));
        replaced_ns.map_or(next_ns, |it| it.min(next_ns))
    }

    /// Its id.
    pub const fn id(&self) -> NodeId {
        self.beat.id
    }

    /// By how much its clock is ahead of ours, in milliseconds: an estimate, too small by the time
    /// that the fastest of its last eight beats took.
    pub fn clock_offset_ms(&self) -> Option<i64> {
        self.offsets_ms.iter().flatten().copied().max()
    }
}
