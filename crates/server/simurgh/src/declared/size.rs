//! Sizes as people write them: `64KiB`, `10MB`, or a bare number of bytes.

use serde::Deserializer;
use serde::de::{Error, Unexpected, Visitor};
use simurgh_proto::ws::Limits;

use super::{ChannelSpec, Defaults};

const UNITS: [(&str, u64); 9] = [
    ("", 1),
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// Reads a size in bytes: a number, whole or with a decimal point, and a unit of `B`, `kB`, `MB`,
/// `GB` (thousands) or `KiB`, `MiB`, `GiB`, `TiB` (1,024); none is bytes. Case does not matter.
///
/// # Errors
/// What of it cannot be read.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let unit = unit.trim().to_ascii_lowercase();
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("{text:?} has no unit of size that is known"));
    };
    let number = number.replace('_', "");
    let bytes = match number.split_once('.') {
        None => number.parse::<u64>().ok().and_then(|n| n.checked_mul(*factor)),
        Some((whole, part)) if !whole.is_empty() && !part.is_empty() => {
            let exact = number.parse::<f64>().ok().map(|n| n * *factor as f64);
            exact.filter(|n| n.is_finite() && *n < u64::MAX as f64).map(|n| n.round() as u64)
        }
        Some(_) => None,
    };
    let bytes = bytes.and_then(|n| usize::try_from(n).ok());
    bytes.ok_or_else(|| format!("{text:?} is no size"))
}

/// For serde: a size as a text or a whole number of bytes.
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

/// The limits of a user socket, if any of its channels has one of its own.
pub(super) fn limits(specs: &[ChannelSpec], defaults: Defaults) -> Option<Limits> {
    specs.iter().find(|spec| spec.message_bytes_max.is_some())?;
    let largest =
        specs.iter().map(|spec| spec.message_bytes_max.unwrap_or(defaults.message_bytes_max));
    let message_bytes_max = largest.max()?;
    let frame_bytes_max = defaults.frame_bytes_max.unwrap_or(message_bytes_max);
    Some(Limits { message_bytes_max, frame_bytes_max: frame_bytes_max.min(message_bytes_max) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("1500", 1_500),
            ("1_500 B", 1_500),
            ("64KiB", 65_536),
            ("64 kib", 65_536),
            ("10MB", 10_000_000),
            ("1.5GiB", 1_610_612_736),
            ("2TiB", 1 << 41),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "-1", "KiB", "64 potatoes", "1.MB", ".5MB", "1.2.3B", "99999999999TiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
