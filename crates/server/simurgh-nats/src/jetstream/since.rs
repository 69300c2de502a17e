//! Finds the number after which everything in a stream is younger than an age. It asks the leader
//! for its time and the end of the stream, and then for the first message that is young enough.
//!
//! A stream has the times of its messages, but not of removed ones, so everything before the first
//! young message counts as old.

use serde_json::Value;
use simurgh_cluster::{Event, Ticket};

use super::api::{self, Got, Request, StreamInfo};
use super::publish::Progress;
use crate::timestamp;
use crate::wire::Message;

#[derive(Debug)]
pub(super) struct Since {
    pub(super) stream: usize,
    age_ms: u64,
    /// The time to search from, by the leader's clock, and the end of its stream at that time; none
    /// before the first answer.
    from: Option<(u64, u64)>,
}

impl Since {
    pub(super) const fn new(stream: usize, age_ms: u64) -> Self {
        Self { stream, age_ms, from: None }
    }

    pub(super) fn request(&self, stream: &str) -> Request {
        match self.from {
            None => api::info(stream),
            Some((from_ms, _)) => api::first_from(stream, &timestamp::text(from_ms)),
        }
    }

    pub(super) fn on_answer(&mut self, ticket: Ticket, message: &Message) -> Progress {
        match self.from {
            None => self.on_info(ticket, message),
            Some((_, head)) => match api::read::<Got>(message) {
                Ok(got) if got.message.seq > 0 => done(ticket, Some(head.min(got.message.seq - 1))),
                Err(failure) if failure.is_no_message() => done(ticket, Some(head)),
                _ => Progress::Nothing,
            },
        }
    }

    fn on_info(&mut self, ticket: Ticket, message: &Message) -> Progress {
        let info = match api::read::<StreamInfo>(message) {
            Ok(info) if info.is_of_leader() => info,
            // The request is repeated in time.
            _ => return Progress::Nothing,
        };
        let now_ms = timestamp::unix_ms(info.ts.as_bytes());
        match now_ms.filter(|_| keeps_for(&info.config, self.age_ms)) {
            Some(now_ms) => {
                self.from = Some((now_ms.saturating_sub(self.age_ms), info.state.last_seq));
                Progress::Next
            }
            None => done(ticket, None),
        }
    }
}

fn done(ticket: Ticket, behind: Option<u64>) -> Progress {
    Progress::Done(Event::Since { ticket, behind }, 0)
}

/// Whether a stream removes nothing younger than this, apart from what exceeds a subject's count or
/// its own age.
fn keeps_for(config: &Value, age_ms: u64) -> bool {
    let limit = |key: &str| config[key].as_i64().filter(|it| *it > 0);
    let is_bounded = ["max_bytes", "max_msgs"].into_iter().any(|it| limit(it).is_some());
    let age_max_ms = limit("max_age").and_then(|it| u64::try_from(it / 1_000_000).ok());
    !is_bounded && age_max_ms.is_none_or(|it| it >= age_ms)
}
