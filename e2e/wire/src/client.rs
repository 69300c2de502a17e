//! A blocking Channels client of both serializers, over tungstenite.

use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tungstenite::client::{IntoClientRequest, client};
use tungstenite::http::{HeaderName, HeaderValue};
use tungstenite::protocol::frame::Frame as WsFrame;
use tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tungstenite::protocol::{CloseFrame, WebSocket};
use tungstenite::{Error, Message};

use crate::{BinaryFields, Msg, QUIET_MS, Server, Vsn, WAIT, binary_push, opcode, shortened};

/// Refs a client makes up start behind this, so that they never meet one a test writes by hand.
const FIRST_REF: u64 = 1_000;

/// How many of the last frames a failure shows.
const LOG: usize = 12;

/// One connection. A panic inside it shows the last frames that came.
#[derive(Debug)]
pub struct Client {
    ws: WebSocket<TcpStream>,
    vsn: Vsn,
    /// Value of the `sec-websocket-protocol` header of the answer.
    subprotocol: Option<String>,
    next_ref: u64,
    join_refs: HashMap<String, String>,
    log: VecDeque<String>,
}

/// A message or an end of the connection.
#[derive(Debug, Clone, PartialEq)]
pub enum Incoming {
    /// A text message.
    Text(String),
    /// A binary message.
    Binary(Vec<u8>),
    /// A ping.
    Ping(Vec<u8>),
    /// A pong.
    Pong(Vec<u8>),
    /// A close frame with its code; 1005 when it has none.
    Close(u16),
    /// The end of the connection without a close frame.
    Lost(String),
}

impl Client {
    /// Connects to the main socket in `vsn`.
    #[track_caller]
    pub fn open(server: &Server, vsn: Vsn) -> Client {
        Client::connect(server, &vsn.path())
    }

    /// Connects to a path with its query; a `vsn=2…` in it makes this a V2 client.
    #[track_caller]
    pub fn connect(server: &Server, path: &str) -> Client {
        Client::connect_with(server, path, &[])
    }

    /// Connects with further headers.
    #[track_caller]
    pub fn connect_with(server: &Server, path: &str, headers: &[(&str, &str)]) -> Client {
        Client::connect_to(server.addr(), path, headers)
    }

    /// Connects to an address.
    ///
    /// # Panics
    /// When the upgrade is refused or breaks a rule of RFC 6455.
    #[track_caller]
    pub fn connect_to(addr: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Client {
        let stream = TcpStream::connect_timeout(&addr, WAIT)
            .unwrap_or_else(|error| panic!("connect to {addr}: {error}"));
        Client::upgrade(stream, addr, path, headers)
    }

    /// Upgrades a connection that is there already.
    ///
    /// # Panics
    /// When the upgrade is refused or breaks a rule of RFC 6455.
    #[track_caller]
    pub fn upgrade(
        stream: TcpStream,
        addr: SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Client {
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream.set_read_timeout(Some(WAIT)).expect("a read time limit");
        stream.set_write_timeout(Some(WAIT)).expect("a write time limit");
        let mut request = format!("ws://{addr}{path}").into_client_request().expect("a URL");
        // Host may be given too; `insert` replaces it.
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a header name");
            request.headers_mut().insert(name, HeaderValue::from_str(value).expect("a value"));
        }
        let (ws, response) = client(request, stream)
            .unwrap_or_else(|error| panic!("upgrade of {path} was not accepted: {error}"));
        assert!(
            !response.headers().contains_key("sec-websocket-extensions"),
            "an extension nobody asked for: {response:?}"
        );
        let subprotocol = response.headers().get("sec-websocket-protocol");
        let subprotocol = subprotocol.map(|v| v.to_str().expect("ASCII").to_owned());
        let vsn = if path.contains("vsn=2") { Vsn::V2 } else { Vsn::V1 };
        Client {
            ws,
            vsn,
            subprotocol,
            next_ref: FIRST_REF,
            join_refs: HashMap::new(),
            log: VecDeque::new(),
        }
    }

    /// The serializer.
    pub fn vsn(&self) -> Vsn {
        self.vsn
    }

    /// The subprotocol the server chose.
    pub fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }

    /// The TCP connection below.
    pub fn stream(&self) -> &TcpStream {
        self.ws.get_ref()
    }

    /// Gives later pushes the join_ref of a join that was sent by hand.
    pub fn remember_join(&mut self, topic: &str, join_ref: &str) {
        self.join_refs.insert(topic.to_owned(), join_ref.to_owned());
    }

    /// A ref not used before on this connection.
    pub fn fresh_ref(&mut self) -> String {
        self.next_ref += 1;
        self.next_ref.to_string()
    }

    /// Sends a text frame.
    #[track_caller]
    pub fn send_text(&mut self, text: &str) {
        self.put(Message::text(text));
    }

    /// Sends a binary frame.
    #[track_caller]
    pub fn send_binary(&mut self, data: &[u8]) {
        self.put(Message::binary(data.to_vec()));
    }

    /// Sends JSON in a text frame.
    #[track_caller]
    pub fn send_json(&mut self, value: &Value) {
        self.send_text(&value.to_string());
    }

