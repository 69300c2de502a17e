//! Confirmed messages survive when the leader of a stream on three servers is killed, or the single
//! server.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use super::back_end::{Messages, TOPIC, histories, keeps, nodes, plan};
use super::member::Member;
use super::operator;
use crate::support::engine::until;
use crate::support::engine::{Engine, STORE};
use crate::support::hosts::{Direction, HUB, Host, are_here, on_a_bridge};
use crate::support::node::{Node, Plan, are_up};

const EVERY: Duration = Duration::from_millis(40);

fn confirmed(members: &[Member]) -> usize {
    let count = |it: &Member| {
        let received = it.received();
        received.pushed.values().filter(|it| it.as_deref() == Some("ok")).count()
    };
    members.iter().map(count).sum()
}

/// Repeats each message until it is confirmed, on alternating nodes; returns their number.
fn publishes(nodes: &[Node], goes_on: &AtomicBool) -> usize {
    let (mut sent, mut turn) = (0, 0);
    while goes_on.load(Ordering::Relaxed) {
        let text = format!("back end/{sent}");
        let message =
            json!({"topic": TOPIC, "event": "say", "id": text, "payload": {"text": text}});
        loop {
            let node = &nodes[turn % nodes.len()];
            turn += 1;
            match node.whole_answer("POST /api/broadcast", &message.to_string()) {
                Ok((202, ..)) => break,
                // No node answers, or not yet.
                Ok((0 | 503 | 504, ..)) | Err(_) => sleep(EVERY),
                Ok((status, _, body)) => panic!("{status} {body}"),
            }
        }
        sent += 1;
        sleep(EVERY);
    }
    sent
}

/// Members of all nodes and a back end publish during a fault; returns when all messages are
/// confirmed.
fn nothing_confirmed_is_lost(nodes: &[Node], happens: impl FnOnce()) {
    let member = |(n, node): (usize, &Node)| {
        [0, 1].map(|it| Member::joins(&format!("member-{n}-{it}"), node, TOPIC))
    };
    let members: Vec<Member> = nodes.iter().enumerate().flat_map(member).collect();
    let goes_on = AtomicBool::new(true);
    let sent = std::thread::scope(|scope| {
        let back_end = scope.spawn(|| publishes(nodes, &goes_on));
        members.iter().for_each(|it| it.pushes_every(EVERY));
        let disconnects = |more: usize| {
            let before = confirmed(&members);
            until("more is confirmed", || (confirmed(&members) > before + more).then_some(()));
        };
        disconnects(100);
        happens();
        disconnects(200);
        members.iter().for_each(Member::stops_pushing);
        goes_on.store(false, Ordering::Relaxed);
        back_end.join().unwrap()
    });
    are_up(nodes);
    let history = histories(nodes);
    is_as_confirmed(&history, &members, sent);
    for member in &members {
        member.has_received_all_of(&history);
        member.has_no_gap();
    }
}

/// Checks that all confirmed messages are in the history, and the others at most once.
fn is_as_confirmed(history: &Messages, members: &[Member], sent: usize) {
    let mut times = BTreeMap::<&str, usize>::new();
    history.iter().for_each(|(_, text)| *times.entry(text).or_default() += 1);
    let twice: Vec<_> = times.iter().filter(|it| *it.1 > 1).collect();
    assert!(twice.is_empty(), "kept twice: {twice:?}");
    let mut of_outcomes = BTreeMap::<String, usize>::new();
    for member in members {
        for (text, outcome) in &member.received().pushed {
            let outcome = outcome.clone().unwrap();
            let is_there = times.contains_key(&**text);
            match &*outcome {
                "ok" => assert!(is_there, "{text} was confirmed, and is not there"),
                "not stored" => assert!(!is_there, "{text} was refused, and is there"),
                "unconfirmed" | "the connection has ended" => {}
                other => panic!("{text}: {other}"),
            }
            *of_outcomes.entry(outcome).or_default() += 1;
        }
    }
    println!("{of_outcomes:?}, and {sent} of a back end");
    for n in 0..sent {
        let text = format!("back end/{n}");
        assert!(times.contains_key(&*text), "{text} was confirmed, and is not there");
    }
}

