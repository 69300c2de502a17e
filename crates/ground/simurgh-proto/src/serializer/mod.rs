//! Channels messages as frames: the two serializers that a client may ask for (PROTOCOL §3, §4).
//!
//! A [`Serializer`] is only a choice: it fits in a byte of the connection's record. Readers borrow
//! from the frame, writers append to a buffer of the caller. Neither parses a payload, and for
//! ordinary messages neither allocates.
//!
//! * [`json`] finds values in JSON text and checks them, without building anything.
//! * `v1` is the object form, text only.
//! * `v2` is the array form, and the binary frames that go with it.
pub(crate) mod error;
mod v1;
mod v2;

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

pub use self::error::{DecodeError, EncodeError, UnknownVsn};
pub use crate::json;
use crate::json::{Raw, Scanner};
use crate::message::user::{USER_BROADCAST, USER_PUSH};
use crate::message::{Message, Payload, Ref, events};

/// The form of the protocol that a socket uses; fixed when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Serializer {
    /// JSON objects (`vsn` 1.0.x, or none).
    V1,
    /// JSON arrays and binary frames (`vsn` 2.0.x).
    V2,
}

/// A frame's content as the transport received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Content of a text frame.
    Text(&'a str),
    /// Content of a binary frame.
    Binary(&'a [u8]),
}

impl<'a> Frame<'a> {
    /// Its content, of either kind.
    pub fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }
}

/// The kind of frame for an encoded message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A text frame.
    Text,
    /// A binary frame.
    Binary,
}

/// A message of a server, as a client reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerMessage<'a> {
    /// The answer to one message of the client, which `msg_ref` alone identifies.
    Reply {
        /// The channel's join_ref; always null in V1.
        join_ref: Ref<'a>,
        /// The ref of the message this answers.
        msg_ref: Ref<'a>,
        /// The topic of that message.
        topic: Cow<'a, str>,
        /// `ok`, `error`, or any other word of the application.
        status: Cow<'a, str>,
        /// The application's answer.
        response: Payload<'a>,
    },
    /// A push, a broadcast, a `phx_close` or a `phx_error`. Broadcasts have a null join_ref; in V1
    /// all events do, so pushes and broadcasts cannot be told apart there.
    Event(Message<'a>),
}

impl<'a> ServerMessage<'a> {
    /// Its payload.
    pub fn payload(&self) -> &Payload<'a> {
        match self {
            ServerMessage::Reply { response, .. } => response,
            ServerMessage::Event(event) => &event.payload,
        }
    }

    /// Its topic.
    pub fn topic(&self) -> &str {
        match self {
            ServerMessage::Reply { topic, .. } => topic,
            ServerMessage::Event(event) => &event.topic,
        }
    }

    /// Replaces its payload, and returns the former one.
    pub fn replace_payload(&mut self, payload: Payload<'a>) -> Payload<'a> {
        let place = match self {
            ServerMessage::Reply { response, .. } => response,
            ServerMessage::Event(event) => &mut event.payload,
        };
        core::mem::replace(place, payload)
    }
}

impl Serializer {
    /// The serializer that the `vsn` parameter asks for; none means V1 (PROTOCOL §2, rows 2–6).
    ///
    /// # Errors
    /// If it is not a version, or one without a serializer: refuse the socket with HTTP 403.
    pub fn for_vsn(vsn: Option<&str>) -> Result<Self, UnknownVsn> {
        let Some(vsn) = vsn else { return Ok(Serializer::V1) };
        // As Phoenix's own clients send it.
        if vsn == "2.0.0" {
            return Ok(Serializer::V2);
        }
        let version = semver::Version::parse(vsn).map_err(|_| UnknownVsn)?;
        // `~> x.0.0`: a pre-release of x.0.0 itself comes before it, one of a later patch does not.
        let serves = version.minor == 0 && (version.patch > 0 || version.pre.is_empty());
        match version.major {
            1 if serves => Ok(Serializer::V1),
            2 if serves => Ok(Serializer::V2),
            _ => Err(UnknownVsn),
        }
    }

