//! A long-poll client over bytes: each request on a connection of its own, or on one that is kept.

use std::collections::VecDeque;
use std::net::SocketAddr;

use serde_json::Value;

use crate::{Head, Msg, Raw, Response, Vsn};

/// The answer to a long poll.
#[derive(Debug, Clone, PartialEq)]
pub struct Polled {
    /// The status in the body; that of HTTP is 200 where there is one.
    pub status: u16,
    /// The token that came with it.
    pub token: Option<String>,
    /// The frames.
    pub messages: Vec<String>,
}

impl Polled {
    /// Reads an answer.
    ///
    /// # Panics
    /// When it is not what PROTOCOL §9 says of answers.
    #[track_caller]
    pub fn of(response: &Response) -> Polled {
        assert_eq!(response.status, 200, "{response:?}");
        for (name, value) in [
            ("content-type", "application/json; charset=utf-8"),
            ("access-control-allow-origin", "*"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(response.header(name), Some(value), "{name} of {response:?}");
        }
        let body: Value = serde_json::from_slice(&response.body).expect("a body of JSON");
        let status = body["status"].as_u64().expect("a status") as u16;
        let token = body.get("token").map(|it| it.as_str().expect("a token").to_owned());
        let texts = |list: &Value| {
            let list = list.as_array().expect("a list of messages");
            list.iter().map(|it| it.as_str().expect("a message is a text").to_owned()).collect()
        };
        let messages = body.get("messages").map(texts);
        assert_eq!(token.is_some(), messages.is_some(), "{body}");
        Polled { status, token, messages: messages.unwrap_or_default() }
    }
}

/// A long-poll session.
#[derive(Debug)]
pub struct Poller {
    addr: SocketAddr,
    /// Path and query without the token.
    target: String,
    vsn: Vsn,
    /// The session's token.
    pub token: String,
    unread: VecDeque<Msg>,
    /// The connection that requests go over, one after the other.
    connection: Raw,
}

impl Poller {
    /// Begins a session at a user socket such as `/socket`.
    ///
    /// # Panics
    /// When it is refused.
    #[track_caller]
    pub fn open(addr: SocketAddr, user_socket: &str, query: &str, vsn: Vsn) -> Poller {
        let target = format!("{user_socket}/longpoll?vsn={}{query}", vsn.param());
        let mut connection = Raw::connect(addr);
        let answer = Polled::of(&connection.request(&Head::new("GET", &target)));
        assert_eq!((answer.status, answer.messages.len()), (410, 0), "{answer:?}");
        let token = answer.token.expect("a token");
        Poller { addr, target, vsn, token, unread: VecDeque::new(), connection }
    }

    /// Path and query with the token.
    pub fn target(&self) -> String {
        format!("{}&token={}", self.target, self.token)
    }

    /// Polls once; what came stays to be received.
    #[track_caller]
    pub fn poll(&mut self) -> Polled {
        let head = Head::new("GET", &self.target());
        let answer = Polled::of(&self.connection.request(&head));
        let messages = answer.messages.iter().map(|text| Msg::parse(self.vsn, text));
        self.unread.extend(messages);
        answer
    }

    /// Sends a poll on a connection of its own, and does not wait for its answer.
    #[track_caller]
    pub fn begin_poll(&self) -> Raw {
        let mut raw = Raw::connect(self.addr);
        raw.send(Head::new("GET", &self.target()).text().as_bytes());
        raw
    }

    /// Polls until there is a message; gives the next.
    #[track_caller]
    pub fn recv(&mut self) -> Msg {
        for _ in 0..50 {
            if let Some(message) = self.unread.pop_front() {
                return message;
            }
            let answer = self.poll();
            assert!(matches!(answer.status, 200 | 204), "{answer:?}");
        }
        panic!("awaited a message in vain");
    }

    /// Whether everything that came was received.
    pub fn is_done(&self) -> bool {
        self.unread.is_empty()
    }

    /// Posts a body and gives the answer as it came.
    #[track_caller]
    pub fn post_raw(&self, content_type: &str, body: impl AsRef<[u8]>) -> Response {
        post(self.addr, &self.target(), content_type, body.as_ref())
    }

    /// Posts lines of ndjson; the status.
    #[track_caller]
    pub fn post_lines(&self, lines: &[String]) -> u16 {
        Polled::of(&self.post_raw("application/x-ndjson", lines.join("\n"))).status
    }

    /// Posts one frame; the status.
    #[track_caller]
    pub fn post(&self, frame: &str) -> u16 {
        Polled::of(&self.post_raw("application/json", frame)).status
    }

    /// A message as this session's serializer has it.
    pub fn frame(
        &self,
        join_ref: &str,
        msg_ref: &str,
        topic: &str,
        event: &str,
        payload: Value,
    ) -> String {
        let frame = match self.vsn {
            Vsn::V1 => serde_json::json!({
                "join_ref": join_ref, "ref": msg_ref,
                "topic": topic, "event": event, "payload": payload,
            }),
            Vsn::V2 => serde_json::json!([join_ref, msg_ref, topic, event, payload]),
        };
        frame.to_string()
    }

    /// Joins a topic with `1` as both refs, and waits for the reply.
    #[track_caller]
    pub fn join(&mut self, topic: &str, payload: Value) {
        let join = self.frame("1", "1", topic, "phx_join", payload);
        assert_eq!(self.post(&join), 200);
        self.recv().expect_reply("1", "1", topic, "ok", serde_json::json!({}));
    }
}

/// Posts a body on a connection of its own.
#[track_caller]
pub fn post(addr: SocketAddr, target: &str, content_type: &str, body: &[u8]) -> Response {
    let head = Head::new("POST", target)
        .set("content-type", content_type)
        .set("content-length", &body.len().to_string());
    let mut raw = Raw::connect(addr);
    raw.send(head.text().as_bytes());
    // A refusal may come before the whole body is sent.
    raw.try_send(body);
    raw.answer()
}
