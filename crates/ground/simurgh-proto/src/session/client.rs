//! The client's half of a socket: a virtual client, as the load generator and the driver use it.
//!
//! Commands ([`Client::join`], [`push`](Client::push), [`leave`](Client::leave),
//! [`heartbeat`](Client::heartbeat)) append one message each and return its ref; [`Client::handle`]
//! interprets a message of the server. As in phoenix.js, refs are strings that count up from 1, and
//! a join's join_ref is its own ref.
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};
use core::slice;

use crate::message::{Message, Payload, Ref, events};
use crate::serializer::{EncodeError, Kind, Serializer, ServerMessage};

/// One virtual client on one socket. After a reconnect a new one replaces it, see [`Client::anew`].
#[derive(Clone, Debug)]
pub struct Client {
    memberships: Memberships,
    last_ref: u32,
    /// The ref of the heartbeat that waits for its answer, 0 if none does; and in the highest bit,
    /// which no ref uses, whether the serializer is V2.
    heartbeat: u32,
}

/// The bit of [`Client::heartbeat`] that is not part of the ref.
const IS_V2: u32 = 1 << 31;

/// A topic whose text any number of clients share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Topic(Arc<Box<str>>);

impl From<&str> for Topic {
    fn from(text: &str) -> Self {
        Self(Arc::new(text.into()))
    }
}

impl Deref for Topic {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Client {
    /// A client that has not joined or sent anything.
    pub const fn new(serializer: Serializer) -> Self {
        let heartbeat = match serializer {
            Serializer::V1 => 0,
            Serializer::V2 => IS_V2,
        };
        Client { memberships: Memberships::NONE, last_ref: 0, heartbeat }
    }

    /// The client for a new socket: it has joined nothing, and its refs continue, as in phoenix.js,
    /// so that no join has the join_ref of an earlier one.
    #[must_use]
    pub const fn anew(&self) -> Self {
        Client {
            memberships: Memberships::NONE,
            last_ref: self.last_ref,
            heartbeat: self.heartbeat & IS_V2,
        }
    }

    /// The serializer of its socket.
    pub const fn serializer(&self) -> Serializer {
        if self.heartbeat & IS_V2 == 0 { Serializer::V1 } else { Serializer::V2 }
    }

    /// Whether `topic` is joined and the server has confirmed it.
    pub fn is_joined(&self, topic: &str) -> bool {
        self.membership(topic).is_some_and(|membership| membership.state() == State::Joined)
    }

    /// Whether `topic` is joined or being joined, and not being left.
    pub fn holds(&self, topic: &str) -> bool {
        let left = |state| matches!(state, State::Leaving { .. });
        self.membership(topic).is_some_and(|membership| !left(membership.state()))
    }

    /// The topic whose join or leave waits for the reply with this ref.
    pub fn topic_of(&self, msg_ref: &Ref<'_>) -> Option<&Topic> {
        let msg_ref = number(msg_ref)?;
        let asks = |membership: &&Membership| membership.pending() == Some(msg_ref);
        self.memberships.iter().find(asks).map(|membership| &membership.topic)
    }

    /// Whether a heartbeat waits for its answer: if a second one is due now, the server is gone.
    pub fn awaits_heartbeat(&self) -> bool {
        self.heartbeat_ref() != 0
    }

    /// Asks to join `topic`. If it is joined already, this join replaces that one, on the server as
    /// well: later messages of the old one are [`Incoming::Unrelated`].
    ///
    /// # Errors
    /// If a binary payload does not fit; nothing is written then, and nothing changes.
    pub fn join(
        &mut self,
        out: &mut Vec<u8>,
        topic: &Topic,
        payload: &Payload<'_>,
    ) -> Result<Sent, EncodeError> {
        let join_ref = self.next_ref();
        let sent = self.send(out, Some(join_ref), topic, events::JOIN, payload)?;
        let joining = Membership { topic: topic.clone(), join_ref, state: JOINING };
        match self.memberships.iter_mut().find(|membership| membership.topic == *topic) {
            Some(membership) => *membership = joining,
            None => self.memberships.push(joining),
        }
        Ok(sent)
    }

    /// Sends an event to `topic`, with its join_ref if it is joined or about to be, else with null.
    ///
    /// # Errors
    /// If a binary payload does not fit; nothing is written then.
    pub fn push(
        &mut self,
        out: &mut Vec<u8>,
        topic: &str,
        event: &str,
        payload: &Payload<'_>,
    ) -> Result<Sent, EncodeError> {
        let join_ref = self.membership(topic).map(|membership| membership.join_ref);
        self.send(out, join_ref, topic, event, payload)
    }

