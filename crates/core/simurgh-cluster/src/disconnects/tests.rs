//! Disconnects: the nodes asked, how often, and the reported outcomes.
#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::*;

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);

fn new() -> Disconnects {
    Disconnects::new(DisconnectsConfig::default())
}

/// One disconnect that these nodes have to confirm.
fn started(nodes: &[NodeId]) -> (Disconnects, DisconnectNumber) {
    let mut all = new();
    let number = all.start("user:7", nodes.iter().copied(), [], 0).unwrap();
    (all, number)
}

fn sends(disconnects: &mut Disconnects) -> Vec<(u64, Option<NodeId>)> {
    let mut all = Vec::new();
    while let Some(it) = disconnects.poll_send() {
        all.push((it.number.0, it.to));
    }
    all
}

fn sends_at(disconnects: &mut Disconnects, now_ns: u64) -> Vec<(u64, Option<NodeId>)> {
    disconnects.tick(now_ns);
    sends(disconnects)
}

fn outcome(confirmed: &[NodeId], missing: &[NodeId]) -> DisconnectOutcome {
    DisconnectOutcome { confirmed: confirmed.to_vec(), missing: missing.to_vec(), count: 0 }
}

#[test]
fn disconnect_is_resent_until_every_node_has_answered() {
    let (mut all, number) = started(&[A, B, C]);
    let first = all.poll_send().unwrap();
    assert_eq!((first.number, first.socket_id, first.to), (number, "user:7", None));
    assert_eq!(sends(&mut all), []);
    all.answered(B, number);
    assert_eq!(all.poll_outcome(), None);
    let mut times = Vec::new();
    while let Some(at) = all.next_ns()
        && at < 60 * SECOND
    {
        all.tick(at);
        times.push(at / SECOND);
        assert_eq!(sends(&mut all), [(1, Some(A)), (1, Some(C))]);
    }
    assert_eq!(times, [1, 3, 7, 15, 31, 47]);
    all.answered(C, number);
    all.answered(C, number);
    all.answered(A, number);
    assert_eq!(all.poll_outcome(), Some((number, outcome(&[B, C, A], &[]))));
    assert_eq!((all.poll_outcome(), sends(&mut all)), (None, vec![]));
    assert_eq!((all.len(), all.next_ns()), (1, Some(60 * SECOND)));
    all.tick(60 * SECOND);
    assert_eq!((all.is_empty(), all.next_ns(), all.poll_outcome()), (true, None, None));
}

#[test]
fn many_unanswered_nodes_get_one_common_request() {
    let mut all = new();
    all.start("user:7", (0..5).map(NodeId), [], 0).unwrap();
    sends(&mut all);
    assert_eq!(sends_at(&mut all, SECOND), [(1, None)]);
}

#[test]
fn node_that_does_not_answer_in_time_is_reported_missing() {
    let (mut all, number) = started(&[A, B]);
    all.answered(A, number);
    all.tick(60 * SECOND - 1);
    assert_eq!(all.poll_outcome(), None);
    all.tick(60 * SECOND);
    assert_eq!(all.poll_outcome(), Some((number, outcome(&[A], &[B]))));
    assert!(all.is_empty());
    all.answered(B, number);
    assert_eq!((all.poll_outcome(), sends(&mut all)), (None, vec![]));
}

#[test]
fn node_that_says_hello_gets_pending_disconnects_at_once_and_again() {
    let (mut all, number) = started(&[A]);
    all.answered(A, number);
    assert_eq!(all.poll_outcome(), Some((number, outcome(&[A], &[]))));
    sends(&mut all);
    all.hello(A, SECOND);
    assert_eq!(sends(&mut all), [], "it has confirmed");
    all.hello(B, 2 * SECOND);
    all.hello(B, 2 * SECOND);
    assert_eq!(sends(&mut all), [(1, Some(B))]);
    assert_eq!(sends_at(&mut all, 3 * SECOND), [(1, Some(B))]);
    all.answered(B, number);
    all.tick(30 * SECOND);
    assert_eq!((sends(&mut all), all.poll_outcome()), (vec![], None));
}

