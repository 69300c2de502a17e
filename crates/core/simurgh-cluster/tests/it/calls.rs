//! Calls between nodes, and how they end.

use simurgh_cluster::{CallError, Class};

use super::*;

impl Simulation {
    fn call(&mut self, at: usize, node: u64, number: u64, body: &[u8]) -> Result<(), CallError> {
        let time = self.time();
        self.node(at).cluster.call(NodeId(node), CallNumber(number), (3, body), time)
    }

    fn answer(&mut self, at: usize, number: u64, body: &[u8]) {
        let time = self.time();
        self.node(at).cluster.answer(NodeId(1000), number, (200, body), time).unwrap();
    }
}

#[test]
fn node_calls_another_and_gets_its_answer() {
    let mut it = Simulation::new(3, 11);
    let body = vec![7; 600 << 10];
    it.call(0, 1001, 5, &body).unwrap();
    it.advance(100 * MILLISECOND);
    assert_eq!(it.node(1).heard.calls, [(NodeId(1000), 5, 3, body.clone())]);
    assert!(it.node(2).heard.calls.is_empty(), "nobody else is asked");
    it.answer(1, 5, b"done");
    it.advance(100 * MILLISECOND);
    let answer = Answer { status: 200, body: b"done".to_vec() };
    assert_eq!(it.node(0).heard.answers, [(CallNumber(5), Some(answer))]);
}

#[test]
fn caller_that_hangs_up_gets_no_answer_and_the_callee_is_notified() {
    let mut it = Simulation::new(2, 12);
    it.call(0, 1001, 5, b"x").unwrap();
    it.advance(100 * MILLISECOND);
    let time = it.time();
    it.node(0).cluster.hang_up(CallNumber(5), time);
    it.answer(1, 5, b"late");
    assert_eq!(it.advance(100 * MILLISECOND).node(1).heard.hung_up, [(NodeId(1000), 5)]);
    assert!(it.node(0).heard.answers.is_empty());
}

#[test]
fn call_ends_when_the_called_node_is_gone() {
    let mut it = Simulation::new(2, 13);
    assert_eq!(it.call(0, 7, 1, b""), Err(CallError::NoSuchNode));
    it.call(0, 1001, 2, b"").unwrap();
    it.stop(1);
    assert_eq!(it.advance(60 * SECOND).node(0).heard.answers, [(CallNumber(2), None)]);
}

#[test]
fn calls_beyond_the_outbox_limit_are_rejected_as_a_whole() {
    let mut it = Simulation::new(2, 14);
    it.network.kill();
    it.advance(SECOND);
    let body = vec![0; 15 << 20];
    let mut call = |number| {
        let called = it.call(0, 1001, number, &body);
        (called, it.node(0).cluster.outbox().len_of(Class::Call))
    };
    assert_eq!((call(1), call(2)), ((Ok(()), 30), (Ok(()), 60)));
    assert_eq!(call(3), (Err(CallError::Busy), 60));
}
