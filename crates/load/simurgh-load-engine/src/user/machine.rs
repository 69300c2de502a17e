//! One step of a user: an input, and the operations that follow until it has to wait.

use std::time::Duration;

use simurgh_load_record::{Count, ErrorKind, Metric};
use simurgh_load_scenario::Drop;
use simurgh_proto::ws::{CloseCode, Event};

use super::{Context, Outputs, Purpose, User, UserState};
use crate::program::{ChannelCommand, Op, Program};
use crate::time::{TICK_US, due_ns, elapsed_us, nanos, tick, tick_after, us};

/// An event for a user.
pub(crate) enum Input<'a> {
    /// The user begins.
    Begin,
    /// Its timer is due.
    Time,
    /// A connection is established, with TLS where it is used.
    Connected(Purpose),
    /// Bytes of a connection that is not a WebSocket yet.
    Bytes(Purpose, &'a [u8]),
    /// A message or control frame of its WebSocket.
    Event(Event<'a>),
    /// A message of a poll's answer.
    Polled(&'a str),
    /// The server violated the protocol; this close code answers it.
    ProtocolError(CloseCode, ErrorKind, String),
    /// A connection has failed by a fault of the server in TLS.
    Failed(Purpose, ErrorKind, String),
    /// A connection has ended, counted as `kind`; `in_handshake`: during the TLS handshake.
    Ended { purpose: Purpose, kind: ErrorKind, in_handshake: bool },
    /// A heartbeat is due.
    Heartbeat,
    /// Its long-poll session is checked for a time-out.
    CheckPolls,
    /// Its connection is to be cut, if it is [`interruptible`](User::interruptible).
    Cut(&'a Drop),
    /// As many users as it waited for have gathered.
    Gathered,
    /// The run is over.
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Wait for the next input.
    Wait,
    /// Run the next operation.
    Next,
    /// Run another operation.
    Goto(u32),
    /// The awaited event has come: run the next operation, which is due now.
    Done,
    /// Run another operation, which is due now.
    Restart(u32),
}

/// An error: sending has ended the user's session, and how the user continues.
pub(super) type Sent = Result<(), Flow>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Finished,
    Aborted,
}

/// Operations in a row before other users get their turn, as a loop may have no wait.
const OPS_MAX: u32 = 10_000;
/// The delay of that user's next turn: a millisecond.
const PAUSE_TICKS: u32 = 1_000 / TICK_US;

/// A user, with all that it needs for a step.
pub(crate) struct Machine<'a, O> {
    pub(crate) user: &'a mut User,
    /// Its index in the table of users.
    pub(crate) place: u32,
    pub(crate) program: &'a Program,
    pub(crate) context: &'a mut Context,
    /// Time of the input, nanoseconds.
    pub(crate) now_ns: u64,
    /// It began by a timer: what it measures counts from now on, since the server has no part in
    /// how late the timer was.
    pub(crate) is_timed: bool,
    pub(crate) out: &'a mut O,
}

impl<O: Outputs> Machine<'_, O> {
    #[inline]
    pub(crate) fn step(&mut self, input: Input<'_>) {
        self.context.values.now_ns = self.now_ns;
        self.is_timed = matches!(input, Input::Begin);
        let flow = self.take(input);
        if flow != Flow::Wait {
            self.go_on(flow);
        }
    }

    #[inline]
    fn take(&mut self, input: Input<'_>) -> Flow {
        match input {
            Input::Event(event) => self.event_in(event),
            Input::Polled(text) => self.polled_in(text),
            Input::Bytes(Purpose::User, bytes) => self.bytes_in(bytes),
            Input::Bytes(purpose, bytes) => self.call_in(purpose, bytes),
            Input::Begin => Flow::Goto(self.user.at),
            Input::Time => self.timer_due(),
            Input::Connected(Purpose::User) => self.connected(),
            Input::Connected(_) => self.posts_connected(),
            Input::ProtocolError(code, kind, text) => self.protocol_error(code, kind, text),
            Input::Failed(Purpose::User, kind, text) => self.connection_failed(kind, text),
            Input::Failed(_, kind, text) => self.session_failed(kind, || text),
            Input::Ended { purpose, kind, in_handshake } => match purpose {
                Purpose::User => self.ended(kind, in_handshake),
                Purpose::Posts => self.posts_ended(kind),
                Purpose::Stored => self.stored_ended(),
            },
            Input::Heartbeat => self.heartbeat(),
            Input::CheckPolls => self.check_polls(),
            Input::Cut(drop) => self.cut(drop),
            Input::Gathered => self.gathered(),
            Input::Stop => self.stop(),
        }
    }

    pub(super) fn go_on(&mut self, mut flow: Flow) {
        for _ in 0..OPS_MAX {
            self.now_ns = self.out.clock_ns();
            self.context.values.now_ns = self.now_ns;
            flow = match flow {
                // After a reconnect, steps are repeated one by one.
                Flow::Next | Flow::Goto(_) if self.user.is_resuming() => {
                    self.begin_anew(Flow::Done)
                }
                Flow::Next => self.run(self.user.at + 1),
                Flow::Goto(to) => self.run(to),
                Flow::Done | Flow::Restart(_) => self.begin_anew(flow),
                Flow::Wait => return,
            };
        }
        match flow {
            Flow::Next | Flow::Done => self.user.at += 1,
            Flow::Goto(to) | Flow::Restart(to) => self.user.at = to,
            Flow::Wait => return,
        }
        let next_tick = tick(self.now_ns) + PAUSE_TICKS;
        self.user.state = UserState::Pacing;
        self.user.since_us = next_tick.wrapping_mul(TICK_US);
        self.out.set_timer(Some(next_tick));
    }

    /// Runs an operation that is due now.
    fn begin_anew(&mut self, flow: Flow) -> Flow {
        self.out.set_timer(None);
        self.user.since_us = us(self.now_ns);
        self.user.set_awaits(0);
        match flow {
            Flow::Restart(to) => self.run(to),
            _ if self.user.is_resuming() => self.go_on_resuming(),
            _ => self.run(self.user.at + 1),
        }
    }

    pub(super) fn run(&mut self, at: u32) -> Flow {
        self.user.at = at;
        self.user.state = UserState::Running;
        self.user.set_awaits(0);
        let program = self.program;
        match program.op(at) {
            Op::Connect(..) => self.connect(),
            Op::Send(send) => self.send_message(send),
            Op::Raw(send) => self.send_raw(send),
            Op::Wait(matcher, answer) => self.wait_for_message(matcher, answer),
            Op::Receive(receive) => self.receive(receive),
            Op::Think(think) => self.think(*think),
            Op::Channel(channel) => self.channel(channel),
            Op::Http(http, _) => self.request(http),
            Op::Close(code) => self.close(*code),
            Op::Set(set) => {
                self.context.values.set(self.user, set);
                Flow::Next
            }
            Op::LoopStart(start) => self.loop_start(start),
            Op::LoopEnd(end) => self.loop_end(end),
            Op::Each(each) => self.next_element(each),
            Op::RepeatEnd(repeat) => self.repeat_end(repeat),
            Op::Unless(condition, to) => match self.holds(condition) {
                Some(false) => Flow::Goto(*to),
                // Tsung goes on without a value.
                Some(true) | None => Flow::Next,
            },
            Op::Jump(to) => Flow::Goto(*to),
            Op::TransactionStart(metric) => {
                let since_us = self.user.since_us;
                self.user.extra().transactions.push((*metric, since_us));
                Flow::Next
            }
            Op::TransactionEnd(metric) => self.transaction_end(*metric),
            Op::Switch(switch) => self.switch(switch),
            Op::Gather(users, timeout) => {
                self.out.gather(*users);
                self.wait(UserState::Gathering, *timeout)
            }
            Op::InteractionSend(id) => {
                self.context.values.shared.interaction_sent(id, self.now_ns);
                Flow::Next
            }
            Op::InteractionReceive(id, metric) => {
                if let Some(sent_ns) = self.context.values.shared.interaction(id) {
                    self.out.time(*metric, self.now_ns.saturating_sub(sent_ns) / 1000);
                }
                Flow::Next
            }
            Op::WaitServer => self.wait(UserState::AwaitServer, None),
            Op::Abort => self.leave(Ended::Aborted),
            Op::AbortRun => {
                self.out.abort_run();
                self.leave(Ended::Aborted)
            }
            Op::End => self.leave(Ended::Finished),
        }
    }

    /// Makes the user wait, with a limit where it waits for an answer.
    pub(super) fn wait(&mut self, state: UserState, timeout: Option<Duration>) -> Flow {
        self.user.state = state;
        if let Some(timeout) = timeout {
            self.out.set_timer(Some(tick_after(self.now_ns.saturating_add(nanos(timeout)))));
        }
        Flow::Wait
    }

    /// Waits for the answer to a request, and counts the request.
    pub(super) fn wait_for_answer(&mut self, state: UserState, timeout: Option<Duration>) -> Flow {
        self.out.count(Count::Requests, 1);
        self.measure();
        self.wait(state, Some(timeout.unwrap_or(self.program.scenario.timeouts.reply)))
    }

    /// Starts the measured time of an operation.
    pub(super) fn measure(&mut self) {
        if std::mem::take(&mut self.is_timed) {
            self.user.since_us = us(self.now_ns);
        }
    }

    /// A timer is due: a rest is over, or an answer is late.
    fn timer_due(&mut self) -> Flow {
        let op = self.op();
        match self.user.state {
            UserState::Thinking | UserState::Receiving | UserState::Pacing => {
                let late_us = self.elapsed_us();
                self.out.step_lag(late_us);
                self.is_timed = true;
                if self.user.state == UserState::Pacing {
                    self.put_off_rounds(late_us);
                }
                self.rest_over()
            }
            UserState::BackingOff => self.reopen(),
            UserState::Opening => self.timed_out(ErrorKind::ConnectTimeout),
            UserState::AwaitUpgrade => self.timed_out(ErrorKind::UpgradeTimeout),
            UserState::AwaitRef => self.timed_out(match op {
                Op::Channel(op) if op.command == ChannelCommand::Join => ErrorKind::JoinTimeout,
                _ => ErrorKind::ReplyTimeout,
            }),
            UserState::AwaitFirst | UserState::AwaitHttp => self.timed_out(ErrorKind::ReplyTimeout),
            UserState::AwaitMatch | UserState::AwaitServer => {
                self.timed_out(ErrorKind::WaitTimeout)
            }
            UserState::Gathering => {
                self.out.leave_gathering();
                self.out.error(ErrorKind::WaitTimeout, self.user.origin(), String::new);
                Flow::Done
            }
            // The server has not answered the close: the connection ends anyway.
            UserState::Closing => {
                self.hang_up();
                Flow::Done
            }
            UserState::Running | UserState::Left => Flow::Wait,
        }
    }

    /// A rest is over: what follows is due at the end of the rest.
    pub(super) fn rest_over(&mut self) -> Flow {
        let rested = matches!(self.op(), Op::Think(_) | Op::Receive(_));
        let goes_on = rested && self.user.state != UserState::Pacing;
        Flow::Goto(self.user.at + u32::from(goes_on))
    }

    /// An answer did not come in time.
    fn timed_out(&mut self, kind: ErrorKind) -> Flow {
        if self.user.state == UserState::Opening {
            let since_us = self.connect_since_us();
            self.out.time(Metric::Connect, elapsed_us(since_us, self.now_ns));
        }
        self.fail(kind, String::new)
    }

    /// The awaited request, if there is one, will not be answered. The time waited is a lower bound
    /// of the latency, so it counts.
    pub(super) fn give_up_request(&mut self) {
        if let Some(metric) = self.forget_request() {
            self.out.time(metric, self.elapsed_us());
        }
    }

    /// The same if it is no fault of the server.
    pub(super) fn forget_request(&mut self) -> Option<Metric> {
        self.follow_reply(false);
        let awaited = self.awaited_metric().filter(|metric| *metric != Metric::Connect);
        self.out.count(Count::RequestsUnanswered, awaited.is_some().into());
        awaited
    }

    fn awaited_metric(&self) -> Option<Metric> {
        Some(match (self.user.state, self.op()) {
            (UserState::Opening, _) => Metric::Connect,
            (UserState::AwaitUpgrade, _) => Metric::Upgrade,
            (UserState::AwaitHttp, _) => Metric::Http,
            (UserState::AwaitRef, Op::Channel(channel)) => channel.command.figures().0,
            (UserState::AwaitFirst | UserState::AwaitMatch, Op::Send(_) | Op::Raw(_)) => {
                Metric::Message
            }
            _ => return None,
        })
    }

    /// When the current operation was or will be due.
    pub(super) fn due_ns(&self) -> u64 {
        due_ns(self.user.since_us, self.now_ns)
    }

    /// Microseconds since the current operation was due.
    pub(super) fn elapsed_us(&self) -> u64 {
        elapsed_us(self.user.since_us, self.now_ns)
    }

    fn gathered(&mut self) -> Flow {
        if self.user.state == UserState::Gathering {
            return Flow::Done;
        }
        if self.user.is_gathering()
            && let Some(extra) = self.user.extra_mut()
            && let Some(resume) = &mut extra.resume
        {
            // Its connection is not back yet; there is nothing to wait for then.
            resume.rest = None;
            resume.at = resume.lost_at + 1;
        }
        Flow::Wait
    }

    /// Ends the user, with its connections and its session.
    pub(super) fn leave(&mut self, how: Ended) -> Flow {
        self.out.set_timer(None);
        self.give_up_request();
        self.hang_up();
        self.drop_stored();
        self.reset_abandoned();
        self.follow_end();
        self.context.followed.forget(self.place);
        if self.user.is_gathering() {
            self.out.leave_gathering();
        }
        self.user.state = UserState::Left;
        let life = tick(self.now_ns).saturating_sub(self.user.started_tick);
        let life_us = u64::from(life) * u64::from(TICK_US);
        let session = self.program.session_of(self.user.at) as u16;
        self.out.left(how, self.user.phase, session, life_us);
        Flow::Wait
    }

    fn stop(&mut self) -> Flow {
        let is_open = self.awaited_metric().is_some_and(|metric| metric != Metric::Connect);
        self.out.count(Count::RequestsOpen, is_open.into());
        self.leave(match self.user.state {
            // A user that stays or thinks to the end of the run has finished.
            UserState::Thinking | UserState::Pacing | UserState::Receiving => Ended::Finished,
            _ => Ended::Aborted,
        })
    }
}