    /// Leaves `topic`, which may be unjoined. Messages of the topic still count until the answer.
    ///
    /// # Errors
    /// Currently none; the signature is that of the other commands.
    pub fn leave(&mut self, out: &mut Vec<u8>, topic: &str) -> Result<Sent, EncodeError> {
        let sent = self.push(out, topic, events::LEAVE, &Payload::EMPTY_OBJECT)?;
        if let Some(at) = self.position(topic)
            && let Some(membership) = self.memberships.get_mut(at)
        {
            membership.state = sent.msg_ref;
        }
        Ok(sent)
    }

    /// Sends a heartbeat.
    ///
    /// # Errors
    /// Currently none; the signature is that of the other commands.
    pub fn heartbeat(&mut self, out: &mut Vec<u8>) -> Result<Sent, EncodeError> {
        let (topic, payload) = (events::PHOENIX_TOPIC, &Payload::EMPTY_OBJECT);
        let sent = self.send(out, None, topic, events::HEARTBEAT, payload)?;
        self.set_heartbeat_ref(sent.msg_ref);
        Ok(sent)
    }

    /// Returns what a message of the server means to this client, and applies it.
    pub fn handle<'m>(&mut self, message: &'m ServerMessage<'_>) -> Incoming<'m> {
        match message {
            ServerMessage::Reply { msg_ref, topic, status, response, .. } => {
                self.handle_reply(msg_ref, topic, status, response)
            }
            ServerMessage::Event(message) => self.handle_event(message),
        }
    }

    /// A reply is matched by its ref alone, as in phoenix.js (PROTOCOL §8). In other protocols it
    /// may have none, and answers what its topic waits for.
    fn handle_reply<'m>(
        &mut self,
        msg_ref: &Ref<'_>,
        topic: &'m str,
        status: &'m str,
        response: &'m Payload<'_>,
    ) -> Incoming<'m> {
        let msg_ref = if msg_ref.is_null() { self.pending(topic) } else { number(msg_ref) };
        let Some(msg_ref) = msg_ref.filter(|n| (1..=self.last_ref).contains(n)) else {
            return Incoming::Unrelated;
        };
        if msg_ref == self.heartbeat_ref() {
            self.set_heartbeat_ref(0);
            return Incoming::HeartbeatReply { msg_ref };
        }
        let asked = |membership: &Membership| membership.pending() == Some(msg_ref);
        let Some(at) = self.memberships.iter().position(asked) else {
            return Incoming::Reply { msg_ref, topic, status, response };
        };
        match self.memberships.get_mut(at) {
            Some(membership) if membership.state == JOINING && status == "ok" => {
                membership.state = JOINED;
                Incoming::JoinOk { msg_ref, topic, response }
            }
            Some(membership) if membership.state == JOINING => {
                self.memberships.remove(at);
                Incoming::JoinError { msg_ref, topic, status, response }
            }
            _ => {
                self.memberships.remove(at);
                Incoming::Left { msg_ref, topic }
            }
        }
    }

    fn handle_event<'m>(&mut self, message: &'m Message<'_>) -> Incoming<'m> {
        let Message { join_ref, msg_ref, topic, event, payload } = message;
        let ends = matches!(&**event, events::CLOSE | events::ERROR);
        // The end of a channel has its join_ref twice, of which V1 sends the second only.
        let named_ref = if ends && join_ref.is_null() { msg_ref } else { join_ref };
        // A binary frame has an empty string for null.
        let named = !matches!(named_ref.raw(), "null" | "\"\"");
        let Some(at) = self.position(topic) else { return Incoming::Unrelated };
        let current = self.memberships.get(at).map(|membership| membership.join_ref);
        if named && number(named_ref) != current {
            return Incoming::Unrelated;
        }
        match &**event {
            events::CLOSE => {
                self.memberships.remove(at);
                Incoming::Closed { topic }
            }
            events::ERROR => {
                self.memberships.remove(at);
                Incoming::Errored { topic, payload }
            }
            _ if named => Incoming::Push { topic, event, payload },
            _ => Incoming::Broadcast { topic, event, payload },
        }
    }

    fn send(
        &mut self,
        out: &mut Vec<u8>,
        join_ref: Option<u32>,
        topic: &str,
        event: &str,
        payload: &Payload<'_>,
    ) -> Result<Sent, EncodeError> {
        let msg_ref = self.next_ref();
        let (join_text, msg_text) =
            (RefBuffer::new(join_ref.unwrap_or(0)), RefBuffer::new(msg_ref));
        let message = Message {
            join_ref: if join_ref.is_some() { join_text.as_ref() } else { Ref::Null },
            msg_ref: msg_text.as_ref(),
            topic: Cow::Borrowed(topic),
            event: Cow::Borrowed(event),
            payload: payload.borrow(),
        };
        let kind = self.serializer().message(out, &message)?;
        self.last_ref = msg_ref;
        Ok(Sent { msg_ref, kind })
    }

    /// The ref of the next message. After two billion they begin again; 0 is never used.
    fn next_ref(&self) -> u32 {
        if self.last_ref >= IS_V2 - 1 { 1 } else { self.last_ref + 1 }
    }

    const fn heartbeat_ref(&self) -> u32 {
        self.heartbeat & !IS_V2
    }

    /// The ref of the join or leave of `topic`, or of the heartbeat, that waits for its answer.
    fn pending(&self, topic: &str) -> Option<u32> {
        if topic == events::PHOENIX_TOPIC {
            return Some(self.heartbeat_ref());
        }
        self.membership(topic)?.pending()
    }

    fn set_heartbeat_ref(&mut self, msg_ref: u32) {
        self.heartbeat = (self.heartbeat & IS_V2) | msg_ref;
    }

    fn membership(&self, topic: &str) -> Option<&Membership> {
        self.memberships.iter().find(|membership| &*membership.topic == topic)
    }

    fn position(&self, topic: &str) -> Option<usize> {
        self.memberships.iter().position(|membership| &*membership.topic == topic)
    }
}

