//! The load generator as a Channels client of the conformance application: what it counts is what
//! the server did, in both serializers.

use std::sync::Arc;
use std::time::Duration;

use crate::ran::{Ran, of, run, run_with};
use simurgh_load::record::{Count, Ending, ErrorKind as E, Metric};
use wire_tests::{Server, Vsn, both, unique};

const USERS: u64 = 12;

fn protocol(vsn: Vsn) -> &'static str {
    match vsn {
        Vsn::V1 => "phoenix-v1",
        Vsn::V2 => "phoenix",
    }
}

fn server() -> Arc<Server> {
    Server::shared_conformance()
}

#[track_caller]
fn users_do(vsn: Vsn, head: &str, steps: &str) -> Ran {
    let steps = format!("{head}\nsteps = [{{ connect = \"/socket/websocket\" }}, {steps}]");
    run(&of(server().addr(), USERS as u32, protocol(vsn), "", &steps))
}

#[test]
fn join_push_and_leave_are_answered() {
    let _server = server();
    both(|vsn| {
        let topic = unique("test:load");
        let steps = format!(
            "{{ join = \"{topic}\" }}, {{ push = \"echo\", payload = {{ a = [1, \"é\\\"\"] }} }}, \
             {{ push = \"noreply\", reply = false }}, {{ push = \"status_only\" }}, \
             {{ leave = \"{topic}\" }}, {{ close = true }}"
        );
        let ran = users_do(vsn, "", &steps);
        ran.errors_are(&[]);
        ran.users_are(USERS, 0);
        let counts = [Count::Joins, Count::JoinsOk, Count::Pushes, Count::Leaves];
        assert_eq!(counts.map(|count| ran.count(count)), [USERS, USERS, 3 * USERS, USERS]);
        let times = [Metric::Join, Metric::Push, Metric::Leave].map(|metric| ran.timed(metric));
        assert_eq!(times, [USERS, 2 * USERS, USERS], "{}", ran.text());
        assert_eq!(ran.count(Count::RepliesOk), 2 * USERS);
        assert_eq!(ran.count(Count::RequestsNoAck), USERS);
        assert_eq!(ran.count(Count::Requests), 5 * USERS);
        assert_eq!(ran.count(Count::ClosesIn), USERS);
    });
}

/// PROTOCOL row 139: a push and its reply of 1 kB take less than half of the bytes, both ways.
#[test]
fn compress_shortens_messages_on_the_wire() {
    let server = server();
    both(|vsn| {
        let word = "a word and another one ".repeat(50);
        let bytes = [false, true].map(|compress| {
            let push = "{ push = \"echo\", payload = { a = \"".to_owned() + &word + "\" } }";
            let pushes = vec![push; 10].join(", ");
            let topic = unique("test:load");
            let steps = format!(
                "steps = [{{ connect = \"/socket/websocket\", compress = {compress} }}, \
                 {{ join = \"{topic}\" }}, {pushes}, {{ close = true }}]"
            );
            let ran = run(&of(server.addr(), USERS as u32, protocol(vsn), "", &steps));
            ran.errors_are(&[]);
            ran.users_are(USERS, 0);
            assert_eq!(ran.count(Count::RepliesOk), 10 * USERS);
            [Count::BytesIn, Count::BytesOut].map(|count| ran.count(count))
        });
        for (plain, compressed) in bytes[0].into_iter().zip(bytes[1]) {
            assert!(compressed * 2 < plain, "{compressed} of {plain}");
        }
    });
}

#[test]
fn binary_payloads_are_sent_and_received_as_binary() {
    let _server = server();
    let steps = "{ join = \"rooms:load-bytes\" }, \
                 { push = \"bin\", payload = \"\\u0000{{bytes ff00}}x\", binary = true, \
                 check = { pattern = \"x$\", when = \"missing\", do = \"abort\" } }, { close \
                 = true }";
    let ran = users_do(Vsn::V2, "", steps);
    ran.errors_are(&[]);
    ran.users_are(USERS, 0);
    assert_eq!(ran.count(Count::FramesOutBinary), USERS);
    assert_eq!(ran.count(Count::FramesInBinary), USERS);
    assert_eq!(ran.count(Count::Matches), USERS);
}

/// Steps, the errors of each user, whether it goes on, and what else is counted.
type Case = (&'static str, &'static [(E, u64)], bool, fn(&Ran));

