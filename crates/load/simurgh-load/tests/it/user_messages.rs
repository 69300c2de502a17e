//! Messages of users: values that a seed repeats, rows of files, conditions, loops and
//! transactions; over WebSockets and HTTP.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::outside::{Ran, Server, frame, lock, of, run, run_with, scenario};
use simurgh_load::record::{Count, ErrorKind as E, Metric};

#[derive(Clone, Default)]
struct Received(Arc<Mutex<BTreeMap<String, Vec<String>>>>);

impl Received {
    fn server(&self) -> Server {
        let received = self.clone();
        Server::new(move |mut peer| {
            peer.messages(|peer, got| {
                let text = String::from_utf8(got.payload.clone()).unwrap();
                lock(&received.0).entry(peer.path.clone()).or_default().push(text);
                peer.send(frame(got.opcode, got.payload))
            });
        })
    }

    fn all(&self) -> BTreeMap<String, Vec<String>> {
        lock(&self.0).clone()
    }
}

#[track_caller]
fn said(
    users: u32,
    head: &str,
    steps: &str,
    workers: usize,
) -> (BTreeMap<String, Vec<String>>, Ran) {
    let received = Received::default();
    let server = received.server();
    let steps =
        format!("steps = [{{ connect = \"/{{{{user_id}}}}\" }}, {steps}, {{ close = true }}]");
    let ran = run_with(&of(server.addr, users, "raw", head, &steps), workers);
    ran.users_are(u64::from(users), 0);
    (received.all(), ran)
}

#[test]
fn same_seed_repeats_a_run_with_any_number_of_workers() {
    let steps = "{ loop = 5, steps = [{ send = \"{{random_number 1 1000000}} \
                 {{random_string 12}} {{random_line names}}\", reply = true }, \
                 { think = [\"1ms\", \"9ms\"] }] }";
    let files = "[files]\nnames = [\"a\", \"b\", \"c\", \"d\", \"e\"]\n";
    let with = |seed: u32, workers| said(40, &format!("seed = {seed}\n{files}"), steps, workers).0;
    let first = with(7, 2);
    assert_eq!(first.len(), 40);
    assert!(first.values().all(|said| said.len() == 5), "{first:?}");
    assert_eq!(first, with(7, 2));
    // Users are numbered by their arrivals, so it does not matter which worker runs them.
    assert_eq!(first, with(7, 1));
    let other = with(8, 2);
    assert!(first.values().zip(other.values()).all(|(a, b)| a != b));
    // No two users send the same, and no user sends the same twice.
    let mut all: Vec<&String> = first.values().flatten().collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 200);
}

#[test]
fn rows_are_assigned_evenly_across_workers() {
    let files = "[files]\npeople = [\"ann;1\", \"bob;2\", \"cid;3\", \"dan;4\"]\n";
    let steps = "{ set = [\"name\", \"number\"], row = \"people\" }, \
                 { send = \"{{name}}={{number}}\", reply = true }";
    let (received, ran) = said(8, files, steps, 3);
    ran.errors_are(&[]);
    let mut all: Vec<String> = received.into_values().flatten().collect();
    all.sort();
    assert_eq!(all, ["ann=1", "ann=1", "bob=2", "bob=2", "cid=3", "cid=3", "dan=4", "dan=4"]);
}

#[test]
fn conditions_and_loops_send_the_expected_messages() {
    let steps = "{ set = \"n\", value = \"3\" }, \
        { if = \"n >= 3\", steps = [{ send = \"three\", reply = true }] }, \
        { if = \"n == 4\", steps = [{ send = \"four\", reply = true }] }, \
        { loop = 3, counter = \"i\", steps = [{ send = \"i{{i}}\", reply = true }] }, \
        { loop = 1, from = 5, step = -2, counter = \"i\", steps = \
          [{ send = \"d{{i}}\", reply = true }] }, \
        { set = \"none\", value = \"0\" }, { loop = { var = \"none\" }, steps = [{ send = \
        \"never\", reply = true }] }, \
        { loop = { var = \"n\" }, steps = [{ loop = 2, steps = [{ send = \"x\", reply = true \
        }] }] }, \
        { send = '{\"l\":[\"p\",\"q\",\"r\"]}', reply = true, capture = { list = \"l[*]\" } }, \
        { each = \"e\", in = \"list\", exclude = \"q\", steps = \
          [{ send = \"e{{e}}\", reply = true }] }, \
        { set = \"state\", value = \"go\" }, \
        { repeat = 4, while = \"state == go\", steps = [{ send = \"again\", reply = true }] }, \
        { repeat = 9, until = \"state == done\", steps = [{ send = \"done\", reply = true, \
          capture = { state = { regex = \"(done)\" } } }] }";
    let (received, ran) = said(3, "", steps, 1);
    ran.errors_are(&[]);
    let expected = "three i1 i2 i3 d5 d3 d1 x x x x x x {\"l\":[\"p\",\"q\",\"r\"]} ep er \
                    again again again again done";
    for said in received.values() {
        assert_eq!(said.join(" "), expected);
    }
}