#[test]
fn silent_node_is_missing_at_once_and_asked_again_on_return() {
    let mut all = new();
    let number = all.start("user:7", [A, B], [C], 0).unwrap();
    sends(&mut all);
    all.answered(A, number);
    all.gone(B, GoneReason::Silent);
    assert_eq!(all.poll_outcome(), Some((number, outcome(&[A], &[B, C]))));
    assert_eq!(sends_at(&mut all, 20 * SECOND), []);
    all.hello(B, 21 * SECOND);
    assert_eq!(sends(&mut all), [(1, Some(B))]);
    all.answered(B, number);
    assert_eq!(sends_at(&mut all, 59 * SECOND), []);
}

#[test]
fn ended_node_is_neither_confirmed_nor_missing() {
    let (mut all, number) = started(&[A, B, C]);
    all.gone(A, GoneReason::Bye);
    all.gone(B, GoneReason::Replaced);
    all.answered(C, number);
    assert_eq!(all.poll_outcome(), Some((number, outcome(&[C], &[]))));
}

#[test]
fn single_node_waits_for_no_answer_but_still_sends_the_disconnect() {
    let (mut all, number) = started(&[]);
    assert_eq!(all.poll_outcome(), Some((number, outcome(&[], &[]))));
    assert_eq!(sends(&mut all), [(1, None)]);
}

#[test]
fn full_disconnect_queue_drops_reported_entries_and_rejects_otherwise() {
    let mut all = Disconnects::new(DisconnectsConfig { queue_max: 3, ..Default::default() });
    let one = all.start("1", [A, B], [], 0).unwrap();
    let two = all.start("2", [A], [], 0).unwrap();
    let three = all.start("3", [A], [], 0).unwrap();
    assert_eq!(all.start("4", [A], [], 0), Err(TooManyDisconnects));
    all.answered(A, three);
    all.answered(A, one);
    all.gone(B, GoneReason::Silent);
    // All confirm the third; the first misses one confirmation; the second is still waited for.
    all.start("4", [A], [], 0).unwrap();
    all.hello(C, 0);
    let asked: Vec<u64> =
        sends(&mut all).into_iter().filter(|it| it.1 == Some(C)).map(|it| it.0).collect();
    assert_eq!(asked, [one.0, two.0, 4]);
    assert_eq!(all.start("5", [A], [], 0), Err(TooManyDisconnects), "all wait again");
    all.gone(C, GoneReason::Silent);
    all.start("5", [A], [], 0).unwrap();
    assert_eq!(all.len(), 3);
}

#[test]
fn disconnect_larger_than_the_queue_is_rejected_and_removes_no_other() {
    let (mut all, number) = started(&[A]);
    all.answered(A, number);
    let too_many = (0..=NODES_MAX as u64).map(NodeId);
    assert_eq!(all.start("2", too_many, [], 0), Err(TooManyDisconnects));
    assert_eq!(all.order(&vec![0; BYTES_MAX + 1], [A], [], 0), Err(TooManyDisconnects));
    assert_eq!(all.len(), 1);
}

#[derive(Clone, Debug)]
enum Call {
    Start(Vec<u64>),
    Answer(u64, u64),
    Hello(u64),
    Gone(u64, GoneReason),
    Wait(u64),
    Lose,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let why = prop::sample::select(vec![GoneReason::Silent, GoneReason::Bye, GoneReason::Replaced]);
    let call = prop_oneof![
        2 => prop::collection::vec(0..6_u64, 0..5).prop_map(Call::Start),
        5 => (0..6_u64, 1..12_u64).prop_map(|(node, number)| Call::Answer(node, number)),
        1 => (0..6_u64).prop_map(Call::Hello),
        1 => (0..6_u64, why).prop_map(|(node, why)| Call::Gone(node, why)),
        3 => (0..20 * SECOND).prop_map(Call::Wait),
        1 => Just(Call::Lose),
    ];
    prop::collection::vec(call, 0..100)
}

struct Model {
    since_ns: u64,
    waiting: BTreeSet<u64>,
    lost: BTreeSet<u64>,
    confirmed: BTreeSet<u64>,
    is_told: bool,
}

impl Model {
    fn is_alive(&self, now_ns: u64) -> bool {
        now_ns < self.since_ns + 60 * SECOND
    }

