//! Users of other servers' protocols: what [`crate::protocol`] translates, and their welcome.

use std::borrow::Cow;

use simurgh_load_record::{Count, ErrorKind};
use simurgh_load_scenario::answer::AnswerText;
use simurgh_load_scenario::{Connect, Protocol};
use simurgh_proto::message::{Payload, Ref};
use simurgh_proto::serializer::{Frame, Serializer, ServerMessage};
use simurgh_proto::ws::OpCode;

use super::dump::Exchange;
use super::machine::Flow;
use super::{Machine, Outputs, UserState};
use crate::program::{ChannelCommand, Op};
use crate::protocol::{self, Received};

impl<O: Outputs> Machine<'_, O> {
    pub(super) fn other_protocol(&self) -> Option<Protocol> {
        self.session().and_then(|session| session.dialect.other())
    }

    /// Rewrites a message of [`Client`](simurgh_proto::session::client::Client) in the protocol of
    /// the session; `None` if the protocol does not have it.
    pub(super) fn translate_out(&self, message: &mut Vec<u8>, awaits_reply: bool) -> Option<()> {
        let Some(protocol) = self.other_protocol() else { return Some(()) };
        let text = str::from_utf8(message).ok()?;
        let read = Serializer::V2.decode(Frame::Text(text)).ok()?;
        *message = protocol::write(protocol, &read, awaits_reply)?;
        Some(())
    }

    /// The WebSocket is open. The connect is complete with the server's welcome.
    pub(super) fn greet(&mut self, protocol: Protocol, connect: &Connect) {
        let mut payload = Vec::new();
        if let Some(template) = &connect.payload {
            self.render(template, &mut payload);
        }
        let payload = String::from_utf8_lossy(&payload);
        let payload = if payload.is_empty() { Cow::Borrowed("{}") } else { payload };
        if let Some(greeting) = protocol::greeting(protocol, &payload) {
            self.send_frame(OpCode::Text, greeting.as_bytes());
        }
    }

    fn welcomed(&mut self, text: &str) -> Flow {
        let Op::Connect(_, op) = self.op() else { return Flow::Wait };
        let took_us = self.upgrade_answered();
        let (method, what, status) = ("connect", "websocket", "101");
        let bytes = text.len() as u64;
        self.dump_exchange(&Exchange { method, what, status, bytes, took_us });
        self.session_begins();
        self.user.tidy();
        self.reset_abandoned();
        self.answered(op, &AnswerText::body_only(text.as_bytes()))
    }

    /// The server refuses the connection, the step that waits, or something sent before.
    fn refused(&mut self, reason: &str) -> Flow {
        match self.user.state {
            UserState::AwaitUpgrade => self.fail(ErrorKind::UpgradeWrong, || reason.to_owned()),
            UserState::AwaitRef => self.replied("error", &Payload::from_json(reason)),
            _ => {
                let text = || reason.to_owned();
                self.out.error(ErrorKind::ReplyError, self.user.origin(), text);
                Flow::Wait
            }
        }
    }

    /// Reads a frame as a Channels message, if it is one. An error: it is dealt with.
    pub(super) fn translate_in<'f>(
        &mut self,
        protocol: Protocol,
        frame: Frame<'f>,
    ) -> Result<Option<ServerMessage<'f>>, Flow> {
        let Frame::Text(text) = frame else { return Ok(None) };
        match protocol::read(protocol, text) {
            Some(Received::Welcome(text)) if self.user.state == UserState::AwaitUpgrade => {
                Err(self.welcomed(&text))
            }
            Some(Received::Error(reason)) => Err(self.refused(&reason)),
            Some(Received::Ping(answer)) => {
                self.out.count(Count::PingsIn, 1);
                if let Some(answer) = answer.filter(|_| self.user.conn.is_open()) {
                    self.out.count(Count::Answers, 1);
                    self.send_frame(OpCode::Text, answer.as_bytes());
                }
                Err(Flow::Wait)
            }
            Some(Received::Message(message)) => Ok(Some(self.with_topic(message))),
            Some(Received::Welcome(_) | Received::Other) => Ok(None),
            None => {
                let text = || format!("not a message of {}", protocol.name());
                self.out.error(ErrorKind::MessageMalformed, self.user.origin(), text);
                Ok(None)
            }
        }
    }

    /// Adds the topic to a reply that only has a ref.
    fn with_topic<'m>(&self, mut message: ServerMessage<'m>) -> ServerMessage<'m> {
        if let ServerMessage::Reply { topic, msg_ref, .. } = &mut message
            && topic.is_empty()
            && let Some(known) = self.user.client.topic_of(msg_ref)
        {
            *topic = Cow::Owned(known.to_string());
        }
        message
    }

    /// Handles a frame with a message on each line.
    pub(super) fn lines_in(&mut self, frame: Frame<'_>) -> Flow {
        let Frame::Text(text) = frame else { return Flow::Wait };
        let key = self.user.key;
        let mut flow = Flow::Wait;
        for line in text.lines().filter(|line| !line.is_empty()) {
            self.go_on(flow);
            if self.user.key != key {
                return Flow::Wait;
            }
            flow = self.frame_in(Frame::Text(line));
        }
        flow
    }

    /// A join or leave was sent to a server that does not reply to it: it counts from now on.
    pub(super) fn assume_ok(&mut self, command: ChannelCommand, topic: &str) {
        let has_reply = match (self.other_protocol(), command) {
            (Some(protocol), ChannelCommand::Join) => protocol.replies_to_joins(),
            (Some(protocol), ChannelCommand::Leave) => protocol.replies_to_leaves(),
            (_, ChannelCommand::Push) | (None, _) => true,
        };
        if !has_reply {
            let _ = self.channel_message(&ServerMessage::Reply {
                join_ref: Ref::Null,
                msg_ref: Ref::Null,
                topic: topic.into(),
                status: "ok".into(),
                response: Payload::EMPTY_OBJECT,
            });
        }
    }
}
