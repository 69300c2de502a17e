//! Reading and writing numbers and texts of envelopes: little endian, each length before the bytes.

use simurgh_presence::MetaError;
use simurgh_proto::serializer::DecodeError;
use simurgh_proto::serializer::json::JsonError;

use simurgh_data::prelude::*;

/// The version of envelopes that this program writes and understands.
pub const ENVELOPE_VERSION: u8 = 1;
/// The largest envelope: the default limit of brokers (1 MiB), less 1 kB for what they add.
pub const ENVELOPE_BYTES_MAX: usize = (1 << 20) - (1 << 10);

/// Why bytes are not an envelope that can be used. The writer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// Its version is not understood here: the node is newer, or older.
    #[error("an envelope of version {0}; this node supports version {ENVELOPE_VERSION}")]
    UnknownVersion(u8),
    /// Its kind is unknown here: the node is newer.
    #[error("an envelope of the unknown kind {0}")]
    UnknownKind(u8),
    /// It ends too early.
    #[error("it ends too early")]
    Cut,
    /// It has more bytes than [`ENVELOPE_BYTES_MAX`].
    #[error("an envelope of {0} bytes; the maximum is {ENVELOPE_BYTES_MAX}")]
    TooLarge(usize),
    /// So many bytes follow its end.
    #[error("{0} bytes follow its end")]
    Trailing(usize),
    /// A text in it is not UTF-8.
    #[error("a text in it is not UTF-8")]
    NotUtf8,
    /// An item has flags that do not exist, or not together.
    #[error("an item has the flags {0:#04x}")]
    ItemFlags(u8),
    /// A broadcast has an event that is the protocol's own
    /// ([`is_reserved`](simurgh_proto::message::events::is_reserved)).
    #[error("a broadcast with a reserved event")]
    Reserved,
    /// A broadcast's payload should be JSON.
    #[error("the payload of a broadcast: {0}")]
    Json(JsonError),
    /// A broadcast's payload is JSON with whitespace between its tokens.
    #[error("the payload of a broadcast has whitespace in it")]
    NotCompact,
    /// A broadcast's payload should be a user broadcast.
    #[error("a user broadcast: {0}")]
    User(DecodeError),
    /// It has items or a topic that an envelope of its kind does not have.
    #[error("it has items or a topic, which its kind must not have")]
    Shape,
    /// The metadata of a presence.
    #[error("the meta of a presence: {0}")]
    Meta(MetaError),
    /// Something else in what it carries is wrong.
    #[error("{0}")]
    Malformed(&'static str),
}

impl EnvelopeError {
    /// Whether it may be correct and only of another version of the program, which is worth a line
    /// in the log while versions are mixed.
    pub const fn is_of_another_version(&self) -> bool {
        matches!(self, Self::UnknownVersion(_) | Self::UnknownKind(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn left(&self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], EnvelopeError> {
        let (taken, left) = self.0.split_at_checked(count).ok_or(EnvelopeError::Cut)?;
        self.0 = left;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], EnvelopeError> {
        let (taken, left) = self.0.split_first_chunk().ok_or(EnvelopeError::Cut)?;
        self.0 = left;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, EnvelopeError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, EnvelopeError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, EnvelopeError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, EnvelopeError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn text8(&mut self) -> Result<&'a str, EnvelopeError> {
        let count = self.u8()?;
        text(self.bytes(count.into())?)
    }

    pub(crate) fn text16(&mut self) -> Result<&'a str, EnvelopeError> {
        let count = self.u16()?;
        text(self.bytes(count.into())?)
    }

    pub(crate) fn bytes32(&mut self) -> Result<&'a [u8], EnvelopeError> {
        let count = self.u32()?;
        // A length beyond `usize` is longer than anything in memory.
        self.bytes(usize::try_from(count).map_err(|_| EnvelopeError::Cut)?)
    }
}

pub(crate) fn text(bytes: &[u8]) -> Result<&str, EnvelopeError> {
    simdutf8::basic::from_utf8(bytes).map_err(|_| EnvelopeError::NotUtf8)
}

/// Appends a text with one byte of length before it. Returns `false` and writes nothing if it is
/// longer than `bytes_max`.
#[must_use]
pub(crate) fn put_text8(out: &mut Vec<u8>, text: &str, bytes_max: u8) -> bool {
    let Some(count) = u8::try_from(text.len()).ok().filter(|count| *count <= bytes_max) else {
        return false;
    };
    out.push(count);
    out.extend_from_slice(text.as_bytes());
    true
}

/// Appends a text with two bytes of length before it. Returns `false` and writes nothing if it is
/// longer.
#[must_use]
pub(crate) fn put_text16(out: &mut Vec<u8>, text: &str) -> bool {
    let Ok(count) = u16::try_from(text.len()) else { return false };
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    true
}

/// Appends bytes with four bytes of length before them. Returns `false` and writes nothing if there
/// are more.
#[must_use]
pub(crate) fn put_bytes32(out: &mut Vec<u8>, bytes: &[u8]) -> bool {
    let Ok(count) = u32::try_from(bytes.len()) else { return false };
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(bytes);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_read_back_and_every_truncation_is_detected() {
        let mut out = vec![7];
        out.extend_from_slice(&0x0102_u16.to_le_bytes());
        out.extend_from_slice(&u32::MAX.to_le_bytes());
        out.extend_from_slice(&0x0102_0304_0506_0708_u64.to_le_bytes());
        assert!(put_text8(&mut out, "é", 2) && put_text16(&mut out, "räum"));
        assert!(put_bytes32(&mut out, &[0, 255]));
        let read = |bytes| {
            let mut reader = Reader::new(bytes);
            let numbers = (reader.u8()?, reader.u16()?, reader.u32()?, reader.u64()?);
            let texts = (reader.text8()?, reader.text16()?, reader.bytes32()?);
            Ok::<_, EnvelopeError>((numbers, texts, reader.left()))
        };
        let numbers = (7, 0x0102, u32::MAX, 0x0102_0304_0506_0708);
        let texts = ("é", "räum", &[0, 255][..]);
        assert_eq!(read(&out), Ok((numbers, texts, &[][..])));
        for cut in 0..out.len() {
            assert_eq!(read(&out[..cut]), Err(EnvelopeError::Cut), "{cut} bytes");
        }
    }

    #[test]
    fn text_too_long_for_its_length_field_is_not_written() {
        let mut out = Vec::new();
        assert!(!put_text8(&mut out, "abc", 2) && !put_text8(&mut out, &"x".repeat(256), 255));
        assert!(!put_text16(&mut out, &"x".repeat(65_536)));
        assert!(out.is_empty());
        assert!(put_text8(&mut out, &"x".repeat(255), 255));
        assert!(put_text16(&mut out, &"x".repeat(65_535)));
        assert_eq!(out.len(), 1 + 255 + 2 + 65_535);
    }

    #[test]
    fn text_that_is_not_utf8_is_rejected() {
        assert_eq!(Reader::new(&[1, 0xff]).text8(), Err(EnvelopeError::NotUtf8));
        assert_eq!(Reader::new(&[1, 0, 0xc3]).text16(), Err(EnvelopeError::NotUtf8));
    }
}
