//! Messages as frames: whole, or in parts for the same bytes (PROTOCOL §3 and §4).

use std::sync::Arc;

use simurgh_proto::message::{Message, Payload, Ref, UserBroadcast};
use simurgh_proto::serializer::{Kind, ServerMessage};
use simurgh_proto::ws::{CloseCode, OpCode};

use super::*;
use crate::socket::Phase;
use crate::testing::TestSockets;

const WIRES: [Wire; 3] = [Wire::V1, Wire::V2, Wire::Plain];

fn reply(response: Payload<'_>) -> ServerMessage<'_> {
    ServerMessage::Reply {
        join_ref: Ref::from_json("1"),
        msg_ref: Ref::from_json("2"),
        topic: "t\u{0}opic".into(),
        status: "ok".into(),
        response,
    }
}

fn event(payload: Payload<'_>) -> ServerMessage<'_> {
    ServerMessage::Event(Message {
        join_ref: Ref::from_json("1"),
        msg_ref: Ref::Null,
        topic: "topic".into(),
        event: "event".into(),
        payload,
    })
}

fn json(bytes: usize) -> Payload<'static> {
    Payload::from_json(format!("\"{}\"", "x".repeat(bytes - 2)))
}

/// The bytes sent on this wire, and the counters. A long payload is not copied.
fn sent(wire: Wire, message: ServerMessage<'_>) -> (Vec<u8>, u64, u64) {
    let is_long = message.payload().len() > LONG_BYTES;
    let (mut out, metrics) = (TestSockets::default(), ShardMetrics::default());
    let key = out.connect(Phase::Open, wire);
    send(&mut out, &metrics, key, message);
    let bytes = std::mem::take(&mut out.peer(key).bytes);
    assert_eq!(out.later, usize::from(is_long && !bytes.is_empty()));
    (bytes, metrics.messages_out.value(), metrics.errors_encode.value())
}

fn whole(wire: Wire, message: &ServerMessage<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    ws::encode_with(&mut bytes, |out| write(out, wire, message)).unwrap();
    bytes
}

#[test]
fn long_message_is_encoded_like_a_short_one() {
    for payload in [json(LONG_BYTES), json(LONG_BYTES + 1), json(200_000)] {
        for wire in WIRES {
            for message in [reply(payload.borrow()), event(payload.borrow())] {
                let expected = whole(wire, &message);
                assert!((expected, 1, 0) == sent(wire, message), "{wire:?}, {}", payload.len());
            }
        }
    }
    let data = vec![7; LONG_BYTES + 1];
    for wire in [Wire::V2, Wire::Plain] {
        for message in
            [event(Payload::from_bytes(&data[..])), reply(Payload::from_bytes(&data[..]))]
        {
            let expected = whole(wire, &message);
            assert!((expected, 1, 0) == sent(wire, message), "binary, {wire:?}");
        }
    }
}

/// The broadcast's frame has the bytes of a whole one, and `own` is not copied.
#[track_caller]
fn frame_shares(out: &mut TestSockets, broadcast: &Arc<Broadcast>, own: &[u8], wire: Wire) {
    let mut expected = Vec::new();
    encode_broadcast(&mut expected, broadcast, Form::plain(wire)).unwrap();
    let frame = broadcast_frame(out, broadcast, Form::plain(wire), &mut 0).unwrap();
    let run = Run::of(&frame);
    assert!(run.single().is_none(), "its payload is not copied");
    let bytes: Vec<u8> = run.frames().flat_map(|it| it.as_bytes().to_vec()).collect();
    assert!(bytes == expected, "{wire:?}");
    assert!(std::ptr::eq(run.frames().nth(1).unwrap().as_bytes(), own), "the same memory");
}

/// PROTOCOL row 82 and others, for a long payload.
#[test]
fn long_broadcast_is_encoded_like_a_short_one() {
    let mut out = TestSockets::default();
    let data = Payload::from_bytes(vec![0; LONG_BYTES + 1]);
    let zeros = json(LONG_BYTES + 1);
    for (wire, payload) in [
        (Wire::V1, &zeros),
        (Wire::V2, &zeros),
        (Wire::Plain, &zeros),
        (Wire::V2, &data),
        (Wire::Plain, &data),
    ] {
        let broadcast = Arc::new(Broadcast::new("to\u{0}pic", "e\u{0}vent", payload.clone()));
        let own = broadcast.payload();
        let own = own.json().map(str::as_bytes).or(own.binary()).unwrap();
        frame_shares(&mut out, &broadcast, own, wire);
    }
    let short = Arc::new(Broadcast::new("t", "e", json(LONG_BYTES)));
    let frame = broadcast_frame(&mut out, &short, Form::plain(Wire::V2), &mut 0).unwrap();
    assert!(Run::of(&frame).single().is_some(), "just short enough to be copied");
}

/// PROTOCOL rows 116 and 117, for a long payload: the data of a member's broadcast is not copied.
#[test]
fn long_member_broadcast_is_encoded_like_a_short_one() {
    let mut out = TestSockets::default();
    let data = json(LONG_BYTES + 1);
    let user = |data: &Payload<'_>, is_json| {
        let made = match is_json {
            true => UserBroadcast::json("e\u{0}vent", data.json().unwrap()),
            false => UserBroadcast::raw("e\u{0}vent", data.data()),
        };
        Payload::User(made.unwrap())
    };
    for (wire, is_json) in [
        (Wire::V1, true),
        (Wire::V2, true),
        (Wire::V2, false),
        (Wire::Plain, true),
        (Wire::Plain, false),
    ] {
        let payload = user(&data, is_json);
        let expected = whole(wire, &event(payload.borrow()));
        assert!((expected, 1, 0) == sent(wire, event(payload.borrow())), "{wire:?}");
        let broadcast = Arc::new(Broadcast::new("to\u{0}pic", "broadcast", payload));
        frame_shares(&mut out, &broadcast, broadcast.payload().data(), wire);
    }
    for bytes in [2, LONG_BYTES + 1] {
        let raw = Arc::new(Broadcast::new("t", "broadcast", user(&json(bytes), false)));
        let mut errors = 0;
        assert!(broadcast_frame(&mut out, &raw, Form::plain(Wire::V1), &mut errors).is_none());
        assert_eq!(errors, 1, "raw bytes have no form in V1");
    }
}

