//! Rows 34–50 of PROTOCOL §14: pushes and every way a handler may answer them, in which order,
//! and that payloads pass through unchanged.

use serde_json::{Value, json};
use wire_tests::{Client, Server, Vsn, both, opcode, unique};

/// A client of this serializer that has joined a topic of its own; the topic and its join_ref.
#[track_caller]
fn joined(server: &Server, vsn: Vsn) -> (Client, String, String) {
    let mut client = Client::open(server, vsn);
    let topic = unique("test:push");
    let join_ref = client.join(&topic, json!({}));
    (client, topic, join_ref)
}

/// Row 34. both; joined; push, the handler replies: same ref, the channel's join_ref.
#[test]
fn row_34_reply_has_the_refs_of_push_and_channel() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let mut client = Client::open(&server, vsn);
        let topic = unique("test:push");
        client.send("3", "4", &topic, "phx_join", json!({}));
        client.recv().expect_reply("3", "4", &topic, "ok", json!({}));
        client.send("3", "11", &topic, "echo", json!({"a": 1}));
        client.recv().expect_reply("3", "11", &topic, "ok", json!({"a": 1}));
    });
}

/// Row 35. both; bare ok / error reply: response `{}`.
#[test]
fn row_35_a_bare_reply_has_an_empty_response() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let (mut client, topic, _) = joined(&server, vsn);
        client.ask(&topic, "status_only", json!({"x": 1}), "ok", json!({}));
        client.ask(&topic, "error_only", json!({"x": 1}), "error", json!({}));
    });
}

/// Row 36. both; error reply with a payload: status error, the payload.
#[test]
fn row_36_an_error_reply_has_its_payload() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let (mut client, topic, _) = joined(&server, vsn);
        let reason = json!({"reason": "out of \"luck\""});
        client.ask(&topic, "fail", reason.clone(), "error", reason);
    });
}

/// Row 37. Reply status "weird": passed on.
#[test]
fn row_37_any_reply_status_reaches_the_client() {
    let server = Server::shared_conformance();
    let (mut client, topic, _) = joined(&server, Vsn::V2);
    client.ask(&topic, "custom_status", json!({}), "weird", json!({"a": 1}));
}

/// Row 38. both; no-reply handler: silence.
#[test]
fn row_38_handler_without_reply_sends_nothing() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let (mut client, topic, _) = joined(&server, vsn);
        client.push(&topic, "noreply", json!({}));
        client.expect_quiet();
        client.echo(&topic);
    });
}

/// Row 39. Late reply, other replies first: the correct ref.
#[test]
fn row_39_a_late_reply_has_its_own_ref() {
    let server = Server::shared_conformance();
    let (mut client, topic, join_ref) = joined(&server, Vsn::V2);
    let late: Vec<_> = (0..3)
        .map(|n| (client.push(&topic, "async", json!({"late": n})), json!({"late": n})))
        .collect();
    // The channel is not blocked: this one overtakes all three.
    client.echo(&topic);
    let mut got = client.recv_many(3);
    got.sort_by_key(|m| m.msg_ref.as_str().map(str::to_owned));
    for (message, (msg_ref, payload)) in got.iter().zip(late) {
        message.expect_reply(&*join_ref, msg_ref, &topic, "ok", payload);
    }
    client.expect_quiet();
}

/// Row 40. both; server push: [join_ref, null, topic, event, payload].
#[test]
fn row_40_a_server_push_has_join_ref_and_no_ref() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let (mut client, topic, join_ref) = joined(&server, vsn);
        client.push(&topic, "push_me", json!({"a": 1}));
        let pushed = client.recv();
        pushed.expect(&*join_ref, (), &topic, "pushed", json!({"a": 1}));
        if vsn == Vsn::V2 {
            let text = format!(r#"["{join_ref}",null,"{topic}","pushed",{{"a":1}}]"#);
            assert_eq!(pushed.raw, text);
        }
        client.expect_quiet();
    });
}

