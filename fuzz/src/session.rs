//! Any sequence of operations on a client and a server with a wire in both directions.
//!
//! The first byte chooses the serializer; each further one is an operation: the client sends a
//! message, the server ends a channel, or one of them reads the next message. Whatever crosses on
//! the wire, each push must have at most one reply, and after the last message both must agree on
//! each topic.
use std::collections::{HashMap, VecDeque};

use simurgh_proto::message::{OwnedRef, Payload, Ref};
use simurgh_proto::serializer::{Frame, Kind, Serializer, ServerMessage};
use simurgh_proto::session::client::{Client, Incoming, Topic};
use simurgh_proto::session::server::{self, MessageKind};

/// The most operations of one input that are carried out.
const OPERATIONS_MAX: usize = 2000;
const TOPICS: [&str; 3] = ["a", "room:1", "r\u{e4}um"];

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let [choice, operations @ ..] = data else { return };
    let serializer = if choice & 1 == 0 { Serializer::V2 } else { Serializer::V1 };
    let mut wire = Wire::new(serializer);
    for operation in operations.iter().take(OPERATIONS_MAX) {
        wire.operate(*operation);
    }
    while wire.server_reads(true) || wire.client_reads() {}
    for topic in TOPICS {
        let is_joined = wire.joined.contains_key(topic);
        assert_eq!(wire.client.is_joined(topic), is_joined, "{topic}");
    }
    assert!(!wire.client.awaits_heartbeat(), "all heartbeats are answered");
}

type Message = (Kind, Vec<u8>);

struct Wire {
    serializer: Serializer,
    client: Client,
    topics: [Topic; 3],
    to_server: VecDeque<Message>,
    to_client: VecDeque<Message>,
    /// The server's channels, with the join_ref and ref of each join.
    joined: HashMap<&'static str, (OwnedRef, OwnedRef)>,
    answered: Vec<u32>,
}

impl Wire {
    fn new(serializer: Serializer) -> Self {
        Self {
            serializer,
            client: Client::new(serializer),
            topics: TOPICS.map(Topic::from),
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            joined: HashMap::new(),
            answered: Vec::new(),
        }
    }

    fn operate(&mut self, operation: u8) {
        let number = usize::from(operation >> 4) % TOPICS.len();
        let topic = TOPICS[number];
        let mut out = Vec::new();
        let payload = match operation >> 6 {
            0 => Payload::EMPTY_OBJECT,
            1 => Payload::from_bytes(&b"\x01\xff"[..]),
            _ => Payload::from_json("[1]"),
        };
        let sent = match operation & 15 {
            0 | 1 => self.client.join(&mut out, &self.topics[number], &payload),
            2 => self.client.leave(&mut out, topic),
            3 => self.client.push(&mut out, topic, "event", &payload),
            4 => self.client.heartbeat(&mut out),
            5 => return self.end(topic, server::closed),
            6 => return self.end(topic, server::crashed),
            7 => return self.push(topic, &payload),
            8..=10 => {
                self.server_reads(true);
                return;
            }
            11 => {
                self.server_reads(false);
                return;
            }
            _ => {
                self.client_reads();
                return;
            }
        };
        // V1 has no binary payloads.
        if let Ok(sent) = sent {
            self.to_server.push_back((sent.kind, out));
        }
    }

