//! Broadcasts of a client's message that cannot be sent: the client is told, never answered `ok`.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use simurgh_channel::{BroadcastError, Effect, Node, Outcome, Publisher, Reply};
use simurgh_proto::message::{Payload, Ref};
use simurgh_proto::serializer::json;

use crate::core::Core;
use crate::socket::Speaker;

impl<N: Node> Core<N> {
    /// Takes out broadcasts that cannot be sent, and replaces the answer to the message.
    #[inline]
    pub(super) fn without_refused(
        &self,
        speaker: &Speaker,
        message: &Option<Ref<'_>>,
        result: Option<Outcome>,
        effects: Vec<Effect>,
    ) -> (Option<Outcome>, Vec<Effect>) {
        match effects.iter().find_map(|effect| self.refusal(speaker, effect)) {
            None => (result, effects),
            Some(error) => self.refuse(speaker, message, result, effects, error),
        }
    }

    #[inline]
    fn refusal(&self, speaker: &Speaker, effect: &Effect) -> Option<BroadcastError> {
        let Effect::Broadcast(topic, event, payload, _) = effect else { return None };
        let topic = topic.as_deref().unwrap_or(&speaker.topic);
        self.node.fits(topic, event, payload.len()).err()
    }

    #[cold]
    fn refuse(
        &self,
        speaker: &Speaker,
        message: &Option<Ref<'_>>,
        result: Option<Outcome>,
        mut effects: Vec<Effect>,
        error: BroadcastError,
    ) -> (Option<Outcome>, Vec<Effect>) {
        let before = effects.len();
        effects.retain(|effect| self.refusal(speaker, effect).is_none());
        self.metrics.errors_broadcast_too_big.add((before - effects.len()) as u64);
        let topic = &*speaker.topic;
        tracing::warn!(topic, %error, "refused a message because its broadcast cannot be sent");
        let reply = Reply::error(Payload::from_json(reason(error)));
        let wants_none = matches!(message, None | Some(Ref::Null));
        let result = match result {
            Some(Outcome::Stop(how)) if wants_none => Some(Outcome::Stop(how)),
            Some(Outcome::Stop(how) | Outcome::ReplyAndStop(_, how)) => {
                Some(Outcome::ReplyAndStop(reply, how))
            }
            Some(Outcome::NoReply) if wants_none => Some(Outcome::NoReply),
            Some(Outcome::NoReply | Outcome::Reply(_)) => Some(Outcome::Reply(reply)),
            None => None,
        };
        (result, effects)
    }
}

fn reason(error: BroadcastError) -> String {
    use BroadcastError::{TooLarge, TooLargeForCluster};
    match error {
        TooLarge { bytes_max, .. } | TooLargeForCluster { bytes_max, .. } => {
            format!(r#"{{"reason":"payload_too_large","limit":{bytes_max}}}"#)
        }
        error => {
            let mut detail = Vec::new();
            json::escape_into(&mut detail, &error.to_string());
            let detail = String::from_utf8_lossy(&detail);
            format!(r#"{{"reason":"broadcast_refused","detail":{detail}}}"#)
        }
    }
}
