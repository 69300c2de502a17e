//! Frames that users send without a step: answers by rules, and heartbeats.

use simurgh_load_record::{Count, Metric};

use super::{Done, Driven, PHOENIX, RAW};
use crate::user::{ConnState, Input, UserState};

const PONG: &str = "answer = [{ when = \"2\", send = \"3\" }]\n";

/// A user with an open WebSocket, after these steps began.
fn connected(protocol: &str, keys: &str, steps: &str) -> Driven {
    let session = format!("{keys}steps = [{{ connect = \"/\" }}, {steps}]");
    let mut user = Driven::new(protocol, "", &session);
    user.upgrade();
    user.done();
    user
}

#[test]
fn rule_answers_during_every_kind_of_step() {
    for (steps, state) in [
        ("{ think = \"9s\" }", UserState::Thinking),
        ("{ receive = \"end\" }", UserState::Receiving),
        ("{ wait = { contains = \"go\" } }", UserState::AwaitMatch),
        ("{ send = \"a\", reply = { contains = \"go\" } }", UserState::AwaitMatch),
        ("{ gather = 2 }", UserState::Gathering),
        ("{ loop = \"forever\", every = \"1s\", steps = [] }", UserState::Pacing),
    ] {
        let mut user = connected(RAW, PONG, steps);
        let timer_tick = user.log.timer_tick;
        for _ in 0..3 {
            user.text("2");
            assert_eq!(user.frames(), ["3"], "{steps}");
        }
        user.text("22");
        assert_eq!(user.frames(), [""; 0], "{steps}");
        assert_eq!((user.user.state, user.log.timer_tick), (state, timer_tick), "{steps}");
        assert_eq!((user.count_of(Count::Answers), user.log.errors.len()), (3, 0));
    }
}

#[test]
fn first_rule_that_matches_answers_with_the_user_s_values() {
    let rules = "answer = [{ when = { contains = \"ping\" }, send = '{\"pong\":{{user_id}}}' },\n\
                 { when = { regex = \"^p{{user_id}}ng\" }, send = \"never\" },\n\
                 { when = { json = \"id\", is = \"{{n}}\" }, send = \"{{n}}\", binary = true }]\n";
    let steps = "{ set = \"n\", value = \"7\" }, { receive = \"end\" }";
    let mut user = connected(RAW, rules, steps);
    for (text, answer) in [("ping", Some("{\"pong\":1}")), ("{\"id\":7}", Some("7"))] {
        user.text(text);
        assert_eq!(user.frames(), Vec::from_iter(answer), "{text}");
    }
    user.text("p1ng");
    assert_eq!(user.frames(), ["never"]);
    user.text("{\"id\":8}");
    assert_eq!(user.frames(), [""; 0]);
}

/// A counter is only set where something reads it.
#[test]
fn rule_reads_the_counter_of_a_loop() {
    let keys = "answer = { when = \"2\", send = \"{{i}}\" }\n\
                heartbeat = { every = \"1s\", send = \"beat {{i}}\" }\n";
    let steps = "{ loop = 9, counter = \"i\", steps = [{ think = \"1s\" }] }";
    let mut user = connected(RAW, keys, steps);
    for round in ["1", "2"] {
        user.text("2");
        user.step(Input::Heartbeat);
        assert_eq!(user.frames(), [round, &format!("beat {round}")]);
        user.timer();
    }
}

#[test]
fn answered_frame_counts_for_a_wait_and_a_receive() {
    for step in ["{ wait = { is = \"2\" } }", "{ wait_server = true }", "{ wait = \"any\" }"] {
        let mut user = connected(RAW, PONG, &format!("{step}, {{ send = \"next\" }}"));
        user.text("2");
        assert_eq!(user.frames(), ["3", "next"], "{step}");
    }
    let mut user = connected(RAW, PONG, "{ receive = \"9s\", count = 2 }, { send = \"next\" }");
    user.text("2");
    assert_eq!(user.frames(), ["3"]);
    user.text("2");
    assert_eq!(user.frames(), ["3", "next"]);
    // One that came before the wait is found, as any other frame.
    let steps = "{ think = \"1s\" }, { wait = { is = \"2\" } }, { send = \"next\" }";
    let mut user = connected(RAW, PONG, steps);
    user.text("2");
    user.timer();
    assert_eq!(user.frames(), ["3", "next"]);
}

#[test]
fn answered_frame_is_not_the_reply_to_a_message() {
    let mut user = connected(RAW, PONG, "{ send = \"a\", reply = true }, { receive = \"end\" }");
    user.wait_ms(5);
    user.text("2");
    assert_eq!((user.user.state, user.frames().len()), (UserState::AwaitFirst, 1));
    user.wait_ms(5);
    user.text("echo");
    assert_eq!(user.times_of(Metric::Message), [10_000]);
}

#[test]
fn equal_answered_frames_are_stored_once() {
    let steps = "{ think = \"9s\" }, { wait = { contains = \"go\" } }";
    let mut user = connected(RAW, PONG, steps);
    for text in ["2", "other", "2", "other", "2"] {
        user.text(text);
    }
    let kept = &user.user.extra_ref().unwrap().kept;
    let kept: Vec<_> = kept.iter().map(|kept| &*kept.payload).collect();
    assert_eq!(kept, [&b"2"[..], b"other", b"other"]);
}

#[test]
fn rule_costs_an_idle_user_no_memory() {
    let mut user = connected(RAW, PONG, "{ receive = \"end\" }");
    user.text("2");
    assert!(user.user.held.is_none());
}

#[test]
fn nothing_is_answered_while_the_connection_closes() {
    let mut user = connected(RAW, PONG, "{ close = true }");
    assert_eq!(user.user.conn, ConnState::WebSocketClosing);
    user.text("2");
    user.step(Input::Heartbeat);
    assert_eq!(user.done(), []);
    assert_eq!(user.count_of(Count::Answers), 0);
}

#[test]
fn rule_answers_frames_of_phoenix() {
    let rules = "answer = [{ when = { event = \"ping\" }, \
                 send = '[null,\"9\",\"a\",\"pong\",{}]' }]\n";
    let mut user = connected(PHOENIX, rules, "{ receive = \"end\" }");
    user.text("[null,null,\"a\",\"ping\",{}]");
    assert_eq!(user.frames(), ["[null,\"9\",\"a\",\"pong\",{}]"]);
}

#[test]
fn heartbeat_sends_its_own_text_on_open_connections() {
    let beat = "heartbeat = { every = \"1s\", send = \"2{{user_id}}\" }\n";
    let session = format!("{beat}steps = [{{ connect = \"/\" }}, {{ receive = \"end\" }}]");
    let mut user = Driven::new(RAW, "", &session);
    user.step(Input::Heartbeat);
    assert_eq!(user.done(), [Done::Dial]);
    user.upgrade();
    user.done();
    for _ in 0..2 {
        user.step(Input::Heartbeat);
        assert_eq!(user.frames(), ["21"]);
    }
    assert_eq!(user.user.state, UserState::Receiving);
    assert!(user.user.held.is_none());
    assert_eq!(user.count_of(Count::Heartbeats), 2);
}
