//! The presences of one topic, and when members receive changes.
//!
//! Changes are collected for an interval and sent as one `presence_diff`, the first after a quiet
//! period at once. Members that requested the list meanwhile share one `presence_state`, as it was
//! when that diff was made; it is sent in portions, one a turn, and always before the next diff:
//! with both, a client has what is in the table.

use core::time::Duration;

use simurgh_channel::{ChannelId, Charge, PresenceCall, PresenceConfig, SharedEvent, nanoseconds};
use simurgh_presence::{Diff, HeldLeaves, Owner, Table};

use super::output::Output;
use super::peers::Peers;
use simurgh_data::prelude::*;

/// Bytes of an entry in a list in addition to its key and meta.
const ENTRY_BYTES: usize = 96;

pub(super) const NOBODY: &str = "{}";

pub(super) struct Topic {
    pub(super) table: Table<ChannelId>,
    asking: Vec<ChannelId>,
    state: Option<Arc<[SharedEvent]>>,
    pub(super) getting: VecDeque<ChannelId>,
    /// The last member that has got a list: the next list goes to those behind it first, so that
    /// members that request it again and again do not keep it from others.
    served: Option<(u16, u32)>,
    is_shared: bool,
    pub(super) told_ns: Option<u64>,
    pub(super) due_ns: Option<u64>,
    is_summary: bool,
    /// The number that all members know, and when it was sent.
    summary: (Option<usize>, u64),
    /// State for other nodes; `None` without a cluster.
    pub(super) peers: Option<Box<Peers>>,
    /// `None` if leaves are sent at once.
    held: Option<Box<HeldLeaves>>,
    /// Of calls whose changes members have not been sent: their callers wait.
    charges: Vec<Arc<Charge>>,
}

impl Topic {
    pub(super) fn alone(owner: Owner, seed: u64) -> Self {
        Self::with(Table::alone(owner, seed), None)
    }

    /// Of a clustered node; `version` is that of its earlier entries.
    pub(super) fn shared(owner: Owner, seed: u64, version: u64) -> Self {
        Self::with(Table::new(owner, seed).from_version(version), Some(Box::default()))
    }

    fn with(table: Table<ChannelId>, peers: Option<Box<Peers>>) -> Self {
        Self {
            table,
            peers,
            held: None,
            charges: Vec::new(),
            asking: Vec::new(),
            state: None,
            getting: VecDeque::new(),
            served: None,
            is_shared: false,
            told_ns: None,
            due_ns: None,
            is_summary: false,
            summary: (None, 0),
        }
    }

    pub(super) fn call(
        &mut self,
        channel: ChannelId,
        call: PresenceCall,
        config: &PresenceConfig,
        new_ref: impl FnOnce() -> simurgh_presence::PhxRef,
    ) -> bool {
        let table = &mut self.table;
        match call {
            PresenceCall::Track(..) if table.tracked(channel) >= config.channel_entries_max => {
                false
            }
            PresenceCall::Track(key, meta, extra) => {
                let is_tracked = table.track(channel, &key, meta, new_ref()).is_ok();
                if let Some(extra) = extra.filter(|_| is_tracked) {
                    table.enrich(&key, extra);
                }
                is_tracked
            }
            PresenceCall::Update(key, meta) => table.update(channel, &key, meta, new_ref()).is_ok(),
            PresenceCall::Untrack(key) => table.untrack(channel, &key),
            PresenceCall::End => {
                table.untrack_all(channel);
                true
            }
            PresenceCall::PushState => {
                // A second request in one interval is for the same list.
                if self.asking.last() != Some(&channel) {
                    self.asking.push(channel);
                }
                true
            }
        }
    }

    /// Keeps a call's charge until its change is sent; a summary is not sent for each.
    pub(super) fn keep_charge(&mut self, charge: Option<Arc<Charge>>) {
        let is_due = self.table.has_changes() && !self.is_summary;
        if is_due || !self.asking.is_empty() {
            self.charges.extend(charge);
        }
    }

    pub(super) fn charged_bytes(&self) -> usize {
        self.charges.iter().map(|charge| charge.bytes()).sum()
    }

    pub(super) fn next_ns(&self, config: &PresenceConfig) -> Option<u64> {
        let members_ns = self.next_diff_ns(config);
        let Some(peers) = &self.peers else { return members_ns };
        let members_ns = members_ns.max(members_ns.and(peers.waits_until_ns()));
        let delta_ns = self.table.has_delta().then(|| self.paced_ns(config));
        let lists_ns = (!peers.lists.is_empty()).then(|| peers.waits_until_ns().unwrap_or(0));
        let (repeat_ns, again_ns) = (peers.repeat_ns(), peers.again_ns());
        [members_ns, delta_ns, lists_ns, repeat_ns, again_ns].into_iter().flatten().min()
    }

