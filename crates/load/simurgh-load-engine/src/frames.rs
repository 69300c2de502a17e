//! What comes over a user's WebSocket, and what it says there as a Channels client.

use std::borrow::Cow;
use std::rc::Rc;

use simurgh_load_record::{Count, ErrorKind, Metric};
use simurgh_load_scenario::answer::AnswerText;
use simurgh_load_scenario::{Action, Dialect};
use simurgh_proto::message::Payload;
use simurgh_proto::serializer::{Frame, Kind, ServerMessage};
use simurgh_proto::session::client::{Incoming, Topic};
use simurgh_proto::ws::{CloseFrame, Event, OpCode};

use super::answers::{AnswerOp, MatcherOp};
use super::dump::Exchange;
use super::program::{ChannelCommand, ChannelOp, Op};
use super::steps::Flow;
use super::user::{ConnState, KeptFrame, UserState};
use super::worker::{Net, Worker};
use crate::stamp::Stamp;

/// Frames kept for a later wait; older ones go first.
const KEPT_FRAMES_MAX: usize = 256;
/// Bytes of one such frame.
const KEPT_BYTES_MAX: usize = 64 << 10;

impl Worker {
    /// A message or control frame has come.
    pub(crate) fn event_in(&mut self, io: &mut Net, u: u32, event: Event<'_>, received_ns: u64) {
        match event {
            Event::Text(text) => {
                self.recorder.count(Count::FramesInText, 1);
                self.frame_in(io, u, Frame::Text(&text), received_ns);
            }
            Event::Binary(bytes) => {
                self.recorder.count(Count::FramesInBinary, 1);
                self.frame_in(io, u, Frame::Binary(&bytes), received_ns);
            }
            Event::Ping(payload) => {
                self.recorder.count(Count::PingsIn, 1);
                self.put_frame(io, u, OpCode::Pong, &payload);
            }
            Event::Pong(_) => self.recorder.count(Count::PongsIn, 1),
            Event::Close(frame) => self.close_in(io, u, frame),
        }
    }

    fn close_in(&mut self, io: &mut Net, u: u32, frame: Option<CloseFrame<'_>>) {
        self.recorder.count(Count::ClosesIn, 1);
        let Some(user) = self.users.get(u) else { return };
        if user.link == ConnState::WebSocketClosing && user.state == UserState::Closing {
            self.let_go(io, u);
            return self.done(io, u);
        }
        let code = frame.as_ref().map_or(1005, |frame| frame.code.0);
        let reason = frame.map(|frame| frame.reason.into_owned()).unwrap_or_default();
        // Its close frame is answered with ours when the connection is let go.
        self.lost(io, u, Some(ErrorKind::Closed(code)), || reason);
    }

