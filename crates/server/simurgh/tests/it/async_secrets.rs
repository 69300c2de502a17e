//! Errors and panics of an application go to the log; every byte that a client receives is checked.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{WAIT_MAX, log, start};
use serde_json::Value;
use simurgh::{
    Channel, ChannelRoute, Connect, ConnectRequest, Context, Endpoint, HandleInfo, JoinContext,
    Outcome, Payload, Reject, UserSocket, json,
};
use tokio::time::sleep;
use tungstenite::{Message, WebSocket};

/// Part of everything that no client may receive; the text after it names the place.
const SECRET: &str = "hunter2";

fn secret(place: &str) -> String {
    format!("<{SECRET} {place}>")
}

/// An error like a database's: with the connection's secrets, and a cause.
#[derive(Debug)]
struct DbError {
    text: String,
    cause: Option<Box<Self>>,
}

impl DbError {
    fn of(place: &str) -> Self {
        let cause = Self { text: secret(&format!("cause_of_{place}")), cause: None };
        Self { text: secret(place), cause: Some(Box::new(cause)) }
    }
}

impl fmt::Display for DbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for DbError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_deref().map(|it| it as _)
    }
}

async fn query(place: &str) -> Result<(), DbError> {
    sleep(Duration::from_millis(2)).await;
    Err(DbError::of(place))
}

async fn panics(place: &str) {
    sleep(Duration::from_millis(2)).await;
    panic!("{}", secret(place));
}

struct Room;

impl Channel for Room {
    async fn after_join(&mut self, ctx: &mut Context) -> Result<(), Reject> {
        if ctx.subtopic() == "after_join" {
            query("after_join").await?;
        }
        Ok(())
    }

    async fn handle_in(
        &mut self,
        ctx: &mut Context,
        event: &str,
        _: Payload<'static>,
    ) -> Result<Outcome, Reject> {
        match event {
            "fail" => query("handle_in").await?,
            // The channel chooses what the client receives, also for an error.
            "choose" => query("chosen").await.map_err(|error| {
                tracing::warn!(%error, "a query failed");
                Reject::new("try again")
            })?,
            "panic" => panics("handle_in_panic").await,
            "panic_at_once" => panic!("{}", secret("handle_in_panic_at_once")),
            "tell" => ctx.handle::<Self>().send(()),
            _ => return Err(Reject::unknown_event()),
        }
        Ok(Outcome::ok(json!({})))
    }
}

impl HandleInfo<()> for Room {
    async fn handle_info(&mut self, ctx: &mut Context, (): ()) -> Result<Outcome, Reject> {
        ctx.push("told", json!({}));
        query("handle_info").await?;
        Ok(Outcome::NoReply)
    }
}

async fn join(ctx: JoinContext) -> Result<Room, Reject> {
    match ctx.subtopic() {
        "fails" => query("join").await?,
        "panics" => panics("join_panic").await,
        _ => {}
    }
    Ok(Room)
}

async fn connect(request: ConnectRequest) -> Result<Connect, Reject> {
    match request.param("token") {
        Some("fails") => query("connect").await?,
        Some("panics") => panics("connect_panic").await,
        Some("unknown") => return Err(Reject::new("unknown user")),
        _ => {}
    }
    Ok(Connect::ok())
}

fn stage() -> Endpoint {
    log::start();
    let user_socket = UserSocket::new("/socket")
        .connect(connect)
        .channel(ChannelRoute::new("room:*", |ctx, _| join(ctx)));
    start(Endpoint::builder().socket(user_socket))
}

struct Tap {
    stream: TcpStream,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Read for Tap {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.heard.lock().unwrap().extend_from_slice(&buffer[..count]);
        Ok(count)
    }
}

impl Write for Tap {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

struct Client {
    /// `None` if it was refused.
    socket: Option<WebSocket<Tap>>,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Client {
    fn connect(endpoint: &Endpoint, token: &str) -> Self {
        let stream = TcpStream::connect(endpoint.addresses()[0]).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let tap = Tap { stream, heard: Arc::clone(&heard) };
        let address = endpoint.addresses()[0];
        let url = format!("ws://{address}/socket/websocket?vsn=2.0.0&token={token}");
        Self { socket: tungstenite::client(url, tap).ok().map(|(socket, _)| socket), heard }
    }

    fn heard(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().unwrap()).into_owned()
    }

