//! Connections that are cut on purpose: the effect on the wire, what users know of missed messages,
//! and the messages of users who resume. The servers here know what a user missed.

use std::collections::BTreeSet;
use std::io::{ErrorKind as Io, Read};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::outside::{Peer, Ran, Server, frame, lock, of, run, run_with};
use crate::support::hub::{self, Hub, Keeps};
use serde_json::{Value, json};
use simurgh_load::fleet::Agent;
use simurgh_load::record::{Count, ErrorKind as E};

#[track_caller]
fn deliveries_are(ran: &Ran, expected: u64, missing: u64) {
    let counts = [Count::DeliveriesExpected, Count::DeliveriesMissing, Count::DeliveriesOnce];
    let found = counts.map(|count| ran.count(count));
    assert_eq!(found, [expected, missing, expected - missing], "{}", ran.text());
    let wrong = [
        Count::DeliveriesDuplicate,
        Count::DeliveriesOutOfOrder,
        Count::DeliveriesUnexpected,
        Count::BroadcastsUnnumbered,
    ];
    for count in wrong {
        assert_eq!(ran.count(count), 0, "{count}: {}", ran.text());
    }
}

/// Users arrive within 100 ms; those of `listener` are cut once in 3 s, and stay 4 s more.
fn cut_once(server: &Server, drop: &str, listener: &str, others: &str) -> String {
    format!(
        "[target]\nurl = \"ws://{}\"\n\
         [[phase]]\nname = \"arrive\"\nduration = \"100ms\"\nrate = 0\n\
         [[phase]]\nname = \"cuts\"\nduration = \"3s\"\nrate = 0\n\
         [[phase]]\nname = \"after\"\nduration = \"4s\"\nrate = 0\n\
         [[session]]\nname = \"listener\"\nprotocol = \"phoenix\"\n\
         drop = {{ every = \"3s\", phase = \"cuts\", {drop} }}\n{listener}\n{others}\n",
        server.addr
    )
}

fn appointments(session: &str, users: usize) -> String {
    format!("[[appointment]]\nat = \"10ms\"\nsession = \"{session}\"\n").repeat(users)
}

const LISTENS: &str = "steps = [{ connect = \"/\" }, { join = \"room\" }, { receive = \"7s\" }]\n";

/// Sends a message every 20 ms for five seconds.
const SPEAKS: &str = "[[session]]\nname = \"speaker\"\nprotocol = \"phoenix\"\nsteps = [\
    { connect = \"/\" }, { join = \"room\" }, { think = \"300ms\" }, \
    { loop = 250, every = \"20ms\", steps = [\
      { push = \"say\", payload = { body = \"{{stamp}}\" } }] }, { think = \"1500ms\" }]\n";

#[test]
fn only_messages_sent_during_an_absence_are_missing() {
    let say = |times: u32| {
        format!(
            "{{ loop = {times}, steps = [{{ push = \"say\", \
             payload = {{ body = \"{{{{stamp}}}}\" }} }}] }}, "
        )
    };
    // A user who has received nothing yet can miss messages too.
    for (before, said_before) in [(3, say(3)), (0, String::new())] {
        let hub = Hub::new(Keeps::Nothing);
        let server = hub.serve();
        // The hub reports when a user is away, which it notices by a reset, and when it is back.
        let others = format!(
            "[[session]]\nname = \"steady\"\nprotocol = \"phoenix\"\nsteps = [\
             {{ connect = \"/\" }}, {{ join = \"room\" }}, {{ receive = \"10s\" }}]\n\
             [[session]]\nname = \"speaker\"\nprotocol = \"phoenix\"\nsteps = [\
             {{ connect = \"/\" }}, {{ join = \"room\" }}, {said_before}\
             {{ wait = {{ event = \"away\" }} }}, {}{{ wait = {{ event = \"back\" }} }}, {}\
             {{ receive = \"3s\" }}]\n{}{}\
             [[appointment]]\nat = \"90ms\"\nsession = \"speaker\"\n",
            say(7),
            say(5),
            appointments("listener", 1),
            appointments("steady", 2)
        );
        let drop = "for = \"2500ms\", how = \"rst\"";
        let listens = LISTENS.replace("7s", "10s");
        let ran = run_with(&cut_once(&server, drop, &listens, &others), 2);
        ran.errors_are(&[]);
        ran.users_are(4, 0);
        assert_eq!(ran.count(Count::DropsReset), 1, "{}", ran.text());
        assert_eq!(ran.count(Count::Reconnects), 1, "{}", ran.text());
        // To each of three; the speaker's own do not count.
        deliveries_are(&ran, 3 * (before + 12), 7);
    }
}

