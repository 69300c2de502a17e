//! permessage-deflate (RFC 7692): rows 138 to 142.

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec;
use serde_json::{Value, json};
use wire_tests::{Frame, Head, Raw, Response, Server, Vsn, frame, opcode, unique};

const ACCEPTED: &str = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";

/// A text of about as many bytes that compresses well.
fn text(bytes: usize) -> String {
    (0..)
        .map(|n| format!("word {} ", n % 100))
        .scan(0, |sum, word| {
            *sum += word.len();
            (*sum <= bytes).then_some(word)
        })
        .collect()
}

fn upgrade(server: &Server, path: &str, offer: &str) -> (Raw, Response) {
    let mut raw = Raw::connect(server.addr());
    let response = raw.request(&Head::upgrade(path).set("sec-websocket-extensions", offer));
    assert_eq!(response.status, 101);
    (raw, response)
}

fn open(server: &Server, path: &str) -> Raw {
    upgrade(server, path, "permessage-deflate; client_max_window_bits").0
}

/// A frame as RFC 7692 §7.2.3.4 allows it: the final block is followed by a byte 00.
fn compressed(opcode: u8, payload: impl AsRef<[u8]>) -> Frame {
    let mut payload = compress_to_vec(payload.as_ref(), 6);
    payload.push(0);
    Frame { rsv: 0b100, ..frame(opcode, payload) }
}

fn inflated(frame: &Frame) -> Vec<u8> {
    assert_eq!(frame.rsv, 0b100, "compressed");
    let whole = [&frame.payload[..], &[0, 0, 0xff, 0xff, 3, 0]].concat();
    decompress_to_vec(&whole).expect("a whole stream")
}

fn value(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}

fn plain(raw: &mut Raw) -> Value {
    let frame = raw.frame();
    assert_eq!(frame.rsv, 0, "not compressed");
    value(&frame.payload)
}

fn send(raw: &mut Raw, message: &Value) {
    raw.send_frame(&frame(opcode::TEXT, message.to_string()));
}

fn join(raw: &mut Raw, topic: &str) {
    send(raw, &json!(["1", "1", topic, "phx_join", {}]));
    assert_eq!(plain(raw)[4]["status"], "ok");
}

#[test]
fn row_138_first_acceptable_offer_of_deflate_is_accepted() {
    let server = Server::shared_conformance();
    let path = Vsn::V2.path();
    let with_window = format!("{ACCEPTED}; server_max_window_bits=12");
    for (offer, answer) in [
        ("permessage-deflate", Some(ACCEPTED)),
        ("permessage-deflate; client_max_window_bits", Some(ACCEPTED)),
        (
            "permessage-deflate; client_max_window_bits=\"9\"; server_no_context_takeover",
            Some(ACCEPTED),
        ),
        ("permessage-deflate; server_max_window_bits=15", Some(&with_window)),
        ("x-other; a=\", permessage-deflate\", permessage-deflate", Some(ACCEPTED)),
        ("permessage-deflate; server_max_window_bits=8, permessage-deflate", Some(ACCEPTED)),
        ("permessage-deflate; server_max_window_bits=11", None),
        ("permessage-deflate; unknown", None),
        ("permessage-deflate; client_no_context_takeover; client_no_context_takeover", None),
        ("x-webkit-deflate-frame", None),
    ] {
        let (_, response) = upgrade(&server, &path, offer);
        assert_eq!(response.header("sec-websocket-extensions"), answer, "{offer}");
    }
    // Its user socket has it off.
    let (_, response) = upgrade(&server, "/realtime/v1/websocket?vsn=2.0.0", ACCEPTED);
    assert_eq!(response.header("sec-websocket-extensions"), None);
}