/// Row 41. both; not joined; push: error unmatched topic, join_ref null.
#[test]
fn row_41_a_push_to_an_unjoined_topic_is_unmatched() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let mut client = Client::open(&server, vsn);
        let topic = unique("test:push");
        client.send("1", "8", &topic, "echo", json!({}));
        client.recv().expect_unmatched("8", &topic);
        client.send((), "9", &topic, "echo", json!({}));
        client.recv().expect_unmatched("9", &topic);
        for event in ["crash", "phx_reply", "phx_close", "phx_error"] {
            client.send("1", "10", &topic, event, json!({}));
            client.recv().expect_unmatched("10", &topic);
        }
        // Nothing is left of them for the join that follows.
        client.join(&topic, json!({}));
        client.echo(&topic);
    });
}

/// Row 42. Rejoined; push with the old join_ref: silence.
#[test]
fn row_42_a_push_with_the_old_join_ref_is_dropped() {
    let server = Server::shared_conformance();
    let mut client = Client::open(&server, Vsn::V2);
    let topic = unique("test:push");
    for join_ref in ["1", "2"] {
        client.send(join_ref, join_ref, &topic, "phx_join", json!({}));
        client.recv().expect_reply(join_ref, join_ref, &topic, "ok", json!({}));
    }
    client.recv_except("you_left").expect_channel_close("1", &topic);
    client.heartbeat_except("you_left");
    client.send("1", "5", &topic, "echo", json!({}));
    // The type counts as well: 2 is not "2".
    client.send(2, "6", &topic, "echo", json!({}));
    client.expect_quiet();
    client.send("2", "7", &topic, "echo", json!({}));
    client.recv().expect_reply("2", "7", &topic, "ok", json!({}));
}

/// Row 43. Joined; push with join_ref null: handled; the reply carries the channel's.
#[test]
fn row_43_a_push_without_join_ref_is_handled() {
    let server = Server::shared_conformance();
    let (mut client, topic, join_ref) = joined(&server, Vsn::V2);
    client.send((), "5", &topic, "echo", json!({"a": 1}));
    client.recv().expect_reply(join_ref, "5", &topic, "ok", json!({"a": 1}));
}

/// Row 44. Joined; payload list, string, number, null, bool: echoed.
#[test]
fn row_44_payload_may_be_any_json_value() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let (mut client, topic, _) = joined(&server, vsn);
        for payload in [
            json!([]),
            json!([1, [2, {"a": null}]]),
            json!("text"),
            json!(""),
            json!(0),
            json!(-12.5e-3),
            Value::Null,
            json!(true),
            json!(false),
        ] {
            client.ask(&topic, "echo", payload.clone(), "ok", payload);
        }
    });
}

