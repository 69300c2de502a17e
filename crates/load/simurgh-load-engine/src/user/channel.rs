//! A user's messages as a Channels client, and their replies.

use std::borrow::Cow;

use simurgh_load_record::{Count, ErrorKind};
use simurgh_load_scenario::Template;
use simurgh_load_scenario::answer::AnswerText;
use simurgh_proto::message::Payload;
use simurgh_proto::serializer::{Kind, ServerMessage};
use simurgh_proto::session::client::{Incoming, Topic};
use simurgh_proto::ws::OpCode;

use super::dump::Exchange;
use super::machine::Flow;
use super::{Machine, Outputs, UserState};
use crate::program::{ChannelCommand, ChannelOp, Op};

impl<O: Outputs> Machine<'_, O> {
    pub(super) fn channel(&mut self, op: &ChannelOp) -> Flow {
        if !self.user.conn.is_open() {
            return self.not_connected();
        }
        let topic = match &op.topic {
            Some(topic) => topic.clone(),
            None => Topic::from(self.context.values.text(self.user, &op.push.topic).as_str()),
        };
        let mut rendered = std::mem::take(&mut self.context.rendered);
        rendered.clear();
        if !self.render_channel(op, &topic, &mut rendered) {
            let text = || "the payload of a join that resumes must be an object".to_owned();
            return self.fail(ErrorKind::Send, text);
        }
        let mut message = std::mem::take(&mut self.context.message);
        message.clear();
        let encoded = self.encode_channel(op, &topic, &rendered, &mut message);
        self.context.rendered = rendered;
        let Some((msg_ref, opcode)) = encoded else {
            return self.fail(ErrorKind::Send, || "the message cannot be encoded".to_owned());
        };
        self.note_presence(op, &topic);
        let sent = self.send_to_channel(opcode, &message);
        self.context.message = message;
        if let Err(lost) = sent {
            return lost;
        }
        self.out.count(op.command.figures().1, 1);
        self.note_join(op.command);
        if op.command == ChannelCommand::Leave {
            self.follow_leave(&topic);
        }
        if !op.push.await_reply {
            // No reply will report a failure.
            self.follow_reply(true);
            self.out.count(Count::RequestsNoAck, 1);
            self.assume_ok(op.command, &topic);
            return Flow::Next;
        }
        self.user.set_awaits(msg_ref);
        self.wait_for_answer(UserState::AwaitRef, op.answer.timeout)
    }

    /// Appends a join's, push's or leave's payload; `false` if the position does not fit in.
    fn render_channel(&mut self, op: &ChannelOp, topic: &str, rendered: &mut Vec<u8>) -> bool {
        if op.command == ChannelCommand::Push && self.context.followed.is_on {
            let values = &mut self.context.values;
            values.goes_to = Some((values.shared.sent.topic(topic), self.now_ns));
        }
        self.render(&op.push.payload, rendered);
        self.context.values.goes_to = None;
        self.follow_push();
        let resumes = self.session().is_some_and(|session| session.resume);
        !resumes || op.command != ChannelCommand::Join || self.add_position(topic, rendered)
    }

    pub(super) fn render(&mut self, data: &Template, out: &mut Vec<u8>) {
        let values = &mut self.context.values;
        let before = values.stamps;
        values.render(self.user, data, out);
        for number in before..values.stamps {
            self.out.published(self.user.id, number, values.run_ns(self.now_ns));
        }
    }

    fn encode_channel(
        &mut self,
        op: &ChannelOp,
        topic: &Topic,
        rendered: &[u8],
        message: &mut Vec<u8>,
    ) -> Option<(u32, OpCode)> {
        let event = match op.push.event.constant() {
            Some(event) => Cow::Borrowed(str::from_utf8(event).unwrap_or_default()),
            None => Cow::Owned(self.context.values.text(self.user, &op.push.event)),
        };
        let text;
        let payload = if op.push.binary {
            Payload::from_bytes(rendered)
        } else {
            text = String::from_utf8_lossy(rendered);
            match text.is_empty() {
                true => Payload::EMPTY_OBJECT,
                // Inserted values may have broken it; the server will refuse it then.
                false => Payload::checked(&text).unwrap_or(Payload::Json(Cow::Borrowed(&text))),
            }
        };
        let client = &mut self.user.client;
        let sent = match op.command {
            ChannelCommand::Join => client.join(message, topic, &payload),
            ChannelCommand::Push => client.push(message, topic, &event, &payload),
            ChannelCommand::Leave => client.leave(message, topic),
        };
        let sent = sent.ok()?;
        let opcode = match sent.kind {
            Kind::Text => OpCode::Text,
            Kind::Binary => OpCode::Binary,
        };
        self.translate_out(message, op.push.await_reply)?;
        Some((sent.msg_ref, opcode))
    }

    pub(super) fn heartbeat(&mut self) -> Flow {
        if !self.user.conn.is_open() {
            return Flow::Wait;
        }
        let heartbeat = self.session().and_then(|session| session.heartbeat.as_ref());
        if let Some(frame) = heartbeat.and_then(|heartbeat| heartbeat.send.as_ref()) {
            self.out.count(Count::Heartbeats, 1);
            return self.send_data(&frame.data, frame.binary).err().unwrap_or(Flow::Wait);
        }
        if self.user.client.awaits_heartbeat() {
            // As in phoenix.js: the server is gone, though its connection is open.
            let text = || "the heartbeat before was not answered".to_owned();
            return self.lost(Some(ErrorKind::ReplyTimeout), text);
        }
        let mut message = std::mem::take(&mut self.context.message);
        message.clear();
        let mut flow = Flow::Wait;
        if self.user.client.heartbeat(&mut message).is_ok()
            && self.translate_out(&mut message, false).is_some()
        {
            flow = self.send_to_channel(OpCode::Text, &message).err().unwrap_or(flow);
            self.out.count(Count::Heartbeats, 1);
        }
        self.context.message = message;
        flow
    }

    /// Handles a Channels message; `None` if only the protocol needs it.
    #[inline]
    pub(super) fn channel_message(&mut self, message: &ServerMessage<'_>) -> Option<Flow> {
        let awaited = match self.user.state {
            UserState::AwaitRef => self.user.awaits(),
            _ => 0,
        };
        // Refs are numbered from 1.
        let is_awaited = |msg_ref: u32| awaited != 0 && msg_ref == awaited;
        match self.user.client.handle(message) {
            Incoming::JoinOk { msg_ref, topic, response } => {
                self.out.count(Count::JoinsOk, 1);
                self.follow_join(topic);
                if is_awaited(msg_ref) {
                    return Some(self.replied("ok", response));
                }
            }
            Incoming::JoinError { msg_ref, topic, status, response } => {
                self.note_ended(topic);
                if is_awaited(msg_ref) {
                    return Some(self.replied(status, response));
                }
                let text = || format!("{topic}: {}", response.json().unwrap_or("binary"));
                self.out.error(ErrorKind::JoinRefused, self.user.origin(), text);
            }
            Incoming::Reply { msg_ref, status, response, .. } => {
                let count = if status == "ok" { Count::RepliesOk } else { Count::RepliesError };
                self.out.count(count, 1);
                if is_awaited(msg_ref) {
                    return Some(self.replied(status, response));
                }
            }
            Incoming::Left { msg_ref, topic } => {
                self.follow_left(topic);
                if is_awaited(msg_ref) {
                    return Some(self.replied("ok", &Payload::EMPTY_OBJECT));
                }
            }
            Incoming::HeartbeatReply { .. } => {}
            Incoming::Closed { topic } => self.channel_closed("phx_close", topic, None),
            Incoming::Errored { topic, payload } => {
                self.channel_closed("phx_error", topic, payload.json());
            }
            Incoming::Push { topic, event, payload }
            | Incoming::Broadcast { topic, event, payload } => {
                self.presence_in(topic, event, payload.json());
                return self.position_in(message).then_some(Flow::Wait);
            }
            Incoming::Unrelated => return None,
        }
        Some(Flow::Wait)
    }

    fn channel_closed(&mut self, event: &str, topic: &str, reason: Option<&str>) {
        self.note_ended(topic);
        let reason = reason.filter(|reason| *reason != "{}").map(|reason| format!(": {reason}"));
        let text = || format!("{event} of {topic}{}", reason.unwrap_or_default());
        self.out.error(ErrorKind::ChannelClosed, self.user.origin(), text);
    }

    pub(super) fn replied(&mut self, status: &str, response: &Payload<'_>) -> Flow {
        let Op::Channel(op) = self.op() else { return Flow::Wait };
        let took_us = self.elapsed_us();
        self.user.state = UserState::Running;
        self.follow_reply(status == "ok");
        let (metric, _, method) = op.command.figures();
        self.out.time(metric, took_us);
        let (what, bytes) = ("channel", response.len() as u64);
        self.dump_exchange(&Exchange { method, what, status, bytes, took_us });
        let wanted = match (op.command, &op.push.status) {
            (_, Some(wanted)) => wanted == status,
            (ChannelCommand::Join, None) => status == "ok",
            (_, None) => true,
        };
        if !wanted {
            let text = || format!("{status}: {}", response.json().unwrap_or("binary"));
            if op.command == ChannelCommand::Join {
                // Steps after a join depend on it.
                return self.fail(ErrorKind::JoinRefused, text);
            }
            self.out.error(ErrorKind::ReplyError, self.user.origin(), text);
        }
        if op.answer.is_none() {
            return Flow::Done;
        }
        let bytes = response.json().map(str::as_bytes).or(response.binary()).unwrap_or_default();
        self.answered(&op.answer, &AnswerText::body_only(bytes))
    }
}
