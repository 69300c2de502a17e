//! What a broken or hostile peer may send: each ends in the right answer for that peer alone. In
//! every test a probe on the same server still gets its heartbeat answered afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use wire_tests::{
    Client, Frame, Head, Incoming, Raw, Response, Server, Vsn, frame, opcode, unique,
};

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
            // The server may close before it has taken all of them; its close frame is there then.
            let _ = raw.try_send(&frame.bytes());
        }
        raw.expect_close()
    }

    /// The close code after this text message.
    #[track_caller]
    fn code_after_text(&self, vsn: Vsn, text: &str) -> u16 {
        let mut client = Client::open(&self.server, vsn);
        client.send_text(text);
        client.expect_close()
    }

    /// The answer to bytes sent on a new connection, which has to end behind it.
    #[track_caller]
    fn refusal(&self, bytes: &[u8]) -> Response {
        let mut raw = Raw::connect(self.server.addr());
        raw.send(bytes);
        let response = raw.response();
        raw.expect_end();
        response
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

/// A frame above the limit is closed 1009 as soon as its length is known; one at the limit passes.
#[test]
fn oversized_frame() {
    let scene = Scene::new();
    for declared in [FRAME_BYTES_MAX + 1, 11_000_000, u64::from(u32::MAX)] {
        let start = Frame { declared: Some(declared), ..frame(opcode::TEXT, vec![b' '; 1000]) };
        assert_eq!(scene.code_after(&[start]), 1009, "declared {declared} bytes");
    }
    // The highest bit of the length has to be zero; which of the two rules is named is free.
    let huge = Frame { declared: Some(u64::MAX), ..frame(opcode::TEXT, b"x") };
    assert!(matches!(scene.code_after(&[huge]), 1002 | 1009));

    let mut client = Client::open(&scene.server, Vsn::V2);
    let topic = unique("test:big");
    client.join(&topic, json!({}));
    let head = format!(r#"[null,"1","{topic}","noreply",""#);
    let fill = usize::try_from(FRAME_BYTES_MAX).unwrap() - head.len() - 2;
    client.send_text(&format!(r#"{head}{}"]"#, "x".repeat(fill)));
    client.heartbeat();
    scene.unharmed();
}

/// Fragments that are small, of a message that is not.
#[test]
fn oversized_message() {
    let scene = Scene::new();
    let third = vec![b' '; 4_000_000];
    let frames = [
        part(opcode::TEXT, &third),
        part(opcode::CONTINUATION, &third),
        frame(opcode::CONTINUATION, &third),
    ];
    assert_eq!(scene.code_after(&frames), 1009);
    scene.unharmed();
}

/// A client has to mask every frame.
#[test]
fn unmasked_client_frame() {
    let scene = Scene::new();
    let text = r#"[null,"1","phoenix","heartbeat",{}]"#;
    let bare = |opcode, payload: &str| Frame { masked: false, ..frame(opcode, payload) };
    assert_eq!(scene.code_after(&[bare(opcode::TEXT, text)]), 1002);
    assert_eq!(scene.code_after(&[bare(opcode::PING, "x")]), 1002);
    assert_eq!(scene.code_after(&[bare(opcode::TEXT, "")]), 1002);
    scene.unharmed();
}

/// Without an extension no reserved bit may be set, and no reserved opcode used.
#[test]
fn reserved_bits_and_opcodes() {
    let scene = Scene::new();
    for rsv in [0b100, 0b010, 0b001, 0b111] {
        let reserved = Frame { rsv, ..frame(opcode::TEXT, "[]") };
        assert_eq!(scene.code_after(&[reserved]), 1002, "rsv {rsv:03b}");
    }
    for code in [3, 4, 7, 11, 15] {
        assert_eq!(scene.code_after(&[frame(code, "x")]), 1002, "opcode {code}");
    }
    scene.unharmed();
}

/// UTF-8 is checked as it streams: across fragments, and before a message is whole.
#[test]
fn bad_utf8() {
    let scene = Scene::new();
    let whole = frame(opcode::TEXT, b"[\"\xff\"]");
    assert_eq!(scene.code_after(&[whole]), 1007);
    let cut_letter = [part(opcode::TEXT, b"\xc3"), frame(opcode::CONTINUATION, b"x")];
    assert_eq!(scene.code_after(&cut_letter), 1007);
    let unfinished = [part(opcode::TEXT, b"ok"), frame(opcode::CONTINUATION, b"\xe2\x82")];
    assert_eq!(scene.code_after(&unfinished), 1007);
    // The message is not over, nor is its frame; the text cannot become valid any more.
    assert_eq!(scene.code_after(&[part(opcode::TEXT, b"\xf5")]), 1007);
    let half = Frame { declared: Some(5000), ..frame(opcode::TEXT, b"\xc0\x80") };
    assert_eq!(scene.code_after(&[half]), 1007);
    // The reason of a close frame is text too.
    let reason = frame(opcode::CLOSE, b"\x03\xe8\xff\xfe");
    assert!(matches!(scene.code_after(&[reason]), 1007 | 1002));
    scene.unharmed();
}

/// Control frames carry at most 125 bytes.
#[test]
fn long_control_frame() {
    let scene = Scene::new();
    for code in [opcode::PING, opcode::PONG, opcode::CLOSE] {
        assert_eq!(scene.code_after(&[frame(code, [3; 126])]), 1002, "opcode {code}");
    }
    scene.unharmed();
}

/// Control frames may not be fragmented, and fragments have to follow each other.
#[test]
fn fragmented_control_frame_and_stray_fragments() {
    let scene = Scene::new();
    for code in [opcode::PING, opcode::PONG, opcode::CLOSE] {
        assert_eq!(scene.code_after(&[part(code, b"")]), 1002, "opcode {code}");
    }
    assert_eq!(scene.code_after(&[frame(opcode::CONTINUATION, "x")]), 1002);
    let restarted = [part(opcode::TEXT, "["), frame(opcode::TEXT, "]")];
    assert_eq!(scene.code_after(&restarted), 1002);
    scene.unharmed();
}

/// Close codes that may not be sent, and a close frame of one byte.
#[test]
fn bad_close_code() {
    let scene = Scene::new();
    for code in [0u16, 999, 1004, 1005, 1006, 1015, 1016, 2000, 2999, 5000, 65535] {
        let close = frame(opcode::CLOSE, code.to_be_bytes());
        assert_eq!(scene.code_after(&[close]), 1002, "close code {code}");
    }
    assert_eq!(scene.code_after(&[frame(opcode::CLOSE, [3])]), 1002);
    for code in [1000u16, 1001, 3000, 4999] {
        let close = frame(opcode::CLOSE, code.to_be_bytes());
        let answer = scene.code_after(&[close]);
        assert!(answer == code || answer == 1000, "close code {code} answered by {answer}");
    }
    scene.unharmed();
}

/// Half a handshake and silence, not a byte at all, and one byte now and then: all end at the time
/// limit.
#[test]
fn half_a_handshake_and_silence() {
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
        let _ = drip.try_send(&[byte]);
        if !drip.is_silent_for(Duration::from_millis(50)) {
            break;
        }
    }
    for peer in [&mut half, &mut nothing, &mut drip] {
        peer.drain();
    }
    // The default is 10 s.
    assert!(start.elapsed() < Duration::from_secs(9));
    probe.heartbeat();

    // The limit is for the handshake alone, and not over at once.
    let mut slow = Raw::connect(server.addr());
    slow.send(&head.as_bytes()[..20]);
    assert!(slow.is_silent_for(Duration::from_millis(300)), "closed before its time");
    slow.send(&head.as_bytes()[20..]);
    assert_eq!(slow.response().status, 101);
    assert!(slow.is_silent_for(Duration::from_millis(900)), "closed after its handshake");
}

/// Headers that are too large or too many: 431.
#[test]
fn giant_headers() {
    let scene = Scene::new();
    let upgrade = || Head::upgrade(&Vsn::V2.path());
    let large = upgrade().set("x-filler", &"x".repeat(20_000));
    assert_eq!(scene.refusal(large.text().as_bytes()).status, 431);
    let many = (0..200).fold(upgrade(), |head, n| head.set(&format!("x-{n}"), "y"));
    assert_eq!(scene.refusal(many.text().as_bytes()).status, 431);
    // Headers without an end.
    let endless = format!("GET / HTTP/1.1\r\n{}", "x-filler: yyyyyyyyyyyyyyyy\r\n".repeat(2000));
    assert_eq!(scene.refusal(endless.as_bytes()).status, 431);
    let target = format!("GET /{}", "a".repeat(40_000));
    assert!(matches!(scene.refusal(target.as_bytes()).status, 431 | 414));
    scene.unharmed();
}

/// Wrong method, HTTP version, WebSocket version or key: 400.
#[test]
fn wrong_method_version_or_key() {
    let scene = Scene::new();
    let path = Vsn::V2.path();
    let upgrade = || Head::upgrade(&path);
    let wrong = [
        upgrade().line(&format!("PUT {path} HTTP/1.1")),
        upgrade().line(&format!("DELETE {path} HTTP/1.1")),
        upgrade().line(&format!("GET {path} HTTP/1.0")),
        upgrade().set("sec-websocket-version", "8"),
        upgrade().set("sec-websocket-version", "x"),
        upgrade().without("sec-websocket-version"),
        upgrade().without("sec-websocket-key"),
        upgrade().set("sec-websocket-key", ""),
        upgrade().set("sec-websocket-key", "c2hvcnQ="),
        upgrade().set("sec-websocket-key", "not base64 at all!!!!!=="),
        upgrade().set("upgrade", "h2c"),
        upgrade().set("connection", "close"),
        upgrade().without("host"),
    ];
    for head in wrong {
        let mut raw = Raw::connect(scene.server.addr());
        assert_eq!(raw.request(&head).status, 400, "{}", head.text());
    }
    scene.unharmed();
}

/// A masked frame without any handshake, which Tsung sends after its socket was closed: 400 and
/// close.
#[test]
fn masked_frame_without_a_handshake() {
    let scene = Scene::new();
    let text = r#"{"topic":"rooms:lobby", "event":"phx_join", "payload":{"user":"1"}, "ref":"1"}"#;
    for code in [opcode::TEXT, opcode::BINARY] {
        assert_eq!(scene.refusal(&frame(code, text).bytes()).status, 400);
    }
    assert_eq!(scene.refusal(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").status, 400);
    assert_eq!(scene.refusal(b"hello\r\n\r\n").status, 400);
    scene.unharmed();
}

/// Text that is not JSON: 1011.
#[test]
fn not_json() {
    let scene = Scene::new();
    let broken = [
        "hello",
        "",
        " ",
        "[",
        "{\"topic\":",
        r#"[null,"1","phoenix","heartbeat",{}"#,
        r#"[null,"1","phoenix","heartbeat",{}]]"#,
        r#"[null,"1","phoenix","heartbeat",{},]"#,
        r#"[null,"1","phoenix","heartbeat",{"a":}]"#,
        r#"[null,"1","phoenix","heartbeat",01]"#,
        r#"[null,"1","phoenix","heartbeat",1e]"#,
        r#"[null,"1","phoenix","heartbeat",nil]"#,
        r#"[null,"1","phoenix","heartbeat",'x']"#,
        r#"[null,"1","phoenix","heartbeat","\x"]"#,
        r#"[null,"1","phoenix","heartbeat","\ud83"]"#,
        "[null,\"1\",\"phoenix\",\"heartbeat\",\"a\nb\"]",
    ];
    for text in broken {
        assert_eq!(scene.code_after_text(Vsn::V2, text), 1011, "V2 text {text:?}");
        assert_eq!(scene.code_after_text(Vsn::V1, text), 1011, "V1 text {text:?}");
    }
    scene.unharmed();
}

/// JSON that is not a message: 1011.
#[test]
fn json_of_the_wrong_shape() {
    let scene = Scene::new();
    for text in ["1", "null", "true", "\"text\"", "{}", "[]", "[[]]"] {
        assert_eq!(scene.code_after_text(Vsn::V2, text), 1011, "V2 text {text}");
        assert_eq!(scene.code_after_text(Vsn::V1, text), 1011, "V1 text {text}");
    }
    for (topic, event) in [("5", "\"e\""), ("null", "\"e\""), ("\"t\"", "7"), ("\"t\"", "[]")] {
        let v2 = format!(r#"["1","1",{topic},{event},{{}}]"#);
        assert_eq!(scene.code_after_text(Vsn::V2, &v2), 1011, "{v2}");
        let v1 = format!(r#"{{"topic":{topic},"event":{event},"payload":{{}},"ref":"1"}}"#);
        assert_eq!(scene.code_after_text(Vsn::V1, &v1), 1011, "{v1}");
    }
    scene.unharmed();
}

/// An unknown vsn, however long or odd: 403.
#[test]
fn unknown_vsn() {
    let scene = Scene::new();
    let long = "9".repeat(3000);
    for vsn in ["4.0.0", "-1.0.0", "2.0.0.0", "%00", "%ff%fe", "2.0.0%20", long.as_str()] {
        let head = Head::upgrade(&format!("/socket/websocket?vsn={vsn}"));
        let mut raw = Raw::connect(scene.server.addr());
        let status = raw.request(&head).status;
        // Bytes that are not UTF-8 make the whole query malformed, which may be answered with 400.
        let allowed: &[u16] = if vsn.starts_with("%f") { &[403, 400] } else { &[403] };
        assert!(allowed.contains(&status), "vsn {vsn}: {status}");
    }
    scene.unharmed();
}

/// An empty topic matches nothing; one of 10 kB is a topic like any other.
#[test]
fn empty_and_long_topics() {
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
fn payload_nested_10_000_deep() {
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

/// A peer that resets the connection, in the middle of a frame or a handshake, or just goes.
#[test]
fn peer_that_vanishes() {
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
            let half = Frame { declared: Some(1_000_000), ..frame(opcode::TEXT, [b' '; 5000]) };
            raw.send_frame(&half);
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

/// A callback that panics ends its channel and nothing else; not even the same topic of another
/// socket.
#[test]
fn callback_that_panics() {
    let scene = Scene::new();
    let topic = unique("test:panic");
    let mut good = Client::open(&scene.server, Vsn::V2);
    good.join(&topic, json!({}));
    let mut bad = Client::open(&scene.server, Vsn::V2);
    for _ in 0..30 {
        let join_ref = bad.join(&topic, json!({}));
        bad.push(&topic, "crash", json!({}));
        bad.recv_except("you_left").expect_channel_error(&join_ref, &topic);
        bad.heartbeat_except("you_left");
    }
    good.push(&topic, "bcast", json!({"n": 1}));
    good.recv().expect_broadcast(&topic, "news", json!({"n": 1}));
    bad.expect_quiet();
    scene.unharmed();
}