#[test]
#[ignore = "needs nats-server"]
fn confirmed_messages_survive_a_killed_broker_leader_under_load() {
    let mut engines = Engine::three();
    let servers: Vec<String> = engines.iter().map(Engine::address).collect();
    let nodes: Vec<Node> = (0..3)
        .map(|n| {
            // Each node gets another server first.
            let mut engines = servers.clone();
            engines.rotate_left(n);
            let keys = "history_replicas = 3\n".to_owned();
            let plan = plan(["one", "two", "three"][n], "");
            Plan { engines, keys, ..plan }.start()
        })
        .collect();
    nodes.iter().for_each(keeps);
    for node in &nodes {
        until("it says what that survives", || {
            let words = "histories: stored in files on 3 servers, one of which may fail";
            node.log().contains(words).then_some(())
        });
    }
    nothing_confirmed_is_lost(&nodes, || {
        let leader = operator::leader(engines[0].port());
        engines[leader].kill();
    });
}

#[test]
#[ignore = "needs nats-server"]
fn confirmed_messages_survive_a_killed_single_broker_under_load() {
    let mut engine = Engine::start(STORE);
    let nodes = nodes(&engine.address(), ["one", "two"]);
    nothing_confirmed_is_lost(&nodes, || {
        engine.kill();
        for node in &nodes {
            until("the link is away", || (node.health() == "away").then_some(()));
        }
        engine.restart();
    });
}

#[test]
#[ignore = "needs nats-server"]
fn confirmed_messages_survive_a_long_freeze_of_the_single_broker() {
    let engine = Engine::start(STORE);
    let nodes = nodes(&engine.address(), ["one", "two"]);
    nothing_confirmed_is_lost(&nodes, || {
        engine.freeze();
        for node in &nodes {
            until("the link is away", || (node.health() == "away").then_some(()));
        }
        // Longer than the timeout of any request.
        sleep(Duration::from_secs(5));
        engine.thaw();
    });
}

#[test]
#[ignore = "needs nats-server and root"]
fn confirmed_messages_survive_a_flapping_network() {
    if !are_here(module_path!(), "confirmed_messages_survive_a_flapping_network") {
        return;
    }
    let hosts = on_a_bridge(2);
    let engine = Engine::start_at(HUB, STORE);
    let start = |host: &Host| {
        let plan = plan(&host.by()[3], &engine.address());
        Plan { by: host.by(), host: host.address.clone(), ..plan }.start()
    };
    let nodes: Vec<Node> = hosts.iter().map(start).collect();
    nodes.iter().for_each(keeps);
    let port = engine.port().to_string();
    nothing_confirmed_is_lost(&nodes, || {
        for n in 0..12 {
            let host = &hosts[n % 2];
            host.loses(
                &port,
                [&[Direction::In][..], &[Direction::Out], &[Direction::In, Direction::Out]][n % 3],
            );
            sleep(Duration::from_millis([150, 400, 1000][n / 2 % 3]));
            // With and without pending requests.
            if n / 3 % 2 == 1 {
                host.resets(&port);
                sleep(Duration::from_millis(100));
            }
            host.heals();
            sleep(Duration::from_millis(150));
        }
    });
}

/// Clients keep moving between nodes while a node is killed, and then the engine.
#[test]
#[ignore = "needs nats-server"]
fn clients_that_move_during_faults_are_notified_of_every_gap() {
    const MOVE: Duration = Duration::from_millis(60);
    let mut engine = Engine::start(STORE);
    let nodes = nodes(&engine.address(), ["one", "two", "three"]);
    let member = |n: usize| Member::joins(&format!("mover-{n}"), &nodes[n % 3], TOPIC);
    let movers: Vec<Member> = (0..9).map(member).collect();
    let goes_on = AtomicBool::new(true);
    let sent = std::thread::scope(|scope| {
        let back_end = scope.spawn(|| publishes(&nodes, &goes_on));
        movers.iter().for_each(|it| it.pushes_every(EVERY));
        let mut turn = 0;
        let mut move_on = |alive: usize, time: Duration| {
            let began = Instant::now();
            while began.elapsed() < time {
                turn += 1;
                movers[turn % movers.len()].moves(&nodes[(turn / 2 + turn / 7) % alive]);
                sleep(MOVE);
            }
        };
        move_on(3, Duration::from_secs(3));
        nodes[2].signal("KILL");
        move_on(2, Duration::from_secs(3));
        engine.kill();
        move_on(2, Duration::from_secs(3));
        engine.restart();
        move_on(2, Duration::from_secs(5));
        movers.iter().for_each(Member::stops_pushing);
        goes_on.store(false, Ordering::Relaxed);
        back_end.join().unwrap()
    });
    are_up(&nodes[..2]);
    let history = histories(&nodes[..2]);
    is_as_confirmed(&history, &movers, sent);
    for mover in &movers {
        let gaps = mover.has_missed_nothing_silently(&history);
        assert!(gaps.iter().all(|it| it == "unavailable"), "{}: {gaps:?}", mover.name);
    }
}
