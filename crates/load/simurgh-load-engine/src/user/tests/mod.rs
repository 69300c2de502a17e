//! Unit tests of users: inputs, outputs, and a clock that only the test moves.

mod credentials;
mod populations;
mod properties;
mod protocols;
mod requests;
mod rules;
mod timing;

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use simurgh_load_record::{Count, ErrorKind, MatchLine, Metric, MetricId, OfServer, Origin};
use simurgh_load_scenario::{Overrides, Scenario};
use simurgh_proto::serializer::Serializer;
use simurgh_proto::session::client::Client;
use simurgh_proto::ws::handshake::accept_key;
use simurgh_proto::ws::{CloseCode, CloseFrame, Event, OpCode};
use simurgh_reactor::Key;

use super::upgrade::upgrade_key;
use super::*;
use crate::program::{Program, compile};
use crate::shared::Shared;
use crate::stamp::Stamp;
use crate::time::{tick, tick_nearest, tick_ns, us};

#[derive(Clone, Debug, PartialEq)]
enum Done {
    Dial,
    Sent(String),
    Frame(String),
    Close(u16),
    HangUp(HangUp),
    Gather(u64),
    AbortRun,
    Left(Ended),
}

#[derive(Default)]
struct Log {
    now_ns: u64,
    timer_tick: Option<u32>,
    done: Vec<Done>,
    times: Vec<(MetricId, u64)>,
    errors: Vec<ErrorKind>,
    counts: Vec<(Count, u64)>,
    server: OfServer,
    gathers: bool,
    refuses: bool,
    /// Connections that were dialled and not hung up.
    open: BTreeSet<u32>,
    dialled: u32,
    usable: i64,
    unread: usize,
}

impl Outputs for Log {
    fn clock_ns(&self) -> u64 {
        self.now_ns
    }
    fn set_timer(&mut self, due_tick: Option<u32>) {
        self.timer_tick = due_tick;
    }
    fn dial(&mut self, _: u16) -> Result<Key, (ErrorKind, String)> {
        self.done.push(Done::Dial);
        if self.refuses {
            return Err((ErrorKind::ConnectRefused, String::new()));
        }
        self.dialled += 1;
        self.open.insert(self.dialled);
        Ok(Key { slot: self.dialled, generation: 1 })
    }
    fn send(&mut self, _: Key, bytes: &[u8]) {
        self.done.push(Done::Sent(String::from_utf8_lossy(bytes).into_owned()));
    }
    fn send_frame(&mut self, _: Key, _: OpCode, payload: &[u8]) {
        self.done.push(Done::Frame(String::from_utf8_lossy(payload).into_owned()));
    }
    fn deflate(&mut self, _: Key) {}
    fn send_close(&mut self, _: Key, code: CloseCode, _: &str) {
        self.done.push(Done::Close(code.0));
    }
    fn hold(&mut self, _: Key, _: bool) {}
    fn hang_up(&mut self, key: Key, how: HangUp) {
        self.done.push(Done::HangUp(how));
        if how != HangUp::Abandon {
            assert!(self.open.remove(&key.slot), "{key:?} is hung up twice");
        }
    }
    fn unread(&mut self, bytes: usize) {
        self.unread = bytes;
    }
    fn messages(&mut self, _: Vec<String>) {}
    fn gather(&mut self, users: u64) {
        self.gathers = true;
        self.done.push(Done::Gather(users));
    }
    fn leave_gathering(&mut self) {
        self.gathers = false;
    }
    fn abort_run(&mut self) {
        self.done.push(Done::AbortRun);
    }
    fn left(&mut self, how: Ended, _: u16, _: u16, _: u64) {
        self.done.push(Done::Left(how));
    }
    fn count(&mut self, count: Count, n: u64) {
        self.counts.push((count, n));
    }
    fn time(&mut self, metric: impl Into<MetricId>, us: u64) {
        self.times.push((metric.into(), us));
    }
    fn error(&mut self, kind: ErrorKind, _: Origin, text: impl FnOnce() -> String) {
        let _ = text();
        self.errors.push(kind);
    }
    fn server(&mut self, _: u16) -> &mut OfServer {
        &mut self.server
    }
    fn opened(&mut self, _: u16) {
        self.usable += 1;
    }
    fn closed(&mut self, _: u16) {
        self.usable -= 1;
    }
    fn step_lag(&mut self, _: u64) {}
    fn status(&mut self, _: u16) {}
    fn published(&mut self, _: u32, _: u32, _: u64) {}
    fn delivered(&mut self, _: &Stamp, _: u64, _: Option<bool>) {}
    fn match_line(&mut self, _: MatchLine) {}
    fn dump(&mut self, _: String) {}
}

