//! The load generator's long-poll users, against the conformance application: what they count is
//! what users with a WebSocket count.

use crate::ran::{Ran, of, run};
use simurgh_load::record::{Count, ErrorKind as E, Metric};
use wire_tests::{Server, Vsn, both, unique};

const USERS: u64 = 12;

#[track_caller]
fn users_do(server: &Server, vsn: Vsn, head: &str, connect: &str, steps: &str) -> Ran {
    let protocol = match vsn {
        Vsn::V1 => "phoenix-v1",
        Vsn::V2 => "phoenix",
    };
    let steps = format!(
        "transport = \"longpoll\"\n{head}\nsteps = [{{ connect = \"{connect}\" }}, {steps}]"
    );
    run(&of(server.addr(), USERS as u32, protocol, "", &steps))
}

#[test]
fn join_push_and_leave_are_answered() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let topic = unique("test:polled");
        let steps = format!(
            "{{ join = \"{topic}\" }}, {{ push = \"echo\", payload = {{ a = [1, \"é\\\"\"] }} }}, \
             {{ push = \"noreply\", reply = false }}, {{ push = \"status_only\" }}, \
             {{ leave = \"{topic}\" }}, {{ close = true }}"
        );
        // As the official client has it, a path of the other transport is one of this.
        let ran = users_do(&server, vsn, "", "/socket/websocket", &steps);
        ran.errors_are(&[]);
        ran.users_are(USERS, 0);
        let counts = [Count::Joins, Count::JoinsOk, Count::Pushes, Count::Leaves];
        assert_eq!(counts.map(|count| ran.count(count)), [USERS, USERS, 3 * USERS, USERS]);
        let times = [Metric::Upgrade, Metric::Join, Metric::Push, Metric::Leave];
        let timed = times.map(|metric| ran.timed(metric));
        assert_eq!(timed, [USERS, USERS, 2 * USERS, USERS], "{}", ran.text());
        assert_eq!(ran.count(Count::RepliesOk), 2 * USERS);
        assert_eq!(ran.count(Count::FramesOutText), 5 * USERS);
        let posts = ran.count(Count::Posts);
        match vsn {
            Vsn::V1 => assert_eq!(posts, 5 * USERS, "each by itself"),
            Vsn::V2 => assert!((4 * USERS..=5 * USERS).contains(&posts), "{}", ran.text()),
        }
        // Each reply came by a poll, of which several may bring two, and one more waits.
        let polls = ran.count(Count::Polls);
        assert!((4 * USERS..=8 * USERS).contains(&polls), "{}", ran.text());
        assert_eq!(ran.count(Count::Connects), 2 * USERS, "{}", ran.text());
    });
}

#[test]
fn long_poll_sends_binary_payloads_as_binary() {
    let server = Server::shared_conformance();
    let topic = unique("test:polled");
    // A binary reply would not come: none goes to pollers.
    let steps = format!(
        "{{ join = \"{topic}\" }}, \
         {{ push = \"bin\", payload = \"{{{{bytes 00ff}}}}x\", binary = true, reply = false }}, \
         {{ push = \"echo\" }}, {{ close = true }}"
    );
    let ran = users_do(&server, Vsn::V2, "", "/socket/longpoll", &steps);
    ran.errors_are(&[]);
    ran.users_are(USERS, 0);
    assert_eq!(ran.count(Count::FramesOutBinary), USERS);
}

#[test]
fn idle_long_poll_users_continue_polling() {
    let server = Server::shared_conformance();
    // The window of this user socket is 1 s, and 1.5 s without a poll end a session.
    let topic = unique("test:polled");
    let steps = format!(
        "{{ join = \"{topic}\" }}, {{ think = \"5s\" }}, {{ push = \"echo\" }}, {{ close = true }}"
    );
    let head = "heartbeat = \"500ms\"";
    let ran = users_do(&server, Vsn::V2, head, "/short/longpoll", &steps);
    ran.errors_are(&[]);
    ran.users_are(USERS, 0);
    assert!(ran.count(Count::Polls) >= 6 * USERS, "{}", ran.text());
    assert!(ran.count(Count::Heartbeats) >= 2 * USERS, "{}", ran.text());
}

#[test]
fn refused_long_poll_session_is_counted_as_an_error() {
    let server = Server::shared_conformance();
    let refused = "/socket/longpoll?vsn=9.0.0";
    let ran = users_do(&server, Vsn::V2, "", refused, "{ join = \"exact\" }");
    ran.errors_are(&[(E::UpgradeStatus(403), USERS)]);
    ran.users_are(0, USERS);
    assert_eq!(ran.timed(Metric::Upgrade), USERS, "a refusal has its time, too");
    let ran = users_do(&server, Vsn::V2, "", "/nowhere/longpoll", "{ join = \"exact\" }");
    ran.errors_are(&[(E::HttpStatus(404), USERS)]);
    ran.users_are(0, USERS);
}

#[test]
fn expired_long_poll_session_is_an_error_and_is_reopened() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let topic = unique("test:polled");
        let name = unique("polled");
        let connect = format!("/socket/longpoll?user_id={name}{{{{user_id}}}}");
        let id = format!("user_sockets:{name}{{{{user_id}}}}");
        let steps = format!(
            "{{ join = \"{topic}\" }}, \
             {{ push = \"disconnect_me\", payload = {{ id = \"{id}\" }}, reply = false }}, \
             {{ receive = \"2s\" }}, {{ push = \"echo\" }}, {{ close = true }}"
        );
        let head = "reconnect = { min = \"10ms\", max = \"50ms\" }";
        let ran = users_do(&server, vsn, head, &connect, &steps);
        ran.errors_are(&[(E::LongPollStatus(410), USERS)]);
        ran.users_are(USERS, 0);
        assert_eq!(ran.count(Count::Reconnects), USERS);
        assert_eq!(ran.count(Count::JoinsOk), 2 * USERS, "{}", ran.text());
        let ran = users_do(&server, vsn, "", &connect, &steps);
        ran.errors_are(&[(E::LongPollStatus(410), USERS)]);
        ran.users_are(0, USERS);
    });
}