#[test]
fn counted_loss_matches_the_positions_of_the_server() {
    for (how, silent) in [("rst", 0), ("silence", 10)] {
        // Replies that the missed messages are too old, and knows how many they are.
        let hub = Hub::new(Keeps::Numbers);
        let server = hub.serve();
        let others = format!("{SPEAKS}{}", appointments("speaker", 1));
        let listener = format!("resume = true\n{LISTENS}{}", appointments("listener", 10));
        let drop = format!("for = \"800ms\", how = \"{how}\", reconnect = \"0-400ms\"");
        let ran = run_with(&cut_once(&server, &drop, &listener, &others), 2);
        ran.errors_are(&[]);
        ran.users_are(11, 0);
        let missed = hub.missed();
        // The messages of 800 ms, some 400; fewer if the machine stalls.
        assert!(missed > 10, "{how}: {missed}");
        deliveries_are(&ran, 10 * 250, missed);
        assert_eq!(ran.count(Count::GapsExpired), 10, "{}", ran.text());
        assert_eq!(ran.count(Count::ResumesRecovered), 10, "the first joins: {}", ran.text());
        let drops = (ran.count(Count::DropsReset), ran.count(Count::DropsSilent));
        assert_eq!(drops, (10 - silent, silent), "{}", ran.text());
        // The next test checks that the server does not notice silent cuts.
        assert_eq!(hub.ids(), 10, "one name for each user, the same over all joins");
    }
}

#[test]
fn agents_count_the_messages_that_each_received() {
    let agents: Vec<String> = (0..2)
        .map(|_| {
            let any = "127.0.0.1:0".parse().unwrap();
            let agent = Agent::bind(any, "a token".to_owned(), Arc::new(|_: &str| ())).unwrap();
            let address = agent.address().unwrap();
            thread::spawn(move || agent.run());
            format!("[[agent]]\naddress = \"{address}\"\ntoken = \"a token\"\n")
        })
        .collect();
    let hub = Hub::new(Keeps::Numbers);
    let server = hub.serve();
    let others = format!("{SPEAKS}{}{}", appointments("speaker", 1), agents.concat());
    let listener = format!("resume = true\n{LISTENS}{}", appointments("listener", 11));
    let drop = "for = \"800ms\", how = \"rst\"";
    let text = cut_once(&server, drop, &listener, &others);
    // No user is away at the speaker's begin or end, which users of the other agent do not know.
    let text = text
        .replace("duration = \"100ms\"", "duration = \"1500ms\"")
        .replace("duration = \"3s\"", "duration = \"2s\"")
        .replace("every = \"3s\"", "every = \"2s\"");
    let ran = run_with(&text, 2);
    ran.errors_are(&[]);
    let hosts: BTreeSet<u16> = ran.record.workers().keys().map(|id| id.host).collect();
    assert_eq!((hosts.len(), ran.count(Count::DropsReset)), (2, 11), "{}", ran.text());
    assert!(hub.missed() > 11, "{}", ran.text());
    deliveries_are(&ran, 11 * 250, hub.missed());
}

#[test]
fn user_that_resumes_misses_no_message() {
    for protocol in ["phoenix", "phoenix-v1"] {
        let hub = Hub::new(Keeps::All);
        let server = hub.serve();
        let others = format!("{SPEAKS}{}", appointments("speaker", 2));
        let listener = format!("resume = true\n{LISTENS}{}", appointments("listener", 20));
        let drop = "for = \"700ms\", how = \"both\", reconnect = \"0-300ms\"";
        let text = cut_once(&server, drop, &listener, &others);
        let session = "name = \"listener\"\nprotocol = \"";
        let text = text.replace(&format!("{session}phoenix"), &format!("{session}{protocol}"));
        assert!(text.contains(&format!("{protocol}\"")));
        let ran = run_with(&text, 2);
        ran.errors_are(&[]);
        ran.users_are(22, 0);
        // The speakers receive each other's messages and are not cut.
        deliveries_are(&ran, 20 * 500 + 2 * 250, 0);
        assert_eq!(ran.count(Count::ResumesRecovered), 40, "{}", ran.text());
        assert_eq!(ran.count(Count::ResumedMessages), hub.missed(), "{}", ran.text());
        assert!(hub.missed() > 20, "{}", ran.text());
        let (reset, silent) = (ran.count(Count::DropsReset), ran.count(Count::DropsSilent));
        assert_eq!(reset + silent, 20, "{}", ran.text());
        assert!(reset >= 3 && silent >= 3, "half and half: {}", ran.text());
        assert_eq!((hub.ids(), hub.join_refs_used_twice()), (20, 0));
    }
}