const CASES: [Case; 7] = [
    ("{ join = \"rooms:private1\" }, { push = \"echo\" }", &[(E::JoinRefused, 1)], false, |ran| {
        assert_eq!((ran.count(Count::Pushes), ran.timed(Metric::Join)), (0, USERS));
        let details = ran.record.details(E::JoinRefused);
        assert!(details[0].contains("unauthorized"), "{details:?}");
    }),
    ("{ join = \"rooms:private1\", status = \"error\" }", &[], true, |ran| {
        assert_eq!(ran.count(Count::JoinsOk), 0);
    }),
    (
        "{ join = \"test:load\" }, { push = \"error_only\" }, { push = \"custom_status\" }, \
         { push = \"error_only\", status = \"error\" }, \
         { push = \"custom_status\", status = \"any\" }, { push = \"echo\" }",
        &[(E::ReplyError, 2)],
        true,
        |ran| {
            let replies = [Count::RepliesError, Count::RepliesOk].map(|count| ran.count(count));
            assert_eq!(replies, [4 * USERS, USERS]);
        },
    ),
    (
        "{ join = \"test:load\" }, { push = \"noreply\", timeout = \"300ms\" }",
        &[(E::ReplyTimeout, 1)],
        false,
        |ran| {
            assert_eq!(ran.count(Count::RequestsUnanswered), USERS);
            // The histogram has three digits.
            assert!(ran.record.times(Metric::Push).unwrap().min() >= 299_000);
        },
    ),
    ("{ join = \"test:slow\", timeout = \"300ms\" }", &[(E::JoinTimeout, 1)], false, |_| {}),
    (
        "{ join = \"test:load\" }, { push = \"crash\", reply = false }, { think = \"300ms\" }",
        &[(E::ChannelClosed, 1)],
        true,
        |_| {},
    ),
    (
        "{ join = \"test:load\" }, { wait = { event = \"never\" }, timeout = \"300ms\" }",
        &[(E::WaitTimeout, 1)],
        false,
        |ran| assert_eq!(ran.count(Count::RequestsUnanswered), 0),
    ),
];

#[test]
fn each_failure_is_named_and_ends_only_the_users_it_must() {
    let _server = server();
    both(|vsn| {
        for (steps, errors, goes_on, counts) in CASES {
            let ran = users_do(vsn, "", &format!("{steps}, {{ close = true }}"));
            let errors: Vec<_> = errors.iter().map(|(kind, each)| (*kind, each * USERS)).collect();
            ran.errors_are(&errors);
            let finished = if goes_on { USERS } else { 0 };
            ran.users_are(finished, USERS - finished);
            counts(&ran);
        }
    });
}

#[test]
fn heartbeats_prevent_a_short_idle_timeout() {
    // The server closes what is silent for 2 s.
    let server = server();
    for (heartbeat, lives) in [("heartbeat = \"500ms\"", true), ("", false)] {
        let steps = format!(
            "{heartbeat}\nsteps = [{{ connect = \"/short/websocket\" }}, {{ join = \"exact\" }}, \
             {{ think = \"5s\" }}, {{ close = true }}]"
        );
        let ran = run(&of(server.addr(), USERS as u32, "phoenix", "", &steps));
        if lives {
            ran.errors_are(&[]);
            ran.users_are(USERS, 0);
            let heartbeats = ran.count(Count::Heartbeats);
            assert!((5 * USERS..=30 * USERS).contains(&heartbeats), "{}", ran.text());
        } else {
            ran.users_are(0, USERS);
            assert_eq!(ran.count(Count::ClosesIn), USERS, "{}", ran.text());
        }
    }
}

#[test]
fn reply_values_are_used_in_the_next_push() {
    let _server = server();
    both(|vsn| {
        let topic = unique("test:load");
        // The reply is what was sent; the second push carries it, and its check finds it.
        let steps = format!(
            "{{ join = \"{topic}\" }}, \
             {{ push = \"echo\", payload = {{ id = \"u{{{{user_id}}}}\", n = [7, 8] }}, \
                capture = {{ mine = \"id\", eight = \"n[1]\" }} }}, \
             {{ push = \"echo\", payload = {{ got = \"<{{{{mine}}}}-{{{{eight}}}}>\" }}, \
                check = {{ pattern = '<u{{{{user_id}}}}-8>', when = \"missing\", do = \
                \"abort\" }} }}, \
             {{ close = true }}"
        );
        let ran = users_do(vsn, "", &steps);
        ran.errors_are(&[]);
        ran.users_are(USERS, 0);
        assert_eq!(ran.count(Count::Matches), USERS, "{}", ran.text());
    });
}

