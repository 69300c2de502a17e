//! Values of flags and settings: functions from a text to the checked value or an error.

use std::time::Duration;

/// A value, or the word for none (`off`) or for an automatic choice (`auto`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice<T> {
    /// The word.
    Word,
    /// The value.
    Value(T),
}

impl<T> Choice<T> {
    /// The value, unless it is the word.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Word => None,
            Self::Value(value) => Some(value),
        }
    }
}

/// Reads `word`, or else a value as `read` does.
pub fn word_or<T>(
    word: &'static str,
    read: impl Fn(&str) -> Result<T, String> + Clone,
) -> impl Fn(&str) -> Result<Choice<T>, String> + Clone {
    move |text| if text == word { Ok(Choice::Word) } else { read(text).map(Choice::Value) }
}

/// Reads a whole number within these bounds; underscores are allowed between digits.
pub fn whole<T: TryFrom<u32>>(least: u32, most: u32) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.replace('_', "").parse().ok().filter(|n| (least..=most).contains(n));
        let number = number.and_then(|n| T::try_from(n).ok());
        number.ok_or_else(|| format!("{text:?} is not a whole number from {least} to {most}"))
    }
}

/// Reads a time longer than nothing, such as `500ms` or `1m 30s`.
///
/// # Errors
/// The error in the text.
pub fn duration(text: &str) -> Result<Duration, String> {
    match duration_or_zero(text)? {
        Duration::ZERO => Err("must be longer than 0".to_owned()),
        duration => Ok(duration),
    }
}

/// Reads a time of at most a year.
///
/// # Errors
/// The error in the text.
pub fn duration_or_zero(text: &str) -> Result<Duration, String> {
    let duration: Duration =
        text.parse::<humantime::Duration>().map_err(|error| format!("{text:?}: {error}"))?.into();
    if duration > DURATION_MAX {
        return Err(format!("{text:?} is longer than {} days", DURATION_MAX.as_secs() / 86_400));
    }
    Ok(duration)
}

/// Far above any use, and far below the limit of a shard's clock.
const DURATION_MAX: Duration = Duration::from_secs(365 * 86_400);

/// Reads a size of at least one byte.
///
/// # Errors
/// The error in the text.
pub fn bytes_at_least_one(text: &str) -> Result<usize, String> {
    match parse_bytes(text)? {
        0 => Err("must be at least 1 byte".to_owned()),
        bytes => Ok(bytes),
    }
}

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
/// The part of it that cannot be read.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let unit = unit.trim().to_ascii_lowercase();
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("{text:?} has no known unit of size"));
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
    bytes.ok_or_else(|| format!("{text:?} is not a size"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_sizes_are_parsed() {
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
    fn invalid_sizes_are_rejected() {
        for text in ["", "-1", "KiB", "64 potatoes", "1.MB", ".5MB", "1.2.3B", "99999999999TiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(word_or("off", duration)("off"), Ok(Choice::Word));
        assert_eq!(duration_or_zero("0s"), Ok(Duration::ZERO));
        for wrong in ["60", "0s", "", "-1s", "s", "1 fortnight", "off", "1e9y", "366d"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
