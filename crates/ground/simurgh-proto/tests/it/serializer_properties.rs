//! Properties of every message: reading undoes writing, payloads keep their meaning, the scanner
//! accepts what serde_json accepts, and no bytes cause a panic.
use std::borrow::Cow;

use proptest::prelude::*;
use serde_json::Value;
use simurgh_proto::message::{Message, OwnedRef, Payload, Ref};
use simurgh_proto::serializer::{Frame, Kind, Serializer, ServerMessage, json};
use simurgh_proto::{origin, params, topic};

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map(".{0,6}", inner, 0..6)
                .prop_map(|members| members.into_iter().collect()),
        ]
    })
}

fn json_text() -> impl Strategy<Value = String> {
    (value(), any::<bool>()).prop_map(|(value, pretty)| {
        if pretty { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() }
    })
}

fn any_ref() -> impl Strategy<Value = Ref<'static>> {
    prop_oneof![
        Just(Ref::Null),
        any::<u32>().prop_map(|number| Ref::from_json(number.to_string())),
        ".{0,20}".prop_map(|text| Ref::from_text(&text)),
        value().prop_map(|value| Ref::from_json(value.to_string())),
    ]
}

fn payload() -> impl Strategy<Value = Payload<'static>> {
    prop_oneof![
        value().prop_map(|value| Payload::from_json(value.to_string())),
        prop::collection::vec(any::<u8>(), 0..64).prop_map(Payload::from_bytes),
    ]
}

prop_compose! {
    fn message()(
        join_ref in any_ref(), msg_ref in any_ref(),
        topic in ".{0,30}", event in ".{0,12}", payload in payload(),
    ) -> Message<'static> {
        Message { join_ref, msg_ref, topic: topic.into(), event: event.into(), payload }
    }
}

/// Bounded, so that the whole crate's tests run in seconds; nothing is written beside the code.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..Default::default() }
}

/// An encoded message as the frame that the other side reads.
fn frame(kind: Kind, bytes: &[u8]) -> Frame<'_> {
    match kind {
        Kind::Text => Frame::Text(std::str::from_utf8(bytes).unwrap()),
        Kind::Binary => Frame::Binary(bytes),
    }
}

