//! Requests to the broker about topics.

use super::topic::TopicId;
use crate::subject::Subject;
use simurgh_data::prelude::*;

#[derive(Debug)]
pub(super) enum Request {
    After(FetchAfter),
    Last(FetchLast),
    /// The watermark at this place, by which subject, and in which of the broker's epochs.
    Watermark(usize, Subject, u32),
}

/// A request for a topic's messages behind a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchAfter {
    pub(super) id: TopicId,
    /// The round of the request: what was lost before it is in its answer.
    pub(super) round: u32,
    pub(super) lost: u8,
    pub(super) last: u64,
    pub(super) is_further: bool,
    pub(super) skips_last: bool,
    pub(super) from_leader: bool,
    pub(super) known: u64,
}

/// A request for the last numbers of topics, by their places; and how often each has lost
/// something.
#[derive(Debug)]
pub(super) struct FetchLast {
    pub(super) topics: Vec<(TopicId, u8)>,
    pub(super) era: u32,
    pub(super) round: u32,
}
