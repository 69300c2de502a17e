//! What the engine was asked about topics.

use super::topic::TopicId;
use crate::subject::Subject;

/// A request to the engine that is not answered yet.
#[derive(Debug)]
pub(super) enum Request {
    After(FetchAfter),
    Last(FetchLast),
    /// The watermark at this place, by which subject, and in which of the engine's epochs.
    Watermark(usize, Subject, u32),
}

/// A request for a topic's messages behind a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchAfter {
    pub(super) id: TopicId,
    /// The round it was made in: what was lost before that is in its answer.
    pub(super) round: u32,
    pub(super) lost: u8,
    /// The last number that was known.
    pub(super) last: u64,
    /// It asks for a further page.
    pub(super) is_further: bool,
    pub(super) skips_last: bool,
    pub(super) from_leader: bool,
    /// The highest number of the topic's stream that was known.
    pub(super) known: u64,
}

/// A request for the last numbers of topics, by where those stand; and how often something of each
/// was lost.
#[derive(Debug)]
pub(super) struct FetchLast {
    pub(super) topics: Vec<(TopicId, u8)>,
    pub(super) era: u32,
    pub(super) round: u32,
}
