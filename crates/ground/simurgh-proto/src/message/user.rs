//! A member's broadcast as Supabase's clients send it: an event of its own, and data.
use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::fmt;

use crate::json;
use crate::serializer::error::{DecodeError, EncodeError};

/// The content of a Supabase broadcast frame (PROTOCOL §11.1): the member's own event, metadata,
/// and data that is JSON text or raw bytes.
///
/// It keeps the frame it came in, most of which the server's frame repeats, so that forwarding
/// takes one copy and no second parse. The constructors check that the event is UTF-8, the metadata
/// a JSON object or empty, and data marked as JSON is JSON.
#[derive(Clone)]
pub struct UserBroadcast<'a> {
    /// A frame of either kind, with any other fields. A single field keeps all payloads in one
    /// form, so that comparing tags and dropping stay cheap.
    frame: Cow<'a, [u8]>,
}

struct Parts<'f> {
    /// Lengths of event and metadata, and the encoding: the same in all frames.
    head: [u8; 3],
    /// Event, metadata and data, in this order.
    rest: &'f [u8],
}

/// Splits a frame of a client, with three fields before the event, or of the server, with one.
fn parts(frame: &[u8]) -> Option<Parts<'_>> {
    let (kind, rest) = frame.split_first()?;
    let (others, rest) = rest.split_at_checked(if *kind == USER_PUSH { 3 } else { 1 })?;
    let (head, rest) = rest.split_first_chunk::<3>()?;
    let others = others.iter().map(|length| usize::from(*length)).sum();
    Some(Parts { head: *head, rest: rest.get(others..)? })
}

impl<'a> UserBroadcast<'a> {
    /// A broadcast whose data is a JSON text.
    ///
    /// # Errors
    /// If the event has more than 255 bytes.
    pub fn json(event: &str, text: &str) -> Result<UserBroadcast<'static>, EncodeError> {
        let length = u8::try_from(event.len()).map_err(|_| EncodeError::FieldTooLong)?;
        Ok(UserBroadcast::of([length, 0, JSON], event.as_bytes(), text.as_bytes()))
    }

    /// A broadcast whose data is raw bytes; members with V1 do not receive it.
    ///
    /// # Errors
    /// If the event has more than 255 bytes.
    pub fn raw(event: &str, data: &[u8]) -> Result<UserBroadcast<'static>, EncodeError> {
        let length = u8::try_from(event.len()).map_err(|_| EncodeError::FieldTooLong)?;
        Ok(UserBroadcast::of([length, 0, RAW], event.as_bytes(), data))
    }

    fn of(head: [u8; 3], fields: &[u8], data: &[u8]) -> UserBroadcast<'static> {
        let mut frame = Vec::with_capacity(5 + fields.len() + data.len());
        frame.extend_from_slice(&[USER_BROADCAST, 0]);
        frame.extend_from_slice(&head);
        frame.extend_from_slice(fields);
        frame.extend_from_slice(data);
        UserBroadcast { frame: Cow::Owned(frame) }
    }

    /// Checks the part of a frame after its other fields.
    pub(crate) fn read(frame: &'a [u8]) -> Result<Self, DecodeError> {
        let Parts { head, rest } = parts(frame).ok_or(DecodeError::Truncated)?;
        let [event_bytes, metadata_bytes, encoding] = head;
        let (is_json, event_end) = (encoding != RAW, usize::from(event_bytes));
        let fields_end = event_end + usize::from(metadata_bytes);
        let fields = rest.get(..fields_end).ok_or(DecodeError::Truncated)?;
        // All text is checked at once; each field must end at a character boundary.
        let all = text(if is_json { rest } else { fields })?;
        let (fields, data) = all.split_at_checked(fields_end).ok_or(DecodeError::NotUtf8)?;
        let (_, metadata) = fields.split_at_checked(event_end).ok_or(DecodeError::NotUtf8)?;
        if metadata_bytes > 0 {
            json::validate(metadata)?;
            if !metadata.trim_start().starts_with('{') {
                return Err(DecodeError::Shape);
            }
        }
        if is_json {
            json::validate(data)?;
        }
        Ok(Self { frame: Cow::Borrowed(frame) })
    }

    fn parts(&self) -> Parts<'_> {
        // The constructors have checked it.
        parts(&self.frame).unwrap_or(Parts { head: [0; 3], rest: &[] })
    }

    /// The member's own event.
    pub fn event(&self) -> &str {
        let Parts { head: [event, ..], rest } = self.parts();
        utf8(rest.get(..usize::from(event)))
    }

    /// The metadata: a JSON object, or empty.
    pub fn metadata(&self) -> &str {
        let Parts { head: [event, metadata, _], rest } = self.parts();
        let at = usize::from(event);
        utf8(rest.get(at..at + usize::from(metadata)))
    }

    /// The data: JSON text, or raw bytes.
    pub fn data(&self) -> &[u8] {
        let Parts { head: [event, metadata, _], rest } = self.parts();
        rest.get(usize::from(event) + usize::from(metadata)..).unwrap_or_default()
    }

    /// The data, if it is JSON text.
    pub fn json_text(&self) -> Option<&str> {
        if self.is_json() { str::from_utf8(self.data()).ok() } else { None }
    }

    /// Whether the data is JSON text.
    pub fn is_json(&self) -> bool {
        let Parts { head: [.., encoding], .. } = self.parts();
        encoding != RAW
    }

    /// The same with other data, which must be JSON if the former is ([`is_json`](Self::is_json)).
    pub fn with_data(&self, data: &[u8]) -> UserBroadcast<'static> {
        let Parts { head, rest } = self.parts();
        let fields = rest.len() - self.data().len();
        UserBroadcast::of(head, rest.get(..fields).unwrap_or_default(), data)
    }

    /// The same without its metadata, which only the sender vouches for.
    #[must_use]
    #[inline]
    pub fn without_metadata(self) -> Self {
        let Parts { head: [event, metadata, encoding], .. } = self.parts();
        match metadata {
            0 => self,
            _ => Self::of([event, 0, encoding], self.event().as_bytes(), self.data()),
        }
    }

    /// Bytes that it keeps: a frame, some more than event, metadata and data.
    pub fn len(&self) -> usize {
        self.frame.len()
    }

    /// Whether the frame is empty, which it never is.
    pub fn is_empty(&self) -> bool {
        self.frame.is_empty()
    }

    /// The part that all its frames share: two lengths and the encoding; event, metadata and data.
    pub(crate) fn common(&self) -> ([u8; 3], &[u8]) {
        let Parts { head, rest } = self.parts();
        (head, rest)
    }

    /// The same, borrowed from this one.
    pub fn borrow(&self) -> UserBroadcast<'_> {
        UserBroadcast { frame: Cow::Borrowed(&self.frame) }
    }

    /// The same with owned content.
    pub fn into_owned(self) -> UserBroadcast<'static> {
        UserBroadcast { frame: Cow::Owned(self.frame.into_owned()) }
    }
}

