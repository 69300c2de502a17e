//! Calls in pieces, whole and broken.

use proptest::prelude::*;

use super::*;
use crate::envelope::Envelope;
use crate::message::Message;

const HERE: NodeId = NodeId(1);
const THERE: NodeId = NodeId(2);

/// The pieces of a body, as the receiver reads them.
fn sent(kind: Kind, number: u64, head: u16, body: &[u8], hear: &mut dyn FnMut(&Piece<'_>)) {
    for (n, draft) in call_drafts(kind, HERE, (number, head), body).unwrap().into_iter().enumerate()
    {
        let bytes = draft.numbered(n as u64 + 1);
        let envelope = Envelope::decode(&bytes).unwrap();
        match envelope.message().unwrap() {
            Message::Call(piece) | Message::Return(piece) => hear(&piece),
            other => panic!("{other:?}"),
        }
    }
}

/// One call to another node.
fn started() -> (Calls, CallNumber) {
    let (mut calls, number) = (Calls::default(), CallNumber(9));
    calls.start(number, THERE).unwrap();
    (calls, number)
}

fn body(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|it| (it % 251) as u8).collect()
}

#[test]
fn call_bodies_of_any_length_arrive_unchanged() {
    for bytes in [0, 1, CALL_PIECE_BYTES, CALL_PIECE_BYTES + 1, 3 << 20, CALL_BYTES_MAX] {
        let body = body(bytes);
        let (mut caller, mut called) = (Calls::default(), Calls::default());
        let number = CallNumber(9);
        caller.start(number, THERE).unwrap();
        let mut heard = Vec::new();
        sent(Kind::Call, number.0, 7, &body, &mut |it| heard.extend(called.called(HERE, it)));
        assert_eq!(heard, [(7, body.clone())]);
        let mut answers = Vec::new();
        sent(Kind::Return, number.0, 204, &body, &mut |it| {
            answers.extend(caller.answered(THERE, it));
        });
        assert_eq!(answers, [(number, Some(Answer { status: 204, body }))]);
        assert_eq!((caller.bytes, called.bytes, caller.end(number)), (0, 0, None));
    }
}

#[test]
fn answer_from_another_node_or_for_another_call_is_ignored() {
    let (mut calls, number) = started();
    sent(Kind::Return, number.0, 1, b"x", &mut |it| {
        assert_eq!(calls.answered(NodeId(3), it), None);
    });
    sent(Kind::Return, number.0 + 1, 1, b"x", &mut |it| {
        assert_eq!(calls.answered(THERE, it), None);
    });
    assert_eq!(calls.end(number), Some(THERE));
}

#[test]
fn oversized_answer_is_dropped_at_its_first_piece() {
    let mut calls = Calls::default();
    for (bytes, is_one) in [(1000, true), (1001, false), (CALL_BYTES_MAX, false)] {
        let number = CallNumber(bytes as u64);
        calls.start(number, THERE).unwrap();
        calls.bound(number, 1000);
        let (mut answers, mut most) = (Vec::new(), 0);
        sent(Kind::Return, number.0, 1, &body(bytes), &mut |it| {
            answers.extend(calls.answered(THERE, it));
            most = most.max(calls.bytes);
        });
        let answer = is_one.then(|| Answer { status: 1, body: body(bytes) });
        assert_eq!((answers, most), (vec![(number, answer)], 0), "{bytes}");
    }
}

#[test]
fn body_with_a_missing_piece_is_dropped() {
    let body = body(3 * CALL_PIECE_BYTES);
    let (mut calls, number) = started();
    let (mut at, mut answers, mut heard) = (0, Vec::new(), Vec::new());
    sent(Kind::Return, number.0, 1, &body, &mut |it| {
        at += 1;
        if at != 2 {
            answers.extend(calls.answered(THERE, it));
            heard.extend(calls.called(THERE, it));
        }
    });
    assert_eq!((answers, heard), (vec![(number, None)], vec![]));
    assert_eq!((calls.bytes, calls.unfinished.len(), calls.waiting.len()), (0, 0, 0));
}

#[test]
fn calls_to_and_from_a_gone_node_end() {
    let mut calls = Calls::default();
    let (one, other) = (CallNumber(1), CallNumber(2));
    calls.start(one, THERE).unwrap();
    calls.start(other, HERE).unwrap();
    let mut at = 0;
    sent(Kind::Call, 9, 1, &body(2 * CALL_PIECE_BYTES), &mut |it| {
        at += 1;
        if at == 1 {
            assert_eq!(calls.called(THERE, it), None);
        }
    });
    assert_eq!(calls.bytes, CALL_PIECE_BYTES);
    assert_eq!(calls.gone(THERE), [one]);
    assert_eq!((calls.bytes, calls.unfinished.len()), (0, 0));
    assert_eq!((calls.end(one), calls.end(other)), (None, Some(HERE)));
}

#[test]
fn unfinished_calls_of_other_nodes_take_bounded_memory() {
    let mut calls = Calls::default();
    let begun = body(CALL_PIECE_BYTES);
    for number in 0..2000 {
        let piece = Piece { number, head: 1, whole: CALL_PIECE_BYTES + 1, at: 0, bytes: &begun };
        assert_eq!(calls.called(THERE, &piece), None);
        assert!(calls.bytes <= UNFINISHED_BYTES_MAX);
    }
    let small = |number| Piece { number, head: 1, whole: 2, at: 0, bytes: b"x" };
    for number in 0..2000 {
        assert_eq!(calls.called(THERE, &small(10_000 + number)), None);
    }
    assert!(calls.unfinished.len() <= UNFINISHED_MAX);
    assert_eq!(calls.bytes, calls.unfinished.iter().map(|it| it.2.bytes.len()).sum::<usize>());
}

#[test]
fn pending_calls_are_limited_to_the_maximum() {
    let mut calls = Calls::default();
    for number in 0..CALLS_MAX as u64 {
        calls.start(CallNumber(number), THERE).unwrap();
    }
    let another = CallNumber(CALLS_MAX as u64);
    assert_eq!(calls.start(another, THERE), Err(CallError::Busy));
    assert_eq!(calls.end(CallNumber(1)), Some(THERE));
    calls.start(another, THERE).unwrap();
}

proptest! {
    /// Whatever pieces arrive: incomplete bytes are counted, and only whole bodies are passed on.
    #[test]
    fn pieces_in_any_order_yield_only_whole_bodies(
        pieces in prop::collection::vec((0..3_u64, 0..2_u16, 0..4_usize, 0..4_usize), 1..100)
    ) {
        let mut calls = Calls::default();
        for number in 0..3 {
            calls.start(CallNumber(number), THERE).unwrap();
        }
        for (number, head, at, left) in pieces {
            let bytes = &b"xyz"[..left.min(3)];
            let whole = at + left;
            let piece = Piece { number, head, whole, at, bytes };
            if let Some((_, body)) = calls.called(HERE, &piece) {
                prop_assert_eq!(body.len(), whole);
            }
            if let Some((_, Some(answer))) = calls.answered(THERE, &piece) {
                prop_assert_eq!(answer.body.len(), whole);
            }
            let own = calls.waiting.values().map(|it| it.1.bytes.len());
            let held = own.chain(calls.unfinished.iter().map(|it| it.2.bytes.len())).sum::<usize>();
            prop_assert_eq!(held, calls.bytes);
        }
    }

    #[test]
    fn piece_stays_within_its_body(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(it) = Piece::read(&mut Reader::new(&bytes)) {
            prop_assert!(it.at + it.bytes.len() <= it.whole && it.whole <= CALL_BYTES_MAX);
        }
    }
}