/// PROTOCOL rows 80–82: binary payloads have no form in V1, long or not.
#[test]
fn message_that_cannot_be_encoded_is_an_error_and_is_not_sent() {
    for bytes in [1, LONG_BYTES + 1] {
        let data = vec![7; bytes];
        let nothing = (Vec::new(), 1, 1);
        assert_eq!(sent(Wire::V1, event(Payload::from_bytes(&data[..]))), nothing);
        assert_eq!(sent(Wire::V1, reply(Payload::from_bytes(&data[..]))), nothing);
        let broadcast = Arc::new(Broadcast::new("t", "e", Payload::from_bytes(data)));
        let mut errors = 3;
        let mut out = TestSockets::default();
        assert!(
            broadcast_frame(&mut out, &broadcast, Form::plain(Wire::V1), &mut errors).is_none()
        );
        assert_eq!(errors, 4);
        assert!(
            broadcast_frame(&mut out, &broadcast, Form::plain(Wire::V2), &mut errors).is_some()
        );
        assert_eq!(errors, 4);
    }
}

#[test]
fn socket_without_a_session_receives_nothing() {
    let metrics = ShardMetrics::default();
    let mut out = TestSockets::default();
    for phase in [Phase::Head, Phase::Full, Phase::Connecting, Phase::Closing, Phase::Ending] {
        let key = out.connect(phase, Wire::V2);
        send(&mut out, &metrics, key, reply(Payload::NULL));
        assert!(out.peer(key).received().is_empty());
    }
    assert_eq!(metrics.messages_out.value(), 0);
    for wire in [Wire::V2, Wire::Values] {
        let key = out.connect(Phase::Waiting, wire);
        send(&mut out, &metrics, key, event(json(9)));
        assert_eq!(out.peer(key).received(), [r#"[1,null,"topic","event","xxxxxxx"]"#]);
    }
    assert_eq!(metrics.messages_out.value(), 2);
}

#[test]
fn close_is_encoded_for_the_kind_of_socket() {
    let mut out = TestSockets::default();
    for wire in WIRES {
        let key = out.connect(Phase::Ending, wire);
        send_close(&mut out, key, Some(CloseCode::NORMAL), "why");
        send_close(&mut out, key, None, "unsaid");
        assert_eq!(out.peer(key).received(), ["close 1000 why", "close"]);
    }
    let key = out.connect(Phase::Ending, Wire::Values);
    send_close(&mut out, key, Some(CloseCode::NORMAL), "unheard");
    assert_eq!(out.peer(key).received(), ["closed Some(CloseCode(1000))"]);
    out.disconnect(key);
    send_close(&mut out, key, None, "");
}

#[test]
fn text_is_sent_in_text_frames() {
    assert_eq!([Kind::Text, Kind::Binary].map(op_code), [OpCode::Text, OpCode::Binary]);
    let binary = event(Payload::from_bytes(&[7_u8][..]));
    assert_eq!(sent(Wire::Plain, binary).0, [0x82, 1, 7]);
    assert_eq!(sent(Wire::Plain, event(Payload::NULL)).0, b"\x81\x04null");
}
