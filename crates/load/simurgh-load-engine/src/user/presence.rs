//! Measures presence: from a join to the list, and from a join or a leave to each member's diff.
//!
//! A step that changes a presence has its key. The time when such a step was due is noted for all
//! workers of this host; a member that gets a `presence_diff` looks it up. All members get a diff
//! in the same bytes, so a worker parses it once.

use simurgh_load_record::{Count, ErrorKind, Metric};
use simurgh_load_scenario::answer::{PRESENCE_DIFF, PRESENCE_STATE, PresenceDiff};

use super::{Machine, Outputs};
use crate::program::{ChannelCommand, ChannelOp};
use crate::time::elapsed_us;

/// A presence list that a user waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AwaitedList {
    topic: u64,
    since_us: u32,
}

#[derive(Default)]
pub(crate) struct LastDiff {
    topic: String,
    payload: String,
    /// Since when its content is so.
    since_ns: Vec<u64>,
}

impl<O: Outputs> Machine<'_, O> {
    /// Notes when a step changes the presence of a key, and that a list follows a join.
    pub(super) fn note_presence(&mut self, op: &ChannelOp, topic: &str) {
        let Some(key) = &op.push.presence else { return };
        let key = self.context.values.text(self.user, key);
        let presences = &self.context.values.shared.presences;
        let at_ns = self.now_ns.saturating_sub(self.elapsed_us() * 1000);
        presences.changed(topic, &key, op.command, at_ns);
        if op.command == ChannelCommand::Join {
            let (topic, since_us) = (presences.hash(topic), self.user.since_us);
            let lists = &mut self.user.extra().lists;
            lists.retain(|list| list.topic != topic);
            lists.push(AwaitedList { topic, since_us });
        }
    }

    /// Measures a presence message; others are skipped.
    #[inline]
    pub(super) fn presence_in(&mut self, topic: &str, event: &str, payload: Option<&str>) {
        match event {
            PRESENCE_STATE => {
                self.out.count(Count::PresenceStates, 1);
                self.list_in(topic);
            }
            PRESENCE_DIFF => {
                self.out.count(Count::PresenceDiffs, 1);
                if self.program.tracks {
                    self.diff_in(topic, payload.unwrap_or_default());
                }
            }
            _ => {}
        }
    }

    fn list_in(&mut self, topic: &str) {
        let lists = self.user.extra_mut().map(|extra| &mut extra.lists);
        let Some(lists) = lists.filter(|lists| !lists.is_empty()) else { return };
        let topic = self.context.values.shared.presences.hash(topic);
        if let Some(at) = lists.iter().position(|list| list.topic == topic) {
            let list = lists.swap_remove(at);
            self.out.time(Metric::PresenceState, elapsed_us(list.since_us, self.now_ns));
            self.user.tidy();
        }
    }

    fn diff_in(&mut self, topic: &str, payload: &str) {
        let last = &mut self.context.last_diff;
        if last.topic != topic || last.payload != payload {
            last.since_ns.clear();
            let presences = &self.context.values.shared.presences;
            match serde_json::from_str::<PresenceDiff<'_>>(payload) {
                Ok(diff) => presences.since(topic, &diff, &mut last.since_ns),
                Err(error) => {
                    let text = || format!("presence_diff of {topic}: {error}");
                    self.out.error(ErrorKind::MessageMalformed, self.user.origin(), text);
                }
            }
            last.topic.replace_range(.., topic);
            last.payload.replace_range(.., payload);
        }
        for since_ns in &last.since_ns {
            self.out.time(Metric::PresenceDiff, self.now_ns.saturating_sub(*since_ns) / 1000);
        }
    }
}
