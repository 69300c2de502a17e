//! Sizes as text (`64KiB`, `10MB`), or a bare number of bytes.

use serde::Deserializer;
use serde::de::{Error, Unexpected, Visitor};
use simurgh_proto::ws::Limits;
pub use simurgh_text::parse_bytes;

use super::{ChannelSpec, Defaults};

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    struct Size;

    impl Visitor<'_> for Size {
        type Value = usize;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a size such as \"64KiB\", or a whole number of bytes")
        }

        fn visit_u64<E: Error>(self, bytes: u64) -> Result<usize, E> {
            usize::try_from(bytes).map_err(|_| E::invalid_value(Unexpected::Unsigned(bytes), &self))
        }

        fn visit_i64<E: Error>(self, bytes: i64) -> Result<usize, E> {
            usize::try_from(bytes).map_err(|_| E::invalid_value(Unexpected::Signed(bytes), &self))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<usize, E> {
            parse_bytes(text).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
        }
    }

    from.deserialize_any(Size).map(Some)
}

/// The limits of a user socket, if any of its channels has its own.
pub(super) fn limits(specs: &[ChannelSpec], defaults: Defaults) -> Option<Limits> {
    specs.iter().find(|spec| spec.message_bytes_max.is_some())?;
    let largest =
        specs.iter().map(|spec| spec.message_bytes_max.unwrap_or(defaults.message_bytes_max));
    let message_bytes_max = largest.max()?;
    let frame_bytes_max = defaults.frame_bytes_max.unwrap_or(message_bytes_max);
    Some(Limits { message_bytes_max, frame_bytes_max: frame_bytes_max.min(message_bytes_max) })
}