/// Row 45. Unicode, escapes, 40-deep nesting: intact.
#[test]
fn row_45_unicode_escapes_and_nesting_stay_intact() {
    let server = Server::shared_conformance();
    let deep = format!("{}{}", "[".repeat(40), "]".repeat(40));
    let payload = format!(
        r#"{{"é\u00e9":"\ud83d\ude00😀 \\ \" \/ \b\f\n\r\t \u0000 \u2028","k,]}}":[{deep}]}}"#
    );
    let value: Value = serde_json::from_str(&payload).expect("valid JSON");
    both(|vsn| {
        let (mut client, topic, _) = joined(&server, vsn);
        client.send_text(&match vsn {
            Vsn::V1 => format!(
                r#"{{"topic":"{topic}","event":"echo","payload":{payload},"ref":"\u00e9\"1"}}"#
            ),
            Vsn::V2 => format!(r#"[null,"\u00e9\"1","{topic}","echo",{payload}]"#),
        });
        let reply = client.recv();
        assert_eq!(reply.msg_ref, json!("é\"1"));
        assert_eq!(reply.replied().response, value);
    });

    // The topic too may hold anything, written in any way; it is the same topic.
    let mut client = Client::open(&server, Vsn::V2);
    let topic = unique("test:é\"\\,]\u{2028}😀");
    client.join(&topic, json!({}));
    client.echo(&topic);
    let escaped: String = topic.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    client.send_text(&format!(r#"[null,"x","{escaped}","\u0065cho",1]"#));
    let reply = client.recv();
    assert_eq!((reply.topic.as_str(), reply.replied().response), (topic.as_str(), json!(1)));
}

/// Row 46. 1 MB payload: intact.
#[test]
fn row_46_payload_of_one_megabyte_is_unchanged() {
    let server = Server::shared_conformance();
    let (mut client, topic, _) = joined(&server, Vsn::V2);
    let text: String = ('a'..='z').cycle().take(1_000_000).collect();
    client.ask(&topic, "echo", json!({"text": text}), "ok", json!({"text": text}));
    client.echo(&topic);
}

/// Row 47. No handler; push: phx_error; rejoin works.
#[test]
fn row_47_an_unknown_event_crashes_the_channel() {
    let server = Server::shared_conformance();
    let (mut client, topic, join_ref) = joined(&server, Vsn::V2);
    client.push(&topic, "nobody_handles_this", json!({}));
    client.recv_except("you_left").expect_channel_error(&join_ref, &topic);
    client.heartbeat_except("you_left");
    client.push(&topic, "echo", json!({}));
    let reply = client.recv();
    reply.expect_unmatched(reply.msg_ref.clone(), &topic);
    client.join(&topic, json!({}));
    client.echo(&topic);
}

/// Row 48. 500 pushes: answered in order.
#[test]
fn row_48_500_pushes_are_answered_in_order() {
    let server = Server::shared_conformance();
    let (mut client, topic, join_ref) = joined(&server, Vsn::V2);
    let refs: Vec<_> = (0..500).map(|n| client.push(&topic, "echo", json!({"n": n}))).collect();
    for (n, msg_ref) in refs.into_iter().enumerate() {
        client.recv().expect_reply(&*join_ref, msg_ref, &topic, "ok", json!({"n": n}));
    }
}

/// Row 49. A message in three continuation frames: one message.
#[test]
fn row_49_fragments_are_one_message() {
    let server = Server::shared_conformance();
    let (mut client, topic, join_ref) = joined(&server, Vsn::V2);
    let text = format!(r#"["{join_ref}","77","{topic}","echo",{{"text":"ünïcödé"}}]"#);
    // The second cut goes through the two bytes of a letter; a ping comes in between.
    let bytes = text.as_bytes();
    let second = text.find('ï').expect("the letter") + 1;
    client.send_fragment(opcode::TEXT, false, &bytes[..9]);
    client.send_fragment(opcode::CONTINUATION, false, &bytes[9..second]);
    client.ping(b"between");
    assert_eq!(client.recv_pong(), b"between");
    client.send_fragment(opcode::CONTINUATION, true, &bytes[second..]);
    client.recv().expect_reply(join_ref, "77", &topic, "ok", json!({"text": "ünïcödé"}));
    client.expect_quiet();
}

/// Row 50. Whitespace in the input: accepted; the output is compact.
#[test]
fn row_50_whitespace_is_accepted_and_not_sent_on() {
    let server = Server::shared_conformance();
    let (mut client, topic, join_ref) = joined(&server, Vsn::V2);
    let response = r#"{"a":[1,2,{"b":null}],"s":" a , b\n"}"#;
    let spaced = "{ \"a\" :\t[ 1 , 2,{ \"b\":null }\r\n] , \"s\": \" a , b\\n\" }";
    let text = |event: &str, payload: &str| {
        format!(" [ \"{join_ref}\" ,\n\t\"5\" , \"{topic}\" ,\"{event}\", {payload} ] \n")
    };
    client.send_text(&text("echo", spaced));
    let reply = client.recv();
    let head = format!(r#"["{join_ref}","5","{topic}","phx_reply",{{"#);
    assert!(reply.raw.starts_with(&head), "{}", reply.raw);
    assert!(reply.raw.contains(&format!(r#""response":{response}"#)), "{}", reply.raw);

    client.send_text(&text("push_me", spaced));
    let pushed = format!(r#"["{join_ref}",null,"{topic}","pushed",{response}]"#);
    assert_eq!(client.recv().raw, pushed);

    client.send_text(&text("bcast", spaced));
    let broadcast = format!(r#"[null,null,"{topic}","news",{response}]"#);
    assert_eq!(client.recv().raw, broadcast);

    let mut v1 = Client::open(&server, Vsn::V1);
    v1.send_text(&format!(
        " {{ \"topic\" : \"{topic}\" , \"event\":\"phx_join\",\n\
         \"payload\": {{ }}, \"ref\" : \"1\" }} "
    ));
    v1.recv().expect_reply((), "1", &topic, "ok", json!({}));
}