struct Driven {
    program: Rc<Program>,
    context: Context,
    user: User,
    log: Log,
}

impl Driven {
    /// A user of the only session of a scenario, which has begun.
    fn new(protocol: &str, head: &str, session: &str) -> Self {
        Self::at("ws://127.0.0.1:1", protocol, head, session)
    }

    fn at(url: &str, protocol: &str, head: &str, session: &str) -> Self {
        Self::of(&Self::scenario(url, protocol, head, session), 1_000_000_000)
    }

    fn scenario(url: &str, protocol: &str, head: &str, session: &str) -> Arc<Scenario> {
        let text = format!(
            "[target]\nurl = \"{url}\"\n{head}\n[[phase]]\nduration = \"1s\"\nrate = 1\n\
             [[session]]\nprotocol = \"{protocol}\"\n{session}\n"
        );
        let loaded = simurgh_load_scenario::toml::read(&text, Path::new(""), &Overrides::default());
        match loaded {
            Ok(loaded) => Arc::new(loaded.scenario),
            Err(faults) => panic!("{faults}\n{text}"),
        }
    }

    /// A user that begins at this time.
    fn of(scenario: &Arc<Scenario>, now_ns: u64) -> Self {
        let program = Rc::new(compile(scenario).unwrap());
        let shared = Arc::new(Shared::new(0, 0, 1));
        let context = Context::new(&program, shared, 7, (0, 0), Duration::from_secs(1 << 30));
        let user = User {
            key: NO_KEY,
            held: None,
            client: Client::new(Serializer::V2),
            timer: Link::UNSET,
            at: 0,
            id: 1,
            since_us: us(now_ns),
            started_tick: tick(now_ns),
            round: 0,
            phase: 0,
            server: context.spread.first(1),
            draws: 0,
            state: UserState::Running,
            conn: ConnState::None,
        };
        let log = Log { now_ns, ..Log::default() };
        let mut driven = Self { program, context, user, log };
        driven.step(Input::Begin);
        driven
    }

    fn step(&mut self, input: Input<'_>) {
        let Self { program, context, user, log } = self;
        let now_ns = log.now_ns;
        Machine { user, place: 0, program, context, now_ns, is_timed: false, out: log }.step(input);
        // As the wheel does; rests read it there.
        self.user.timer = Link::due(self.log.timer_tick);
    }

