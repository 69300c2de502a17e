//! Frames as the specifications of the protocols show them, both ways.

use proptest::prelude::*;
use simurgh_load_scenario::Protocol::{self, ActionCable, Centrifuge, GraphqlWs, Pusher, SocketIo};

use super::*;

const ALL: [Protocol; 5] = [SocketIo, Pusher, ActionCable, Centrifuge, GraphqlWs];
const CABLE: &str = r#"{"channel":"Chat","room":"1"}"#;

fn written(protocol: Protocol, topic: &str, event: &str, payload: &str) -> String {
    let message = Message {
        join_ref: Ref::Null,
        msg_ref: Ref::from_text("7"),
        topic: topic.into(),
        event: event.into(),
        payload: Payload::Json(payload.into()),
    };
    let bytes = write(protocol, &message, true).unwrap_or_default();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn socket_io_messages_are_packets_of_engine_io() {
    for (topic, event, payload, expected) in [
        ("/", "phx_join", "{}", "40"),
        ("/", "phx_join", r#"{"token":"x"}"#, r#"40{"token":"x"}"#),
        ("/admin", "phx_join", "{}", "40/admin,"),
        ("/", "say", r#"{"a":1}"#, r#"427["say",{"a":1}]"#),
        ("/admin", "say", r#"["a",[2]]"#, r#"42/admin,7["say","a",[2]]"#),
        ("/", "\"", "[]", r#"427["\""]"#),
        ("/admin", "phx_leave", "{}", "41/admin,"),
    ] {
        assert_eq!(written(SocketIo, topic, event, payload), expected);
    }
    let open = r#"{"sid":"lv_VI97HAXpY6yYWAAAB","pingInterval":25000}"#;
    for (frame, expected) in [
        (&*format!("0{open}"), Received::Welcome(open.into())),
        ("2", Received::Ping(Some("3"))),
        (r#"40{"sid":"x"}"#, reply(Ref::Null, "/", true, r#"{"sid":"x"}"#)),
        ("40/admin,{}", reply(Ref::Null, "/admin", true, "{}")),
        (r#"44/admin,{"message":"no"}"#, reply(Ref::Null, "/admin", false, r#"{"message":"no"}"#)),
        ("41/admin,", event("/admin", "phx_close", "{}")),
        (r#"42/admin,["say",{"a":1}]"#, event("/admin", "say", r#"{"a":1}"#)),
        (r#"425["say",1,"b"]"#, event("/", "say", r#"[1,"b"]"#)),
        ("43/admin,12[1]", reply(Ref::from_json("12"), "/admin", true, "[1]")),
        (r#"451-["file",{"_placeholder":true,"num":0}]"#, Received::Other),
        ("6", Received::Other),
    ] {
        assert_eq!(read(SocketIo, frame), Some(expected), "{frame}");
    }
    assert_eq!(read(SocketIo, "42[1]"), None, "an event has a name");
    for frame in ["0nonsense", r#"0{"sid":"#, "40{nope", "43/admin,12{nope", "44no"] {
        assert_eq!(read(SocketIo, frame), None, "{frame} is not JSON");
    }
}

#[test]
fn pusher_messages_are_events() {
    for (event, payload, expected) in [
        (
            "phx_join",
            r#"{"auth":"k:s"}"#,
            r#"{"event":"pusher:subscribe","data":{"channel":"private-a","auth":"k:s"}}"#,
        ),
        ("phx_leave", "{}", r#"{"event":"pusher:unsubscribe","data":{"channel":"private-a"}}"#),
        ("heartbeat", "{}", r#"{"event":"pusher:ping","data":{}}"#),
        ("client-x", "[1]", r#"{"event":"client-x","channel":"private-a","data":[1]}"#),
    ] {
        assert_eq!(written(Pusher, "private-a", event, payload), expected);
    }
    for (frame, expected) in [
        (
            r#"{"event":"pusher:connection_established","data":"{\"socket_id\":\"1.2\"}"}"#,
            Received::Welcome(r#"{"socket_id":"1.2"}"#.into()),
        ),
        (
            r#"{"event":"pusher_internal:subscription_succeeded","channel":"a","data":"{}"}"#,
            reply(Ref::Null, "a", true, r#""{}""#),
        ),
        (
            r#"{"event":"pusher:subscription_error","channel":"a","data":{"status":401}}"#,
            reply(Ref::Null, "a", false, r#"{"status":401}"#),
        ),
        (
            r#"{"event":"pusher:error","data":{"code":4001}}"#,
            Received::Error(r#"{"code":4001}"#.into()),
        ),
        (
            r#"{"event":"pusher:ping"}"#,
            Received::Ping(Some(r#"{"event":"pusher:pong","data":{}}"#)),
        ),
        (r#"{"event":"pusher:pong","data":{}}"#, heartbeat_reply()),
        (r#"{"channel":"a","event":"x","data":"1"}"#, event("a", "x", r#""1""#)),
        (r#"{"event":"pusher:signin_success","data":"{}"}"#, Received::Other),
    ] {
        assert_eq!(read(Pusher, frame), Some(expected), "{frame}");
    }
}

#[test]
fn action_cable_messages_have_the_identifier() {
    let identifier = r#""{\"channel\":\"Chat\",\"room\":\"1\"}""#;
    for (event, payload, expected) in [
        ("phx_join", "{}", format!(r#"{{"command":"subscribe","identifier":{identifier}}}"#)),
        ("phx_leave", "{}", format!(r#"{{"command":"unsubscribe","identifier":{identifier}}}"#)),
        (
            "say",
            r#"{"body":"\"b"}"#,
            format!(
                r#"{{"command":"message","identifier":{identifier},"data":{}}}"#,
                r#""{\"action\":\"say\",\"body\":\"\\\"b\"}""#
            ),
        ),
        ("say", "[1]", String::new()),
        ("heartbeat", "{}", String::new()),
    ] {
        assert_eq!(written(ActionCable, CABLE, event, payload), expected);
    }
    let of = |rest: &str| format!(r#"{{"identifier":{identifier},{rest}}}"#);
    for (frame, expected) in [
        (r#"{"type":"welcome"}"#.to_owned(), Received::Welcome(r#"{"type":"welcome"}"#.into())),
        (r#"{"type":"ping","message":1700000000}"#.to_owned(), Received::Ping(None)),
        (
            r#"{"type":"disconnect","reason":"unauthorized","reconnect":false}"#.to_owned(),
            Received::Error(r#""unauthorized""#.into()),
        ),
        (of(r#""type":"confirm_subscription""#), reply(Ref::Null, CABLE, true, "{}")),
        (of(r#""type":"reject_subscription""#), reply(Ref::Null, CABLE, false, r#""rejected""#)),
        (of(r#""message":{"body":1}"#), event(CABLE, "message", r#"{"body":1}"#)),
    ] {
        assert_eq!(read(ActionCable, &frame), Some(expected), "{frame}");
    }
    assert_eq!(read(ActionCable, "{}"), None, "neither type nor message");
}

#[test]
fn centrifuge_commands_have_the_ref_as_id() {
    for (event, payload, expected) in [
        ("phx_join", "{}", r#"{"id":7,"subscribe":{"channel":"a"}}"#),
        ("phx_join", r#"{"token":"x"}"#, r#"{"id":7,"subscribe":{"channel":"a","token":"x"}}"#),
        ("say", "[1]", r#"{"id":7,"publish":{"channel":"a","data":[1]}}"#),
        ("phx_leave", "{}", r#"{"id":7,"unsubscribe":{"channel":"a"}}"#),
        ("heartbeat", "{}", ""),
    ] {
        assert_eq!(written(Centrifuge, "a", event, payload), expected);
    }
    assert_eq!(greeting(Centrifuge, "{}").unwrap(), r#"{"id":4294967295,"connect":{}}"#);
    for (frame, expected) in [
        (
            r#"{"id":4294967295,"connect":{"client":"c","ping":25,"pong":true}}"#,
            Received::Welcome(r#"{"client":"c","ping":25,"pong":true}"#.into()),
        ),
        (
            r#"{"id":4294967295,"error":{"code":109,"message":"token expired"}}"#,
            Received::Error(r#"{"code":109,"message":"token expired"}"#.into()),
        ),
        (r#"{"id":7,"subscribe":{}}"#, reply(Ref::from_json("7"), "", true, "{}")),
        (
            r#"{"id":7,"error":{"code":103}}"#,
            reply(Ref::from_json("7"), "", false, r#"{"code":103}"#),
        ),
        (r#"{"push":{"channel":"a","pub":{"data":[1]}}}"#, event("a", "publication", "[1]")),
        (
            r#"{"push":{"channel":"a","unsubscribe":{"code":2000}}}"#,
            event("a", "phx_error", r#"{"code":2000}"#),
        ),
        (r#"{"push":{"disconnect":{"code":3000}}}"#, Received::Error(r#"{"code":3000}"#.into())),
        (r#"{"push":{"channel":"a","join":{}}}"#, Received::Other),
        ("{}", Received::Ping(Some("{}"))),
    ] {
        assert_eq!(read(Centrifuge, frame), Some(expected), "{frame}");
    }
}

#[test]
fn graphql_subscriptions_have_the_topic_as_id() {
    let query = r#"{"query":"subscription { a }"}"#;
    for (event, payload, expected) in [
        ("phx_join", query, format!(r#"{{"id":"a","type":"subscribe","payload":{query}}}"#)),
        ("say", query, format!(r##"{{"id":"#7","type":"subscribe","payload":{query}}}"##)),
        ("phx_leave", "{}", r#"{"id":"a","type":"complete"}"#.to_owned()),
        ("heartbeat", "{}", r#"{"type":"ping"}"#.to_owned()),
    ] {
        assert_eq!(written(GraphqlWs, "a", event, payload), expected);
    }
    let expected = r#"{"type":"connection_init","payload":{"token":"x"}}"#;
    assert_eq!(greeting(GraphqlWs, r#"{"token":"x"}"#).unwrap(), expected);
    let seven = || Ref::from_text("7");
    for (frame, expected) in [
        (r#"{"type":"connection_ack"}"#, Received::Welcome("{}".into())),
        (r#"{"type":"ping"}"#, Received::Ping(Some(r#"{"type":"pong"}"#))),
        (r#"{"type":"pong"}"#, heartbeat_reply()),
        (r#"{"id":"a","type":"next","payload":{"data":1}}"#, event("a", "next", r#"{"data":1}"#)),
        (r#"{"id":"a","type":"error","payload":[1]}"#, event("a", "phx_error", "[1]")),
        (r#"{"id":"a","type":"complete"}"#, event("a", "phx_close", "{}")),
        (
            r##"{"id":"#7","type":"next","payload":{"data":1}}"##,
            reply(seven(), "", true, r#"{"data":1}"#),
        ),
        (
            r##"{"id":"#7","type":"next","payload":{"errors":[1]}}"##,
            reply(seven(), "", false, r#"{"errors":[1]}"#),
        ),
        (r##"{"id":"#7","type":"complete"}"##, Received::Other),
    ] {
        assert_eq!(read(GraphqlWs, frame), Some(expected), "{frame}");
    }
}

/// Pieces of all protocols, so that many texts are almost messages.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("{"),
        Just("}"),
        Just("["),
        Just("]"),
        Just(","),
        Just(":"),
        Just("\""),
        Just("\\"),
        Just("0"),
        Just("4"),
        Just("42"),
        Just("43"),
        Just("44/a,"),
        Just("/"),
        Just("é"),
        Just(r#""event":"#),
        Just(r#""channel":"a""#),
        Just(r#""data":"#),
        Just(r#""id":"#),
        Just(r#""type":"next""#),
        Just(r#""identifier":"#),
        Just(r#""push":{"#),
        Just(r#""pub":"#),
        Just(r#""error":"#),
        Just(r#""payload":{"#),
        Just("pusher:error"),
        Just("4294967295"),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_frame_panics(text in prop_oneof![pieces(), any::<String>()]) {
        for protocol in ALL {
            let _ = read(protocol, &text);
        }
    }

    #[test]
    fn written_messages_are_one_json_document(
        topic in any::<String>(),
        event in any::<String>(),
        payload in prop_oneof![Just("{}"), Just(r#"{"a":[1]}"#), Just("[]"), Just("[1,2]")],
    ) {
        // A packet of Socket.IO is JSON only from its data on.
        for protocol in [Pusher, ActionCable, Centrifuge, GraphqlWs] {
            let text = written(protocol, &topic, &event, payload);
            if !text.is_empty() {
                prop_assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
            }
        }
    }
}
