//! Events of presence that clients of several nodes receive.

use crate::kit::presence::{Meta, PresenceEvent};
use crate::kit::presences::View;

use super::Ledger;

impl Ledger {
    pub(crate) fn receive_presence(
        &mut self,
        (start, topic): (usize, usize),
        view: &mut View,
        event: &str,
        json: &str,
    ) {
        let Some(told) = PresenceEvent::read(event, json) else {
            return self.fail("presence", format!("{event} is {json}"));
        };
        if let Err(wrong) = self.presences.check(topic, &told) {
            return self.fail("presence", format!("{wrong}: {event} {json}"));
        }
        match &told {
            PresenceEvent::State(_) => self.counts.count("states", 1),
            PresenceEvent::Diff { leaves, .. } => {
                self.counts.count("diffs", 1);
                if view.contradicts(&told) {
                    let text = format!("start {start}: {json}, of {:?}", view.numbers);
                    return self.fail("diff", text);
                }
                if view.has_state {
                    self.check_leaves(start, leaves, json);
                }
            }
            PresenceEvent::Summary { .. } => self.fail("presence", format!("{event} is {json}")),
        }
        view.receive(&told);
    }

    /// Only those leave that have left, or whose node is gone.
    fn check_leaves(&mut self, start: usize, leaves: &[Meta], json: &str) {
        for it in leaves {
            let Some(entry) = self.presences.get(it.number).copied() else { continue };
            if entry.is_live && !self.gone.contains(&(start, entry.node)) {
                let text = format!("start {start} hears that {entry:?} has left: {json}");
                return self.fail("left", text);
            }
        }
    }
}