    /// The outputs since the last call.
    fn done(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.log.done)
    }

    fn frames(&mut self) -> Vec<String> {
        let frame = |done| match done {
            Done::Frame(text) => Some(text),
            _ => None,
        };
        self.done().into_iter().filter_map(frame).collect()
    }

    fn wait_ms(&mut self, ms: u64) {
        self.log.now_ns += ms * 1_000_000;
    }

    fn timer(&mut self) -> Duration {
        let due_ns = tick_ns(self.log.timer_tick.take().expect("a timer"));
        let took_ns = due_ns.saturating_sub(self.log.now_ns);
        self.log.now_ns = self.log.now_ns.max(due_ns);
        self.step(Input::Time);
        Duration::from_nanos(took_ns)
    }

    fn text(&mut self, text: &str) {
        self.step(Input::Event(Event::Text(text.into())));
    }

    /// Its connection is established and becomes a WebSocket.
    fn upgrade(&mut self) {
        self.step(Input::Connected(Purpose::User));
        self.accept("");
        assert_eq!(self.log.errors, []);
    }

    /// The server accepts the upgrade, and sends `more`.
    fn accept(&mut self, more: &str) {
        let accept = accept_key(&upgrade_key(&self.context.values, &self.user));
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n\r\n{more}",
            str::from_utf8(&accept).unwrap()
        );
        // In pieces, as on a network.
        let (first, rest) = answer.as_bytes().split_at(30);
        self.step(Input::Bytes(Purpose::User, first));
        self.step(Input::Bytes(Purpose::User, rest));
    }

    fn reply_ok(&mut self, join_ref: &str, msg_ref: &str, topic: &str) {
        self.text(&format!(
            "[\"{join_ref}\",\"{msg_ref}\",\"{topic}\",\"phx_reply\",\
             {{\"status\":\"ok\",\"response\":{{}}}}]"
        ));
    }

    fn times_of(&self, metric: Metric) -> Vec<u64> {
        let metric = MetricId::from(metric);
        self.log.times.iter().filter(|(id, _)| *id == metric).map(|(_, us)| *us).collect()
    }

    fn count_of(&self, count: Count) -> u64 {
        self.log.counts.iter().filter(|(known, _)| *known == count).map(|(_, n)| n).sum()
    }

    /// Whether anything but the end of the run can still happen to the user.
    fn has_a_way_on(&self) -> bool {
        self.log.timer_tick.is_some()
            || self.log.gathers
            || self.user.key != NO_KEY && self.log.open.contains(&self.user.key.slot)
    }
}

const PHOENIX: &str = "phoenix";
const RAW: &str = "raw";