    /// The server reads the next message; `joins`: whether it lets a client join.
    fn server_reads(&mut self, joins: bool) -> bool {
        let Some((kind, bytes)) = self.to_server.pop_front() else { return false };
        let message = self.serializer.decode(frame(kind, &bytes)).expect("a client's message");
        let (join_ref, msg_ref) = (&message.join_ref, &message.msg_ref);
        let Some(topic) = TOPICS.into_iter().find(|topic| *topic == message.topic) else {
            assert_eq!(server::classify(&message), MessageKind::Heartbeat);
            self.say(&server::heartbeat(msg_ref));
            return true;
        };
        let before = self.joined.get(topic).cloned();
        let current = before.as_ref().map(|(join_ref, _)| join_ref.as_ref());
        let response = Payload::EMPTY_OBJECT;
        let stale = current.as_ref().is_some_and(|current| server::is_stale(&message, current));
        match (server::classify(&message), current) {
            (MessageKind::Heartbeat, _) => panic!("a heartbeat has a topic of its own"),
            (MessageKind::Join, _) => {
                self.joined.remove(topic);
                if joins {
                    self.say(&server::reply(join_ref, msg_ref, topic, "ok", response));
                    let new = (OwnedRef::from(join_ref), OwnedRef::from(msg_ref));
                    self.joined.insert(topic, new);
                } else {
                    let crashed = server::JOIN_CRASHED;
                    self.say(&server::reply(join_ref, msg_ref, topic, "error", crashed));
                }
                if let Some((join_ref, msg_ref)) = &before {
                    self.say_end(join_ref, msg_ref, topic, server::closed);
                }
            }
            (_, Some(current)) if stale => assert_ne!(current, *join_ref),
            (MessageKind::Leave, Some(current)) => {
                self.say(&server::reply(&current, msg_ref, topic, "ok", Payload::EMPTY_OBJECT));
                self.end(topic, server::closed);
            }
            (MessageKind::Leave, None) => {
                self.say(&server::reply(join_ref, msg_ref, topic, "ok", Payload::EMPTY_OBJECT))
            }
            (MessageKind::Push, Some(current)) => {
                self.say(&server::reply(&current, msg_ref, topic, "ok", response));
            }
            (MessageKind::Push, None) => self.say(&server::unmatched(msg_ref, topic)),
        }
        true
    }

    fn client_reads(&mut self) -> bool {
        let Some((kind, bytes)) = self.to_client.pop_front() else { return false };
        let message = self.serializer.decode_server(frame(kind, &bytes));
        let message = message.expect("a server's message");
        let is_reply = matches!(message, ServerMessage::Reply { .. });
        let answered = match self.client.handle(&message) {
            Incoming::JoinOk { msg_ref, topic, .. } => {
                assert!(self.client.is_joined(topic));
                msg_ref
            }
            Incoming::JoinError { msg_ref, topic, .. } | Incoming::Left { msg_ref, topic } => {
                assert!(!self.client.is_joined(topic));
                msg_ref
            }
            Incoming::Reply { msg_ref, .. } | Incoming::HeartbeatReply { msg_ref } => msg_ref,
            Incoming::Closed { topic } | Incoming::Errored { topic, .. } => {
                assert!(!is_reply && !self.client.is_joined(topic));
                return true;
            }
            _ => {
                assert!(!is_reply, "each reply was asked for");
                return true;
            }
        };
        assert!(!self.answered.contains(&answered), "{answered} is answered twice");
        self.answered.push(answered);
        true
    }

    fn end(&mut self, topic: &'static str, how: End) {
        if let Some((join_ref, msg_ref)) = self.joined.remove(topic) {
            self.say_end(&join_ref, &msg_ref, topic, how);
        }
    }

    fn say_end(&mut self, join_ref: &OwnedRef, msg_ref: &OwnedRef, topic: &str, how: End) {
        let (join_ref, msg_ref) = (join_ref.as_ref(), msg_ref.as_ref());
        self.say(&how(&server::push_join_ref(&join_ref, &msg_ref), topic));
    }

    fn push(&mut self, topic: &str, payload: &Payload<'_>) {
        let Some((join_ref, msg_ref)) = self.joined.get(topic).cloned() else { return };
        let (join_ref, msg_ref) = (join_ref.as_ref(), msg_ref.as_ref());
        let join_ref = server::push_join_ref(&join_ref, &msg_ref);
        self.say(&server::push(&join_ref, topic, "event", payload.borrow()));
    }

    fn say(&mut self, message: &ServerMessage<'_>) {
        let mut out = Vec::new();
        if let Ok(kind) = self.serializer.server(&mut out, message) {
            self.to_client.push_back((kind, out));
        }
    }
}

type End = for<'a> fn(&'a Ref<'_>, &'a str) -> ServerMessage<'a>;

fn frame(kind: Kind, bytes: &[u8]) -> Frame<'_> {
    match kind {
        Kind::Text => Frame::Text(std::str::from_utf8(bytes).expect("text frames are UTF-8")),
        Kind::Binary => Frame::Binary(bytes),
    }
}