/// A ref as read from a binary frame, where types are lost.
fn as_bytes(msg_ref: &Ref<'_>) -> Ref<'static> {
    Ref::from_text(&msg_ref.field())
}

/// Whether serde_json accepts `text`; None where its own limits apply (range, depth).
fn serde_accepts(text: &str) -> Option<bool> {
    match serde_json::from_str::<Value>(text) {
        Ok(_) => Some(true),
        Err(error) => {
            let error = error.to_string();
            let limit = error.contains("out of range") || error.contains("recursion limit");
            (!limit).then_some(false)
        }
    }
}

fn nearly_json() -> impl Strategy<Value = String> {
    const TOKENS: &[&str] = &[
        "{", "}", "[", "]", ",", ":", " ", "\n", "null", "true", "fals", "0", "-", "1", "23", ".",
        "e", "E+", "\"", "\"a\"", "\"\\", "\\u00", "\\ud83d", "\\ude00", "\\n\"", "é", "\u{1}",
        "\t", "\"\"", "{\"a\":", "[1,", "],[", "1.5e3", "/",
    ];
    let tokens = prop::collection::vec(prop::sample::select(TOKENS), 0..14);
    let edit = || (json_text(), any::<prop::sample::Index>(), prop::sample::select(TOKENS));
    prop_oneof![
        tokens.prop_map(|tokens| tokens.concat()),
        // One token inserted anywhere into valid JSON, or a piece cut off.
        edit().prop_map(|(text, at, token)| {
            let mut chars: Vec<char> = text.chars().collect();
            let at = at.index(chars.len() + 1);
            chars.splice(at..at, token.chars());
            chars.into_iter().collect()
        }),
        edit().prop_map(|(text, at, _)| {
            let kept = at.index(text.chars().count() + 1);
            text.chars().take(kept).collect()
        }),
    ]
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn written_messages_are_read_back(sent in message()) {
        for serializer in [Serializer::V1, Serializer::V2] {
            let mut out = Vec::new();
            let Ok(kind) = serializer.message(&mut out, &sent) else {
                prop_assert!(out.is_empty());
                let fits = sent.join_ref.field().len() < 256 && sent.msg_ref.field().len() < 256;
                prop_assert!(sent.payload.json().is_none());
                prop_assert!(serializer == Serializer::V1 || !fits);
                continue;
            };
            let mut expected = sent.clone();
            if kind == Kind::Binary {
                expected.join_ref = as_bytes(&sent.join_ref);
                expected.msg_ref = as_bytes(&sent.msg_ref);
            }
            prop_assert_eq!(serializer.decode(frame(kind, &out)), Ok(expected));
        }
    }

    #[test]
    fn clients_read_random_server_messages(said in message(), status in ".{0,10}") {
        let Message { join_ref, msg_ref, topic, event, payload } = &said;
        prop_assume!(join_ref.field().len() < 256 && msg_ref.field().len() < 256);
        prop_assume!(event != "phx_reply");
        let mut out = Vec::new();
        let kind = Serializer::V2.reply(&mut out, join_ref, msg_ref, topic, &status, payload);
        let kind = kind.unwrap();
        let sent = |msg_ref: &Ref<'_>| match kind {
            Kind::Text => msg_ref.clone().into_owned(),
            Kind::Binary => as_bytes(msg_ref),
        };
        let expected = ServerMessage::Reply {
            join_ref: sent(join_ref),
            msg_ref: sent(msg_ref),
            topic: topic.clone(),
            status: Cow::Owned(status),
            response: payload.clone(),
        };
        prop_assert_eq!(Serializer::V2.decode_server(frame(kind, &out)), Ok(expected));

        let event_with = |join_ref| ServerMessage::Event(Message {
            join_ref, msg_ref: Ref::Null, ..said.clone()
        });
        out.clear();
        Serializer::V2.push(&mut out, join_ref, topic, event, payload).unwrap();
        let read = Serializer::V2.decode_server(frame(kind, &out));
        prop_assert_eq!(read, Ok(event_with(sent(join_ref))));
        out.clear();
        Serializer::V2.broadcast(&mut out, topic, event, payload).unwrap();
        let read = Serializer::V2.decode_server(frame(kind, &out));
        prop_assert_eq!(read, Ok(event_with(Ref::Null)));
    }

    #[test]
    fn output_is_valid_json_for_serde_json(sent in message()) {
        let Some(payload) = sent.payload.json() else { return Ok(()) };
        let payload: Value = serde_json::from_str(payload).unwrap();
        let msg_ref: Value = serde_json::from_str(sent.msg_ref.raw()).unwrap();
        let mut out = Vec::new();
        Serializer::V2.message(&mut out, &sent).unwrap();
        let array: Value = serde_json::from_slice(&out).unwrap();
        prop_assert_eq!((&array[1], &array[4]), (&msg_ref, &payload));
        prop_assert_eq!(array[2].as_str(), Some(&*sent.topic));
        prop_assert_eq!(array[3].as_str(), Some(&*sent.event));
        out.clear();
        let Message { join_ref, msg_ref: raw, topic, payload: response, .. } = &sent;
        Serializer::V1.reply(&mut out, join_ref, raw, topic, "ok", response).unwrap();
        let object: Value = serde_json::from_slice(&out).unwrap();
        prop_assert_eq!((&object["ref"], &object["payload"]["response"]), (&msg_ref, &payload));
        let mut keys: Vec<_> = object.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        prop_assert_eq!(keys, ["event", "payload", "ref", "topic"]);
    }

    #[test]
    fn payloads_keep_their_json_meaning(text in json_text()) {
        let meant: Value = serde_json::from_str(&text).unwrap();
        let array = format!("[null, \"1\", \"t\", \"e\", {text} ]");
        let object = format!(r#"{{ "payload": {text}, "topic":"t","event":"e","ref":null}}"#);
        for (serializer, text) in [(Serializer::V2, &array), (Serializer::V1, &object)] {
            let read = serializer.decode(Frame::Text(text)).unwrap();
            let payload = read.payload.json().unwrap();
            prop_assert_eq!(&serde_json::from_str::<Value>(payload).unwrap(), &meant);
            // Compact is what serde_json's own writer makes, except for the spelling of values.
            let blanks = |text: &str| text.chars().filter(char::is_ascii_whitespace).count();
            prop_assert_eq!(blanks(payload), blanks(&meant.to_string()));
        }
        prop_assert_eq!(json::compact(&text), json::validated(&text).unwrap());
    }

    #[test]
    fn owned_refs_convert_back_to_equal_refs(kept in any_ref()) {
        let owned = OwnedRef::from(&kept);
        prop_assert_eq!(owned.as_ref(), kept);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        for serializer in [Serializer::V1, Serializer::V2] {
            let _ = serializer.decode(Frame::Binary(&bytes));
            let _ = serializer.decode_server(Frame::Binary(&bytes));
            let text = String::from_utf8_lossy(&bytes);
            let _ = serializer.decode(Frame::Text(&text));
            let _ = serializer.decode_server(Frame::Text(&text));
        }
    }

    #[test]
    fn any_text_is_decoded_or_rejected(text in ".{0,40}", other in "[a-z:/.*@#?\\[\\]%&=+]{0,40}") {
        for text in [&text, &other] {
            let _ = json::compact(text);
            let _ = json::unescape(text);
            let _ = params::decode(text);
            let _ = params::vsn(text);
            let _ = topic::Pattern::parse(text);
            let own = origin::OwnOrigin { scheme: "http", host: "h.com", port: 80 };
            let _ = origin::CheckOrigin::Conn.allows(Some(text), own);
            let _ = origin::OriginPattern::parse(text);
            let _ = origin::OwnOrigin::from_host_header("http", text);
        }
    }
}

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn json_scanner_agrees_with_serde_json(text in nearly_json()) {
        if let Some(accepted) = serde_accepts(&text) {
            prop_assert_eq!(json::validate(&text).is_ok(), accepted, "{:?}", text);
        }
    }
}