#[test]
fn lost_repeated_and_reordered_messages_are_counted() {
    // Of ten messages the third comes twice, the fifth after the sixth, and the eighth never.
    let hub = Hub::new(Keeps::Errors);
    let server = hub.serve();
    let steps = "steps = [{ connect = \"/\" }, { join = \"room\" }, { gather = 3 }, \
        { set = \"n\", value = \"{{user_id}}\" }, { if = \"n == 1\", steps = [\
        { loop = 10, steps = [{ push = \"say\", payload = { body = \"{{stamp}}\" } }] }] }, \
        { receive = \"3s\" }]";
    let ran = run(&of(server.addr, 3, "phoenix", "follow_stamps = \"exact\"", steps));
    ran.errors_are(&[]);
    ran.users_are(3, 0);
    let counts = [
        (Count::DeliveriesExpected, 20),
        (Count::DeliveriesOnce, 18),
        (Count::DeliveriesMissing, 2),
        (Count::DeliveriesDuplicate, 2),
        (Count::DeliveriesOutOfOrder, 2),
        (Count::DeliveriesUnexpected, 0),
    ];
    for (count, expected) in counts {
        assert_eq!(ran.count(count), expected, "{count}: {}", ran.text());
    }
}

#[test]
fn message_that_the_server_did_not_accept_is_not_missing() {
    // Refused, unanswered and never arrived are three ways of being unconfirmed.
    let hub = Hub::new(Keeps::Nothing);
    let server = hub.serve();
    let say = |event: &str, more: &str| {
        format!("{{ push = \"{event}\", payload = {{ body = \"{{{{stamp}}}}\" }}{more} }}")
    };
    let steps = format!(
        "reconnect = {{ min = \"20ms\", max = \"20ms\" }}\n\
         steps = [{{ connect = \"/\" }}, {{ join = \"room\" }}, {{ gather = 2 }}, \
         {{ set = \"n\", value = \"{{{{user_id}}}}\" }}, {{ if = \"n == 1\", steps = [\
         {}, {}, {}, {}, {}, {}] }}, {{ receive = \"3s\" }}]",
        say("say", ""),
        say("refuse", ", status = \"any\""),
        say("say", ", reply = false"),
        say("ignore", ", timeout = \"200ms\""),
        say("say", ""),
        say("hang_up", ""),
    );
    let ran = run(&of(server.addr, 2, "phoenix", "follow_stamps = \"exact\"", &steps));
    ran.errors_are(&[(E::ReplyTimeout, 1), (E::EndOfStream, 1)]);
    deliveries_are(&ran, 3, 0);
    let doubtful = [Count::BroadcastsUnconfirmed, Count::BroadcastsUnconfirmedHeard];
    assert_eq!(doubtful.map(|count| ran.count(count)), [3, 0], "{}", ran.text());
}

#[test]
fn unconfirmed_message_is_expected_by_all_if_one_user_receives_it() {
    let hub = Hub::new(Keeps::Nothing);
    let server = hub.serve();
    let say = "payload = { body = \"{{stamp}}\" }";
    let steps = format!(
        "reconnect = {{ min = \"20ms\", max = \"20ms\" }}\n\
         steps = [{{ connect = \"/\" }}, {{ join = \"room\" }}, {{ gather = 3 }}, \
         {{ set = \"n\", value = \"{{{{user_id}}}}\" }}, {{ if = \"n == 1\", steps = [\
         {{ push = \"say\", {say} }}, {{ push = \"whisper\", {say}, timeout = \"200ms\" }}, \
         {{ push = \"say\", {say} }}] }}, {{ receive = \"3s\" }}]"
    );
    let ran = run(&of(server.addr, 3, "phoenix", "follow_stamps = \"exact\"", &steps));
    ran.errors_are(&[(E::ReplyTimeout, 1)]);
    deliveries_are(&ran, 2 * 3, 1);
    let doubtful = [Count::BroadcastsUnconfirmed, Count::BroadcastsUnconfirmedHeard];
    assert_eq!(doubtful.map(|count| ran.count(count)), [1, 1], "{}", ran.text());
}