#[test]
fn row_139_messages_of_256_bytes_and_more_are_compressed() {
    let server = Server::shared_conformance();
    let mut raw = open(&server, &Vsn::V2.path());
    let mut other = Raw::websocket(server.addr(), &Vsn::V2.path());
    let topic = unique("test:deflate");
    join(&mut raw, &topic);
    join(&mut other, &topic);
    let (short, long) = (json!({"a": text(100)}), json!({"a": text(5_000)}));
    send(&mut raw, &json!(["1", "2", topic, "echo", short]));
    assert_eq!(plain(&mut raw)[4]["response"], short);
    let push = json!(["1", "3", topic, "echo", long]);
    raw.send_frame(&compressed(opcode::TEXT, push.to_string()));
    let reply = raw.frame();
    assert_eq!(value(&inflated(&reply))[4]["response"], long);
    assert!(reply.payload.len() < 2_500, "{}", reply.payload.len());
    // A push, and a broadcast; the other member has no extension.
    for (event, told) in [("push_me", "pushed"), ("bcast", "news")] {
        send(&mut raw, &json!(["1", "4", topic, event, long]));
        let news = value(&inflated(&raw.frame()));
        assert_eq!((&news[3], &news[4]), (&json!(told), &long));
    }
    assert_eq!(plain(&mut other), json!([null, null, topic, "news", long]));
    // Binary messages stay as they are here; on `/echo` they do not.
    let mut raw = open(&server, "/echo");
    raw.send_frame(&compressed(opcode::BINARY, text(1_000)));
    assert_eq!(inflated(&raw.frame()), text(1_000).as_bytes());
    // Longer than 64 KiB: not compressed, and inflated on another thread.
    raw.send_frame(&compressed(opcode::TEXT, text(300_000)));
    raw.send_frame(&compressed(opcode::TEXT, ""));
    let frame = raw.frame();
    assert_eq!((frame.rsv, frame.payload), (0, text(300_000).into_bytes()));
    assert_eq!(raw.frame().payload, b"", "in order");
}

#[test]
fn row_140_compressed_messages_are_checked() {
    let server = Server::shared_conformance();
    let mut raw = open(&server, "/echo");
    // In fragments, with a ping between; RSV1 is on the first alone.
    let whole = compressed(opcode::TEXT, "Hello Hello Hello");
    let (first, rest) = whole.payload.split_at(3);
    raw.send_frame(&Frame { fin: false, payload: first.to_vec(), ..whole.clone() });
    raw.send_frame(&frame(opcode::PING, "x"));
    raw.send_frame(&frame(opcode::CONTINUATION, rest));
    assert_eq!(raw.frame().opcode, opcode::PONG);
    assert_eq!(raw.frame().payload, b"Hello Hello Hello");
    // The empty message, and one without a final block (RFC 7692 §7.2.3).
    let deflated = |payload: &[u8]| Frame { rsv: 0b100, ..frame(opcode::TEXT, payload) };
    raw.send_frame(&deflated(&[0]));
    assert_eq!(raw.frame().payload, b"");
    raw.send_frame(&deflated(&[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0]));
    assert_eq!(raw.frame().payload, b"Hello");
    let cut = whole.payload.len() - 4;
    for (wrong, code) in [
        (deflated(&[0xff, 0xff]), 1002),
        (deflated(&whole.payload[..cut]), 1002),
        (compressed(opcode::TEXT, [0xff]), 1007),
        (Frame { rsv: 0b100, ..frame(opcode::PING, "") }, 1002),
        (Frame { rsv: 0b110, ..whole.clone() }, 1002),
    ] {
        let mut raw = open(&server, "/echo");
        raw.send_frame(&wrong);
        assert_eq!(raw.expect_close(), code, "{wrong:?}");
    }
    let mut raw = open(&server, "/echo");
    raw.send_frame(&Frame { fin: false, payload: first.to_vec(), ..whole.clone() });
    raw.send_frame(&Frame { rsv: 0b100, ..frame(opcode::CONTINUATION, rest) });
    assert_eq!(raw.expect_close(), 1002, "RSV1 on a continuation");
    let mut raw = Raw::websocket(server.addr(), "/echo");
    raw.send_frame(&whole);
    assert_eq!(raw.expect_close(), 1002, "RSV1 without the extension");
}

#[test]
fn row_141_message_that_inflates_beyond_the_limit_is_1009() {
    let server = Server::shared_conformance();
    let bomb = compressed(opcode::TEXT, vec![b' '; 40_000_000]);
    assert!(bomb.payload.len() < 100_000);
    let mut raw = open(&server, "/echo");
    raw.send_frame(&bomb);
    assert_eq!(raw.expect_close(), 1009);
}

#[test]
fn row_142_channel_with_compression_off_stays_uncompressed() {
    let server = Server::shared_conformance();
    let mut raw = open(&server, &Vsn::V2.path());
    join(&mut raw, "exact");
    let long = json!({"a": text(1_000)});
    let push = json!(["1", "2", "exact", "echo", long]);
    raw.send_frame(&compressed(opcode::TEXT, push.to_string()));
    assert_eq!(plain(&mut raw)[4]["response"], long);
}