    fn paced_ns(&self, config: &PresenceConfig) -> u64 {
        let after = |told_ns: u64| told_ns.saturating_add(nanoseconds(config.interval));
        self.told_ns.map_or(0, after)
    }

    pub(super) fn next_diff_ns(&self, config: &PresenceConfig) -> Option<u64> {
        let after = |time_ns: u64, pause| Some(time_ns.saturating_add(nanoseconds(pause)));
        let told_ns = Some(self.paced_ns(config));
        // Memory is short: released leaves do not wait for the interval.
        let held_ns = self.held.as_ref().and_then(|held| held.next_ns());
        if held_ns == Some(0) {
            return held_ns;
        }
        if self.is_done() {
            return told_ns;
        }
        let (counted, counted_ns) = self.summary;
        if self.is_summary && self.asking.is_empty() {
            // Leaves of others may have made the list short enough.
            let is_same = counted == Some(self.table.len()) && !self.table.has_changes();
            return match is_same {
                true => None,
                false => after(counted_ns, config.summary_interval).max(told_ns),
            };
        }
        if self.table.has_changes() || !self.asking.is_empty() {
            return told_ns;
        }
        held_ns.map(|held_ns| Some(held_ns).max(told_ns))?
    }

    pub(super) fn tell(
        &mut self,
        config: &PresenceConfig,
        bytes_max: usize,
        now_ns: u64,
        output: &mut Vec<Output>,
    ) {
        if !self.update_peers(config, now_ns) {
            return;
        }
        self.collect_requests();
        self.state = None;
        self.charges = Vec::new();
        self.told_ns = Some(now_ns);
        let was_summary = self.is_summary;
        self.is_summary = self.is_too_long(config, bytes_max);
        let diff = self.diff(config, now_ns);
        if self.is_summary {
            self.held = None;
            return self.tell_summary(was_summary, config, now_ns, output);
        }
        let diff = diff.as_ref().map(encoded);
        // After a sample, or for changes that are too long, everybody gets the list again.
        let is_oversize = diff.as_ref().is_some_and(|diff| diff.len() > bytes_max);
        if was_summary || is_oversize {
            self.held = None;
            output.extend(was_summary.then_some(Output::Keep(None)));
            self.asking.clear();
            if !was_summary {
                // A client without a list applies the diffs it has kept to the first list, also
                // leaves of since then.
                output.push(Output::All("presence_state", NOBODY.into()));
            }
            return output.push(Output::All("presence_state", self.list()));
        }
        output.extend(diff.map(|diff| Output::All("presence_diff", diff)));
        if !self.asking.is_empty() {
            self.state = Some([("presence_state", self.list().into())].into());
            self.is_shared = false;
            self.getting = core::mem::take(&mut self.asking).into();
        }
    }

    /// Members without the last list get the next one; those that have requested it again, once.
    fn collect_requests(&mut self) {
        let asking = &mut self.asking;
        asking.extend(self.getting.drain(..));
        asking.sort_unstable();
        // Of the channels of one membership only the last has not ended.
        asking.dedup_by(|next, kept| {
            let is_same = slot(next) == slot(kept);
            *kept = if is_same { *next } else { *kept };
            is_same
        });
        let first = asking.partition_point(|channel| Some(slot(channel)) <= self.served);
        asking.rotate_left(first);
    }

    /// As [`HeldLeaves::waiting`].
    pub(super) fn waiting_leaves(&self) -> (usize, u64) {
        self.held.as_ref().map_or((0, 0), |held| held.waiting())
    }

    pub(super) fn release_leaves(&mut self, due_ns: u64) {
        if let Some(held) = &mut self.held {
            held.release(due_ns);
        }
    }

    pub(super) fn rest(&mut self) -> Option<Diff> {
        let diff = self.table.take_diff();
        match self.held.take() {
            Some(mut held) => held.hold(diff.unwrap_or_default(), Duration::ZERO, 0, u64::MAX),
            None => diff,
        }
    }

    fn diff(&mut self, config: &PresenceConfig, now_ns: u64) -> Option<Diff> {
        let diff = self.table.take_diff();
        let has_left = diff.as_ref().is_some_and(|diff| !diff.leaves.is_empty());
        if self.held.is_none() && (config.leave_delay.is_zero() || !has_left) {
            return diff;
        }
        let held = self.held.get_or_insert_default();
        let diff = held.hold(diff.unwrap_or_default(), config.leave_delay, config.list_max, now_ns);
        self.held.take_if(|held| held.is_empty());
        diff
    }

