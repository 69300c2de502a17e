//! Golden bytes: every kind of message in V1 and V2, text and binary, read and written.
//!
//! The vectors are those of PROTOCOL §3, §4 and §7 and the messages of Phoenix's own serializer
//! tests. A difference here is a difference on the wire, which breaks some client.
use std::borrow::Cow;

use simurgh_proto::message::{Message, Payload, Ref};
use simurgh_proto::serializer::{
    DecodeError, EncodeError, Frame, Kind, Serializer, ServerMessage, UnknownVsn,
};
use simurgh_proto::session::server as session;

use Serializer::{V1, V2};

/// What a writer appended, with the bytes before it unchanged.
fn written(write: impl FnOnce(&mut Vec<u8>) -> Result<Kind, EncodeError>) -> (Kind, Vec<u8>) {
    let mut out = b"before".to_vec();
    let kind = write(&mut out).unwrap();
    assert!(out.starts_with(b"before"));
    (kind, out.split_off(6))
}

fn text(write: impl FnOnce(&mut Vec<u8>) -> Result<Kind, EncodeError>) -> String {
    let (kind, out) = written(write);
    assert_eq!(kind, Kind::Text);
    String::from_utf8(out).unwrap()
}

fn binary(write: impl FnOnce(&mut Vec<u8>) -> Result<Kind, EncodeError>) -> Vec<u8> {
    let (kind, out) = written(write);
    assert_eq!(kind, Kind::Binary);
    out
}

fn json(text: &str) -> Payload<'_> {
    Payload::Json(Cow::Borrowed(text))
}

fn data(bytes: &[u8]) -> Payload<'_> {
    Payload::Binary(Cow::Borrowed(bytes))
}

fn message<'a>(refs: [&'a str; 2], topic: &'a str, event: &'a str, json: &'a str) -> Message<'a> {
    Message {
        join_ref: Ref::from_json(refs[0]),
        msg_ref: Ref::from_json(refs[1]),
        topic: Cow::Borrowed(topic),
        event: Cow::Borrowed(event),
        payload: self::json(json),
    }
}

fn decoded(serializer: Serializer, text: &str) -> Result<Message<'_>, DecodeError> {
    serializer.decode(Frame::Text(text))
}

// --- vsn (PROTOCOL rows 2–7)

#[test]
fn vsn_selects_the_serializer() {
    for vsn in [None, Some("1.0.0"), Some("1.0.3"), Some("1.0.1-rc.1"), Some("1.0.0+b")] {
        assert_eq!(Serializer::for_vsn(vsn), Ok(V1), "{vsn:?}");
    }
    for vsn in ["2.0.0", "2.0.9", "2.0.99999", "2.0.0+build.7"] {
        assert_eq!(Serializer::for_vsn(Some(vsn)), Ok(V2), "{vsn}");
    }
    for vsn in [
        "2.1.0",
        "3.0.0",
        "123.1.1",
        "0.9.0",
        "1.1.0",
        "abc",
        "2",
        "2.0",
        "",
        "2.0.0-rc.1",
        " 2.0.0",
        "2.0.0.0",
        "v2.0.0",
        "2.00.0",
        "-1.0.0",
        "~> 2.0.0",
    ] {
        assert_eq!(Serializer::for_vsn(Some(vsn)), Err(UnknownVsn), "{vsn}");
    }
}

// --- V2 text