    /// Sends one frame of a fragmented message.
    #[track_caller]
    pub fn send_fragment(&mut self, code: u8, fin: bool, payload: &[u8]) {
        let code = match code {
            opcode::CONTINUATION => Data::Continue,
            opcode::TEXT => Data::Text,
            opcode::BINARY => Data::Binary,
            other => panic!("opcode {other} cannot be fragmented; see Raw"),
        };
        self.put(Message::Frame(WsFrame::message(payload.to_vec(), OpCode::Data(code), fin)));
    }

    /// Sends a ping.
    #[track_caller]
    pub fn ping(&mut self, payload: &[u8]) {
        self.put(Message::Ping(payload.to_vec().into()));
    }

    /// Sends a message in this client's serializer. A null join_ref is left out in V1.
    #[track_caller]
    pub fn send(
        &mut self,
        join_ref: impl Into<Value>,
        msg_ref: impl Into<Value>,
        topic: &str,
        event: &str,
        payload: Value,
    ) {
        let (join_ref, msg_ref) = (join_ref.into(), msg_ref.into());
        let message = match self.vsn {
            Vsn::V2 => json!([join_ref, msg_ref, topic, event, payload]),
            Vsn::V1 => {
                let mut object =
                    json!({"topic": topic, "event": event, "payload": payload, "ref": msg_ref});
                if !join_ref.is_null() {
                    object["join_ref"] = join_ref;
                }
                object
            }
        };
        self.send_json(&message);
    }

    /// Joins and asserts the reply ok, whatever its response; the join_ref.
    #[track_caller]
    pub fn join(&mut self, topic: &str, payload: Value) -> String {
        let join_ref = self.fresh_ref();
        self.join_refs.insert(topic.to_owned(), join_ref.clone());
        self.send(&*join_ref, &*join_ref, topic, "phx_join", payload);
        let reply = self.recv();
        let replied = reply.replied();
        let response = replied.response.clone();
        reply.expect_reply(&*join_ref, &*join_ref, topic, "ok", response);
        join_ref
    }

    /// [`Client::join`] on a connection where other messages may come before the reply; they are
    /// lost.
    #[track_caller]
    pub fn join_among(&mut self, topic: &str, payload: Value) -> String {
        let join_ref = self.fresh_ref();
        self.join_refs.insert(topic.to_owned(), join_ref.clone());
        self.send(&*join_ref, &*join_ref, topic, "phx_join", payload);
        loop {
            let message = self.recv();
            if message.msg_ref == json!(join_ref) {
                assert_eq!(message.replied().status, "ok", "{}", shortened(&message.raw));
                return join_ref;
            }
        }
    }

    /// Sends an event to a topic joined with [`Client::join`]; the ref.
    #[track_caller]
    pub fn push(&mut self, topic: &str, event: &str, payload: Value) -> String {
        let msg_ref = self.fresh_ref();
        let join_ref = self.join_refs.get(topic).cloned();
        self.send(join_ref, &*msg_ref, topic, event, payload);
        msg_ref
    }

    /// Sends a V2 binary push to a topic joined with [`Client::join`]; the ref.
    #[track_caller]
    pub fn push_binary(&mut self, topic: &str, event: &str, data: &[u8]) -> String {
        let msg_ref = self.fresh_ref();
        let join_ref = self.join_refs.get(topic).cloned().unwrap_or_default();
        let fields = BinaryFields { join_ref: &join_ref, msg_ref: &msg_ref, topic, event };
        self.send_binary(&binary_push(fields, data));
        msg_ref
    }

    /// Sends an event and asserts that the very next message is its reply, with these contents.
    #[track_caller]
    pub fn ask(&mut self, topic: &str, event: &str, payload: Value, status: &str, response: Value) {
        let msg_ref = self.push(topic, event, payload);
        let join_ref = self.join_refs.get(topic).cloned();
        self.recv().expect_reply(join_ref, msg_ref, topic, status, response);
    }

    /// Asserts that `echo` on a joined topic is answered at once.
    #[track_caller]
    pub fn echo(&mut self, topic: &str) {
        let payload = json!({"n": self.next_ref});
        self.ask(topic, "echo", payload.clone(), "ok", payload);
    }

    /// Sends a heartbeat and asserts that the very next message answers it.
    #[track_caller]
    pub fn heartbeat(&mut self) {
        let msg_ref = self.fresh_ref();
        self.send((), &*msg_ref, "phoenix", "heartbeat", json!({}));
        self.recv().expect_reply((), msg_ref, "phoenix", "ok", json!({}));
    }

    /// [`Client::heartbeat`], skipping this event before the answer.
    #[track_caller]
    pub fn heartbeat_except(&mut self, event: &str) {
        let msg_ref = self.fresh_ref();
        self.send((), &*msg_ref, "phoenix", "heartbeat", json!({}));
        self.recv_except(event).expect_reply((), msg_ref, "phoenix", "ok", json!({}));
    }

