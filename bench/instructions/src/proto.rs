//! Frames and messages: the code that every client's bytes pass.

use std::hint::black_box;

use simurgh::declared::{ChannelSpec, Defaults, EventSpec, user_socket};
use simurgh::json;
use simurgh_proto::message::{Payload, Ref};
use simurgh_proto::serializer::{Frame, Kind, Serializer};
use simurgh_proto::ws::{Decoder, Event, FrameLimits, OpCode, Role, encode, encode_with};

use crate::item::{Item, give_up};
use crate::{HERE, counted};

pub(crate) const ITEMS: &[Item] = &[
    Item { name: "frame-read-and-unmask", times: 1000, inside: HERE, run: read_frames },
    Item { name: "frame-in-two-pieces", times: 1000, inside: HERE, run: read_pieces },
    Item { name: "v2-decode", times: 1000, inside: HERE, run: |n| decode(n, Serializer::V2) },
    Item { name: "v1-decode", times: 1000, inside: HERE, run: |n| decode(n, Serializer::V1) },
    Item { name: "v2-encode", times: 1000, inside: HERE, run: |n| encode_all(n, Serializer::V2) },
    Item { name: "v1-encode", times: 1000, inside: HERE, run: |n| encode_all(n, Serializer::V1) },
    Item { name: "schema-1kb", times: 1000, inside: HERE, run: check_schema },
];

const MASK: Option<[u8; 4]> = Some([0x5a, 0xa5, 0x3c, 0xc3]);

/// A join with its params, a message with escapes in it, and a heartbeat.
const SAID_V2: [&str; 3] = [
    r#"["1","1","rooms:lobby","phx_join",{"user":"Zoë","token":"c2ltdXJnaA=="}]"#,
    r#"["1","27","rooms:lobby","new:msg",{"body":"Said \"so\",\nand then:","at":1700000000}]"#,
    r#"[null,"28","phoenix","heartbeat",{}]"#,
];

/// The same as objects.
const SAID_V1: [&str; 3] = [
    r#"{"topic":"rooms:lobby","event":"phx_join","payload":{"user":"Zoë"},"ref":"1"}"#,
    r#"{"topic":"rooms:lobby","event":"new:msg","payload":{"body":"Said \"so\",\n"},"ref":"27"}"#,
    r#"{"topic":"phoenix","event":"heartbeat","payload":{},"ref":"28"}"#,
];

fn masked_frames(times: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for text in SAID_V2.iter().cycle().take(times as usize) {
        encode(OpCode::Text, text.as_bytes(), MASK, &mut bytes);
    }
    bytes
}

fn read_frames(times: u32) {
    let mut bytes = masked_frames(times);
    let limits = FrameLimits::default();
    let read = counted(|| {
        let (mut decoder, mut input) = (Decoder::new(), bytes.as_mut_slice());
        let mut texts = 0;
        while let Ok(Some(Event::Text(text))) = decoder.next(Role::Server, &limits, &mut input) {
            black_box(text);
            texts += 1;
        }
        texts
    });
    assert_eq!(read, times, "every frame is read");
}

/// Frames of which the first half comes with one read and the rest with the next.
fn read_pieces(times: u32) {
    let mut pieces = Vec::new();
    for text in SAID_V2.iter().cycle().take(times as usize) {
        let mut first = Vec::new();
        encode(OpCode::Text, text.as_bytes(), MASK, &mut first);
        let second = first.split_off(first.len() / 2);
        pieces.extend([first, second]);
    }
    let limits = FrameLimits::default();
    let read = counted(|| {
        let mut decoder = Decoder::new();
        let mut texts = 0;
        for piece in &mut pieces {
            let mut input = piece.as_mut_slice();
            if let Ok(Some(event)) = decoder.next(Role::Server, &limits, &mut input) {
                black_box(event);
                texts += 1;
            }
        }
        texts
    });
    assert_eq!(read, times, "every frame is read");
}

fn decode(times: u32, serializer: Serializer) {
    let texts = match serializer {
        Serializer::V1 => SAID_V1,
        Serializer::V2 => SAID_V2,
    };
    let read = counted(|| {
        let texts = texts.iter().cycle().take(times as usize);
        texts.filter(|text| black_box(serializer.decode(Frame::Text(text))).is_ok()).count()
    });
    assert_eq!(read, times as usize, "every message is read");
}

fn encode_all(times: u32, serializer: Serializer) {
    let (join_ref, msg_ref) = (Ref::from_text("1"), Ref::from_text("27"));
    let payload = Payload::from_json(r#"{"body":"Said \"so\",\nand then:","at":1700000000}"#);
    let topic = "rooms:lobby";
    let mut out = Vec::with_capacity(512);
    let frames = counted(|| {
        let mut frames = 0;
        for _ in 0..times {
            out.clear();
            let reply = encode_with(&mut out, |out| {
                serializer.reply(out, &join_ref, &msg_ref, topic, "ok", &payload).map(op_code)
            });
            let push = encode_with(&mut out, |out| {
                serializer.push(out, &join_ref, topic, "new:msg", &payload).map(op_code)
            });
            let broadcast = encode_with(&mut out, |out| {
                serializer.broadcast(out, topic, "new:msg", &payload).map(op_code)
            });
            black_box(&out);
            frames += u32::from(reply.is_ok() && push.is_ok() && broadcast.is_ok());
        }
        frames
    });
    assert_eq!(frames, times, "every message is written");
}

/// Schemas look up names in tables with random keys: the count is the mean of as many tables.
const SCHEMAS: usize = 50;

/// A payload of 1 kB with ten properties, by a schema that has a rule for each.
fn check_schema(times: u32) {
    let (mut rules, mut payload) = (json!({}), json!({}));
    for n in 0..5 {
        rules[format!("text{n}")] = json!({"type": "string", "maxLength": 400});
        payload[format!("text{n}")] = "x".repeat(180).into();
        rules[format!("number{n}")] = json!({"type": "integer", "minimum": 0});
        payload[format!("number{n}")] = n.into();
    }
    let schema = json!({"type": "object", "properties": rules, "additionalProperties": false});
    let event = EventSpec { name: "say".to_owned(), schema: Some(schema), ..EventSpec::default() };
    let channel =
        ChannelSpec { topic: "a".to_owned(), event: vec![event], ..ChannelSpec::default() };
    let channels = [channel];
    let mut user_sockets = Vec::with_capacity(SCHEMAS);
    for _ in 0..SCHEMAS {
        match user_socket("/socket", &channels, Defaults::default()) {
            Ok(user_socket) => user_sockets.push(user_socket),
            Err(mistakes) => give_up(&format!("{mistakes:?}")),
        }
    }
    let payload = Payload::from_json(payload.to_string());
    let accepted = counted(|| {
        let checks = user_sockets.iter().cycle().take(times as usize);
        checks.filter(|checking| checking.check("a", "say", &payload) == Some(Ok(()))).count()
    });
    assert_eq!(accepted, times as usize, "every payload is accepted");
}

fn op_code(kind: Kind) -> OpCode {
    match kind {
        Kind::Text => OpCode::Text,
        Kind::Binary => OpCode::Binary,
    }
}
