//! Broadcasts of a client's message that cannot be sent: the client is told, never answered `ok`.

use simurgh_channel::metrics::ShardMetrics;
use simurgh_channel::{BroadcastError, Effect, Outcome, Publisher, Reply};
use simurgh_proto::message::{Payload, Ref};
use simurgh_proto::serializer::json;

use crate::socket::Speaker;
use simurgh_data::prelude::*;

/// Takes out broadcasts that cannot be sent, and replaces the answer to the message.
#[inline]
pub(super) fn without_refused(
    node: &impl Publisher,
    metrics: &ShardMetrics,
    speaker: &Speaker,
    message: &Ref<'_>,
    result: Option<Outcome>,
    effects: Vec<Effect>,
) -> (Option<Outcome>, Vec<Effect>) {
    let refusal = |effect: &Effect| refusal(node, speaker, effect);
    let Some(error) = effects.iter().find_map(refusal) else { return (result, effects) };
    let before = effects.len();
    let effects: Vec<Effect> = effects.into_iter().filter(|it| refusal(it).is_none()).collect();
    metrics.errors_broadcast_too_big.add((before - effects.len()) as u64);
    (refuse(&speaker.topic, message, result, error), effects)
}

#[inline]
fn refusal(node: &impl Publisher, speaker: &Speaker, effect: &Effect) -> Option<BroadcastError> {
    let Effect::Broadcast(topic, event, payload, _) = effect else { return None };
    let topic = topic.as_deref().unwrap_or(&speaker.topic);
    node.fits(topic, event, payload.len()).err()
}

#[cold]
fn refuse(
    topic: &str,
    message: &Ref<'_>,
    result: Option<Outcome>,
    error: BroadcastError,
) -> Option<Outcome> {
    tracing::warn!(topic, %error, "refused a message because its broadcast cannot be sent");
    let reply = Reply::error(Payload::from_json(reason(error)));
    match result {
        Some(Outcome::Stop(how)) if message.is_null() => Some(Outcome::Stop(how)),
        Some(Outcome::Stop(how) | Outcome::ReplyAndStop(_, how)) => {
            Some(Outcome::ReplyAndStop(reply, how))
        }
        Some(Outcome::NoReply) if message.is_null() => Some(Outcome::NoReply),
        Some(Outcome::NoReply | Outcome::Reply(_)) => Some(Outcome::Reply(reply)),
        None => None,
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
