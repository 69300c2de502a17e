//! Members of channels with a hook for messages: the application decides one at a time.

use std::sync::Arc;

use serde_json::json;
use simurgh_channel::{Broadcast, Outcome, Reply};
use simurgh_hooks::{Answer, Asked, MessageAnswer, Verdict};
use simurgh_proto::message::{Payload, events};

use super::member::{Declared, Kept, Refusal, send};
use super::template::Identity;
use crate::asynchronous::{Channel, Context, Reject};
use crate::hooks::{Asking, UNANSWERED, unavailable};

/// The largest payload of a question, bytes: many may wait for their answers.
const ASKED_BYTES_MAX: usize = 256 << 10;

/// A member of such a channel. Messages behind one that waits for an answer wait in order, within
/// the bounds of asynchronous channels.
pub(super) struct AskingMember {
    pub(super) declared: Arc<Declared>,
    pub(super) kept: Kept,
}

impl Channel for AskingMember {
    async fn handle_in(
        &mut self,
        ctx: &mut Context,
        event: &str,
        payload: Payload<'static>,
    ) -> Result<Outcome, Reject> {
        let assigned = ctx.assigned().cloned();
        let socket = assigned.as_ref().and_then(Asking::of);
        let who = self.kept.identity(socket.as_ref().and_then(|socket| socket.claims));
        if !self.declared.may_publish(ctx.topic(), event, &self.kept, who) {
            return Ok(Outcome::error(Refusal::Because("unauthorized").response()));
        }
        // A payload that is not accepted needs no question.
        if let Err(misfit) = self.declared.check_event(event, &payload) {
            return Ok(Outcome::error(Refusal::from(misfit).response()));
        }
        let hook = self.declared.event(event).and_then(|event| event.hook);
        let Some((socket, hook)) = socket.zip(hook) else {
            return Ok(self.unasked(ctx, who, event, payload));
        };
        if payload.len() > ASKED_BYTES_MAX {
            let response = json!({"reason": "payload_too_large", "limit": ASKED_BYTES_MAX});
            return Ok(Outcome::error(response));
        }
        let (about, assigns) = ((ctx.topic(), event), self.kept.assigns.as_ref());
        let question = socket.about_message(hook, ctx.socket_id(), about, &payload, assigns);
        let verdict = match socket.ask(hook, question) {
            Asked::Now(verdict) => verdict,
            Asked::Later(question) => question.verdict().await,
        };
        let answer = match verdict {
            Verdict::Allowed(answer) => answer,
            Verdict::Refused(refusal) => {
                return Ok(Outcome::error(Payload::from_json(refusal.response.clone())));
            }
            Verdict::Failed(failure) if socket.allows(hook, &failure) => {
                return Ok(self.unasked(ctx, who, event, payload));
            }
            Verdict::Failed(failure) => return Ok(Outcome::error(unavailable(&failure))),
        };
        match &*answer {
            Answer::Message(answer) => Ok(self.granted(ctx, who, event, payload, answer)),
            _ => Ok(Outcome::error(unavailable(&UNANSWERED))),
        }
    }

    async fn handle_broadcast(
        &mut self,
        ctx: &mut Context,
        broadcast: Broadcast,
    ) -> Result<Outcome, Reject> {
        ctx.push(broadcast.event(), broadcast.payload().clone());
        Ok(Outcome::NoReply)
    }
}

impl AskingMember {
    /// As the channel declares.
    fn unasked(
        &self,
        ctx: &mut Context,
        who: Identity<'_>,
        event: &str,
        payload: Payload<'static>,
    ) -> Outcome {
        match self.declared.answer(who, ctx.topic(), event, payload) {
            Ok(answer) => {
                if let Some((reach, payload)) = answer.broadcast {
                    send(ctx, reach, event, payload);
                }
                answer.outcome
            }
            Err(refusal) => Outcome::error(refusal.response()),
        }
    }

    /// As the channel declares, except for the parts that the answer has.
    fn granted(
        &self,
        ctx: &mut Context,
        who: Identity<'_>,
        event: &str,
        payload: Payload<'static>,
        answer: &MessageAnswer,
    ) -> Outcome {
        for extra in &answer.messages {
            let payload = Payload::from_json(extra.payload.get().to_owned());
            if events::is_reserved(&extra.event) {
                let (topic, event) = (ctx.topic(), &*extra.event);
                tracing::warn!(topic, event, "an answer publishes a reserved event: dropped");
            } else if extra.topic == ctx.topic() {
                ctx.broadcast(&extra.event, payload);
            } else {
                ctx.broadcast_to(&extra.topic, &extra.event, payload);
            }
        }
        let declared = match self.declared.answer(who, ctx.topic(), event, payload) {
            Ok(declared) => declared,
            Err(refusal) => return Outcome::error(refusal.response()),
        };
        if let Some((reach, payload)) = declared.broadcast.filter(|_| answer.broadcast) {
            let own = answer.payload.as_ref();
            let payload = own.map_or(payload, |own| Payload::from_json(own.get().to_owned()));
            let own = answer.event.as_deref().filter(|name| !events::is_reserved(name));
            send(ctx, reach, own.unwrap_or(event), payload);
        }
        reply(answer).unwrap_or(declared.outcome)
    }
}

/// The reply of an answer, if it has one.
fn reply(answer: &MessageAnswer) -> Option<Outcome> {
    let (reply, status) = (answer.reply.as_ref(), answer.status.clone());
    if reply.is_none() && status.is_none() {
        return None;
    }
    let response = reply.map_or_else(|| "{}".to_owned(), |reply| reply.get().to_owned());
    let status = status.unwrap_or_else(|| "ok".to_owned());
    Some(Outcome::Reply(Reply::new(status, Payload::from_json(response))))
}
