//! The client of these tests against a throw-away server made of tungstenite alone: a helper that
//! cannot fail would make every other test here worthless.

use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use serde_json::{Value, json};
use tungstenite::protocol::CloseFrame;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Message, accept};
use wire_tests::{Client, Incoming, QUIET_MS};

/// Accepts one connection: replies to every V2 message with its payload, `close` closes with 1011,
/// `twice` is answered twice.
fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut ws = accept(listener.accept().unwrap().0).unwrap();
        while let Ok(message) = ws.read() {
            let Message::Text(text) = message else { continue };
            let [join_ref, msg_ref, topic, event, payload]: [Value; 5] =
                serde_json::from_str(text.as_str()).unwrap();
            if event == "close" {
                let reason = "crashed".into();
                ws.close(Some(CloseFrame { code: CloseCode::Error, reason })).unwrap();
                continue;
            }
            let join_ref = if topic == "phoenix" { Value::Null } else { join_ref };
            let payload = json!({"status": "ok", "response": payload});
            let reply = json!([join_ref, msg_ref, topic, "phx_reply", payload]).to_string();
            for _ in 0..1 + usize::from(event == "twice") {
                ws.send(Message::text(reply.clone())).unwrap();
            }
        }
    });
    addr
}

fn connect(addr: SocketAddr) -> Client {
    Client::connect_to(addr, "/socket/websocket?vsn=2.0.0", &[])
}

fn panics(act: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(act)).expect_err("should have panicked");
    panic.downcast_ref::<String>().cloned().expect("a panic with text")
}

/// A message too many ends the silence, and a wrong reply is noticed.
#[test]
fn test_client_detects_unexpected_messages_and_replies() {
    let mut client = connect(echo_server());
    client.push("test:a", "twice", json!({}));
    client.recv();
    let message = panics(|| client.expect_silence(QUIET_MS));
    assert!(message.contains("awaited silence, got Text"), "{message}");
    let message = panics(|| client.ask("t", "e", json!({"a": 1}), "ok", json!({"a": 2})));
    assert!(message.contains("wanted"), "{message}");
}

/// A close frame where a message was awaited is named, and a lost connection is not one.
#[test]
fn test_client_distinguishes_a_close_from_a_message() {
    let mut client = connect(echo_server());
    client.push("test:a", "close", json!({}));
    let message = panics(|| {
        client.recv();
    });
    assert!(message.contains("got Close(1011)"), "{message}");
    assert!(matches!(client.next(wire_tests::WAIT), Some(Incoming::Lost(_))));
}
