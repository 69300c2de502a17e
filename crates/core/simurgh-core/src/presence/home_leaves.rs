//! The limit for leaves that wait for their delay, of all topics of a shard.

use simurgh_channel::{PresenceConfig, nanoseconds};

use super::home::Home;
use super::topic::Topic;
use simurgh_data::prelude::*;

/// Bytes of a topic whose leaves wait, besides its name and those.
const TOPIC_BYTES: usize = size_of::<Topic>() + 128;

impl Home {
    /// Makes the leaves due that wait longest, until the others are within their limit.
    pub(super) fn release_leaves(
        &mut self,
        bytes_max: usize,
        config: &PresenceConfig,
        now_ns: u64,
    ) {
        while let Some((due_ns, name)) = self.leaving.pop_front() {
            if due_ns <= now_ns {
                continue;
            }
            if self.leaving_bytes <= bytes_max {
                return self.leaving.push_front((due_ns, name));
            }
            let before = self.leaving_bytes_of(&name);
            if let Some(topic) = self.topics.get_mut(&name) {
                topic.release_leaves(due_ns);
            }
            self.count_leaving(&name, before);
            self.schedule(&name, config, now_ns);
        }
    }

    pub(super) fn leaving_bytes_of(&self, name: &str) -> usize {
        match self.topics.get(name).map(Topic::waiting_leaves) {
            Some((bytes @ 1.., _)) => bytes + TOPIC_BYTES + name.len(),
            _ => 0,
        }
    }

    pub(super) fn count_leaving(&mut self, name: &str, before: usize) {
        let bytes = self.leaving_bytes_of(name);
        self.leaving_bytes = (self.leaving_bytes + bytes).saturating_sub(before);
    }

    /// Puts a topic in line if leaves of it have just begun to wait.
    pub(super) fn note_leaving(&mut self, name: &str, config: &PresenceConfig, now_ns: u64) {
        if let Some((name, topic)) = self.topics.entry(name)
            && let (1.., due_ns) = topic.waiting_leaves()
            && due_ns == now_ns.saturating_add(nanoseconds(config.leave_delay))
        {
            self.leaving.push_back((due_ns, Rc::clone(name)));
        }
    }
}
