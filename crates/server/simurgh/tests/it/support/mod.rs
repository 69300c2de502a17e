//! A client for the library's own tests: tungstenite over a blocking socket, V2.
#![allow(unreachable_pub)]

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use simurgh::{
    Builder, ChannelRoute, Endpoint, Join, Outcome, Payload, ShardChannel, ShardContext, UserSocket,
};
use tungstenite::{Message, WebSocket};

pub mod log;
pub mod nodes;
pub mod raw;

/// The longest wait of any test.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

pub fn start(builder: Builder) -> Endpoint {
    builder.listen("127.0.0.1:0").start().unwrap()
}

pub fn metrics_at(address: SocketAddr) -> String {
    raw::ask(address, "GET /metrics", "connection: close\r\n", "").text().to_owned()
}

pub fn metrics(endpoint: &Endpoint) -> String {
    metrics_at(endpoint.addresses()[0])
}

pub fn metric(endpoint: &Endpoint, name: &str) -> u64 {
    metrics(endpoint)
        .lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64)
        .sum()
}

/// Waits until it is so.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < WAIT_MAX, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub struct Client(pub WebSocket<TcpStream>);

impl Client {
    pub fn connect(address: SocketAddr, path: &str) -> Self {
        Self::try_connect(address, path).unwrap()
    }

    pub fn try_connect(address: SocketAddr, path: &str) -> Result<Self, String> {
        let stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_nodelay(true).unwrap();
        let url = format!("ws://{address}{path}");
        match tungstenite::client(url, stream) {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(error) => Err(error.to_string()),
        }
    }

    pub fn v2(endpoint: &Endpoint) -> Self {
        Self::connect(endpoint.addresses()[0], "/socket/websocket?vsn=2.0.0")
    }

    pub fn send(&mut self, message: Value) {
        self.0.send(Message::text(message.to_string())).unwrap();
    }

    pub fn recv(&mut self) -> Value {
        match self.0.read().unwrap() {
            Message::Text(text) => serde_json::from_str(&text).unwrap(),
            other => panic!("expected text, got {other:?}"),
        }
    }

    pub fn recv_close(&mut self) -> u16 {
        loop {
            match self.0.read().unwrap() {
                Message::Close(frame) => return frame.map_or(1005, |frame| frame.code.into()),
                Message::Text(_) | Message::Binary(_) => {}
                other => panic!("expected a close, got {other:?}"),
            }
        }
    }

    pub fn join(&mut self, topic: &str) -> Value {
        self.send(json!(["1", "1", topic, "phx_join", {}]));
        self.recv()
    }

    pub fn push(&mut self, msg_ref: &str, topic: &str, event: &str, payload: Value) {
        self.send(json!(["1", msg_ref, topic, event, payload]));
    }

    /// The reply comes only after all earlier messages are handled.
    pub fn heartbeat(&mut self) {
        self.send(json!([null, "hb", "phoenix", "heartbeat", {}]));
        let answer = self.recv();
        assert_eq!(
            answer,
            json!([null, "hb", "phoenix", "phx_reply", {"status": "ok", "response": {}}])
        );
    }
}

pub fn no_channel(_: &mut ShardContext<'_>, _: Payload<'_>) -> Join {
    Join::error(json!({}))
}

/// A server with these channels alone.
pub fn serving(route: ChannelRoute) -> Builder {
    Endpoint::builder().socket(UserSocket::new("/socket").channel(route))
}

/// A server that accepts sockets and refuses joins.
pub fn without_channels() -> Builder {
    serving(ChannelRoute::on_shard("room:*", no_channel))
}

/// Handles the events of a channel without state.
pub type HandleIn = fn(&mut ShardContext<'_>, &str, Payload<'_>) -> Outcome;

/// Channels whose events this function handles.
pub fn handled(pattern: &str, handle_in: HandleIn) -> ChannelRoute {
    ChannelRoute::on_shard(pattern, move |_, _| Join::ok(Handles(handle_in)))
}

/// A channel without state.
pub struct Handles(pub HandleIn);

impl ShardChannel for Handles {
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        (self.0)(ctx, event, payload)
    }
}

/// Sets a flag when a test ends, also by a panic.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
