//! Lost connections: with `reconnect`, users come back with their state, and all sums are right.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::outside::{Peer, Server, eventually, lock, of, run, run_with};
use serde_json::json;
use simurgh_load::record::{Count, Ending, ErrorKind as E, Metric};

/// The messages to a Channels server: one line for each, `connection topic event`.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn note(&self, line: String) {
        lock(&self.0).push(line);
    }

    fn count(&self, word: &str) -> u64 {
        lock(&self.0).iter().filter(|line| line.contains(word)).count() as u64
    }
}

/// A V2 server that answers everything with `ok`; `look` may end the connection instead.
fn channels(peer: &mut Peer, log: &Log, mut look: impl FnMut(&mut Peer, &str, &str) -> bool) {
    peer.channels(|peer, message| {
        let (topic, event) = (message[2].as_str().unwrap(), message[3].as_str().unwrap());
        log.note(format!("{} {topic} {event}", peer.number));
        look(peer, topic, event)
    });
}

fn channels_at(addr: SocketAddr, log: &Log) -> Server {
    let log = log.clone();
    Server::at(addr, move |mut peer| channels(&mut peer, &log, |_, _, _| true))
}

const ANY: &str = "127.0.0.1:0";
const BACK: &str = "reconnect = { min = \"20ms\", max = \"200ms\" }\n";

#[test]
fn restarted_server_gets_all_its_users_back() {
    const USERS: u64 = 300;
    let log = Log::default();
    let first = channels_at(ANY.parse().unwrap(), &log);
    let addr = first.addr;
    let back = Log::default();
    let killer = {
        let (log, back) = (log.clone(), back.clone());
        thread::spawn(move || {
            eventually("all have joined", || log.count("phx_join") >= 2 * USERS);
            first.kill();
            thread::sleep(Duration::from_millis(300));
            channels_at(addr, &back)
        })
    };
    let steps = format!(
        "{BACK}steps = [{{ connect = \"/\" }}, {{ join = \"a\" }}, \
         {{ join = \"b:{{{{user_id}}}}\" }}, \
         {{ receive = \"end\" }}]"
    );
    let ran = run_with(&of(addr, USERS as u32, "phoenix", "duration = \"15s\"", &steps), 2);
    drop(killer.join().unwrap());
    assert_eq!(ran.ending, Ending::Duration);
    // Users that stay to the end have finished.
    ran.users_are(USERS, 0);
    assert_eq!(ran.count(Count::Reconnects), USERS, "{}", ran.text());
    assert_eq!(ran.count(Count::Upgrades), 2 * USERS, "{}", ran.text());
    assert_eq!(ran.count(Count::Joins), 4 * USERS);
    assert_eq!(ran.count(Count::JoinsOk), 4 * USERS);
    assert_eq!((back.count(" a phx_join"), back.count(" b:")), (USERS, USERS));
    let lost = ran.errors(E::EndOfStream) + ran.errors(E::ConnectionReset);
    assert_eq!(lost, USERS, "{}", ran.text());
    let connects = ran.errors(E::ConnectRefused);
    assert_eq!(ran.record.errors().total(), lost + connects, "{}", ran.text());
    assert_eq!(ran.count(Count::ConnectsTried), 2 * USERS + connects);
    assert_eq!(ran.record.connected_peak(), USERS);
}

#[test]
fn receive_step_continues_with_its_rest_after_a_reconnect() {
    // Two frames of five come before the connection ends, three after it; the replies of the
    // repeated join in between do not count.
    let log = Log::default();
    let server = Server::new(move |mut peer| {
        let first = peer.number == 0;
        channels(&mut peer, &log, |peer, topic, _| {
            let answer = json!({"status": "ok", "response": {}});
            // Refs continue after a reconnect.
            let join_ref = if first { "1" } else { "2" };
            peer.text(&json!([join_ref, join_ref, topic, "phx_reply", answer]).to_string());
            for number in 0..if first { 2 } else { 3 } {
                peer.text(&json!([null, null, topic, "news", {"n": number}]).to_string());
            }
            if first {
                thread::sleep(Duration::from_millis(100));
            } else {
                peer.drain();
            }
            false
        });
    });
    let steps = format!(
        "{BACK}steps = [{{ connect = \"/\" }}, {{ join = \"a\" }}, \
         {{ receive = \"20s\", count = 5, match = {{ event = \"news\" }} }}, {{ close = true }}]"
    );
    let ran = run(&of(server.addr, 1, "phoenix", "", &steps));
    ran.users_are(1, 0);
    assert_eq!(ran.count(Count::Reconnects), 1, "{}", ran.text());
    assert!(ran.took < Duration::from_secs(10), "{}", ran.text());
}