    /// Reads what a client sent. V1 also accepts JSON in a binary frame (Tsung sends it so).
    ///
    /// # Errors
    /// See [`DecodeError`]; every one of them ends the socket with close code 1011.
    pub fn decode<'a>(self, frame: Frame<'a>) -> Result<Message<'a>, DecodeError> {
        match (self, frame) {
            (Serializer::V1, Frame::Text(text)) => v1::decode(text),
            (Serializer::V1, Frame::Binary(bytes)) => v1::decode(utf8(bytes)?),
            (Serializer::V2, Frame::Text(text)) => v2::decode_text(text),
            (Serializer::V2, Frame::Binary(bytes)) => v2::decode_push(bytes),
        }
    }

    /// As [`decode`](Self::decode), and in V2 Supabase's binary kind 3, a
    /// [`UserBroadcast`](crate::message::UserBroadcast).
    ///
    /// # Errors
    /// As [`decode`](Self::decode); metadata, and data marked as JSON, are checked.
    pub fn decode_supabase<'a>(self, frame: Frame<'a>) -> Result<Message<'a>, DecodeError> {
        match (self, frame) {
            (Serializer::V2, Frame::Binary(bytes @ [USER_PUSH, ..])) => v2::decode_user_push(bytes),
            _ => self.decode(frame),
        }
    }

    /// Reads a text that a client sent and keeps it: the payload stays in `text`, without a copy.
    ///
    /// # Errors
    /// As [`Serializer::decode`].
    pub fn decode_owned(self, mut text: String) -> Result<Message<'static>, DecodeError> {
        let Message { join_ref, msg_ref, topic, event, payload } =
            self.decode(Frame::Text(&text))?;
        let (join_ref, msg_ref) = (join_ref.into_owned(), msg_ref.into_owned());
        let (topic, event) = (topic.into_owned().into(), event.into_owned().into());
        let payload = match payload {
            Payload::Json(Cow::Borrowed(json)) => {
                let start = json.as_ptr().addr().saturating_sub(text.as_ptr().addr());
                let end = start + json.len();
                text.truncate(end);
                text.drain(..start);
                Payload::Json(Cow::Owned(text))
            }
            other => other.into_owned(),
        };
        Ok(Message { join_ref, msg_ref, topic, event, payload })
    }

    /// Reads what a server sent: text, or a binary push, reply or broadcast.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode_server<'a>(self, frame: Frame<'a>) -> Result<ServerMessage<'a>, DecodeError> {
        match (self, frame) {
            (Serializer::V1, Frame::Text(text)) => from_server(v1::decode(text)?),
            (Serializer::V1, Frame::Binary(bytes)) => from_server(v1::decode(utf8(bytes)?)?),
            (Serializer::V2, Frame::Text(text)) => from_server(v2::decode_text(text)?),
            (Serializer::V2, Frame::Binary(bytes)) => v2::decode_server_binary(bytes),
        }
    }

    /// Appends a reply. `status` is any word, `response` anything (PROTOCOL §3).
    ///
    /// # Errors
    /// If a binary response is for V1, or has a field over 255 bytes; `out` is then unchanged.
    pub fn reply(
        self,
        out: &mut Vec<u8>,
        join_ref: &Ref<'_>,
        msg_ref: &Ref<'_>,
        topic: &str,
        status: &str,
        response: &Payload<'_>,
    ) -> Result<Kind, EncodeError> {
        match (self, response) {
            (Serializer::V1, Payload::Json(json)) => {
                Ok(v1::reply(out, msg_ref, topic, status, json))
            }
            (Serializer::V2, Payload::Json(json)) => {
                Ok(v2::reply(out, join_ref, msg_ref, topic, status, json))
            }
            (Serializer::V1, Payload::Binary(_)) => Err(EncodeError::BinaryNeedsV2),
            (_, Payload::User(_)) => Err(EncodeError::UserBroadcastIsNoReply),
            (Serializer::V2, Payload::Binary(data)) => {
                let fields = [&*join_ref.field(), &*msg_ref.field(), topic, status];
                v2::binary(out, v2::REPLY, fields, data)
            }
        }
    }

    /// Appends a push: an event to one channel, with that channel's join_ref and no ref.
    ///
    /// # Errors
    /// If a binary payload is for V1, or has a field over 255 bytes; `out` is then unchanged.
    pub fn push(
        self,
        out: &mut Vec<u8>,
        join_ref: &Ref<'_>,
        topic: &str,
        event: &str,
        payload: &Payload<'_>,
    ) -> Result<Kind, EncodeError> {
        self.event(out, join_ref, &Ref::Null, topic, event, payload)
    }

    /// Appends a broadcast: the same bytes for every member with this serializer.
    ///
    /// # Errors
    /// If a binary payload is for V1, or has a field over 255 bytes; `out` is then unchanged.
    pub fn broadcast(
        self,
        out: &mut Vec<u8>,
        topic: &str,
        event: &str,
        payload: &Payload<'_>,
    ) -> Result<Kind, EncodeError> {
        match (self, payload) {
            (Serializer::V2, Payload::Binary(data)) => {
                v2::binary(out, v2::BROADCAST, [topic, event], data)
            }
            // As text a broadcast is a push without a join_ref; so is the refusal in V1.
            _ => self.push(out, &Ref::Null, topic, event, payload),
        }
    }

    /// Appends a message for one socket, as [`crate::session::server`] makes it.
    ///
    /// # Errors
    /// If a binary payload is for V1, or has a field over 255 bytes; `out` is then unchanged.
    pub fn server(
        self,
        out: &mut Vec<u8>,
        message: &ServerMessage<'_>,
    ) -> Result<Kind, EncodeError> {
        match message {
            ServerMessage::Reply { join_ref, msg_ref, topic, status, response } => {
                self.reply(out, join_ref, msg_ref, topic, status, response)
            }
            ServerMessage::Event(Message { join_ref, msg_ref, topic, event, payload }) => {
                self.event(out, join_ref, msg_ref, topic, event, payload)
            }
        }
    }

    /// Appends a message as a client sends it.
    ///
    /// # Errors
    /// If a binary payload is for V1, or has a field over 255 bytes; `out` is then unchanged.
    pub fn message(self, out: &mut Vec<u8>, message: &Message<'_>) -> Result<Kind, EncodeError> {
        let Message { join_ref, msg_ref, topic, event, payload } = message;
        match (self, payload) {
            (Serializer::V1, _) => {
                Ok(v1::message(out, join_ref, msg_ref, topic, event, &v1::text(payload)?))
            }
            (Serializer::V2, Payload::Json(json)) => {
                Ok(v2::event(out, join_ref, msg_ref, topic, event, json))
            }
            (Serializer::V2, Payload::Binary(data)) => {
                let fields = [&*join_ref.field(), &*msg_ref.field(), topic, event];
                v2::binary(out, v2::PUSH, fields, data)
            }
            (Serializer::V2, Payload::User(broadcast)) => {
                let fields = [&*join_ref.field(), &*msg_ref.field(), topic];
                v2::user(out, USER_PUSH, fields, broadcast)
            }
        }
    }

    /// An event of a server. A member's broadcast is kind 4 in V2, without a join_ref and with no
    /// other event than `broadcast`; in V1 its text form, which raw data does not have.
    fn event(
        self,
        out: &mut Vec<u8>,
        join_ref: &Ref<'_>,
        msg_ref: &Ref<'_>,
        topic: &str,
        event: &str,
        payload: &Payload<'_>,
    ) -> Result<Kind, EncodeError> {
        match (self, payload) {
            (Serializer::V1, Payload::Json(json)) => {
                Ok(v1::event(out, msg_ref, topic, event, json))
            }
            (Serializer::V1, _) => Ok(v1::event(out, msg_ref, topic, event, &v1::text(payload)?)),
            (Serializer::V2, Payload::Json(json)) => {
                Ok(v2::event(out, join_ref, msg_ref, topic, event, json))
            }
            (Serializer::V2, Payload::Binary(data)) => {
                v2::binary(out, v2::PUSH, [&*join_ref.field(), topic, event], data)
            }
            (Serializer::V2, Payload::User(broadcast)) => {
                v2::user(out, USER_BROADCAST, [topic], broadcast)
            }
        }
    }
}