#[test]
fn transaction_time_is_the_time_of_its_steps() {
    let steps = "{ transaction = \"outer\", steps = [{ think = \"100ms\" }, \
                 { transaction = \"inner\", steps = [{ think = \"200ms\" }, \
                 { send = \"x\", reply = true }] }] }";
    let (_, ran) = said(5, "", steps, 1);
    for (name, least) in [("outer", 300_000), ("inner", 200_000)] {
        let id = ran.record.meta().names.transaction(name).unwrap();
        let times = ran.record.times(id).unwrap();
        assert_eq!(times.count(), 5);
        assert!(times.min() >= least * 99 / 100, "{name}: {:?}", times.stats());
        assert!(times.max() <= least + 2_000_000, "{name}: {:?}", times.stats());
    }
}

#[test]
fn loop_without_a_wait_does_not_block_other_users() {
    // The server reads all; the user with the endless loop must not block the others.
    let received = Received::default();
    let server = received.server();
    let text = format!(
        "duration = \"2s\"\n[target]\nurl = \"ws://{}\"\n[[phase]]\nduration = \"1s\"\nrate = 20\n\
         weights = {{ busy = 0 }}\n[[appointment]]\nat = \"1ms\"\nsession = \"busy\"\n\
         [[session]]\nname = \"calm\"\nprotocol = \"raw\"\nsteps = [{{ connect = \"/\" }}, \
         {{ send = \"x\", reply = true }}, {{ close = true }}]\n\
         [[session]]\nname = \"busy\"\nprotocol = \"raw\"\nsteps = [{{ set = \"a\", value = \
         \"1\" }}, \
         {{ loop = 4000000000, steps = [{{ set = \"a\", value = \"{{{{random_number 1 9}}}}\" \
         }}] }}]",
        server.addr
    );
    let ran = run(&text);
    ran.errors_are(&[]);
    ran.users_are(21, 0);
    assert_eq!(ran.timed(Metric::Message), 20);
}

#[test]
fn checks_restart_or_abort_users() {
    let steps = "{ send = \"a\", reply = true, check = { pattern = \"b\", when = \"missing\", \
                 do = { loop = 3, sleep = \"600ms\" } } }, { send = \"z\", reply = true }";
    let (received, ran) = said(4, "", steps, 1);
    ran.errors_are(&[]);
    assert!(received.values().all(|said| said.join("") == "aaaaz"), "{received:?}");
    assert_eq!(ran.count(Count::NoMatches), 16);
    let lag = ran.record.times(Metric::StepLag).unwrap().max();
    assert!(lag < 500_000, "a sleep is no lateness: {lag} µs\n{}", ran.text());
    let received = Received::default();
    let server = received.server();
    let steps = "steps = [{ connect = \"/{{user_id}}\" }, { send = \"a\", reply = true, \
                 check = { pattern = \"b\", when = \"missing\", do = { restart = 2 } } }]";
    let ran = run(&of(server.addr, 4, "raw", "", steps));
    ran.errors_are(&[(E::CheckFailed, 4)]);
    ran.users_are(0, 4);
    assert_eq!(ran.count(Count::Upgrades), 12);
}

#[test]
fn many_stored_frames_are_matched_one_by_one() {
    // All frames come before the first wait, in the wrong order for half of the waits.
    let server = Server::new(|mut peer| {
        if !peer.upgrade() {
            return;
        }
        for number in (0..100).rev() {
            peer.text(&format!("<{number}>"));
        }
        peer.text("all");
        peer.echo();
    });
    let steps = "steps = [{ connect = \"/\" }, { wait = { contains = \"all\" } }, \
                 { loop = 99, from = 0, counter = \"i\", steps = [\
                 { wait = { contains = \"<{{i}}>\" }, timeout = \"5s\", check = \"x\" }] }, \
                 { close = true }]";
    let ran = run(&of(server.addr, 5, "raw", "", steps));
    ran.errors_are(&[]);
    ran.users_are(5, 0);
    assert_eq!(ran.count(Count::NoMatches), 500);
}