#[test]
fn failed_rejoins_are_repeated_at_the_next_reconnect() {
    // The second connection ends after the first of two repeated joins; on the third, both come.
    let log = Log::default();
    let seen = log.clone();
    let server = Server::new(move |mut peer| {
        let number = peer.number;
        channels(&mut peer, &log, |_, topic, event| match number {
            0 => event != "last",
            1 => topic != "b",
            _ => event != "last",
        });
    });
    let steps = format!(
        "{BACK}steps = [{{ connect = \"/\" }}, {{ join = \"a\" }}, {{ join = \"b\" }}, \
         {{ push = \"last\" }}, {{ push = \"after\" }}, {{ close = true }}]"
    );
    let ran = run(&of(server.addr, 1, "phoenix", "", &steps));
    ran.users_are(1, 0);
    let lines = lock(&seen.0).join(", ");
    assert_eq!(
        lines,
        "0 a phx_join, 0 b phx_join, 0 b last, 1 a phx_join, 1 b phx_join, \
         2 a phx_join, 2 b phx_join, 2 b after"
    );
    assert_eq!(ran.count(Count::RequestsUnanswered), 2, "{}", ran.text());
    assert_eq!(ran.count(Count::Reconnects), 1);
}

#[test]
fn channels_that_the_server_closed_are_joined_again() {
    // On the first connection the server ends both channels, each in one of two ways.
    let log = Log::default();
    let seen = log.clone();
    let server = Server::new(move |mut peer| {
        let first = peer.number == 0;
        channels(&mut peer, &log, |peer, _, event| {
            if event == "end" && first {
                for (topic, end) in [("a", "phx_error"), ("b", "phx_close")] {
                    peer.text(&json!([null, null, topic, end, {}]).to_string());
                }
                thread::sleep(Duration::from_millis(50));
            }
            event != "end" || !first
        });
    });
    let steps = format!(
        "{BACK}steps = [{{ connect = \"/\" }}, {{ join = \"a\" }}, {{ join = \"b\" }}, \
         {{ join = \"c\" }}, {{ push = \"end\" }}, {{ push = \"after\" }}, {{ close = true }}]"
    );
    let ran = run(&of(server.addr, 1, "phoenix", "", &steps));
    ran.users_are(1, 0);
    assert_eq!(ran.errors(E::ChannelClosed), 2, "{}", ran.text());
    let lines = lock(&seen.0).join(", ");
    assert_eq!(
        lines,
        "0 a phx_join, 0 b phx_join, 0 c phx_join, 0 c end, \
         1 a phx_join, 1 b phx_join, 1 c phx_join, 1 c after"
    );
}

#[test]
fn left_channels_are_not_joined_again_after_a_reconnect() {
    let log = Log::default();
    let seen = log.clone();
    let server = Server::new(move |mut peer| {
        channels(&mut peer, &log, |_, _, event| event != "end");
    });
    let steps = format!(
        "{BACK}steps = [{{ connect = \"/\" }}, {{ join = \"x\" }}, {{ close = true }}, \
         {{ connect = \"/\" }}, {{ join = \"a\" }}, {{ join = \"b\" }}, {{ leave = \"a\" }}, \
         {{ push = \"end\", topic = \"b\" }}, {{ close = true }}]"
    );
    let ran = run(&of(server.addr, 1, "phoenix", "", &steps));
    ran.users_are(1, 0);
    let again: Vec<String> =
        lock(&seen.0).iter().filter(|line| line.starts_with("2 ")).cloned().collect();
    assert_eq!(again, ["2 b phx_join"], "{}", ran.text());
}

