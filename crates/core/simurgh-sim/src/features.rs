//! Features of seeds, drawn apart from the rest of a profile.

use fastrand::Rng;

/// Each may be switched off, to shrink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features {
    /// How many shards may fan out at once; `None` leaves that to the number of cores.
    pub(crate) permits: Option<u8>,
    /// A shard has so many members that they are served only with a permit.
    pub(crate) is_crowded: bool,
    /// Texts of clients longer than this are read and prepared away from their shard; 0: none.
    pub(crate) prepare_above: u32,
    /// Topic names about as long as fits a binary frame (1), or as can be joined (2).
    pub(crate) long_names: u8,
    pub(crate) has_odd_refs: bool,
    /// Servers drain more often and start again.
    pub(crate) restarts: bool,
    /// How many of 256 joins make channels with waiting handlers, and how many messages may queue.
    pub(crate) waits: u8,
    pub(crate) behind_max: u8,
    pub(crate) is_present: bool,
    /// Channels hold their sockets, keep something with them, link work and broadcast by their
    /// handles; there are listeners outside of channels.
    pub(crate) reaches: bool,
    pub(crate) is_limited: bool,
    /// Sockets have a lifetime, which channels may change.
    pub(crate) expires: bool,
}

impl Features {
    pub(crate) fn of(seed: u64, shards: usize) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x0045_5854_5241_53ff);
        let is_crowded = rng.u8(..) < 3;
        let permits = match rng.u8(..) {
            _ if is_crowded => Some(1),
            0..150 => Some(rng.usize(1..=shards) as u8),
            _ => None,
        };
        let prepare_above = match rng.u8(..) {
            0..80 => 200,
            80..84 => 64 << 10,
            _ => 0,
        };
        let long_names = match rng.u8(..) {
            0..40 => 1,
            40..46 => 2,
            _ => 0,
        };
        let has_odd_refs = rng.u8(..) < 60;
        let restarts = rng.u8(..) < 40;
        let waits = if rng.u8(..) < 110 { [60, 128, 255][rng.usize(..3)] } else { 0 };
        let (behind_max, reaches) = (rng.u8(1..=4), rng.u8(..) < 110);
        Self {
            permits,
            is_crowded,
            prepare_above,
            long_names,
            has_odd_refs,
            restarts,
            waits,
            behind_max,
            reaches,
            is_present: rng.u8(..) < 160,
            is_limited: rng.u8(..) < 80,
            expires: rng.u8(..) < 80,
        }
    }
}