#[test]
fn v2_reads_client_messages() {
    let join = message(["\"1\"", "\"1\""], "rooms:lobby", "phx_join", r#"{"user":"é"}"#);
    assert_eq!(decoded(V2, r#"["1","1","rooms:lobby","phx_join",{"user":"é"}]"#), Ok(join));
    let beat = message(["null", "\"2\""], "phoenix", "heartbeat", "{}");
    assert_eq!(decoded(V2, r#"[null,"2","phoenix","heartbeat",{}]"#), Ok(beat));
    let phoenix_test = message(["null", "null"], "t", "e", r#"{"m":1}"#);
    assert_eq!(decoded(V2, r#"[null,null,"t","e",{"m":1}]"#), Ok(phoenix_test));
}

#[test]
fn v2_messages_borrow_from_the_frame() {
    let Message { join_ref, msg_ref, topic, event, payload } =
        decoded(V2, r#" [ "1", 2, "t:a", "e" , {"a":"b \" c"} ] "#).unwrap();
    assert!(matches!(join_ref, Ref::Json(Cow::Borrowed("\"1\""))));
    assert!(matches!(msg_ref, Ref::Json(Cow::Borrowed("2"))));
    assert!(matches!((topic, event), (Cow::Borrowed("t:a"), Cow::Borrowed("e"))));
    assert!(matches!(payload, Payload::Json(Cow::Borrowed(r#"{"a":"b \" c"}"#))));
}

#[test]
fn v2_ignores_elements_after_the_fifth() {
    let five = message(["\"1\"", "\"2\""], "t", "e", "{}");
    assert_eq!(decoded(V2, r#"["1","2","t","e",{},6,[7]]"#), Ok(five));
}

#[test]
fn refs_and_payloads_pass_through_unchanged() {
    let long = format!("\"{}\"", "r".repeat(300));
    let refs = ["7", "0", "\"\"", "null", "1.50e+3", "true", "[1,\"a\"]", "{\"a\":null}", &long];
    for msg_ref in refs {
        for payload in
            ["null", "[1,2]", "\"a\\u00e9\\/\"", "12345678901234567890.10", "false", "{}"]
        {
            let sent = message([msg_ref, msg_ref], "t", "e", payload);
            let array = format!(r#"[{msg_ref},{msg_ref},"t","e",{payload}]"#);
            assert_eq!(decoded(V2, &array), Ok(sent.clone()));
            assert_eq!(text(|out| V2.message(out, &sent)), array);
            let refs = format!(r#""join_ref":{msg_ref},"ref":{msg_ref}"#);
            let object = format!(r#"{{"topic":"t","event":"e","payload":{payload},{refs}}}"#);
            assert_eq!(decoded(V1, &object), Ok(sent));
        }
    }
}

#[test]
fn string_refs_are_equal_in_any_spelling() {
    let plain = decoded(V2, r#"["é/","1","t","e",{}]"#).unwrap();
    let escaped = decoded(V2, r#"["\u00e9\/","\u0031","t","e",{}]"#).unwrap();
    assert_eq!(plain, escaped);
    assert_eq!(escaped.join_ref.raw(), "\"é/\"");
}

#[test]
fn whitespace_is_accepted_and_not_sent() {
    let spaced = "\t[ [ 1 , 2 ] ,\n\"7\" , \"a b\" ,\r\"e\" , { \"k \" : [ \" v \" , 1 ] } ]\n";
    let tight = r#"[[1,2],"7","a b","e",{"k ":[" v ",1]}]"#;
    let read = decoded(V2, spaced).unwrap();
    assert_eq!(text(|out| V2.message(out, &read)), tight);
    // One blank at each place beside a token, but not within strings.
    for (at, _) in tight.match_indices(['[', ']', '{', '}', ',', ':', '"', '1']) {
        let (front, back) = tight.split_at(at);
        if front.matches('"').count() % 2 == 0 {
            let spaced = format!("{front} {back}");
            let read = decoded(V2, &spaced).unwrap();
            assert_eq!(text(|out| V2.message(out, &read)), tight, "{spaced}");
        }
    }
    let spaced =
        "{ \"topic\" : \"a b\", \"event\":\"e\",\"ref\" : \"7\", \"payload\": { \"k \": 1 } }";
    let read = decoded(V1, spaced).unwrap();
    let tight = r#"{"topic":"a b","event":"e","payload":{"k ":1},"ref":"7"}"#;
    assert_eq!(text(|out| V1.message(out, &read)), tight);
}

#[test]
fn topics_and_events_are_unescaped_on_input_and_escaped_on_output() {
    let array = r#"[null,null,"a\"\\\n\u0001😀","\t",{}]"#;
    let read = decoded(V2, r#"[null,null,"\u0061\"\\\n\u0001\ud83d\ude00","\u0009",{}]"#).unwrap();
    assert_eq!((&*read.topic, &*read.event), ("a\"\\\n\u{1}😀", "\t"));
    assert_eq!(text(|out| V2.message(out, &read)), array);
    assert_eq!(text(|out| V2.broadcast(out, &read.topic, &read.event, &read.payload)), array);
}

#[test]
fn v2_rejects_invalid_messages() {
    for shape in [
        r#"{"topic":"t","event":"e","payload":{},"ref":"1"}"#,
        r#"["1","1","t","e"]"#,
        "[]",
        "[1]",
        r#"["1","1",null,"e",{}]"#,
        r#"["1","1","t",5,{}]"#,
        r#"["1","1",["t"],"e",{}]"#,
        "\"t\"",
        "null",
        "7",
    ] {
        assert_eq!(decoded(V2, shape), Err(DecodeError::Shape), "{shape}");
    }
    for garbage in [
        "",
        " ",
        "hello",
        "[",
        r#"["1","1","t","e",{}"#,
        r#"["1","1","t","e",{}]x"#,
        r#"["1","1","t","e",{},]"#,
        r#"["1","1","t","e",{}}"#,
        r#"["1" "1","t","e",{}]"#,
        r#"["1","1","t","e",{}][]"#,
        r#"["1","1","t","e",,{}]"#,
        r#"["1","1","t","e","\ud800"]"#,
        r#"["1","1","t","e",{},nul]"#,
        "[,]",
        "\u{feff}[]",
    ] {
        let error = decoded(V2, garbage).unwrap_err();
        assert!(matches!(error, DecodeError::Syntax { .. }), "{garbage}: {error:?}");
    }
    let deep = format!(r#"["1","1","t","e",{}{}]"#, "[".repeat(1025), "]".repeat(1025));
    assert_eq!(decoded(V2, &deep), Err(DecodeError::TooDeep));
}

#[test]
fn v2_writes_server_messages() {
    let (one, five) = (Ref::from_json("\"1\""), Ref::from_json("5"));
    let reply = |status, response| text(|out| V2.reply(out, &one, &five, "t", status, response));
    assert_eq!(
        reply("ok", &Payload::EMPTY_OBJECT),
        r#"["1",5,"t","phx_reply",{"status":"ok","response":{}}]"#
    );
    assert_eq!(
        reply("we\"ird", &json("[1]")),
        r#"["1",5,"t","phx_reply",{"status":"we\"ird","response":[1]}]"#
    );
    assert_eq!(
        text(|out| V2.push(out, &one, "t", "e", &json(r#"{"m":1}"#))),
        r#"["1",null,"t","e",{"m":1}]"#
    );
    assert_eq!(
        text(|out| V2.broadcast(out, "t", "e", &json(r#"{"m":1}"#))),
        r#"[null,null,"t","e",{"m":1}]"#
    );
    assert_eq!(
        text(|out| V2.server(out, &session::closed(&one, "t"))),
        r#"["1","1","t","phx_close",{}]"#
    );
    assert_eq!(
        text(|out| V2.server(out, &session::closed(&Ref::Null, "t"))),
        r#"[null,null,"t","phx_close",{}]"#
    );
    assert_eq!(
        text(|out| V2.server(out, &session::crashed(&five, "t"))),
        r#"[5,5,"t","phx_error",{"reason":"channel_crash"}]"#
    );
}

// --- V1

#[test]
fn v1_reads_client_messages() {
    let join = message(["null", "\"1\""], "rooms:lobby", "phx_join", r#"{"a":1}"#);
    let object = r#"{"topic":"rooms:lobby","event":"phx_join","payload":{"a":1},"ref":"1"}"#;
    assert_eq!(decoded(V1, object), Ok(join.clone()));
    assert_eq!(V1.decode(Frame::Binary(object.as_bytes())), Ok(join));
    let phoenix_test = message(["null", "null"], "t", "e", "\"m\"");
    let object = r#"{"event":"e","payload":"m","ref":null,"topic":"t"}"#;
    assert_eq!(decoded(V1, object), Ok(phoenix_test));
}

#[test]
fn v1_accepts_keys_in_any_order_and_the_last_duplicate_wins() {
    let object = r#"{"ref":1,"x":[{"topic":"no"}],"join_ref":"9","ref":"2","payload":null,
        "\u0074opic":"t","event":5,"event":"e","join_ref":"3"}"#;
    let expected = message(["\"3\"", "\"2\""], "t", "e", "null");
    assert_eq!(decoded(V1, object), Ok(expected));
}

#[test]
fn v1_rejects_invalid_messages() {
    for shape in [
        r#"{"event":"e","payload":{},"ref":"1"}"#,
        r#"{"topic":"t","payload":{},"ref":"1"}"#,
        r#"{"topic":"t","event":"e","ref":"1"}"#,
        r#"{"topic":"t","event":"e","payload":{}}"#,
        r#"{"topic":null,"event":"e","payload":{},"ref":"1"}"#,
        r#"{"topic":"t","event":"e","event":1,"payload":{},"ref":"1"}"#,
        r#"{"Topic":"t","event":"e","payload":{},"ref":"1"}"#,
        r#"["1","1","t","e",{}]"#,
        "{}",
        "7",
    ] {
        assert_eq!(decoded(V1, shape), Err(DecodeError::Shape), "{shape}");
    }
    for garbage in ["", "hello", "{", r#"{"topic":"t"}x"#, r#"{"topic":}"#, r#"{"topic""t"}"#] {
        let error = decoded(V1, garbage).unwrap_err();
        assert!(matches!(error, DecodeError::Syntax { .. }), "{garbage}: {error:?}");
    }
    assert_eq!(V1.decode(Frame::Binary(b"{\"\xff\":1}")), Err(DecodeError::NotUtf8));
    let binary_push = V1.decode(Frame::Binary(b"\0\0\0\x01\x01te"));
    assert!(matches!(binary_push, Err(DecodeError::Syntax { at: 0 })));
}

#[test]
fn v1_writes_exactly_four_keys() {
    let (one, five) = (Ref::from_json("\"1\""), Ref::from_json("5"));
    assert_eq!(
        text(|out| V1.reply(out, &one, &five, "t", "ok", &Payload::EMPTY_OBJECT)),
        r#"{"topic":"t","event":"phx_reply","payload":{"status":"ok","response":{}},"ref":5}"#
    );
    assert_eq!(
        text(|out| V1.reply(out, &one, &Ref::Null, "t", "no", &json("\"m\""))),
        r#"{"topic":"t","event":"phx_reply","payload":{"status":"no","response":"m"},"ref":null}"#
    );
    let event = r#"{"topic":"t\"","event":"e\n","payload":{"m":1},"ref":null}"#;
    assert_eq!(text(|out| V1.push(out, &one, "t\"", "e\n", &json(r#"{"m":1}"#))), event);
    assert_eq!(text(|out| V1.broadcast(out, "t\"", "e\n", &json(r#"{"m":1}"#))), event);
    assert_eq!(
        text(|out| V1.server(out, &session::closed(&one, "t"))),
        r#"{"topic":"t","event":"phx_close","payload":{},"ref":"1"}"#
    );
    assert_eq!(
        text(|out| V1.server(out, &session::crashed(&Ref::Null, "t"))),
        r#"{"topic":"t","event":"phx_error","payload":{"reason":"channel_crash"},"ref":null}"#
    );
}

#[test]
fn v1_clients_send_their_join_ref_if_present() {
    let sent = message(["null", "\"2\""], "t", "e", "{}");
    assert_eq!(
        text(|out| V1.message(out, &sent)),
        r#"{"topic":"t","event":"e","payload":{},"ref":"2"}"#
    );
    let sent = message(["\"1\"", "\"2\""], "t", "e", "{}");
    assert_eq!(
        text(|out| V1.message(out, &sent)),
        r#"{"topic":"t","event":"e","payload":{},"join_ref":"1","ref":"2"}"#
    );
}

// --- V2 binary, byte for byte as in Phoenix's tests

const CLIENT_PUSH: &[u8] = b"\x00\x02\x03\x05\x0512123topicevent\x65\x66\x67";
const SERVER_PUSH: &[u8] = b"\x00\x02\x05\x0512topicevent\x65\x66\x67";
const REPLY: &[u8] = b"\x01\x02\x03\x05\x0212123topicok\x65\x66\x67";
const BROADCAST: &[u8] = b"\x02\x05\x05topicevent\x65\x66\x67";
const DATA: &[u8] = b"\x65\x66\x67";

#[test]
fn binary_frames_match_those_of_phoenix() {
    let payload = &data(DATA);
    for quote in ["", "\""] {
        let [join_ref, msg_ref] =
            ["12", "123"].map(|n| Ref::from_json(format!("{quote}{n}{quote}")));
        assert_eq!(binary(|out| V2.reply(out, &join_ref, &msg_ref, "topic", "ok", payload)), REPLY);
        assert_eq!(binary(|out| V2.push(out, &join_ref, "topic", "event", payload)), SERVER_PUSH);
    }
    assert_eq!(binary(|out| V2.broadcast(out, "topic", "event", payload)), BROADCAST);
    let mut push = message(["\"12\"", "\"123\""], "topic", "event", "{}");
    push.payload = payload.clone();
    assert_eq!(binary(|out| V2.message(out, &push)), CLIENT_PUSH);
    assert_eq!(V2.decode(Frame::Binary(CLIENT_PUSH)), Ok(push));
}

#[test]
fn null_binary_refs_are_empty_and_read_as_empty_strings() {
    let payload = &data(b"");
    assert_eq!(binary(|out| V2.push(out, &Ref::Null, "t", "e", payload)), b"\0\0\x01\x01te");
    assert_eq!(
        binary(|out| V2.reply(out, &Ref::Null, &Ref::Null, "t", "ok", payload)),
        b"\x01\0\0\x01\x02tok"
    );
    let read = V2.decode(Frame::Binary(b"\0\0\0\x01\x01te")).unwrap();
    assert_eq!((read.join_ref.raw(), read.msg_ref.raw()), ("\"\"", "\"\""));
    assert_eq!(read.payload, *payload);
}

#[test]
fn binary_fields_must_be_utf8_and_binary_data_may_be_any_bytes() {
    let frame = b"\0\x01\x02\x02\x01\"\xc3\xa9t\\\n\xff\xfe\0";
    let read = V2.decode(Frame::Binary(frame)).unwrap();
    assert_eq!((read.join_ref.raw(), read.msg_ref.raw()), (r#""\"""#, "\"é\""));
    assert_eq!((&*read.topic, &*read.event), ("t\\", "\n"));
    assert_eq!(read.payload, data(b"\xff\xfe\0"));
    assert_eq!(binary(|out| V2.message(out, &read)), frame);
    for field in
        [b"\0\x01\0\0\0\xff", b"\0\0\x01\0\0\xff", b"\0\0\0\x01\0\xff", b"\0\0\0\0\x01\xff"]
    {
        assert_eq!(V2.decode(Frame::Binary(field)), Err(DecodeError::NotUtf8));
    }
}

#[test]
fn truncated_binary_headers_and_unknown_kinds_are_rejected() {
    for end in 0..CLIENT_PUSH.len() - DATA.len() {
        let cut = V2.decode(Frame::Binary(&CLIENT_PUSH[..end]));
        assert_eq!(cut, Err(DecodeError::Truncated), "{end}");
    }
    for (frame, header) in [(SERVER_PUSH, 16), (REPLY, 17), (BROADCAST, 13)] {
        for end in 0..header {
            let cut = V2.decode_server(Frame::Binary(&frame[..end]));
            assert_eq!(cut, Err(DecodeError::Truncated), "{end} of {frame:?}");
        }
        assert!(V2.decode_server(Frame::Binary(&frame[..header])).is_ok());
    }
    for kind in 1..=255 {
        let frame = [kind, 0, 0, 0, 0];
        assert_eq!(V2.decode(Frame::Binary(&frame)), Err(DecodeError::UnknownKind(kind)));
        // Kind 4 is Supabase's.
        if kind > 2 && kind != 4 {
            let read = V2.decode_server(Frame::Binary(&frame));
            assert_eq!(read, Err(DecodeError::UnknownKind(kind)));
        }
    }
}

#[test]
fn binary_fields_are_limited_to_255_bytes() {
    let (most, over) = ("é".repeat(127) + "e", "é".repeat(128));
    let payload = &data(DATA);
    let refused = |write: &dyn Fn(&mut Vec<u8>) -> Result<Kind, EncodeError>| {
        let mut out = b"before".to_vec();
        assert_eq!(write(&mut out), Err(EncodeError::FieldTooLong));
        assert_eq!(out, b"before");
    };
    let (null, long) = (&Ref::Null, &Ref::from_text(&over));
    refused(&|out| V2.push(out, long, "t", "e", payload));
    refused(&|out| V2.push(out, null, &over, "e", payload));
    refused(&|out| V2.push(out, null, "t", &over, payload));
    refused(&|out| V2.reply(out, long, null, "t", "ok", payload));
    refused(&|out| V2.reply(out, null, long, "t", "ok", payload));
    refused(&|out| V2.reply(out, null, null, &over, "ok", payload));
    refused(&|out| V2.reply(out, null, null, "t", &over, payload));
    refused(&|out| V2.broadcast(out, &over, "e", payload));
    refused(&|out| V2.broadcast(out, "t", &over, payload));
    let frame = binary(|out| V2.push(out, &Ref::from_text(&most), &most, &most, payload));
    assert_eq!(frame.len(), 4 + 3 * 255 + 3);
    assert_eq!(frame[..4], [0, 255, 255, 255]);
    assert!(V2.push(&mut Vec::new(), long, &over, &over, &json("{}")).is_ok());
}

#[test]
fn binary_data_of_any_size_arrives_complete() {
    let large = vec![0xa5; 200_000];
    for bytes in [&b""[..], &large] {
        let frame = binary(|out| V2.broadcast(out, "t", "e", &data(bytes)));
        let ServerMessage::Event(read) = V2.decode_server(Frame::Binary(&frame)).unwrap() else {
            panic!("a broadcast is an event");
        };
        assert_eq!(read.payload.binary(), Some(bytes));
    }
}

#[test]
fn v1_rejects_binary_frames() {
    let payload = &data(DATA);
    let mut out = b"before".to_vec();
    let mut sent = message(["null", "null"], "t", "e", "{}");
    sent.payload = payload.clone();
    for result in [
        V1.reply(&mut out, &Ref::Null, &Ref::Null, "t", "ok", payload),
        V1.push(&mut out, &Ref::Null, "t", "e", payload),
        V1.broadcast(&mut out, "t", "e", payload),
        V1.message(&mut out, &sent),
    ] {
        assert_eq!(result, Err(EncodeError::BinaryNeedsV2));
    }
    assert_eq!(out, b"before");
}

// --- the client's side

#[test]
fn clients_read_server_message_examples() {
    let (one, two) = (Ref::from_json("\"1\""), Ref::from_json("\"2\""));
    for (serializer, join_ref) in [(V1, &Ref::Null), (V2, &one)] {
        let reply = text(|out| {
            serializer.reply(out, &one, &two, "t", "ok", &json(r#"{"a":[1,{"status":"x"}]}"#))
        });
        let expected = ServerMessage::Reply {
            join_ref: join_ref.clone(),
            msg_ref: two.clone(),
            topic: Cow::Borrowed("t"),
            status: Cow::Borrowed("ok"),
            response: json(r#"{"a":[1,{"status":"x"}]}"#),
        };
        assert_eq!(serializer.decode_server(Frame::Text(&reply)), Ok(expected));
        let push = text(|out| serializer.push(out, &one, "t", "e", &json("[1]")));
        let expected =
            Message { join_ref: join_ref.clone(), ..message(["null"; 2], "t", "e", "[1]") };
        assert_eq!(
            serializer.decode_server(Frame::Text(&push)),
            Ok(ServerMessage::Event(expected))
        );
    }
    let reply = ServerMessage::Reply {
        join_ref: Ref::from_text("12"),
        msg_ref: Ref::from_text("123"),
        topic: Cow::Borrowed("topic"),
        status: Cow::Borrowed("ok"),
        response: data(DATA),
    };
    assert_eq!(V2.decode_server(Frame::Binary(REPLY)), Ok(reply));
    let mut push = message(["\"12\"", "null"], "topic", "event", "{}");
    push.payload = data(DATA);
    assert_eq!(
        V2.decode_server(Frame::Binary(SERVER_PUSH)),
        Ok(ServerMessage::Event(push.clone()))
    );
    push.join_ref = Ref::Null;
    assert_eq!(V2.decode_server(Frame::Binary(BROADCAST)), Ok(ServerMessage::Event(push)));
}

#[test]
fn clients_read_messages_of_other_servers() {
    // Phoenix orders the keys of a map by name, and other servers write blanks.
    let spaced = r#"["1", "2", "t", "phx_reply", {"response": {"a": 1}, "status": "ok"}]"#;
    let expected = ServerMessage::Reply {
        join_ref: Ref::from_text("1"),
        msg_ref: Ref::from_text("2"),
        topic: Cow::Borrowed("t"),
        status: Cow::Borrowed("ok"),
        response: json(r#"{"a":1}"#),
    };
    assert_eq!(V2.decode_server(Frame::Text(spaced)), Ok(expected));
    for payload in ["{}", "null", r#"{"status":"ok"}"#, r#"{"status":1,"response":{}}"#] {
        let frame = format!(r#"["1","2","t","phx_reply",{payload}]"#);
        assert_eq!(V2.decode_server(Frame::Text(&frame)), Err(DecodeError::Shape), "{payload}");
    }
}
