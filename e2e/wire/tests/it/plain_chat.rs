//! The plain chat of the Kemal seed: no protocol, every text to everyone.

use std::time::Duration;

use serde_json::Value;
use wire_tests::{Client, Incoming, QUIET_MS, Server, WAIT};

/// The next frame, which has to be this text.
#[track_caller]
fn hears(client: &mut Client, text: &str) {
    assert_eq!(client.next(WAIT), Some(Incoming::Text(text.to_owned())));
}

/// Nothing comes, and the connection still answers a ping.
#[track_caller]
fn hears_nothing(client: &mut Client) {
    assert_eq!(client.next(Duration::from_millis(QUIET_MS)), None);
    client.ping(b"?");
    assert_eq!(client.recv_pong(), b"?");
}

/// An upgrade is accepted on `/chat` and on `/`; `GET /` without one is a page.
#[test]
fn plain_chat_serves_its_page_and_upgrades_on_both_paths() {
    let server = Server::plain_chat().start();
    let page = server.get("/");
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").is_some_and(|t| t.starts_with("text/html")), "{page:?}");
    assert!(page.text().contains("<html") && page.text().contains("WebSocket"), "{}", page.text());
    for path in ["/", "/chat"] {
        let mut client = Client::connect(&server, path);
        hears_nothing(&mut client);
    }
}

/// Every text frame goes to every open socket word for word, the sender included; no reply, no
/// history.
#[test]
fn every_text_is_sent_to_every_client_unchanged() {
    let server = Server::plain_chat().start();
    let mut clients = ["/", "/chat", "/"].map(|path| Client::connect(&server, path));
    // Pongs, so that all three are members before the first message.
    clients.iter_mut().for_each(hears_nothing);
    let texts = ["{\"name\":\"Kemal\"}", "  no JSON,\n \"spaces\" kept ", "", "Sdergüç 😀"];
    for (n, text) in texts.iter().enumerate() {
        clients[n % 3].send_text(text);
        for client in &mut clients {
            hears(client, text);
        }
    }
    let mut late = Client::connect(&server, "/");
    hears_nothing(&mut late);
    clients.iter_mut().for_each(hears_nothing);
}

/// Mode echo answers only the sender.
#[test]
fn echo_mode_returns_each_text_to_its_sender() {
    let server = Server::plain_chat().args("--mode echo").start();
    let mut sender = Client::connect(&server, "/");
    let mut other = Client::connect(&server, "/chat");
    hears_nothing(&mut other);
    sender.send_text("hello");
    hears(&mut sender, "hello");
    hears_nothing(&mut other);
}

/// Mode history sends all of them the list so far, as a JSON array, on each message.
#[test]
fn history_mode_sends_the_stored_messages() {
    let server = Server::plain_chat().args("--mode history").start();
    let mut clients = ["/", "/chat"].map(|path| Client::connect(&server, path));
    clients.iter_mut().for_each(hears_nothing);
    let list = |client: &mut Client| match client.next(WAIT) {
        Some(Incoming::Text(text)) => serde_json::from_str::<Value>(&text).expect("a JSON list"),
        other => panic!("awaited a list, got {other:?}"),
    };
    let texts = ["one", "{\"two\": 2}", "thrée \"3\""];
    for n in 1..=texts.len() {
        clients[n % 2].send_text(texts[n - 1]);
        for client in &mut clients {
            assert_eq!(list(client), Value::from(&texts[..n]));
        }
    }
}

/// Mode silent takes everything and delivers nothing.
#[test]
fn silent_mode_sends_nothing() {
    let server = Server::plain_chat().args("--mode silent").start();
    let mut sender = Client::connect(&server, "/");
    let mut other = Client::connect(&server, "/chat");
    for _ in 0..100 {
        sender.send_text("hello");
    }
    hears_nothing(&mut sender);
    hears_nothing(&mut other);
}
