//! When users arrive: caps, closed models, phases that wait, appointments, gathers over workers,
//! and the operator's commands during a run.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::outside::{Ran, Server, close, frame, lock, run_with, steered};
use simurgh_load::control::Control;
use simurgh_load::record::{Count, Ending, Metric};

/// An echo server that counts open connections and records arrivals.
#[derive(Clone, Default)]
struct Seen {
    open: Arc<AtomicI64>,
    most: Arc<AtomicI64>,
    messages: Arc<AtomicU64>,
    came: Arc<Mutex<Vec<(Instant, String)>>>,
}

impl Seen {
    fn server(&self) -> Server {
        let seen = self.clone();
        Server::new(move |mut peer| {
            if peer.head().is_none() {
                return;
            }
            // Before the answer, after which the user continues.
            let open = seen.open.fetch_add(1, SeqCst) + 1;
            seen.most.fetch_max(open, SeqCst);
            lock(&seen.came).push((Instant::now(), peer.path.clone()));
            peer.send(peer.switch());
            while let Some(got) = peer.frame() {
                if got.opcode == 8 {
                    // Before the answer, after which the next user may come.
                    seen.open.fetch_sub(1, SeqCst);
                    peer.send(close(1000));
                    return;
                }
                seen.messages.fetch_add(1, SeqCst);
                peer.send(frame(got.opcode, got.payload));
            }
            seen.open.fetch_sub(1, SeqCst);
        })
    }

    fn came(&self) -> u64 {
        lock(&self.came).len() as u64
    }

    fn came_to(&self, path: &str) -> u64 {
        lock(&self.came).iter().filter(|(_, found)| found == path).count() as u64
    }
}

fn text(server: &Server, rest: &str) -> String {
    format!("[target]\nurl = \"ws://{}\"\n{rest}", server.addr)
}

/// Comes, stays for this time, and leaves.
fn stays(name: &str, time: &str) -> String {
    format!(
        "[[session]]\nname = \"{name}\"\nprotocol = \"raw\"\nsteps = [\
         {{ connect = \"/{name}\" }}, {{ think = \"{time}\" }}, {{ close = true }}]\n"
    )
}

#[track_caller]
fn all_is_well(ran: &Ran, users: u64) {
    ran.errors_are(&[]);
    ran.users_are(users, 0);
    assert_eq!(ran.ending, Ending::Finished, "{}", ran.text());
}

#[test]
fn ramp_starts_users_by_the_integral_of_its_rate() {
    // Not if other programs have needed the cores meanwhile.
    assert!((0..10).any(|_| (15..=40).contains(&early_of_a_ramp())), "never a quarter");
}

/// How many of 100 came in the first half of a ramp from zero: a quarter.
fn early_of_a_ramp() -> usize {
    let seen = Seen::default();
    let server = seen.server();
    let phases = "[[phase]]\nduration = \"2s\"\nrate = [0, 100]\n\
                  [[phase]]\nduration = \"1s\"\nrate = [100, 20]\n";
    let ran = run_with(&text(&server, &format!("{phases}{}", stays("a", "10ms"))), 3);
    all_is_well(&ran, 160);
    assert_eq!(seen.came(), 160);
    assert_eq!(ran.record.phases()[&0].started, 100);
    assert_eq!(ran.record.phases()[&1].started, 60);
    let came = lock(&seen.came);
    came.iter().filter(|(at, _)| *at - came[0].0 < Duration::from_millis(850)).count()
}

#[test]
fn maximum_of_users_holds_across_phases_and_workers() {
    let seen = Seen::default();
    let server = seen.server();
    let phases = "max_users = 70\n[target]\nurl = \"ws://SERVER\"\n\
                  [[phase]]\nduration = \"500ms\"\nrate = 200\nmax_users = 50\n\
                  [[phase]]\nduration = \"500ms\"\nrate = 200\n";
    let phases = phases.replace("SERVER", &server.addr.to_string());
    let ran = run_with(&format!("{phases}{}", stays("a", "10ms")), 3);
    all_is_well(&ran, 70);
    assert_eq!(ran.record.phases()[&0].started, 50);
    assert_eq!(ran.record.phases()[&1].started, 20);
}

#[test]
fn closed_model_replaces_users_that_finish() {
    let seen = Seen::default();
    let server = seen.server();
    let phase = "[[phase]]\nduration = \"2s\"\nusers = 12\n";
    let ran = run_with(&text(&server, &format!("{phase}{}", stays("a", "100ms"))), 3);
    ran.errors_are(&[]);
    let users = ran.count(Count::UsersFinished);
    // Twelve at a time, each for a little more than 100 ms: never more, and hardly fewer.
    assert_eq!(seen.most.load(SeqCst), 12, "{}", ran.text());
    assert!((24..=240).contains(&users), "{}", ran.text());
    assert_eq!(ran.count(Count::UsersAborted), 0);
}

