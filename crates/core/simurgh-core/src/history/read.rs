//! What is asked about histories from outside of channels.

use simurgh_channel::{HistoryRequest, KeptAt, KeptFor, Node, NotKept};

use super::bounds::SWEEP_TOPICS;
use crate::core::Core;
use crate::sockets::Sockets;

impl<N: Node> Core<N> {
    /// Answers about topics of this shard. A request is dropped if nothing is kept here.
    pub(super) fn answer(&mut self, out: &impl Sockets, question: HistoryRequest) {
        if self.uses_engine() {
            return self.answer_by_engine(out, question);
        }
        let now_ms = self.node.unix_ms(out.now().ns);
        let Some(history) = &mut self.history else { return };
        let kept = &mut history.kept;
        match question {
            HistoryRequest::Read(topic, range, answer) => {
                let page = kept.read(&topic, &range, now_ms);
                self.application.ask(|| answer(page));
            }
            HistoryRequest::Forget(topic, answer) => {
                let position = kept.purge(&topic, now_ms);
                self.count_history();
                self.application.ask(|| answer(Ok(position)));
            }
            HistoryRequest::Topics(_, from, limit, answer) => {
                let topics = kept.list(from, limit, SWEEP_TOPICS);
                self.application.ask(|| answer(topics));
            }
        }
    }

    /// The same where an engine keeps the topics: only those that this node follows. A purge is for
    /// all nodes.
    fn answer_by_engine(&mut self, out: &impl Sockets, question: HistoryRequest) {
        match question {
            HistoryRequest::Read(topic, range, answer) => {
                self.read_when_known(out, &topic, range, answer)
            }
            HistoryRequest::Forget(topic, answer) => {
                let answer = |it: Result<KeptAt, NotKept>| answer(it.map(|at| at.position));
                self.forget_in_engine(out, topic, KeptFor::Caller(Box::new(answer)));
            }
            HistoryRequest::Topics(_, from, limit, answer) => {
                let Some(history) = &mut self.history else { return };
                let topics = history.kept.list(from, limit, SWEEP_TOPICS);
                self.application.ask(|| answer(topics));
            }
        }
    }
}
