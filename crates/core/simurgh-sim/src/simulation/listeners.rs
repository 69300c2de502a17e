//! Listeners outside of channels, such as subscriptions of other threads.

use std::sync::Arc;

use crate::kit::fault::Fault;
use simurgh_core::{Broadcast, Listener, Mail};

use super::NodeSimulation;
use crate::app::shared::Shared;
use crate::model::LISTENER;
use crate::node::{MailTag, TaggedMail, number_of};

/// Tells the model when its shard drops a listener.
struct ListenerGuard {
    number: u32,
    shared: Arc<Shared>,
}

impl ListenerGuard {
    fn hear(&self, broadcast: &Arc<Broadcast>) {
        if !self.shared.is_faulty(Fault::Deafen) {
            self.shared.model().heard(self.number, number_of(broadcast));
        }
    }
}

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        self.shared.model().listener_gone(self.number);
    }
}

impl NodeSimulation {
    pub(crate) fn begin_listening(&mut self, topic: u8, c: u32) {
        let Some(shard) = self.shard((c >> 8) as u16) else { return };
        let mut model = self.shared.model();
        let topic = if c & 7 == 0 { model.topics.id((c >> 3) as usize) } else { topic };
        let name = model.topics.name(topic).to_owned();
        let number = model.new_listener(shard, topic);
        drop(model);
        self.tell(|| format!("listener {number} wants to hear {name} on shard {shard}"));
        let guard = ListenerGuard { number, shared: Arc::clone(&self.shared) };
        let hear = Box::new(move |it: &Arc<Broadcast>| guard.hear(it));
        let listener = Listener { name: Listener::id(shard as u16, number), on_broadcast: hear };
        let mail = Mail::Listen(name.into(), listener);
        self.node.put(shard, TaggedMail::new(mail, MailTag::Listen(number)));
    }

    pub(crate) fn unlisten(&mut self, c: u32) {
        let count = self.shared.model().listeners.len();
        if let Some(number) = count.checked_sub(1 + c as usize % count.clamp(1, 8)) {
            self.end_listening(number);
        }
    }

    pub(crate) fn unlisten_all(&mut self) {
        let count = self.shared.model().listeners.len();
        (0..count).for_each(|number| self.end_listening(number));
    }

    fn end_listening(&mut self, number: usize) {
        let mut model = self.shared.model();
        let Some(it) = model.listeners.get_mut(number).filter(|it| !it.is_told) else { return };
        it.is_told = true;
        let (shard, topic, number) = (it.shard, it.topic, number as u32);
        let name = model.topics.name(topic).to_owned();
        drop(model);
        self.tell(|| format!("listener {number} wants to hear no more"));
        let mail = Mail::Unlisten(name.into(), Listener::id(shard as u16, number));
        self.node.put(shard, TaggedMail::new(mail, MailTag::Unlisten(number)));
    }

    pub(crate) fn but_for(&self, broadcast: Broadcast, id: u32, c: u32) -> Broadcast {
        let mut model = self.shared.model();
        let count = model.listeners.len();
        let Some(number) = count.checked_sub(1 + c as usize % count.clamp(1, 4)) else {
            return broadcast;
        };
        let Some(shard) = model.listeners.get(number).map(|it| it.shard) else { return broadcast };
        model.made[id as usize].except = LISTENER + number as u32;
        broadcast.but_for(Listener::id(shard as u16, number as u32))
    }
}