/// A message that was written; the caller sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its ref, which its answer has too.
    pub msg_ref: u32,
    /// The kind of its frame.
    pub kind: Kind,
}

/// The meaning of a server's message for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming<'m> {
    /// The join of `topic` succeeded.
    JoinOk {
        /// The join's ref.
        msg_ref: u32,
        /// The topic.
        topic: &'m str,
        /// The application's answer.
        response: &'m Payload<'m>,
    },
    /// The join of `topic` was refused; it may be tried again.
    JoinError {
        /// The join's ref.
        msg_ref: u32,
        /// The topic.
        topic: &'m str,
        /// `error`, or any word except `ok`.
        status: &'m str,
        /// The application's answer.
        response: &'m Payload<'m>,
    },
    /// The leave was answered. The `phx_close` that follows is [`Incoming::Unrelated`] by then; if
    /// the channel had ended before, this would be an [`Incoming::Reply`].
    Left {
        /// The leave's ref.
        msg_ref: u32,
        /// The topic.
        topic: &'m str,
    },
    /// The answer to a push.
    Reply {
        /// The push's ref.
        msg_ref: u32,
        /// The topic.
        topic: &'m str,
        /// `ok`, `error`, or any other word.
        status: &'m str,
        /// The application's answer.
        response: &'m Payload<'m>,
    },
    /// An event with the channel's join_ref.
    Push {
        /// The topic.
        topic: &'m str,
        /// The event.
        event: &'m str,
        /// The payload.
        payload: &'m Payload<'m>,
    },
    /// An event without join_ref: a broadcast, or in V1 a push, which looks the same there.
    Broadcast {
        /// The topic.
        topic: &'m str,
        /// The event.
        event: &'m str,
        /// The payload.
        payload: &'m Payload<'m>,
    },
    /// The channel ended as intended; a client does not rejoin.
    Closed {
        /// The topic.
        topic: &'m str,
    },
    /// The channel crashed; a client rejoins after a while.
    Errored {
        /// The topic.
        topic: &'m str,
        /// The reason, in the server's words.
        payload: &'m Payload<'m>,
    },
    /// The server is alive.
    HeartbeatReply {
        /// The heartbeat's ref.
        msg_ref: u32,
    },
    /// Not for this client in its present state: for a join that was replaced, a topic it left, or
    /// a ref it never used. phoenix.js drops these as well.
    Unrelated,
}

#[derive(Clone, Debug)]
struct Membership {
    topic: Topic,
    join_ref: u32,
    /// [`JOINING`], [`JOINED`], or the ref of the leave that waits for its answer.
    state: u32,
}

const JOINING: u32 = 0;
const JOINED: u32 = u32::MAX;

impl Membership {
    /// The ref of its join or leave that waits for the reply.
    fn pending(&self) -> Option<u32> {
        match self.state() {
            State::Joining => Some(self.join_ref),
            State::Leaving { leave_ref } => Some(leave_ref),
            State::Joined => None,
        }
    }