    fn call(&mut self, number: u64, call: &Call) {
        match call {
            Call::Answer(node, to) if *to == number => {
                let was_open = self.waiting.remove(node) || self.lost.remove(node);
                self.confirmed.extend(was_open.then_some(*node));
            }
            Call::Hello(node) if !self.confirmed.contains(node) => {
                self.lost.remove(node);
                self.waiting.insert(*node);
            }
            Call::Gone(node, why) => {
                let was_open = self.waiting.remove(node) || self.lost.remove(node);
                if was_open && *why == GoneReason::Silent {
                    self.lost.insert(*node);
                }
            }
            _ => {}
        }
    }
}

fn apply(all: &mut Disconnects, call: Call, now_ns: u64) {
    match call {
        Call::Start(nodes) => _ = all.start("x", nodes.into_iter().map(NodeId), [], now_ns),
        Call::Answer(node, number) => all.answered(NodeId(node), DisconnectNumber(number)),
        Call::Hello(node) => all.hello(NodeId(node), now_ns),
        Call::Gone(node, why) => all.gone(NodeId(node), why),
        Call::Wait(_) => all.tick(now_ns),
        Call::Lose => while all.poll_send().is_some() {},
    }
}

proptest! {
    #[test]
    fn each_disconnect_has_one_complete_outcome_and_asks_pending_nodes(calls in calls()) {
        let mut all = new();
        let mut model: Vec<Model> = Vec::new();
        let mut now_ns = 0;
        for call in calls {
            if let Call::Wait(more) = call {
                now_ns += more;
            }
            let alive = |it: &Model| it.is_alive(now_ns);
            for (number, it) in (1..).zip(&mut model).filter(|(_, it)| alive(it)) {
                it.call(number, &call);
            }
            if let Call::Start(nodes) = &call {
                let waiting = nodes.iter().copied().collect();
                let (lost, confirmed) = (BTreeSet::new(), BTreeSet::new());
                model.push(Model { since_ns: now_ns, waiting, lost, confirmed, is_told: false });
            }
            apply(&mut all, call, now_ns);
            all.tick(now_ns);
            let mut told: BTreeMap<u64, DisconnectOutcome> = BTreeMap::new();
            while let Some((number, outcome)) = all.poll_outcome() {
                prop_assert!(told.insert(number.0, outcome).is_none());
            }
            for (number, it) in (1..).zip(&mut model) {
                let is_due = it.waiting.is_empty() || !it.is_alive(now_ns);
                let outcome = told.remove(&number);
                prop_assert_eq!(outcome.is_some(), is_due && !it.is_told, "{}", number);
                it.is_told |= is_due;
                let Some(mut outcome) = outcome else { continue };
                outcome.confirmed.sort();
                outcome.missing.sort();
                let missing: Vec<_> = it.waiting.union(&it.lost).copied().map(NodeId).collect();
                let confirmed: Vec<_> = it.confirmed.iter().copied().map(NodeId).collect();
                prop_assert_eq!(outcome, DisconnectOutcome { confirmed, missing, count: 0 });
            }
            prop_assert!(told.is_empty());
            prop_assert_eq!(all.len(), model.iter().filter(|it| it.is_alive(now_ns)).count());
        }
        // A node that is waited for is asked within 16 s more, if the disconnect lives so long.
        while all.poll_send().is_some() {}
        let later_ns = now_ns + 16 * SECOND;
        all.tick(later_ns);
        let asked: BTreeSet<_> = sends(&mut all).into_iter().collect();
        for (number, it) in (1..).zip(&model).filter(|(_, it)| it.is_alive(later_ns)) {
            for node in &it.waiting {
                let is_asked = [None, Some(NodeId(*node))].iter().any(|to| {
                    asked.contains(&(number, *to))
                });
                prop_assert!(is_asked, "{} asks {}", number, node);
            }
        }
    }
}

#[test]
fn ten_thousand_disconnects_can_wait_for_a_hundred_nodes_each() {
    let mut all = new();
    for _ in 0..10_000 {
        all.start("x", (0..100).map(NodeId), [], 0).unwrap();
    }
    assert_eq!(all.start("x", [A], [], 0), Err(TooManyDisconnects));
    assert_eq!(sends(&mut all).len(), 10_000);
    let mut few = new();
    let started = (0..10_000).filter(|_| few.start("x", (0..4096).map(NodeId), [], 0).is_ok());
    assert_eq!(started.count(), NODES_MAX / 4096);
}