    /// Whether there are more entries or bytes than a list may have. It must shrink by a tenth to
    /// become a list again, so that it does not alternate.
    fn is_too_long(&self, config: &PresenceConfig, bytes_max: usize) -> bool {
        let limit = |max: usize| if self.is_summary { max - max / 10 } else { max };
        let entries = self.table.len();
        let entry_max = config.meta_bytes_max + 2 * config.key_bytes_max + ENTRY_BYTES;
        entries > limit(config.list_max)
            || (entries.saturating_mul(entry_max) > limit(bytes_max)
                && self.table.state_bytes() > limit(bytes_max))
    }

    /// In place of a list that is too long: an empty list, so that no client keeps an old one, and
    /// the number.
    fn tell_summary(
        &mut self,
        was_summary: bool,
        config: &PresenceConfig,
        now_ns: u64,
        output: &mut Vec<Output>,
    ) {
        let asking = core::mem::take(&mut self.asking);
        let (counted, counted_ns) = self.summary;
        let is_due = now_ns.saturating_sub(counted_ns) >= nanoseconds(config.summary_interval);
        let is_known = counted == Some(self.table.len());
        let is_for_all = !was_summary || (is_due && !is_known);
        if !is_for_all && asking.is_empty() {
            return;
        }
        let summary: Arc<str> = self.summary(config, now_ns).into();
        let events =
            [("presence_state", NOBODY.into()), ("presence_summary", Arc::clone(&summary))];
        let events: Arc<[SharedEvent]> = events.into();
        if is_for_all {
            self.summary = (Some(self.table.len()), now_ns);
            // Before it is broadcast: members that join behind that receive this.
            output.push(Output::Keep(Some(Arc::clone(&events))));
        } else {
            // Even if it soon is again the number that the others know: these members receive it.
            self.summary.0 = counted.filter(|_| is_known);
        }
        if !was_summary {
            output.push(Output::All("presence_state", NOBODY.into()));
        } else if is_for_all && !asking.is_empty() {
            let empty = events.first().cloned().into_iter().collect();
            output.push(Output::Some(empty, asking));
        } else if !asking.is_empty() {
            output.push(Output::Some(events, asking));
        }
        if is_for_all {
            output.push(Output::All("presence_summary", (*summary).into()));
        }
    }

    pub(super) fn next_portion(&mut self, config: &PresenceConfig, output: &mut Vec<Output>) {
        let Some(state) = self.state.clone().filter(|_| !self.getting.is_empty()) else { return };
        let bytes = state.iter().map(|(_, json)| json.len()).sum::<usize>();
        let count = (config.turn_bytes / bytes.max(1)).clamp(1, self.getting.len());
        let channels: Vec<ChannelId> = self.getting.drain(..count).collect();
        self.served = channels.last().map(slot);
        if self.getting.is_empty() {
            (self.state, self.getting) = (None, VecDeque::new());
        }
        output.push(match core::mem::replace(&mut self.is_shared, true) {
            false => Output::Some(state, channels),
            true => Output::Again(state, channels),
        });
    }

    /// Whether nothing is left to be kept or sent. Entries of other nodes are kept for channels on
    /// this one.
    pub(super) fn is_done(&self) -> bool {
        let is_kept = match &self.peers {
            None => !self.table.is_empty() || self.table.has_changes() || self.held.is_some(),
            Some(peers) => {
                !peers.is_unused() || self.table.has_delta() || peers.repeat_ns().is_some()
            }
        };
        !is_kept && self.asking.is_empty() && self.getting.is_empty()
    }

    pub(super) fn is_summary(&self) -> bool {
        self.is_summary
    }

    fn list(&mut self) -> String {
        let mut json = Vec::new();
        self.table.encode_state(&mut json);
        text(json)
    }

    /// As many keys as a sample has, which share as many metas.
    pub(super) fn sample(&self, config: &PresenceConfig, seed: u64) -> String {
        let keys = self.table.keys().clamp(1, config.sample.max(1));
        self.keys(config.sample, (config.sample / keys).max(1), seed)
    }

    pub(super) fn keys(&self, keys_max: usize, metas_max: usize, seed: u64) -> String {
        let mut json = Vec::new();
        self.table.encode_sample(keys_max, metas_max, seed, &mut json);
        text(json)
    }

    fn summary(&self, config: &PresenceConfig, seed: u64) -> String {
        let (count, keys) = (self.table.len(), self.table.keys());
        let sample = self.sample(config, seed);
        format!("{{\"count\":{count},\"keys\":{keys},\"sample\":{sample}}}")
    }
}

fn slot(channel: &ChannelId) -> (u16, u32) {
    (channel.shard, channel.membership)
}

pub(super) fn encoded(diff: &Diff) -> String {
    let mut json = Vec::with_capacity(diff.encoded_bytes());
    diff.encode(&mut json);
    text(json)
}

/// Encoders write keys and metas, which are UTF-8.
fn text(json: Vec<u8>) -> String {
    String::from_utf8(json).unwrap_or_else(|_| NOBODY.into())
}
