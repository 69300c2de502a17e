//! Members of channels with a hook for messages: the application decides one at a time.

use std::sync::Arc;

use serde_json::json;
use simurgh_channel::{Assigns, Broadcast, ChannelHandle, Outcome, Publication, Reply, ToChannel};
use simurgh_history::Ids;
use simurgh_hooks::{Answer, Asked, Failure, Kind, MessageAnswer, Verdict};
use simurgh_proto::message::{Payload, events};
use tokio::sync::oneshot;

use super::Reach;
use super::member::{Declared, Kept, Refusal};
use crate::asynchronous::{Channel, Context, Reject};
use crate::hooks::{Asking, unavailable};

/// The largest payload of a question, bytes: many may wait for their answers.
const ASKED_BYTES_MAX: usize = 256 << 10;

/// A member of such a channel. Messages behind one that waits for an answer wait in order, within
/// the bounds of asynchronous channels.
pub(super) struct AskingMember {
    pub(super) declared: Arc<Declared>,
    pub(super) kept: Arc<Kept>,
}

/// A message of a member. Once the application has accepted it, it is published even if the member
/// has left.
struct Sent {
    declared: Arc<Declared>,
    kept: Arc<Kept>,
    assigned: Option<Assigns>,
    channel: ChannelHandle<()>,
    topic: Box<str>,
    event: Box<str>,
    payload: Payload<'static>,
}

impl Channel for AskingMember {
    async fn handle_in(
        &mut self,
        ctx: &mut Context,
        event: &str,
        payload: Payload<'static>,
    ) -> Result<Outcome, Reject> {
        let sent = Sent {
            declared: Arc::clone(&self.declared),
            kept: Arc::clone(&self.kept),
            assigned: ctx.assigned().cloned(),
            channel: ctx.handle::<Self>().retype(),
            topic: ctx.topic().into(),
            event: event.into(),
            payload,
        };
        let (hook, data) = match sent.question(ctx.socket_id()) {
            Ok(Some(question)) => question,
            Ok(None) => return Ok(sent.published(None)),
            Err(outcome) => return Ok(outcome),
        };
        let asked = sent.asking().map(|socket| {
            let question = socket.question(Kind::Message, hook);
            socket.ask(hook, question)
        });
        let question = match asked {
            Some(Asked::Later(question)) => question,
            Some(Asked::Now(verdict)) => return Ok(sent.decided(verdict)),
            None => return Ok(sent.published(None)),
        };
        let (reply, outcome) = oneshot::channel();
        // The member may have left: then nobody needs the outcome.
        let _place = question.send(data, move |verdict| drop(reply.send(sent.decided(verdict))));
        Ok(outcome.await.unwrap_or_else(|_| Outcome::error(unavailable(&Failure::NOBODY))))
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

impl Sent {
    fn asking(&self) -> Option<Asking<'_>> {
        self.assigned.as_ref().and_then(Asking::of)
    }

    /// The data of the question about it, with its hook, if it needs one. The error is for the
    /// client.
    fn question(&self, socket_id: Option<&str>) -> Result<Option<(usize, Box<str>)>, Outcome> {
        let socket = self.asking();
        let who = self.kept.identity(socket.as_ref().and_then(|socket| socket.claims));
        // A payload that is not accepted needs no question.
        if let Err(misfit) = self.declared.check_event(&self.event, &self.payload) {
            return Err(Outcome::error(Refusal::from(misfit).response()));
        }
        if !self.declared.may_publish(&self.topic, &self.event, &self.kept, who) {
            return Err(Outcome::error(Refusal::Because("unauthorized").response()));
        }
        let hook = self.declared.event(&self.event).and_then(|event| event.hook);
        let Some(hook) = hook else { return Ok(None) };
        let socket = socket.ok_or_else(|| Outcome::error(unavailable(&Failure::NOBODY)))?;
        if self.payload.len() > ASKED_BYTES_MAX {
            let response = json!({"reason": "payload_too_large", "limit": ASKED_BYTES_MAX});
            return Err(Outcome::error(response));
        }
        let (about, assigns) = ((&*self.topic, &*self.event), self.kept.assigns.as_ref());
        Ok(Some((hook, socket.message_data(socket_id, about, &self.payload, assigns))))
    }

    /// Publishes it as the application has decided.
    fn decided(self, verdict: Verdict) -> Outcome {
        let answer = match verdict {
            Verdict::Allowed(answer) => answer,
            Verdict::Refused(refusal) => {
                return Outcome::error(Payload::from_json(refusal.response.clone()));
            }
            Verdict::Failed(failure) if failure.allows => return self.published(None),
            Verdict::Failed(failure) => return Outcome::error(unavailable(&failure)),
        };
        match &*answer {
            Answer::Message(answer) => self.published(Some(answer)),
            _ => Outcome::error(unavailable(&Failure::NOBODY)),
        }
    }

    /// Publishes it as the channel declares, except for the parts that the answer has.
    fn published(self, answer: Option<&MessageAnswer>) -> Outcome {
        let extras = answer.iter().flat_map(|answer| &answer.messages);
        let mut publications = Vec::new();
        for extra in extras {
            let (topic, event, id) = (&*extra.topic, &*extra.event, extra.id.as_deref());
            if events::is_reserved(event) || id.is_some_and(|id| !Ids::is_id(id)) {
                tracing::warn!(topic, event, "dropped: a reserved event, or an id of a wrong size");
                continue;
            }
            let payload = Payload::from_json(extra.payload.get().to_owned());
            let (broadcast, id) = (Broadcast::new(topic, event, payload), id.map(Into::into));
            publications.push(Publication { broadcast, id });
        }
        let socket = self.assigned.as_ref().and_then(Asking::of);
        let who = self.kept.identity(socket.as_ref().and_then(|socket| socket.claims));
        let declared = self.declared.answer(who, &self.topic, &self.event, self.payload);
        let outcome = match declared {
            Ok(declared) => {
                let is_wanted = answer.is_none_or(|answer| answer.broadcast);
                if let Some((reach, payload)) = declared.broadcast.filter(|_| is_wanted) {
                    let own = answer.and_then(|answer| answer.payload.as_ref());
                    let payload =
                        own.map_or(payload, |own| Payload::from_json(own.get().to_owned()));
                    let own = answer.and_then(|answer| answer.event.as_deref());
                    let event = own.filter(|name| !events::is_reserved(name));
                    let event = event.unwrap_or(&self.event);
                    let broadcast = Broadcast::new(self.topic, event, payload);
                    let broadcast = match reach {
                        Reach::Others => broadcast.but_for(self.channel.id()),
                        Reach::All | Reach::None => broadcast,
                    };
                    publications.push(Publication { broadcast, id: None });
                }
                answer.and_then(reply).unwrap_or(declared.outcome)
            }
            Err(refusal) => Outcome::error(refusal.response()),
        };
        self.channel.node().send(self.channel.id(), ToChannel::Publish(publications));
        outcome
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
