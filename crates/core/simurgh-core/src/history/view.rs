//! Views of kept topics, for display.

use simurgh_channel::Node;
use simurgh_history::{Marks, Position};

use super::kept_topics::KeptTopics;
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
        let slot = self.slots.get(place as usize)?.as_deref()?;
        let ring = slot.topic.ring();
        let (messages, bytes) = (ring.len(), ring.bytes());
        let (head, marks) = (ring.position(), ring.marks());
        Some(KeptView { name: &slot.name, messages, bytes, head, marks })
    }
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
        let Some(kept) = self.history.as_ref().map(|it| &it.kept) else { return *cursor = 0 };
        let end = (*cursor as usize).saturating_add(places).min(kept.slots.len()) as u32;
        for place in *cursor..end {
            if let Some(view) = kept.view(place) {
                visit(place, view);
            }
        }
        *cursor = if end as usize >= kept.slots.len() { 0 } else { end };
    }
}
