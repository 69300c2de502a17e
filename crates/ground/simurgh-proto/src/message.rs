//! Channels messages: their refs, payloads and reserved names.
//!
//! A message borrows from the frame it was read from. Payloads stay the text (or bytes) they came
//! as: the server forwards them far more often than it reads them, so nothing here ever builds a
//! tree of JSON values. Refs stay raw JSON text too, because a client gets back the very value it
//! chose, with its type (PROTOCOL §3: a number turned into a string breaks clients).
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::json;

pub(crate) mod user;

pub use user::UserBroadcast;

/// Event and topic names that the protocol itself uses (PROTOCOL §5–§7).
pub mod events {
    /// A client asks to join a topic.
    pub const JOIN: &str = "phx_join";
    /// A client leaves a topic.
    pub const LEAVE: &str = "phx_leave";
    /// The server answers one message.
    pub const REPLY: &str = "phx_reply";
    /// A channel ended as intended; the client does not rejoin.
    pub const CLOSE: &str = "phx_close";
    /// A channel crashed; the client may rejoin at once.
    pub const ERROR: &str = "phx_error";
    /// A client shows that it is alive, on [`PHOENIX_TOPIC`].
    pub const HEARTBEAT: &str = "heartbeat";
    /// A member's broadcast, and the only event of [`super::UserBroadcast`] (PROTOCOL §11).
    pub const BROADCAST: &str = "broadcast";
    /// Broadcast on a socket id to close every socket with that id.
    pub const DISCONNECT: &str = "disconnect";
    /// A client sends a fresh token for its socket (PROTOCOL §7.7).
    pub const ACCESS_TOKEN: &str = "access_token";
    /// The topic of heartbeats, which has no channel.
    pub const PHOENIX_TOPIC: &str = "phoenix";

    /// Prefixes of the events that only the server itself may send.
    pub const RESERVED: [&str; 2] = ["phx_", "simurgh:"];

    /// Whether only the server itself may send this event: a broadcast `phx_close` would end the
    /// channels of all members, a `simurgh:gap` would report missed messages to them.
    ///
    /// Every other event may be broadcast, and some applications do: `presence_diff` if they keep
    /// presences themselves, `disconnect` on the id of sockets to close them.
    #[inline]
    pub fn is_reserved(event: &str) -> bool {
        RESERVED.iter().any(|prefix| event.starts_with(prefix))
    }
}

/// One Channels message: five fields, in the order V2 writes them (PROTOCOL §3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The client-chosen id of the join that this message belongs to.
    pub join_ref: Ref<'a>,
    /// The client-chosen id of this message.
    pub msg_ref: Ref<'a>,
    /// The topic, unescaped.
    pub topic: Cow<'a, str>,
    /// The event, unescaped.
    pub event: Cow<'a, str>,
    /// The payload as it came.
    pub payload: Payload<'a>,
}

impl Message<'_> {
    /// Whether this is a heartbeat, whatever its payload (PROTOCOL row 72).
    pub fn is_heartbeat(&self) -> bool {
        self.topic == events::PHOENIX_TOPIC && self.event == events::HEARTBEAT
    }

    /// The same message with owned content.
    pub fn into_owned(self) -> Message<'static> {
        Message {
            join_ref: self.join_ref.into_owned(),
            msg_ref: self.msg_ref.into_owned(),
            topic: Cow::Owned(self.topic.into_owned()),
            event: Cow::Owned(self.event.into_owned()),
            payload: self.payload.into_owned(),
        }
    }
}