#[test]
fn closed_model_respects_the_maximum_of_users() {
    let seen = Seen::default();
    let server = seen.server();
    let phases = "[[phase]]\nduration = \"1s\"\nusers = 7\nmax_users = 31\n\
                  [[phase]]\nduration = \"1s\"\nusers = 7\nmax_users = 10\n";
    let ran = run_with(&text(&server, &format!("{phases}{}", stays("a", "20ms"))), 3);
    all_is_well(&ran, 41);
    assert_eq!(ran.record.phases()[&0].started, 31, "{}", ran.text());
}

#[test]
fn closed_phase_shorter_than_a_schedule_bin_starts_its_users() {
    let seen = Seen::default();
    let server = seen.server();
    let phase = "[[phase]]\nduration = \"100ms\"\nusers = 5\n";
    let ran = run_with(&text(&server, &format!("{phase}{}", stays("a", "500ms"))), 2);
    all_is_well(&ran, 5);
}

#[test]
fn next_phase_starts_when_all_users_of_a_waiting_phase_have_left() {
    let seen = Seen::default();
    let server = seen.server();
    let phases = "[[phase]]\nduration = \"200ms\"\nrate = 100\nwait_for_users = true\n\
                  weights = { second = 0 }\n\
                  [[phase]]\nduration = \"200ms\"\nrate = 100\nweights = { first = 0 }\n";
    let sessions = format!("{}{}", stays("first", "700ms"), stays("second", "10ms"));
    // The server may notice an arrival late, but never early.
    let began = Instant::now();
    let ran = run_with(&text(&server, &format!("{phases}{sessions}")), 3);
    all_is_well(&ran, 40);
    assert_eq!((seen.came_to("/first"), seen.came_to("/second")), (20, 20));
    let came = lock(&seen.came);
    let second = came.iter().find(|(_, path)| path == "/second").unwrap().0;
    assert!(second - began >= Duration::from_millis(880), "{:?}", second - began);
}

#[test]
fn users_with_an_appointment_start_at_their_time() {
    let seen = Seen::default();
    let server = seen.server();
    let rest = "[[phase]]\nduration = \"100ms\"\nrate = 50\nweights = { late = 0 }\n\
                [[appointment]]\nat = \"900ms\"\nsession = \"late\"\n\
                [[appointment]]\nat = \"600ms\"\nsession = \"late\"\n\
                [[appointment]]\nat = \"600ms\"\nsession = \"late\"\n";
    let sessions = format!("{}{}", stays("early", "10ms"), stays("late", "10ms"));
    let began = Instant::now();
    let ran = run_with(&text(&server, &format!("{rest}{sessions}")), 2);
    all_is_well(&ran, 8);
    assert_eq!((seen.came_to("/early"), seen.came_to("/late")), (5, 3));
    let late: Vec<u128> = lock(&seen.came)
        .iter()
        .filter(|(_, path)| path == "/late")
        .map(|(at, _)| (*at - began).as_millis())
        .collect();
    assert!(late[0] >= 580 && late[1] >= 580 && late[2] >= 880, "{late:?}");
}

#[test]
fn users_of_all_workers_meet_at_a_gather() {
    let seen = Seen::default();
    let server = seen.server();
    let rest = "[[phase]]\nduration = \"1s\"\nrate = 60\n[[session]]\nname = \"one\"\n\
                protocol = \"raw\"\nsteps = [{ connect = \"/\" }, { gather = 60 }, \
                { send = \"now\", reply = true }, { close = true }]";
    let ran = run_with(&text(&server, rest), 4);
    all_is_well(&ran, 60);
    // No user could leave before the last had come.
    assert_eq!(seen.most.load(SeqCst), 60, "{}", ran.text());
}

#[test]
fn incomplete_gather_ends_at_its_timeout() {
    let seen = Seen::default();
    let server = seen.server();
    let rest = "[[phase]]\nduration = \"100ms\"\nrate = 100\n[[session]]\nname = \"one\"\n\
                protocol = \"raw\"\nsteps = [{ connect = \"/\" }, \
                { gather = 11, timeout = \"500ms\" }, { close = true }]";
    let ran = run_with(&text(&server, rest), 2);
    ran.errors_are(&[(simurgh_load::record::ErrorKind::WaitTimeout, 10)]);
    ran.users_are(10, 0);
}

