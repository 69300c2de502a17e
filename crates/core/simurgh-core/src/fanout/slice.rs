//! A slice of the fan-out: topics in turn, until its time is over.

use core::time::Duration;

use simurgh_channel::{Mail, Node, Permit};
use simurgh_data::Next;

use super::deliver::{ChannelDelivery, Delivered, Step, Stride};
use super::delivery::Registry;
use super::state::Fanout;
use crate::registry::{Member, TopicId};
use crate::sockets::Sockets;

/// Longest slice: with its events a turn stays well under 2 ms.
const SLICE: Duration = Duration::from_micros(400);
/// The most bytes of a slice, except those of its last step. What it does not write itself is
/// written after it.
const SLICE_BYTES: usize = 512 << 10;
/// Topics with so few members here need no permit: serving them takes less time than they would
/// wait behind a broadcast to everybody.
const FEW: usize = 32;

pub(crate) struct Slice {
    deadline_ns: u64,
    bytes: usize,
    only_few: bool,
    /// Topics skipped since the last that was served.
    passed: usize,
    is_over: bool,
    topic: Option<TopicId>,
    stride: Stride,
    through: Option<Member>,
    /// Which members are tried first: those with positions, or the others.
    has_positions: bool,
}

impl<N: Node> Fanout<N> {
    pub(crate) fn begin_slice(&mut self, out: &impl Sockets) -> Option<Slice> {
        if self.active.is_empty() {
            return None;
        }
        let now_ns = out.clock_ns();
        if self.permit == Permit::None {
            self.permit = self.node.permits().take(usize::from(self.shard), now_ns);
        }
        // A permit that this shard is queued for arrives by mail.
        let only_few = !matches!(self.permit, Permit::Held(_));
        Some(Slice {
            deadline_ns: now_ns + SLICE.as_nanos() as u64,
            bytes: 0,
            only_few,
            passed: 0,
            is_over: false,
            topic: None,
            stride: Stride::default(),
            through: None,
            has_positions: false,
        })
    }

    /// Sends until the slice is over or a broadcast must go to application code: the caller
    /// delivers that and calls again.
    #[inline(never)]
    pub(crate) fn go_on(
        &mut self,
        registry: &mut Registry,
        out: &mut impl Sockets,
        slice: &mut Slice,
    ) -> Option<ChannelDelivery> {
        loop {
            let id = slice.topic.or_else(|| self.next_topic(registry, out, slice))?;
            slice.topic = Some(id);
            if let Some(member) = slice.through.take()
                && out.queued(member.conn) > 0
            {
                self.mark_behind(registry, out, id, member);
            }
            let stride = &mut slice.stride;
            let step = match slice.has_positions {
                false => self.send_ready::<false>(registry, out, id, stride),
                true => self.send_ready::<true>(registry, out, id, stride),
            };
            match step {
                Step::Gone => slice.leave_topic(out),
                Step::PassOver if self.finish_pass_of(registry, out, id) => slice.leave_topic(out),
                Step::PassOver => {}
                Step::CheckClock => {
                    slice.end_stride(out);
                    if slice.is_over {
                        self.active.push_back(id);
                        slice.topic = None;
                    }
                }
                Step::Behind(member) => self.mark_behind(registry, out, id, member),
                Step::OtherKind(member) | Step::NotReady(member) => {
                    if matches!(step, Step::OtherKind(_)) {
                        slice.has_positions = member.has_positions();
                    }
                    match self.deliver(registry, out, id, member, false) {
                        Delivered::Channel(through) => {
                            slice.through = Some(member);
                            return Some(through);
                        }
                        Delivered::Sent { bytes, waits } => {
                            slice.stride.bytes += bytes;
                            if waits {
                                self.mark_behind(registry, out, id, member);
                            }
                        }
                    }
                }
            }
        }
    }

    fn next_topic(
        &mut self,
        registry: &Registry,
        out: &impl Sockets,
        slice: &mut Slice,
    ) -> Option<TopicId> {
        while !slice.is_over && slice.passed < self.active.len() {
            let id = self.active.pop_front()?;
            let is_small = || registry.topic(id).is_none_or(|topic| topic.len() <= FEW);
            if !slice.only_few || is_small() {
                slice.passed = 0;
                return Some(id);
            }
            self.active.push_back(id);
            slice.passed += 1;
            slice.is_over = out.clock_ns() >= slice.deadline_ns;
        }
        None
    }

    /// Ends a slice. Returns when the next is needed.
    pub(crate) fn end_slice(&mut self, out: &impl Sockets, slice: &Slice) -> Next {
        self.count_active();
        if self.active.is_empty() {
            // Nothing is in flight that could use the batches.
            (self.batches, self.placed) = Default::default();
        }
        if slice.only_few {
            // Skipped topics wait for the permit, which arrives by mail.
            return if slice.passed < self.active.len() { Next::Now } else { Next::Idle };
        }
        if self.active.is_empty() {
            self.put_permit_back();
            return Next::Idle;
        }
        if let Permit::Held(since_ns) = self.permit
            && self.node.permits().is_to_pass(since_ns, out.clock_ns())
        {
            self.put_permit_back();
        }
        // Without a permit now, the next slice queues for one.
        Next::Now
    }

    /// The permit for which this shard was queued has arrived.
    pub(crate) fn permit_came(&mut self, out: &impl Sockets) {
        self.permit = Permit::Held(out.clock_ns());
        if self.active.is_empty() {
            self.put_permit_back();
        }
    }

    /// Returns the permit, or leaves the queue for one.
    pub(crate) fn put_permit_back(&mut self) {
        let shard = usize::from(self.shard);
        let node = &self.node;
        let is_held = match core::mem::replace(&mut self.permit, Permit::None) {
            Permit::None => false,
            Permit::Queued => !node.permits().leave(shard),
            Permit::Held(_) => true,
        };
        if is_held {
            node.permits().put_back(shard, |next| node.post(next, Mail::Permit));
        }
    }
}

impl Slice {
    fn leave_topic(&mut self, out: &impl Sockets) {
        self.topic = None;
        self.end_stride(out);
    }

    fn end_stride(&mut self, out: &impl Sockets) {
        self.bytes += core::mem::take(&mut self.stride).bytes;
        self.is_over = self.bytes >= SLICE_BYTES || out.clock_ns() >= self.deadline_ns;
    }
}