    pub(super) fn frame_in(&mut self, io: &mut Net, u: u32, frame: Frame<'_>, received_ns: u64) {
        self.dump_bytes(u, false, bytes_of(frame));
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u) else { return };
        let session = program.session_at(user.at);
        let message = match session.map(|session| session.dialect) {
            Some(Dialect::Phoenix(_)) => match user.client.serializer().decode_server(frame) {
                Ok(message) => Some(message),
                Err(error) => {
                    let origin = user.origin();
                    let text = || error.to_string();
                    self.recorder.error_with(ErrorKind::MessageMalformed, origin, text);
                    None
                }
            },
            _ => None,
        };
        // A reply that repeats the stamp is no delivery.
        if program.stamped && !matches!(message, Some(ServerMessage::Reply { .. })) {
            self.look_for_stamp(u, frame, message.as_ref(), received_ns);
        }
        if let Some(message) = &message
            && self.channel_message(io, u, message, received_ns)
        {
            return;
        }
        self.wanted_or_not(io, u, frame, message.as_ref(), received_ns);
    }

    fn look_for_stamp(
        &mut self,
        u: u32,
        frame: Frame<'_>,
        message: Option<&ServerMessage<'_>>,
        received_ns: u64,
    ) {
        let Some(stamp) = self.stamps.find(bytes_of(frame)) else { return };
        let received_ns = self.run_ns(received_ns);
        let Stamp { sender, number, at_ns, .. } = stamp;
        if self.follows() {
            let topic = message.and_then(|message| match message {
                ServerMessage::Event(message) => Some(&*message.topic),
                ServerMessage::Reply { .. } => None,
            });
            let is_news = self.follow_in(u, topic, &stamp);
            return self.recorder.delivered(sender, number, at_ns, received_ns, is_news);
        }
        let seen = self.seen.get_mut(u as usize);
        self.recorder.delivery(sender, number, at_ns, received_ns, seen);
    }

    /// Gives a frame to whoever waits for it.
    fn wanted_or_not(
        &mut self,
        io: &mut Net,
        u: u32,
        frame: Frame<'_>,
        message: Option<&ServerMessage<'_>>,
        received_ns: u64,
    ) {
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u) else { return };
        match (user.state, program.op(user.at)) {
            (UserState::AwaitFirst, Op::Send(op)) => {
                self.message_answered(io, u, &op.answer, frame, received_ns);
            }
            (UserState::AwaitMatch, Op::Send(op))
                if self.is_match(u, &op.matcher, frame, message) =>
            {
                self.message_answered(io, u, &op.answer, frame, received_ns);
            }
            (UserState::AwaitMatch, Op::Wait(matcher, answer))
                if self.is_this(u, matcher, frame, message) =>
            {
                let text = AnswerText::body_only(bytes_of(frame));
                self.answered(io, u, answer, &text);
            }
            (UserState::Receiving, Op::Receive(op))
                if op.matcher.is_none() || self.is_match(u, &op.matcher, frame, message) =>
            {
                self.received(io, u);
            }
            (UserState::AwaitServer, _) => self.done(io, u),
            _ => {
                self.recorder.count(Count::FramesUnsolicited, 1);
                self.keep(u, frame);
            }
        }
    }

    fn is_match(
        &mut self,
        u: u32,
        matcher: &Option<MatcherOp>,
        frame: Frame<'_>,
        message: Option<&ServerMessage<'_>>,
    ) -> bool {
        matcher.as_ref().is_some_and(|matcher| self.is_this(u, matcher, frame, message))
    }

    fn is_this(
        &mut self,
        u: u32,
        matcher: &MatcherOp,
        frame: Frame<'_>,
        message: Option<&ServerMessage<'_>>,
    ) -> bool {
        let found = self.with_user(u, |maker, user| matcher.matches(maker, user, frame, message));
        found == Some(true)
    }

    /// One of the frames that a user stays for.
    fn received(&mut self, io: &mut Net, u: u32) {
        let Some(user) = self.users.get(u) else { return };
        // Without a number it stays for its time.
        if let Some(left) = user.awaits().checked_sub(1) {
            user.set_awaits(left);
            if left == 0 {
                self.done(io, u);
            }
        }
    }

    /// Keeps a frame that nobody waits for, where the user may wait later.
    fn keep(&mut self, u: u32, frame: Frame<'_>) {
        let Some(user) = self.users.get(u) else { return };
        let payload = bytes_of(frame);
        if !self.program.waits_after(user.at) || payload.len() > KEPT_BYTES_MAX {
            return;
        }
        let kept = &mut user.extra().kept;
        if kept.len() >= KEPT_FRAMES_MAX {
            kept.pop_front();
        }
        kept.push_back(KeptFrame {
            binary: matches!(frame, Frame::Binary(_)),
            payload: payload.into(),
        });
    }

    /// Runs a `Wait`: looks through what came, then waits.
    pub(crate) fn wait_frame(
        &mut self,
        io: &mut Net,
        u: u32,
        matcher: &MatcherOp,
        answer: &AnswerOp,
    ) -> Flow {
        let timeout = answer.timeout.unwrap_or(self.program.scenario.timeouts.reply);
        self.wait_until(io, u, UserState::AwaitMatch, Some(timeout));
        let Some(found) = self.take_kept(u, matcher) else { return Flow::Wait };
        self.unset_timer(u);
        match self.digest(io, u, answer, &AnswerText::body_only(&found)) {
            // Not by way of `done`, which would come back here within this call.
            None | Some(Action::Continue | Action::Log | Action::Dump) => Flow::Next,
            Some(action) => {
                self.take_action(io, u, action);
                Flow::Wait
            }
        }
    }

    /// The first of the kept frames that matches; the others stay for those who want them.
    fn take_kept(&mut self, u: u32, matcher: &MatcherOp) -> Option<Box<[u8]>> {
        let user = self.users.get(u)?;
        let mut kept = std::mem::take(&mut user.extra.as_mut()?.kept);
        let at = kept.iter().position(|kept| {
            let frame = match str::from_utf8(&kept.payload) {
                Ok(text) if !kept.binary => Frame::Text(text),
                _ => Frame::Binary(&kept.payload),
            };
            self.is_this(u, matcher, frame, None)
        });
        let found = at.and_then(|at| kept.remove(at));
        let user = self.users.get(u)?;
        if self.program.waits_after(user.at) {
            user.extra().kept = kept;
        }
        user.tidy();
        Some(found?.payload)
    }

    fn message_answered(
        &mut self,
        io: &mut Net,
        u: u32,
        answer: &AnswerOp,
        frame: Frame<'_>,
        received_ns: u64,
    ) {
        let Some(user) = self.users.get(u) else { return };
        let took_us = Self::elapsed_us(user.since_us, received_ns);
        user.state = UserState::Running;
        self.recorder.time(Metric::Message, took_us);
        self.dump_exchange(
            u,
            &Exchange {
                method: "message",
                what: "websocket",
                status: "",
                bytes: bytes_of(frame).len() as u64,
                took_us,
            },
        );
        self.answered(io, u, answer, &AnswerText::body_only(bytes_of(frame)));
    }

    /// Runs a join, a push or a leave.
    pub(crate) fn channel(&mut self, io: &mut Net, u: u32, op: &ChannelOp) -> Flow {
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        if !user.link.is_open() {
            return self.not_connected(io, u);
        }
        let topic = match &op.topic {
            Some(topic) => topic.clone(),
            None => {
                let text = self.with_user(u, |maker, user| maker.text(user, &op.push.topic));
                Topic::from(text.unwrap_or_default().as_str())
            }
        };
        let mut rendered = std::mem::take(&mut self.scratch);
        rendered.clear();
        if !self.render_channel(io, u, op, &topic, &mut rendered) {
            let text = || "the payload of a join that resumes is no object".to_owned();
            self.fail(io, u, ErrorKind::Send, text);
            return Flow::Wait;
        }
        let sent = self.write_channel(u, op, &topic, &rendered);
        self.scratch = rendered;
        let Some((msg_ref, kind, message)) = sent else {
            self.fail(io, u, ErrorKind::Send, || "the message cannot be encoded".to_owned());
            return Flow::Wait;
        };
        let opcode = match kind {
            Kind::Text => OpCode::Text,
            Kind::Binary => OpCode::Binary,
        };
        self.note_presence(u, op, &topic, io.clock_ns());
        let is_there = self.put_message(io, u, opcode, &message);
        self.frame_scratch = message;
        if !is_there {
            return Flow::Wait;
        }
        self.recorder.count(
            match op.command {
                ChannelCommand::Join => Count::Joins,
                ChannelCommand::Push => Count::Pushes,
                ChannelCommand::Leave => Count::Leaves,
            },
            1,
        );
        self.note_join(u, op.command);
        if op.command == ChannelCommand::Leave {
            self.follow_leave(u, &topic, io.clock_ns());
        }
        if !op.push.await_reply {
            // Nobody will say that it did not go well.
            self.follow_reply(u, true);
            self.recorder.count(Count::RequestsNoAck, 1);
            return Flow::Next;
        }
        self.recorder.count(Count::Requests, 1);
        if let Some(user) = self.users.get(u) {
            user.set_awaits(msg_ref);
        }
        let timeout = op.answer.timeout.unwrap_or(self.program.scenario.timeouts.reply);
        self.wait_until(io, u, UserState::AwaitRef, Some(timeout))
    }

    /// Appends the payload of a join, a push or a leave; `false` if it cannot say where the user
    /// stands, as it should.
    fn render_channel(
        &mut self,
        io: &mut Net,
        u: u32,
        op: &ChannelOp,
        topic: &str,
        rendered: &mut Vec<u8>,
    ) -> bool {
        if op.command == ChannelCommand::Push && self.follows() {
            self.maker.goes_to = Some((self.maker.shared.ledger.topic(topic), io.clock_ns()));
        }
        self.render(io, u, &op.push.payload, rendered);
        self.maker.goes_to = None;
        self.follow_push(u);
        let at = self.users.get(u).map(|user| user.at);
        let session = at.and_then(|at| self.program.session_at(at));
        let resumes = session.is_some_and(|session| session.resume);
        !resumes || op.command != ChannelCommand::Join || self.say_position(u, topic, rendered)
    }

    fn write_channel(
        &mut self,
        u: u32,
        op: &ChannelOp,
        topic: &Topic,
        rendered: &[u8],
    ) -> Option<(u32, Kind, Vec<u8>)> {
        let event =
            self.with_user(u, |maker, user| match super::program::constant(&op.push.event) {
                Some(_) => None,
                None => Some(maker.text(user, &op.push.event)),
            })?;
        let event = match &event {
            Some(event) => event.as_str(),
            None => super::program::constant(&op.push.event)
                .and_then(|event| str::from_utf8(event).ok())
                .unwrap_or_default(),
        };
        let text;
        let payload = if op.push.binary {
            Payload::from_bytes(rendered)
        } else {
            text = String::from_utf8_lossy(rendered);
            match text.is_empty() {
                true => Payload::EMPTY_OBJECT,
                // Values put in may have broken it, which would be the server's to say.
                false => Payload::checked(&text).unwrap_or(Payload::Json(Cow::Borrowed(&text))),
            }
        };
        let mut message = std::mem::take(&mut self.frame_scratch);
        message.clear();
        let client = &mut self.users.get(u)?.client;
        let sent = match op.command {
            ChannelCommand::Join => client.join(&mut message, topic, &payload),
            ChannelCommand::Push => client.push(&mut message, topic, event, &payload),
            ChannelCommand::Leave => client.leave(&mut message, topic),
        };
        let sent = sent.ok()?;
        Some((sent.msg_ref, sent.kind, message))
    }

    /// Sends a heartbeat if the user has an open socket.
    pub(crate) fn heartbeat(&mut self, io: &mut Net, u: u32) {
        let Some(user) = self.users.get(u).filter(|user| user.link.is_open()) else {
            return;
        };
        if user.client.awaits_heartbeat() {
            // As phoenix.js does: the server is gone, though nobody said so.
            let text = || "the heartbeat before was not answered".to_owned();
            return self.lost(io, u, Some(ErrorKind::ReplyTimeout), text);
        }
        let mut message = std::mem::take(&mut self.frame_scratch);
        message.clear();
        let sent = user.client.heartbeat(&mut message);
        if sent.is_ok() {
            self.put_message(io, u, OpCode::Text, &message);
            self.recorder.count(Count::Heartbeats, 1);
        }
        self.frame_scratch = message;
    }

    /// What a Channels message means; `true` if it was all for the protocol and nobody else wants
    /// to see it.
    fn channel_message(
        &mut self,
        io: &mut Net,
        u: u32,
        message: &ServerMessage<'_>,
        received_ns: u64,
    ) -> bool {
        let Some(user) = self.users.get(u) else { return true };
        let (awaited, state) = (user.awaits(), user.state);
        let is_awaited = |msg_ref: u32| state == UserState::AwaitRef && msg_ref == awaited;
        match user.client.handle(message) {
            Incoming::JoinOk { msg_ref, topic, response } => {
                self.recorder.count(Count::JoinsOk, 1);
                self.follow_join(u, topic, received_ns);
                if is_awaited(msg_ref) {
                    self.replied(io, u, "ok", response, received_ns);
                }
                true
            }
            Incoming::JoinError { msg_ref, topic, status, response } => {
                self.note_ended(u, topic);
                if is_awaited(msg_ref) {
                    self.replied(io, u, status, response, received_ns);
                } else {
                    self.join_refused(u, topic, response);
                }
                true
            }
            Incoming::Reply { msg_ref, status, response, .. } => {
                let count = if status == "ok" { Count::RepliesOk } else { Count::RepliesError };
                self.recorder.count(count, 1);
                if is_awaited(msg_ref) {
                    self.replied(io, u, status, response, received_ns);
                }
                true
            }
            Incoming::Left { msg_ref, .. } => {
                if is_awaited(msg_ref) {
                    self.replied(io, u, "ok", &Payload::EMPTY_OBJECT, received_ns);
                }
                true
            }
            Incoming::HeartbeatReply { .. } => true,
            Incoming::Closed { topic } => {
                self.note_ended(u, topic);
                let topic = topic.to_owned();
                self.channel_closed(u, || format!("phx_close of {topic}"));
                true
            }
            Incoming::Errored { topic, .. } => {
                self.note_ended(u, topic);
                let topic = topic.to_owned();
                self.channel_closed(u, || format!("phx_error of {topic}"));
                true
            }
            Incoming::Push { topic, event, payload }
            | Incoming::Broadcast { topic, event, payload } => {
                self.presence_in(u, topic, event, payload.json(), received_ns);
                self.position_in(u, message)
            }
            Incoming::Unrelated => false,
        }
    }

    fn channel_closed(&mut self, u: u32, text: impl FnOnce() -> String) {
        let Some(user) = self.users.get(u) else { return };
        let origin = user.origin();
        self.recorder.error_with(ErrorKind::ChannelClosed, origin, text);
    }

    fn join_refused(&mut self, u: u32, topic: &str, response: &Payload<'_>) {
        let Some(user) = self.users.get(u) else { return };
        let origin = user.origin();
        let text = || format!("{topic}: {}", response.json().unwrap_or("binary"));
        self.recorder.error_with(ErrorKind::JoinRefused, origin, text);
    }

    /// The reply that the user waits for.
    fn replied(
        &mut self,
        io: &mut Net,
        u: u32,
        status: &str,
        response: &Payload<'_>,
        received_ns: u64,
    ) {
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u) else { return };
        let Op::Channel(op) = program.op(user.at) else { return };
        let took_us = Self::elapsed_us(user.since_us, received_ns);
        let origin = user.origin();
        user.state = UserState::Running;
        self.follow_reply(u, status == "ok");
        let metric = match op.command {
            ChannelCommand::Join => Metric::Join,
            ChannelCommand::Push => Metric::Push,
            ChannelCommand::Leave => Metric::Leave,
        };
        self.recorder.time(metric, took_us);
        let method = match op.command {
            ChannelCommand::Join => "join",
            ChannelCommand::Push => "push",
            ChannelCommand::Leave => "leave",
        };
        let bytes = response.len() as u64;
        self.dump_exchange(u, &Exchange { method, what: "channel", status, bytes, took_us });
        let wanted = match (op.command, &op.push.status) {
            (_, Some(wanted)) => wanted == status,
            (ChannelCommand::Join, None) => status == "ok",
            (_, None) => true,
        };
        if !wanted {
            let text = || format!("{status}: {}", response.json().unwrap_or("binary"));
            if op.command == ChannelCommand::Join {
                // What comes after a join rests on it.
                return self.fail(io, u, ErrorKind::JoinRefused, text);
            }
            self.recorder.error_with(ErrorKind::ReplyError, origin, text);
        }
        if op.answer.is_none() {
            return self.done(io, u);
        }
        let bytes = response.json().map(str::as_bytes).or(response.binary()).unwrap_or_default();
        self.answered(io, u, &op.answer, &AnswerText::body_only(bytes));
    }
}

fn bytes_of<'a>(frame: Frame<'a>) -> &'a [u8] {
    match frame {
        Frame::Text(text) => text.as_bytes(),
        Frame::Binary(bytes) => bytes,
    }
}