/// The payload of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// Valid, compact JSON text of any type. Encoders write it unchanged, so code that builds one
    /// by hand must make sure that it is valid; [`Payload::checked`] checks.
    Json(Cow<'a, str>),
    /// Raw bytes; they travel in V2 binary frames only (PROTOCOL §4).
    Binary(Cow<'a, [u8]>),
    /// A broadcast of a member as Supabase's clients send it, which only user sockets of that kind
    /// accept (PROTOCOL §11).
    User(UserBroadcast<'a>),
}

/// Broadcasts in transit and effects of callbacks hold payloads by the thousand.
const _: () = assert!(size_of::<Payload<'_>>() == 32);

impl<'a> Payload<'a> {
    /// `{}`: the response of a bare `ok`.
    pub const EMPTY_OBJECT: Payload<'static> = Payload::Json(Cow::Borrowed("{}"));
    /// `null`.
    pub const NULL: Payload<'static> = Payload::Json(Cow::Borrowed("null"));

    /// JSON text from outside: checked, and made compact if it has insignificant whitespace.
    ///
    /// # Errors
    /// If the text is not one JSON value, or nests deeper than [`json::DEPTH_MAX`].
    pub fn checked(text: &'a str) -> Result<Self, json::JsonError> {
        json::validated(text).map(Payload::Json)
    }

    /// JSON text that the caller knows to be valid and compact, such as a JSON library's output.
    pub fn from_json(text: impl Into<Cow<'a, str>>) -> Self {
        Payload::Json(text.into())
    }

    /// Raw bytes.
    pub fn from_bytes(bytes: impl Into<Cow<'a, [u8]>>) -> Self {
        Payload::Binary(bytes.into())
    }

    /// Whether its JSON text is what a client may send: for payloads that other code made.
    ///
    /// # Errors
    /// As [`checked`](Self::checked).
    pub fn validate(&self) -> Result<(), json::JsonError> {
        match self {
            Payload::Json(text) => json::validate(text),
            Payload::User(broadcast) => broadcast.json_text().map_or(Ok(()), json::validate),
            Payload::Binary(_) => Ok(()),
        }
    }

    /// The JSON text, if the payload is one.
    pub fn json(&self) -> Option<&str> {
        match self {
            Payload::Json(text) => Some(text),
            Payload::Binary(_) | Payload::User(_) => None,
        }
    }

    /// The bytes, if the payload is binary.
    pub fn binary(&self) -> Option<&[u8]> {
        match self {
            Payload::Json(_) | Payload::User(_) => None,
            Payload::Binary(bytes) => Some(bytes),
        }
    }

    /// The same payload, borrowed from this one.
    pub fn borrow(&self) -> Payload<'_> {
        match self {
            Payload::Json(text) => Payload::Json(Cow::Borrowed(text)),
            Payload::Binary(bytes) => Payload::Binary(Cow::Borrowed(bytes)),
            Payload::User(broadcast) => Payload::User(broadcast.borrow()),
        }
    }

    /// The same payload with owned content.
    pub fn into_owned(self) -> Payload<'static> {
        match self {
            Payload::Json(text) => Payload::Json(Cow::Owned(text.into_owned())),
            Payload::Binary(bytes) => Payload::Binary(Cow::Owned(bytes.into_owned())),
            Payload::User(broadcast) => Payload::User(broadcast.into_owned()),
        }
    }

    /// The content as in a frame: JSON text, bytes, or the data of a member's broadcast.
    pub fn data(&self) -> &[u8] {
        match self {
            Payload::Json(text) => text.as_bytes(),
            Payload::Binary(bytes) => bytes,
            Payload::User(broadcast) => broadcast.data(),
        }
    }

    /// Reads the JSON into a type of the application, which may borrow from it.
    ///
    /// # Errors
    /// If the payload is binary, or of another shape.
    pub fn parse<'p, T: serde::Deserialize<'p>>(&'p self) -> Result<T, PayloadError> {
        let json = self.json().ok_or(PayloadError(None))?;
        serde_json::from_str(json).map_err(|error| PayloadError(Some(error)))
    }

    /// Size in bytes of the text or the data.
    pub fn len(&self) -> usize {
        match self {
            Payload::Json(text) => text.len(),
            Payload::Binary(bytes) => bytes.len(),
            Payload::User(broadcast) => broadcast.len(),
        }
    }

    /// Whether it has no byte (possible for binary payloads only).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<serde_json::Value> for Payload<'static> {
    fn from(value: serde_json::Value) -> Self {
        use alloc::string::ToString as _;
        Payload::Json(Cow::Owned(value.to_string()))
    }
}

/// Any type that serde serializes, as JSON.
///
/// # Panics
/// If it cannot be serialized, such as a map whose keys are not texts: as [`serde_json::json!`].
impl<T: serde::Serialize + ?Sized> From<&T> for Payload<'static> {
    fn from(value: &T) -> Self {
        match serde_json::to_string(value) {
            Ok(json) => Payload::Json(Cow::Owned(json)),
            #[allow(clippy::panic, reason = "the program's own type, not anything a peer sent")]
            Err(error) => panic!("a payload cannot be serialized: {error}"),
        }
    }
}