impl PartialEq for UserBroadcast<'_> {
    fn eq(&self, other: &Self) -> bool {
        let same = (self.is_json(), self.event(), self.metadata(), self.data());
        same == (other.is_json(), other.event(), other.metadata(), other.data())
    }
}

impl Eq for UserBroadcast<'_> {}

impl fmt::Debug for UserBroadcast<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("UserBroadcast");
        fields.field("event", &self.event()).field("metadata", &self.metadata());
        match self.json_text() {
            Some(text) => fields.field("json", &text),
            None => fields.field("data", &self.data()),
        };
        fields.finish()
    }
}

fn utf8(bytes: Option<&[u8]>) -> &str {
    bytes.and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or_default()
}

fn text(bytes: &[u8]) -> Result<&str, DecodeError> {
    simdutf8::basic::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8)
}

pub(crate) const USER_PUSH: u8 = 3;
pub(crate) const USER_BROADCAST: u8 = 4;

const RAW: u8 = 0;
/// All encodings except raw are read as JSON.
const JSON: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of a client and one of the server, with the same content after other fields.
    fn frames(head: [u8; 3], rest: &[u8]) -> [Vec<u8>; 2] {
        let client = [&[USER_PUSH, 1, 2, 3][..], &head, b"jrrttt", rest].concat();
        [client, [&[USER_BROADCAST, 3][..], &head, b"ttt", rest].concat()]
    }

    #[test]
    fn user_broadcast_parts_are_found_in_every_form() {
        for frame in frames([2, 7, 1], b"ev{\"a\":1}[1]") {
            let it = UserBroadcast::read(&frame).unwrap();
            for it in [it.borrow(), it.clone().into_owned(), it.with_data(b"[1]")] {
                assert_eq!((it.event(), it.metadata()), ("ev", "{\"a\":1}"));
                assert_eq!((it.data(), it.json_text()), (&b"[1]"[..], Some("[1]")));
            }
            let bare = it.without_metadata();
            assert_eq!((bare.event(), bare.metadata(), bare.data()), ("ev", "", &b"[1]"[..]));
            assert_eq!(Ok(bare), UserBroadcast::json("ev", "[1]"));
        }
        let raw = UserBroadcast::raw("", b"\xff").unwrap();
        assert_eq!((raw.event(), raw.json_text(), raw.data()), ("", None, &b"\xff"[..]));
        let long = "x".repeat(256);
        assert_eq!(UserBroadcast::raw(&long, b""), Err(EncodeError::FieldTooLong));
        assert_ne!(UserBroadcast::raw("e", b"1"), UserBroadcast::json("e", "1"));
    }

    #[test]
    fn user_broadcast_frames_are_validated() {
        for (rest, head, expected) in [
            (&b"e"[..], [2, 0, 0], DecodeError::Truncated),
            (b"e{", [1, 2, 0], DecodeError::Truncated),
            (b"\xff", [1, 0, 0], DecodeError::NotUtf8),
            (b"e\xff", [1, 1, 0], DecodeError::NotUtf8),
            (b"e\xff", [1, 0, 1], DecodeError::NotUtf8),
            ("é1".as_bytes(), [1, 0, 1], DecodeError::NotUtf8),
            ("é1".as_bytes(), [1, 1, 1], DecodeError::NotUtf8),
            (b"e[]", [1, 2, 0], DecodeError::Shape),
            (b"e{", [1, 0, 1], DecodeError::Syntax { at: 1 }),
            (b"e", [1, 0, 1], DecodeError::Syntax { at: 0 }),
            (b"e{}{} x", [1, 2, 7], DecodeError::Syntax { at: 3 }),
        ] {
            for frame in frames(head, rest) {
                assert_eq!(UserBroadcast::read(&frame), Err(expected), "{rest:?}");
            }
        }
        for frame in frames([1, 0, 0], b"e\xff") {
            assert!(UserBroadcast::read(&frame).is_ok(), "raw data is any bytes");
        }
    }
}
