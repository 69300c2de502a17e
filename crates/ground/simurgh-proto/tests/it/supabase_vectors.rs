//! Golden bytes of Supabase's two binary kinds, and of other frames (PROTOCOL §11.1).

use proptest::prelude::*;
use simurgh_proto::message::{Message, Payload, Ref, UserBroadcast};
use simurgh_proto::serializer::Serializer::{V1, V2};
use simurgh_proto::serializer::{DecodeError, EncodeError, Frame, Kind, ServerMessage};

/// As realtime-js 2.119 writes it.
const PUSH: &[u8] = b"\x03\x02\x03\x0e\x06\x00\x0112345realtime:lobbycursor{\"x\":1}";
const BROADCAST: &[u8] = b"\x04\x0e\x06\x00\x01realtime:lobbycursor{\"x\":1}";

fn push(payload: UserBroadcast<'static>) -> Message<'static> {
    Message {
        join_ref: Ref::from_text("12"),
        msg_ref: Ref::from_text("345"),
        topic: "realtime:lobby".into(),
        event: "broadcast".into(),
        payload: Payload::User(payload),
    }
}

fn written(write: impl FnOnce(&mut Vec<u8>) -> Result<Kind, EncodeError>) -> Vec<u8> {
    let mut out = Vec::new();
    assert_eq!(write(&mut out), Ok(Kind::Binary));
    out
}

#[test]
fn frames_match_those_of_supabase_clients() {
    let cursor = UserBroadcast::json("cursor", "{\"x\":1}").unwrap();
    let expected = push(cursor.clone());
    assert_eq!(V2.decode_supabase(Frame::Binary(PUSH)), Ok(expected.clone()));
    assert_eq!(written(|out| V2.message(out, &expected)), PUSH);
    let payload = Payload::User(cursor);
    let topic = "realtime:lobby";
    assert_eq!(written(|out| V2.broadcast(out, topic, "broadcast", &payload)), BROADCAST);
    // A push to one member has no join_ref either: the frame has no field for it.
    assert_eq!(written(|out| V2.push(out, &Ref::from_text("1"), topic, "x", &payload)), BROADCAST);
    let ServerMessage::Event(heard) = V2.decode_server(Frame::Binary(BROADCAST)).unwrap() else {
        panic!("a broadcast is an event")
    };
    assert_eq!((heard.join_ref, heard.msg_ref, heard.payload), (Ref::Null, Ref::Null, payload));
}

#[test]
fn v1_sends_user_broadcasts_as_json_text() {
    let said = |payload: UserBroadcast<'static>| {
        let mut out = Vec::new();
        let kind = V1.broadcast(&mut out, "realtime:a", "broadcast", &Payload::User(payload))?;
        assert_eq!(kind, Kind::Text);
        Ok(String::from_utf8(out).unwrap())
    };
    let json = said(UserBroadcast::json("c\"u", "[1]").unwrap()).unwrap();
    let payload = r#"{"event":"c\"u","payload":[1],"type":"broadcast"}"#;
    let expected =
        format!(r#"{{"topic":"realtime:a","event":"broadcast","payload":{payload},"ref":null}}"#);
    assert_eq!(json, expected);
    let raw = UserBroadcast::raw("cursor", &[1]).unwrap();
    assert_eq!(said(raw), Err(EncodeError::BinaryNeedsV2));
    let frame = b"\x04\x01\x01\x07\x01te{\"a\":1}true";
    let ServerMessage::Event(it) = V2.decode_server(Frame::Binary(frame)).unwrap() else {
        panic!("a broadcast is an event")
    };
    let mut out = Vec::new();
    V1.broadcast(&mut out, "t", "broadcast", &it.payload).unwrap();
    let meta = br#""payload":{"event":"e","meta":{"a":1},"payload":true,"type":"broadcast"}"#;
    assert!(out.windows(meta.len()).any(|part| part == meta), "{}", String::from_utf8_lossy(&out));
}

#[test]
fn phoenix_serializers_reject_the_supabase_kinds() {
    assert_eq!(V2.decode(Frame::Binary(PUSH)), Err(DecodeError::UnknownKind(3)));
    for kind in [1, 2, 4, 5, 255] {
        let mut frame = PUSH.to_vec();
        *frame.first_mut().unwrap() = kind;
        let refused = Err(DecodeError::UnknownKind(kind));
        assert_eq!(V2.decode_supabase(Frame::Binary(&frame)), refused);
    }
    assert!(V1.decode_supabase(Frame::Binary(PUSH)).is_err(), "V1 is text");
    let reply = Payload::User(UserBroadcast::raw("e", &[]).unwrap());
    let mut out = Vec::new();
    let refused = V2.reply(&mut out, &Ref::Null, &Ref::Null, "t", "ok", &reply);
    assert_eq!((refused, out.len()), (Err(EncodeError::UserBroadcastIsNoReply), 0));
}

#[test]
fn truncated_supabase_frames_are_rejected() {
    for end in 0..PUSH.len() {
        let cut = V2.decode_supabase(Frame::Binary(&PUSH[..end]));
        let is_whole = end >= PUSH.len() - 7;
        match cut {
            Err(DecodeError::Truncated) if !is_whole => {}
            // Only the data is missing.
            Err(DecodeError::Syntax { .. }) if is_whole => {}
            other => panic!("{end}: {other:?}"),
        }
    }
    let raw = b"\x03\x00\x00\x01\x02\x02\x00tev{}\xff";
    for end in 0..raw.len() - 1 {
        assert_eq!(V2.decode_supabase(Frame::Binary(&raw[..end])), Err(DecodeError::Truncated));
    }
    assert!(V2.decode_supabase(Frame::Binary(raw)).is_ok());
}

#[test]
fn supabase_fields_are_limited_to_255_bytes() {
    let most = "x".repeat(255);
    let broadcast = Payload::User(UserBroadcast::raw(&most, b"1").unwrap());
    let frame = written(|out| V2.broadcast(out, &most, "broadcast", &broadcast));
    assert!(V2.decode_server(Frame::Binary(&frame)).is_ok());
    let mut out = Vec::new();
    let long = V2.broadcast(&mut out, &"x".repeat(256), "broadcast", &broadcast);
    assert_eq!((long, out.len()), (Err(EncodeError::FieldTooLong), 0));
}

proptest! {
    #[test]
    fn written_user_broadcasts_are_read_back(
        fields in ["\\PC{0,20}", "\\PC{0,20}", "\\PC{0,20}"],
        is_json in any::<bool>(),
        number in any::<i32>(),
        data in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let [topic, event, msg_ref] = fields;
        let payload = match is_json {
            true => UserBroadcast::json(&event, &format!("[{number}]")),
            false => UserBroadcast::raw(&event, &data),
        };
        let mut message = push(payload.unwrap());
        (message.topic, message.msg_ref) = (topic.into(), Ref::from_text(&msg_ref));
        let frame = written(|out| V2.message(out, &message));
        prop_assert_eq!(V2.decode_supabase(Frame::Binary(&frame)), Ok(message));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut frame = vec![3];
        frame.extend(bytes.iter().map(|byte| byte % 8));
        let _ = V2.decode_supabase(Frame::Binary(&frame));
        frame.extend(bytes);
        if let Ok(message) = V2.decode_supabase(Frame::Binary(&frame)) {
            prop_assert_eq!(written(|out| V2.message(out, &message)), frame);
        }
    }
}