#[test]
fn joining_and_leaving_user_expects_only_messages_while_joined() {
    // One speaks all the time; the other joins and leaves twice by its steps, and receives messages
    // until the server has handled its leave.
    let hub = Hub::new(Keeps::NothingAndLeavesLate);
    let server = hub.serve();
    let text = format!(
        "follow_stamps = \"exact\"\n[target]\nurl = \"ws://{}\"\n{SPEAKS}\
         [[session]]\nname = \"guest\"\nprotocol = \"phoenix\"\nsteps = [{{ connect = \"/\" }}, \
         {{ join = \"room\" }}, {{ receive = \"800ms\" }}, {{ leave = \"room\" }}, \
         {{ think = \"800ms\" }}, {{ join = \"room\" }}, {{ receive = \"800ms\" }}, \
         {{ close = true }}]\n{}[[appointment]]\nat = \"800ms\"\nsession = \"guest\"\n",
        server.addr,
        appointments("speaker", 1)
    );
    let ran = run(&text);
    ran.errors_are(&[]);
    let got = ran.count(Count::DeliveriesOnce);
    deliveries_are(&ran, got, 0);
    assert!((20..=220).contains(&got), "some 95 while it was there: {}", ran.text());
}

/// How and when connections ended, by their number.
type Ends = Arc<Mutex<Vec<(u64, Io, Instant)>>>;

/// A server that upgrades, answers joins, and records when each connection began and how it ended.
fn watching(ends: &Ends, begins: &Arc<Mutex<Vec<Instant>>>) -> Server {
    let (ends, begins) = (Arc::clone(ends), Arc::clone(begins));
    Server::new(move |mut peer| {
        // The user is not back before its upgrade is answered.
        lock(&begins).push(Instant::now());
        if !peer.upgrade() {
            return;
        }
        let got = peer.frame().unwrap();
        let join: Value = serde_json::from_slice(&got.payload).unwrap();
        hub::reply(&mut peer, &join, "ok");
        let kind = match (&*peer.stream).read(&mut [0; 256]) {
            Ok(0) => Io::UnexpectedEof,
            Ok(_) => Io::Other,
            Err(error) => error.kind(),
        };
        lock(&ends).push((peer.number, kind, Instant::now()));
    })
}

#[test]
fn server_notices_a_reset_at_once_and_silence_at_the_reconnect() {
    for (how, is_silent) in [("rst", false), ("silence", true)] {
        let (ends, begins) = (Arc::default(), Arc::default());
        let server = watching(&ends, &begins);
        let drop = format!("for = \"2s\", how = \"{how}\"");
        let listener = format!("{LISTENS}{}", appointments("listener", 1));
        let ran = run(&cut_once(&server, &drop, &listener, ""));
        ran.errors_are(&[]);
        let (ends, begins) = (lock(&ends).clone(), lock(&begins).clone());
        let (number, kind, at) = ends[0];
        assert_eq!((number, kind, begins.len()), (0, Io::ConnectionReset, 2), "{ends:?}");
        let ahead = begins[1].saturating_duration_since(at);
        match is_silent {
            true => assert_eq!(ahead, Duration::ZERO, "told before the user was there"),
            false => assert!(ahead > Duration::from_millis(700), "{ahead:?}"),
        }
    }
}

#[test]
fn failed_reconnect_is_retried_and_counted() {
    let refused = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&refused);
    let hub = Hub::new(Keeps::Nothing);
    let server = hub.serve_but(move |peer: &mut Peer| {
        // The second to the fourth connection end before they are WebSockets.
        let refuses = (1..=3).contains(&peer.number);
        seen.fetch_add(u64::from(refuses), SeqCst);
        !refuses
    });
    let drop = "for = \"100ms\", how = \"rst\"";
    let back = "reconnect = { min = \"50ms\", max = \"100ms\" }\n";
    let listener = format!("{back}{LISTENS}{}", appointments("listener", 1));
    let ran = run(&cut_once(&server, drop, &listener, ""));
    assert_eq!(refused.load(SeqCst), 3);
    assert_eq!(ran.record.errors().total(), 3, "{}", ran.text());
    assert_eq!(ran.count(Count::ConnectsTried), 5, "{}", ran.text());
    assert_eq!((ran.count(Count::Reconnects), ran.count(Count::DropsReset)), (1, 1));
    ran.users_are(1, 0);
}