impl<'a> Raw<'a> {
    fn payload(self) -> Payload<'a> {
        Payload::Json(self.compact())
    }

    /// The value as a ref. Strings with escapes are rewritten, so that equal strings are equal.
    fn msg_ref(self) -> Ref<'a> {
        match self.string() {
            Some(Cow::Owned(unescaped)) => Ref::from_text(&unescaped),
            _ => Ref::from_json(self.compact()),
        }
    }
}

/// Separates replies from other events; a reply's payload is `{"status":s,"response":r}`.
fn from_server(message: Message<'_>) -> Result<ServerMessage<'_>, DecodeError> {
    if message.event != events::REPLY {
        return Ok(ServerMessage::Event(message));
    }
    let Message { join_ref, msg_ref, topic, payload, .. } = message;
    let (status, response) = match payload {
        Payload::Json(Cow::Borrowed(text)) => v1::decode_reply(text)?,
        Payload::Json(Cow::Owned(text)) => {
            let (status, response) = v1::decode_reply(&text)?;
            (Cow::Owned(status.into_owned()), response.into_owned())
        }
        Payload::Binary(_) | Payload::User(_) => return Err(DecodeError::Shape),
    };
    Ok(ServerMessage::Reply { join_ref, msg_ref, topic, status, response })
}

/// A scanner at the first bracket of a message.
fn opened(text: &str, bracket: u8) -> Result<Scanner<'_>, DecodeError> {
    let mut scanner = Scanner::new(text);
    scanner.blanks();
    if scanner.is_next(bracket) {
        return Ok(scanner);
    }
    // Distinguishes JSON of a wrong shape from text that is not JSON, for the log.
    json::validate(text)?;
    Err(DecodeError::Shape)
}

fn utf8(bytes: &[u8]) -> Result<&str, DecodeError> {
    simdutf8::basic::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8)
}
