//! Properties that hold for users after any sequence of events.

use std::time::Duration;

use proptest::prelude::*;
use simurgh_load_record::{Count, ErrorKind, Metric};
use simurgh_load_scenario::{Cut, Drop};
use simurgh_proto::ws::{CloseCode, Event};

use super::{Done, Driven, PHOENIX, RAW};
use crate::user::{ConnState, Input, NO_KEY, Purpose, UserState};

/// Sessions with all kinds of waits.
const SESSIONS: [(&str, &str); 4] = [
    (
        PHOENIX,
        "reconnect = { min = \"10ms\", max = \"1s\", attempts = 5 }\n\
         steps = [{ connect = \"/\" }, { join = \"a\" }, { push = \"b\", status = \"ok\" }, \
         { gather = 2, timeout = \"1s\" }, { think = \"1s\" }, { leave = \"a\" }, \
         { close = true }]",
    ),
    (
        PHOENIX,
        "resume = true\ndrop = { every = \"1s\", for = \"10ms\", how = \"both\" }\n\
         steps = [{ connect = \"/\" }, { join = \"a\" }, { loop = 3, every = \"1s\", \
         steps = [{ push = \"b\", reply = false }] }, { receive = \"5s\", count = 2 }]",
    ),
    (
        RAW,
        "answer = { when = { contains = \"x\" }, send = \"y\" }\n\
         heartbeat = { every = \"1s\", send = \"b\" }\n\
         steps = [{ connect = \"/\" }, { send = \"a\", reply = true, \
         check = { pattern = \"x\", do = { restart = 2 } } }, { wait = { contains = \"go\" } }, \
         { close = true }, { get = \"/\" }, { raw = \"b\", reply = true }]",
    ),
    (
        PHOENIX,
        "transport = \"longpoll\"\nreconnect = { min = \"10ms\", max = \"1s\", attempts = 5 }\n\
         steps = [{ connect = \"/\" }, { join = \"a\" }, { push = \"b\" }, { receive = \"2s\" }]",
    ),
];

/// Triggers an event by number; `false` if it cannot happen now.
fn happens(user: &mut Driven, what: u8) -> bool {
    let (key, purpose) = match user.user.poller().map(|poller| poller.posts.key) {
        Some(posts) if posts != NO_KEY && what.is_multiple_of(2) => (posts, Purpose::Posts),
        _ => (user.user.key, Purpose::User),
    };
    let is_open = matches!(user.user.conn, ConnState::WebSocket | ConnState::WebSocketClosing);
    let drop = Drop {
        every: Duration::from_secs(1),
        away: Duration::from_millis(10),
        how: Cut::Both,
        reconnect: (Duration::ZERO, Duration::from_secs(1)),
        phase: None,
    };
    match what % 16 {
        0 | 1 if user.log.timer_tick.is_some() => {
            user.timer();
        }
        2 | 3 if key != NO_KEY => {
            user.log.open.remove(&key.slot);
            let kind = ErrorKind::EndOfStream;
            user.step(Input::Ended { purpose, kind, in_handshake: false });
        }
        4 if purpose == Purpose::Posts => user.step(Input::Connected(Purpose::Posts)),
        4 | 5 if user.user.state == UserState::Opening => {
            user.step(Input::Connected(Purpose::User))
        }
        6 if user.user.conn == ConnState::Upgrading => user.accept(""),
        7 if is_open => {
            let awaits = user.user.awaits().to_string();
            user.reply_ok(&awaits, &awaits, "a");
        }
        8 if is_open => user.text(if what < 128 { "go x" } else { "[null,null,\"a\",\"e\",{}]" }),
        9 if is_open => user.step(Input::Event(Event::Close(None))),
        10 => user.step(Input::Cut(&drop)),
        11 => user.step(Input::Heartbeat),
        12 if user.log.gathers => {
            user.log.gathers = false;
            user.step(Input::Gathered);
        }
        13 if key != NO_KEY && !is_open => {
            let token = "{\"status\":410,\"token\":\"t\",\"messages\":[]}";
            let ok = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{token}", token.len());
            user.step(Input::Bytes(purpose, ok.as_bytes()));
        }
        14 => {
            user.log.refuses = what >= 128;
            user.wait_ms(u64::from(what));
        }
        15 if is_open && what > 200 => {
            let (code, kind) = (CloseCode::PROTOCOL, ErrorKind::FrameError);
            user.step(Input::ProtocolError(code, kind, String::new()));
        }
        15 => user.step(Input::CheckPolls),
        _ => return false,
    }
    true
}

proptest! {
    /// A user always waits for something that can come, or has left and has no connections.
    #[test]
    fn user_always_waits_for_a_possible_event_or_has_left(
        session in 0..SESSIONS.len(),
        events in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let (protocol, text) = SESSIONS[session];
        let mut user = Driven::new(protocol, "[timeouts]\nretries = 2", text);
        for what in events {
            happens(&mut user, what);
            if user.user.state == UserState::Left {
                prop_assert!(user.log.open.is_empty(), "{:?}", user.log.open);
                prop_assert_eq!((user.log.usable, user.log.timer_tick), (0, None));
                prop_assert!(!user.log.gathers);
                return Ok(());
            }
            prop_assert!(user.has_a_way_on(), "{:?} {:?}", user.user.state, user.user.conn);
        }
        user.step(Input::Stop);
        prop_assert_eq!(user.user.state, UserState::Left);
        prop_assert!(user.log.open.is_empty(), "{:?}", user.log.open);
    }

    /// All requests are answered or counted as unanswered; the same events give the same outputs.
    #[test]
    fn same_events_give_same_outputs_and_consistent_sums(
        session in 0..SESSIONS.len(),
        events in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let (protocol, text) = SESSIONS[session];
        let run = || {
            let mut user = Driven::new(protocol, "", text);
            for what in &events {
                if user.user.state != UserState::Left {
                    happens(&mut user, *what);
                }
            }
            if user.user.state != UserState::Left {
                user.step(Input::Stop);
            }
            user
        };
        let (one, other) = (run(), run());
        prop_assert_eq!(&one.log.done, &other.log.done);
        prop_assert_eq!(&one.log.times, &other.log.times);
        let ends = one.log.done.iter().filter(|done| matches!(done, Done::Left(_))).count();
        prop_assert_eq!(ends, 1);
        let (requests, unanswered) =
            (one.count_of(Count::Requests), one.count_of(Count::RequestsUnanswered));
        prop_assert!(unanswered <= requests, "{unanswered} of {requests}");
        // A time-out is recorded as a time too.
        let channel = [Metric::Join, Metric::Push, Metric::Leave];
        let timed = [Metric::Upgrade, Metric::Message, Metric::Http].into_iter().chain(channel);
        let timed: usize = timed.map(|metric| one.times_of(metric).len()).sum();
        prop_assert!(requests - unanswered <= timed as u64, "{requests} {unanswered} {timed}");
    }
}
