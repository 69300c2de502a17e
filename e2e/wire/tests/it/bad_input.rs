//! Input of broken or hostile clients: each gets the right answer, and no other client notices.
//! In every test a probe on the same server still gets its heartbeat answered afterwards. Messages
//! that are no JSON or have another shape are in `closing.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use wire_tests::{Client, Frame, Head, Incoming, Raw, Server, Vsn, frame, opcode, unique};

/// Bytes one frame and one message may have.
const FRAME_BYTES_MAX: u64 = 10_000_000;

/// A shared server with a probe on it.
struct Scene {
    server: Arc<Server>,
    probe: Client,
}

impl Scene {
    fn new() -> Scene {
        let server = Server::shared_conformance();
        let mut probe = Client::open(&server, Vsn::V2);
        probe.heartbeat();
        Scene { server, probe }
    }

    /// A new, upgraded V2 connection.
    #[track_caller]
    fn raw(&self) -> Raw {
        Raw::websocket(self.server.addr(), &Vsn::V2.path())
    }

    /// The close code after these frames.
    #[track_caller]
    fn code_after(&self, frames: &[Frame]) -> u16 {
        let mut raw = self.raw();
        for frame in frames {
            // The server may close before it has read all of them; its close frame is there then.
            raw.try_send(frame.bytes());
        }
        raw.expect_close()
    }

    /// Nobody else noticed.
    #[track_caller]
    fn unharmed(mut self) {
        self.probe.heartbeat();
        assert!(self.server.is_running());
        Client::open(&self.server, Vsn::V2).heartbeat();
    }
}

/// A frame that is the first or a middle part of its message.
fn part(opcode: u8, payload: impl AsRef<[u8]>) -> Frame {
    Frame { fin: false, ..frame(opcode, payload) }
}

fn declared(bytes: u64, opcode: u8, payload: impl AsRef<[u8]>) -> Frame {
    Frame { declared: Some(bytes), ..frame(opcode, payload) }
}

/// PROTOCOL §18: a forbidden frame ends the socket as soon as the byte that shows it arrives.
#[test]
fn forbidden_frames_close_the_connection_with_their_code() {
    let scene = Scene::new();
    let bare = |opcode, payload: &str| Frame { masked: false, ..frame(opcode, payload) };
    let third = vec![b' '; 4_000_000];
    let heartbeat = r#"[null,"1","phoenix","heartbeat",{}]"#;
    let mut cases = vec![
        ("unmasked text", vec![bare(opcode::TEXT, heartbeat)], 1002),
        ("unmasked ping", vec![bare(opcode::PING, "x")], 1002),
        ("unmasked and empty", vec![bare(opcode::TEXT, "")], 1002),
        ("continuation without a message", vec![frame(opcode::CONTINUATION, "x")], 1002),
        ("message in a message", vec![part(opcode::TEXT, "["), frame(opcode::TEXT, "]")], 1002),
        ("close of one byte", vec![frame(opcode::CLOSE, [3])], 1002),
        ("whole text that is not UTF-8", vec![frame(opcode::TEXT, b"[\"\xff\"]")], 1007),
        (
            "letter cut by another fragment",
            vec![part(opcode::TEXT, b"\xc3"), frame(opcode::CONTINUATION, b"x")],
            1007,
        ),
        (
            "letter that does not end",
            vec![part(opcode::TEXT, b"ok"), frame(opcode::CONTINUATION, b"\xe2\x82")],
            1007,
        ),
        // Neither the message nor its frame is over; the text cannot become valid any more.
        ("fragment that is not UTF-8", vec![part(opcode::TEXT, b"\xf5")], 1007),
        ("half a frame that is not UTF-8", vec![declared(5000, opcode::TEXT, b"\xc0\x80")], 1007),
        (
            "small fragments of a message above the limit",
            vec![
                part(opcode::TEXT, &third),
                part(opcode::CONTINUATION, &third),
                frame(opcode::CONTINUATION, &third),
            ],
            1009,
        ),
    ];
    for rsv in [0b100, 0b010, 0b001, 0b111] {
        cases.push(("reserved bit", vec![Frame { rsv, ..frame(opcode::TEXT, "[]") }], 1002));
    }
    for code in [3, 4, 7, 11, 15] {
        cases.push(("reserved opcode", vec![frame(code, "x")], 1002));
    }
    for code in [opcode::PING, opcode::PONG, opcode::CLOSE] {
        cases.push(("control frame of 126 bytes", vec![frame(code, [3; 126])], 1002));
        cases.push(("control frame in fragments", vec![part(code, b"")], 1002));
    }
    for code in [0u16, 999, 1004, 1005, 1006, 1015, 1016, 2000, 2999, 5000, 65535] {
        let close = frame(opcode::CLOSE, code.to_be_bytes());
        cases.push(("close code that may not be sent", vec![close], 1002));
    }
    for bytes in [FRAME_BYTES_MAX + 1, 11_000_000, u64::from(u32::MAX)] {
        let start = declared(bytes, opcode::TEXT, vec![b' '; 1000]);
        cases.push(("frame above the limit", vec![start], 1009));
    }
    for (name, frames, code) in cases {
        let head = frames.last().map(|it| it.bytes().into_iter().take(12).collect::<Vec<_>>());
        assert_eq!(scene.code_after(&frames), code, "{name}: {head:02x?}");
    }
    // Two rules forbid these; which one is named is free.
    let huge = declared(u64::MAX, opcode::TEXT, b"x");
    assert!(matches!(scene.code_after(&[huge]), 1002 | 1009));
    let reason = frame(opcode::CLOSE, b"\x03\xe8\xff\xfe");
    assert!(matches!(scene.code_after(&[reason]), 1007 | 1002));
    scene.unharmed();
}

