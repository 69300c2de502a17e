//! What is asked about histories from outside of channels.

use super::bounds::SWEEP_TOPICS;
use super::call::Question;
use crate::core::Core;
use crate::node::Node;
use crate::sockets::Sockets;

impl<N: Node> Core<N> {
    /// Answers for the topics that this shard keeps. A question is dropped where none is kept.
    pub(super) fn answer(&mut self, out: &impl Sockets, question: Question) {
        let now_ms = self.node.unix_ms(out.now().ns);
        let Some(history) = &mut self.history else { return };
        let kept = &mut history.kept;
        match question {
            Question::Read(topic, range, answer) => {
                let page = kept.read(&topic, &range, now_ms);
                self.application.ask(|| answer(page));
            }
            Question::Forget(topic, answer) => {
                let position = kept.purge(&topic, now_ms);
                self.count_history();
                self.application.ask(|| answer(position));
            }
            Question::Topics(_, from, limit, answer) => {
                let topics = kept.list(from, limit, SWEEP_TOPICS);
                self.application.ask(|| answer(topics));
            }
        }
    }
}
