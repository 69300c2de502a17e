//! Questions to the homes of topics, and events of presence that are still to come.

use std::sync::Arc;

use simurgh_core::{Node, PresenceList};

use super::{NodeSimulation, Server};

impl NodeSimulation {
    pub(crate) fn ask_who(&mut self, topic: u8) {
        if !self.shared.profile.features.is_present {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let name = shared.model().topics.name(topic).to_owned();
        self.tell(|| format!("somebody asks who is present in {name}"));
        let answer = move |list: PresenceList| {
            let counts = (list.entries, list.keys);
            shared.model().presence_answers(topic, counts, &list.json);
        };
        self.node.request_presences(&name, Box::new(answer));
    }

    /// Events of presence that are still to come, or topics that are kept without entries.
    pub(crate) fn presence_unrest(&self) -> Option<String> {
        let keeps_nothing = |it: &Server| it.core.presences() == Some(0);
        if let Some(shard) = self.servers.iter().position(keeps_nothing) {
            return Some(format!("shard {shard} keeps topics without presences"));
        }
        // A list that was asked for while another one was in transit.
        let is_due = |it: &Server| !it.has_ended && it.core.has_presences_due();
        if let Some(shard) = self.servers.iter().position(is_due) {
            return Some(format!("shard {shard} has something to tell"));
        }
        let model = self.shared.model();
        model.presence.unrest(&|chan| model.is_live(chan))
    }
}
