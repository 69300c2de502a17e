//! Joins that waited: for the application's decision, or for what their clients have missed.

use simurgh_channel::{Join, JoinKind, Missed, Node};
use simurgh_data::Key;
use simurgh_proto::session::server as session;

use super::joining::Joining;
use crate::core::Core;
use crate::prelude::*;
use crate::socket::AwaitedJoin;
use crate::sockets::Sockets;

impl<N: Node> Core<N> {
    pub(crate) fn missed_came(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        ticket: u32,
        missed: Arc<Missed>,
        own: usize,
    ) {
        let is_it = |it: &AwaitedJoin| it.ticket == ticket;
        let Some(mut awaited) = self.no_longer_awaited(out, key, is_it) else { return };
        let Some(granted) = awaited.granted.take() else { return };
        let is_new = awaited.is_new;
        let joining = Joining::again(&mut awaited);
        let Some(resuming) = joining.resume.as_deref() else { return };
        let resumption =
            self.channels.histories.resumption(joining.topic, &resuming.said, is_new, missed, own);
        self.let_in_resumed(out, key, joining, granted, Some(resumption));
    }

    /// The decision about a join, which may not be awaited any more; `None`: it panicked.
    pub(crate) fn joined(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        ticket: u32,
        answer: Option<Join>,
    ) {
        let Some(mut awaited) = self.no_longer_awaited(out, key, |it| it.ticket == ticket) else {
            return self.channels.application.drop_guarded(answer);
        };
        let granted = awaited.granted.take();
        let joining = Joining::again(&mut awaited);
        match (answer, granted) {
            (Some(Join(JoinKind::Released)), Some(granted)) if joining.resume.is_some() => {
                self.request_missed(out, key, joining, granted);
            }
            (Some(Join(JoinKind::Released)), Some(granted)) => {
                self.let_in_resumed(out, key, joining, granted, None);
            }
            (Some(join), granted) => {
                self.channels.application.drop_guarded(granted);
                self.answer_join(out, key, joining, join, Vec::new());
            }
            (None, granted) => {
                self.channels.application.drop_guarded(granted);
                self.metrics.errors_callback_panic.add(1);
                self.refuse_join(out, key, joining, session::JOIN_CRASHED);
            }
        }
    }

    /// The application has not decided in time: the join is refused.
    pub(crate) fn join_overdue(&mut self, out: &mut impl Sockets, key: Key) {
        let Some(mut awaited) = self.no_longer_awaited(out, key, |_| true) else { return };
        self.metrics.errors_decision_timeout.add(1);
        if let Some(granted) = awaited.granted.take() {
            self.channels.application.drop_guarded(granted);
        }
        let joining = Joining::again(&mut awaited);
        self.refuse_join(out, key, joining, session::JOIN_TIMED_OUT);
    }
}
