//! Batches of notices, and their outcomes.

use simurgh_data::prelude::*;
use simurgh_history::Epoch;

use crate::record::Notice;

/// Why a hook has to read all stays again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Reset {
    /// The hook is new, or the log.
    New,
    /// Too many notices have waited for it in memory.
    Overflow,
}

/// Notices of one request. It is repeated unchanged until its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its `webhook-id`.
    pub id: Box<str>,
    /// The log.
    pub epoch: Epoch,
    /// The notices, in order. None: it is a `log.reset`.
    pub notices: Vec<Arc<Notice>>,
    /// Why it is a `log.reset`.
    pub reset: Option<Reset>,
    /// The number of the last notice.
    pub n: u64,
    /// When it was formed, in milliseconds since 1970.
    pub at_ms: u64,
    /// It repeats dead letters.
    pub(crate) is_replay: bool,
}

/// The outcome of a request with notices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A status 2xx.
    Accepted,
    /// 410, or 429, 5xx, a timeout, no connection: it is repeated when the hook may be sent
    /// something. With the status, 0 without one, and the beginning of the answer.
    Failed(u16, Box<str>),
    /// Another status.
    Refused(u16, Box<str>),
}