#[test]
fn reconnected_user_does_not_wait_for_a_finished_gather() {
    // The first user is lost while it waits for the other one, which comes meanwhile.
    let second_may = Arc::new(AtomicBool::new(false));
    let may = Arc::clone(&second_may);
    let server = Server::new(move |mut peer| {
        let number = peer.number;
        // The other user; the first one waits before it comes back.
        while number == 1 && !may.load(SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        if !peer.upgrade() {
            return;
        }
        if number == 0 {
            thread::sleep(Duration::from_millis(200));
            return may.store(true, SeqCst);
        }
        peer.echo();
    });
    let steps = "reconnect = { min = \"1s\", max = \"1s\" }\nsteps = [{ connect = \"/\" }, \
                 { gather = 2 }, { close = true }]";
    let text = of(server.addr, 2, "raw", "duration = \"10s\"", steps);
    let ran = run(&text);
    assert_eq!(ran.ending, Ending::Finished, "{}", ran.text());
    ran.users_are(2, 0);
    assert_eq!(ran.count(Count::Reconnects), 1);
}

#[test]
fn user_ends_after_its_maximum_of_reconnect_attempts() {
    let server = Server::new(|mut peer| {
        if peer.number == 0 {
            peer.upgrade();
        }
    });
    let steps = "reconnect = { min = \"5ms\", max = \"10ms\", attempts = 4 }\nsteps = \
                 [{ connect = \"/\" }, { think = \"10s\" }]";
    let ran = run(&of(server.addr, 1, "raw", "", steps));
    ran.users_are(0, 1);
    // The first connection, and four attempts to have another.
    assert_eq!(ran.count(Count::ConnectsTried), 5, "{}", ran.text());
    assert_eq!(ran.record.errors().total(), 5);
}

#[test]
fn reconnects_to_a_server_that_closes_at_once_are_paced() {
    let upgrades = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&upgrades);
    let server = Server::new(move |mut peer| {
        seen.fetch_add(u64::from(peer.upgrade()), SeqCst);
    });
    let steps = "reconnect = { min = \"100ms\", max = \"100ms\" }\nsteps = \
                 [{ connect = \"/\" }, { receive = \"end\" }]";
    let ran = run(&of(server.addr, 20, "raw", "duration = \"2s\"", steps));
    // Each user waits at least 50 ms between two attempts.
    assert!(ran.count(Count::ConnectsTried) <= 20 * 41, "{}", ran.text());
    assert!(ran.count(Count::Reconnects) >= 20, "{}", ran.text());
    let ended = ran.count(Count::UsersFinished) + ran.count(Count::UsersAborted);
    assert_eq!(ended, 20);
}

#[test]
fn unanswered_heartbeat_is_a_lost_connection() {
    let log = Log::default();
    let server = Server::new(move |mut peer| {
        if peer.number > 0 {
            return channels(&mut peer, &log, |_, _, _| true);
        }
        if peer.upgrade() {
            peer.drain();
        }
    });
    let steps = format!(
        "heartbeat = \"300ms\"\n{BACK}steps = [{{ connect = \"/\" }}, {{ receive = \"end\" }}]"
    );
    let ran = run(&of(server.addr, 1, "phoenix", "duration = \"3s\"", &steps));
    ran.errors_are(&[(E::ReplyTimeout, 1)]);
    ran.users_are(1, 0);
    assert_eq!(ran.count(Count::Reconnects), 1);
    // One on the first connection, and then one each interval on the second.
    let heartbeats = ran.count(Count::Heartbeats);
    assert!((4..=11).contains(&heartbeats), "{}", ran.text());
}

#[test]
fn stored_connection_loses_no_messages_until_it_is_restored() {
    // What comes while the connection is stored is read later, not lost.
    let server = Server::new(|mut peer| {
        if !peer.upgrade() {
            return;
        }
        if peer.path == "/aside" {
            peer.frame();
            peer.text("one");
            thread::sleep(Duration::from_millis(300));
            peer.text("two");
        }
        peer.echo();
    });
    let steps = "steps = [{ connect = \"/aside\" }, { send = \"x\", reply = true }, \
                 { switch = 1, store = true }, { connect = \"/other\" }, \
                 { send = \"other\", reply = { contains = \"other\" } }, { think = \"2500ms\" }, \
                 { switch = 1, restore = true }, \
                 { wait = { contains = \"two\" }, timeout = \"5s\" }, \
                 { send = \"back\", reply = { contains = \"back\" } }, { close = true }]";
    let ran = run(&of(server.addr, 10, "raw", "", steps));
    ran.errors_are(&[]);
    ran.users_are(10, 0);
    assert_eq!(ran.count(Count::Upgrades), 20);
    assert_eq!(ran.timed(Metric::Message), 30);
    assert_eq!(ran.record.connected_peak(), 20, "{}", ran.text());
}

#[test]
fn stored_connection_that_ends_is_no_longer_counted() {
    let server = Server::new(|mut peer| {
        if !peer.upgrade() {
            return;
        }
        if peer.path == "/aside" {
            thread::sleep(Duration::from_millis(200));
            return peer.reset();
        }
        peer.echo();
    });
    let steps = "steps = [{ connect = \"/aside\" }, { switch = 1, store = true }, \
                 { connect = \"/other\" }, { think = \"800ms\" }, { close = true }]";
    // This tests the sums of the harness.
    let ran = run(&of(server.addr, 10, "raw", "", steps));
    ran.users_are(10, 0);
    assert_eq!(ran.count(Count::Disconnects), 20);
}
