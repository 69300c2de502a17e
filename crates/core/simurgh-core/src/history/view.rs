//! Views of kept topics, for display.

use simurgh_channel::Node;
use simurgh_history::{Marks, Position};

use super::kept_topics::{KeptTopics, Slot};
use crate::core::Core;

/// A topic whose broadcasts are kept, as it is shown.
#[derive(Debug, Clone, Copy)]
pub struct KeptView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Broadcasts that are kept.
    pub messages: usize,
    /// Bytes that they are counted with.
    pub bytes: u64,
    /// The last assigned position.
    pub head: Position,
    /// The places up to which nothing is left, and why.
    pub marks: Marks,
}

impl KeptTopics {
    fn view(&self, place: u32) -> Option<KeptView<'_>> {
        self.slots.get(place as usize)?.as_deref().map(view)
    }
}

fn view(slot: &Slot) -> KeptView<'_> {
    let ring = slot.topic.ring();
    let (messages, bytes) = (ring.len(), ring.bytes());
    KeptView { name: &slot.name, messages, bytes, head: ring.position(), marks: ring.marks() }
}

impl<N: Node> Core<N> {
    /// The topic of this name, if it is kept here.
    pub fn find_kept(&self, name: &str) -> Option<KeptView<'_>> {
        let kept = &self.history.as_ref()?.kept;
        kept.view(kept.place(name)?)
    }

    /// The topic at a place given by [`visit_kept`](Self::visit_kept).
    pub fn kept_at(&self, place: u32) -> Option<KeptView<'_>> {
        self.history.as_ref()?.kept.view(place)
    }

    /// Shows `visit` the topics of the next `places` places from `cursor` on, which is 0 again
    /// after the last.
    pub fn visit_kept(
        &self,
        cursor: &mut u32,
        places: usize,
        mut visit: impl FnMut(u32, KeptView<'_>),
    ) {
        let slots = self.history.as_ref().map_or(&[][..], |it| &it.kept.slots);
        let from = *cursor as usize;
        let end = from.saturating_add(places).min(slots.len());
        for (place, slot) in (*cursor..).zip(slots.get(from..end).unwrap_or_default()) {
            if let Some(slot) = slot.as_deref() {
                visit(place, view(slot));
            }
        }
        *cursor = if end >= slots.len() { 0 } else { end as u32 };
    }
}
