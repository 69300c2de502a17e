//! Views of kept topics, for display.

use simurgh_history::{Marks, Position};

use super::kept_topics::KeptTopics;

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
    /// The topic of this name, if it is kept here.
    pub fn find(&self, name: &str) -> Option<KeptView<'_>> {
        self.at(self.place(name)?)
    }

    /// The topic at a place given by [`visit`](Self::visit).
    pub fn at(&self, place: u32) -> Option<KeptView<'_>> {
        let slot = self.slots.get(place as usize)?.as_deref()?;
        let ring = slot.topic.ring();
        let (messages, bytes) = (ring.len(), ring.bytes());
        let (head, marks) = (ring.position(), ring.marks());
        Some(KeptView { name: &slot.name, messages, bytes, head, marks })
    }

    /// Shows `visit` the topics of the next `places` places from `cursor` on, which is 0 again
    /// after the last.
    pub fn visit(&self, cursor: &mut u32, places: usize, mut visit: impl FnMut(u32, KeptView<'_>)) {
        let end = (*cursor as usize).saturating_add(places).min(self.slots.len()) as u32;
        for place in *cursor..end {
            if let Some(view) = self.at(place) {
                visit(place, view);
            }
        }
        *cursor = if end as usize >= self.slots.len() { 0 } else { end };
    }
}
