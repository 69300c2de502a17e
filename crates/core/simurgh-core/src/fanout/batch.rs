//! The frames for members at the same place of a topic's log, put together once.

use simurgh_channel::Broadcast;
use simurgh_data::{Run, Shared};

use super::delivery::Delivery;
use crate::frames::broadcast_frame;
use crate::registry::{Members, Topic};
use crate::sockets::Sockets;
use crate::wire::Form;
use simurgh_data::prelude::*;

/// Largest burst that is copied together for single writes; the system gathers larger ones.
const WHOLE_BYTES_MAX: usize = 64 << 10;

pub(super) struct Batch {
    /// The topic's own name: not an equal text, and not the slot, which another topic may have by
    /// now. It cannot be freed and allocated again while it is held here.
    topic: Rc<str>,
    from: u32,
    to: u32,
    run: Option<Run>,
    whole: Vec<u8>,
    pub(super) count: u32,
    pub(super) except: Vec<u32>,
}

impl Batch {
    #[inline(never)]
    pub(super) fn new(
        out: &mut impl Sockets,
        topic: &mut Topic<Delivery>,
        from: u32,
        form: Form,
        members: Members<'_>,
        errors: &mut u64,
    ) -> Self {
        let except = except(topic, from, members);
        let log = &mut topic.deliveries.log;
        let (name, to) = (Rc::clone(&topic.name), log.head());
        let mut batch =
            Self { topic: name, from, to, run: None, whole: Vec::new(), count: 0, except };
        let encode = |it: &Arc<Broadcast>| broadcast_frame(out, it, form, errors);
        log.runs(
            from,
            form,
            |_| true,
            encode,
            |run, count| {
                batch.run = Some(run.clone());
                batch.count = count;
            },
        );
        if let Some(run) = batch.run.as_ref().filter(|run| run.single().is_none())
            && run.len() <= WHOLE_BYTES_MAX
        {
            batch.whole.reserve_exact(run.len());
            run.frames().for_each(|frame| batch.whole.extend_from_slice(frame.as_bytes()));
        }
        batch
    }

    #[inline]
    pub(super) fn is_of(&self, topic: &Rc<str>, from: u32, to: u32) -> bool {
        self.from == from && self.to == to && Rc::ptr_eq(&self.topic, topic)
    }

    /// The run, and its bytes in one piece, or empty if the system is to gather them.
    #[inline]
    pub(super) fn output(&self) -> Option<(&Run, &[u8])> {
        let run = self.run.as_ref()?;
        Some((run, run.single().map_or(&*self.whole, Shared::as_bytes)))
    }

    /// The output, if it is in one piece and for everybody.
    #[inline]
    pub(super) fn for_all(&self) -> Option<(&Run, &[u8])> {
        self.output().filter(|(_, whole)| !whole.is_empty() && self.except.is_empty())
    }
}

/// Memberships that do not get broadcasts from a number on: those of their senders on any shard,
/// and of the same clients.
fn except(topic: &Topic<Delivery>, from: u32, registry: Members<'_>) -> Vec<u32> {
    let pending = || topic.deliveries.log.pending(from);
    let mut except: Vec<u32> = pending().filter_map(|it| Some(it.except?.membership)).collect();
    if !registry.have_clients() {
        return except;
    }
    for sender in pending().filter_map(|it| Some(it.kept.as_ref()?.sender)).filter(|it| *it != 0) {
        let members = (0..topic.len()).filter_map(|at| topic.member_at(at));
        let own = members.filter(|it| registry.client(it.membership()) == sender);
        except.extend(own.map(|it| it.membership()));
    }
    except
}
