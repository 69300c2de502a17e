//! How many bytes of a flow are in transit.
//!
//! Only the core knows that exactly, so two sums bound it: the bytes certainly in transit (in
//! mailboxes, or accepted since the shard last fanned out), and the most that there can be.

use crate::kit::NONE;
use crate::kit::peer::Flow;

use super::{SimNode, State};
use crate::model::{Input, Model, Published};

#[derive(Debug, Default)]
pub(crate) struct Flows {
    topics: usize,
    shards: usize,
    known: Vec<Known>,
}

#[derive(Clone, Debug)]
struct Known {
    epoch: u32,
    mailed: Vec<usize>,
    /// Published and accepted since its shard last fanned out.
    fresh: usize,
}

impl Flows {
    pub(crate) fn new(shards: usize, topics: usize) -> Self {
        let one = Known { epoch: 0, mailed: vec![0; shards], fresh: 0 };
        Self { topics, shards, known: vec![one; shards * topics] }
    }

    fn of(&mut self, flow: Flow) -> Option<&mut Known> {
        let place = flow.shard * self.topics + usize::from(flow.topic);
        let it = self.known.get_mut(place).filter(|_| flow.shard < self.shards)?;
        if it.epoch < flow.epoch {
            (it.epoch, it.fresh) = (flow.epoch, 0);
        }
        Some(it)
    }

    pub(crate) fn mail(&mut self, mailbox: usize, flow: Flow, bytes: usize, comes: bool) {
        if let Some(place) = self.of(flow).and_then(|it| it.mailed.get_mut(mailbox)) {
            *place = if comes { *place + bytes } else { place.saturating_sub(bytes) };
        }
    }

    pub(crate) fn fanned_out(&mut self, shard: usize) {
        let first = shard * self.topics;
        let all = self.known.get_mut(first..first + self.topics).unwrap_or_default();
        all.iter_mut().for_each(|it| it.fresh = 0);
    }

    /// Adds to what is certainly in transit, and returns the sum.
    pub(crate) fn add(&mut self, flow: Flow, fresh: usize) -> usize {
        // A socket that was held in another epoch may have been held for another flow.
        let Some(it) = self.of(flow).filter(|it| it.epoch == flow.epoch) else { return 0 };
        it.fresh += fresh;
        it.mailed.iter().copied().max().unwrap_or(0).max(it.fresh)
    }
}

impl SimNode {
    /// Notes whether a socket whose broadcast a shard makes must not be read any more.
    pub(crate) fn judge(&self, model: &mut Model, state: &mut State, shard: usize, bytes: usize) {
        let Some(Published { conn, flow, has_members }) = model.now.published.take() else {
            return;
        };
        model.now.published_bytes += bytes;
        model.now.flows.push((conn, flow));
        let max = self.shared.profile.config.mailbox_bytes_max;
        // While a shard fans out, any of its broadcasts may already be finished.
        let is_fresh = has_members && model.input != Input::FanOut;
        let fresh = if is_fresh { bytes } else { 0 };
        let under_way = state.flows.add(flow, fresh);
        // Bytes without members here are given back before anything is checked.
        let back = if has_members { 0 } else { bytes };
        let is_above = |limit: usize| {
            let all = state.charged.iter().zip(&state.ended).enumerate();
            all.into_iter().any(|(at, (it, has_ended))| {
                let charged = if at == shard { it.saturating_sub(back) } else { *it };
                !has_ended && charged > limit
            })
        };
        let is_too_much = under_way > flow_bytes_max(max)
            || (under_way > bytes && is_above(max))
            || is_above(max.saturating_mul(4));
        if is_too_much && conn != NONE {
            model.now.must_hold.push(conn);
        }
    }
}

/// The most that publishers of one topic on one shard may have in transit.
pub(crate) fn flow_bytes_max(mailbox_bytes_max: usize) -> usize {
    mailbox_bytes_max / 8
}
