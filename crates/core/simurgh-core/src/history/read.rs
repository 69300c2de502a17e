//! Requests about histories from outside of channels.

use alloc::boxed::Box;
use simurgh_channel::{HistoryRequest, KeptAt, KeptFor, Node, NotKept};

use super::bounds::SWEEP_STEPS;
use crate::core::Core;
use crate::sockets::Sockets;

impl<N: Node> Core<N> {
    /// Answers about topics of this shard. A request is dropped if nothing is kept here. With an
    /// broker these are the topics that this node follows, and a purge is for all nodes.
    pub(super) fn answer(&mut self, out: &impl Sockets, request: HistoryRequest) {
        let (now_ms, uses_engine) = (self.node.unix_ms(out.now().ns), self.uses_engine());
        let Some(history) = &mut self.history else { return };
        let kept = &mut history.kept;
        match request {
            HistoryRequest::Read(topic, range, answer) if uses_engine => {
                self.read_when_known(out, &topic, range, answer);
            }
            HistoryRequest::Read(topic, range, answer) => {
                let page = kept.read(&topic, &range, now_ms);
                self.application.ask(|| answer(page));
            }
            HistoryRequest::Forget(topic, answer) if uses_engine => {
                let answer = |it: Result<KeptAt, NotKept>| answer(it.map(|at| at.position));
                self.forget_in_engine(out, topic, KeptFor::Caller(Box::new(answer)));
            }
            HistoryRequest::Forget(topic, answer) => {
                let position = kept.purge(&topic, now_ms);
                self.count_history();
                self.application.ask(|| answer(Ok(position)));
            }
            HistoryRequest::Topics(_, from, limit, answer) => {
                let topics = kept.list(from, limit, SWEEP_STEPS);
                self.application.ask(|| answer(topics));
            }
        }
    }
}