#[test]
fn resume_position_is_taken_from_every_message_that_has_one() {
    // Each connection is sent one message and ends; the next join shows the resulting position.
    let since = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&since);
    let server = Server::new(move |mut peer| {
        if !peer.upgrade() {
            return;
        }
        let got = peer.frame().unwrap();
        let join: Value = serde_json::from_slice(&got.payload).unwrap();
        assert_eq!(join[4]["name"], "ann", "what the application wants stays");
        lock(&seen).push(join[4]["simurgh"]["since"].clone());
        hub::reply(&mut peer, &join, "ok");
        let say = |peer: &mut Peer, message: Value| peer.text(&message.to_string());
        let binary = |peer: &mut Peer| peer.send(frame(2, hub::binary("room", "b", b"x")));
        let gap = |recovered, reason| json!({"recovered": recovered, "reason": reason});
        let n = peer.number;
        let p = format!("abcdef.{n}");
        match n {
            0 => say(&mut peer, json!([join[0], p, "room", "simurgh:resumed", gap(true, "")])),
            1 => say(&mut peer, json!([null, p, "room", "text", {}])),
            2 => {
                say(&mut peer, json!([null, p, "room", "simurgh:next", {}]));
                binary(&mut peer)
            }
            // The message itself did not come.
            3 => say(&mut peer, json!([null, p, "room", "simurgh:next", {}])),
            4 => say(&mut peer, json!([null, p, "room", "simurgh:at", {}])),
            5 => say(&mut peer, json!([join[0], p, "room", "simurgh:gap", gap(false, "lost")])),
            6 => say(&mut peer, json!([join[0], p, "room", "intercepted", {}])),
            // None of these belongs to the history.
            7 => {
                say(&mut peer, json!([null, null, "room", "text", {}]));
                say(&mut peer, json!([join[0], null, "room", "push", {}]));
                say(&mut peer, json!([null, p, "other", "text", {}]));
                say(&mut peer, json!(["99", p, "room", "of an earlier join", {}]));
                binary(&mut peer)
            }
            8 => say(&mut peer, json!([null, "x".repeat(33), "room", "text", {}])),
            9 => say(&mut peer, json!([join[0], p, "room", "simurgh:resumed", gap(false, "?")])),
            _ => return peer.drain(),
        };
        peer.no_more();
        peer.drain();
    });
    let steps = "resume = true\nreconnect = { min = \"10ms\", max = \"20ms\" }\nsteps = [\
        { connect = \"/\" }, { join = \"room\", payload = { name = \"ann\" } }, \
        { receive = \"4s\" }]";
    let ran = run(&of(server.addr, 1, "phoenix", "", steps));
    let found: Vec<Value> = lock(&since).clone();
    let expected = [None, Some(0), Some(1), Some(2), Some(2), Some(4), Some(5), Some(6)];
    let expected = expected.into_iter().chain([Some(6), Some(6), Some(9)]);
    let expected: Vec<Value> =
        expected.map(|n| n.map_or(Value::Null, |n| json!(format!("abcdef.{n}")))).collect();
    assert_eq!(found, expected, "{}", ran.text());
    ran.errors_are(&[(E::EndOfStream, 10), (E::MessageMalformed, 1)]);
    let gaps = [Count::ResumesRecovered, Count::GapsLost, Count::GapsOther].map(|c| ran.count(c));
    assert_eq!(gaps, [1, 1, 1], "{}", ran.text());
}

#[test]
fn newly_joined_channel_does_not_resume() {
    let hub = Hub::new(Keeps::All);
    let server = hub.serve();
    let join = "{ join = \"room\" }, { push = \"say\" }, { think = \"50ms\" }";
    let steps = format!(
        "resume = true\nsteps = [{{ connect = \"/\" }}, {join}, {{ leave = \"room\" }}, {join}, \
         {{ close = true }}, {{ connect = \"/\" }}, {join}, {{ close = true }}]"
    );
    for protocol in ["phoenix", "phoenix-v1"] {
        let ran = run(&of(server.addr, 1, protocol, "", &steps));
        ran.errors_are(&[]);
        ran.users_are(1, 0);
    }
    assert_eq!(hub.resumed(), 0);
}

#[test]
fn join_payload_that_is_not_an_object_aborts_the_user() {
    let hub = Hub::new(Keeps::All);
    let server = hub.serve();
    let steps = "resume = true\nsteps = [{ set = \"p\", value = \"[1]\" }, { connect = \"/\" }, \
                 { join = \"room\", payload = \"{{p}}\" }, { close = true }]";
    let ran = run(&of(server.addr, 1, "phoenix", "", steps));
    ran.errors_are(&[(E::Send, 1)]);
    ran.users_are(0, 1);
}
