//! Sizes as text (`64KiB`, `10MB`), or a bare number of bytes.

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;
use simurgh_proto::ws::FrameLimits;
pub use simurgh_text::parse_bytes;

use super::{ChannelSpec, Defaults};

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    let value = Value::deserialize(from)?;
    let expected = "expected a size such as \"64KiB\", or a whole number of bytes";
    let kind = if value.is_string() { "string " } else { "" };
    let wrong = || de::Error::custom(format!("invalid value: {kind}{value}, {expected}"));
    read(&value).map(Some).ok_or_else(wrong)
}

pub(super) fn read(value: &Value) -> Option<usize> {
    match value {
        Value::String(text) => parse_bytes(text).ok(),
        number => number.as_u64().and_then(|bytes| usize::try_from(bytes).ok()),
    }
}

/// The limits of a user socket, if any of its channels has its own.
pub(super) fn limits(specs: &[ChannelSpec], defaults: Defaults) -> Option<FrameLimits> {
    specs.iter().find(|spec| spec.message_bytes_max.is_some())?;
    let largest =
        specs.iter().map(|spec| spec.message_bytes_max.unwrap_or(defaults.message_bytes_max));
    let message_bytes_max = largest.max()?;
    let frame_bytes_max = defaults.frame_bytes_max.unwrap_or(message_bytes_max);
    Some(FrameLimits { message_bytes_max, frame_bytes_max: frame_bytes_max.min(message_bytes_max) })
}
