//! Messages of a user's WebSocket, and the steps that wait for them.

use simurgh_load_record::{Count, ErrorKind, Metric};
use simurgh_load_scenario::answer::{AnswerText, CompiledMatcher};
use simurgh_load_scenario::{Action, Dialect, Protocol, Reply, Template};
use simurgh_proto::serializer::{Frame, ServerMessage};
use simurgh_proto::ws::{CloseFrame, Event, OpCode};

use super::dump::Exchange;
use super::machine::{Flow, Sent};
use super::{ConnState, Context, KeptFrame, Machine, Outputs, UserState};
use crate::program::{AnswerOp, Op, SendOp};
use crate::protocol::{self, Received};

/// Frames kept for a later wait; the oldest are dropped first.
const KEPT_FRAMES_MAX: usize = 256;
/// Bytes of one kept frame.
const KEPT_BYTES_MAX: usize = 64 << 10;

impl<O: Outputs> Machine<'_, O> {
    #[inline]
    pub(super) fn event_in(&mut self, event: Event<'_>) -> Flow {
        match event {
            Event::Text(text) => {
                self.out.count(Count::FramesInText, 1);
                self.frame_in(Frame::Text(&text))
            }
            Event::Binary(bytes) => {
                self.out.count(Count::FramesInBinary, 1);
                self.frame_in(Frame::Binary(&bytes))
            }
            Event::Ping(payload) => {
                self.out.count(Count::PingsIn, 1);
                self.send_frame(OpCode::Pong, &payload);
                Flow::Wait
            }
            Event::Compressed(_) => Flow::Wait,
            Event::Pong(_) => {
                self.out.count(Count::PongsIn, 1);
                Flow::Wait
            }
            Event::Close(frame) => self.close_in(frame),
        }
    }

    pub(super) fn polled_in(&mut self, text: &str) -> Flow {
        self.out.count(Count::FramesInText, 1);
        self.frame_in(Frame::Text(text))
    }

    fn close_in(&mut self, frame: Option<CloseFrame<'_>>) -> Flow {
        self.out.count(Count::ClosesIn, 1);
        if self.user.conn == ConnState::WebSocketClosing && self.user.state == UserState::Closing {
            self.hang_up();
            return Flow::Done;
        }
        let code = frame.as_ref().map_or(1005, |frame| frame.code.0);
        let reason = frame.map(|frame| frame.reason.into_owned()).unwrap_or_default();
        // Closing the connection answers its close frame.
        self.lost(Some(ErrorKind::Closed(code)), || reason)
    }

    pub(super) fn frame_in(&mut self, frame: Frame<'_>) -> Flow {
        self.dump_bytes(false, frame.as_bytes());
        let message = match self.session().map(|session| session.dialect) {
            Some(Dialect::Phoenix(_)) => match self.user.client.serializer().decode_server(frame) {
                Ok(message) => Some(message),
                Err(error) => {
                    let text = || error.to_string();
                    self.out.error(ErrorKind::MessageMalformed, self.user.origin(), text);
                    None
                }
            },
            Some(Dialect::Other(Protocol::Centrifuge)) if frame.as_bytes().contains(&b'\n') => {
                return self.lines_in(frame);
            }
            Some(Dialect::Other(protocol)) => match self.translate_in(protocol, frame) {
                Ok(message) => message,
                Err(flow) => return flow,
            },
            _ => None,
        };
        // A reply that repeats the stamp does not count as a delivery.
        if self.program.stamped && !matches!(message, Some(ServerMessage::Reply { .. })) {
            self.look_for_stamp(frame, message.as_ref());
        }
        let is_answered = match self.answer_frame(frame, message.as_ref()) {
            Ok(is_answered) => is_answered,
            Err(lost) => return lost,
        };
        if let Some(message) = &message
            && let Some(flow) = self.channel_message(message)
        {
            return flow;
        }
        self.wanted_or_not(frame, message.as_ref(), is_answered)
    }

    /// Sends the answer of the first rule that matches a frame; `false` if none does.
    fn answer_frame(
        &mut self,
        frame: Frame<'_>,
        message: Option<&ServerMessage<'_>>,
    ) -> Result<bool, Flow> {
        let rules = self.session().map_or(&[][..], |session| &session.rules);
        if rules.is_empty() || !self.user.conn.is_open() {
            return Ok(false);
        }
        let Some(rule) = rules.iter().find(|rule| self.matches(&rule.when, frame, message)) else {
            return Ok(false);
        };
        self.out.count(Count::Answers, 1);
        self.send_data(&rule.send.data, rule.send.binary).map(|()| true)
    }

    fn look_for_stamp(&mut self, frame: Frame<'_>, message: Option<&ServerMessage<'_>>) {
        let Some(stamp) = self.context.stamps.find(frame.as_bytes()) else { return };
        let topic = message.and_then(|message| match message {
            ServerMessage::Event(message) => Some(&*message.topic),
            ServerMessage::Reply { .. } => None,
        });
        let is_news = self.follow_in(topic, &stamp);
        self.out.delivered(&stamp, self.context.values.run_ns(self.now_ns), is_news);
    }

    /// `is_answered`: by a rule. Such a frame is no reply to a message that takes any frame for it.
    fn wanted_or_not(
        &mut self,
        frame: Frame<'_>,
        message: Option<&ServerMessage<'_>>,
        is_answered: bool,
    ) -> Flow {
        match (self.user.state, self.op()) {
            (UserState::AwaitFirst, Op::Send(op)) if !is_answered => {
                self.message_answered(&op.answer, frame)
            }
            (UserState::AwaitMatch, Op::Send(op))
                if op.matcher.as_ref().is_some_and(|it| self.matches(it, frame, message)) =>
            {
                self.message_answered(&op.answer, frame)
            }
            (UserState::AwaitMatch, Op::Wait(matcher, answer))
                if self.matches(matcher, frame, message) =>
            {
                self.answered(answer, &AnswerText::body_only(frame.as_bytes()))
            }
            (UserState::Receiving, Op::Receive(op))
                if op.matcher.as_ref().is_none_or(|it| self.matches(it, frame, message)) =>
            {
                self.received()
            }
            (UserState::AwaitServer, _) => Flow::Done,
            _ => {
                self.out.count(Count::FramesUnsolicited, 1);
                self.keep(frame, is_answered);
                Flow::Wait
            }
        }
    }

    fn matches(
        &mut self,
        matcher: &CompiledMatcher,
        frame: Frame<'_>,
        message: Option<&ServerMessage<'_>>,
    ) -> bool {
        let Context { values, patterns, .. } = &mut *self.context;
        let user = &mut *self.user;
        let mut render = |template: &_, out: &mut _| values.render(user, template, out);
        matcher.matches(frame, message, patterns, &mut render)
    }

    /// Counts a frame that a user stays for.
    fn received(&mut self) -> Flow {
        // Without a number it stays for its time.
        let Some(left) = self.user.awaits().checked_sub(1) else { return Flow::Wait };
        self.user.set_awaits(left);
        if left == 0 { Flow::Done } else { Flow::Wait }
    }

    /// Keeps a frame that no step waits for, if the user may wait later. Of answered frames, which
    /// come again and again, equal ones are kept once.
    fn keep(&mut self, frame: Frame<'_>, is_answered: bool) {
        let payload = frame.as_bytes();
        if !self.program.waits_after(self.user.at) || payload.len() > KEPT_BYTES_MAX {
            return;
        }
        let kept = &mut self.user.extra().kept;
        if is_answered && kept.iter().any(|kept| *kept.payload == *payload) {
            return;
        }
        if kept.len() >= KEPT_FRAMES_MAX {
            kept.pop_front();
        }
        let binary = matches!(frame, Frame::Binary(_));
        kept.push_back(KeptFrame { binary, payload: payload.into() });
    }

    /// Runs a `Wait`: searches kept frames, then waits.
    pub(super) fn wait_for_message(
        &mut self,
        matcher: &CompiledMatcher,
        answer: &AnswerOp,
    ) -> Flow {
        let timeout = answer.timeout.unwrap_or(self.program.scenario.timeouts.reply);
        self.wait(UserState::AwaitMatch, Some(timeout));
        let Some(found) = self.take_kept(matcher) else { return Flow::Wait };
        self.out.set_timer(None);
        match self.digest(answer, &AnswerText::body_only(&found)) {
            // The next operation is not due anew: the frame was there before.
            None | Some(Action::Continue | Action::Log | Action::Dump) => Flow::Next,
            Some(action) => self.take_action(action),
        }
    }

    /// The first of the kept frames that matches; the others are kept.
    fn take_kept(&mut self, matcher: &CompiledMatcher) -> Option<Box<[u8]>> {
        let mut kept = std::mem::take(&mut self.user.extra_mut()?.kept);
        let at = kept.iter().position(|kept| {
            let frame = match str::from_utf8(&kept.payload) {
                Ok(text) if !kept.binary => Frame::Text(text),
                _ => Frame::Binary(&kept.payload),
            };
            let read = |protocol| match frame {
                Frame::Text(text) => protocol::read(protocol, text),
                Frame::Binary(_) => None,
            };
            let message = match self.other_protocol().and_then(read) {
                Some(Received::Message(message)) => Some(message),
                _ => None,
            };
            self.matches(matcher, frame, message.as_ref())
        });
        let found = at.and_then(|at| kept.remove(at));
        if self.program.waits_after(self.user.at) {
            self.user.extra().kept = kept;
        }
        self.user.tidy();
        Some(found?.payload)
    }

    fn message_answered(&mut self, answer: &AnswerOp, frame: Frame<'_>) -> Flow {
        let took_us = self.elapsed_us();
        self.user.state = UserState::Running;
        self.out.time(Metric::Message, took_us);
        let bytes = frame.as_bytes().len() as u64;
        let (method, what, status) = ("message", "websocket", "");
        self.dump_exchange(&Exchange { method, what, status, bytes, took_us });
        self.answered(answer, &AnswerText::body_only(frame.as_bytes()))
    }

    pub(super) fn send_message(&mut self, op: &SendOp) -> Flow {
        if !self.user.conn.is_open() {
            return self.not_connected();
        }
        if let Err(lost) = self.send_data(&op.message.data, op.message.binary) {
            return lost;
        }
        let state = match &op.message.reply {
            Reply::None => {
                self.out.count(Count::RequestsNoAck, 1);
                return Flow::Next;
            }
            Reply::First => UserState::AwaitFirst,
            Reply::Match(_) => UserState::AwaitMatch,
        };
        self.wait_for_answer(state, op.answer.timeout)
    }

    /// Sends a frame with the user's values.
    pub(super) fn send_data(&mut self, data: &Template, binary: bool) -> Sent {
        let opcode = if binary { OpCode::Binary } else { OpCode::Text };
        let mut payload = std::mem::take(&mut self.context.rendered);
        payload.clear();
        self.render(data, &mut payload);
        self.dump_bytes(true, &payload);
        let sent = self.send_to_channel(opcode, &payload);
        self.context.rendered = payload;
        sent
    }

    pub(super) fn send_frame(&mut self, opcode: OpCode, payload: &[u8]) {
        self.out.send_frame(self.user.key, opcode, payload);
    }
}