#[test]
fn pause_stops_only_arrivals() {
    let seen = Seen::default();
    let server = seen.server();
    let rest = "[[phase]]\nduration = \"2s\"\nrate = 50\n[[session]]\nname = \"one\"\n\
                protocol = \"raw\"\nsteps = [{ connect = \"/\" }, { loop = 5, every = \"100ms\", \
                steps = [{ send = \"x\", reply = true }] }, { close = true }]";
    let watched = seen.clone();
    let operate = move |control: Control| {
        let began = Instant::now();
        while watched.came() < 20 {
            assert!(began.elapsed() < Duration::from_secs(10), "users come");
            thread::sleep(Duration::from_millis(5));
        }
        let messages = watched.messages.load(SeqCst);
        control.pause();
        // Users that are connecting still come.
        let (mut came, mut quiet) = (watched.came(), Instant::now());
        while quiet.elapsed() < Duration::from_secs(1) {
            thread::sleep(Duration::from_millis(100));
            if watched.came() > came {
                (came, quiet) = (watched.came(), Instant::now());
            }
        }
        let during = watched.messages.load(SeqCst) - messages;
        control.resume();
        (came, during)
    };
    let mut operator = None;
    let ran = steered(&text(&server, rest), 2, |run| {
        let control = run.control();
        operator = Some(thread::spawn(move || operate(control)));
    });
    let (came, messages) = operator.unwrap().join().unwrap();
    assert!(came < 100, "nobody comes in a pause");
    assert!(messages > 0, "those who are there go on");
    // The phase is as long as before, without the pause.
    all_is_well(&ran, 100);
    assert_eq!(ran.timed(Metric::Message), 500);
    assert!(ran.took >= Duration::from_millis(2900), "{}", ran.text());
}

#[test]
fn held_phase_starts_on_all_workers_when_resumed() {
    let seen = Seen::default();
    let server = seen.server();
    let rest = "[[phase]]\nduration = \"100ms\"\nrate = 100\n[[phase]]\nduration = \"200ms\"\n\
                rate = 100\nhold = true\n[[phase]]\nduration = \"100ms\"\nrate = 100\nhold = true\n\
                [[session]]\nname = \"one\"\nprotocol = \"raw\"\nsteps = [{ connect = \"/\" }, \
                { close = true }]";
    let watched = seen.clone();
    let operate = move |control: Control| {
        let mut came = Vec::new();
        for wanted in [10, 30, 40] {
            let began = Instant::now();
            while watched.came() < wanted && began.elapsed() < Duration::from_secs(30) {
                thread::sleep(Duration::from_millis(5));
            }
            thread::sleep(Duration::from_millis(500));
            came.push(watched.came());
            control.resume();
        }
        came
    };
    let mut operator = None;
    let ran = steered(&text(&server, rest), 3, |run| {
        let control = run.control();
        operator = Some(thread::spawn(move || operate(control)));
    });
    assert_eq!(operator.unwrap().join().unwrap(), [10, 30, 40]);
    all_is_well(&ran, 40);
}

#[test]
fn rate_command_multiplies_the_arrival_rate() {
    let seen = Seen::default();
    let server = seen.server();
    let phase = "[[phase]]\nduration = \"2s\"\nrate = 20\n";
    let rest = format!("{phase}{}", stays("a", "10ms"));
    let ran = steered(&text(&server, &rest), 2, |run| run.control().rate(3.0));
    let users = ran.count(Count::UsersFinished);
    // It takes effect within the first of twenty bins, or later on a busy machine.
    assert!((60..=120).contains(&users), "{}", ran.text());
}

#[test]
fn stop_command_closes_users_cleanly() {
    let seen = Seen::default();
    let server = seen.server();
    let watched = seen.clone();
    let operate = move |control: Control| {
        let began = Instant::now();
        while watched.came() < 50 && began.elapsed() < Duration::from_secs(30) {
            thread::sleep(Duration::from_millis(5));
        }
        control.stop();
    };
    let rest = format!("[[phase]]\nduration = \"1h\"\nrate = 100\n{}", stays("a", "30min"));
    let ran = steered(&text(&server, &rest), 3, |run| {
        let control = run.control();
        thread::spawn(move || operate(control));
    });
    assert_eq!(ran.ending, Ending::Stopped);
    ran.errors_are(&[]);
    assert!(ran.count(Count::UsersStarted) >= 50);
    assert!(ran.took < Duration::from_secs(60), "{}", ran.text());
    // Each was closed with a close frame, which the server has read.
    let began = Instant::now();
    while seen.open.load(SeqCst) > 0 && began.elapsed() < Duration::from_secs(30) {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(seen.open.load(SeqCst), 0);
}

#[test]
fn second_stop_command_does_not_wait_for_hanging_servers() {
    let server = Server::new(|mut peer| {
        if peer.upgrade() {
            thread::sleep(Duration::from_secs(30));
        }
    });
    let rest = format!("[[phase]]\nduration = \"1h\"\nrate = 100\n{}", stays("a", "30min"));
    let began = Instant::now();
    let options = simurgh_load::engine::Options { workers: Some(2), ..Default::default() };
    let scenario = crate::outside::scenario(&text(&server, &rest));
    let run = simurgh_load::engine::Run::prepare(scenario, &options).unwrap();
    let control = run.control();
    let operator = thread::spawn(move || {
        thread::sleep(Duration::from_millis(700));
        control.stop();
        control.stop();
    });
    let outcome = run.go(simurgh_load::report::Outputs::new());
    operator.join().unwrap();
    assert_eq!(outcome.ending, Ending::Stopped);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}
