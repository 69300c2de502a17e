//! Any frame as a Channels message: the common part of the targets of both serializers.
//!
//! The first byte chooses text or binary. A message must be the same when it is written and read
//! again, by either side; texts must be compact, and JSON to serde_json too; and the scanner must
//! accept what serde_json accepts.
use simurgh_proto::message::{Message, OwnedRef, Payload, UserBroadcast};
use simurgh_proto::serializer::{
    DecodeError, EncodeError, Frame, Kind, Serializer, ServerMessage, json,
};

/// Runs the target over one input.
pub fn run(serializer: Serializer, data: &[u8]) {
    let [choice, bytes @ ..] = data else { return };
    let text = std::str::from_utf8(bytes);
    let frame = match text {
        Ok(text) if choice & 1 == 0 => Frame::Text(text),
        _ => Frame::Binary(bytes),
    };
    if let Ok(text) = text {
        scan(text);
    }
    if let Frame::Text(text) = frame {
        assert_eq!(serializer.decode_owned(text.to_owned()), serializer.decode(frame));
    }
    let decoded = serializer.decode(frame);
    if let Ok(message) = serializer.decode_supabase(frame) {
        client_message_comes_back(serializer, &message);
        match &message.payload {
            Payload::User(broadcast) => {
                assert_eq!(decoded, Err(DecodeError::UnknownKind(3)), "Phoenix knows none");
                user_broadcast_comes_back(&message, broadcast);
            }
            _ => {
                assert_eq!(decoded.as_ref(), Ok(&message));
                push_comes_back(serializer, &message);
            }
        }
    } else {
        assert!(decoded.is_err(), "what is taken of Phoenix' clients is taken of Supabase's");
    }
    if let Ok(message) = serializer.decode_server(frame) {
        server_message_comes_back(serializer, &message);
    }
}

fn client_message_comes_back(serializer: Serializer, message: &Message<'_>) {
    for msg_ref in [&message.join_ref, &message.msg_ref] {
        assert_eq!(OwnedRef::from(msg_ref).as_ref(), *msg_ref);
    }
    let mut out = Vec::new();
    let kind = serializer.message(&mut out, message).expect("what was read can be written");
    let frame = frame(kind, &out);
    assert_eq!(serializer.decode_supabase(frame).as_ref(), Ok(message));
    if let Frame::Text(text) = frame {
        assert!(matches!(json::compact(text), std::borrow::Cow::Borrowed(_)), "compact: {text}");
        serde_agrees(text, true);
    }
}

/// A member's broadcast: the same in V2, and in V1 if it is JSON.
fn user_broadcast_comes_back(message: &Message<'_>, broadcast: &UserBroadcast<'_>) {
    let Message { topic, event, payload, .. } = message;
    assert_eq!(event, "broadcast");
    let mut out = Vec::new();
    let kind = Serializer::V2.broadcast(&mut out, topic, event, payload).expect("it fits");
    let read = Serializer::V2.decode_server(frame(kind, &out)).expect("a client can read it");
    let ServerMessage::Event(read) = read else { panic!("a broadcast is an event") };
    assert!(read.join_ref.is_null() && read.msg_ref.is_null());
    assert_eq!((&read.topic, &read.event, &read.payload), (topic, event, payload));

    out.clear();
    match Serializer::V1.broadcast(&mut out, topic, event, payload) {
        Ok(kind) => {
            assert!(broadcast.is_json());
            let Frame::Text(text) = frame(kind, &out) else { panic!("V1 is text") };
            serde_agrees(text, true);
            assert!(Serializer::V1.decode_server(Frame::Text(text)).is_ok());
        }
        Err(error) => {
            assert_eq!(error, EncodeError::BinaryNeedsV2);
            assert!(!broadcast.is_json() && out.is_empty());
        }
    }
    let bare = broadcast.borrow().without_metadata();
    assert_eq!(
        (bare.event(), bare.metadata(), bare.data()),
        (broadcast.event(), "", broadcast.data())
    );
}

fn push_comes_back(serializer: Serializer, message: &Message<'_>) {
    let Message { join_ref, topic, event, payload, .. } = message;
    let mut out = Vec::new();
    let kind = serializer.push(&mut out, join_ref, topic, event, payload).expect("it fits");
    if event == "phx_reply" {
        return;
    }
    let read = serializer.decode_server(frame(kind, &out)).expect("a client can read it");
    let ServerMessage::Event(read) = read else { panic!("a push is an event") };
    assert_eq!((&read.topic, &read.event, &read.payload), (topic, event, payload));
    match serializer {
        Serializer::V1 => assert!(read.join_ref.is_null()),
        Serializer::V2 => assert_eq!(read.join_ref, *join_ref),
    }
    assert!(read.msg_ref.is_null());
}

fn server_message_comes_back(serializer: Serializer, message: &ServerMessage<'_>) {
    let mut out = Vec::new();
    match message {
        ServerMessage::Reply { join_ref, msg_ref, topic, status, response } => {
            let written = serializer.reply(&mut out, join_ref, msg_ref, topic, status, response);
            let frame = frame(written.expect("what was read can be written"), &out);
            let read = serializer.decode_server(frame).expect("what was written can be read");
            let ServerMessage::Reply { join_ref: told, .. } = &read else {
                panic!("a reply stays one")
            };
            if serializer == Serializer::V2 || told == join_ref {
                assert_eq!(read, *message);
            } else {
                assert!(told.is_null(), "V1 does not tell the join_ref");
            }
        }
        ServerMessage::Event(message) => {
            let Message { topic, event, payload, .. } = message;
            let written = serializer.broadcast(&mut out, topic, event, payload);
            let frame = frame(written.expect("what was read can be written"), &out);
            let read = serializer.decode_server(frame).expect("what was written can be read");
            let ServerMessage::Event(read) = read else { panic!("an event stays one") };
            assert!(read.join_ref.is_null() && read.msg_ref.is_null());
            assert_eq!((&read.topic, &read.event, &read.payload), (topic, event, payload));
        }
    }
}

/// Scans the text as one JSON value, apart from any message.
fn scan(text: &str) {
    let valid = json::validate(text);
    serde_agrees(text, valid.is_ok());
    // They must not panic on any text.
    let _ = (json::compact(text), json::unescape(text));
    let mut escaped = Vec::new();
    json::escape_into(&mut escaped, text);
    let escaped = std::str::from_utf8(&escaped).expect("escaping keeps UTF-8");
    let inner = json::quoted(escaped).expect("escaping quotes");
    assert_eq!(json::unescape(inner), text);
    assert_eq!(json::validate(escaped), Ok(()));
    if let Ok(Payload::Json(compact)) = Payload::checked(text) {
        assert_eq!(json::compact(text), compact);
        assert_eq!(json::validated(&compact).as_deref(), Ok(&*compact));
    }
}

/// serde_json must agree, except about numbers out of its range and its own depth.
fn serde_agrees(text: &str, accepted: bool) {
    if let Err(error) = serde_json::from_str::<serde_json::Value>(text) {
        let error = error.to_string();
        let limit = error.contains("out of range") || error.contains("recursion limit");
        assert!(!accepted || limit, "serde_json refuses {text:?}: {error}");
    } else {
        assert!(accepted, "serde_json accepts {text:?}");
    }
}

fn frame(kind: Kind, bytes: &[u8]) -> Frame<'_> {
    match kind {
        Kind::Text => Frame::Text(std::str::from_utf8(bytes).expect("text frames are UTF-8")),
        Kind::Binary => Frame::Binary(bytes),
    }
}