#[test]
fn join_is_sent_and_its_reply_time_is_measured() {
    let steps = "steps = [{ connect = \"/socket\" }, { join = \"room:1\" }, { receive = \"end\" }]";
    let mut user = Driven::new(PHOENIX, "", steps);
    assert_eq!(user.done(), [Done::Dial]);
    user.wait_ms(3);
    user.upgrade();
    assert_eq!(user.times_of(Metric::Connect), [3000]);
    let sent = user.done();
    let [Done::Sent(request), Done::Frame(join)] = sent.as_slice() else { panic!("{sent:?}") };
    assert!(request.starts_with("GET /socket?vsn=2.0.0 HTTP/1.1\r\n"), "{request}");
    assert_eq!(join, r#"["1","1","room:1","phx_join",{}]"#);
    assert_eq!(user.user.state, UserState::AwaitRef);
    user.wait_ms(7);
    // A reply to another message.
    user.reply_ok("1", "9", "room:1");
    assert_eq!(user.user.state, UserState::AwaitRef);
    user.reply_ok("1", "1", "room:1");
    assert_eq!(user.times_of(Metric::Join), [7000]);
    assert_eq!(user.user.state, UserState::Receiving);
    assert_eq!((user.log.timer_tick, user.log.usable), (None, 1));
    assert!(user.user.held.is_none());
}

#[test]
fn think_time_counts_from_its_scheduled_start() {
    let steps = "steps = [{ think = \"250ms\" }, { think = \"1s\" }, { abort = \"run\" }]";
    let mut user = Driven::new(RAW, "", steps);
    assert_eq!(user.user.state, UserState::Thinking);
    assert_eq!(user.timer(), Duration::from_millis(250));
    user.timer();
    assert_eq!(user.log.now_ns, 1_000_000_000 + 1_250_000_000);
    assert_eq!(user.done(), [Done::AbortRun, Done::Left(Ended::Aborted)]);
    assert_eq!(user.user.state, UserState::Left);
}

#[test]
fn loops_and_branches_follow_their_conditions() {
    let steps = "steps = [{ set = \"n\", value = \"0\" }, { connect = \"/\" }, \
                 { loop = 5, counter = \"n\", steps = [\
                   { if = \"n >= 3\", steps = [{ send = \"late {{n}}\" }] }, \
                   { if = \"n < 3\", steps = [{ send = \"early {{n}}\" }] } ] }, \
                 { repeat = 9, until = \"n == 5\", name = \"r\", steps = [{ send = \"once\" }] }, \
                 { receive = \"end\" }]";
    let mut user = Driven::new(RAW, "", steps);
    user.upgrade();
    let frames = user.frames();
    assert_eq!(frames, ["early 1", "early 2", "late 3", "late 4", "late 5", "once"]);
    assert_eq!(user.count_of(Count::RequestsNoAck), 6);
}

#[test]
fn value_captured_from_a_match_is_set_for_the_next_step() {
    let steps = "steps = [{ connect = \"/\" }, \
                 { send = \"who\", reply = { contains = \"name\" }, \
                   capture = { name = \"user.name\" } }, \
                 { send = \"hello {{name}}\" }, { receive = \"end\" }]";
    let mut user = Driven::new(RAW, "", steps);
    user.upgrade();
    assert_eq!(user.frames(), ["who"]);
    user.wait_ms(2);
    user.text(r#"{"other":1}"#);
    assert_eq!((user.user.state, user.frames()), (UserState::AwaitMatch, vec![]));
    assert_eq!(user.count_of(Count::FramesUnsolicited), 1);
    user.text(r#"{"user":{"name":"ann"}}"#);
    assert_eq!(user.frames(), ["hello ann"]);
    assert_eq!(user.times_of(Metric::Message), [2000]);
}

#[test]
fn wait_finds_a_message_received_before_it() {
    let steps = "steps = [{ connect = \"/\" }, { think = \"1s\" }, \
                 { wait = { contains = \"go\" } }, { send = \"gone\" }, { receive = \"end\" }]";
    let mut user = Driven::new(RAW, "", steps);
    user.upgrade();
    user.text("no");
    user.text("go");
    assert_eq!(user.user.state, UserState::Thinking);
    user.timer();
    assert_eq!(user.frames(), ["gone"]);
    assert!(user.user.held.is_none(), "nothing is kept where no wait follows");
}

#[test]
fn missing_reply_is_an_error_and_its_waiting_time_counts() {
    let head = "[timeouts]\nreply = \"500ms\"";
    let steps = "steps = [{ connect = \"/\" }, { join = \"a\" }, { push = \"b\" }]";
    let mut user = Driven::new(PHOENIX, head, steps);
    user.upgrade();
    user.reply_ok("1", "1", "a");
    assert_eq!(user.timer(), Duration::from_millis(500));
    assert_eq!(user.log.errors, [ErrorKind::ReplyTimeout]);
    assert_eq!(user.times_of(Metric::Push), [500_000]);
    assert_eq!(user.count_of(Count::RequestsUnanswered), 1);
    let done = user.done();
    let end = [Done::Close(1000), Done::HangUp(HangUp::Linger), Done::Left(Ended::Aborted)];
    assert!(done.ends_with(&end), "{done:?}");
    assert_eq!((user.log.usable, user.log.open.len()), (0, 0));
}

#[test]
fn lost_connection_is_reopened_after_a_delay_and_rejoins() {
    let session = "reconnect = { min = \"100ms\", max = \"1s\" }\n\
                   steps = [{ connect = \"/\" }, { join = \"a\" }, { join = \"b\" }, \
                   { think = \"10s\" }, { push = \"late\" }]";
    let mut user = Driven::new(PHOENIX, "", session);
    user.upgrade();
    user.reply_ok("1", "1", "a");
    user.reply_ok("2", "2", "b");
    assert_eq!(user.user.state, UserState::Thinking);
    let due_tick = user.log.timer_tick;
    user.done();
    let lost = Input::Ended {
        purpose: Purpose::User,
        kind: ErrorKind::ConnectionReset,
        in_handshake: true,
    };
    user.log.open.clear();
    user.step(lost);
    assert_eq!((user.user.state, user.log.usable), (UserState::BackingOff, 0));
    assert_eq!(user.log.errors, [ErrorKind::ConnectionReset]);
    // At least half of the time, and longer after each failure.
    let range = Duration::from_millis(50)..=Duration::from_millis(101);
    let took = user.timer();
    assert!(range.contains(&took), "{took:?}");
    assert_eq!(user.done(), [Done::Dial]);
    user.log.open.clear();
    user.step(Input::Ended {
        purpose: Purpose::User,
        kind: ErrorKind::ConnectRefused,
        in_handshake: false,
    });
    let took = user.timer();
    assert!(took >= Duration::from_millis(100) && took <= Duration::from_millis(201), "{took:?}");
    user.log.errors.clear();
    user.done();
    user.upgrade();
    assert_eq!(user.frames().len(), 1, "one join after the other");
    user.reply_ok("3", "3", "a");
    assert_eq!(user.frames(), [r#"["4","4","b","phx_join",{}]"#]);
    user.reply_ok("4", "4", "b");
    assert_eq!((user.user.state, user.log.timer_tick), (UserState::Thinking, due_tick));
    assert_eq!(user.count_of(Count::Reconnects), 1);
    user.timer();
    assert_eq!(user.frames(), [r#"["4","5","b","late",{}]"#]);
}

#[test]
fn gather_ends_when_all_users_arrive_or_at_its_timeout() {
    let steps = "steps = [{ connect = \"/\" }, { gather = 3, timeout = \"2s\" }, { send = \"x\" }, \
                 { receive = \"end\" }]";
    let gathering = || {
        let mut user = Driven::new(RAW, "", steps);
        user.upgrade();
        assert_eq!(user.done().last(), Some(&Done::Gather(3)));
        assert_eq!(user.user.state, UserState::Gathering);
        user
    };
    let mut user = gathering();
    user.step(Input::Gathered);
    assert_eq!((user.frames(), user.log.timer_tick), (vec!["x".to_owned()], None));
    assert_eq!(user.log.errors, []);
    let mut user = gathering();
    assert_eq!(user.timer(), Duration::from_secs(2));
    assert_eq!(user.log.errors, [ErrorKind::WaitTimeout]);
    assert_eq!(user.frames(), ["x"]);
    assert!(!user.log.gathers);
}

#[test]
fn close_step_waits_for_the_close_of_the_server() {
    let steps = "steps = [{ connect = \"/\" }, { close = 1001 }]";
    let closing = || {
        let mut user = Driven::new(RAW, "", steps);
        user.upgrade();
        assert_eq!(user.done().last(), Some(&Done::Close(1001)));
        assert_eq!(user.user.state, UserState::Closing);
        user
    };
    let end = [Done::HangUp(HangUp::Linger), Done::Left(Ended::Finished)];
    let mut user = closing();
    let frame = CloseFrame { code: CloseCode(1001), reason: "".into() };
    user.step(Input::Event(Event::Close(Some(frame))));
    assert_eq!(user.done(), end);
    assert_eq!((user.log.errors.len(), user.log.usable), (0, 0));
    // The answer may not come at all.
    let mut user = closing();
    assert_eq!(user.timer(), Duration::from_secs(5));
    assert_eq!(user.done(), end);
}

#[test]
fn frames_after_the_upgrade_response_are_read() {
    let mut user = Driven::new(RAW, "", "steps = [{ connect = \"/\" }, { receive = \"end\" }]");
    user.step(Input::Connected(Purpose::User));
    user.accept("abc");
    assert_eq!((user.user.conn, user.log.unread), (ConnState::WebSocket, 3));
}