impl From<&Payload<'_>> for Payload<'static> {
    fn from(payload: &Payload<'_>) -> Self {
        payload.clone().into_owned()
    }
}

impl<'a> From<UserBroadcast<'a>> for Payload<'a> {
    fn from(broadcast: UserBroadcast<'a>) -> Self {
        Payload::User(broadcast)
    }
}

impl From<alloc::vec::Vec<u8>> for Payload<'static> {
    fn from(bytes: alloc::vec::Vec<u8>) -> Self {
        Payload::Binary(Cow::Owned(bytes))
    }
}

/// Why a payload is not as expected: binary in place of JSON, or JSON of another shape. The message
/// repeats little of the payload, so it may be sent to the peer.
#[derive(Debug)]
pub struct PayloadError(Option<serde_json::Error>);

impl core::fmt::Display for PayloadError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.0 {
            Some(error) => write!(f, "wrong payload: {error}"),
            None => f.write_str("wrong payload: binary instead of JSON"),
        }
    }
}

impl core::error::Error for PayloadError {}

/// A ref or join_ref: any JSON value, chosen by the client and echoed with its type.
///
/// Equality is that of the compact JSON text, so `1` and `"1"` differ, as do `1` and `1.0`.
/// Decoders normalize strings, so an escaped and an unescaped spelling of a string are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ref<'a> {
    /// JSON `null`, or no ref at all.
    #[default]
    Null,
    /// Raw compact JSON text of anything but null, quotes included.
    Json(Cow<'a, str>),
}

impl<'a> Ref<'a> {
    /// The ref that is the JSON string `text` (unescaped, without quotes). The ref field of a
    /// binary frame is read in this way; no bytes are the empty string (PROTOCOL §4).
    pub fn from_text(text: &str) -> Ref<'static> {
        let mut quoted = Vec::with_capacity(text.len() + 2);
        json::escape_into(&mut quoted, text);
        // Escaping UTF-8 yields UTF-8; the empty string is a harmless fallback.
        let quoted = String::from_utf8(quoted).unwrap_or_else(|_| String::from("\"\""));
        Ref::Json(Cow::Owned(quoted))
    }

    /// The ref whose compact JSON text is `raw`; `null` gives [`Ref::Null`].
    pub fn from_json(raw: impl Into<Cow<'a, str>>) -> Self {
        let raw = raw.into();
        if raw == "null" { Ref::Null } else { Ref::Json(raw) }
    }

    /// Whether this is null.
    pub fn is_null(&self) -> bool {
        matches!(self, Ref::Null)
    }

    /// The JSON text, `null` included.
    pub fn raw(&self) -> &str {
        match self {
            Ref::Null => "null",
            Ref::Json(raw) => raw,
        }
    }

    /// This ref's field in a binary frame: a string without quotes and escapes, nothing for null,
    /// the JSON text of anything else (PROTOCOL §4).
    pub fn field(&self) -> Cow<'_, str> {
        match self {
            Ref::Null => Cow::Borrowed(""),
            Ref::Json(raw) => match json::quoted(raw) {
                Some(inner) => json::unescape(inner),
                None => Cow::Borrowed(raw),
            },
        }
    }

    /// The same ref, borrowed from this one.
    pub fn borrow(&self) -> Ref<'_> {
        match self {
            Ref::Null => Ref::Null,
            Ref::Json(raw) => Ref::Json(Cow::Borrowed(raw)),
        }
    }

    /// The same ref with owned text.
    pub fn into_owned(self) -> Ref<'static> {
        match self {
            Ref::Null => Ref::Null,
            Ref::Json(raw) => Ref::Json(Cow::Owned(raw.into_owned())),
        }
    }
}