    fn send(&mut self, event: &str, topic: &str) {
        let text = json!(["1", "1", topic, event, {}]).to_string();
        self.socket.as_mut().unwrap().send(Message::text(text)).unwrap();
    }

    fn recv(&mut self) -> Value {
        let message = self.socket.as_mut().unwrap().read().unwrap();
        serde_json::from_str(message.to_text().unwrap()).unwrap()
    }

    fn hears_of(&mut self, event: &str, topic: &str) -> (String, Value) {
        self.send(event, topic);
        let message = self.recv();
        (message[3].as_str().unwrap().to_owned(), message[4].clone())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let heard = self.heard();
        if !std::thread::panicking() {
            assert!(!heard.is_empty() && !heard.contains(SECRET), "{heard}");
        }
    }
}

fn error(reason: &str) -> (String, Value) {
    ("phx_reply".into(), json!({"status": "error", "response": {"reason": reason}}))
}

#[track_caller]
fn are_logged(places: &[&str]) {
    for place in places {
        assert!(log::text().contains(&secret(place)), "{place} is not in the log");
    }
}

#[test]
fn handler_error_is_logged_and_not_sent_to_the_client() {
    let endpoint = stage();
    let mut client = Client::connect(&endpoint, "me");
    assert_eq!(client.hears_of("phx_join", "room:after_join").1["status"], "ok");
    assert_eq!(client.hears_of("fail", "room:after_join"), error("internal error"));
    are_logged(&["handle_in", "cause_of_handle_in", "after_join"]);
    assert_eq!(client.hears_of("choose", "room:after_join"), error("try again"));
    are_logged(&["chosen"]);
    client.send("tell", "room:after_join");
    let mut both = [client.recv()[3].clone(), client.recv()[3].clone()];
    both.sort_by_key(Value::to_string);
    assert_eq!(both, ["phx_reply", "told"]);
    // It waits behind the handler that is to fail.
    assert_eq!(client.hears_of("fail", "room:after_join"), error("internal error"));
    are_logged(&["handle_info", "cause_of_handle_info"]);
}

#[test]
fn join_error_is_logged_and_not_sent_to_the_client() {
    let endpoint = stage();
    let mut client = Client::connect(&endpoint, "me");
    assert_eq!(client.hears_of("phx_join", "room:fails"), error("internal error"));
    are_logged(&["join", "cause_of_join"]);
}

#[test]
fn connect_error_is_logged_and_not_sent_to_the_client() {
    let endpoint = stage();
    let refused = |token, status: &str, body| {
        let client = Client::connect(&endpoint, token);
        assert!(client.socket.is_none());
        let heard = client.heard();
        assert!(heard.starts_with(status) && heard.ends_with(body), "{heard}");
    };
    refused("fails", "HTTP/1.1 500", "\r\n\r\ninternal error");
    are_logged(&["connect", "cause_of_connect"]);
    refused("unknown", "HTTP/1.1 403", "\r\n\r\nunknown user");
    refused("panics", "HTTP/1.1 500", "\r\n\r\n");
    are_logged(&["connect_panic"]);
}

#[test]
fn panic_is_logged_and_not_sent_to_the_client() {
    let endpoint = stage();
    let mut client = Client::connect(&endpoint, "me");
    assert_eq!(client.hears_of("phx_join", "room:panics"), error("join crashed"));
    are_logged(&["join_panic"]);
    for event in ["panic", "panic_at_once"] {
        assert_eq!(client.hears_of("phx_join", "room:1").1["status"], "ok");
        let crashed = ("phx_error".into(), json!({"reason": "channel_crash"}));
        assert_eq!(client.hears_of(event, "room:1"), crashed);
    }
    are_logged(&["handle_in_panic", "handle_in_panic_at_once"]);
}
