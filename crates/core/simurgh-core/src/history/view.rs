//! Views of kept topics, for display.

use simurgh_channel::Node;
use simurgh_history::{Marks, Position};

use super::Histories;
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
    fn view(&self, place: u32) -> Option<KeptView<'_>> {
        let slot = self.slots.get(place as usize)?.as_deref()?;
        let ring = slot.topic.ring();
        let (messages, bytes) = (ring.len(), ring.bytes());
        let (head, marks) = (ring.position(), ring.marks());
        Some(KeptView { name: &slot.name, messages, bytes, head, marks })
    }
}

impl<N: Node> Histories<N> {
    /// The topic of this name, if it is kept here.
    pub(crate) fn find(&self, name: &str) -> Option<KeptView<'_>> {
        self.kept.view(self.kept.place(name)?)
    }

    pub(crate) fn at(&self, place: u32) -> Option<KeptView<'_>> {
        self.kept.view(place)
    }

    pub(crate) fn visit(
        &self,
        cursor: &mut u32,
        places: usize,
        mut visit: impl FnMut(u32, KeptView<'_>),
    ) {
        let slots = self.kept.slots.len();
        let end = (*cursor as usize).saturating_add(places).min(slots) as u32;
        for place in *cursor..end {
            if let Some(view) = self.kept.view(place) {
                visit(place, view);
            }
        }
        *cursor = if end as usize >= slots { 0 } else { end };
    }
}