    fn state(&self) -> State {
        match self.state {
            JOINING => State::Joining,
            JOINED => State::Joined,
            leave_ref => State::Leaving { leave_ref },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Joining,
    Joined,
    Leaving { leave_ref: u32 },
}

/// The topics of a client: a single one, the usual case, needs no heap.
#[derive(Clone, Debug)]
enum Memberships {
    One(Membership),
    // A thin pointer, and `None` has no other form: so the whole has two words.
    #[allow(clippy::box_collection, reason = "a vector would make every client larger")]
    Many(Option<Box<Vec<Membership>>>),
}

impl Memberships {
    const NONE: Self = Self::Many(None);

    fn push(&mut self, membership: Membership) {
        *self = match core::mem::replace(self, Self::NONE) {
            Self::Many(None) => Self::One(membership),
            Self::One(first) => Self::Many(Some(Box::new(alloc::vec![first, membership]))),
            Self::Many(Some(mut many)) => {
                many.push(membership);
                Self::Many(Some(many))
            }
        };
    }

    /// Removes one; the order of the others does not matter.
    fn remove(&mut self, at: usize) {
        match self {
            Self::Many(Some(many)) if at < many.len() => {
                many.swap_remove(at);
            }
            Self::One(_) if at == 0 => *self = Self::NONE,
            _ => {}
        }
    }
}

impl Deref for Memberships {
    type Target = [Membership];

    fn deref(&self) -> &[Membership] {
        match self {
            Self::One(one) => slice::from_ref(one),
            Self::Many(many) => many.as_deref().map_or(&[], Vec::as_slice),
        }
    }
}

impl DerefMut for Memberships {
    fn deref_mut(&mut self) -> &mut [Membership] {
        match self {
            Self::One(one) => slice::from_mut(one),
            Self::Many(many) => many.as_deref_mut().map_or(&mut [], Vec::as_mut_slice),
        }
    }
}

/// The JSON text of a ref of this client, made without heap.
struct RefBuffer {
    /// Quotes and the longest number, filled from the back.
    bytes: [u8; DIGITS_MAX + 2],
    len: usize,
}

impl RefBuffer {
    fn new(mut number: u32) -> Self {
        // Two quotes and a digit at least; bytes without a digit are quotes.
        let mut buffer = RefBuffer { bytes: [b'"'; DIGITS_MAX + 2], len: 2 };
        for place in buffer.bytes.iter_mut().rev().skip(1).take(DIGITS_MAX) {
            // A digit is below 10, so nothing is cut off.
            *place = b'0' + (number % 10) as u8;
            number /= 10;
            buffer.len += 1;
            if number == 0 {
                break;
            }
        }
        buffer
    }

    fn as_ref(&self) -> Ref<'_> {
        let start = self.bytes.len() - self.len;
        let text = self.bytes.get(start..).and_then(|bytes| str::from_utf8(bytes).ok());
        text.map_or(Ref::Null, |text| Ref::Json(Cow::Borrowed(text)))
    }
}

/// The number of a ref of this client, as a string or (some servers) as a number.
fn number(msg_ref: &Ref<'_>) -> Option<u32> {
    msg_ref.field().parse().ok()
}

const DIGITS_MAX: usize = 10;

/// A load generator has one of these for each of its users, besides the memberships.
const _: () = assert!(size_of::<Client>() <= 24);

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};

    use super::*;
    use crate::serializer::Frame;

    const EMPTY: &Payload<'_> = &Payload::EMPTY_OBJECT;

    fn client() -> Client {
        Client::new(Serializer::V2)
    }

    fn handled(client: &mut Client, text: &str) -> String {
        let message = client.serializer().decode_server(Frame::Text(text)).unwrap();
        alloc::format!("{:?}", client.handle(&message))
    }

    fn joined(topics: &[&str]) -> Client {
        let mut client = client();
        for topic in topics {
            let n = client.join(&mut Vec::new(), &Topic::from(*topic), EMPTY).unwrap().msg_ref;
            let ok = r#""phx_reply",{"status":"ok","response":{}}"#;
            let outcome = handled(&mut client, &alloc::format!(r#"["{n}","{n}","{topic}",{ok}]"#));
            assert!(outcome.starts_with("JoinOk"), "{outcome}");
        }
        client
    }

    #[test]
    fn new_socket_continues_refs_and_has_no_joined_channels() {
        let mut old = joined(&["a", "b"]);
        old.heartbeat(&mut Vec::new()).unwrap();
        let mut new = old.anew();
        assert!(!new.holds("a") && !new.holds("b") && !new.awaits_heartbeat());
        assert_eq!(new.serializer(), Serializer::V2);
        let mut out = Vec::new();
        new.join(&mut out, &Topic::from("a"), EMPTY).unwrap();
        assert_eq!(out, br#"["4","4","a","phx_join",{}]"#);
        let late = r#"["1","1","a","phx_reply",{"status":"ok","response":{}}]"#;
        assert!(!handled(&mut new, late).starts_with("JoinOk"), "of the join before");
    }

    #[test]
    fn commands_match_the_frames_of_phoenix_js() {
        let mut client = client();
        let mut out = Vec::new();
        assert_eq!(client.join(&mut out, &"t".into(), EMPTY).unwrap().msg_ref, 1);
        let binary = Payload::from_bytes(&b"\x01"[..]);
        assert_eq!(client.push(&mut out, "t", "e", &binary).unwrap().kind, Kind::Binary);
        client.push(&mut out, "other", "e", &Payload::NULL).unwrap();
        client.leave(&mut out, "t").unwrap();
        client.heartbeat(&mut out).unwrap();
        let expected = b"[\"1\",\"1\",\"t\",\"phx_join\",{}]\
            \x00\x01\x01\x01\x0112te\x01\
            [null,\"3\",\"other\",\"e\",null]\
            [\"1\",\"4\",\"t\",\"phx_leave\",{}]\
            [null,\"5\",\"phoenix\",\"heartbeat\",{}]";
        assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn ref_numbers_are_written_completely() {
        for number in [0, 7, 10, 1234567890, u32::MAX] {
            assert_eq!(RefBuffer::new(number).as_ref().raw(), alloc::format!("\"{number}\""));
        }
    }

    #[test]
    fn join_reply_is_accepted_once() {
        let mut client = client();
        client.join(&mut Vec::new(), &"t".into(), EMPTY).unwrap();
        assert!(!client.is_joined("t"));
        let ok = r#"["1","1","t","phx_reply",{"status":"ok","response":{"a":1}}]"#;
        let joined = r#"JoinOk { msg_ref: 1, topic: "t", response: Json("{\"a\":1}") }"#;
        assert_eq!(handled(&mut client, ok), joined);
        assert!(client.is_joined("t"));
        assert!(handled(&mut client, ok).starts_with("Reply"));
    }

    #[test]
    fn refused_join_leaves_no_channel() {
        let mut client = client();
        client.join(&mut Vec::new(), &"t".into(), EMPTY).unwrap();
        let no = r#"[null,"1","t","phx_reply",{"status":"error","response":{"reason":"x"}}]"#;
        assert!(handled(&mut client, no).starts_with("JoinError"));
        assert_eq!(handled(&mut client, r#"["1",null,"t","e",{}]"#), "Unrelated");
    }

    #[test]
    fn only_events_of_the_current_join_are_handled() {
        let mut client = joined(&["t", "u"]);
        assert!(handled(&mut client, r#"["1",null,"t","e",{}]"#).starts_with("Push"));
        assert!(handled(&mut client, r#"[null,null,"t","e",{}]"#).starts_with("Broadcast"));
        for text in
            [r#"["2",null,"t","e",{}]"#, r#"["1",null,"u","e",{}]"#, r#"[null,null,"v","e",{}]"#]
        {
            assert_eq!(handled(&mut client, text), "Unrelated", "{text}");
        }
    }

    #[test]
    fn a_second_join_replaces_the_first() {
        let mut client = joined(&["t"]);
        client.join(&mut Vec::new(), &"t".into(), EMPTY).unwrap();
        let ok = r#"["2","2","t","phx_reply",{"status":"ok","response":{}}]"#;
        assert!(handled(&mut client, ok).starts_with("JoinOk"));
        assert_eq!(handled(&mut client, r#"["1","1","t","phx_close",{}]"#), "Unrelated");
        assert!(client.is_joined("t"));
        let crash = r#"["2","2","t","phx_error",{"reason":"channel_crash"}]"#;
        assert!(handled(&mut client, crash).starts_with("Errored"));
        assert!(!client.is_joined("t"));
    }

    #[test]
    fn leave_completes_with_its_reply() {
        let mut client = joined(&["t"]);
        client.leave(&mut Vec::new(), "t").unwrap();
        let ok = r#"["1","2","t","phx_reply",{"status":"ok","response":{}}]"#;
        assert_eq!(handled(&mut client, ok), r#"Left { msg_ref: 2, topic: "t" }"#);
        assert_eq!(handled(&mut client, r#"["1","1","t","phx_close",{}]"#), "Unrelated");
    }

    #[test]
    fn channel_ended_by_the_server_is_closed() {
        let mut client = joined(&["t"]);
        assert_eq!(
            handled(&mut client, r#"["1","1","t","phx_close",{}]"#),
            r#"Closed { topic: "t" }"#
        );
        client.leave(&mut Vec::new(), "t").unwrap();
        let ok = r#"[null,"2","t","phx_reply",{"status":"ok","response":{}}]"#;
        assert!(handled(&mut client, ok).starts_with("Reply { msg_ref: 2"));
    }

    #[test]
    fn v1_close_is_matched_by_its_ref_alone() {
        let mut client = Client::new(Serializer::V1);
        client.join(&mut Vec::new(), &"t".into(), EMPTY).unwrap();
        client.join(&mut Vec::new(), &"t".into(), EMPTY).unwrap();
        let close =
            |n| alloc::format!(r#"{{"topic":"t","event":"phx_close","payload":{{}},"ref":{n}}}"#);
        assert_eq!(handled(&mut client, &close("\"1\"")), "Unrelated");
        assert_eq!(handled(&mut client, &close("\"2\"")), r#"Closed { topic: "t" }"#);
        client.join(&mut Vec::new(), &"t".into(), EMPTY).unwrap();
        assert_eq!(handled(&mut client, &close("null")), r#"Closed { topic: "t" }"#);
    }

    #[test]
    fn empty_join_ref_of_binary_events_means_no_join_ref() {
        let mut client = joined(&["t"]);
        for (frame, expected) in [
            (&b"\x00\x01\x01\x011te."[..], "Push"),
            (&b"\x00\x00\x01\x01te."[..], "Broadcast"),
            (&b"\x00\x01\x01\x019te."[..], "Unrelated"),
            (&b"\x02\x01\x01te."[..], "Broadcast"),
        ] {
            let message = Serializer::V2.decode_server(Frame::Binary(frame)).unwrap();
            let handled = alloc::format!("{:?}", client.handle(&message));
            assert!(handled.starts_with(expected), "{handled}");
        }
    }

    #[test]
    fn reply_without_a_ref_answers_the_join_or_leave_of_its_topic() {
        let mut client = client();
        client.join(&mut Vec::new(), &"t".into(), EMPTY).unwrap();
        client.push(&mut Vec::new(), "t", "e", EMPTY).unwrap();
        let reply = |topic| {
            alloc::format!(r#"[null,null,"{topic}","phx_reply",{{"status":"ok","response":{{}}}}]"#)
        };
        assert_eq!(handled(&mut client, &reply("u")), "Unrelated");
        assert!(handled(&mut client, &reply("t")).starts_with("JoinOk { msg_ref: 1"));
        assert_eq!(handled(&mut client, &reply("t")), "Unrelated", "nothing waits any more");
        client.leave(&mut Vec::new(), "t").unwrap();
        assert!(handled(&mut client, &reply("t")).starts_with("Left { msg_ref: 3"));
        assert_eq!(handled(&mut client, &reply("phoenix")), "Unrelated");
        client.heartbeat(&mut Vec::new()).unwrap();
        assert!(handled(&mut client, &reply("phoenix")).starts_with("HeartbeatReply"));
    }

    #[test]
    fn heartbeats_are_answered_by_ref() {
        let mut client = client();
        let mut out = Vec::new();
        let answer = r#"[null,"1","phoenix","phx_reply",{"status":"ok","response":{}}]"#;
        assert_eq!(handled(&mut client, answer), "Unrelated");
        client.heartbeat(&mut out).unwrap();
        assert!(client.awaits_heartbeat());
        assert_eq!(handled(&mut client, answer), "HeartbeatReply { msg_ref: 1 }");
        assert!(!client.awaits_heartbeat());
    }

    #[test]
    fn command_that_cannot_be_encoded_changes_nothing() {
        let mut client = Client::new(Serializer::V1);
        let mut out = Vec::new();
        let binary = Payload::from_bytes(&b"x"[..]);
        assert_eq!(client.join(&mut out, &"t".into(), &binary), Err(EncodeError::BinaryNeedsV2));
        assert!(out.is_empty() && client.memberships.is_empty() && client.last_ref == 0);
    }
}