/// A ref that is kept: 16 bytes, without heap for refs of usual clients.
///
/// A membership keeps its join_ref for its lifetime, and there are millions of memberships.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct OwnedRef(RefText);

impl OwnedRef {
    /// The null ref.
    pub const NULL: OwnedRef = OwnedRef(RefText::Null);

    /// The ref, borrowed.
    pub fn as_ref(&self) -> Ref<'_> {
        match &self.0 {
            RefText::Null => Ref::Null,
            RefText::Inline { len, bytes } => {
                let text = bytes.get(..usize::from(*len)).and_then(|b| str::from_utf8(b).ok());
                // `from` is the only writer, and it stores whole strings.
                text.map_or(Ref::Null, |text| Ref::Json(Cow::Borrowed(text)))
            }
            RefText::Heap(raw) => Ref::Json(Cow::Borrowed(raw)),
        }
    }

    /// Whether this is null.
    pub fn is_null(&self) -> bool {
        matches!(self.0, RefText::Null)
    }
}

impl From<&Ref<'_>> for OwnedRef {
    fn from(from: &Ref<'_>) -> Self {
        let Ref::Json(raw) = from else { return OwnedRef::NULL };
        let mut bytes = [0; INLINE_BYTES_MAX];
        OwnedRef(match (bytes.get_mut(..raw.len()), u8::try_from(raw.len())) {
            (Some(room), Ok(len)) => {
                room.copy_from_slice(raw.as_bytes());
                RefText::Inline { len, bytes }
            }
            _ => RefText::Heap(Box::new(Box::from(raw.as_ref()))),
        })
    }
}

impl From<Ref<'_>> for OwnedRef {
    fn from(from: Ref<'_>) -> Self {
        OwnedRef::from(&from)
    }
}

impl fmt::Debug for OwnedRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedRef({})", self.as_ref().raw())
    }
}

#[derive(Clone, Default, PartialEq, Eq)]
enum RefText {
    #[default]
    Null,
    Inline {
        len: u8,
        bytes: [u8; INLINE_BYTES_MAX],
    },
    /// Boxed twice: a fat pointer alone would fill the 16 bytes.
    Heap(Box<Box<str>>),
}

/// Longest JSON text of a ref without heap; refs of phoenix.js are counters: `"1"`, `"2"`…
const INLINE_BYTES_MAX: usize = 14;

const _: () = assert!(size_of::<OwnedRef>() == 16);
const _: () = assert!(size_of::<Option<OwnedRef>>() == 16);

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn owned_refs_preserve_their_text() {
        for raw in ["null", "7", "0", "\"\"", "\"123456789012\"", "\"1234567890123\"", "[1,{}]"] {
            let kept = OwnedRef::from(&Ref::from_json(raw));
            assert_eq!(kept.as_ref().raw(), raw);
            assert_eq!(matches!(kept.0, RefText::Heap(_)), raw.len() > 14, "{raw}");
        }
        let long = format!("\"{}\"", "é".repeat(150));
        let kept = OwnedRef::from(&Ref::from_json(long.as_str()));
        assert_eq!(kept.clone().as_ref().raw(), long);
        assert_eq!(kept, OwnedRef::from(Ref::from_json(long.as_str())));
    }

    #[test]
    fn refs_keep_their_type() {
        assert_ne!(Ref::from_json("1"), Ref::from_text("1"));
        assert_ne!(Ref::from_text(""), Ref::Null);
        assert_eq!(Ref::from_text("1").raw(), "\"1\"");
        assert_eq!(Ref::from_text("a\"\n").raw(), "\"a\\\"\\n\"");
    }

    #[test]
    fn refs_convert_to_binary_fields() {
        assert_eq!(Ref::Null.field(), "");
        assert_eq!(Ref::from_json("12").field(), "12");
        assert_eq!(Ref::from_json("\"12\"").field(), "12");
        assert_eq!(Ref::from_json("\"a\\\"\\u00e9\"").field(), "a\"é");
        assert_eq!(Ref::from_json("true").field(), "true");
    }
}