/// Runs an HTTP session against a server that answers a head with bytes, or hangs up.
#[track_caller]
fn http(steps: &str, answer: impl Fn(u64, &str) -> Option<String> + Send + Sync + 'static) -> Ran {
    let server = Server::new(move |mut peer| {
        while let Some(head) = peer.head() {
            let Some(bytes) = answer(peer.number, &head) else { return };
            peer.send(bytes);
        }
    });
    let text = of(server.addr, 10, "raw", "[timeouts]\nreply = \"500ms\"", steps);
    run(&text.replace("ws://", "http://"))
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[test]
fn http_requests_share_a_connection_and_cookies() {
    let ran = http(
        "steps = [{ get = \"/first\" }, { loop = 3, steps = [{ get = \"/again\", status = 200 \
         }] }]",
        |_, head| {
            let first = head.starts_with("GET /first ");
            let sent = head.to_ascii_lowercase().contains("cookie: a=b");
            assert_ne!(first, sent, "{head}");
            Some(OK.replace("content", "set-cookie: a=b\r\ncontent"))
        },
    );
    ran.errors_are(&[]);
    ran.users_are(10, 0);
    assert_eq!((ran.timed(Metric::Http), ran.count(Count::Connects)), (40, 10));
    assert_eq!(ran.record.statuses()[&200], 40);
}

#[test]
fn faulty_http_servers_cause_the_expected_errors() {
    let get = "steps = [{ get = \"/\" }]";
    let ran = http(get, |_, _| Some("garbage\r\n\r\n".to_owned()));
    ran.errors_are(&[(E::HttpMalformed, 10)]);
    let ran = http(get, |_, _| Some(String::new()));
    ran.errors_are(&[(E::ReplyTimeout, 10)]);
    let ran = http(get, |_, _| None);
    ran.errors_are(&[(E::EndOfStream, 10)]);
    assert_eq!(ran.count(Count::RequestsUnanswered), 10);
    let ran = http(get, |_, _| Some("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf".to_owned()));
    ran.errors_are(&[(E::ReplyTimeout, 10)]);
    let ran = http("steps = [{ get = \"/\", status = 200 }, { get = \"/\" }]", |_, _| {
        Some(OK.replace("200", "503"))
    });
    // A status is counted, and the user continues.
    ran.errors_are(&[(E::HttpStatus(503), 10)]);
    ran.users_are(10, 0);
    assert_eq!((ran.count(Count::HttpFailures), ran.record.statuses()[&503]), (20, 20));
}

#[test]
fn dropped_keep_alive_connection_is_reopened_once() {
    // The server hangs up on the second request of each connection, without an answer.
    let used = Mutex::new(std::collections::BTreeSet::new());
    let ran = http("steps = [{ get = \"/a\" }, { get = \"/b\" }]", move |number, _| {
        lock(&used).insert(number).then(|| OK.to_owned())
    });
    ran.errors_are(&[]);
    ran.users_are(10, 0);
    assert_eq!(ran.count(Count::Connects), 20, "{}", ran.text());
    assert_eq!(ran.count(Count::Requests), 30);
    assert_eq!(ran.count(Count::RequestsUnanswered), 10);
    assert_eq!(ran.count(Count::HttpAnswers), 20);
}

#[test]
fn raw_bytes_are_exchanged_and_a_lost_connection_is_an_error() {
    use std::io::{Read, Write};
    let server = Server::new(|peer| {
        let mut four = [0; 4];
        while (&*peer.stream).read_exact(&mut four).is_ok() {
            if &four == b"quit" {
                return;
            }
            (&*peer.stream).write_all(&four).unwrap();
        }
    });
    let steps = "steps = [{ raw = \"ping\", reply = true }, { raw = \"quit\", reply = true }]";
    let ran = run(&of(server.addr, 10, "raw", "", steps));
    ran.errors_are(&[(E::EndOfStream, 10)]);
    ran.users_are(0, 10);
    assert_eq!(ran.count(Count::RequestsUnanswered), 10);
    assert_eq!(ran.timed(Metric::Message), 20, "the unanswered ones with the time waited");
}

#[test]
fn slow_reader_does_not_delay_other_users() {
    let server = Server::new(|mut peer| {
        if peer.upgrade() {
            peer.send(frame(2, vec![0; 300 << 10]));
            thread::sleep(Duration::from_millis(1));
            peer.echo();
        }
    });
    let steps = "read_rate_max = 200000\nsteps = [{ connect = \"/\" }, \
                 { receive = \"20s\", count = 1 }, { close = true }]";
    let ran = run(&of(server.addr, 3, "raw", "", steps));
    ran.errors_are(&[]);
    ran.users_are(3, 0);
    assert!(ran.took >= Duration::from_secs(1), "{}", ran.text());
}

#[test]
fn scenario_that_aborts_the_run_ends_it_for_all_users() {
    let received = Received::default();
    let server = received.server();
    let steps = "steps = [{ connect = \"/\" }, { send = \"x\", reply = true }, \
                 { if = \"who == 7\", steps = [{ abort = \"run\" }] }, { receive = \"end\" }]";
    let steps =
        steps.replacen("{ connect", "{ set = \"who\", value = \"{{user_id}}\" }, { connect", 1);
    let text = of(server.addr, 20, "raw", "", &steps);
    assert_eq!(scenario(&text).sessions.len(), 1);
    let ran = run_with(&text, 2);
    assert_eq!(ran.ending, simurgh_load::record::Ending::Aborted);
    assert!(ran.count(Count::UsersAborted) >= 1);
    assert!(ran.took < Duration::from_secs(15));
}