#[test]
fn frames_and_close_codes_at_their_limits_are_accepted() {
    let scene = Scene::new();
    for code in [1000u16, 1001, 3000, 4999] {
        let answer = scene.code_after(&[frame(opcode::CLOSE, code.to_be_bytes())]);
        assert!(answer == code || answer == 1000, "close code {code} answered by {answer}");
    }
    let mut client = Client::open(&scene.server, Vsn::V2);
    let topic = unique("test:big");
    client.join(&topic, json!({}));
    let head = format!(r#"[null,"1","{topic}","noreply",""#);
    let fill = usize::try_from(FRAME_BYTES_MAX).unwrap() - head.len() - 2;
    client.send_text(&format!(r#"{head}{}"]"#, "x".repeat(fill)));
    client.heartbeat();
    scene.unharmed();
}

/// Half a handshake and silence, not a byte at all, and one byte now and then: all end at the time
/// limit.
#[test]
fn incomplete_handshakes_end_at_the_timeout() {
    let server = Server::serve().args("--handshake-timeout 500ms").start();
    let mut probe = Client::open(&server, Vsn::V2);
    probe.heartbeat();
    let head = Head::upgrade("/socket/websocket").text();
    let mut half = Raw::connect(server.addr());
    half.send(&head.as_bytes()[..head.len() / 2]);
    let mut nothing = Raw::connect(server.addr());
    let mut drip = Raw::connect(server.addr());
    let start = Instant::now();
    for byte in head.bytes() {
        // A failed write is an end as well; the wait below sees it.
        drip.try_send([byte]);
        if !drip.is_silent_for(Duration::from_millis(50)) {
            break;
        }
    }
    for client in [&mut half, &mut nothing, &mut drip] {
        client.drain();
    }
    // The default is 10 s.
    assert!(start.elapsed() < Duration::from_secs(9));
    probe.heartbeat();

    // The limit is for the handshake alone, and not over at once.
    let mut slow = Raw::connect(server.addr());
    slow.send(&head.as_bytes()[..20]);
    assert!(slow.is_silent_for(Duration::from_millis(300)), "closed before its time");
    slow.send(&head.as_bytes()[20..]);
    assert_eq!(slow.answer().status, 101);
    assert!(slow.is_silent_for(Duration::from_millis(900)), "closed after its handshake");
}

/// Requests that no upgrade follows are answered with their status, and most end the connection.
#[test]
fn malformed_upgrades_are_refused_with_their_status() {
    let scene = Scene::new();
    let path = Vsn::V2.path();
    let upgrade = || Head::upgrade(&path);
    for (name, head) in [
        ("PUT", upgrade().line(&format!("PUT {path} HTTP/1.1"))),
        ("DELETE", upgrade().line(&format!("DELETE {path} HTTP/1.1"))),
        ("HTTP/1.0", upgrade().line(&format!("GET {path} HTTP/1.0"))),
        ("no key", upgrade().without("sec-websocket-key")),
        ("empty key", upgrade().set("sec-websocket-key", "")),
        ("short key", upgrade().set("sec-websocket-key", "c2hvcnQ=")),
        ("no base64", upgrade().set("sec-websocket-key", "not base64 at all!!!!!==")),
        ("other protocol", upgrade().set("upgrade", "h2c")),
        ("no host", upgrade().without("host")),
    ] {
        assert_eq!(Raw::connect(scene.server.addr()).request(&head).status, 400, "{name}");
    }
    let large = upgrade().set("x-filler", &"x".repeat(20_000)).text().into_bytes();
    let many = (0..200).fold(upgrade(), |head, n| head.set(&format!("x-{n}"), "y"));
    let endless = format!("GET / HTTP/1.1\r\n{}", "x-filler: yyyyyyyyyyyyyyyy\r\n".repeat(2000));
    let target = format!("GET /{}", "a".repeat(40_000));
    // Tsung sends a masked frame without a handshake after its socket was closed.
    let join = r#"{"topic":"rooms:lobby", "event":"phx_join", "payload":{"user":"1"}, "ref":"1"}"#;
    for (name, bytes, statuses) in [
        ("large header", large, [431; 2]),
        ("many headers", many.text().into_bytes(), [431; 2]),
        ("endless headers", endless.into_bytes(), [431; 2]),
        ("long target", target.into_bytes(), [431, 414]),
        ("text frame", frame(opcode::TEXT, join).bytes(), [400; 2]),
        ("binary frame", frame(opcode::BINARY, join).bytes(), [400; 2]),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), [400; 2]),
        ("no HTTP", b"hello\r\n\r\n".to_vec(), [400; 2]),
    ] {
        let mut raw = Raw::connect(scene.server.addr());
        raw.send(&bytes);
        let status = raw.answer().status;
        assert!(statuses.contains(&status), "{name}: {status}");
        raw.expect_end();
    }
    scene.unharmed();
}

/// An empty topic matches nothing; one of 10 kB is a topic like any other.
#[test]
fn empty_topic_is_unmatched_and_long_topic_works() {
    let scene = Scene::new();
    for vsn in [Vsn::V1, Vsn::V2] {
        let mut client = Client::open(&scene.server, vsn);
        client.send("1", "1", "", "phx_join", json!({}));
        client.recv().expect_unmatched("1", "");
        client.send("1", "2", "", "echo", json!({}));
        client.recv().expect_unmatched("2", "");
        let unknown = "x".repeat(10_000);
        client.send("3", "3", &unknown, "phx_join", json!({}));
        client.recv().expect_unmatched("3", &unknown);
        let known = unique(&format!("test:{}", "y".repeat(10_000)));
        let join_ref = client.join(&known, json!({}));
        client.echo(&known);
        client.push(&known, "bcast", json!({"n": 1}));
        client.recv().expect_broadcast(&known, "news", json!({"n": 1}));
        client.push(&known, "stop", json!({}));
        client.recv_except("you_left").expect_channel_close(&join_ref, &known);
    }
    scene.unharmed();
}

/// A payload nested 10,000 deep is either accepted as it is or refused with 1011.
#[test]
fn payload_nested_10_000_deep_is_accepted_or_closed_with_1011() {
    let scene = Scene::new();
    let topic = unique("test:deep");
    let arrays = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let objects = format!("{}1{}", r#"{"a":"#.repeat(10_000), "}".repeat(10_000));
    let unclosed = "[".repeat(10_000);
    for payload in [&arrays, &objects, &unclosed] {
        for (topic, event) in [("phoenix", "heartbeat"), (topic.as_str(), "echo")] {
            let mut client = Client::open(&scene.server, Vsn::V2);
            if event == "echo" {
                client.join(topic, json!({}));
            }
            client.send_text(&format!(r#"[null,"7","{topic}","{event}",{payload}]"#));
            match client.next(wire_tests::WAIT) {
                Some(Incoming::Text(text)) => {
                    assert!(payload != &unclosed, "half a payload was accepted");
                    assert!(text.contains("\"7\""), "not the reply: {text}");
                    let whole = event == "heartbeat" || text.contains(payload.as_str());
                    assert!(whole, "the payload came back changed");
                }
                Some(Incoming::Close(code)) => assert_eq!(code, 1011),
                other => panic!("awaited a reply or 1011, got {other:?}"),
            }
        }
    }
    scene.unharmed();
}

/// A client that resets the connection, in the middle of a frame or a handshake, or just goes.
#[test]
fn clients_that_disconnect_abruptly_harm_no_other() {
    let scene = Scene::new();
    let topic = unique("test:gone");
    let mut member = Client::open(&scene.server, Vsn::V2);
    member.join(&topic, json!({}));
    let text = format!(r#"["1","1","{topic}","phx_join",{{}}]"#);
    for turn in 0..20 {
        let mut raw = scene.raw();
        raw.send_frame(&frame(opcode::TEXT, &text));
        assert_eq!(raw.frame().opcode, opcode::TEXT);
        if turn % 2 == 0 {
            raw.send_frame(&declared(1_000_000, opcode::TEXT, [b' '; 5000]));
        }
        raw.reset();
        let mut raw = Raw::connect(scene.server.addr());
        raw.send(b"GET /socket/webso");
        raw.reset();
    }
    // A FIN instead of a close frame ends a connection as well.
    let mut raw = scene.raw();
    raw.finish();
    raw.drain();
    member.push(&topic, "bcast", json!({"n": 1}));
    member.recv().expect_broadcast(&topic, "news", json!({"n": 1}));
    scene.unharmed();
}