    /// The next text message.
    ///
    /// # Panics
    /// When none comes within [`WAIT`], or something else comes.
    #[track_caller]
    pub fn recv(&mut self) -> Msg {
        match self.next(WAIT) {
            Some(Incoming::Text(text)) => Msg::parse(self.vsn, &text),
            other => self.surprised("a text message", other),
        }
    }

    /// The next text message that is not this event. Used for the farewell push of a channel where
    /// its place among the other messages is free.
    #[track_caller]
    pub fn recv_except(&mut self, event: &str) -> Msg {
        loop {
            let message = self.recv();
            if message.event != event {
                return message;
            }
        }
    }

    /// The next `count` text messages.
    #[track_caller]
    pub fn recv_many(&mut self, count: usize) -> Vec<Msg> {
        (0..count).map(|_| self.recv()).collect()
    }

    /// The next message, which has to be binary.
    #[track_caller]
    pub fn recv_binary(&mut self) -> Vec<u8> {
        match self.next(WAIT) {
            Some(Incoming::Binary(data)) => data,
            other => self.surprised("a binary message", other),
        }
    }

    /// The next frame, which has to be a pong.
    #[track_caller]
    pub fn recv_pong(&mut self) -> Vec<u8> {
        match self.next(WAIT) {
            Some(Incoming::Pong(data)) => data,
            other => self.surprised("a pong", other),
        }
    }

    /// Asserts that nothing comes for `ms` milliseconds, nor before the answer to a heartbeat sent
    /// then.
    #[track_caller]
    pub fn expect_silence(&mut self, ms: u64) {
        if let Some(incoming) = self.next(Duration::from_millis(ms)) {
            self.surprised::<()>("silence", Some(incoming));
        }
        self.heartbeat();
    }

    /// [`Client::expect_silence`] for the usual time.
    #[track_caller]
    pub fn expect_quiet(&mut self) {
        self.expect_silence(QUIET_MS);
    }

    /// Asserts that the next frame is a close and the connection ends behind it; the code.
    #[track_caller]
    pub fn expect_close(&mut self) -> u16 {
        let code = match self.next(WAIT) {
            Some(Incoming::Close(code)) => code,
            other => self.surprised("a close frame", other),
        };
        // Reading on sends our answer and then waits for the server to end the connection.
        match self.next(WAIT) {
            Some(Incoming::Lost(_)) => code,
            other => self.surprised("the end of the connection after the close frame", other),
        }
    }

    /// Skips messages until a close frame; the code.
    #[track_caller]
    pub fn skip_to_close(&mut self) -> u16 {
        loop {
            match self.next(WAIT) {
                Some(Incoming::Close(code)) => return code,
                Some(Incoming::Text(_) | Incoming::Binary(_)) => {}
                other => self.surprised("a close frame", other),
            }
        }
    }

    /// Starts the closing handshake.
    #[track_caller]
    pub fn close(&mut self, code: u16, reason: &'static str) {
        let close = CloseFrame { code: CloseCode::from(code), reason: reason.into() };
        self.ws.close(Some(close)).unwrap_or_else(|error| panic!("send a close frame: {error}"));
    }

    /// Whatever comes next, or nothing if nothing does within `limit`.
    pub fn next(&mut self, limit: Duration) -> Option<Incoming> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = left.max(Duration::from_millis(1));
            self.ws.get_ref().set_read_timeout(Some(left)).expect("a read time limit");
            let incoming = match self.ws.read() {
                Ok(Message::Text(text)) => Incoming::Text(text.as_str().to_owned()),
                Ok(Message::Binary(data)) => Incoming::Binary(data.to_vec()),
                Ok(Message::Ping(data)) => Incoming::Ping(data.to_vec()),
                Ok(Message::Pong(data)) => Incoming::Pong(data.to_vec()),
                Ok(Message::Close(close)) => {
                    Incoming::Close(close.map_or(1005, |frame| u16::from(frame.code)))
                }
                Ok(Message::Frame(frame)) => panic!("tungstenite gave a raw frame: {frame:?}"),
                Err(Error::Io(error)) if is_timeout(error.kind()) => {
                    if Instant::now() >= deadline {
                        return None;
                    }
                    continue;
                }
                Err(error) => Incoming::Lost(error.to_string()),
            };
            if self.log.len() == LOG {
                self.log.pop_front();
            }
            self.log.push_back(shortened(&format!("{incoming:?}")));
            return Some(incoming);
        }
    }

    #[track_caller]
    fn put(&mut self, message: Message) {
        if let Err(error) = self.ws.send(message) {
            panic!("{} client cannot send: {error}\n{}", self.vsn, self.history());
        }
    }

    #[track_caller]
    fn surprised<T>(&self, awaited: &str, got: Option<Incoming>) -> T {
        let got = got.map_or("nothing in time".to_owned(), |g| shortened(&format!("{g:?}")));
        panic!("{} client awaited {awaited}, got {got}\n{}", self.vsn, self.history())
    }

    fn history(&self) -> String {
        let lines: Vec<_> = self.log.iter().map(|line| format!("  {line}")).collect();
        format!("the last frames that came:\n{}", lines.join("\n"))
    }
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