#[test]
fn wait_step_accepts_a_broadcast_at_any_time() {
    let _server = server();
    both(|vsn| {
        let topic = unique("test:load");
        // Each user hears its own shout, which comes before or after the reply to its push; and
        // the second wait finds what the first has passed over.
        let steps = format!(
            "{{ join = \"{topic}{{{{user_id}}}}\" }}, \
             {{ push = \"bcast\", payload = {{ n = 1 }}, reply = false }}, \
             {{ push = \"bcast\", payload = {{ n = 2 }}, reply = false }}, \
             {{ push = \"echo\" }}, \
             {{ wait = {{ json = \"payload.n\", is = \"2\" }}, timeout = \"4s\" }}, \
             {{ wait = {{ event = \"news\" }}, timeout = \"4s\" }}, {{ close = true }}"
        );
        let ran = users_do(vsn, "", &steps);
        ran.errors_are(&[]);
        ran.users_are(USERS, 0);
        assert_eq!(ran.count(Count::RequestsNoAck), 2 * USERS);
    });
}

#[test]
fn stamped_broadcasts_are_measured_at_every_receiver() {
    const LISTENERS: u64 = 40;
    const MESSAGES: u64 = 25;
    let server = server();
    for (transport, path) in [("websocket", "/socket/websocket"), ("longpoll", "/socket/longpoll")]
    {
        let topic = unique("test:load");
        // All are there before the first broadcast; each listener stays until the last.
        let text = format!(
            "[target]\nurl = \"ws://{}\"\n\
             [[phase]]\nduration = \"200ms\"\nrate = 200\nweights = {{ speaker = 0 }}\n\
             [[appointment]]\nat = \"300ms\"\nsession = \"speaker\"\n\
             [[session]]\nname = \"listener\"\nprotocol = \"phoenix\"\n\
             transport = \"{transport}\"\nsteps = [\
               {{ connect = \"{path}\" }}, {{ join = \"{topic}\" }}, {{ gather = 41 }}, \
               {{ receive = \"20s\", count = {MESSAGES}, match = {{ event = \"news\" }} }}, \
               {{ close = true }}]\n\
             [[session]]\nname = \"speaker\"\nprotocol = \"phoenix\"\nsteps = [\
               {{ connect = \"/socket/websocket\" }}, {{ join = \"{topic}\" }}, \
               {{ gather = 41 }}, {{ loop = {MESSAGES}, every = \"10ms\", steps = [\
                 {{ push = \"bcast_from\", payload = {{ at = \"{{{{stamp}}}}\" }} }}] }}, \
               {{ close = true }}]\n",
            server.addr()
        );
        let ran = run_with(&text, 3);
        ran.errors_are(&[]);
        ran.users_are(LISTENERS + 1, 0);
        let counted = [Count::Broadcasts, Count::Deliveries, Count::DeliveriesBeforeSent];
        let counted = counted.map(|count| ran.count(count));
        assert_eq!(counted, [MESSAGES, LISTENERS * MESSAGES, 0], "{transport}: {}", ran.text());
        let timed = [Metric::Delivery, Metric::LastReceiver].map(|metric| ran.timed(metric));
        assert_eq!(timed, [LISTENERS * MESSAGES, MESSAGES], "{transport}: {}", ran.text());
    }
}

#[test]
fn stopped_server_closes_its_users_with_1012() {
    let server = Server::conformance().start();
    let steps = "steps = [{ connect = \"/socket/websocket\" }, { join = \"exact\" }, \
                 { receive = \"end\" }]";
    let text = of(server.addr(), USERS as u32, "phoenix", "duration = \"20s\"", steps);
    let ran = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(&text));
        wire_tests::eventually("all joins", || server.counter("joins") >= USERS as f64);
        server.terminate();
        run.join().unwrap()
    });
    ran.users_are(0, USERS);
    ran.errors_are(&[(E::Closed(1012), USERS)]);
    assert_eq!(ran.ending, Ending::Finished);
    assert!(ran.took < Duration::from_secs(15), "{}", ran.text());
}
